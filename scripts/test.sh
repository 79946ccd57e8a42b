#!/usr/bin/env bash
# All checks; goes on after a failure and ends with one line: N passed, N failed. The tests in
# network namespaces mostly wait, and the other steps mostly compute, so they run side by side. What
# computes has the lower priority: it makes no clock of the others late.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Incremental compilation only helps builds that are repeated after small changes.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
# The same random inputs each time, so that what fails here fails because of a change. `make soak`
# draws others.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}"

# Clippy compiles what it reads, so the tests are read only once. Its code has no checks for null
# and misaligned pointers: the crates with unsafe code are tested without it, too.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver

# Everything that can be built with DPDK.
readonly with_dpdk=packet-io/dpdk,daemon/dpdk,bench/dpdk,measure/dpdk,natrix/dpdk

passed=0
failed=0
failed_steps=()
log=$(mktemp)
network_log=$(mktemp)
package_log=$(mktemp)
beside=$(mktemp -d)
network=
package=
end() {
    local running
    [ -z "$network" ] || kill "$network" 2>/dev/null
    [ -z "$package" ] || kill -- "-$package" 2>/dev/null
    for running in "$beside"/*.pid; do
        [ -e "$running" ] || continue
        echo "was running: $(basename "$running" .pid)"
        tail -n 20 "${running%.pid}.log"
        kill -- "-$(<"$running")"
    done
    rm -rf "$log" "$network_log" "$package_log" "$beside"
}
trap end EXIT

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

# Fails if there are warnings. Cargo keeps them and prints them again for what is built already.
without_warnings() {
    CARGO_TERM_COLOR=never "$@" 2>&1 | tee /dev/stderr | awk '/^warning/{found = 1} END{exit found}'
}

# Runs cargo with its arguments; up to three test programs at a time.
tests_beside() {
    local status=0 result
    mkfifo "$beside/free" || return 1
    exec 9<>"$beside/free"
    printf ... >&9
    BESIDE=$beside "$@" --config "target.'cfg(unix)'.runner = ['$PWD/scripts/run-beside.sh']" || status=1
    for _ in 1 2 3; do
        read -r -n 1 -u 9
    done
    for result in "$beside"/*.status; do
        echo "     Ran $(basename "$result" .status)"
        cat "${result%.status}.log"
        [ "$(<"$result")" = 0 ] || status=1
    done
    return "$status"
}

# The results of what ran beside the other steps.
results() {
    cat "$1"
    return "$2"
}

step "format" cargo fmt --all --check
# The fuzzer is a workspace of its own, which only `make fuzz` and `make soak` build. The tests run
# its targets over every seed, its cuts and changes, and every input that once broke a claim.
step "lock file of the fuzzer" sh -c 'cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null'
step "scripts" shellcheck scripts/*.sh fuzz/run.sh .ci/run
# With the same options as below, so that nothing is built twice.
step "building Natrix" cargo test --workspace --locked --features "$with_dpdk" --no-run --test binary
# A copy: the steps meanwhile put other builds in its place. Its name is what a process list shows.
mkdir -p target/beside/debug
step "copy of Natrix" cp --remove-destination target/debug/natrix target/beside/debug/natrix
tests/netns/run.py --natrix target/beside/debug/natrix >"$network_log" 2>&1 &
network=$!
renice -n 10 $$ >/dev/null
setsid scripts/package.sh --test --built target/beside >"$package_log" 2>&1 &
package=$!
step "building the tests" cargo test --workspace --locked --features "$with_dpdk" --all-targets --no-run
step "lints" without_warnings cargo test --workspace --locked --features "$with_dpdk" --all-targets --no-run
# Without DPDK only the binary and one study differ; every other test runs once, with it. `make
# soak` also lints the tests of the crates that differ.
readonly differing=(--test binary --test study
    --config profile.dev.package.daemon.opt-level=0 --config profile.dev.package.lab.opt-level=0)
step "lints without DPDK" without_warnings cargo test --workspace --locked --no-run "${differing[@]}"
step "tests without DPDK" cargo test --workspace --locked --no-fail-fast "${differing[@]}"
# Tests build and drop thousands of engines. If the allocator keeps their memory, the kernel need
# not clear it again each time.
readonly keeping=glibc.malloc.mmap_threshold=67108864:glibc.malloc.trim_threshold=268435456
step "tests" tests_beside env GLIBC_TUNABLES="$keeping" cargo test --workspace --locked --no-fail-fast --features "$with_dpdk"
# The package natrix, of which no test is chosen, has the dependencies built with the features that
# they were built with above.
step "unsafe code" env -u RUSTC_WORKSPACE_WRAPPER cargo test --locked --package mem --package packet-io --package natrix \
    --features packet-io/dpdk --lib --test on_demand --test 'dpdk_*'
wait "$package"
package_status=$?
package=
step "package" results "$package_log" "$package_status"
wait "$network"
network_status=$?
network=
step "network namespaces" results "$network_log" "$network_status"

for name in "${failed_steps[@]}"; do
    echo "failed: $name"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
