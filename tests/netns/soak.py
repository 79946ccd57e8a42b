#!/usr/bin/env python3
"""Changing load for a long time, and what must stay true under it. Exit status 1 when something does not."""

import argparse
import random
import signal
import socket
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "demo")]

import kit  # noqa: E402
from netlab import process  # noqa: E402
from netlab import servers  # noqa: E402
from netlab.natrix import Natrix  # noqa: E402
from netlab.topology import SRV1  # noqa: E402
from netlab.topology import SRV2  # noqa: E402
from netlab.topology import Network  # noqa: E402
from run import watch_for_leaks  # noqa: E402
from test_whole_run import the_verdicts_add_up_to_the_packets_received  # noqa: E402


def resident_kib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def load_streams(n, chance):
    """A few seconds of TCP at full speed, in a random direction."""
    options = ["--reverse"] if chance.random() < 0.5 else []
    servers.start_iperf(n, n.srv1)
    n.sub1.run(["iperf3", "--time", "5", "--parallel", str(chance.randint(1, 8)), *options, "--client", SRV1])


def load_connections(n, chance):
    """Many short connections."""
    last = chance.randint(50, 500)
    n.sub2.run(
        ["curl", "-sS", "-m", "20", "--parallel", "--parallel-max", "50", "-H", "Connection: close", "-o", "/dev/null",
         f"http://{SRV1}/whoami?[1-{last}]"]
    )  # fmt: skip


def load_ports(n, chance):
    """Many UDP mappings of many subscribers, most of them used once."""
    with kit.sockets(kit.udp(n.srv1, 7000)):
        for _ in range(500):
            address = f"100.64.0.{chance.randint(20, 219)}"
            with kit.sockets(kit.udp(n.sub2, chance.randint(1024, 65535), address)) as sub:
                sub.sendto(b"x" * chance.randint(0, 1400), (SRV1, 7000))


def load_fragments(n, chance):
    """Large pings, some through the narrow link."""
    to = chance.choice([SRV1, SRV2])
    n.sub1.run(["ping", "-n", "-q", "-c", "50", "-i", "0.02", "-s", str(chance.randint(1473, 20000)), to])


def load_noise(n, chance):
    """Datagrams from outside that nobody asked for, and random bytes as IP packets."""
    with kit.sockets(kit.raw(n.srv1), kit.raw(n.sub1)) as (outside, inside):
        for _ in range(500):
            external = chance.choice(["203.0.113.1", "203.0.113.9", "203.0.113.129", "198.51.100.77"])
            segment = kit.udp_segment(SRV1, 5, external, chance.randint(1, 65535), b"noise")
            outside.sendto(kit.ip_packet(SRV1, external, 17, segment), (external, 0))
            payload = chance.randbytes(chance.randint(0, 60))
            protocol = chance.choice([1, 6, 17, 47])
            inside.sendto(kit.ip_packet("100.64.0.10", SRV1, protocol, payload, flags_and_offset=chance.choice([0, 0x2000, 185])),
                          (SRV1, 0))  # fmt: skip


LOADS = [load_streams, load_connections, load_ports, load_fragments, load_noise]


def faults(n, dut):
    """What is not as it must be, as sentences."""
    if not dut.alive():
        return [f"natrix has ended: {dut.daemon.log()[-2000:]}"]
    found = []
    leaks = n.core.run(["nft", "list", "table", "ip", "leaks"], check=True)[1]
    if "packets 0 bytes 0" not in leaks:
        found.append(f"an inside source was seen outside: {leaks}")
    try:
        the_verdicts_add_up_to_the_packets_received(n)
    except kit.Failure as failure:
        found.append(str(failure))
    with kit.sockets(kit.echo_socket(n.sub1, 4242)) as sub:
        for _ in range(3):
            sub.sendto(b"\x08\0\0\0\0\0\0\1still there?", (SRV1, 0))
            try:
                sub.recv(100)
                break
            except (socket.timeout, BlockingIOError):
                continue
        else:
            found.append("pings no longer pass")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--natrix", type=Path, required=True, help="the binary")
    parser.add_argument("--minutes", type=float, default=30, help="how long")
    parser.add_argument("--seed", type=int, default=None, help="seed of an earlier run, to repeat its loads")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    dut = Natrix(options.natrix)
    extra = [f"100.64.0.{last}" for last in range(20, 220)]
    with Network("nxsoak", dut, extra_subscribers=extra) as n:
        watch_for_leaks(n)
        dut.start(n)
        servers.start_web(n, n.srv1)
        begun, number, resident_first = time.monotonic(), 0, None
        while time.monotonic() - begun < options.minutes * 60:
            number += 1
            load = chance.choice(LOADS)
            load(n, chance)
            found = faults(n, dut)
            if found:
                print(f"round {number}, {load.__name__}, seed {seed}:", *found, sep="\n  ")
                return 1
            resident = resident_kib(dut.daemon.pid)
            # Everything is allocated at start, but a page counts only once it is touched.
            if number == 20:
                resident_first = resident
            if resident_first and resident > resident_first * 1.5 + 131072:
                print(f"round {number}, seed {seed}: resident memory grew from {resident_first} to {resident} KiB")
                return 1
            status = dut.show("status")[0]
            print(
                f"{time.monotonic() - begun:7.0f} s  {load.__name__:<18} sessions {status['sessions']:>7,}  "
                f"forwarded {status['packets_forwarded']:>12,}  dropped {status['packets_dropped']:>9,}  {resident:,} KiB",
                flush=True,
            )
        failure = dut.stop()
        if failure:
            print(failure)
            return 1
    print(f"{number} rounds, nothing amiss")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except process.CommandFailed as error:
        print(f"error: soak: {error}", file=sys.stderr)
        sys.exit(1)
