"""Recipes of docs/routing.md for one NAT between two routers: both sides by OSPF, a port for management, leaving BGP.

    subscribers ── access ── inside, 10.255.0.0/24 ── nat ── outside, 198.51.100.0/24 ── border ── server
                                                      └── mgmt, 172.16.0.0/24 ── manager, 172.20.0.9
"""

import contextlib
import json
import textwrap
import time
from types import SimpleNamespace

from frr import REPOSITORY
from frr import Router
from frr import recipe
from frr import routers
from kit import *
from netlab.namespace import Namespace
from netlab.namespace import connect
from netlab.natrix import DRIVERS
from netlab.natrix import Natrix
from netlab.process import wait_until
from sharing import FAR
from sharing import MANAGED
from sharing import SERVER
from sharing import Echo
from sharing import Flows

INSIDE, OUTSIDE, MANAGEMENT, MANAGER = "10.255.0.2", "198.51.100.2", "172.16.0.2", "172.20.0.9"
ACCESS, BORDER, MANAGEMENT_ROUTER = "10.255.0.1", "198.51.100.1", "172.16.0.1"
POOL, SHORTER = "203.0.113.16/29", "203.0.113.0/24"
OF_SUBSCRIBERS, OF_SERVER = "100.64.0.0/16", "192.0.2.0/24"
# The kernel's table of the port for management.
TABLE = "100"


class Instance(Natrix):
    """The NAT. Its default route comes from the kernel."""

    def __init__(self, binary, host):
        super().__init__(binary)
        self.network = SimpleNamespace(nat=host)
        folder = host.state.directory
        self.socket, self.configuration = folder / f"{host.name}.sock", folder / f"{host.name}.toml"
        inside, outside = DRIVERS[self.driver]
        self.configuration.write_text(f"""
[[interface]]
name = "inside"
realm = "inside"
driver = "{inside}"
addresses = ["{INSIDE}/24"]
kernel = "nx-inside"

[[interface]]
name = "outside"
realm = "outside"
driver = "{outside}"
addresses = ["{OUTSIDE}/24"]
kernel = "nx-outside"

[[route]]
prefix = "{OF_SUBSCRIBERS}"
via = "{ACCESS}"

[[pool]]
name = "public"
addresses = ["{POOL}"]
subscribers = ["100.64.0.0/10"]

[routing]
kernel = true

[tables]
mappings = 1_000

[dpdk]
hugepages = "off"

[control]
socket = "{self.socket}"
""")

    def restart(self):
        super().restart()
        if self.driver == "tap":
            self.bridge_taps()

    def used(self, prefix):
        """Where the route in use for a prefix leads: interface and router of each next hop."""
        found = [one for one in self.show("routes", "--all") if one["prefix"] == prefix and one["used"]]
        return [(hop["interface"], hop["via"]) for one in found for hop in one["next_hops"]]

    def doctor(self):
        """What `natrix doctor` prints."""
        return self.network.nat.run([self.binary, "doctor", "-c", self.configuration])[1]

    def drain(self, *words):
        status, out, err = self.command("drain", *words, "--json")
        expect(out, f"natrix drain: {err}")
        return status, json.loads(out)


@contextlib.contextmanager
def running(n, mark):
    """The network of a test. It stays until the end of the setup, so `mark` keeps it apart from those of other tests."""
    names = ("subs", "access", "nat", "border", "server", "manager")
    hosts = SimpleNamespace(**{name: Namespace(n.state, f"{mark}-{name}") for name in names})
    n.hosts.update({host.name: host for host in vars(hosts).values()})
    links = (
        (hosts.subs, "eth0", "10.254.0.2", hosts.access, "subs", "10.254.0.1"),
        (hosts.access, "eth0", ACCESS, hosts.nat, "inside", None),
        (hosts.border, "eth0", BORDER, hosts.nat, "outside", None),
        (hosts.server, "eth0", SERVER, hosts.border, "server", "192.0.2.1"),
        (hosts.manager, "eth0", MANAGEMENT_ROUTER, hosts.nat, "mgmt", MANAGEMENT),
    )
    for one, device, address, other, other_device, other_address in links:
        connect(one, device, other, other_device)
        one.ip("address", "add", f"{address}/24", "dev", device)
        if other_address:
            other.ip("address", "add", f"{other_address}/24", "dev", other_device)
        else:
            one.run(["ethtool", "-K", device, "tx", "off"], check=True)
            hosts.nat.run(["ethtool", "-K", other_device, "gro", "off"], check=True)
    for host in (hosts.access, hosts.border):
        host.sysctl("net.ipv4.ip_forward", 1)
    # All subscribers are one host.
    hosts.subs.ip("route", "add", "local", OF_SUBSCRIBERS, "dev", "lo")
    hosts.subs.ip("route", "add", "default", "via", "10.254.0.1")
    hosts.access.ip("route", "add", OF_SUBSCRIBERS, "via", "10.254.0.2")
    hosts.server.ip("address", "add", f"{FAR}/32", "dev", "lo")
    hosts.server.ip("route", "add", "default", "via", "192.0.2.1")
    hosts.border.ip("route", "add", f"{FAR}/32", "via", SERVER)
    hosts.manager.ip("address", "add", f"{MANAGER}/32", "dev", "lo")
    hosts.nat.ip("route", "add", MANAGED, "via", MANAGEMENT_ROUTER)
    instance = Instance(n.dut.binary, hosts.nat)
    instance.restart()
    try:
        yield hosts, instance
    finally:
        expect_equal(instance.stop(), None, "end of the instance")


