#!/usr/bin/env bash
# All checks, one after the other; goes on after a failure and ends with one line: N passed, N
# failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Inputs of each fuzz target, always the same ones: the kept seeds and crashes, and a little
# further. `make fuzz` searches at random.
readonly fuzz_runs="${FUZZ_RUNS:-20000}"
# Incremental compilation only helps builds that are repeated after small changes.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"

# Everything that can be built with DPDK.
readonly with_dpdk=packet-io/dpdk,daemon/dpdk,bench/dpdk,measure/dpdk,natrix/dpdk

passed=0
failed=0
failed_steps=()
log=$(mktemp)
beside_log=$(mktemp)
beside=
trap '[ -z "$beside" ] || kill "$beside"; rm -f "$log" "$beside_log"' EXIT

# Runs one step; counts the results it prints.
step() {
    local name=$1 begun=$SECONDS
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$log"
    count "$name" "${PIPESTATUS[0]}" "$log" "$begun"
}

# Starts a step that runs beside the next ones; `end_beside` waits for it and shows what it printed.
begin_beside() {
    beside_name=$1 beside_begun=$SECONDS
    shift
    echo "== $beside_name: begins, beside the next steps"
    "$@" >"$beside_log" 2>&1 &
    beside=$!
}

end_beside() {
    local status
    wait "$beside"
    status=$?
    beside=
    echo "== $beside_name"
    cat "$beside_log"
    count "$beside_name" "$status" "$beside_log" "$beside_begun"
}

# Counts the results of cargo test and of TAP in what a step printed, otherwise the step itself.
# Takes its name, exit status, output, and the second in which it began.
count() {
    local name=$1 status=$2 log=$3 begun=$4 ok not_ok
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
step "lints with DPDK" cargo clippy --workspace --all-targets --locked --features "$with_dpdk" -- -D warnings
# Without DPDK only the binary and one study differ; every other test runs once, with it.
step "tests without DPDK" cargo test --workspace --locked --no-fail-fast --test binary --test study
step "build" cargo test --workspace --locked --no-run --features "$with_dpdk"
# The network tests wait most of the time, so they run beside the others, with their own binary.
mkdir -p target/netns
cp target/debug/natrix target/netns/natrix
begin_beside "network namespaces" tests/netns/run.py --natrix target/netns/natrix --beside
step "tests" cargo test --workspace --locked --no-fail-fast --features "$with_dpdk"
step "fuzz" fuzz/run.sh check "$fuzz_runs"
end_beside
step "network namespaces, alone" tests/netns/run.py --natrix target/netns/natrix --alone
step "package" scripts/package.sh --test --built

for name in "${failed_steps[@]}"; do
    echo "failed: $name"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
