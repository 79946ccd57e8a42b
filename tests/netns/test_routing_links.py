"""Routes over ports that lose their link."""

import contextlib
from types import SimpleNamespace

from kit import *
from netlab.namespace import connect
from netlab.process import wait_until
from netlab.topology import NAT_OUTSIDE
from netlab.topology import SRV1
from test_routing import CORE
from test_routing import explained
from test_routing import used_route
from test_routing_recipes import BORDER
from test_routing_recipes import INSIDE
from test_routing_recipes import OUTSIDE
from test_routing_recipes import POOL
from test_routing_recipes import SERVER
from test_routing_recipes import Echo
from test_routing_recipes import Flows
from test_routing_recipes import running

# The second link to the core router.
SECOND, SECOND_CORE = "198.51.105.2", "198.51.105.1"
DEFAULT = "0.0.0.0/0"
# A route with both next hops.
SEVERAL = "198.18.0.0/15"


def second_port():
    return f"""
[[interface]]
name = "outside2"
realm = "outside"
driver = "net_af_xdp2,iface=outside2"
addresses = ["{SECOND}/24"]
kernel = "nx-outside2"
"""


def answered(n):
    """Of forty subscribers: how many get an answer of srv1."""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(udp(n.srv1, address=SRV1, timeout=0.1))
        waiting = {opened.enter_context(udp(n.sub2, address=f"100.64.0.{last}", timeout=0)) for last in range(20, 60)}
        for subscriber in waiting:
            with contextlib.suppress(OSError):
                subscriber.sendto(b"anybody?", server.getsockname())

        def has_answer(subscriber):
            with contextlib.suppress(OSError):
                return subscriber.recv(100) == b"anybody?"
            return False

        def all_answered():
            with contextlib.suppress(OSError):
                while True:
                    data, external = server.recvfrom(100)
                    server.sendto(data, external)
            waiting.difference_update([subscriber for subscriber in waiting if has_answer(subscriber)])
            return not waiting

        wait_until(all_answered, 2, 0)
        return 40 - len(waiting)


