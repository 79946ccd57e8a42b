"""Routes of IPv6 by the kernel: FRR inside learns the way to NAT64 and DS-Lite, and Natrix the way to their hosts."""

import contextlib
import ipaddress
import json
import random
import socket
import struct
import time
from types import SimpleNamespace

from frr import Router
from frr import recipe
from frr import routers
from kit import *
from netlab.namespace import Namespace
from netlab.namespace import connect
from netlab.natrix import Natrix
from netlab.natrix import default_driver
from netlab.process import wait_until
from test_routing import OWN
from test_routing import starved

PORT, PORT6 = "10.0.0.1", "2001:db8:64::1"
UPSTREAM, SERVER, POOL = "198.51.100.1", "192.0.2.10", "203.0.113.1"
# Behind the router inside.
HOST, HOSTS = "2001:db8:65::10", "2001:db8:65::10/128"
PREFIX, AFTR = "64:ff9b::/96", "2001:db8:64:ffff::1/128"
SERVER6 = "64:ff9b::c000:20a"
TABLE = 10


class Instance(Natrix):
    """Natrix with NAT64 and DS-Lite, in a namespace of its own; the inside has a table of the kernel if one is given."""

    def __init__(self, binary, host, table=None, aftr=AFTR):
        super().__init__(binary)
        self.network = SimpleNamespace(nat=host)
        driver = "net_af_xdp" if default_driver() == "af_xdp" else "net_af_packet"
        own_table = f"kernel_table = {table}\n" if table else ""
        folder = host.state.directory
        self.socket, self.configuration = folder / "routing6.sock", folder / "routing6.toml"
        self.configuration.write_text(f"""
[[interface]]
name = "inside"
realm = "inside"
driver = "{driver}0,iface=lan"
addresses = ["{PORT}/24", "{PORT6}/64"]
kernel = "nx-inside"
{own_table}
[[interface]]
name = "outside"
realm = "outside"
driver = "{driver}1,iface=wan"
addresses = ["198.51.100.2/24"]
kernel = "nx-outside"

[[pool]]
name = "public"
addresses = ["{POOL}"]
subscribers = ["10.0.0.0/8"]

[[nat64]]
pool = "public"

[[softwire]]
aftr = "{aftr.removesuffix("/128")}"
pool = "public"

[routing]
kernel = true

[tables]
mappings = 1_000

[control]
socket = "{self.socket}"
""")

    def used(self, prefix):
        """The route in use for a prefix."""
        return next((one for one in self.show("routes", "--all") if one["prefix"] == prefix and one["used"]), None)


def built(n, mark):
    """The namespaces of a test: nat, a router inside with a host behind it, and the server's router outside. They stay
    until the end of the setup, so `mark` keeps them apart from those of other tests."""
    hosts = {name: Namespace(n.state, f"routing6-{mark}-{name}") for name in ("nat", "lan", "wan")}
    n.hosts.update({host.name: host for host in hosts.values()})
    for host in hosts.values():
        for device in ("all", "default", "lo"):
            host.sysctl(f"net.ipv6.conf.{device}.disable_ipv6", 0)
    for name in ("lan", "wan"):
        connect(hosts[name], "eth0", hosts["nat"], name)
        hosts[name].run(["ethtool", "-K", "eth0", "tx", "off"], check=True)
    # The cables are Natrix's.
    for device in ("lan", "wan"):
        hosts["nat"].sysctl(f"net.ipv6.conf.{device}.disable_ipv6", 1)
    hosts["lan"].ip("address", "add", "10.0.0.2/24", "dev", "eth0")
    hosts["lan"].ip("-6", "address", "add", "2001:db8:64::2/64", "dev", "eth0", "nodad")
    hosts["lan"].ip("-6", "address", "add", HOSTS, "dev", "lo", "nodad")
    hosts["wan"].ip("address", "add", f"{UPSTREAM}/24", "dev", "eth0")
    hosts["wan"].ip("address", "add", f"{SERVER}/32", "dev", "lo")
    hosts["wan"].ip("route", "add", "203.0.113.0/24", "via", "198.51.100.2")
    return SimpleNamespace(**hosts)


