#!/usr/bin/env python3
"""Tests of Natrix between real kernels, in network namespaces. Prints TAP; exit status 1 when a test fails."""

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "demo")]

import kit  # noqa: E402
import setups  # noqa: E402
import test_alg_ftp  # noqa: E402, F401
import test_alg_pieces  # noqa: E402, F401
import test_alg_pptp  # noqa: E402, F401
import test_alg_rtsp  # noqa: E402, F401
import test_alg_second_opinion  # noqa: E402, F401
import test_alg_sip  # noqa: E402, F401
import test_alg_tftp  # noqa: E402, F401
import test_api  # noqa: E402, F401
import test_balanced  # noqa: E402, F401
import test_collectors  # noqa: E402, F401
import test_first_steps  # noqa: E402, F401
import test_fragments  # noqa: E402, F401
import test_icmp  # noqa: E402, F401
import test_ipv6  # noqa: E402, F401
import test_lab  # noqa: E402, F401
import test_lab_end  # noqa: E402, F401
import test_lab_vpp  # noqa: E402, F401
import test_limits  # noqa: E402, F401
import test_live_change  # noqa: E402, F401
import test_load_sharing  # noqa: E402, F401
import test_log  # noqa: E402, F401
import test_log_format  # noqa: E402, F401
import test_many_sessions  # noqa: E402, F401
import test_memif_peer  # noqa: E402, F401
import test_monitoring  # noqa: E402, F401
import test_page  # noqa: E402, F401
import test_port_control  # noqa: E402, F401
import test_probe  # noqa: E402, F401
import test_restconf  # noqa: E402, F401
import test_routing  # noqa: E402, F401
import test_routing_ipv6  # noqa: E402, F401
import test_routing_links  # noqa: E402, F401
import test_routing_pools  # noqa: E402, F401
import test_routing_recipes  # noqa: E402, F401
import test_routing_tables  # noqa: E402, F401
import test_security  # noqa: E402, F401
import test_small_limits  # noqa: E402, F401
import test_snmp  # noqa: E402, F401
import test_soak_management  # noqa: E402, F401
import test_sticky_next_hops  # noqa: E402, F401
import test_tcp  # noqa: E402, F401
import test_timers  # noqa: E402, F401
import test_transition  # noqa: E402, F401
import test_udp  # noqa: E402, F401
import test_unit  # noqa: E402, F401
import test_whole_run  # noqa: E402, F401  (the last: its tests look back on the others)
from netlab import process  # noqa: E402
from netlab.netfilter import Netfilter  # noqa: E402
from netlab.topology import Network  # noqa: E402


# They load the machine for minutes, so they run one setup at a time and not beside the others.
QUIET_MODULE = "test_load_sharing"
QUIET = (
    "a_flood_leaves_sessions_and_traffic_alone",
    "a_flood_by_shared_memory_leaves_sessions_and_traffic_alone",
    "a_flood_of_ospf_leaves_its_adjacency_full",
    "a_flood_of_requests_takes_no_established_packet",
    "a_request_flood_over_memif_takes_no_established_packet",
    "a_restart_keeps_the_device_and_the_session",
    "a_million_routes_of_the_kernel_take_at_most_200_mb",
)

# Their testers and devices go before all other programs and have both CPUs for minutes. So each
# runs by itself, after the others, with the priority of its testers: otherwise a test waits for the
# CPU while a tester that it wants to end spins on it.
ALONE = ("lab", "lab_end")
# What finds out when timers end has to be woken in time.
FIRST = (*ALONE, "probe")
NICE = -19


def needs_quiet(function):
    """Whether a test is only run with --quiet."""
    return function.__module__ == QUIET_MODULE or function.__name__ in QUIET


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dut", choices=["natrix", "netfilter"], default="natrix", help="which NAT is tested")
    parser.add_argument("--quiet", action="store_true", help="the tests that load the machine, one setup at a time")
    parser.add_argument("--natrix", type=Path, default=HERE.parent.parent / "target/debug/natrix", help="the binary")
    parser.add_argument("--only", default="", help="only tests whose name, such as api/roles, contains this")
    parser.add_argument("--jobs", type=int, default=4, help="setups that run side by side (4)")
    parser.add_argument("--list", action="store_true", help="only list: name, tab, requirements shown")
    return parser.parse_args()


def make_dut(options):
    if options.dut == "netfilter":
        return Netfilter()
    from netlab.natrix import Natrix

    dut = Natrix(options.natrix)
    dut.tables = setups.TABLES
    return dut


