"""Routes and sockets of the kernel on the devices that stand for Natrix's ports, and FRR on them."""

import contextlib
import datetime
import errno
import ipaddress
import itertools
import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from flood import SharedMemory
from flood import capture
from flood import frames
from frr import Bird
from frr import Router
from frr import recipe
from frr import routers
from kit import *
from netlab.process import wait_until
from netlab.topology import CORE
from netlab.topology import NAT_INSIDE
from netlab.topology import NAT_OUTSIDE
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS
from setups import FLOOD_LINK
from setups import FLOOD_SOCKET
from systemd import Service
from test_api import ask
from test_api import objects
from test_page import see
from test_port_control import drops
from test_port_control import lost_by_hop

# On the subnet outside, and nobody's.
NOBODY = "198.51.100.99"
# For the core router: an address at which it does not answer ARP, and others at which it does.
SILENT, ALIASES = "198.51.100.98", ("198.51.100.96", "198.51.100.97")
LEARNED = "192.0.2.0/24"
# A routing protocol that no daemon has.
OWN = "200"
HERE = Path(__file__).resolve().parent
# A flood of a kind takes so long, and by shared memory longer if fewer frames have come by then.
FLOOD_SECONDS, FLOOD_FRAMES_MIN, FLOOD_SECONDS_MAX = 3, 900_000, 60
# So many hellos of BFD may be missing: a program that waits for a CPU misses more than the 3 of the
# recipe, and 2.4 s are still shorter than a flood.
MISSED_IN_FLOOD = 8
# The same for OSPF, in seconds; its flood is longer.
DEAD_IN_FLOOD, OSPF_FLOOD_SECONDS = 6, 10
# Frames a second of a class that each of the two workers gives to the kernel, and so many more:
# what may come at once, in seconds of this rate, and one of each source that was there before.
CLASS_RATES = {"bfd": 20_000, "bgp": 20_000, "routing": 20_000, "neighbour": 2_000, "other": 10_000}
WORKERS, AT_ONCE_SECONDS, REGULAR_SOURCES = 2, 0.05, 256


def used_route(n, prefix):
    """The next hop of the route that Natrix uses for this prefix, and where it is from."""
    for route in n.dut.show("routes", "--all"):
        if route["prefix"] == prefix and route["used"]:
            return route
    return None


def reaches(n, port):
    """True if a subscriber can open a connection to srv1."""
    sock = tcp(n.sub1, timeout=5.0)
    with sockets(sock), contextlib.suppress(OSError):
        sock.connect((SRV1, port))
        return True
    return False


@test("kernel_routes")
def the_kernel_has_a_socket_at_the_address_of_a_port(n):
    for host, address in ((n.core, NAT_OUTSIDE), (n.sub1, NAT_INSIDE)):
        port = fresh_port()
        server = listener(n.nat, port, address)
        client = tcp(host)
        with sockets(server, client):
            client.connect((address, port))
            accepted, _ = server.accept()
            with sockets(accepted):
                client.sendall(b"up")
                expect_equal(receive_stream(accepted, 2), b"up", f"bytes to {address}")
                accepted.sendall(b"down")
                expect_equal(receive_stream(client, 4), b"down", f"bytes from {address}")


def moved(sender, receiver, count):
    """Sends so many bytes by a connection; returns MB a second."""
    begun = time.monotonic()

    def send():
        sender.sendall(bytes(count))

    thread = threading.Thread(target=send)
    thread.start()
    expect_equal(len(receive_stream(receiver, count)), count, "bytes that came")
    thread.join()
    return count / (time.monotonic() - begun) / 1e6


