"""Several NATs as next hops of one router: which one serves a subscriber, one is killed, one is drained."""

import contextlib
import json
import time
from pathlib import Path

from kit import *
from netlab.process import wait_until
from sharing import ANYCAST
from sharing import FAR
from sharing import IDLE_SECONDS
from sharing import SERVER
from sharing import SERVER_PORT
from sharing import Echo
from sharing import Flows
from sharing import Sharing
from sharing import subscriber

# Subscribers that send all the time while a NAT goes; few enough for a busy machine.
BUSY = 200
# Connections that measure a rate together, and what each sends. All NATs get as many of them.
STREAMS, STREAM_MIB = 24, 8
# Bytes of a connection in one packet at most.
SEGMENT_BYTES_MAX = 1460
# Seconds from its end to the first packet of the last subscriber through another NAT: what BFD,
# OSPF and the router take together.
BACK_WITHIN = 1.5


def seconds_waited_for_cpus():
    """Seconds since the machine started in which some program could have run and waited for a CPU.

    Without this account, all of the time.
    """
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return time.monotonic()
    return int(some.rpartition("total=")[2]) / 1e6


def drained(nat, *words):
    """`natrix drain`: its exit status, and what it says."""
    status, out, err = nat.command("drain", *words, "--json")
    expect(out, f"natrix drain: {err}")
    return status, json.loads(out)


def seen_in_three_flows(s, subscribers):
    """By subscriber: external addresses and endpoints. The same address three times is no accident.

    To one of the servers leads a route of its own, to the other the default route.
    """
    addresses, ports = {}, {}
    for server in (SERVER, FAR, SERVER):
        with Flows(s.subs, subscribers, 1, server) as flows:
            all_answered = lambda: all(flows.seen.values())  # noqa: E731
            expect(wait_until(all_answered, 30, 0.1), f"{sum(map(bool, flows.seen.values()))} are answered")
            for number in flows.flows:
                addresses.setdefault(number, set()).update(flows.external(number))
                ports.setdefault(number, set()).update(flows.seen[number])
    return addresses, ports


def has_only(s, host, wanted):
    """Waits until a router has exactly these prefixes by OSPF."""
    expect(wait_until(lambda: s.learned(host) == wanted, 30, 0.1), f"{host.name}: {s.learned(host)}, not {wanted}")


@test("load_sharing")
def each_side_learns_only_what_it_needs(n):
    """Nothing of the management network, nothing of the inside at the border, and nothing of the border inside."""
    s = Sharing.of(n, 4)
    pools = {nat.pool for nat in s.nats}
    has_only(s, s.border, pools | {nat.aggregate for nat in s.nats})
    has_only(s, s.access, pools | {nat.loopback for nat in s.nats})
    for nat in s.nats:
        expect({"default", "192.0.2.0/24", "100.64.0.0/16"} <= s.learned(nat.host), f"{nat.host.name}: {s.learned(nat.host)}")
    drained(s.nats[3])
    try:
        pool = s.nats[3].pool
        has_only(s, s.border, pools - {pool} | {nat.aggregate for nat in s.nats})
        has_only(s, s.access, pools - {pool} | {nat.loopback for nat in s.nats})
    finally:
        drained(s.nats[3], "--undo")
    s.wait_for_all()


