#!/usr/bin/env bash
# The engine's figures on this machine as a table: all modes and sizes take turns, and each figure
# is the median of its runs.
#
# BENCH_SESSIONS sizes; 65500000 needs 6 GiB and is the better for 5700 hugepages of 2 MiB ["1000
# 65536 1000000 10000000"] BENCH_MODES ["established new mixed"] BENCH_ROUNDS runs of each [3]
# BENCH_SECONDS of each run [3] BENCH_OUT file that gets each run's JSON object, a line each [a
# temporary one]
set -euo pipefail
cd "$(dirname "$0")/.."
out="${BENCH_OUT:-$(mktemp)}"
: >"$out"
for _ in $(seq "${BENCH_ROUNDS:-3}"); do
    for sessions in ${BENCH_SESSIONS:-1000 65536 1000000 10000000}; do
        for mode in ${BENCH_MODES:-established new mixed}; do
            target/release/natrix bench engine --sessions "$sessions" --mode "$mode" --workers 1 \
                --seconds "${BENCH_SECONDS:-3}" --json >>"$out"
        done
    done
done
python3 - "$out" <<'PYTHON'
import json
import statistics
import sys

runs = {}
for line in open(sys.argv[1], encoding="utf-8"):
    run = json.loads(line)
    # The mixed mode ends with some more sessions than were asked for.
    size = min((1_000, 65_536, 1_000_000, 10_000_000, 65_500_000), key=lambda size: abs(size - run["sessions"]))
    runs.setdefault((run["mode"], size), []).append(run)
print("| mode | sessions | cycles a packet | lowest to highest | in the median burst | Mpps | new, M/s | bound, Mpps | of the bound "
      "| bytes a session | resident, MiB | p50 | p99 | p99.9 of a burst, µs |")
print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
for (mode, size), group in sorted(runs.items()):
    median = lambda field: statistics.median(run[field] for run in group)
    cycles = sorted(run["tsc_cycles_per_packet"] for run in group)
    hertz = statistics.median(run["tsc_cycles_per_packet"] * run["mpps"] * 1e6 for run in group)
    in_median_burst = median("p50_ns") / 1e9 * hertz / 64
    new = median("new_sessions_per_second") / 1e6
    print(f"| {mode} | {size:,} | {median('tsc_cycles_per_packet'):.0f} | {cycles[0]:.0f} to {cycles[-1]:.0f} "
          f"| {in_median_burst:.0f} | {median('mpps'):.1f} | {f'{new:.2f}' if new else '-'} | {median('memory_bound_mpps'):.0f} "
          f"| {median('fraction_of_memory_bound'):.2f} | {median('bytes_per_session'):.1f} "
          f"| {median('resident_bytes') / 2**20:.0f} | {median('p50_ns') / 1e3:.1f} | {median('p99_ns') / 1e3:.1f} "
          f"| {median('p999_ns') / 1e3:.1f} |".replace(",", " "))
PYTHON