@test("kernel_routes")
def a_connection_of_the_kernel_moves_much_data(n):
    """As SSH does: the server speaks first. What opens the connection has the rate of all else."""
    count, segment = 20_000_000, 1448
    counted = lambda: {name: counter(n, f"kernel_{name}") for name in ("connection_given", "other_given", "other_limited")}  # noqa: E731
    port = fresh_port()
    server, client = listener(n.nat, port, NAT_OUTSIDE), tcp(n.core, timeout=60)
    with sockets(server, client):
        before = counted()
        client.connect((NAT_OUTSIDE, port))
        accepted, _ = server.accept()
        accepted.settimeout(60)
        with sockets(accepted):
            accepted.sendall(b"SSH-2.0")
            receive_stream(client, 7)
            rates = moved(client, accepted, count), moved(accepted, client, count)
    grown = {name: now - before[name] for name, now in counted().items()}
    print(f"# {rates[0]:.1f} MB/s to Natrix's machine, {rates[1]:.1f} MB/s from it; {grown}", flush=True)
    expect(grown["connection_given"] >= count // segment, f"segments of the connection: {grown}")
    expect(grown["other_given"] < 1000 and not grown["other_limited"], f"others: {grown}")


@test("kernel_routes")
def a_route_of_the_kernel_leads_packets(n):
    port = fresh_port()
    with sockets(listener(n.srv1, port, SRV1)):
        expect(reaches(n, port), "before")

        def owner():
            known = {one["address"]: one for one in n.dut.show("neighbours", "--all")}
            return known.get(CORE, {}).get("owner")

        expect(wait_until(lambda: owner() == "kernel", 10, 0.1), f"the owner of the neighbour {CORE}: {owner()}")
        n.nat.ip("route", "add", f"{SRV1}/32", "via", NOBODY, "dev", "nx-outside", "proto", "static")
        try:
            expect(wait_until(lambda: used_route(n, f"{SRV1}/32"), 10, 0.1), "Natrix uses the new route")
            expect(not reaches(n, port), "a route to nobody leads nowhere")
        finally:
            n.nat.ip("route", "del", f"{SRV1}/32")
        expect(wait_until(lambda: not used_route(n, f"{SRV1}/32"), 10, 0.1), "the route is gone")
        expect(wait_until(lambda: reaches(n, port), 10, 0.1), "after")


@contextlib.contextmanager
def leading_by(n, hop):
    """The way to srv1 leads by this neighbour."""
    n.nat.ip("route", "add", f"{SRV1}/32", "via", hop, "dev", "nx-outside", "proto", "static")
    try:
        leads = lambda: (used_route(n, f"{SRV1}/32") or {}).get("next_hops", [{}])[0].get("via") == hop  # noqa: E731
        expect(wait_until(leads, 10, 0.1), f"Natrix uses the route by {hop}")
        yield
    finally:
        n.nat.ip("route", "del", f"{SRV1}/32")


@test("kernel_routes")
def a_neighbour_that_an_operator_has_set_stays_as_it_is(n):
    """One that answers ARP, and one that does not."""
    port = fresh_port()
    station = json.loads(n.core.ip("-j", "link", "show", "nat"))[0]["address"]
    entry = lambda hop: n.nat.ip("neigh", "show", hop, "dev", "nx-outside").split()  # noqa: E731
    with sockets(listener(n.srv1, port, SRV1)):
        for hop in (SILENT, CORE):
            n.nat.ip("neigh", "replace", hop, "lladdr", station, "dev", "nx-outside", "nud", "permanent")
            try:
                with leading_by(n, hop):
                    for _ in range(5):
                        expect(wait_until(lambda: reaches(n, port), 10, 0.1), f"by {hop}: {entry(hop)}")
                        expect("PERMANENT" in entry(hop) and station in entry(hop), f"{hop}: {entry(hop)}")
                        time.sleep(0.2)
            finally:
                n.nat.ip("neigh", "del", hop, "dev", "nx-outside")
        expect(wait_until(lambda: reaches(n, port), 10, 0.1), "as an ordinary one again")


@test("kernel_routes")
def a_neighbour_that_the_kernel_has_is_checked_by_it(n):
    """What the kernel sends for that never leaves; a firewall may refuse it."""
    port = fresh_port()
    station = json.loads(n.core.ip("-j", "link", "show", "nat"))[0]["address"]
    state = lambda hop: n.nat.ip("neigh", "show", hop, "dev", "nx-outside").split()[-1]  # noqa: E731
    with n.core.entered():
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    seen.bind(("nat", ETH_P_IP))
    seen.settimeout(0)
    firewall = "table inet closed { chain output { type filter hook output priority 0; udp dport 9 counter drop; }; }"
    with sockets(listener(n.srv1, port, SRV1)), contextlib.closing(seen), contextlib.ExitStack() as undone:
        for hop in ALIASES:
            n.core.ip("address", "add", f"{hop}/32", "dev", "nat")
            undone.callback(n.core.ip, "address", "del", f"{hop}/32", "dev", "nat")
            n.nat.ip("neigh", "replace", hop, "lladdr", station, "dev", "nx-outside", "nud", "stale")
            with leading_by(n, hop):
                expect(wait_until(lambda: reaches(n, port), 10, 0.1), f"by {hop}: {state(hop)}")
                expect(wait_until(lambda: state(hop) == "REACHABLE", 20, 0.1), f"the kernel has checked {hop}: {state(hop)}")  # noqa: B023
            if hop == ALIASES[0]:
                n.nat.run(["nft", firewall], check=True)
                undone.callback(n.nat.run, ["nft", "delete table inet closed"], check=True)
        refused = n.nat.run(["nft", "list table inet closed"])[1]
        expect("packets 0 " not in refused and "counter packets" in refused, f"the firewall: {refused}")
        discarded = 0
        with contextlib.suppress(BlockingIOError):
            while frame := seen.recv(2048):
                # Datagrams to the discard port.
                discarded += frame[23] == socket.IPPROTO_UDP and frame[36:38] == b"\x00\x09"
        expect_equal(discarded, 0, "datagrams of the kernel that left")


@test("kernel_routes")
def subscribers_need_no_static_route(n):
    """A pool serves subscribers that only a route of the kernel leads to."""
    prefix, subscriber = "10.7.0.0/16", "10.7.0.5"
    text = n.dut.configuration.read_text()
    served = 'subscribers = ["100.64.0.0/10"]'
    expect_equal(text.count(served), 1, "pools of all subscribers")
    expect_equal(n.dut.stop(), None, "end of the instance before")
    n.dut.configuration.write_text(text.replace(served, f'subscribers = ["100.64.0.0/10", "{prefix}"]'))
    port = fresh_port()
    try:
        n.dut.restart()
        n.sub1.ip("address", "add", f"{subscriber}/32", "dev", "lo")
        n.nat.ip("route", "add", prefix, "via", SUBSCRIBERS["sub1"], "dev", "nx-inside", "proto", OWN)

        def used():
            """Where the routes in use for the prefix are from; outside it is excluded."""
            return {route["source"] for route in n.dut.show("routes", "--all") if route["prefix"] == prefix and route["used"]}

        expect(wait_until(lambda: used() == {"kernel", "excluded"}, 10, 0.1), f"the route of the kernel: {used()}")
        with sockets(udp(n.srv1, port, SRV1), udp(n.sub1, 0, subscriber)) as (server, client):
            client.sendto(b"question", (SRV1, port))
            _, external = receive(server, "question")
            server.sendto(b"answer", external)
            expect_equal(receive(client, "answer")[0], b"answer", "an answer by the learned route")
            n.nat.ip("route", "del", prefix, "proto", OWN)
            expect(wait_until(lambda: used() == {"excluded"}, 10, 0.1), f"without the route: {used()}")
            verdict, _ = explained(n, "udp", f"{SRV1}:{port}", f"{external[0]}:{external[1]}", "--inbound")
            expect_equal(verdict, "no_route", "what becomes of an answer now")
    finally:
        n.sub1.run(["ip", "address", "del", f"{subscriber}/32", "dev", "lo"])
        n.nat.run(["ip", "route", "del", prefix, "proto", OWN])
        n.dut.stop()
        n.dut.configuration.write_text(text)
        n.dut.restart()


@test("kernel_routes")
def many_routes_of_the_kernel_come_and_go(n):
    prefixes = [f"10.{first}.{second}.0/24" for first in range(8) for second in range(250)]

    def change(verb):
        lines = "".join(f"route {verb} {prefix} via {CORE} dev nx-outside\n" for prefix in prefixes)
        n.nat.run(["ip", "-batch", "-"], check=True, stdin=lines)

    def routes():
        return {route["prefix"] for route in n.dut.show("routes", "--all") if route["used"]}

    try:
        change("add")
        expect(wait_until(lambda: routes() >= set(prefixes), 20, 0.2), f"{len(prefixes)} routes are used")
    finally:
        change("del")
    expect(wait_until(lambda: not routes() & set(prefixes), 20, 0.2), "all are gone")


@test("kernel_routes")
def a_route_that_was_refused_is_tried_again(n):
    """Next hops of routes with several are bounded, and a route for which there is no room must not be lost for good."""
    pairs = list(itertools.combinations([f"198.51.100.{last}" for last in range(130, 180)], 2))
    of = {f"10.{80 + number // 250}.{number % 250}.0/24": pair for number, pair in enumerate(pairs[:1100])}

    def change(verb, prefixes):
        def line(prefix):
            return f"route {verb} {prefix}" + "".join(f" nexthop via {hop} dev nx-outside" for hop in of[prefix])

        n.nat.run(["ip", "-batch", "-"], check=True, stdin="".join(f"{line(prefix)}\n" for prefix in prefixes))

    def refused():
        found = {route["prefix"]: route for route in n.dut.show("routes", "--all", "--source", "kernel") if route["prefix"] in of}
        return len(found), [prefix for prefix, route in found.items() if not route["used"]]

    try:
        change("add", of)
        expect(wait_until(lambda: refused()[0] == len(of), 20, 0.2), f"routes: {refused()}")
        without_room = refused()[1]
        expect(0 < len(without_room) < 200, f"refused: {without_room}")
        route = next(route for route in n.dut.show("routes", "--all") if route["prefix"] == without_room[0])
        expect(route["reason"].startswith("the workers could not take it over"), f"reason: {route}")
        room = [prefix for prefix in of if prefix not in without_room][:200]
        change("del", room)
        expect(wait_until(lambda: refused() == (len(of) - 200, []), 10, 0.2), f"after there is room: {refused()}")
        for prefix in room:
            del of[prefix]
    finally:
        change("del", of)


def bgp(address, number, peer, peer_number, more, of_peer=()):
    neighbour = "".join(f" neighbor {peer} {line}\n" for line in of_peer)
    return (
        f"router bgp {number}\n bgp router-id {address}\n no bgp ebgp-requires-policy\n"
        f" neighbor {peer} remote-as {peer_number}\n neighbor {peer} timers 1 20\n neighbor {peer} timers connect 1\n"
        f"{neighbour} address-family ipv4 unicast\n  {more}\n exit-address-family\n"
    )


def bfd(peer, address):
    return f"bfd\n peer {peer} local-address {address}\n  {BFD_TIMERS}\n exit\nexit\n"


BFD_TIMERS = "detect-multiplier 3\n  receive-interval 300\n  transmit-interval 300"


def bgp_pair(n, of_peer=(), more=(), missed=3):
    """Natrix's side and the core router, with BGP between them; returns when it is Established.

    `missed`: so many hellos of BFD.
    """
    learned = "\n  ".join([f"network {LEARNED}", *more])
    near = {"bgpd": bgp(NAT_OUTSIDE, 64500, CORE, 64501, "redistribute kernel", of_peer)}
    core = {"bgpd": bgp(CORE, 64501, NAT_OUTSIDE, 64500, learned, of_peer)}
    if of_peer:
        near = dict(sorted(recipe("bgp-edge").items()))
        core = {"bfdd": bfd(NAT_OUTSIDE, CORE), **core}
        for side in (near, core):
            side["bfdd"] = side["bfdd"].replace("detect-multiplier 3\n", f"detect-multiplier {missed}\n")
    pair = Router(n.nat, NAT_OUTSIDE, near), Router(n.core, CORE, core)
    both = lambda: all(router.is_established() for router in pair)  # noqa: E731
    expect(wait_until(both, 30, 0.1), f"BGP is Established: {pair[0].ask('bgp ipv4 unicast summary')}")
    return pair


def pools(n):
    """By prefix: whether Natrix announces it."""
    return {route["prefix"]: route["used"] for route in n.dut.show("routes", "--all", "--source", "pool")}


def wait_for_pool(core, wanted, what):
    prefix = f"{POOL[0]}/32"
    expect(wait_until(lambda: (prefix in core.bgp_routes()) == wanted, 15, 0.1), f"{what}: {core.bgp_routes()}")


def drain(n, *words):
    """`natrix drain`: its exit status, and what it says."""
    status, out, err = n.dut.command("drain", *words, "--json")
    expect(out, f"natrix drain: {err}")
    return status, json.loads(out)


@test("kernel_routes")
def bgp_of_frr_brings_routes_and_announces_the_pool(n):
    port = fresh_port()
    near, core = bgp_pair(n)
    with routers(near, core), sockets(listener(n.srv1, port, SRV1)):
        expect(wait_until(lambda: used_route(n, LEARNED), 15, 0.2), f"{LEARNED} is learned: {n.dut.show('routes', '--all')}")
        expect(reaches(n, port), "a subscriber reaches srv1 by the learned route")
        wait_for_pool(core, True, "the pool is announced")
        near.kill()
        expect(used_route(n, LEARNED), "the route stays when FRR is killed")
        expect(reaches(n, port), "packets go on when FRR is killed")


@test("kernel_routes")
def bgp_of_frr_brings_routes_that_only_name_their_next_hops(n):
    port = fresh_port()
    n.nat.sysctl("net.ipv4.nexthop_compat_mode", 0)
    try:
        near, core = bgp_pair(n)
        with routers(near, core), sockets(listener(n.srv1, port, SRV1)):
            learned = lambda: used_route(n, LEARNED)  # noqa: E731
            expect(wait_until(learned, 15, 0.2), f"{LEARNED} is learned: {n.nat.ip('route')}")
            expect("nhid" in n.nat.ip("route", "show", LEARNED), f"it names an object: {n.nat.ip('route')}")
            expect_equal(learned()["next_hops"][0]["via"], CORE, "its next hop")
            expect(reaches(n, port), "a subscriber reaches srv1 by the learned route")
            near.end()
            expect(wait_until(lambda: not learned(), 15, 0.2), f"gone with the daemon: {n.nat.ip('route')}")
    finally:
        n.nat.sysctl("net.ipv4.nexthop_compat_mode", 1)


# Learned from the core router, too, until it is withdrawn.
WITHDRAWN = "192.0.3.0/24"


def keeps_all_over_a_restart(n, near, core, learned, restart, kept=(LEARNED,)):
    """A daemon beside Natrix is killed and started again: the core router does not lose the pool for a moment.

    `learned`: whether the daemon has heard of the routes again. `restart`: starts it. `kept`: routes that the kernel
    beside Natrix does not lose either.
    """
    pool = f"{POOL[0]}/32"

    def deleted(log):
        """Routes that a kernel has removed, by prefix."""
        return {line.split()[1] for line in log.log().splitlines() if line.startswith("Deleted ")}

    def is_fresh():
        paths = core.ask("bgp ipv4 unicast").get("routes", {}).get(pool, [])
        return bool(paths) and not any(path.get("stale") for path in paths)

    def sees_changes(host, log):
        host.ip("route", "add", "192.0.2.99/32", "dev", "lo")
        host.ip("route", "del", "192.0.2.99/32", "dev", "lo")
        return "192.0.2.99" in deleted(log)

    expect(wait_until(near.is_established, 30, 0.1), "BGP is Established")
    wait_for_pool(core, True, "the pool is announced")
    for prefix in (LEARNED, WITHDRAWN):
        expect(wait_until(lambda prefix=prefix: used_route(n, prefix), 15, 0.2), f"{prefix} is learned")
    port = fresh_port()
    with sockets(listener(n.srv1, port, SRV1)):
        expect(wait_until(lambda: reaches(n, port), 15, 0.1), "a subscriber reaches srv1 by the learned route")
    seen = [host.start("monitor", ["ip", "monitor", "route"]) for host in (n.nat, n.core)]
    try:
        # Until they see what changes: what changed before they listened, they never see.
        for host, log in zip((n.nat, n.core), seen, strict=True):
            expect(wait_until(lambda host=host, log=log: sees_changes(host, log), 10, 0.1), f"a monitor: {log.log()}")
        with Talk(n) as talk:
            near.kill()
            core.configure("router bgp 64501", "address-family ipv4 unicast", f"no network {WITHDRAWN}")
            time.sleep(1)
            expect(used_route(n, LEARNED), "the route stays")
            expect(wait_until(lambda: not is_fresh(), 10, 0.1), f"the neighbour notices: {core.ask('bgp ipv4 unicast')}")
            expect(pool in core.bgp_routes(), f"the neighbour keeps the pool: {core.bgp_routes()}")
            restart()
            expect(wait_until(near.is_established, 60, 0.1), "BGP is Established again")
            expect(wait_until(lambda: is_fresh() and learned(), 60, 0.2), f"all are heard again: {core.ask('bgp ipv4 unicast')}")
            gone = lambda: not used_route(n, WITHDRAWN)  # noqa: E731
            expect(wait_until(gone, 60, 0.2), f"{WITHDRAWN} was withdrawn meanwhile: {n.nat.ip('route')}")
            talk.expect_nothing_lost("a restart")
        expect(not deleted(seen[0]) & set(kept), f"routes that the kernel beside Natrix lost: {seen[0].log()}")
        expect(pool.removesuffix("/32") not in deleted(seen[1]), f"routes that the core router lost: {seen[1].log()}")
    finally:
        for log in seen:
            log.end()


def core_that_waits(n):
    """The core router, which learns of a restart by the connection and not by its timers."""
    learned = f"network {LEARNED}\n  network {WITHDRAWN}"
    text = bgp(CORE, 64501, NAT_OUTSIDE, 64500, learned).replace("timers 1 20", "timers 20 60")
    return Router(n.core, CORE, {"bgpd": text.replace(" neighbor", " no bgp network import-check\n neighbor", 1)})


@test("kernel_routes")
def frr_that_is_killed_and_started_again_loses_nothing(n):
    found = recipe("graceful")
    options = re.search(r'zebra_options="(.*)"', found["daemons"])[1].split()
    expect_equal(options[-2], "-K", f"options of zebra: {options}")
    # The time after which zebra removes what nobody brought again is shorter here.
    near = Router(n.nat, NAT_OUTSIDE, {"bgpd": found["bgpd"]}, [*options[:-1], "20"], in_one_file=True)
    core = core_that_waits(n)
    with routers(near, core):
        has_learned = lambda: LEARNED in near.bgp_routes()  # noqa: E731
        keeps_all_over_a_restart(n, near, core, has_learned, near.start)


@test("kernel_routes")
def bird_that_is_killed_and_started_again_keeps_the_pool(n):
    """Towards FRR it does not wait for the routes, and removes them from the kernel for a second."""
    near, core = Bird(n.nat, recipe("graceful")["bird"]), core_that_waits(n)
    with routers(near, core):
        has_learned = lambda: LEARNED in near.ask("route")  # noqa: E731
        keeps_all_over_a_restart(n, near, core, has_learned, lambda: near.start("-R"), kept=())


@test("kernel_routes")
def bfd_of_frr_is_up_with_its_timers(n):
    near, core = bgp_pair(n, of_peer=["bfd"])
    with routers(near, core):
        wait_for_pool(core, True, "the pool is announced")
        expect(f"{POOL[3]}/32" not in core.bgp_routes(), f"only prefixes of the list: {core.bgp_routes()}")
        up = lambda: near.bfd_peer(CORE).get("status") == "up"  # noqa: E731
        expect(wait_until(up, 15, 0.1), f"BFD is up: {near.ask('bfd peers')}")

        def agreed():
            seen = near.bfd_peer(CORE)
            return [seen.get(f"{whose}{key}-interval") for whose in ("", "remote-") for key in ("receive", "transmit")]

        # Until both ends have agreed, the timers are those of the start (RFC 5880 §6.8.3).
        expect(wait_until(lambda: agreed() == [300] * 4, 10, 0.1), f"timers in milliseconds: {near.bfd_peer(CORE)}")
        expect_equal(near.bfd_peer(CORE)["detect-multiplier"], 3, "detect multiplier")
        # BFD sees what BGP would see only after its hold time.
        core.daemons[1].process.kill()
        expect(wait_until(lambda: not near.is_established(), 10, 0.05), "BGP falls with BFD")


@test("kernel_routes")
def bgp_of_bird_brings_routes_and_announces_the_pool(n):
    core = Router(n.core, CORE, {"bfdd": bfd(NAT_OUTSIDE, CORE), "bgpd": bgp(CORE, 64501, NAT_OUTSIDE, 64500, f"network {LEARNED}", ["bfd"])})
    near = Bird(n.nat, recipe("bgp")["bird"])
    port = fresh_port()
    with routers(near, core), sockets(listener(n.srv1, port, SRV1)):
        both = lambda: near.is_established() and core.is_established()  # noqa: E731
        expect(wait_until(both, 30, 0.1), f"BGP is Established: {near.ask('protocols', 'all')}")
        expect(wait_until(lambda: core.bfd_peer(NAT_OUTSIDE).get("status") == "up", 15, 0.1), f"BFD is up: {core.ask('bfd peers')}")
        expect(wait_until(lambda: used_route(n, LEARNED), 15, 0.2), f"{LEARNED} is learned: {n.dut.show('routes', '--all')}")
        expect(reaches(n, port), "a subscriber reaches srv1 by the learned route")
        wait_for_pool(core, True, "the pool is announced")
        expect(f"{POOL[3]}/32" not in core.bgp_routes(), f"only prefixes of the list: {core.bgp_routes()}")
        # As DHCP does it by a management port. FRR would take the learned route away.
        n.nat.ip("route", "add", LEARNED, "dev", "lo")
        time.sleep(2)
        learned = used_route(n, LEARNED)
        n.nat.ip("route", "del", LEARNED, "dev", "lo")
        expect(learned, "the learned route stays beside that of another program")
        drain(n)
        try:
            wait_for_pool(core, False, "the neighbour has withdrawn the pool")
        finally:
            drain(n, "--undo")
        wait_for_pool(core, True, "the pool is announced again")


@test("kernel_routes")
def a_restart_keeps_the_device_and_the_session(n):
    def device():
        return n.nat.ip("-o", "link", "show", "nx-outside").split(":")[0]

    def side(address, number, peer, peer_number, more):
        # Longer than a restart takes.
        return {"bgpd": bgp(address, number, peer, peer_number, more).replace("timers 1 20", "timers 20 60")}

    def sessions():
        return [peer["connectionsEstablished"] for peer in near.ask("bgp ipv4 unicast summary")["peers"].values()]

    def devices_closed_in_children(process):
        """By descriptor of a TAP device: whether programs that the process starts do not get it (O_CLOEXEC)."""
        folder = Path(f"/proc/{process}/fd")
        taps = [link.name for link in folder.iterdir() if str(link.readlink()) == "/dev/net/tun"]
        lines = {name: Path(f"/proc/{process}/fdinfo/{name}").read_text().splitlines() for name in taps}
        flags = {name: next(line for line in of_one if line.startswith("flags")) for name, of_one in lines.items()}
        return {name: bool(int(line.split()[1], 8) & os.O_CLOEXEC) for name, line in flags.items()}

    expect_equal(n.dut.stop(), None, "end of the instance before")
    words = [HERE / "manager.py", n.state.directory / "notify", n.dut.binary, "run", "-c", n.dut.configuration]
    manager = n.nat.start("manager", words)
    ready = lambda count: manager.log().count("ready") == count and n.dut.running()  # noqa: E731
    try:
        expect(wait_until(lambda: ready(1), 30, 0.1), f"Natrix is ready: {manager.log()}")
        expect(all(f"stored nx-{side}" in manager.log() for side in ("inside", "outside")), f"stored: {manager.log()}")
        near = Router(n.nat, NAT_OUTSIDE, side(NAT_OUTSIDE, 64500, CORE, 64501, "redistribute kernel"))
        core = Router(n.core, CORE, side(CORE, 64501, NAT_OUTSIDE, 64500, f"network {LEARNED}"))
        port = fresh_port()
        with routers(near, core), sockets(listener(n.srv1, port, SRV1)):
            expect(wait_until(near.is_established, 30, 0.1), f"BGP is Established: {near.ask('bgp ipv4 unicast summary')}")
            wait_for_pool(core, True, "the pool is announced")
            before = device(), sessions()
            manager.process.send_signal(signal.SIGUSR1)
            expect(wait_until(lambda: ready(2), 30, 0.1), f"Natrix is ready again: {manager.log()}")
            wait_for_pool(core, True, "the pool is announced again")
            expect_equal((device(), sessions()), before, "number of the device, and connections of BGP so far")
            children = Path(f"/proc/{manager.process.pid}/task/{manager.process.pid}/children").read_text().split()
            kept = [devices_closed_in_children(child) for child in children]
            expect(len(kept) == 1 and len(kept[0]) >= 2 and all(kept[0].values()), f"closed in children: {kept}")
            expect(near.is_established() and core.is_established(), "BGP is Established")
            expect(wait_until(lambda: used_route(n, LEARNED), 15, 0.2), "the learned route is used")
            expect(wait_until(lambda: reaches(n, port), 10, 0.1), "a subscriber reaches srv1")
    finally:
        expect_equal(manager.end(15), 0, f"end of the instance: {manager.log()}")
        n.dut.restart()


@test("kernel_routes")
def a_restart_brings_kept_devices_into_line_with_the_file(n):
    def addresses(device):
        lines = n.nat.run(["ip", "-o", "-4", "addr", "show", "dev", device])[1].splitlines()
        return {line.split()[3] for line in lines}

    def restart(text):
        n.dut.configuration.write_text(text)
        count = manager.log().count("ready") + 1
        manager.process.send_signal(signal.SIGUSR1)
        again = lambda: manager.log().count("ready") == count and n.dut.running()  # noqa: E731
        expect(wait_until(again, 30, 0.1), f"Natrix is ready again: {manager.log()}")

    def links():
        return {line.split(": ")[1].split("@")[0] for line in n.nat.ip("-o", "link").splitlines()}

    before = n.dut.configuration.read_text()
    own, other, by_hand = f"{NAT_OUTSIDE}/24", "198.51.100.77/24", "198.51.100.78/32"
    expect(f'"{own}"' in before, f"the address is in the file: {before}")
    expect_equal(n.dut.stop(), None, "end of the instance before")
    words = [HERE / "manager.py", n.state.directory / "notify", n.dut.binary, "run", "-c", n.dut.configuration]
    manager = n.nat.start("manager", words)
    try:
        expect(wait_until(lambda: "ready" in manager.log() and n.dut.running(), 30, 0.1), f"ready: {manager.log()}")
        n.nat.ip("addr", "add", by_hand, "dev", "nx-outside")
        restart(before.replace(f'"{own}"', f'"{other}"'))
        expect_equal(addresses("nx-outside"), {other, by_hand}, "another address in the file")
        source = n.nat.run(["ip", "route", "get", CORE])[1]
        expect(f"src {other.partition('/')[0]}" in source, f"packets of the kernel have it: {source}")
        restart(before.replace('"nx-outside"', '"nx-wan"'))
        expect("nx-outside" not in links(), f"a device with another name in the file: {links()}")
        expect_equal(addresses("nx-wan"), {own}, "its addresses")
        expect(wait_until(lambda: "gave back nx-outside" in manager.log(), 10, 0.1), f"the store: {manager.log()}")
        # A device that was deleted by hand is made anew.
        n.nat.ip("link", "del", "nx-wan")
        restart(before.replace('"nx-outside"', '"nx-wan"'))
        expect_equal(addresses("nx-wan"), {own}, "addresses of a device that was deleted by hand")
        none = re.sub(r'^kernel = "nx-.*"\n', "", before, flags=re.MULTILINE)
        restart(none.replace("[routing]\nkernel = true\n", ""))
        expect(not any(name.startswith("nx-") for name in links()), f"no device in the file: {links()}")
    finally:
        manager.end(15)
        n.dut.configuration.write_text(before)
        n.dut.restart()


@test("kernel_routes")
def a_device_of_another_program_is_refused(n):
    text = n.dut.configuration.read_text()
    more = '\n[[interface]]\nname = "outside20"\nrealm = "outside"\nparent = "outside"\nvlan = 20\n'
    more += 'addresses = ["198.51.103.2/24"]\nkernel = "mgmt0"\n'
    n.nat.ip("link", "add", "mgmt0", "type", "veth", "peer", "name", "mgmt1")
    n.nat.ip("addr", "add", "10.200.0.1/24", "dev", "mgmt0")
    n.nat.ip("tuntap", "add", "dev", "vmtap", "mode", "tap")
    expect_equal(n.dut.stop(), None, "end of the instance before")
    changed = n.state.directory / "somebody-else.toml"
    changed.write_text(text + more)
    try:
        status, out, err = n.nat.run(["timeout", "30", n.dut.binary, "run", "-c", changed], check=False)
        expect_equal(status, 1, f"exit status: {out} {err}")
        expect('kernel = "mgmt0": is another device' in out + err, f"the message: {out} {err}")
        expect("198.51.103.2" not in n.nat.ip("addr", "show", "mgmt0"), "Natrix left it alone")
        # The device of a port: a cable, and a TAP that a machine in a box has between two runs.
        for taken in ("mgmt0", "vmtap"):
            changed.write_text(text.replace('kernel = "nx-outside"', f'kernel = "{taken}"'))
            before = n.nat.ip("addr", "show", taken)
            status, out, err = n.nat.run(["timeout", "30", n.dut.binary, "run", "-c", changed], check=False)
            expect_equal(status, 1, f"exit status: {out} {err}")
            refused = f'kernel = "{taken}": is another device'
            expect(refused in out + err and "choose a name" in out + err, f"the message: {out} {err}")
            expect_equal(n.nat.ip("addr", "show", taken), before, f"{taken} is as before")
    finally:
        n.nat.ip("link", "del", "mgmt0")
        n.nat.ip("link", "del", "vmtap")
        n.dut.restart()


@test("kernel_routes")
def systemd_keeps_the_devices_over_a_restart(n):
    def device():
        return n.nat.ip("-o", "link", "show", "nx-outside").split(":")[0]

    expect_equal(n.dut.stop(), None, "end of the instance before")
    service = Service(n.nat, [n.dut.binary, "run", "-c", n.dut.configuration])
    try:
        service.do("start")
        expect_equal(service.show("NFileDescriptorStore"), "2", "descriptors that systemd keeps")
        before, first = device(), service.show("MainPID")
        service.do("restart")
        expect(first != service.show("MainPID"), "another process")
        expect_equal(device(), before, "number of the device")
        expect_equal(service.show("NFileDescriptorStore"), "2", "descriptors that systemd keeps")
        port = fresh_port()
        with sockets(listener(n.srv1, port, SRV1)):
            n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
            expect(wait_until(lambda: reaches(n, port), 10, 0.1), "a subscriber reaches srv1")
            n.nat.ip("route", "del", LEARNED, "proto", OWN)
        service.do("stop")
        gone = lambda: "nx-outside" not in n.nat.ip("-o", "link")  # noqa: E731
        expect(wait_until(gone, 10, 0.1), "without the service there is no device")
    finally:
        service.end()
        n.dut.restart()


def ospf_pair(n, dead=20):
    """Natrix's side, of the recipe for the outside, and the core router. `dead`: seconds without a hello."""
    of_core = (
        f"interface nat\n ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval {dead}\n"
        f"router ospf\n ospf router-id {CORE}\n network {CORE}/24 area 0\n network {LEARNED} area 0\n"
        " timers throttle spf 10 50 100\n timers throttle lsa all 0\n timers lsa min-arrival 0\n"
    )
    of_near = recipe("ospf")["ospfd-2"].replace("dead-interval 4\n", f"dead-interval {dead}\n")
    return Router(n.nat, NAT_OUTSIDE, {"ospfd-2": of_near}), Router(n.core, CORE, {"ospfd": of_core})


def wait_until_full(near, core):
    full = lambda: near.is_full() and core.is_full()  # noqa: E731
    expect(wait_until(full, 40, 0.2), f"OSPF is Full: {near.ask_ospf('neighbor')}")


@test("kernel_routes")
def ospf_of_frr_is_full_and_announces_the_pool(n):
    port = fresh_port()
    near, core = ospf_pair(n)
    with routers(near, core), sockets(listener(n.srv1, port, SRV1)):
        wait_until_full(near, core)
        expect(wait_until(lambda: used_route(n, LEARNED), 15, 0.1), f"{LEARNED} is learned: {near.ask_ospf('route')}")
        expect_equal(used_route(n, LEARNED)["protocol"], "ospf", "where the route is from")
        expect(reaches(n, port), "a subscriber reaches srv1 by the learned route")
        pool = f"{POOL[0]}/32"
        expect(wait_until(lambda: pool in core.ospf_routes(), 20, 0.1), f"announced: {core.ask_ospf('route')}")
        drain(n)
        try:
            expect(wait_until(lambda: pool not in core.ospf_routes(), 20, 0.1), "withdrawn")
        finally:
            drain(n, "--undo")
        expect(wait_until(lambda: pool in core.ospf_routes(), 20, 0.1), "announced again")


@test("kernel_routes")
def a_drain_withdraws_the_pool_and_flows_go_on(n):
    port = fresh_port()
    near, core = bgp_pair(n)
    server, client = listener(n.srv1, port, SRV1), tcp(n.sub1)
    with routers(near, core), sockets(server, client):
        client.connect((SRV1, port))
        accepted, _ = server.accept()
        accepted.settimeout(20)

        def flows(what):
            client.sendall(b"there")
            expect_equal(receive_stream(accepted, 5), b"there", f"{what}: to the server")
            accepted.sendall(b"back")
            expect_equal(receive_stream(client, 4), b"back", f"{what}: from the server")

        with sockets(accepted):
            wait_for_pool(core, True, "the pool is announced")
            flows("before")
            status, first = drain(n)
            try:
                expect_equal((status, first["drained"], first["changed"]), (0, True, True), "the first drain")
                expect_equal(first["announcement"]["withheld"], "drained", "why nothing is announced")
                expect(first["sessions"] >= 1, f"what is left: {first}")
                wait_for_pool(core, False, "the neighbour has withdrawn the pool")
                # The core router has a shorter route to the pool.
                flows("drained")
                expect_equal(drain(n)[1]["changed"], False, "a second drain")
                expect_equal(n.nat.run(["ip", "route", "show", "proto", "110"])[1].strip(), "", "routes of Natrix")
                status, _, err = n.dut.command("reload", "-c", n.dut.configuration)
                expect_equal(status, 0, f"a reload: {err}")
                expect(not any(pools(n).values()) and pools(n), f"a reload keeps it drained: {pools(n)}")
                announcement = n.dut.show("status")[0]["announcement"]
                expect_equal((announcement["prefixes"], announcement["withheld"]), (0, "drained"), "show status")
            finally:
                undone = drain(n, "--undo")[1]
            expect_equal((undone["drained"], undone["announcement"]["withheld"]), (False, None), "undone")
            wait_for_pool(core, True, "the pool is announced again")
            flows("after")
    actions = [json.loads(line)["action"] for line in n.dut.command("audit", "--json")[1].splitlines()]
    expect({"drain", "drain --undo"} <= set(actions), f"the audit log: {actions}")


@test("kernel_routes")
def the_api_drains_and_announces_again(n):
    def announced():
        return ask(n, "/api/v1/status")[2]["announcement"]

    def metric(name):
        text = ask(n, "/metrics")[2].decode()
        return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])

    drained_by_metrics = 'natrix_announcement_withheld{reason="drained"}'
    expect(wait_until(lambda: announced()["prefixes"] > 0, 20, 0.2), f"announced before: {announced()}")
    before = announced()
    expect_equal((metric("natrix_announced_prefixes"), metric(drained_by_metrics)), (before["prefixes"], 0), "metrics before")
    try:
        status, _, first = ask(n, "/api/v1/drain", "operate", "POST")
        expect_equal((status, first["drained"], first["changed"]), (200, True, True), "the drain")
        expect_equal((first["announcement"]["prefixes"], first["announcement"]["withheld"]), (0, "drained"), "what is announced")
        expect_equal(n.nat.run(["ip", "route", "show", "proto", "110"])[1].strip(), "", "routes of Natrix in the kernel")
        expect_equal(n.dut.show("status")[0]["announcement"]["withheld"], "drained", "show status")
        expect_equal((metric("natrix_announced_prefixes"), metric(drained_by_metrics)), (0, 1), "metrics of the drained")
        expect_equal(ask(n, "/api/v1/drain", "operate", "POST")[2]["changed"], False, "a second drain")
        expect_equal(see(n, "numbers")["figures"]["routing"], "drained", "the page")
    finally:
        status, _, undone = ask(n, "/api/v1/drain?undo=true", "operate", "POST")
    expect_equal((status, undone["drained"], undone["changed"]), (200, False, True), "undone")
    expect(wait_until(lambda: announced()["prefixes"] == before["prefixes"], 20, 0.2), f"announced again: {announced()}")
    records = objects(n, "/api/v1/audit?limit=3", "audit")
    seen = [(one["who"], one["from"], one["action"], one["result"]) for one in records]
    wanted = [("noc", "http 127.0.0.1", action, "done") for action in ("drain --undo", "drain", "drain")]
    expect_equal(seen, wanted, "audit log")
    # By the page, without a mouse.
    seen = see(n, "drain")
    expect("announced" in seen["before"]["announced"] and seen["before"]["left"].startswith("Now: "), str(seen["before"]))
    expect("no pool is announced" in seen["drained"]["announced"], str(seen["drained"]))
    expect(re.match(r"Left: [\d,]+ packets? a second, [\d,]+ subscribers?, [\d,]+ mappings?, [\d,]+ sessions?", seen["drained"]["left"]), str(seen["drained"]))
    expect(seen["drained"]["said"].startswith("drained; left: "), str(seen["drained"]))
    expect("announced" in seen["back"]["announced"] and seen["back"]["said"].startswith("drain undone"), str(seen["back"]))
    expect_equal([seen[one]["focused"] for one in ("drained", "back")], ["drain-begin", "drain-undo"], "focus after a press")
    expect_equal((len(seen["dialogs"]), seen["violations"]), (1, []), f"dialogs {seen['dialogs']}, axe")
    records = [one["action"] for one in objects(n, "/api/v1/audit?limit=2", "audit")]
    expect_equal(records, ["drain --undo", "drain"], "audit log")
    # Routes and neighbours, as the command shows them.
    listed = {(one["prefix"], one["side"]) for one in objects(n, "/api/v1/routes?limit=10000", "operate")}
    expect_equal(listed, {(one["prefix"], one["side"]) for one in n.dut.show("routes", "--all")}, "routes")
    expect(listed, "no route at all")
    known = {one["address"] for one in objects(n, "/api/v1/neighbours?limit=10000", "audit")}
    expect_equal(known, {one["address"] for one in n.dut.show("neighbours", "--all")}, "neighbours")


