"""Several NATs as next hops of one router: which one serves a subscriber, one is killed, one is drained."""

import json
import os
import time

from kit import *
from netlab.process import wait_until
from sharing import ANYCAST
from sharing import IDLE_SECONDS
from sharing import SERVER
from sharing import Echo
from sharing import Flows
from sharing import Sharing
from sharing import subscriber

# Subscribers that send all the time while a NAT goes; few enough for a busy machine.
BUSY = 200
# Connections that measure a rate together, and how long. Each NAT gets some of so many.
STREAMS, RATE_SECONDS = 24, 2
# Seconds from its end to the first packet of the last subscriber through another NAT: what BFD,
# OSPF and the router take together.
BACK_WITHIN = 1.5
# The same while other programs wait for the CPUs.
BACK_WITHIN_WHEN_BUSY = 8
# On a busy machine BFD may miss a NAT, or a subscriber be silent for longer than its bucket waits:
# then it may move. New subscribers try again.
TRIES = 3


def back_within():
    """Several programs wait for each CPU: times say more about them than about the routing."""
    return BACK_WITHIN if os.getloadavg()[0] < 2 * os.cpu_count() else BACK_WITHIN_WHEN_BUSY


def drained(nat, *words):
    """`natrix drain`: its exit status, and what it says."""
    status, out, err = nat.command("drain", *words, "--json")
    expect(out, f"natrix drain: {err}")
    return status, json.loads(out)


def seen_in_three_flows(s, subscribers):
    """By subscriber: external addresses and endpoints. The same address three times is no accident."""
    addresses, ports = {}, {}
    for _ in range(3):
        with Flows(s.subs, subscribers, 1) as flows:
            all_answered = lambda: all(flows.seen.values())  # noqa: E731
            expect(wait_until(all_answered, 30, 0.1), f"{sum(map(bool, flows.seen.values()))} are answered")
            for number in flows.flows:
                addresses.setdefault(number, set()).update(flows.external(number))
                ports.setdefault(number, set()).update(flows.seen[number])
    return addresses, ports