def watch_for_leaks(network):
    """Lets the core router count every packet from the NAT that carries an inside source."""
    network.core.run(
        ["nft", "-f", "-"],
        check=True,
        stdin="""
            table ip leaks {
                chain in {
                    type filter hook prerouting priority -300;
                    iifname "nat" ip saddr 100.64.0.0/10 counter
                }
            }
        """,
    )


class Tap:
    """Numbered results."""

    def __init__(self, total):
        self.number = 0
        self.failed = 0
        print(f"1..{total}", flush=True)

    def result(self, setup, function, failure, seconds):
        self.number += 1
        self.failed += failure is not None
        marks = ",".join(getattr(function, "requirements", ()))
        word = "ok" if failure is None else "not ok"
        print(f"{word} {self.number} - {setup}/{function.__name__} [{marks}] {seconds:.1f} s", flush=True)
        if failure is not None:
            for line in failure.splitlines():
                print(f"#   {line}", flush=True)

    def fault(self, setup, text):
        """A fault of a whole setup, beside the results of its tests."""
        self.failed += 1
        print(f"# {setup}: {text}", flush=True)


def run_setup(options, name, functions, results):
    """Runs the tests of one setup in a network of its own; puts (index, failure, seconds) into `results`."""
    dut = make_dut(options)
    extra = [f"100.64.0.{last}" for last in range(20, 220)]
    done = 0
    try:
        with Network("nxtest", dut, extra_subscribers=extra) as network:
            watch_for_leaks(network)
            differences = setups.SETUPS[name]
            dut.start(network, **(differences() if callable(differences) else differences))
            for function in functions:
                begun = time.monotonic()
                failure = None
                try:
                    function(network)
                    if not dut.alive():
                        failure = "the NAT has ended"
                except kit.Failure as error:
                    failure = str(error)
                except Exception:  # pylint: disable=broad-exception-caught
                    failure = traceback.format_exc()
                results.put((done, failure, time.monotonic() - begun))
                done += 1
            failure = dut.stop()
            if failure:
                results.put((None, failure, 0))
    except process.CommandFailed as error:
        # The setup itself failed: so have all tests that could not run.
        results.put((None, f"the setup failed: {error}", 0))
        for index in range(done, len(functions)):
            results.put((index, "its setup failed, see above", 0))


class Running:
    """One setup with its tests, in a process of its own."""

    def __init__(self, options, name, functions):
        self.name = name
        self.functions = functions
        self.missing = set(range(len(functions)))
        self.results = multiprocessing.Queue()
        self.process = multiprocessing.Process(target=self.child, args=(options,))
        self.process.start()

    def child(self, options):
        process.die_with_parent()
        if self.name in FIRST:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        run_setup(options, self.name, self.functions, self.results)

    def report(self, tap):
        """Passes on what has come since; true once the process has ended and all is passed on."""
        ended = not self.process.is_alive()
        while True:
            try:
                index, failure, seconds = self.results.get(timeout=0.1)
            except queue.Empty:
                break
            if index is None:
                tap.fault(self.name, failure)
            else:
                self.missing.discard(index)
                tap.result(self.name, self.functions[index], failure, seconds)
        if ended:
            for index in sorted(self.missing):
                tap.result(self.name, self.functions[index], "the process of its setup ended before it", 0)
        return ended

    def end(self):
        self.process.terminate()
        self.process.join()


def run_all(options, setups_to_run, tap):
    """Runs these setups, [(name, functions)], at most `options.jobs` at a time."""
    waiting = sorted(setups_to_run, key=lambda setup: setup[0] in ALONE)
    running = []
    try:
        while waiting or running:
            while waiting and len(running) < (1 if waiting[0][0] in ALONE else options.jobs):
                running.append(Running(options, *waiting.pop(0)))
            running = [setup for setup in running if not setup.report(tap)]
    finally:
        for setup in running:
            setup.end()


def main():
    options = arguments()
    if options.list:
        for _, function in kit.TESTS:
            print(f"{function.__name__}\t{' '.join(getattr(function, 'requirements', ()))}")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [(setup, function) for setup, function in kit.TESTS if options.only in f"{setup}/{function.__name__}"]
    if options.quiet:
        options.jobs = 1
    if not options.only:
        chosen = [(setup, function) for setup, function in chosen if needs_quiet(function) == options.quiet]
    tap = Tap(len(chosen))
    by_setup = [(name, [function for setup, function in chosen if setup == name]) for name in setups.SETUPS]
    run_all(options, [(name, functions) for name, functions in by_setup if functions], tap)
    print(f"# {tap.number - tap.failed} passed, {tap.failed} failed")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