@test("kernel_routes")
def pools_are_withheld_while_a_device_of_the_kernel_is_down(n):
    def withheld():
        return n.dut.show("status")[0]["announcement"]["withheld"]

    def log():
        return n.dut.daemon.log()

    n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
    try:
        expect(wait_until(lambda: withheld() is None, 15, 0.1), f"announced before: {withheld()}")
        n.nat.ip("link", "set", "nx-outside", "down")
        expect(wait_until(lambda: withheld() == "device_down", 15, 0.1), f"set down: {withheld()}")
        expect("interface outside: its kernel device was set down" in log(), f"the log: {log()[-2000:]}")
        n.nat.ip("link", "set", "nx-outside", "up")
        n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
        expect(wait_until(lambda: withheld() is None, 15, 0.1), f"set up: {withheld()}")
        n.nat.ip("addr", "del", f"{NAT_OUTSIDE}/24", "dev", "nx-outside")
        # In the first minute Natrix sets its addresses again.
        expect(wait_until(lambda: f"lacks the address {NAT_OUTSIDE}" in log(), 15, 0.1), f"the log: {log()[-2000:]}")
    finally:
        n.nat.ip("addr", "replace", f"{NAT_OUTSIDE}/24", "dev", "nx-outside")
        n.nat.ip("link", "set", "nx-outside", "up")
        n.nat.run(["ip", "route", "del", LEARNED, "proto", OWN])
    expect(wait_until(lambda: withheld() != "device_down", 15, 0.1), f"afterwards: {withheld()}")