@test("routing_links")
def routes_leave_a_port_that_has_lost_its_link(n):
    connect(n.core, "nat2", n.nat, "outside2")
    n.core.run(["ethtool", "-K", "nat2", "tx", "off"], check=True)
    n.core.ip("addr", "add", f"{SECOND_CORE}/24", "dev", "nat2")
    n.core.ip("link", "set", "nat2", "up")
    # Answers of one subscriber may come by either link.
    for device in ("all", "nat2"):
        n.core.sysctl(f"net.ipv4.conf.{device}.rp_filter", 0)
    expect_equal(n.dut.stop(), None, "end of the instance before")
    n.dut.configuration.write_text(n.dut.configuration.read_text() + second_port())
    n.dut.restart()

    def default(*hops):
        words = [word for via, device in hops for word in ("nexthop", "via", via, "dev", device)]
        n.nat.ip("route", "replace", "default", "metric", "20", *words)

    def pools_by(address):
        n.core.ip("route", "replace", "203.0.113.0/24", "via", address)

    def links():
        return {port["name"]: port["link_up"] for port in n.dut.show("interfaces")}

    def wait_for_link(name, is_up):
        """Waits until the interface is said to have a link or not, and the log says so of its port."""
        expect(wait_until(lambda: links()[name] == is_up, 10, 0.1), f"{name}: {links()}")
        line = f"port {name}: the link is {'up' if is_up else 'down'}"
        expect(wait_until(lambda: line in n.dut.daemon.log(), 10, 0.1), f"{line}: {n.dut.daemon.log()[-2000:]}")

    def used():
        """Where the default route is from, and the interfaces that it leads over."""
        route = used_route(n, DEFAULT)
        return route and (route["source"], [hop["interface"] for hop in route["next_hops"]])

    def wait_for(wanted, what):
        expect(wait_until(lambda: used() == wanted, 10, 0.1), f"{what}: {n.dut.show('routes', '--all')}")

    def wait_for_answers(what):
        expect(wait_until(lambda: answered(n) == 40, 10, 0.1), f"answers {what}: {answered(n)} of 40; {links()}")

    wait_for(("static", ["outside"]), "the default route of the configuration")
    default((SECOND_CORE, "nx-outside2"))
    wait_for_answers("with both links")
    both = ["nexthop", "via", CORE, "dev", "nx-outside", "nexthop", "via", SECOND_CORE, "dev", "nx-outside2"]
    n.nat.ip("route", "add", SEVERAL, *both)
    n.core.ip("link", "set", "nat", "down")
    wait_for_link("outside", False)
    with_link = lambda: {hop["interface"]: hop["link_up"] for hop in used_route(n, SEVERAL)["next_hops"]}  # noqa: E731
    expect(wait_until(lambda: with_link() == {"outside": False, "outside2": True}, 10, 0.1), f"next hops: {with_link()}")
    expect("(1, no link)" in n.dut.command("show", "routes", "--address", "198.18.0.1")[1], "the table says so")
    n.nat.ip("route", "del", SEVERAL)
    pools_by(SECOND)
    # One of the pool is in the network of the first link.
    n.core.ip("route", "add", "198.51.100.77/32", "via", SECOND)
    # A static route is preferred to one of the kernel, but not where it leads nowhere.
    wait_for(("kernel", ["outside2"]), "the route of the kernel in place of the static one")
    wait_for_answers("by the second link")
    found = {route["source"]: route["reason"] for route in n.dut.show("routes", "--all") if route["prefix"] == DEFAULT}
    expect_equal(found.get("static"), "its interface has no link", "reason")
    n.core.ip("link", "set", "nat", "up")
    wait_for_link("outside", True)
    n.core.ip("route", "del", "198.51.100.77/32")
    pools_by(NAT_OUTSIDE)
    wait_for(("static", ["outside"]), "the static route again")
    wait_for_answers("with both links again")
    n.core.ip("link", "set", "nat", "down")
    n.core.ip("link", "set", "nat2", "down")
    withheld = lambda: n.dut.show("status")[0]["announcement"]["withheld"]  # noqa: E731
    expect(wait_until(lambda: withheld() is not None, 10, 0.1), f"no link at all: {withheld()}")
    # What `why` foresees of a packet for which there is no other way.
    counted = lambda: {one["name"]: one["value"] for one in n.dut.show("counters", "--all")}  # noqa: E731
    for _ in range(5):
        verdict, steps = explained(n, "udp", "100.64.0.20:5000", f"{SRV1}:53")
        expect("has no link" in steps.get("link", ("no step", ""))[0], f"link: {verdict}, {steps}")
        expect((verdict == "neighbour_unresolved") == ("neighbour" in steps), f"neighbour: {verdict}, {steps}")
        before = counted().get(verdict, 0)
        with sockets(udp(n.sub2, address="100.64.0.20")) as sock:
            sock.sendto(b"x", (SRV1, 53))
            grown = lambda: counted().get(verdict, 0) - before  # noqa: B023, E731
            if wait_until(lambda: grown() == 1, 10, 0.1):  # noqa: B023
                return
        # Before the packet came, Natrix may have lost the neighbour, which is then foreseen.
        expect(explained(n, "udp", "100.64.0.20:5000", f"{SRV1}:53")[0] != verdict, f"{verdict}: {grown()} more, {steps}")
    raise Failure(f"{verdict}: {grown()} more, {steps}")


@test("links")
def a_link_that_the_driver_does_not_see_is_down(n):
    """Without devices of Natrix in the kernel. AF_XDP itself says that every link is up."""
    link = lambda: {port["name"]: port["link_up"] for port in n.dut.show("interfaces")}.get("outside")  # noqa: E731
    said = lambda: n.dut.daemon.log().count("port outside: the link is")  # noqa: E731
    expect_equal(link(), True, "at first")
    n.core.ip("link", "set", "nat", "down")
    try:
        expect(wait_until(lambda: link() is False, 10, 0.1), f"the other end is down: {link()}")
        expect(wait_until(lambda: said() == 1, 10, 0.1), f"the log: {n.dut.daemon.log()[-2000:]}")
        rows = [line.split() for line in n.dut.command("show", "interfaces")[1].splitlines()]
        expect_equal([row[2] for row in rows if row[0] == "outside"], ["down"], "the table")
    finally:
        n.core.ip("link", "set", "nat", "up")
    expect(wait_until(lambda: link() is True, 10, 0.1), f"the other end is up: {link()}")
    expect(wait_until(lambda: said() == 2, 10, 0.1), f"the log: {n.dut.daemon.log()[-2000:]}")