@contextlib.contextmanager
def running(n, mark, table=None, aftr=AFTR):
    hosts = built(n, mark)
    instance = Instance(n.dut.binary, hosts.nat, table, aftr)
    instance.restart()
    hosts.nat.ip("route", "add", "default", "via", UPSTREAM, "dev", "nx-outside")
    try:
        yield hosts, instance
    finally:
        expect_equal(instance.stop(), None, "end of the instance")


def ospf6(device, address, *more):
    return (
        f"interface {device}\n ipv6 ospf6 area 0\n ipv6 ospf6 network point-to-point\n ipv6 ospf6 hello-interval 1\n"
        f" ipv6 ospf6 dead-interval 20\ninterface lo\n ipv6 ospf6 area 0\nrouter ospf6\n ospf6 router-id {address}\n"
        + "".join(f" {line}\n" for line in more)
    )


def answered(hosts):
    """True if the host inside has an answer of the server by NAT64."""
    words = ["ping", "-6", "-n", "-c", "2", "-i", "0.2", "-W", "5", "-I", HOST, SERVER6]
    return hosts.lan.run(words)[0] == 0


def learned(hosts):
    """What the router inside knows by its routing protocol."""
    status, out, _ = hosts.lan.run(["ip", "-6", "-j", "route", "show", "proto", "ospf"])
    return {route["dst"] for route in json.loads(out or "[]")} if status == 0 else set()


@test("routing_own")
def ospf_of_frr_leads_ipv6_hosts_to_nat64_and_back(n):
    with running(n, "ospf") as (hosts, instance):
        # Programs on a busy machine miss more hellos than the recipe allows.
        of_near = {name: text.replace("dead-interval 4\n", "dead-interval 20\n") for name, text in recipe("ospf6").items()}
        near = Router(hosts.nat, PORT, of_near)
        inner = Router(hosts.lan, "10.0.0.2", {"ospf6d": ospf6("eth0", "10.0.0.2")})
        with routers(near, inner):
            expect(wait_until(lambda: instance.used(HOSTS), 40, 0.2), f"{HOSTS}: {instance.show('routes', '--all')}")
            route = instance.used(HOSTS)
            expect_equal((route["source"], route["protocol"]), ("kernel", "ospf"), "source of the route")
            [hop] = route["next_hops"]
            expect(hop["via"].startswith("fe80::") and hop["interface"] == "inside", f"the router is {hop}")
            both = {PREFIX, AFTR.removesuffix("/128")}
            expect(wait_until(lambda: both <= learned(hosts), 30, 0.2), f"the router inside learned {learned(hosts)}")
            expect(wait_until(lambda: answered(hosts), 15, 0.2), "the server answers by NAT64")
            known = {one["address"]: one for one in instance.show("neighbours", "--all")}
            expect_equal(known.get(hop["via"], {}).get("owner"), "kernel", f"owner of the router among {known}")
            sources = {one["prefix"]: one["source"] for one in instance.show("routes", "--all") if one["used"]}
            expect_equal((sources.get(PREFIX), sources.get(AFTR)), ("nat64", "softwire"), "what is announced")
            # Packets of IPv6 to others do not pass by the kernel.
            hosts.lan.ip("-6", "route", "add", "2001:db8:77::/48", "via", PORT6)
            refused = hosts.lan.run(["ping", "-6", "-n", "-c", "2", "-W", "2", "2001:db8:77::1"])[1]
            expect(f"From {PORT6}" in refused and "No route" in refused, f"Natrix itself refuses them: {refused}")
            # A drain withdraws both.
            status, _, err = instance.command("drain")
            expect_equal(status, 0, err)
            expect(wait_until(lambda: not both & learned(hosts), 15, 0.2), f"withdrawn: {learned(hosts)}")
            instance.command("drain", "--undo")
            expect(wait_until(lambda: both <= learned(hosts), 15, 0.2), f"announced again: {learned(hosts)}")
            near.kill()
            expect(instance.used(HOSTS), "the route stays when FRR is killed")
            expect(answered(hosts), "packets go on when FRR is killed")


