#!/usr/bin/env bash
# All checks, one after the other; goes on after a failure and ends with one line: N passed, N failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Seconds of fuzzing per target: enough to run the kept seeds and crashes and look a little further.
readonly fuzz_seconds="${FUZZ_SECONDS:-5}"

passed=0
failed=0
failed_steps=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Runs one step; counts the results it prints of cargo test and of TAP, otherwise the step itself.
step() {
    local name=$1 status begun=$SECONDS ok not_ok
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    ok=$(awk '/^test result: .*finished in/{n += $4} /^ok [0-9]/{n++} END{print n + 0}' "$log")
    not_ok=$(awk '/^test result: .*finished in/{n += $6} /^not ok [0-9]/{n++} END{print n + 0}' "$log")
    # A step without results of its own counts as one; so does a failure outside the results.
    if [ "$ok" -eq 0 ] && [ "$not_ok" -eq 0 ] && [ "$status" -eq 0 ]; then
        ok=1
    elif [ "$status" -ne 0 ] && [ "$not_ok" -eq 0 ]; then
        not_ok=1
    fi
    passed=$((passed + ok))
    failed=$((failed + not_ok))
    [ "$not_ok" -eq 0 ] || failed_steps+=("$name")
    echo "== $name: $ok passed, $not_ok failed, $((SECONDS - begun)) s"
}

step "format" cargo fmt --all --check
step "scripts" shellcheck scripts/*.sh fuzz/run.sh .ci/run
step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
step "lints with DPDK" cargo clippy --locked --all-targets --features dpdk -p packet-io -p daemon -p bench -p natrix -- -D warnings
step "tests" cargo test --workspace --locked --no-fail-fast
step "tests with DPDK" cargo test --locked --no-fail-fast --features dpdk -p packet-io -p daemon -p bench -p natrix
step "fuzz" fuzz/run.sh all "$fuzz_seconds"
# The tests with DPDK have built the binary with it, too.
step "network namespaces" tests/netns/run.py --natrix target/debug/natrix

for name in "${failed_steps[@]}"; do
    echo "failed: $name"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
