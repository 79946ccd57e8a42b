#!/usr/bin/env bash
# First figures of the engine on this machine, one JSON object per line.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly seconds="${BENCH_SECONDS:-5}"
for sessions in 1000 1000000 10000000; do
    for mode in established new; do
        target/release/natrix bench engine --sessions "$sessions" --mode "$mode" --workers 1 --seconds "$seconds" --json
    done
done