def ospf(device, address, *more):
    """Of the routers on both sides."""
    more = "".join(f" {line}\n" for line in more)
    return (
        f"interface {device}\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf hello-interval 1\n"
        f" ip ospf dead-interval {DEAD}\nrouter ospf\n ospf router-id {address}\n{more}"
        " timers throttle spf 10 50 100\n timers throttle lsa all 0\n timers lsa min-arrival 0\n"
    )


# Seconds without a hello: programs on a busy machine miss more of them than in the recipe.
DEAD = 20


@contextlib.contextmanager
def by_ospf(hosts, inside="redistribute kernel", outside="default-information originate always"):
    """The routing daemons of the recipe, all blocks in one file as in /etc/frr/frr.conf, and of the routers."""
    found = recipe("ospf")
    text = "".join(found.values()).replace("dead-interval 4\n", f"dead-interval {DEAD}\n")
    near = Router(hosts.nat, OUTSIDE, dict.fromkeys(found, ""))
    near.load(text)
    of_border = "interface server\n ip ospf area 0\n" + ospf("eth0", BORDER, outside)
    access = Router(hosts.access, ACCESS, {"ospfd": ospf("eth0", ACCESS, inside)})
    border = Router(hosts.border, BORDER, {"ospfd": of_border})
    with routers(near, access, border):
        yield border


def learned(host):
    """What a router has by a routing protocol."""
    routes = json.loads(host.ip("-j", "route", "show") or "[]")
    return {route["dst"] for route in routes if route.get("protocol") in ("ospf", "bgp")}


def wait_for(host, wanted, what):
    expect(wait_until(lambda: learned(host) == wanted, 60, 0.1), f"{what}: {host.name} has {learned(host)}, not {wanted}")