@test("kernel_routes")
def a_kernel_device_with_another_mtu_or_none_is_logged_once(n):
    log = lambda: n.dut.daemon.log()  # noqa: E731
    withheld = lambda: n.dut.show("status")[0]["announcement"]["withheld"]  # noqa: E731
    n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
    try:
        expect(wait_until(lambda: withheld() is None, 15, 0.1), f"announced before: {withheld()}")
        n.nat.ip("link", "set", "nx-outside", "mtu", 1300)
        expect(wait_until(lambda: "was given an MTU of 1300 bytes" in log(), 10, 0.1), f"the log: {log()[-2000:]}")
        expect_equal(withheld(), None, "the pools stay announced")
        before = log().count("its kernel device is correct again")
        n.nat.ip("link", "set", "nx-outside", "mtu", 1500)
        expect(wait_until(lambda: log().count("its kernel device is correct again") > before, 10, 0.1), f"the log: {log()[-2000:]}")
        n.nat.ip("link", "del", "nx-inside")
        expect(wait_until(lambda: "was deleted" in log(), 10, 0.1), f"the log: {log()[-2000:]}")
        # Frames of the other device come meanwhile.
        n.nat.run(["ping", "-c", 3, "-i", 0.3, CORE])
        expect_equal((log().count("was deleted"), log().count("os error")), (1, 0), "lines of the log")
    finally:
        n.nat.run(["ip", "route", "del", LEARNED, "proto", OWN])
        n.dut.stop()
        n.dut.restart()