@test("load_sharing")
def a_thousand_subscribers_keep_their_nat_and_address(n):
    s = Sharing.of(n, 4)
    with Echo(s.server):
        for count in (4, 2):
            for nat in s.nats[count:]:
                expect_equal(nat.stop(), None, "end of an instance")
                s.wait_for(**{f"nat{nat.number}": "is away"})
            for attempt in range(TRIES):
                before = [nat.show("status")[0]["subscribers"] for nat in s.nats[:count]]
                first = attempt * 2000 + (4 - count) * 500
                subscribers = range(first, first + 500 * (count // 2))
                addresses, ports = seen_in_three_flows(s, subscribers)
                if all(len(found) == 1 for found in addresses.values()):
                    break
                print(f"# {count} NATs: a subscriber moved in try {attempt + 1}")
            expect(all(len(found) == 1 for found in addresses.values()), "each subscriber has one external address")
            expect(all(len(found) == 3 for found in ports.values()), "and a port for each flow")
            share = [sum(s.nat_of(*found) == nat for found in addresses.values()) for nat in range(count)]
            fair = len(subscribers) / count
            expect(all(fair / 2 < one < fair * 3 / 2 for one in share), f"subscribers of each NAT: {share}")
            after = [nat.show("status")[0]["subscribers"] for nat in s.nats[:count]]
            expect_equal([now - then for now, then in zip(after, before)], share, "subscribers that each NAT knows")


def rate(s, streams):
    """Bits a second of so many subscribers together, each with a TCP connection to the server."""
    ports = [fresh_port() for _ in range(streams)]
    servers = [s.server.start(f"iperf3-{port}", ["iperf3", "-s", "-1", "-p", port]) for port in ports]
    clients = []
    for number, port in enumerate(ports):
        listening = lambda: s.server.run(["ss", "-ltnH", f"sport = :{port}"])[1].strip()  # noqa: B023, E731
        expect(wait_until(listening, 10, 0.05), f"iperf3 on port {port}")
        words = ["iperf3", "-c", SERVER, "-p", port, "-B", subscriber(700 + number), "-t", RATE_SECONDS, "-J"]
        clients.append(s.subs.start(f"iperf3-{port}", words))
    total = 0
    for client in clients:
        expect_equal(client.process.wait(60), 0, f"iperf3: {client.log()[-400:]}")
        total += json.loads(client.log())["end"]["sum_received"]["bits_per_second"]
    for server in servers:
        server.end()
    return total


@test("load_sharing")
def all_nats_carry_their_part_of_the_traffic(n):
    s = Sharing.of(n, 4)
    rates = {}
    for count in (4, 2, 1):
        for nat in s.nats[count:]:
            if nat.daemon is not None:
                expect_equal(nat.stop(), None, "end of an instance")
            s.wait_for(**{f"nat{nat.number}": "is away"})
        # On a busy machine BFD may have lost one of them for a moment.
        s.wait_for(**{f"nat{nat.number}": "serves" for nat in s.nats[:count]})
        before = [nat.show("status")[0]["packets_forwarded"] for nat in s.nats[:count]]
        rates[count] = rate(s, STREAMS)
        carried = [nat.show("status")[0]["packets_forwarded"] - then for nat, then in zip(s.nats, before)]
        expect(min(carried) > sum(carried) / (20 * count), f"packets of each NAT: {carried}")
        print(f"# {count} NATs: {rates[count] / 1e6:,.0f} Mbit/s together; packets of each: {carried}", flush=True)


@test("load_sharing")
def subscribers_of_a_killed_nat_are_soon_back(n):
    s = Sharing.of(n, 4)
    with Echo(s.server):
        took = []
        # A machine that is busy with something else may miss the time once.
        for victim in (0, 1):
            with Flows(s.subs, range(BUSY), 0.1) as flows:
                expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
                moved = flows.of(s, victim)
                others = [number for number in flows.flows if number not in moved]
                expect(moved and len(others) > BUSY / 4, f"{len(moved)} of {BUSY} are at {s.nats[victim].inside}")
                killed, on_the_clock = time.monotonic(), time.time()
                s.nats[victim].kill()
                is_back = lambda: all(len(flows.external(number)) == 2 for number in moved)  # noqa: E731
                expect(wait_until(is_back, 20, 0.01), f"the subscribers of the killed NAT are back: {s.sticky.log()}")
                back = max(sorted(flows.seen[number].values())[1] for number in moved)
                noticed = float(s.sticky.log().splitlines()[-1].split()[0]) - on_the_clock
                took.append(back - killed)
                print(f"# the router noticed after {noticed:.2f} s, the last is back after {took[-1]:.2f} s", flush=True)
                flows.end()
                expect_equal(flows.lost(others), 0, "datagrams of the others that are lost")
                expect(all(len(flows.external(number)) == 1 for number in others), "the others keep their address")
            if took[-1] <= back_within():
                break
        expect(took[-1] <= back_within(), f"the last is back after {took} s")


@test("load_sharing")
def a_drained_nat_keeps_its_flows_and_gets_no_new_ones(n):
    s = Sharing.of(n, 4)
    with Echo(s.server):
        busy, fresh = range(BUSY), range(500, 700)
        with Flows(s.subs, busy, IDLE_SECONDS / 10) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
            kept = flows.of(s, 1)
            expect(len(kept) > BUSY / 20, f"{len(kept)} of {BUSY} are at {s.nats[1].inside}")
            status, answer = drained(s.nats[1])
            expect_equal((status, answer["drained"]), (0, True), "natrix drain")
            s.wait_for(nat2="drains")
            # Buckets without traffic leave after the time; those of the flows stay.
            time.sleep(2 * IDLE_SECONDS)
            with Flows(s.subs, fresh, 1) as later:
                expect(wait_until(lambda: all(later.seen.values()), 30, 0.1), "new subscribers are answered")
                there = later.of(s, 1)
            # Some of the buckets have one of the flows; new subscribers in these still get there.
            expect(len(there) <= len(fresh) / 20, f"{len(there)} of {len(fresh)} new subscribers get to the drained NAT")
            expect(all(len(flows.seen[number]) == 1 for number in busy), "no flow has another external endpoint")
            flows.end()
            expect_equal(flows.lost(), 0, "datagrams lost during the drain")
        status, left = drained(s.nats[1], "--wait", "60")
        expect_equal((status, left["packets_per_second"]), (0, 0), f"the flows have ended: {left}")
        with Flows(s.subs, range(300, 400), 0.2) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
            rest = flows.of(s, 1)
            expect_equal(s.nats[1].stop(), None, "end of the instance")
            s.wait_for(nat2="is away")
            flows.end()
            others = [number for number in flows.flows if number not in rest]
            expect(len(rest) <= len(flows.flows) / 20, f"{len(rest)} are at the drained NAT")
            expect_equal(flows.lost(others), 0, "datagrams lost when the drained NAT ends")
        # It comes back, and subscribers with it.
        s.nats[1].restart()
        s.wait_for_all()
        time.sleep(2 * IDLE_SECONDS)
        with Flows(s.subs, range(800, 1000), 1) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
            expect(len(flows.of(s, 1)) > len(flows.flows) / 20, "the NAT that is back gets new subscribers")


@test("load_sharing")
def one_of_an_anycast_pair_takes_over(n):
    s = Sharing.of(n, 2, ANYCAST)
    first, second = s.nats
    with Echo(s.server):
        for leave, come_back in (
            (lambda: drained(first), lambda: drained(first, "--undo")),
            (first.kill, first.restart),
        ):
            with Flows(s.subs, range(20), 0.2) as flows:

                def served_by(nat):
                    return nat.show("status")[0]["subscribers"] >= len(flows.flows)  # noqa: B023

                expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
                expect(served_by(first), "the one with the better metric serves")
                leave()
                s.wait_for_first(second)
                at = time.monotonic()
                answered = lambda: all(max(one.values(), default=0) > at for one in flows.answered.values())  # noqa: B023, E731
                expect(wait_until(answered, 30, 0.1), "all are answered again")
                expect(served_by(second), "the other one serves")
                come_back()
                s.wait_for_first(first)
                flows.end()
            for number in flows.flows:
                pool = {s.nat_of(address) for address in flows.external(number)}
                expect_equal(pool, {0}, "an address of the same pool")
