#!/usr/bin/env python3
"""Spreads subscribers over several NATs on a Linux router, so that each stays with its NAT.

The router learns from each NAT by a routing protocol:

  ALIVE    a prefix, as long as the NAT can be reached,
  SERVING  the prefixes of its pools, as long as it takes new subscribers. `natrix drain` withdraws them.

This program keeps a resilient group of next hops in line with them. The kernel chooses a bucket by
the source address (--hash sets that up) and remembers the next hop of each bucket:

  ALIVE and SERVING  the NAT gets its full share of the buckets
  ALIVE only         it keeps the buckets that are in use, and loses each that had no packet for --idle
  none               its buckets go to the others at once; nothing else moves

  sticky-next-hops.py --nat 10.255.0.11,10.255.1.11,203.0.113.16/29 --nat ...

Name all prefixes that a NAT announces (`natrix show routes --source pool`), separated by commas. Packets to them take
the same next hops, by a rule and a table of their own: otherwise a subscriber that talks to one of another NAT would
have a second external address there. The routing daemon does not see that table.

ALIVE is best a loopback of the NAT: OSPF removes routes of the area sooner than external ones.

The kernel removes next hops, and the routes by them, when their device goes down. So this program compares all that it
needs with what the kernel has, every two seconds and whenever the state of a NAT changes, and puts back what is missing.
"""

import argparse
import ipaddress
import json
import select
import signal
import subprocess
import sys
import time

# Shares of the buckets. A next hop of a group has at least 1.
FULL, DRAINED = 250, 1
# Seconds in which routes that change together are read once; the same after all NATs were away,
# as when the routing daemon starts again; and seconds between two comparisons.
TOGETHER, AFTER_ALL, AT_LEAST = 0.02, 1.0, 2.0
# By this protocol the program knows its own objects in the kernel. zebra may remove those of
# protocols that it knows.
PROTOCOL = "111"
# How many numbers of next hops, from --id downwards, belong to this program. zebra takes numbers
# above the highest one that it has seen, so it takes none of these.
NUMBERS = 1000


def prefix(text):
    """A prefix as `ip` prints it."""
    return str(ipaddress.IPv4Network(text)).removesuffix("/32")


class Nat:
    """A NAT: its next hop, and the prefixes that show its state."""

    def __init__(self, text):
        try:
            self.address, alive, first, *more = text.split(",")
            self.alive, self.serving = prefix(alive), [prefix(one) for one in (first, *more)]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f'"{text}" is not NEXT-HOP,ALIVE,SERVING[,SERVING...]: {error}') from None

    def share(self, routes):
        """Its share of the buckets, by the learned routes {(prefix, next hop): device}; 0: none."""
        if (self.alive, self.address) not in routes:
            return 0
        return FULL if any((one, self.address) in routes for one in self.serving) else DRAINED


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nat", action="append", type=Nat, required=True, metavar="NEXT-HOP,ALIVE,SERVING[,SERVING...]")
    parser.add_argument("--prefix", default="default", help="what the NATs are the way to (default)")
    parser.add_argument("--protocol", default="ospf", help="protocol of the learned routes in the kernel (ospf)")
    parser.add_argument("--buckets", type=int, default=32768, help="at least several for each subscriber at once, up to 65535")
    parser.add_argument("--idle", type=int, default=300, help="seconds without a packet after which a bucket may move (300)")
    parser.add_argument("--table", type=int, default=4000, help="the kernel's table for packets to the pools (4000)")
    parser.add_argument("--id", type=int, default=4_000_000, help=f"highest of the {NUMBERS} numbers for its next hops (4000000)")
    parser.add_argument("--hash", action="store_true", help="have this router hash by the source address only")
    return parser.parse_args()