@test("links")
def a_port_whose_device_was_away_for_a_moment_is_down(n):
    """Without devices of Natrix in the kernel. It comes back with its old number, but not to its socket."""
    with running(n, "moment") as (hosts, instance), Echo(hosts.server):
        expect_equal(instance.stop(), None, "end of the instance before")
        lines = instance.configuration.read_text().replace("[routing]\nkernel = true\n", "").splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith(("kernel", "driver")))
        for number, side in enumerate(("inside", "outside")):
            text = text.replace(f'name = "{side}"\n', f'name = "{side}"\ndriver = "net_af_packet{number},iface={side}"\n')
        instance.configuration.write_text(text + f'\n[[route]]\nprefix = "{DEFAULT}"\nvia = "{BORDER}"\n')
        hosts.access.ip("route", "add", "default", "via", INSIDE)
        hosts.border.ip("route", "add", POOL, "via", OUTSIDE)
        instance.restart()
        link = lambda: {port["name"]: port["link_up"] for port in instance.show("interfaces")}["outside"]  # noqa: E731
        with Flows(hosts.subs, range(5), 0.1, SERVER) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 20, 0.1), "at first")
        hosts.nat.ip("link", "set", "outside", "netns", hosts.manager.full_name)
        hosts.manager.ip("link", "set", "outside", "netns", hosts.nat.full_name)
        hosts.nat.ip("link", "set", "outside", "up")
        expect(wait_until(lambda: not link(), 10, 0.1), f"moved away and back: link {link()}")
        line = "another outside is there now: restart Natrix to use it"
        expect(wait_until(lambda: line in instance.daemon.log(), 10, 0.1), f"the log: {instance.daemon.log()[-2000:]}")


@contextlib.contextmanager
def with_driver(n, mark, driver):
    """A NAT between two routers, with routes of the kernel only."""
    with running(n, mark) as (hosts, instance):
        expect_equal(instance.stop(), None, "end of the instance before")
        text = instance.configuration.read_text()
        for number, side in enumerate(("inside", "outside")):
            line = next(line for line in text.splitlines() if line.startswith("driver") and f"iface={side}" in line)
            text = text.replace(line, f'driver = "{driver}{number},iface={side}"')
        instance.configuration.write_text(text)
        hosts.access.ip("route", "add", "default", "via", INSIDE)
        hosts.border.ip("route", "add", POOL, "via", OUTSIDE)
        begin_again(hosts, instance)
        yield hosts, instance


def begin_again(hosts, instance):
    """Starts the instance, and waits until it announces the pools."""
    instance.restart()
    hosts.nat.ip("route", "replace", "default", "via", BORDER, "dev", "nx-outside")
    expect(wait_until(lambda: withheld(instance) is None, 15, 0.1), f"announced: {withheld(instance)}")


def withheld(instance):
    return instance.show("status")[0]["announcement"]["withheld"]


