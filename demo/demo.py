#!/usr/bin/env python3
"""The demo of Natrix: real programs in network namespaces, through one NAT, and a summary of what they saw."""

import argparse
import signal
import sys
import time
from pathlib import Path

from netlab import process
from netlab import state
from netlab import transition
from netlab.netfilter import Netfilter
from netlab.topology import Network
from policy import IN_BLOCKS
from policy import WITH_QUOTA
from programs import Programs
from result import Result
from routing import Routing

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", nargs="?", choices=["run", "up"], default="run", help="run: programs and summary; up: only the network")
    parser.add_argument("--dut", choices=["natrix", "netfilter"], default="natrix", help="which NAT carries the traffic")
    parser.add_argument("--natrix", type=Path, default=ROOT / "target/release/natrix", help="the natrix binary")
    parser.add_argument("--routing", choices=["frr", "static"], default="frr", help="how Natrix and the core router know their routes")
    parser.add_argument("--keep", action="store_true", help="leave the network running until Ctrl-C")
    parser.add_argument("--clean", action="store_true", help="only remove what killed runs have left")
    return parser.parse_args()


def make_dut(options):
    if options.dut == "netfilter":
        return Netfilter()
    from netlab.natrix import Natrix

    return Natrix(options.natrix, has_page=True)


def start_dut(options, network):
    """Starts the NAT, and FRR on both sides of it; returns that."""
    if options.dut != "natrix":
        network.start_dut()
        return None
    has_ipv6 = {"addresses": transition.ADDRESSES, "more": transition.ROUTE + transition.CONFIGURATION}
    if options.routing == "static":
        network.dut.start(network, **has_ipv6)
        return None
    transition.leave_cables_to_natrix(network)
    has_ipv6["more"] += "\n[routing]\nkernel = true\n"
    network.dut.start(network, kernel=True, has_default=False, **has_ipv6)
    # Packets to the pool find their way by BGP only.
    network.core.ip("route", "del", "203.0.113.0/24")
    routing = Routing(network)
    routing.wait()
    return routing


def run_programs(programs):
    """Runs all programs, prints the result of each when it ends, and returns [(title, result)]."""
    results = []
    for title, program in programs.all():
        print(f"  {title:<42}", end="", flush=True)
        begun = time.monotonic()
        try:
            result = program()
        except (process.CommandFailed, OSError, ValueError, LookupError, AttributeError) as error:
            result = Result(False, f"{type(error).__name__}: {error}")
        took = time.monotonic() - begun
        print(f"{'pass' if result.passed else 'FAIL'}  {took:5.1f} s  {result.saw}", flush=True)
        results.append((title, result))
    return results


def print_summary(options, network, programs, results, routing):
    line = "-" * 118
    print(f"\n{line}\nWhat the programs saw through {options.dut}\n{line}")
    for title, result in results:
        print(f"{'pass' if result.passed else 'FAIL'}  {title:<42} {result.saw}")
    print(line)
    if programs.throughput:
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in programs.throughput.items())
        print(f"throughput, Mbit/s: {rates}")
    for line_of_nat in network.dut.summary():
        print(line_of_nat)
    if routing:
        print(routing.summary())
    passed = sum(result.passed for _, result in results)
    print(f"{line}\n{passed} of {len(results)} programs saw what they should")


def print_how_to_look(network):
    prefix = network.state.prefix
    print("\nLook around:")
    print(f"  ip netns exec {prefix}-sub1 curl http://192.0.2.10/whoami     a subscriber; also {prefix}-sub2")
    print(f"  ip netns exec {prefix}-srv1 tcpdump -ni eth0                  a server; also {prefix}-srv2, {prefix}-core")
    for line in network.dut.how_to_look():
        print(f"  {line}")


def main():
    options = arguments()
    # Ctrl-C and a polite kill both end by way of the clearing up below, also where a shell had
    # Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cleared = state.clear_up_after_the_dead()
    if cleared:
        print(f"removed what an earlier run had left: {', '.join(cleared)}")
    if options.clean:
        return 0
    print(f"Building the network around {options.dut}: 2 subscribers, switch, NAT, 2 routers, 2 servers", flush=True)
    with Network("nxdemo", make_dut(options), extra_subscribers=(IN_BLOCKS, WITH_QUOTA)) as network:
        routing = start_dut(options, network)
        programs = Programs(network)
        print("Starting nginx, dnsmasq, coturn and iperf3; writing the file of 1 GiB", flush=True)
        programs.prepare()
        results = []
        if options.mode == "run":
            print("Running the programs", flush=True)
            results = run_programs(programs)
            print_summary(options, network, programs, results, routing)
        if options.keep or options.mode == "up":
            print_how_to_look(network)
            print("\nRunning until Ctrl-C.", flush=True)
            signal.pause()
        elif options.dut == "natrix":
            print("\nTo look around while it runs: make demo KEEP=1")
    return 0 if all(result.passed for _, result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nended by Ctrl-C; everything is removed")
        sys.exit(130)
    except process.CommandFailed as error:
        print(f"error: demo: {error}", file=sys.stderr)
        sys.exit(1)
