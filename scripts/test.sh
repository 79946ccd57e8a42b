#!/usr/bin/env bash
# All checks; goes on after a failure and ends with one line: N passed, N failed.
#
# The tests in network namespaces mostly wait: for timers, for programs that start. So they run
# beside what only compiles or computes, which gives way to them. What depends on time by the clock
# runs after them.
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
folder=$(mktemp -d)
beside=""
trap '[ -z "$beside" ] || kill "$beside" 2>/dev/null; rm -rf "$folder"' EXIT

# Runs one step.
step() {
    local name=$1 begun=$SECONDS
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$folder/log"
    count "$name" "${PIPESTATUS[0]}" "$folder/log" $((SECONDS - begun))
}

# Runs one step beside those that follow, until `finish`.
begin() {
    beside_name=$1
    beside_begun=$(date +%s)
    shift
    # In a session of its own: where the kernel shares the CPUs out by session (autogroup), it has
    # a share of its own.
    setsid "$@" >"$folder/beside" 2>&1 &
    beside=$!
}

# Waits for the step beside the others, and shows what it printed.
finish() {
    local status
    wait "$beside"
    status=$?
    beside=""
    echo "== $beside_name"
    cat "$folder/beside"
    count "$beside_name" "$status" "$folder/beside" $(($(stat -c %Y "$folder/beside") - beside_begun))
}

# Counts the results that a step printed of cargo test and of TAP, otherwise the step itself.
count() {
    local name=$1 status=$2 log=$3 seconds=$4 ok not_ok
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
    echo "== $name: $ok passed, $not_ok failed, $seconds s"
}

# All tests; builds with the same features share what they build.
tests() {
    cargo test --workspace --locked --no-fail-fast "$@"
}

# Without DPDK only the binary and one study differ; every other test runs once, with it.
without_dpdk=(--test binary --test study)

# The binary with DPDK, before the rest, out of the way of later builds.
readonly natrix=target/netns/natrix
binary() {
    rm -f "$natrix"
    cargo test --workspace --locked --features "$with_dpdk" --no-run --test binary &&
        install -D target/debug/natrix "$natrix"
}

step "format" cargo fmt --all --check
step "scripts" shellcheck scripts/*.sh fuzz/run.sh .ci/run
step "binary" binary
begin "network namespaces" tests/netns/run.py --natrix "$natrix"
nicely=(nice -n 19)
step "lints with DPDK" "${nicely[@]}" cargo clippy --workspace --all-targets --locked --features "$with_dpdk" -- -D warnings
step "lints" "${nicely[@]}" cargo clippy --workspace --all-targets --locked -- -D warnings
step "build without DPDK" "${nicely[@]}" cargo test --workspace --locked --no-run "${without_dpdk[@]}"
step "build" "${nicely[@]}" cargo test --workspace --locked --no-run --features "$with_dpdk"
step "fuzz" "${nicely[@]}" fuzz/run.sh check "$fuzz_runs"
finish
step "tests without DPDK" tests "${without_dpdk[@]}"
step "tests" tests --features "$with_dpdk"
# The tests have built the binary, with DPDK.
step "package" scripts/package.sh --test --built

for name in "${failed_steps[@]}"; do
    echo "failed: $name"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