@test("kernel_routes")
def a_port_of_packet_sockets_is_not_heard_twice(n):
    """The kernel's own stack would answer, too, and forward packets of subscribers untranslated."""
    leaks = lambda: n.core.run(["nft", "list", "table", "ip", "leaks"])[1]  # noqa: E731
    before = leaks()
    text = n.dut.configuration.read_text()
    expect_equal(n.dut.stop(), None, "end of the instance before")
    n.dut.configuration.write_text(text.replace("net_af_xdp", "net_af_packet"))
    n.dut.restart()
    forwarded = n.nat.run(["sysctl", "-n", "net.ipv4.ip_forward"])[1].strip()
    try:
        n.nat.sysctl("net.ipv4.ip_forward", 1)
        n.nat.ip("route", "replace", "default", "via", CORE, "dev", "nx-outside", "metric", 20)
        expect("chain ingress" in n.nat.run(["nft", "list", "ruleset"])[1], f"nftables: {n.dut.daemon.log()[-2000:]}")
        for host, address in ((n.core, NAT_OUTSIDE), (n.sub1, NAT_INSIDE)):
            _, out, _ = host.run(["ping", "-c", 3, "-i", 0.2, address])
            expect("3 received" in out and "duplicates" not in out, f"answers of {address}: {out}")
        port = fresh_port()
        with sockets(udp(n.srv1, port, SRV1), udp(n.sub1, 0, SUBSCRIBERS["sub1"])) as (server, client):
            client.sendto(b"once", (SRV1, port))
            _, (address, _) = receive(server, "datagram")
            expect(address in POOL, f"translated: {address}")
        expect_equal(leaks(), before, "packets with an inside source at the core router")
    finally:
        n.nat.sysctl("net.ipv4.ip_forward", forwarded)
        n.nat.run(["ip", "route", "del", "default", "metric", "20"])
        failure = n.dut.stop()
        left = n.nat.run(["nft", "list", "ruleset"])[1]
        n.dut.configuration.write_text(text)
        n.dut.restart()
    expect_equal((failure, "ingress" in left), (None, False), "at the end, the kernel hears the port again")


@test("kernel_routes")
def an_announced_prefix_comes_back_after_removal(n):
    prefix = POOL[0]
    has = lambda: n.nat.ip("route", "show", "proto", "110", "exact", prefix)  # noqa: E731
    n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
    try:
        expect(wait_until(has, 15, 0.1), "announced before")
        n.nat.ip("route", "del", "blackhole", prefix, "proto", "110")
        expect(wait_until(has, 5, 0.1), f"announced again: {pools(n)}")
    finally:
        n.nat.ip("route", "del", LEARNED, "proto", OWN)


@test("kernel_routes")
def an_announcement_leaves_foreign_routes_alone(n):
    """An operator has a route with the prefix and the metric of an announcement."""
    prefix = POOL[0]
    of = lambda protocol: n.nat.ip("route", "show", "proto", protocol, "exact", prefix).strip()  # noqa: E731
    n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
    drain(n)
    expect(wait_until(lambda: not of("110"), 5, 0.1), "withdrawn before")
    n.nat.ip("route", "add", "blackhole", prefix, "proto", "static")
    try:
        drain(n, "--undo")
        expect(wait_until(lambda: of("110"), 15, 0.1), "announced beside it")
        expect(of("static"), "it is there while Natrix announces")
        drain(n)
        expect(wait_until(lambda: not of("110"), 5, 0.1), "withdrawn")
        expect(of("static"), "it is there after a drain")
        drain(n, "--undo")
        expect(wait_until(lambda: of("110"), 5, 0.1), "announced again")
    finally:
        drain(n, "--undo")
        n.nat.ip("route", "del", "blackhole", prefix, "proto", "static")
        n.nat.ip("route", "del", LEARNED, "proto", OWN)


@test("kernel_routes")
def an_announced_prefix_comes_back_after_replacement(n):
    prefix, others = POOL[0], set(POOL[1:])
    has = lambda: n.nat.ip("route", "show", "proto", "110", "exact", prefix).strip()  # noqa: E731
    n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
    try:
        expect(wait_until(has, 15, 0.1), "announced before")
        warned = n.dut.daemon.log().count("refuses its route")
        n.nat.ip("route", "replace", prefix, "via", CORE, "dev", "nx-outside")
        expect(wait_until(has, 3, 0.1), f"announced beside it: {pools(n)}")
        n.nat.ip("route", "del", prefix, "via", CORE, "dev", "nx-outside")
        expect(has(), "announced when it is gone")
        expect(others, "there are others, which were announced all the time")
        expect_equal(n.dut.daemon.log().count("refuses its route"), warned, "warnings about announcements")
    finally:
        n.nat.ip("route", "del", LEARNED, "proto", OWN)


def explained(n, *words):
    """What `why` foresees: verdict, and decision and reason of each step by its name, the last one of several."""
    status, out, err = n.dut.command("why", *words, "--json")
    expect_equal(status, 0, f"why {words}: {err}")
    answer = json.loads(out)
    return answer["verdict"], {step["step"]: (step["decision"], step["detail"]) for step in answer["steps"]}


@test("kernel_routes")
def why_names_a_route_that_drops_packets(n):
    """What `why` foresees, what the counter says, and what the sender learns."""
    address, prefix = "198.51.102.9", "198.51.102.0/24"
    asked = ("udp", f"{SUBSCRIBERS['sub1']}:5000", f"{address}:53")
    counted = lambda: drops(n).get("no_route", 0)  # noqa: E731
    for kind in ("blackhole", "unreachable", "prohibit"):
        n.nat.ip("route", "add", kind, prefix, "metric", "77", "proto", "static")
        try:
            expect(wait_until(lambda: used_route(n, prefix), 10, 0.1), f"{kind}: Natrix uses the route")
            verdict, steps = explained(n, *asked)
            expect_equal(verdict, "no_route", kind)
            decision, reason = steps.get("route", ("no step", ""))
            expect_equal(decision, f"a route drops what goes to {address}", kind)
            expect(reason.startswith(f"{prefix}: ") and "protocol static, metric 77" in reason, f"{kind}: {reason}")
            before = counted()
            with sockets(udp(n.sub1)) as sock:
                sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
                sock.connect((address, 53))
                sock.send(b"x")
                expect(wait_until(lambda: counted() == before + 1, 5, 0.1), f"{kind}: counted {counted() - before} times")
                expect_equal(errno.errorcode.get(pending_error(sock)), "ENETUNREACH", f"{kind}: the sender's error")
        finally:
            n.nat.ip("route", "del", kind, prefix, "metric", "77")
        expect(wait_until(lambda: not used_route(n, prefix), 10, 0.1), f"{kind}: the route is gone")
    verdict, steps = explained(n, *asked)
    expect_equal((verdict, steps["route"][0]), ("outbound", f'interface "outside" via {CORE}'), "by the default route")


@test("kernel_routes")
def what_natrix_cannot_send_by_is_no_next_hop(n):
    """Tunnels of the kernel, and routes that replace a known one and are none for packets."""
    prefix, direct = "10.78.0.0/24", ("via", "198.51.100.41", "dev", "nx-outside", "proto", OWN)
    n.nat.ip("route", "add", prefix, *direct)
    expect(wait_until(lambda: used_route(n, prefix), 5, 0.05), "a plain route is used")
    n.nat.ip("route", "replace", prefix, "encap", "ip", "id", "100", "dst", "10.0.0.1", *direct)
    expect(wait_until(lambda: not used_route(n, prefix), 4, 0.05), f"one into a tunnel: {used_route(n, prefix)}")
    n.nat.ip("route", "replace", prefix, *direct)
    expect(wait_until(lambda: used_route(n, prefix), 5, 0.05), "a plain route again")
    n.nat.ip("route", "replace", "throw", prefix, "proto", OWN)
    expect(wait_until(lambda: not used_route(n, prefix), 4, 0.05), f"throw: {used_route(n, prefix)}")
    n.nat.ip("route", "del", "throw", prefix)