@test("load_sharing")
def a_thousand_subscribers_keep_their_nat_and_address(n):
    s = Sharing.of(n, 4)
    with Echo(s.server), Echo(s.server, FAR):
        for count in (4, 2):
            for nat in s.nats[count:]:
                s.stop(nat)
            s.wait_until_balanced()
            before = [nat.show("status")[0]["subscribers"] for nat in s.nats[:count]]
            first = (4 - count) * 500
            subscribers = range(first, first + 500 * (count // 2))
            addresses, ports = seen_in_three_flows(s, subscribers)
            expect(all(len(found) == 1 for found in addresses.values()), "each subscriber has one external address")
            expect(all(len(found) == 3 for found in ports.values()), "and a port for each flow")
            share = [sum(s.nat_of(*found) == nat for found in addresses.values()) for nat in range(count)]
            fair = len(subscribers) / count
            expect(all(fair / 2 < one < fair * 3 / 2 for one in share), f"subscribers of each NAT: {share}")
            after = [nat.show("status")[0]["subscribers"] for nat in s.nats[:count]]
            expect_equal([now - then for now, then in zip(after, before)], share, "subscribers that each NAT knows")


@test("load_sharing")
def a_subscriber_keeps_its_address_towards_other_nats(n):
    """One that talks to a subscriber of another NAT, at the address that the Internet sees."""
    s = Sharing.of(n, 4)
    with Echo(s.server), contextlib.ExitStack() as opened:
        of_nat = {}
        for number in range(400, 440):
            sock = opened.enter_context(udp(s.subs, 0, subscriber(number), timeout=5))
            sock.sendto(bytes(8), (SERVER, SERVER_PORT))
            address, port = sock.recv(2048)[8:].decode().split()
            of_nat.setdefault(s.nat_of(address), (sock, (address, int(port))))
        expect({0, 1} <= of_nat.keys(), f"subscribers of both NATs: {of_nat}")
        (one, external), (other, other_external) = of_nat[0], of_nat[1]
        for drained_first in (False, True):
            if drained_first:
                drained(s.nats[0])
                s.wait_for(nat1="drains")
            try:
                other.sendto(b"anybody?", external)
                data, seen = one.recvfrom(100)
                expect_equal((data, seen), (b"anybody?", other_external), f"what the other sees, drained: {drained_first}")
                one.sendto(b"me", seen)
                expect_equal(other.recvfrom(100), (b"me", external), "the answer")
            finally:
                if drained_first:
                    drained(s.nats[0], "--undo")
    s.wait_for_all()


def senders(s, count):
    """As many subscribers of each of the first NATs, so many that all together are `STREAMS`.

    Which NAT a subscriber gets is up to the router's hash, which is another one each time that the machine starts, and
    to the order in which the NATs came. Of 24 subscribers taken blindly, one of four NATs has none or one in 1 of 28
    networks.
    """
    with Echo(s.server), Flows(s.subs, range(1200, 1200 + 40 * count), 1) as flows:
        expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
        of_each = [flows.of(s, nat)[: STREAMS // count] for nat in range(count)]
    expect(all(len(chosen) == STREAMS // count for chosen in of_each), f"subscribers of each NAT: {of_each}")
    return [number for chosen in of_each for number in chosen]


def carry(s, numbers):
    """Has each of these subscribers send to the server by a TCP connection, all at the same time.

    Returns the bytes that the server has received of each, and the seconds until the last had ended.
    """
    ports = [fresh_port() for _ in numbers]
    servers = [s.server.start(f"iperf3-{port}", ["iperf3", "-s", "-1", "-p", port]) for port in ports]
    for port in ports:
        listening = lambda: s.server.run(["ss", "-ltnH", f"sport = :{port}"])[1].strip()  # noqa: B023, E731
        expect(wait_until(listening, 30, 0.05), f"iperf3 on port {port}")
    begun, clients = time.monotonic(), []
    for number, port in zip(numbers, ports):
        # The server reads nothing more once the client has written all: little may be on its way.
        words = ["iperf3", "-c", SERVER, "-p", port, "-B", subscriber(number), "-n", f"{STREAM_MIB}M", "-w", "128K", "-J"]
        clients.append(s.subs.start(f"iperf3-{port}", words))
    received = []
    for client in clients:
        expect_equal(client.process.wait(180), 0, f"iperf3: {client.log()[-400:]}")
        received.append(json.loads(client.log())["end"]["sum_received"]["bytes"])
    passed = time.monotonic() - begun
    for server in servers:
        server.end()
    return received, passed


@test("load_sharing")
def all_nats_carry_their_part_of_the_traffic(n):
    s = Sharing.of(n, 4)
    for count in (4, 2, 1):
        for nat in s.nats[count:]:
            if nat.daemon is not None:
                s.stop(nat)
        s.wait_until_balanced()
        numbers = senders(s, count)
        before = [nat.show("status")[0]["packets_forwarded"] for nat in s.nats[:count]]
        received, passed = carry(s, numbers)
        carried = [nat.show("status")[0]["packets_forwarded"] - then for nat, then in zip(s.nats, before)]
        together = 8 * sum(received) / passed / 1e6
        print(f"# {count} NATs: {together:,.0f} Mbit/s together; packets of each: {carried}", flush=True)
        expect(min(received) >= STREAM_MIB << 19, f"bytes of each subscriber: {received}")
        each = STREAMS // count
        for nat in range(count):
            least = sum(received[nat * each : (nat + 1) * each]) / SEGMENT_BYTES_MAX
            expect(carried[nat] >= least, f"packets of NAT {nat + 1}: {carried[nat]}, at least {least:.0f}")


@test("load_sharing")
def subscribers_of_a_killed_nat_are_soon_back(n):
    s = Sharing.of(n, 4)
    with Echo(s.server):
        with Flows(s.subs, range(BUSY), 0.1) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
            moved = flows.of(s, 0)
            others = [number for number in flows.flows if number not in moved]
            expect(moved and len(others) > BUSY / 4, f"{len(moved)} of {BUSY} are at {s.nats[0].inside}")
            s.nats[0].be_missed_soon(s.neighbours(s.nats[0]))
            killed, on_the_clock, waited = time.monotonic(), time.time(), seconds_waited_for_cpus()
            s.nats[0].kill()
            is_back = lambda: all(len(flows.external(number)) == 2 for number in moved)  # noqa: E731
            expect(wait_until(is_back, 60, 0.01), f"the subscribers of the killed NAT are back: {s.sticky.log()}")
            back = max(sorted(flows.seen[number].values())[1] for number in moved) - killed
            waited = seconds_waited_for_cpus() - waited
            noticed = float(s.sticky.log().splitlines()[-1].split()[0]) - on_the_clock
            print(
                f"# the router noticed after {noticed:.2f} s, the last is back after {back:.2f} s; "
                f"in {waited:.2f} s of that programs waited for a CPU",
                flush=True,
            )
            flows.end()
            expect_equal(flows.lost(others), 0, "datagrams of the others that are lost")
            expect(all(len(flows.external(number)) == 1 for number in others), "the others keep their address")
            # While programs wait for a CPU, the time says more about them than about the routing.
            expect(back <= BACK_WITHIN + waited, f"the last is back after {back:.2f} s, {waited:.2f} s without a CPU")


@test("load_sharing")
def all_are_served_again_after_a_flap_of_the_link_to_the_nats(n):
    """The kernel of the access router removes all next hops with the device."""
    s = Sharing.of(n, 4)
    wanted = {nat.pool for nat in s.nats} | {nat.loopback for nat in s.nats}
    with Echo(s.server), Flows(s.subs, range(100, 150), 0.2) as flows:
        expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
        s.access.ip("link", "set", "inside", "down")
        away = lambda: set(s.states().values()) == {"is away"}  # noqa: E731
        expect(wait_until(away, 30, 0.1), f"the router has noticed: {s.sticky.log()[-600:]}")
        s.access.ip("link", "set", "inside", "up")
        expect(wait_until(lambda: s.learned(s.access) == wanted, 120, 0.2), f"learned again: {s.learned(s.access)}")
        at = time.monotonic()
        answered = lambda: all(max(one.values(), default=0) > at for one in flows.answered.values())  # noqa: E731
        expect(wait_until(answered, 30, 0.1), f"all are answered again: {s.sticky.log()[-600:]} {s.access.ip('route')}")
        flows.end()
    s.wait_for_all()


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
        status, left = drained(s.nats[1], "--wait", "60", "--until", "quiet")
        expect_equal((status, left["packets_per_second"]), (0, 0), f"the flows have ended: {left}")
        with Flows(s.subs, range(300, 400), 0.2) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
            rest = flows.of(s, 1)
            s.stop(s.nats[1])
            flows.end()
            others = [number for number in flows.flows if number not in rest]
            expect(len(rest) <= len(flows.flows) / 20, f"{len(rest)} are at the drained NAT")
            expect_equal(flows.lost(others), 0, "datagrams lost when the drained NAT ends")
        # It comes back, and subscribers with it.
        s.restart(s.nats[1])
        s.wait_for_all()
        with Flows(s.subs, range(800, 1000), 1) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
            expect(len(flows.of(s, 1)) > len(flows.flows) / 20, "the NAT that is back gets new subscribers")


@test("load_sharing")
def one_of_an_anycast_pair_takes_over(n):
    s = Sharing.of(n, 2, ANYCAST)
    first, second = s.nats
    for router in (s.border, s.access):
        has_only(s, router, {first.pool})
    with Echo(s.server), Echo(s.server, FAR):
        for server in (SERVER, FAR):
            with Flows(s.subs, range(100, 120), 0.2, server) as flows:
                expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), f"all are answered by {server}")
                flows.end()
                expect_equal(flows.lost(), 0, f"datagrams lost to {server}")
        for leave, come_back in (
            (lambda: drained(first), lambda: drained(first, "--undo")),
            (lambda: s.kill(first), lambda: s.restart(first)),
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
