#!/usr/bin/env python3
"""Spreads subscribers over several NATs on a Linux router, so that each stays with its NAT.

The router learns from each NAT two prefixes by a routing protocol:

  ALIVE    as long as the NAT can be reached,
  SERVING  as long as it takes new subscribers: a prefix of its pools. `natrix drain` withdraws it.

This program keeps a resilient group of next hops in line with them. The kernel chooses a bucket by
the source address (--hash sets that up) and remembers the next hop of each bucket:

  both prefixes    the NAT gets its full share of the buckets
  ALIVE only       it keeps the buckets that are in use, and loses each that had no packet for --idle
  none             its buckets go to the others at once; nothing else moves

  sticky-next-hops.py --nat 10.255.0.11,10.255.1.11,203.0.113.16/29 --nat ...

Packets to the pools of the NATs take the same next hops, by a rule and a table of their own: otherwise a subscriber
that talks to one of another NAT would have a second external address there. The routing daemon does not see that table.

ALIVE is best a loopback of the NAT: OSPF removes routes of the area sooner than external ones.
"""

import argparse
import json
import select
import signal
import subprocess
import sys
import time

# Shares of the buckets. A next hop of a group has at least 1.
FULL, DRAINED = 250, 1
# Seconds in which routes that change together are read once, and without a change.
TOGETHER, AT_LEAST = 0.02, 2.0


class Nat:
    """A NAT: its next hop, and the prefixes that show its state."""

    def __init__(self, text):
        try:
            self.address, self.alive, self.serving = text.split(",")
        except ValueError:
            raise argparse.ArgumentTypeError(f'"{text}" is not NEXT-HOP,ALIVE,SERVING') from None

    def share(self, routes):
        """Its share of the buckets, by the learned routes {(prefix, next hop)}; 0: none."""
        if (self.alive, self.address) not in routes:
            return 0
        return FULL if (self.serving, self.address) in routes else DRAINED


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nat", action="append", type=Nat, required=True, metavar="NEXT-HOP,ALIVE,SERVING")
    parser.add_argument("--prefix", default="default", help="what the NATs are the way to (default)")
    parser.add_argument("--protocol", default="ospf", help="protocol of the learned routes in the kernel (ospf)")
    parser.add_argument("--buckets", type=int, default=32768, help="at least several for each subscriber at once, up to 65535")
    parser.add_argument("--idle", type=int, default=300, help="seconds without a packet after which a bucket may move (300)")
    parser.add_argument("--table", type=int, default=4000, help="the kernel's table for packets to the pools (4000)")
    parser.add_argument("--id", type=int, default=4_000_000, help="number of the group; its NATs have the next ones")
    parser.add_argument("--hash", action="store_true", help="have this router hash by the source address only")
    return parser.parse_args()


def ip(*words):
    """Runs `ip`; what it prints."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True).stdout


def learned(protocol):
    """All (prefix, next hop) of a routing protocol."""
    found = set()
    for route in json.loads(ip("-j", "route", "show", "proto", protocol) or "[]"):
        for hop in (route, *route.get("nexthops", ())):
            if "gateway" in hop:
                found.add((route["dst"], hop["gateway"]))
    return found


def apply(options, shares):
    """Has the kernel use these shares, {number of the next hop: share}."""
    members = "/".join(f"{number},{share}" for number, share in sorted(shares.items()))
    ip("nexthop", "replace", "id", options.id, "group", members, "type", "resilient", "buckets", options.buckets,
       "idle_timer", options.idle, "unbalanced_timer", 0)  # fmt: skip
    ip("route", "replace", options.prefix, "nhid", options.id, "proto", "static")
    for nat in options.nat:
        ip("route", "replace", nat.serving, "nhid", options.id, "proto", "static", "table", options.table)
        if not json.loads(ip("-j", "rule", "show", "to", nat.serving, "table", options.table) or "[]"):
            ip("rule", "add", "to", nat.serving, "lookup", options.table)


def say(options, shares):
    words = {FULL: "serves", DRAINED: "drains"}
    states = [f"{nat.address} {words.get(shares.get(number), 'is away')}" for number, nat in numbered(options)]
    print(f"{time.time():.3f} {', '.join(states)}", flush=True)


def numbered(options):
    return enumerate(options.nat, options.id + 1)


def follow(options, monitor):
    before = None
    for number, nat in numbered(options):
        ip("nexthop", "replace", "id", number, "via", nat.address, "dev", device_of(nat.address))
    while True:
        routes = learned(options.protocol)
        shares = {number: share for number, nat in numbered(options) if (share := nat.share(routes))}
        if shares != before and shares:
            apply(options, shares)
            say(options, shares)
            before = shares
        # Without any NAT the last group stays: it may be the routing daemon that restarts.
        if select.select([monitor], [], [], AT_LEAST)[0]:
            time.sleep(TOGETHER)
            if not monitor.read1(1 << 20):
                return "ip monitor has ended"


def device_of(address):
    """The device that leads to a next hop."""
    return json.loads(ip("-j", "route", "get", address))[0]["dev"]


def main():
    options = arguments()
    if options.hash:
        for key, value in (("fib_multipath_hash_policy", 3), ("fib_multipath_hash_fields", 1)):
            with open(f"/proc/sys/net/ipv4/{key}", "w", encoding="ascii") as file:
                file.write(str(value))
    # So that `ip monitor` ends too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with subprocess.Popen(["ip", "monitor", "route"], stdout=subprocess.PIPE) as monitor:
        try:
            return follow(options, monitor.stdout)
        except subprocess.CalledProcessError as error:
            return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"
        finally:
            monitor.kill()


if __name__ == "__main__":
    failure = main()
    print(f"error: sticky-next-hops: {failure}", file=sys.stderr)
    sys.exit(1)