def a_port_without_its_device_is_down_for_good(n, driver):
    with with_driver(n, f"gone-{driver.rpartition('_')[2]}", driver) as (hosts, instance), Echo(hosts.server):
        link = lambda: {port["name"]: port["link_up"] for port in instance.show("interfaces")}["outside"]  # noqa: E731

        def wait_for(is_up, line, what):
            expect(wait_until(lambda: link() == is_up, 10, 0.1), f"{what}: link {link()}")
            expect(wait_until(lambda: (withheld(instance) is None) == is_up, 10, 0.1), f"{what}: {withheld(instance)}")
            expect(wait_until(lambda: line in instance.daemon.log(), 10, 0.1), f"{what}: {instance.daemon.log()[-2000:]}")

        def expect_answers(what):
            with Flows(hosts.subs, range(5), 0.1, SERVER) as flows:
                expect(wait_until(lambda: all(flows.seen.values()), 10, 0.1), what)

        expect_answers("at first")
        hosts.nat.ip("link", "set", "outside", "name", "uplink0")
        expect_answers("renamed")
        hosts.border.ip("link", "set", "eth0", "down")
        wait_for(False, "port outside: the link is down", "renamed, the other end is down")
        hosts.border.ip("link", "set", "eth0", "up")
        wait_for(True, "port outside: the link is up", "the other end is up")
        hosts.border.ip("link", "del", "eth0")
        wait_for(False, "port outside: its device outside is gone", "gone")
        connect(hosts.border, "eth0", hosts.nat, "outside")
        hosts.border.ip("address", "add", f"{BORDER}/24", "dev", "eth0")
        hosts.border.ip("route", "add", POOL, "via", OUTSIDE)
        hosts.border.run(["ethtool", "-K", "eth0", "tx", "off"], check=True)
        hosts.nat.run(["ethtool", "-K", "outside", "gro", "off"], check=True)
        wait_for(False, "another outside is there now: restart Natrix to use it", "there again")
        expect_equal(instance.stop(), None, "end of the instance")
        begin_again(hosts, instance)
        expect_answers("after the restart")


@test("routing_links")
def a_port_of_af_xdp_without_its_device_stays_down(n):
    a_port_without_its_device_is_down_for_good(n, "net_af_xdp")


@test("routing_links")
def a_port_of_packet_sockets_without_its_device_is_down(n):
    a_port_without_its_device_is_down_for_good(n, "net_af_packet")


@test("routing_links")
def a_port_of_packet_sockets_that_others_use_is_left_alone(n):
    with with_driver(n, "used", "net_af_packet") as (hosts, instance):
        # A namespace begins with what the machine has; with forwarding, doctor says more.
        hosts.nat.sysctl("net.ipv4.ip_forward", 0)
        for host, device in ((hosts.border, "eth0"), (hosts.nat, "outside")):
            host.sysctl(f"net.ipv6.conf.{device}.disable_ipv6", 0)
        hosts.border.ip("address", "add", "2001:db8:9::1/64", "dev", "eth0", "nodad")
        reaches = lambda address: hosts.border.run(["ping", "-c", 1, "-W", 1, address])[0] == 0  # noqa: E731
        doctor = lambda: next(line for line in instance.doctor().splitlines() if "port outside: kernel" in line)  # noqa: E731

        def wait_for(is_closed, line):
            chain = lambda: "-outside" in hosts.nat.run(["nft", "list", "tables"])[1]  # noqa: E731
            expect(wait_until(lambda: chain() == is_closed, 10, 0.1), f"closed, {is_closed}: {instance.daemon.log()[-2000:]}")
            expect(wait_until(lambda: line in instance.daemon.log(), 10, 0.1), f"{line}: {instance.daemon.log()[-2000:]}")
            says = "the kernel does not receive by outside now" if is_closed else "the kernel answers what Natrix answers, too"
            expect(wait_until(lambda: says in doctor(), 10, 0.1), f"closed, {is_closed}: {doctor()}")

        closed = "port outside: the kernel itself receives nothing by outside while Natrix runs"
        wait_for(True, closed)
        macvlan = ["link", "add", "mv0", "link", "outside", "type", "macvlan", "mode", "bridge"]
        uses = [
            ("198.51.100.60", [["address", "add", "198.51.100.60/24", "dev", "outside"]], ["address", "del", "198.51.100.60/24", "dev", "outside"], "has the address 198.51.100.60"),
            ("2001:db8:9::2", [["address", "add", "2001:db8:9::2/64", "dev", "outside", "nodad"]], ["address", "del", "2001:db8:9::2/64", "dev", "outside"], "has the address 2001:db8:9::2"),
            ("198.51.100.50", [macvlan, ["address", "add", "198.51.100.50/24", "dev", "mv0"], ["link", "set", "mv0", "up"]], ["link", "del", "mv0"], "is below mv0"),
        ]
        for address, add, remove, words in uses:
            expect(not reaches(address), f"{address} is not there yet")
            for line in add:
                hosts.nat.ip(*line)
            wait_for(False, f"port outside: outside {words}, so the kernel again also receives")
            expect(wait_until(lambda: reaches(address), 10, 0.1), f"{address} answers")  # noqa: B023
            # The order does not count.
            expect_equal(instance.stop(), None, "end of the instance")
            begin_again(hosts, instance)
            wait_for(False, f"port outside: outside {words}, so the kernel also receives")
            expect(wait_until(lambda: reaches(address), 10, 0.1), f"{address} answers after a restart")  # noqa: B023
            count = instance.daemon.log().count(closed)
            hosts.nat.ip(*remove)
            wait_for(True, closed)
            expect_equal(instance.daemon.log().count(closed), count + 1, "lines of the log")
        hosts.nat.ip("link", "set", "outside", "name", "uplink0")
        hosts.nat.ip("address", "add", "198.51.100.61/24", "dev", "uplink0")
        expect(wait_until(lambda: reaches("198.51.100.61"), 10, 0.1), f"renamed: {instance.daemon.log()[-2000:]}")
        hosts.nat.ip("address", "del", "198.51.100.61/24", "dev", "uplink0")
        expect(wait_until(lambda: closed.replace("by outside", "by uplink0") in instance.daemon.log(), 10, 0.1), instance.daemon.log()[-2000:])