@test("kernel_routes")
def lost_messages_about_routes_of_two_metrics_are_made_good(n):
    """The second route of each prefix changes and the first goes, while nobody reads the socket."""
    prefixes = [f"10.{96 + number // 250}.{number % 250}.0/24" for number in range(500)]
    flood = [f"10.{64 + number // 250}.{number % 250}.0/24" for number in range(7_000)]

    def change(*batches):
        lines = [f"route {verb} {prefix} {how} dev nx-outside proto {OWN}\n" for verb, some, how in batches for prefix in some]
        n.nat.run(["ip", "-batch", "-"], check=True, stdin="".join(lines))

    def known():
        routes = n.dut.show("routes", "--all", "--source", "kernel")
        return [(route["metric"], route["next_hops"][0]["via"]) for route in routes if route["prefix"] in set(prefixes)]

    first, second, third = (f"198.51.100.{last}" for last in (130, 131, 133))
    try:
        change(("add", prefixes, f"via {first} metric 10"), ("add", prefixes, f"via {second} metric 20"))
        expect(wait_until(lambda: len(known()) == 1000, 10, 0.2), "both routes of each prefix")
        process = n.dut.daemon.process
        process.send_signal(signal.SIGSTOP)
        try:
            change(("add", flood, f"via {CORE}"), ("del", flood, ""), ("add", flood, f"via {CORE}"), ("del", flood, ""))
            change(("del", prefixes, "metric 10"), ("replace", prefixes, f"via {third} metric 20"))
        finally:
            process.send_signal(signal.SIGCONT)
        begun = time.monotonic()
        expect(wait_until(lambda: known() == [(20, third)] * 500, 30, 0.1), f"afterwards: {set(known())}")
        # A comparison 10 s later would mend it too.
        print(f"# equal after {time.monotonic() - begun:.1f} s", flush=True)
    finally:
        n.nat.run(["ip", "route", "flush", "proto", OWN])


@test("kernel_routes")
def routes_beside_each_other_and_next_hop_objects_are_followed(n):
    prefix, first, second = "10.77.0.0/24", "198.51.100.41", "198.51.100.42"

    def via():
        route = used_route(n, prefix)
        return route and route["next_hops"][0]["via"]

    # With one metric; the kernel uses the first. Only comparisons would notice after 10 s.
    n.nat.ip("route", "add", prefix, "via", first, "dev", "nx-outside", "proto", OWN)
    expect(wait_until(lambda: via() == first, 5, 0.05), f"added: {via()}")
    n.nat.ip("route", "append", prefix, "via", second, "dev", "nx-outside", "proto", OWN)
    time.sleep(1)
    expect_equal(via(), first, "another one behind it")
    n.nat.ip("route", "del", prefix, "via", second, "dev", "nx-outside")
    time.sleep(1)
    expect_equal(via(), first, "the other one is gone")
    n.nat.ip("route", "append", prefix, "via", second, "dev", "nx-outside", "proto", OWN)
    n.nat.ip("route", "del", prefix, "via", first, "dev", "nx-outside")
    expect(wait_until(lambda: via() == second, 4, 0.05), f"the first one is gone: {via()}")
    n.nat.ip("route", "del", prefix, "via", second, "dev", "nx-outside")
    expect(wait_until(lambda: via() is None, 4, 0.05), f"both are gone: {via()}")
    n.nat.ip("nexthop", "add", "id", "77", "via", first, "dev", "nx-outside")
    n.nat.ip("route", "add", prefix, "nhid", "77", "proto", OWN)
    expect(wait_until(lambda: via() == first, 5, 0.05), f"by a next hop object: {via()}")
    n.nat.ip("nexthop", "del", "id", "77")
    expect(wait_until(lambda: via() is None, 4, 0.05), f"its next hop is deleted: {via()}")


@test("kernel_routes")
def routes_that_only_name_their_next_hops_are_followed(n):
    """As FRR makes them where net.ipv4.nexthop_compat_mode is 0: the kernel does not repeat the next hops."""
    setting, first, second = "net.ipv4.nexthop_compat_mode", CORE, "198.51.100.42"
    prefix = "10.78.0.0/24"

    def hops():
        route = used_route(n, prefix)
        return route and sorted((hop["via"], hop["weight"]) for hop in route["next_hops"])

    def come(wanted, what):
        expect(wait_until(lambda: hops() == wanted, 4, 0.05), f"{what}: {hops()}")

    before = n.nat.run(["sysctl", "-n", setting])
    n.nat.run(["sysctl", "-w", f"{setting}=0"])
    try:
        n.nat.ip("nexthop", "add", "id", "71", "via", first, "dev", "nx-outside")
        n.nat.ip("nexthop", "add", "id", "72", "via", second, "dev", "nx-outside")
        n.nat.ip("nexthop", "add", "id", "73", "group", "71/72,3")
        n.nat.ip("route", "add", prefix, "nhid", "71", "proto", OWN)
        come([(first, 1)], "one")
        # Longer than the time between two comparisons, which sees the same.
        time.sleep(11)
        come([(first, 1)], "after a comparison")
        n.nat.ip("route", "replace", prefix, "nhid", "73", "proto", OWN)
        come([(first, 1), (second, 3)], "a group with weights")
        n.nat.ip("nexthop", "replace", "id", "72", "via", "198.51.100.43", "dev", "nx-outside")
        come([(first, 1), ("198.51.100.43", 3)], "a member in place of another")
        n.nat.ip("nexthop", "del", "id", "72")
        come([(first, 1)], "a member is deleted")
        n.nat.ip("nexthop", "replace", "id", "71", "blackhole")
        come([], "the last member drops packets")
        n.nat.ip("nexthop", "del", "id", "73")
        come(None, "the group is deleted")
    finally:
        n.nat.run(["ip", "route", "flush", "proto", OWN])
        n.nat.run(["ip", "nexthop", "flush"])
        n.nat.run(["sysctl", "-w", f"{setting}={before}"])