@contextlib.contextmanager
def traffic(hosts, *servers):
    """Subscribers that talk to these servers; at the end, no datagram may be lost."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(Echo(hosts.server, server))
        flows = [stack.enter_context(Flows(hosts.subs, range(10), 0.1, server)) for server in servers]
        answered = lambda: all(all(one.seen.values()) for one in flows)  # noqa: E731
        expect(wait_until(answered, 30, 0.1), f"all are answered by {servers}")
        yield flows
        for one in flows:
            one.end()
        lost, sent = (sum(numbers) for numbers in zip(*((one.lost(), sum(one.sent.values())) for one in flows)))
        print(f"# {lost} of {sent} datagrams lost", flush=True)
        expect_equal(lost, 0, "datagrams lost")
        several = {number: one.external(number) for one in flows for number in one.flows if len(one.seen[number]) != 1}
        expect_equal(several, {}, "subscribers with several external endpoints")


@test("routing_own")
def ospf_announces_to_each_side_only_what_it_needs(n):
    with running(n, "ospf") as (hosts, instance), by_ospf(hosts):
        wait_for(hosts.border, {POOL}, "only the pool")
        wait_for(hosts.access, {"default"}, "only the default route")
        for prefix, hop in (("0.0.0.0/0", BORDER), (OF_SERVER, BORDER)):
            expect(wait_until(lambda: instance.used(prefix) == [("outside", hop)], 15, 0.1), f"{prefix}: {instance.used(prefix)}")  # noqa: B023
        expect(OF_SUBSCRIBERS in learned(hosts.nat), f"the way to the subscribers: {learned(hosts.nat)}")
        with traffic(hosts, SERVER, FAR):
            time.sleep(2)
        instance.drain()
        try:
            wait_for(hosts.border, set(), "drained")
        finally:
            instance.drain("--undo")
        wait_for(hosts.border, {POOL}, "undone")


@test("routing_own")
def packets_to_unknown_subscribers_never_leave_outside(n):
    """RFC 6598, section 4: also while no route of the kernel leads to them."""
    with running(n, "unknown") as (hosts, instance):
        hosts.access.ip("route", "add", "default", "via", INSIDE)
        hosts.nat.ip("route", "add", "default", "via", BORDER, "dev", "nx-outside")
        expect(wait_until(lambda: instance.used("0.0.0.0/0"), 15, 0.1), "the default route")
        unknown = "100.99.0.1"
        found = [(route["source"], route["prefix"]) for route in instance.show("routes", "--address", unknown) if route["used"]]
        expect(("excluded", "100.64.0.0/10") in found, f"routes of {unknown}: {found}")
        why = instance.command("why", "udp", "100.64.0.10:5000", f"{unknown}:53")[1]
        expect("no_route" in why and "leads inside: never sent outside" in why, f"why: {why}")
        counted = lambda: {one["name"]: one["value"] for one in instance.show("counters", "--all")}.get("no_route", 0)  # noqa: E731
        before = counted()
        with sockets(udp(hosts.subs, address="100.64.0.10")) as sock:
            sock.sendto(b"x", (unknown, 53))
            expect(wait_until(lambda: counted() == before + 1, 10, 0.1), f"no_route: {counted() - before} more")


@test("routing_own")
def a_default_route_heard_inside_stays_behind_the_one_outside(n):
    """Also with the better metric, and when the one outside was gone for a while."""
    inside, outside = "default-information originate always metric 1", "default-information originate always metric 20"
    with running(n, "heard") as (hosts, instance), by_ospf(hosts, inside, outside) as border:
        frr_knows = lambda text: text in hosts.nat.ip("route", "show", "default")  # noqa: E731
        by = lambda device: wait_until(lambda: frr_knows(f"dev {device}"), 60, 0.1)  # noqa: E731
        expect(by("nx-outside"), f"the route outside: {hosts.nat.ip('route')}")
        time.sleep(2)
        border.configure("interface eth0", "ip ospf dead-interval 5")
        expect(by("nx-inside"), f"the route heard inside takes its place: {hosts.nat.ip('route')}")
        withheld = lambda: instance.show("status")[0]["announcement"]["withheld"]  # noqa: E731
        expect(wait_until(withheld, 10, 0.1), "it leads to no router outside")
        border.configure("interface eth0", f"ip ospf dead-interval {DEAD}")
        expect(by("nx-outside"), f"the route outside is back: {hosts.nat.ip('route')}")
        expect(wait_until(lambda: withheld() is None, 10, 0.1), f"announced again: {withheld()}")


# Seconds for which zebra keeps old routes; the recipe has more.
KEPT_SECONDS = 15


@test("routing_own")
def a_restart_of_frr_with_ospf_inside_keeps_all_routes(n):
    """Also when the time is over after which zebra removes the routes of the FRR before it.

    OSPF may take the default route away inside meanwhile, and the static one takes its place.
    """
    found = recipe("graceful")
    daemons = {"bgpd": found["bgpd"], "ospfd": found["ospfd"].replace("dead-interval 4\n", f"dead-interval {DEAD}\n")}
    with running(n, "kept") as (hosts, instance):
        # The way to the subscribers comes by OSPF alone.
        instance.configuration.write_text(instance.configuration.read_text().replace(f'prefix = "{OF_SUBSCRIBERS}"', 'prefix = "100.127.0.0/16"'))
        expect_equal(instance.stop(), None, "end of the instance")
        instance.restart()
        near = Router(hosts.nat, OUTSIDE, daemons, ["-K", KEPT_SECONDS], in_one_file=True)
        of_access = {"staticd": found["inside"], "ospfd": ospf("eth0", ACCESS, "redistribute kernel")}
        access = Router(hosts.access, ACCESS, of_access, in_one_file=True)
        border = Router(hosts.border, BORDER, {"bgpd": bgp_of_border()})
        with routers(near, access, border):
            wait_for(hosts.border, {POOL}, "only the pool")
            wait_for(hosts.access, {"default"}, "only the default route")
            # While OSPF has the better one, zebra does not put the static one into the kernel.
            default = lambda: hosts.access.ip("route", "show", "default")  # noqa: E731
            expect("proto ospf" in default(), f"the default route inside: {default()}")
            both = {"0.0.0.0/0": [("outside", BORDER)], OF_SUBSCRIBERS: [("inside", ACCESS)]}
            used = lambda: {prefix: instance.used(prefix) for prefix in both}  # noqa: E731
            expect(wait_until(lambda: used() == both, 60, 0.1), f"learned: {used()}")
            with traffic(hosts, SERVER, FAR):
                time.sleep(1)
            with Echo(hosts.server), Flows(hosts.subs, range(10), 0.1) as flows:
                expect(wait_until(lambda: all(flows.seen.values()), 30, 0.1), "all are answered")
                began = time.monotonic()
                near.kill()
                expect_equal(used(), both, "without FRR")
                near.start()
                while time.monotonic() < began + 2 * KEPT_SECONDS:
                    expect_equal(used(), both, f"{time.monotonic() - began:.1f} s after the restart")
                    time.sleep(0.1)
                flows.end()
                silence = max(map(flows.silence, flows.flows))
                print(f"# {flows.lost()} of {sum(flows.sent.values())} datagrams lost, {silence:.2f} s without an answer at most", flush=True)
                expect_equal(flows.lost(), 0, "datagrams lost")
            wait_for(hosts.border, {POOL}, "the pool after the restart")
            wait_for(hosts.access, {"default"}, "the default route after the restart")
            with traffic(hosts, SERVER, FAR):
                time.sleep(1)


def reached(server, client, address):
    """True if a host opens a connection to this address of another."""
    port = fresh_port()
    listening, sock = listener(server, port, address), tcp(client)
    with sockets(listening, sock), contextlib.suppress(OSError):
        sock.connect((address, port))
        return True
    return False


@test("routing_own")
def a_table_for_the_management_port_keeps_the_default_route(n):
    with running(n, "management") as (hosts, instance), by_ospf(hosts):
        doctor = instance.doctor
        by_border = lambda: instance.used("0.0.0.0/0") == [("outside", BORDER)]  # noqa: E731
        expect(wait_until(by_border, 60, 0.1), f"the learned default route: {instance.used('0.0.0.0/0')}")
        warning = "a default route uses mgmt"
        expect(warning not in doctor(), f"doctor before: {doctor()}")
        # As DHCP or an installer does it: FRR takes its own default route away.
        hosts.nat.ip("route", "add", "default", "via", MANAGEMENT_ROUTER, "dev", "mgmt")
        gone = lambda: not instance.used("0.0.0.0/0")  # noqa: E731
        expect(wait_until(gone, 15, 0.1), f"the learned default route is gone: {hosts.nat.ip('route')}")
        logged = lambda: "pools: the default route outside is gone" in instance.daemon.log()  # noqa: E731
        expect(wait_until(logged, 10, 0.1), f"the log: {instance.daemon.log()[-1000:]}")
        expect(warning in doctor(), f"doctor: {doctor()}")
        for line in recipe("management")["ip"].splitlines():
            hosts.nat.run(line.replace("eth0", "mgmt").split(), check=True)
        expect(wait_until(by_border, 15, 0.1), f"the learned default route is back: {hosts.nat.ip('route')}")
        back = lambda: "the default route outside is back" in instance.daemon.log()  # noqa: E731
        expect(wait_until(back, 10, 0.1), f"the log: {instance.daemon.log()[-1000:]}")
        expect(warning not in doctor(), f"doctor: {doctor()}")
        with traffic(hosts, SERVER, FAR):
            hosts.nat.ip("route", "del", MANAGED)
            expect(reached(hosts.nat, hosts.manager, MANAGEMENT), "the manager reaches the machine")
            expect("172" not in " ".join(learned(hosts.border) | learned(hosts.access)), "nobody learns of the management network")


@test("routing_own")
def open_ports_of_the_machine_can_be_closed_by_device(n):
    with running(n, "ports") as (hosts, instance):
        hosts.access.ip("route", "add", "default", "via", INSIDE)
        hosts.border.ip("route", "add", OUTSIDE, "dev", "eth0")
        with sockets(listener(hosts.nat, 22)):

            def open_by():
                """From where a connection to SSH opens."""
                found = set()
                for host, address in ((hosts.access, INSIDE), (hosts.border, OUTSIDE)):
                    with sockets(tcp(host, timeout=5.0)) as sock, contextlib.suppress(OSError):
                        sock.connect((address, 22))
                        found.add(address)
                return found

            expect_equal(open_by(), {INSIDE, OUTSIDE}, "before")
            hosts.nat.run(["sh", "-e", "-c", recipe("open-ports")["nft"]], check=True)
            expect_equal(open_by(), {OUTSIDE}, "after")


@test("routing_own")
def a_restart_waits_until_the_traffic_has_left(n):
    """The commands of docs/operations.md, with a shorter wait and a systemctl that only says what it would do."""
    page = (REPOSITORY / "docs/operations.md").read_text()
    script = textwrap.dedent(page[page.index("  # restart sh\n") :].partition("  ```")[0])
    expect(script.count("--wait 300") == 1, f"the recipe: {script}")
    with running(n, "restart") as (hosts, instance):
        hosts.access.ip("route", "add", "default", "via", INSIDE)
        hosts.border.ip("route", "add", SHORTER, "via", OUTSIDE)
        hosts.nat.ip("route", "add", "default", "via", BORDER, "dev", "nx-outside")
        announcement = lambda: instance.show("status")[0]["announcement"]["withheld"]  # noqa: E731
        expect(wait_until(lambda: announcement() is None, 15, 0.1), f"announced: {announcement()}")
        functions = f'natrix() {{ {instance.binary} "$@" --socket {instance.socket}; }}\nsystemctl() {{ echo "$@"; }}\n'

        def restart():
            return hosts.nat.run(["sh", "-c", functions + script.replace("--wait 300", "--wait 5")], timeout=60)

        with traffic(hosts, SERVER):
            _, out, err = restart()
            expect("restart natrix" not in out and "traffic has not left" in err, f"while packets come: {out} {err}")
            expect(wait_until(lambda: announcement() is None, 5, 0.1), f"announced again: {announcement()}")
        expect(instance.show("status")[0]["sessions"] > 0, "sessions are left")
        status, out, err = restart()
        expect(status == 0 and "restart natrix" in out, f"no packet comes: {status} {out} {err}")


def bgp_of_border(more=""):
    return (
        f"router bgp 64501\n bgp router-id {BORDER}\n no bgp ebgp-requires-policy\n no bgp network import-check\n"
        f" neighbor {OUTSIDE} remote-as 64500\n neighbor {OUTSIDE} timers 1 9\n neighbor {OUTSIDE} timers connect 1\n"
        f" address-family ipv4 unicast\n  network {OF_SERVER}\n  neighbor {OUTSIDE} default-originate\n{more} exit-address-family\n"
    )


def path_of_pool(border):
    """What the border knows of the pool by BGP."""
    paths = border.ask(f"bgp ipv4 unicast {POOL}").get("paths", [])
    return [(path.get("locPrf"), path.get("community", {}).get("string", "")) for path in paths]


@test("routing_own")
def leaving_bgp_loses_no_packet(n):
    """By a shorter prefix under a drain, and by the community of a graceful shutdown without one."""
    edge, more = recipe("bgp-edge")["bgpd"], recipe("bgp-leave")
    edge = "".join(line for line in edge.splitlines(keepends=True) if not line.endswith(" bfd\n"))
    with running(n, "leave") as (hosts, instance):
        hosts.access.ip("route", "add", "default", "via", INSIDE)
        near = Router(hosts.nat, OUTSIDE, {"staticd": more["staticd"], "bgpd": edge})
        border = Router(hosts.border, BORDER, {"bgpd": bgp_of_border()})
        with routers(near, border):
            wait_for(hosts.border, {POOL}, "the recipe before")
            near.load(more["bgpd"])
            wait_for(hosts.border, {POOL, SHORTER}, "with the shorter prefix")
            expect(wait_until(lambda: instance.used("0.0.0.0/0"), 15, 0.1), f"learned: {hosts.nat.ip('route')}")
            with traffic(hosts, SERVER, FAR):
                instance.drain()
                wait_for(hosts.border, {SHORTER}, "drained")
                time.sleep(2)
                instance.drain("--undo")
                wait_for(hosts.border, {POOL, SHORTER}, "undone")
                near.load(more["shutdown"])
                announced = [(0, "graceful-shutdown")]
                expect(wait_until(lambda: path_of_pool(border) == announced, 15, 0.1), f"the border prefers any other: {path_of_pool(border)}")
                time.sleep(2)
                near.load(more["shutdown"].replace(" bgp graceful", " no bgp graceful"))
                expect(wait_until(lambda: path_of_pool(border) == [(None, "")], 15, 0.1), f"as before: {path_of_pool(border)}")