@test("routing_links")
def a_port_of_pcap_is_closed_to_the_kernel_and_loses_its_link(n):
    """With a word for each direction, as its driver has them."""
    with with_driver(n, "pcap", "net_af_packet") as (hosts, instance):
        expect_equal(instance.stop(), None, "end of the instance before")
        text = instance.configuration.read_text()
        instance.configuration.write_text(text.replace("net_af_packet1,iface=outside", "net_pcap1,rx_iface=outside,tx_iface=outside"))
        begin_again(hosts, instance)
        tables = hosts.nat.run(["nft", "list", "tables"])[1]
        expect("-outside" in tables and "-inside" in tables, f"tables: {tables}")
        expect("port outside: kernel" in instance.doctor(), f"doctor: {instance.doctor()}")
        hosts.border.ip("link", "set", "eth0", "down")
        expect(wait_until(lambda: withheld(instance) is not None, 10, 0.1), "the other end is down")
        expect(wait_until(lambda: "port outside: the link is down" in instance.daemon.log(), 10, 0.1), instance.daemon.log()[-2000:])


@test("routing_links")
def a_fault_of_a_kernel_device_is_not_called_a_lost_link(n):
    with with_driver(n, "fault", "net_af_xdp") as (hosts, instance), Echo(hosts.server):
        with Flows(hosts.subs, range(5), 0.1, SERVER) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 10, 0.1), "at first")
        hosts.nat.ip("address", "del", f"{OUTSIDE}/24", "dev", "nx-outside")
        hosts.nat.ip("route", "replace", "default", "via", BORDER, "dev", "nx-outside", "onlink")
        table = lambda: instance.command("show", "routes", "--address", "192.0.2.10")[1]  # noqa: E731
        expect(wait_until(lambda: f"outside via {BORDER} (kernel device)" in table(), 30, 0.1), f"routes: {table()}")
        expect("the kernel device of its interface" in table() and "no link" not in table(), f"reason: {table()}")
        verdict, steps = explained(SimpleNamespace(dut=instance), "udp", "100.64.0.10:5000", "192.0.2.10:53")
        decision, detail = steps["link"]
        expect(verdict == "outbound" and "kernel device" in decision and "sent all the same" in detail, f"why: {verdict}, {steps}")
        with Flows(hosts.subs, range(5), 0.1, SERVER) as flows:
            expect(wait_until(lambda: all(flows.seen.values()), 10, 0.1), "it is sent all the same")
        hosts.border.ip("link", "set", "eth0", "down")
        expect(wait_until(lambda: f"outside via {BORDER} (no link)" in table(), 10, 0.1), f"without link: {table()}")