@test("routing_own")
def routes_of_ipv6_follow_the_kernel_in_the_table_of_the_realm(n):
    with running(n, "table", TABLE) as (hosts, instance):
        table = str(TABLE)

        def ip6(verb, *words):
            return hosts.nat.ip("-6", "route", verb, "table", table, *words)

        def own():
            # There is no table before its first route.
            return set(hosts.nat.run(["ip", "-6", "route", "show", "proto", "110", "table", table])[1].split())

        # Natrix's own: in the table of the realm, where its routing daemon looks.
        expect(wait_until(lambda: {PREFIX, AFTR.removesuffix("/128")} <= own(), 15, 0.2), f"the table has {own()}")
        ip6("add", HOSTS, "via", "2001:db8:64::2", "dev", "nx-inside", "metric", "50")
        expect(wait_until(lambda: instance.used(HOSTS), 10, 0.1), f"the route is used: {instance.show('routes', '--all')}")
        hosts.lan.ip("-6", "route", "add", PREFIX, "via", PORT6)
        expect(wait_until(lambda: answered(hosts), 15, 0.2), "the server answers by NAT64")
        # The lowest metric counts, and several next hops go one by one.
        ip6("add", HOSTS, "metric", "20", "nexthop", "via", "fe80::71", "dev", "nx-inside", "nexthop", "via", "fe80::72", "dev", "nx-inside")
        routers_of = lambda: {hop["via"] for hop in (instance.used(HOSTS) or {"next_hops": []})["next_hops"]}  # noqa: E731
        expect(wait_until(lambda: routers_of() == {"fe80::71", "fe80::72"}, 10, 0.1), f"two next hops: {routers_of()}")
        ip6("del", HOSTS, "metric", "20", "via", "fe80::71", "dev", "nx-inside")
        expect(wait_until(lambda: routers_of() == {"fe80::72"}, 5, 0.1), f"one is left: {routers_of()}")
        ip6("del", HOSTS, "metric", "20")
        expect(wait_until(lambda: routers_of() == {"2001:db8:64::2"}, 5, 0.1), f"the other metric: {routers_of()}")
        # Routes of other kinds with the same metric stand beside it, and the kernel uses the first.
        drops = lambda: instance.used(HOSTS) is not None and not instance.used(HOSTS)["next_hops"]  # noqa: E731
        # Right after a comparison of all routes, so that none comes by itself.
        compared = lambda: next(one["value"] for one in instance.show("counters", "--all") if one["name"] == "routes_compared")  # noqa: E731
        before = compared()
        expect(wait_until(lambda: compared() > before, 15, 0.1), "a comparison")
        ip6("add", HOSTS, "metric", "20", "via", "fe80::73", "dev", "nx-inside")
        hosts.nat.ip("-6", "route", "append", "unreachable", HOSTS, "metric", "20", "table", table)
        expect(wait_until(lambda: drops() or routers_of() == {"fe80::73"}, 5, 0.1), f"one of the two: {routers_of()}")
        time.sleep(1)
        ip6("del", HOSTS, "metric", "20", "via", "fe80::73", "dev", "nx-inside")
        expect(wait_until(drops, 3, 0.1), f"the other one of metric 20 drops packets: {instance.used(HOSTS)}")
        hosts.nat.ip("-6", "route", "del", "unreachable", HOSTS, "metric", "20", "table", table)
        expect(wait_until(lambda: routers_of() == {"2001:db8:64::2"}, 3, 0.1), f"the other metric: {routers_of()}")
        hosts.nat.ip("-6", "route", "replace", HOSTS, "dev", "nx-inside", "metric", "50", "table", table)
        time.sleep(1)
        first = hosts.nat.ip("-6", "route", "show", "table", table, "exact", HOSTS).splitlines()[0]
        wanted = {"2001:db8:64::2"} if "via" in first else {None}
        expect(wait_until(lambda: routers_of() == wanted, 3, 0.1), f"{first}: {instance.used(HOSTS)}")
        hosts.nat.run(["ip", "-6", "route", "flush", "table", table, "exact", HOSTS])
        ip6("add", HOSTS, "via", "2001:db8:64::2", "dev", "nx-inside", "metric", "50")
        expect(wait_until(lambda: routers_of() == {"2001:db8:64::2"}, 3, 0.1), f"as before: {routers_of()}")
        # The same by objects that the kernel does not repeat in the route.
        hosts.nat.sysctl("net.ipv4.nexthop_compat_mode", 0)
        for number, via in ((71, "fe80::71"), (72, "fe80::72")):
            hosts.nat.ip("nexthop", "add", "id", number, "via", via, "dev", "nx-inside")
        hosts.nat.ip("nexthop", "add", "id", "73", "group", "71/72")
        ip6("add", HOSTS, "metric", "20", "nhid", "73")
        expect(wait_until(lambda: routers_of() == {"fe80::71", "fe80::72"}, 4, 0.1), f"a group: {routers_of()}")
        hosts.nat.ip("nexthop", "replace", "id", "72", "via", "fe80::73", "dev", "nx-inside")
        expect(wait_until(lambda: routers_of() == {"fe80::71", "fe80::73"}, 4, 0.1), f"another member: {routers_of()}")
        ip6("replace", HOSTS, "metric", "20", "nhid", "71")
        expect(wait_until(lambda: routers_of() == {"fe80::71"}, 4, 0.1), f"a single one in its place: {routers_of()}")
        ip6("del", HOSTS, "metric", "20")
        expect(wait_until(lambda: routers_of() == {"2001:db8:64::2"}, 4, 0.1), f"the other metric again: {routers_of()}")
        expect(wait_until(lambda: answered(hosts), 15, 0.2), "the server answers again")
        # Many at full speed, in no order: both sides are equal soon after.
        prefixes = [f"2001:db8:{one:x}:{two:x}::/64" for one in range(256, 266) for two in range(1, 401)]
        dice = random.Random(6)
        for verb in ("add", "del"):
            dice.shuffle(prefixes)
            chosen = prefixes if verb == "add" else prefixes[: len(prefixes) // 2]
            lines = "".join(f"route {verb} {prefix} via fe80::71 dev nx-inside table {table}\n" for prefix in chosen)
            hosts.nat.run(["ip", "-6", "-batch", "-"], check=True, stdin=lines)
        left = set(prefixes[len(prefixes) // 2 :])
        known = lambda: {one["prefix"] for one in instance.show("routes", "--all") if one["used"]} & set(prefixes)  # noqa: E731
        expect(wait_until(lambda: known() == left, 20, 0.5), f"{len(known())} of {len(left)} routes, {len(known() - left)} too many")


@test("routing_own")
def ipv6_announcements_leave_foreign_routes_alone(n):
    """An operator has a route with the prefix, the type and the metric of an announcement: the kernel takes no other."""
    with running(n, "other") as (hosts, instance):

        def protocols():
            # The output leaves the protocol out that was asked for.
            found = []
            for protocol in ("110", "static"):
                lines = hosts.nat.run(["ip", "-6", "route", "show", "proto", protocol, "exact", PREFIX])[1].splitlines()
                found += [protocol] * len([line for line in lines if line.strip()])
            return found

        def drain(*words):
            status, _, err = instance.command("drain", *words)
            expect_equal(status, 0, err)

        wait_for = lambda wanted, what: expect(  # noqa: E731
            wait_until(lambda: protocols() == wanted, 15, 0.1), f"{what}: {protocols()}, {instance.show('routes', '--all')}"
        )
        wait_for(["110"], "announced")
        drain()
        wait_for([], "withdrawn")
        hosts.nat.ip("-6", "route", "add", "blackhole", PREFIX, "proto", "static")
        drain("--undo")
        wait_for(["110", "static"], "announced beside it")
        # It is compared with the kernel every 10 s.
        time.sleep(12)
        wait_for(["110", "static"], "after a comparison")
        drain()
        wait_for(["static"], "withdrawn, and the other one stays")
        drain("--undo")
        wait_for(["110", "static"], "announced again")
        hosts.nat.ip("-6", "route", "del", "blackhole", PREFIX, "proto", "static")
        time.sleep(12)
        drain()
        wait_for([], "withdrawn when the other one has gone")
        drain("--undo")
        wait_for(["110"], "announced alone")
        hosts.nat.ip("-6", "route", "replace", "blackhole", PREFIX, "proto", "static")
        wait_for(["110", "static"], "announced beside one that took its place")


@test("routing_own")
def lost_messages_about_ipv6_routes_are_made_good(n):
    prefixes = [f"2001:db8:{256 + number // 250:x}:{number % 250:x}::/64" for number in range(10_000)]
    with running(n, "lost") as (hosts, instance):

        def change(*batches):
            lines = [f"route {verb} {one} via fe80::71 dev nx-inside proto {OWN}\n" for verb, some in batches for one in some]
            hosts.nat.run(["ip", "-6", "-batch", "-"], check=True, stdin="".join(lines))

        def known_to_kernel():
            lines = hosts.nat.run(["ip", "-6", "route", "show", "proto", OWN])[1].splitlines()
            return {str(ipaddress.ip_network(line.split()[0])) for line in lines}

        def known_to_natrix():
            routes = instance.show("routes", "--all", "--source", "kernel")
            return {str(ipaddress.ip_network(route["prefix"])) for route in routes if route["protocol"] == OWN}

        same = [str(ipaddress.ip_network(prefix)) for prefix in prefixes]
        starved(instance, change, known_to_kernel, known_to_natrix, same)


def advertise(host):
    """Router advertisements of RFC 4861 §4.2 with a prefix for addresses, as any station on the link can send."""
    head = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 86_400, 14_400, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8:99::")
    is_ready = lambda: "fe80:" in host.ip("-6", "address", "show", "dev", "eth0", "-tentative")  # noqa: E731
    expect(wait_until(is_ready, 10, 0.1), "a link-local address to send from")
    with host.entered(), socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        for _ in range(3):
            sock.sendto(head + prefix, ("ff02::1", 0, 0, socket.if_nametoindex("eth0")))
            time.sleep(0.2)


@test("routing_own")
def no_neighbour_on_a_link_becomes_the_default_router(n):
    """Also on the device outside, whose interface has no IPv6."""
    with running(n, "advertised") as (hosts, _):
        for host in (hosts.lan, hosts.wan):
            advertise(host)
        time.sleep(1)
        expect_equal(hosts.nat.ip("-6", "route", "show", "proto", "ra").strip(), "", "routes by advertisements")
        expect("2001:db8:99:" not in hosts.nat.ip("-6", "address"), "addresses by advertisements")


@test("routing_own")
def an_address_of_another_station_is_reported_and_tried_again(n):
    """What IPv6 hosts use is withheld while it is so, and the pools of IPv4 are not."""
    with running(n, "twice") as (hosts, instance):
        log = instance.daemon.log
        withheld = lambda: instance.show("status")[0]["announcement"]["withheld"]  # noqa: E731
        reachable = lambda: hosts.lan.run(["ping", "-6", "-n", "-c", "1", "-W", "1", PORT6])[0] == 0  # noqa: E731
        both = {PREFIX, AFTR}

        def announced():
            """What is announced of IPv6, and of IPv4."""
            found = {source: instance.show("routes", "--all", "--source", source) for source in ("nat64", "softwire", "pool")}
            used = {source: {one["prefix"] for one in routes if one["used"]} for source, routes in found.items()}
            return used["nat64"] | used["softwire"], used["pool"]

        def reasons():
            return {one["reason"] for source in ("nat64", "softwire") for one in instance.show("routes", "--all", "--source", source)}

        expect(wait_until(lambda: withheld() is None and reachable(), 15, 0.2), f"before: {withheld()}")
        expect(wait_until(lambda: announced() == (both, {f"{POOL}/32"}), 15, 0.2), f"announced before: {announced()}")
        hosts.lan.ip("-6", "address", "add", f"{PORT6}/64", "dev", "eth0", "nodad")
        hosts.nat.ip("link", "set", "nx-inside", "down")
        time.sleep(0.6)
        hosts.nat.ip("link", "set", "nx-inside", "up")
        line = f"its kernel device cannot use {PORT6}, which another station on the link has"
        expect(wait_until(lambda: line in log(), 20, 0.1), f"a line of the log: {log()[-2000:]}")
        only_ipv4 = (set(), {f"{POOL}/32"})
        expect(wait_until(lambda: announced() == only_ipv4 and withheld() is None, 15, 0.1), f"announced: {announced()}, {withheld()}")
        expect_equal(reasons(), {"not announced: no interface of its VRF can use all its IPv6 addresses"}, "reasons")
        expect_equal(hosts.nat.ip("-6", "route", "show", "proto", "110").strip(), "", "routes of IPv6 in the kernel")
        # One attempt fails, and is not logged again.
        time.sleep(11)
        expect_equal((log().count(line), announced()), (1, only_ipv4), "while the other station has it")
        hosts.lan.ip("-6", "address", "del", f"{PORT6}/64", "dev", "eth0")
        hosts.lan.run(["ip", "-6", "neigh", "flush", "dev", "eth0"])
        expect(wait_until(lambda: announced()[0] == both, 25, 0.2), f"after it is gone: {announced()}; {log()[-2000:]}")
        expect(wait_until(reachable, 10, 0.2), "the address answers again")


def softwire_frame(station, b4, aftr):
    """A UDP datagram of a home in a softwire, in a frame for this station."""
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0x4000, 64, 17, 0, bytes([192, 168, 1, 2]), socket.inet_aton(SERVER))
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    header = header[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + header[12:]
    inner = header + struct.pack("!HHHH", 5000, 53, 8, 0)
    outer = struct.pack("!IHBB", 6 << 28, len(inner), 4, 64) + b"".join(socket.inet_pton(socket.AF_INET6, one) for one in (b4, aftr))
    return bytes.fromhex(station.replace(":", "")) + bytes.fromhex("020000000b40") + b"\x86\xdd" + outer + inner


@test("routing_own")
@shows("4862-5.4")
def softwires_stop_while_the_kernel_finds_their_end_twice(n):
    """It is the address of a device of the kernel, which detects duplicates there."""
    with running(n, "aftr", aftr=PORT6) as (hosts, instance):
        inside = lambda: next(one for one in instance.show("interfaces") if one["name"] == "inside")  # noqa: E731
        usable = lambda: not inside()["duplicate_addresses"] and not inside()["tentative_addresses"]  # noqa: E731

        def outcome():
            """What one softwire packet adds: dropped for its address, or taken."""
            dropped = lambda: next((one["packets"] for one in instance.show("drops") if one["reason"] == "address_not_used"), 0)  # noqa: E731
            before = dropped()
            with hosts.lan.entered():
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
                sock.bind(("eth0", 0))
            with sockets(sock), Sniffer(hosts.wan) as outside:
                sock.send(softwire_frame(inside()["mac"], HOST, PORT6))
                has_left = lambda: outside.packets(0.1, lambda packet: has_ports(packet, 17, destination=53), 1)  # noqa: E731
                came = wait_until(lambda: (dropped() > before and "dropped") or (has_left() and "taken"), 10, 0)
            return came or "lost"

        expect(wait_until(usable, 15, 0.2), f"before: {inside()}")
        expect_equal(outcome(), "taken", "a softwire packet while the address is in use")
        hosts.lan.ip("-6", "address", "add", f"{PORT6}/64", "dev", "eth0", "nodad")
        hosts.nat.ip("link", "set", "nx-inside", "down")
        time.sleep(0.6)
        hosts.nat.ip("link", "set", "nx-inside", "up")
        twice = [f"{PORT6}/64"]
        expect(wait_until(lambda: inside()["duplicate_addresses"] == twice, 20, 0.1), f"marked: {inside()}")
        expect_equal(outcome(), "dropped", "a softwire packet while another station has the address")
        # Also while the kernel tries again.
        time.sleep(10)
        expect_equal((inside()["duplicate_addresses"], outcome()), (twice, "dropped"), "after another attempt")
        hosts.lan.ip("-6", "address", "del", f"{PORT6}/64", "dev", "eth0")
        expect(wait_until(usable, 25, 0.2), f"after it is gone: {inside()}")
        expect_equal(outcome(), "taken", "a softwire packet afterwards")