@test("kernel_routes")
def a_changed_object_changes_only_the_routes_that_name_it(n):
    """100,000 routes by one object and ten by another: a change costs what its routes cost, and no comparison of all."""
    routers = [f"198.51.100.{last}" for last in range(41, 45)]
    setting = "net.ipv4.nexthop_compat_mode"
    few = [f"10.90.{number}.0/24" for number in range(10)]
    many = [f"{20 + number // 65536}.{number // 256 % 256}.{number % 256}.0/24" for number in range(100_000)]

    def via(prefix):
        """By the step that a packet to the prefix goes through."""
        flow = ("udp", f"{SUBSCRIBERS['sub1']}:4000", prefix.replace("0/24", "9:53"))
        return " ".join(n.dut.command("why", *flow, "--json")[1].split())

    def counter(name):
        return next(one["value"] for one in n.dut.show("counters", "--all") if one["name"] == name)

    def add(prefixes, number):
        lines = "".join(f"route add {prefix} nhid {number} proto {OWN}\n" for prefix in prefixes)
        n.nat.run(["ip", "-batch", "-"], check=True, stdin=lines)

    def replace(prefixes, number, router):
        """Seconds until the last route has it. Right after a comparison, so that none comes by itself."""
        compared, since, came_at = counter("routes_compared"), time.monotonic(), None

        def is_over():
            """Whether one has come and no other with it: after lost messages one may come while more wait, one after."""
            nonlocal compared, since, came_at
            looked, now_compared = time.monotonic(), counter("routes_compared")
            if now_compared > compared:
                compared, came_at = now_compared, since
            since = looked
            return came_at is not None and looked - came_at > 2

        expect(wait_until(is_over, 25, 0.05), "the comparison of every 10 s")
        since = came_at
        compared, changes = counter("routes_compared"), counter("routes_lost")
        begun = time.monotonic()
        n.nat.ip("nexthop", "replace", "id", number, "via", router, "dev", "nx-outside")
        expect(wait_until(lambda: all(f"via {router}" in via(prefix) for prefix in (prefixes[-1], prefixes[0])), 9, 0), "followed")
        took = time.monotonic() - begun
        seen = (counter("routes_compared"), counter("routes_lost"))
        # On a busy machine, comparisons of every 10 s may run before the counters are read.
        due = int((time.monotonic() - since) // 9)
        expect(seen[0] - compared <= due and seen[1] == changes, f"comparisons and losses: {seen}, from {(compared, changes)}, {due} due")
        print(f"# {len(prefixes)} routes have another router after {took:.2f} s", flush=True)
        return took

    before = n.nat.run(["sysctl", "-n", setting])[1].strip()
    n.nat.sysctl(setting, 0)
    try:
        for number, router in ((71, routers[0]), (72, routers[1])):
            n.nat.ip("nexthop", "add", "id", number, "via", router, "dev", "nx-outside")
        add(few, 72)
        add(many, 71)
        expect(wait_until(lambda: f"via {routers[0]}" in via(many[-1]), 60, 0.2), f"learned: {via(many[-1])}")
        with Talk(n) as talk:
            replace(few, 72, routers[2])
            expect(f"via {routers[0]}" in via(many[0]), "the others have what they had")
            replace(many, 71, routers[3])
            expect(f"via {routers[2]}" in via(few[0]), "the others have what they had")
            talk.expect_nothing_lost("two objects changed")
        n.nat.ip("nexthop", "del", "id", "72")
        expect(wait_until(lambda: routers[2] not in via(few[-1]), 4, 0), "routes go with their object")
    finally:
        n.nat.run(["ip", "nexthop", "flush"])
        n.nat.run(["ip", "route", "flush", "proto", OWN])
        n.nat.sysctl(setting, before)


@test("kernel_routes")
def a_drain_waits_until_no_packet_comes(n):
    server, client = udp(n.srv1, address=SRV1), udp(n.sub1)
    with sockets(server, client):
        endpoint = server.getsockname()
        pause, stop = 0.05, threading.Event()

        def send():
            while not stop.wait(pause):
                client.sendto(b"x", endpoint)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            status, left = drain(n, "--wait", "3", "--until", "quiet")
            expect_equal(status, 1, f"packets still come: {left}")
            expect(left["packets_per_second"] > 0, f"packets still come: {left}")
            stop.set()
            status, left = drain(n, "--wait", "30", "--until", "quiet")
            expect_equal((status, left["packets_per_second"]), (0, 0), f"no packet comes: {left}")
            # The session has not ended, and may only pause.
            expect(left["sessions"] > 0, f"sessions are left: {left}")
            status, left = drain(n, "--wait", "4")
            expect_equal(status, 1, f"sessions are left: {left}")
            drain(n, "--undo")
            # A packet a second, as of a keepalive.
            pause, stop = 1.0, threading.Event()
            sender = threading.Thread(target=send)
            sender.start()
            status, left = drain(n, "--wait", "8", "--until", "quiet")
            expect_equal(status, 1, f"a packet each second: {left}")
        finally:
            stop.set()
            sender.join()
            drain(n, "--undo")


class Talk:
    """Datagrams from a subscriber to srv1 and back, 100 a second, until the end of the block."""

    def __init__(self, n):
        self.n = n
        self.server, self.client = udp(n.srv1, address=SRV1, timeout=0.2), udp(n.sub1, timeout=0)
        self.stop, self.sent, self.served, self.answered = threading.Event(), 0, set(), set()
        self.threads = [threading.Thread(target=one) for one in (self._echo, self._send)]

    def __enter__(self):
        self.queues, self.dropped = lost_by_hop(self.n), self._drops()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.server.close()
        self.client.close()

    def _echo(self):
        while not self.stop.is_set():
            with contextlib.suppress(socket.timeout):
                data, sender = self.server.recvfrom(2048)
                self.served.add(int.from_bytes(data, "big"))
                self.server.sendto(data, sender)

    def _send(self):
        while not self.stop.wait(0.01):
            self.client.sendto(self.sent.to_bytes(8, "big"), self.server.getsockname())
            self.sent += 1
            self._read()

    def _read(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                self.answered.add(int.from_bytes(self.client.recv(2048), "big"))

    def _drops(self):
        """Drops by Natrix, but for frames to the kernel that are too many, and answers to the sender of the flood."""
        of_flood = ("kernel_limited", "kernel_ring_full")
        dropped = {reason: count for reason, count in drops(self.n).items() if reason not in of_flood}
        ports = [port for port in self.n.dut.show("interfaces") if port["name"] != "flood"]
        return {**dropped, "tx_dropped": sum(port["tx_dropped"] for port in ports)}

    def overflowed(self):
        """By queue: frames since the beginning that it had no room for, because the machine is too slow."""
        return {hop: now - self.queues[hop] for hop, now in lost_by_hop(self.n).items() if now != self.queues[hop]}

    def _lost_on(self, is_back):
        """Frames that the queues on the way there, or back, had no room for."""
        n, forth, back = self.n, *(("rx", "tx") if is_back else ("tx", "rx"))
        links = (
            (n.sub1, "eth0", forth), (n.access, "sub1", back), (n.access, "nat", forth), (n.nat, "inside", back),
            (n.nat, "outside", forth), (n.core, "nat", back), (n.core, "srv1", forth), (n.srv1, "eth0", back),
        )  # fmt: skip
        queues = {f"{host.name} {device} {way}" for host, device, way in links}
        queues |= {"outside rx_missed"} if is_back else {"inside rx_missed", f"{n.srv1.name} sockets"}
        return sum(count for queue, count in self.overflowed().items() if queue in queues)

    def expect_nothing_lost(self, what, flooded=0):
        """All datagrams so far are answered, but for what the queues on their way had no room for.

        `flooded`: frames sent by others, who may have shared a queue; then datagrams are lost as often as those, and
        for so few by chance twice as often and 10 more.
        """
        upto = set(range(self.sent))
        wait_until(lambda: not upto - self.answered, 10, 0.05)
        there, back = len(upto - self.served), len((upto & self.served) - self.answered)
        print(
            f"# {what}: of {len(upto)} datagrams {there} were lost on the way there and {back} on the way back; "
            f"lost in queues: {self.overflowed()}",
            flush=True,
        )
        expect_equal(self._drops(), self.dropped, f"{what}: drops by Natrix")
        for lost, is_back in ((there, False), (back, True)):
            most = overflowed = self._lost_on(is_back)
            if flooded:
                most = min(overflowed, 10 + 2 * len(upto) * overflowed // flooded)
            expect(lost <= most, f"{what}: {lost} of {len(upto)} datagrams lost, at most {most}; back: {is_back}")


def station_of(n, device):
    lines = n.nat.ip("-o", "link", "show", device).split()
    return lines[lines.index("link/ether") + 1]


def flood_class(n, class_name, kind, flood, talk, is_exact):
    """A flood, of which the kernel gets no more than the rate of its class; returns the frames sent. See `flooded`."""
    counted = lambda: [counter(n, f"kernel_{class_name}_{what}") for what in ("limited", "given", "full")]  # noqa: E731
    at, begun = time.monotonic(), counted()
    frames, arrived = flood(kind, talk)
    refused, *others = (now - then for now, then in zip(counted(), begun))
    passed = time.monotonic() - at
    print(
        f"# {kind}: {frames:,} frames in {passed:.1f} s, {arrived:,} arrived, "
        f"{refused:,} were refused, {others} given to the kernel and too many for it",
        flush=True,
    )
    # The sessions are of the same classes.
    expect(not is_exact or arrived <= refused + sum(others) < arrived + 1000, f"{kind}: not all are counted")
    rate = CLASS_RATES[class_name]
    most = WORKERS * (rate * (passed + AT_ONCE_SECONDS) + REGULAR_SOURCES)
    # Not as a part of the flood, which is slow where the sender has no CPU.
    expect(sum(others) <= most, f"{kind}: {others} frames in {passed:.1f} s are for the kernel, at most {most:.0f}")
    expect(refused <= frames, f"{kind}: {refused} of only {frames} frames were refused")
    return frames


def flooded(n, flood, is_exact=False):
    """Sessions and traffic during floods. `flood` makes one of a kind; returns the frames sent, and those that came.

    `is_exact`: all that came are counted; else some may have been lost where nobody counts them.
    """
    near, core = bgp_pair(n, of_peer=["bfd"], missed=MISSED_IN_FLOOD)

    def bgp_ups():
        peers = near.ask("bgp ipv4 unicast summary").get("peers", {})
        return [(peer["state"], peer["connectionsEstablished"]) for peer in peers.values()]

    with routers(near, core), Talk(n) as talk:
        up = lambda: near.bfd_peer(CORE).get("status") == "up"  # noqa: E731
        expect(wait_until(up, 15, 0.1), f"BFD is up: {near.ask('bfd peers')}")
        wait_for_pool(core, True, "the pool is announced")
        before, at, flooded_by = bgp_ups(), time.monotonic(), 0
        kinds = {"bgp": "other", "bgp-near": "bgp", "arp": "neighbour", "ospf": "routing", "bfd": "bfd"}
        for kind, class_name in kinds.items():
            flooded_by += flood_class(n, class_name, kind, flood, talk, is_exact)
        talk.expect_nothing_lost("the flood", flooded_by)
        expect_equal(bgp_ups(), before, "BGP stays up")
        passed = time.monotonic() - at
        expect(near.bfd_peer(CORE).get("uptime", 0) >= int(passed), f"BFD stays up: {near.bfd_peer(CORE)}")


@test("kernel_routes")
def a_flood_leaves_sessions_and_traffic_alone(n):
    station = station_of(n, "nx-outside")

    def flood(kind, talk):
        overflowed = sum(talk.overflowed().values())
        words = [HERE / "flood.py", "nat", station, kind, FLOOD_SECONDS, os.cpu_count()]
        status, out, err = n.core.run([sys.executable, *words], timeout=60)
        expect_equal(status, 0, f"the flood: {err}")
        return int(out), int(out) - sum(talk.overflowed().values()) + overflowed

    flooded(n, flood)


def by_shared_memory(n, seconds=FLOOD_SECONDS):
    """A flood of some hundred thousand frames a second and more, to another port of Natrix than that of the sessions."""
    station = bytes.fromhex(station_of(n, "nx-flood").replace(":", ""))
    path = n.state.directory / "flood.pcap"

    def port():
        return next(port for port in n.dut.show("interfaces") if port["name"] == "flood")

    def flood(kind, _):
        capture(path, frames(station, kind, FLOOD_LINK))
        before = port()["rx_packets"]
        arrived = lambda: port()["rx_packets"] - before  # noqa: E731
        sender = SharedMemory(n.core, path, FLOOD_SOCKET)
        try:
            expect(wait_until(lambda: port()["link_up"], 20, 0.1), f"the link of the flood: {port()}")
            is_flood = lambda: arrived() >= FLOOD_FRAMES_MIN  # noqa: E731
            offered, sent = sender.send(seconds, lambda: wait_until(is_flood, FLOOD_SECONDS_MAX, 0.5))
        finally:
            sender.end()
        # What is still in the ring when the sender ends is lost.
        expect(FLOOD_FRAMES_MIN <= arrived() <= sent, f"{kind}: {arrived()} of {sent} arrived")
        return offered, arrived()

    return flood


@test("kernel_flood")
def a_flood_by_shared_memory_leaves_sessions_and_traffic_alone(n):
    flooded(n, by_shared_memory(n), is_exact=True)


@test("kernel_flood")
def a_flood_of_ospf_leaves_its_adjacency_full(n):
    """Frames of OSPF from neighbours of the flood's link that do not exist, for longer than hellos may be missing."""
    near, core = ospf_pair(n, DEAD_IN_FLOOD)

    def changes():
        """How often the state of each neighbour has changed so far, on both sides."""
        found = [side.ask_ospf("neighbor detail").get("neighbors", {}) for side in (near, core)]
        return [one["stateChangeCounter"] for of in found for some in of.values() for one in some]

    with routers(near, core), Talk(n) as talk:
        wait_until_full(near, core)
        before = changes()
        expect_equal(len(before), 2, "neighbours of both sides")
        flooded_by = flood_class(n, "routing", "ospf", by_shared_memory(n, OSPF_FLOOD_SECONDS), talk, is_exact=True)
        expect_equal(changes(), before, "changes of the state of neighbours")
        expect(near.is_full() and core.is_full(), f"OSPF is Full: {near.ask_ospf('neighbor')}")
        talk.expect_nothing_lost("the flood", flooded_by)


@test("kernel_routes")
def routes_come_change_and_go_beside_an_unaffected_flow(n):
    prefixes = {f"10.77.{number}.0/24" for number in range(250)}
    near, core = bgp_pair(n, more=["redistribute kernel", f"neighbor {NAT_OUTSIDE} route-map onward out"])
    changed = ("ip prefix-list changed permit 10.77.0.0/16 le 32", "route-map onward permit 10", "match ip address prefix-list changed")

    def change(verb):
        lines = "".join(f"route {verb} blackhole {prefix}\n" for prefix in sorted(prefixes))
        n.core.run(["ip", "-batch", "-"], check=True, stdin=lines)

    def by_router():
        """Those of the prefixes that Natrix uses, by the router they lead to."""
        found = {}
        for route in n.dut.show("routes", "--all", "--source", "kernel"):
            if route["prefix"] in prefixes and route["used"]:
                found.setdefault(tuple(hop["via"] for hop in route["next_hops"]), set()).add(route["prefix"])
        return found

    def wait_for(wanted, what):
        expect(wait_until(lambda: by_router() == wanted, 30, 0.2), f"{what}: {by_router()}")

    with routers(near, core):
        core.configure(*changed, "exit", "route-map onward permit 20")
        expect(wait_until(lambda: used_route(n, LEARNED), 15, 0.2), f"{LEARNED} is learned")
        port = fresh_port()
        with sockets(listener(n.srv1, port, SRV1)):
            expect(wait_until(lambda: reaches(n, port), 15, 0.1), "a subscriber reaches srv1 by the learned route")
        with Talk(n) as talk:
            try:
                change("add")
                wait_for({(CORE,): prefixes}, "they are learned")
                core.configure(*changed, f"set ip next-hop {NOBODY}")
                wait_for({(NOBODY,): prefixes}, "they lead to another router")
            finally:
                change("del")
            wait_for({}, "they are withdrawn")
            talk.expect_nothing_lost("changing routes")


@test("kernel_routes")
def a_pool_is_announced_only_while_it_can_serve(n):
    def withheld():
        return n.dut.show("status")[0]["announcement"]["withheld"]

    expect(wait_until(lambda: withheld() is None, 15, 0.1), f"before: {withheld()}")
    n.core.ip("link", "set", "nat", "down")
    try:
        expect(wait_until(lambda: withheld() == "no_link", 15, 0.1), f"the port outside has no link: {withheld()}")
        expect_equal(n.nat.run(["ip", "route", "show", "proto", "110"])[1].strip(), "", "routes of Natrix")
        reasons = {route["reason"] for route in n.dut.show("routes", "--all", "--source", "pool")}
        expect_equal(reasons, {"not announced: no interface of one side has link"}, "reasons")
    finally:
        n.core.ip("link", "set", "nat", "up")
        # The kernel forgot them with the link.
        n.core.ip("route", "add", "203.0.113.0/24", "via", NAT_OUTSIDE)
    expect(wait_until(lambda: withheld() is None and all(pools(n).values()), 15, 0.1), f"after: {withheld()}")


@test("kernel_routes")
def each_subscriber_keeps_to_one_of_several_next_hops(n):
    hops = {f"198.51.100.{last}": f"02:00:00:00:01:{last:02x}" for last in (41, 42, 43, 44)}
    # Next hops that are nobody: only the Ethernet address of a frame shows which one was meant.
    for address, station in hops.items():
        n.nat.ip("neigh", "replace", address, "lladdr", station, "dev", "nx-outside", "nud", "permanent")
    target = "192.0.2.200"
    ways = [word for address in hops for word in ("nexthop", "via", address, "dev", "nx-outside")]
    n.nat.ip("route", "add", f"{target}/32", *ways)
    subscribers = [f"100.64.0.{last}" for last in range(20, 60)]
    try:
        expect(wait_until(lambda: used_route(n, f"{target}/32"), 10, 0.1), "Natrix uses the route")
        expect_equal(len(used_route(n, f"{target}/32")["next_hops"]), len(hops), "next hops")
        with n.core.entered():
            seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
        seen.bind(("nat", ETH_P_IP))
        seen.settimeout(0.2)
        stations = {}
        with sockets(seen):
            for _ in range(5):
                for number, address in enumerate(subscribers):
                    with sockets(udp(n.sub2, address=address)) as sock:
                        sock.sendto(b"hop" + bytes([number]), (target, 9))
                left = len(subscribers)

                def all_seen():
                    nonlocal left
                    with contextlib.suppress(socket.timeout):
                        while left:  # noqa: B023
                            frame = seen.recv(2048)
                            mark = frame.find(b"hop", 42)
                            if mark > 0:
                                left -= 1
                                stations.setdefault(frame[mark + 3], set()).add(frame[:6].hex(":"))
                    return not left

                wait_until(all_seen, 2, 0)
        expect_equal(len(stations), len(subscribers), "subscribers whose packets came")
        expect(all(len(one) == 1 for one in stations.values()), f"each subscriber keeps to one: {stations}")
        used = {station for one in stations.values() for station in one}
        expect_equal(used, set(hops.values()), "all next hops carry subscribers")
    finally:
        n.nat.ip("route", "del", f"{target}/32")
        for address in hops:
            n.nat.ip("neigh", "del", address, "dev", "nx-outside")


def starved(dut, change, known_to_kernel, known_to_natrix, prefixes):
    """Routes that change while nobody reads the socket, and then at full speed: in the end both sides have the same.

    `change` takes (verb, prefixes) pairs. A busy machine may need longer than the 5 s that are the aim, so the time is
    printed, and both sides must be equal when the routes have long ceased to change.
    """

    def become_equal(wanted, what):
        begun = time.monotonic()
        expect_equal(len(known_to_kernel() ^ wanted), 0, f"{what}: routes of the kernel that differ")
        equal = wait_until(lambda: known_to_natrix() == wanted, 30, 0.1)
        known = known_to_natrix()
        expect(equal, f"{what}: {len(known & wanted)} of {len(wanted)} routes are known, {len(known - wanted)} too many")
        print(f"# {what}: {len(wanted)} routes are equal after {time.monotonic() - begun:.1f} s", flush=True)

    def lost():
        return sum(one["value"] for one in dut.show("counters", "--all", "--name", "routes_lost"))

    before, process, kept = lost(), dut.daemon.process, prefixes[::3]
    process.send_signal(signal.SIGSTOP)
    try:
        change(("add", prefixes), ("del", prefixes), ("add", kept))
    finally:
        process.send_signal(signal.SIGCONT)
    become_equal(set(kept), "starved")
    expect(lost() > before, "messages were lost, and counted")
    change(("del", kept), ("add", prefixes), ("del", prefixes[::2]))
    become_equal(set(prefixes[1::2]), "at full speed")


def withdrawals(n, count):
    """Seconds until the pools are withdrawn once their link goes down, each time while all routes are compared.

    Every change of a link begins a comparison, so one is under way since the link came up.
    """
    withheld = lambda: n.dut.show("status")[0]["announcement"]["withheld"]  # noqa: E731
    monitor = n.nat.start("monitor", ["ip", "-ts", "monitor", "route"])
    gone = lambda: [line for line in monitor.log().splitlines() if "Deleted blackhole" in line]  # noqa: E731
    found = []
    try:
        for _ in range(count):
            expect(wait_until(lambda: withheld() is None, 120, 0.05), f"announced: {withheld()}")
            known, begun = len(gone()), datetime.datetime.now()
            n.core.ip("link", "set", "nat", "down")
            expect(wait_until(lambda known=known: len(gone()) > known, 120, 0.05), f"withdrawn: {withheld()}")
            at = datetime.datetime.fromisoformat(gone()[known].split("]")[0].strip("["))
            found.append((at - begun).total_seconds())
            n.core.ip("link", "set", "nat", "up")
    finally:
        monitor.end()
        n.core.ip("link", "set", "nat", "up")
        # The kernel forgot it with the link.
        n.core.ip("route", "replace", "203.0.113.0/24", "via", NAT_OUTSIDE)
    expect(wait_until(lambda: withheld() is None, 120, 0.05), f"announced in the end: {withheld()}")
    return found


@test("kernel_routes")
def a_million_routes_of_the_kernel_take_at_most_200_mb(n):
    """Resident memory, the most of it included, while they come and while all of them are compared twice."""

    def memory(key):
        status = open(f"/proc/{n.dut.daemon.process.pid}/status").read()
        return int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) / 1024

    def counter(name):
        return sum(one["value"] for one in n.dut.show("counters", "--all", "--name", name) if one["name"] == name)

    dice = random.Random(7)
    # As long as those of a full table are. None is of this network, or of the machine itself.
    lengths = dice.choices((24, 23, 22, 21, 20, 19, 18, 17, 16, 28), (60, 8, 12, 5, 5, 3, 3, 1, 2, 1), k=1_300_000)
    addresses = ((dice.randrange(11, 190) << 24 | dice.getrandbits(24)) & -1 << 32 - length for length in lengths)
    prefixes = {f"{ipaddress.IPv4Address(address)}/{length}" for address, length in zip(addresses, lengths, strict=True)}
    prefixes = sorted(prefix for prefix in prefixes if not prefix.startswith(("100.", "127.")))[:1_000_000]
    before = memory("VmRSS")
    lines = (f"route add {prefix} via {CORE} dev nx-outside proto {OWN}\n" for prefix in prefixes)
    try:
        n.nat.run(["ip", "-batch", "-"], check=True, stdin="".join(lines), timeout=300)
        expect(wait_until(lambda: counter("routes_installed") >= len(prefixes), 120, 1), f"routes: {counter('routes_installed')}")
        compared = counter("routes_compared")
        expect(wait_until(lambda: counter("routes_compared") >= compared + 2, 120, 1), "compared")
        now, most = memory("VmRSS") - before, memory("VmHWM") - before
        print(f"# {len(prefixes):,} routes: {now:.0f} MB, {most:.0f} MB at most", flush=True)
        expect(most <= 200, f"resident memory of a million routes: {now:.0f} MB, {most:.0f} MB at most")
        took = withdrawals(n, 5)
        print(f"# pools withdrawn after {', '.join(f'{one:.2f}' for one in took)} s", flush=True)
    finally:
        n.nat.run(["ip", "route", "flush", "proto", OWN], timeout=300)
    expect(wait_until(lambda: counter("routes_kernel") < 1000, 120, 1), "all are gone")


@test("kernel_routes")
def lost_messages_of_the_kernel_are_made_good(n):
    prefixes = [f"10.{64 + number // 250}.{number % 250}.0/24" for number in range(10_000)]

    def change(*batches):
        lines = [f"route {verb} {prefix} via {CORE} dev nx-outside proto {OWN}\n" for verb, some in batches for prefix in some]
        n.nat.run(["ip", "-batch", "-"], check=True, stdin="".join(lines))

    def known_to_kernel():
        return {line.split()[0] for line in n.nat.run(["ip", "route", "show", "proto", OWN])[1].splitlines()}

    def known_to_natrix():
        return {route["prefix"] for route in n.dut.show("routes", "--all", "--source", "kernel") if route["protocol"] == OWN}

    try:
        starved(n.dut, change, known_to_kernel, known_to_natrix, prefixes)
    finally:
        n.nat.run(["ip", "route", "flush", "proto", OWN])
    expect(wait_until(lambda: not known_to_natrix(), 30, 0.1), "all are gone")
