#!/bin/sh
# Fuzzes on the stable toolchain. See README.md.
#
#   fuzz/run.sh                      lists the targets
#   fuzz/run.sh TARGET SECONDS       fuzzes one target; further arguments go to libFuzzer
#   fuzz/run.sh all SECONDS          fuzzes every target for SECONDS each, one on each processor
#   fuzz/run.sh check RUNS           runs RUNS inputs of every target, always the same ones
#   fuzz/run.sh replay TARGET FILE   runs one input and shows the panic
#   fuzz/run.sh minimize TARGET FILE makes a crashing input smaller
set -eu
case "${3:-}" in
/*) input=$3 ;;
*) input=$PWD/${3:-} ;;
esac
cd "$(dirname "$0")"

host=$(rustc -vV | sed -n 's/^host: //p')
if ! command -v c++ >/dev/null 2>&1; then
    echo "fuzz/run.sh: libFuzzer is C++: install a compiler, for example: apt-get install -y g++" >&2
    exit 1
fi

# What `cargo fuzz` does, without the sanitizers, which need a nightly compiler: LLVM's coverage
# pass with the counters, program counters and comparisons libFuzzer listens to. With --target,
# build scripts and procedural macros stay without.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
export RUSTFLAGS
if [ -z "${FUZZ_PROGRAM:-}" ]; then
    cargo build --quiet --release --target "$host"
    FUZZ_PROGRAM="${CARGO_TARGET_DIR:-target}/$host/release/fuzz"
fi

targets() {
    sed -n 's/.*Target { name: "\([^"]*\)".*/\1/p' ../crates/fuzz-targets/src/lib.rs
}

fuzz() {
    target=$1
    seconds=$2
    shift 2
    corpus=${FUZZ_CORPUS:-corpus}/$target
    mkdir -p "$corpus" "artifacts/$target"
    seeds=""
    for folder in "seeds/$target" "regressions/$target"; do
        if [ -d "$folder" ]; then seeds="$seeds $folder"; fi
    done
    # Inputs found go to the first folder, the others are only read.
    # Value profiles: the optimiser joins the tests of several fields in one branch; only with the
    # compared values does libFuzzer see that it comes nearer to passing them all.
    # shellcheck disable=SC2086
    FUZZ_TARGET="$target" "$FUZZ_PROGRAM" "$corpus" $seeds "-max_total_time=$seconds" \
        "-artifact_prefix=artifacts/$target/" -use_value_profile=1 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 "$@"
}

# Every target for $1 seconds, one on each processor; $2 are options of libFuzzer. What one target
# prints stays together, and a fault ends no other.
each() {
    FUZZ_LOGS=$(mktemp -d)
    trap 'rm -rf "$FUZZ_LOGS"' EXIT
    if [ -n "$2" ]; then
        FUZZ_CORPUS=$FUZZ_LOGS/corpus
        export FUZZ_CORPUS
    fi
    export FUZZ_PROGRAM FUZZ_LOGS
    targets | xargs -P "$(nproc)" -I TARGET sh "$PWD/run.sh" --one TARGET "$1" "$2" || failed=1
    exit "${failed:-0}"
}

case "${1:-}" in
"")
    targets
    ;;
all)
    each "${2:?seconds}" ""
    ;;
check)
    # The same seed and no inputs of earlier runs, so that a failure is seen again on every machine.
    # A slow machine stops earlier in the same sequence.
    each 10 "-seed=1 -runs=${2:?runs}"
    ;;
--one)
    log=$FUZZ_LOGS/$2
    status=0
    # shellcheck disable=SC2086 # several options, or none
    fuzz "$2" "$3" -verbosity=0 ${4:-} >"$log" 2>&1 || status=1
    echo "== $2"
    if [ "$status" -eq 0 ]; then grep '^stat::number_of_executed_units' "$log"; else cat "$log"; fi
    exit "$status"
    ;;
replay)
    FUZZ_TARGET=$2 RUST_BACKTRACE=1 "$FUZZ_PROGRAM" "$input"
    ;;
minimize)
    mkdir -p "artifacts/$2"
    FUZZ_TARGET=$2 "$FUZZ_PROGRAM" -minimize_crash=1 -runs=100000 "-exact_artifact_path=artifacts/$2/minimized" "$input"
    ;;
*)
    target=$1
    seconds=${2:?seconds}
    shift 2
    fuzz "$target" "$seconds" "$@"
    ;;
esac