def ip(*words):
    """Runs `ip`; what it prints."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True).stdout


def ask(*words):
    """What `ip` lists."""
    return json.loads(ip("-j", *words) or "[]")


def learned(protocol):
    """All (prefix, next hop) of a routing protocol, with their devices."""
    found = {}
    for route in ask("route", "show", "proto", protocol):
        for hop in (route, *route.get("nexthops", ())):
            if "gateway" in hop:
                found[route["dst"], hop["gateway"]] = hop.get("dev") or route.get("dev")
    return found


class Kernel:
    """What this program needs in the kernel."""

    def __init__(self, options):
        self.options = options
        self.last = options.id + 1
        self.in_use = set()
        self.is_changed = False

    def repair(self, shares, routes):
        """Has the kernel use these shares of the NATs. Returns whether anything was to be changed."""
        self.is_changed = False
        objects = {one["id"]: one for one in ask("nexthop", "show")}
        own = {number: one for number, one in objects.items() if one.get("protocol") == PROTOCOL and self.is_mine(number)}
        self.in_use = set(objects)
        buckets = lambda one: one.get("resilient_args", {}).get("buckets")  # noqa: E731
        group = next((number for number, one in own.items() if buckets(one) == self.options.buckets), None)
        verb = "replace" if group else "add"
        # Its number comes first, and is the highest one at first, so that zebra stays above.
        group = group or self.unused()
        members = {self.member(own, nat, routes[nat.alive, nat.address]): share for nat, share in shares.items()}
        self.make_group(verb, group, own.get(group, {}), members)
        self.make_routes(group)
        addresses = {nat.address for nat in self.options.nat}
        # Groups go before their members.
        for number, one in sorted(own.items(), key=lambda found: "group" not in found[1]):
            if number != group and one.get("gateway") not in addresses:
                self.change("nexthop", "del", "id", number)
        return self.is_changed

    def change(self, *words):
        self.is_changed = True
        ip(*words)

    def is_mine(self, number):
        return self.options.id - NUMBERS < number <= self.options.id

    def unused(self):
        """A number for a new object. One that it had before comes last, because zebra may remember what that was."""
        for _ in range(NUMBERS):
            self.last = self.last - 1 if self.is_mine(self.last - 1) else self.options.id
            if self.last not in self.in_use:
                self.in_use.add(self.last)
                return self.last
        raise SystemExit(f"error: sticky-next-hops: {NUMBERS} next hops up to {self.options.id} are taken; choose another --id")

    def member(self, own, nat, device):
        """The number of the next hop of a NAT. What is there is never replaced: zebra would put back the old one."""
        for number, one in own.items():
            if (one.get("gateway"), one.get("dev")) == (nat.address, device):
                return number
        number = self.unused()
        self.change("nexthop", "add", "id", number, "via", nat.address, "dev", device, "protocol", PROTOCOL)
        return number

    def make_group(self, verb, group, has, members):
        options = self.options
        idle = has.get("resilient_args", {}).get("idle_timer")
        if ({one["id"]: one.get("weight", 1) for one in has.get("group", ())}, idle) != (members, options.idle):
            words = "/".join(f"{number},{share}" for number, share in sorted(members.items()))
            self.change("nexthop", verb, "id", group, "group", words, "type", "resilient", "buckets", options.buckets,
                        "idle_timer", options.idle, "unbalanced_timer", 0, "protocol", PROTOCOL)  # fmt: skip

    def make_routes(self, group):
        """The routes by the group, and the rules that lead to them."""
        options = self.options
        table, by_group = ("table", options.table), ("nhid", group, "proto", PROTOCOL)
        pools = {one for nat in options.nat for one in nat.serving}
        routes = ask("route", "show", "table", "all", "proto", PROTOCOL)
        there = {(route.get("table"), route["dst"]): route.get("nhid") for route in routes if "metric" not in route}
        if there.get((None, options.prefix)) != group:
            self.change("route", "replace", options.prefix, *by_group)
        rules = [one for one in ask("rule", "show", *table) if "dst" in one]
        ruled = {prefix(f"{one['dst']}/{one.get('dstlen', 32)}"): one.get("protocol") for one in rules}
        for pool in sorted(pools):
            if there.get((str(options.table), pool)) != group:
                self.change("route", "replace", pool, *by_group, *table)
            if pool not in ruled:
                self.change("rule", "add", "to", pool, "lookup", options.table, "protocol", PROTOCOL)
        for pool in sorted(one for one, protocol in ruled.items() if protocol == PROTOCOL and one not in pools):
            self.change("rule", "del", "to", pool, "lookup", options.table)
        for pool in sorted(one for place, one in there if place == str(options.table) and one not in pools):
            self.change("route", "del", pool, "proto", PROTOCOL, *table)


def say(options, shares):
    words = {FULL: "serves", DRAINED: "drains"}
    states = [f"{nat.address} {words.get(shares.get(nat), 'is away')}" for nat in options.nat]
    print(f"{time.time():.3f} {', '.join(states)}", flush=True)


def follow(options, monitor):
    kernel = Kernel(options)
    before, due, failure, has_worked = None, 0, None, False
    while True:
        routes = learned(options.protocol)
        shares = {nat: share for nat in options.nat if (share := nat.share(routes))}
        if shares and before == {}:
            # Those that are back a moment later keep their buckets.
            time.sleep(AFTER_ALL)
            before = None
            continue
        # Without any NAT the last group stays: it may be the routing daemon that restarts.
        if shares and (shares != before or time.monotonic() >= due):
            try:
                if kernel.repair(shares, routes) or shares != before:
                    say(options, shares)
                before, failure, has_worked = shares, None, True
            except subprocess.CalledProcessError as error:
                if not has_worked:
                    raise
                # A device may go down meanwhile.
                if failure != (failure := words_of(error)):
                    print(f"warning: sticky-next-hops: {failure}; it is tried again", file=sys.stderr, flush=True)
            due = time.monotonic() + AT_LEAST
        elif not shares and before:
            say(options, shares)
            before = {}
        if select.select([monitor], [], [], AT_LEAST)[0]:
            time.sleep(TOGETHER)
            if not monitor.read1(1 << 20):
                return "ip monitor has ended"


def words_of(error):
    return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"


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
            return words_of(error)
        finally:
            monitor.kill()


if __name__ == "__main__":
    failure = main()
    print(f"error: sticky-next-hops: {failure}", file=sys.stderr)
    sys.exit(1)
