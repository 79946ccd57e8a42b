"""A table of the kernel for each realm: VRFs with the same addresses, each with the routes of its own table."""

import contextlib
import socket
from types import SimpleNamespace

from frr import Router
from frr import routers
from kit import *
from netlab.namespace import Namespace
from netlab.namespace import connect
from netlab.natrix import Natrix
from netlab.natrix import default_driver
from netlab.process import wait_until

# The kernel's table of each realm. Both VRFs have the same network behind the same router.
TABLES = {"blue": 10, "red": 20, "wan": 30}
PORT, ROUTER = "10.0.0.1", "10.0.0.2"
NETWORK, SUBSCRIBER = "10.9.0.0/24", "10.9.0.5"
UPSTREAM, SERVER = "198.51.100.1", "192.0.2.10"
POOLS = {"blue": "203.0.113.1", "red": "203.0.113.2"}


class Instance(Natrix):
    """Natrix with two VRFs, in a namespace of its own with one cable for each interface."""

    def __init__(self, binary, host):
        super().__init__(binary)
        self.network = SimpleNamespace(nat=host)
        driver = "net_af_xdp" if default_driver() == "af_xdp" else "net_af_packet"
        text = ""
        for number, name in enumerate(TABLES):
            realm = 'realm = "outside"' if name == "wan" else f'realm = "inside"\nvrf = "{name}"'
            address = "198.51.100.2/24" if name == "wan" else f"{PORT}/24"
            text += f"""
[[interface]]
name = "{name}"
{realm}
driver = "{driver}{number},iface={name}"
addresses = ["{address}"]
kernel = "nx-{name}"
kernel_table = {TABLES[name]}
"""
        for name, address in POOLS.items():
            text += f'\n[[pool]]\nname = "{name}"\nvrfs = ["{name}"]\naddresses = ["{address}"]\nsubscribers = ["10.0.0.0/8"]\n'
        folder = host.state.directory
        self.socket, self.configuration = folder / "tables.sock", folder / "tables.toml"
        more = f'\n[routing]\nkernel = true\n\n[tables]\nmappings = 1_000\n\n[control]\nsocket = "{self.socket}"\n'
        self.configuration.write_text(text + more)


def built(n):
    """The namespaces: nat, a router of each VRF with a subscriber behind it, and the server's router."""
    hosts = {name: Namespace(n.state, f"tables-{name}") for name in ("nat", *TABLES)}
    n.hosts.update({host.name: host for host in hosts.values()})
    for name in TABLES:
        connect(hosts[name], "eth0", hosts["nat"], name)
        hosts[name].run(["ethtool", "-K", "eth0", "tx", "off"], check=True)
        own = {"wan": (UPSTREAM, SERVER, "198.51.100.2")}.get(name, (ROUTER, SUBSCRIBER, PORT))
        hosts[name].ip("address", "add", f"{own[0]}/24", "dev", "eth0")
        hosts[name].ip("address", "add", f"{own[1]}/32", "dev", "lo")
        hosts[name].ip("route", "add", "default", "via", own[2])
    return SimpleNamespace(**hosts)


def seen_from(hosts, vrf):
    """The external address with which the server sees the subscriber of a VRF, if an answer comes back."""
    port = fresh_port()
    with sockets(udp(hosts.wan, port, SERVER, timeout=0.5), udp(getattr(hosts, vrf), 0, SUBSCRIBER, timeout=0.5)) as (server, client):
        client.sendto(b"?", (SERVER, port))
        with contextlib.suppress(socket.timeout):
            _, (address, external) = server.recvfrom(64)
            server.sendto(b"!", (address, external))
            client.recvfrom(64)
            return address
    return None


@test("routing_own")
def each_realm_has_the_routes_of_its_table(n):
    hosts = built(n)
    instance = Instance(n.dut.binary, hosts.nat)
    instance.restart()

    def route(action, name, prefix, via):
        hosts.nat.ip("route", action, prefix, "via", via, "dev", f"nx-{name}", "table", TABLES[name])

    def sees(vrf, wanted):
        return wait_until(lambda: seen_from(hosts, vrf) == wanted, 10, 0.1)

    try:
        # Of the main table nobody takes a route, wherever it leads.
        hosts.nat.ip("route", "add", "default", "via", UPSTREAM, "dev", "nx-wan")
        hosts.nat.ip("route", "add", NETWORK, "via", ROUTER, "dev", "nx-blue")
        used = lambda: {(one["prefix"], one.get("vrf")) for one in instance.show("routes", "--all") if one["source"] == "kernel"}  # noqa: E731
        expect_equal((used(), seen_from(hosts, "blue")), (set(), None), "routes of the kernel, and what the server sees")
        route("add", "wan", "default", UPSTREAM)
        route("add", "blue", NETWORK, ROUTER)
        expect(sees("blue", POOLS["blue"]), f"the subscriber of blue is answered: {instance.show('routes', '--all')}")
        expect_equal(used(), {("0.0.0.0/0", None), (NETWORK, "blue")}, "routes of the kernel, and their VRFs")
        expect_equal(seen_from(hosts, "red"), None, "red has no use for the route of blue")
        # A routing daemon writes into the table of the other VRF.
        static = f"ip route {NETWORK} {ROUTER} nx-red table {TABLES['red']}\n"
        near = Router(hosts.nat, PORT, {"staticd": static})
        with routers(near):
            expect(sees("red", POOLS["red"]), f"the subscriber of red is answered: {hosts.nat.ip('route', 'show', 'table', 'all')}")
            expect(sees("blue", POOLS["blue"]), "the subscriber of blue is answered")
        route("del", "blue", NETWORK, ROUTER)
        expect(sees("blue", None), "without its route blue has no answer")
    finally:
        expect_equal(instance.stop(), None, "end of the instance")
