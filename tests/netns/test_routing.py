"""Routes and sockets of the kernel on the devices that stand for Natrix's ports, and FRR on them."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

from kit import *
from netlab.process import wait_until
from netlab.topology import CORE
from netlab.topology import NAT_INSIDE
from netlab.topology import NAT_OUTSIDE
from netlab.topology import POOL
from netlab.topology import SRV1

FRR = "/usr/lib/frr"
# On the subnet outside, and nobody's.
NOBODY = "198.51.100.99"
LEARNED = "192.0.2.0/24"


def used_route(n, prefix):
    """The next hop of the route that Natrix uses for this prefix, and where it is from."""
    for route in n.dut.show("routes", "--all"):
        if route["prefix"] == prefix and route["used"]:
            return route
    return None


def reaches(n, port):
    """True if a subscriber can open a connection to srv1."""
    sock = tcp(n.sub1, timeout=1.0)
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
            server.settimeout(5)
            accepted, _ = server.accept()
            with sockets(accepted):
                client.sendall(b"up")
                expect_equal(receive_stream(accepted, 2), b"up", f"bytes to {address}")
                accepted.sendall(b"down")
                expect_equal(receive_stream(client, 4), b"down", f"bytes from {address}")


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


class Router:
    """zebra and bgpd of FRR in a namespace, with sockets in a folder of their own."""

    def __init__(self, host, address, peer, number, peer_number, more):
        # Both run as the user of the package, which may not enter the folder of the network.
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-frr-")
        self.folder = Path(self.directory.name)
        self.folder.chmod(0o755)
        shutil.chown(self.folder, "frr", "frr")
        self.host = host
        configuration = self.folder / "frr.conf"
        configuration.write_text(
            f"router bgp {number}\n bgp router-id {address}\n no bgp ebgp-requires-policy\n"
            f" neighbor {peer} remote-as {peer_number}\n neighbor {peer} timers 1 3\n neighbor {peer} timers connect 1\n"
            f" address-family ipv4 unicast\n  {more}\n exit-address-family\n"
        )
        common = ["-P", "0", "-z", self.folder / "zserv", "--vty_socket", self.folder]
        common += ["--log", "stdout"]
        empty = self.folder / "zebra.conf"
        empty.write_text("")
        self.daemons = [host.start("zebra", [f"{FRR}/zebra", "-f", empty, "-i", self.folder / "zebra.pid", *common])]
        expect(wait_until((self.folder / "zserv").exists, 10, 0.1), f"zebra: {self.daemons[0].log()}")
        words = ["-f", configuration, "-i", self.folder / "bgpd.pid", "-l", address, *common]
        self.daemons.append(host.start("bgpd", [f"{FRR}/bgpd", *words]))

    def ask(self, command):
        status, out, _ = self.host.run(["vtysh", "--vty_socket", self.folder, "-c", f"{command} json"])
        return json.loads(out) if status == 0 else {}

    def is_established(self):
        peers = self.ask("show bgp ipv4 unicast summary").get("peers", {})
        return any(peer["state"] == "Established" for peer in peers.values())

    def kill(self):
        """Ends both at once, without a word to the peer or to the kernel."""
        for daemon in reversed(self.daemons):
            daemon.process.kill()
            daemon.process.wait(10)


@test("kernel_routes")
def bgp_of_frr_brings_routes_and_announces_the_pool(n):
    near = Router(n.nat, NAT_OUTSIDE, CORE, 64500, 64501, "redistribute kernel")
    core = Router(n.core, CORE, NAT_OUTSIDE, 64501, 64500, f"network {LEARNED}")
    port = fresh_port()
    with sockets(listener(n.srv1, port, SRV1)):
        expect(wait_until(lambda: near.is_established() and core.is_established(), 30, 0.2), "BGP is Established")
        expect(wait_until(lambda: used_route(n, LEARNED), 15, 0.2), f"{LEARNED} is learned: {n.dut.show('routes', '--all')}")
        expect(reaches(n, port), "a subscriber reaches srv1 by the learned route")

        def announced():
            return f"{POOL[0]}/32" in core.ask("show bgp ipv4 unicast").get("routes", {})

        expect(wait_until(announced, 15, 0.2), f"the pool is announced: {core.ask('show bgp ipv4 unicast')}")
        near.kill()
        expect(used_route(n, LEARNED), "the route stays when FRR is killed")
        expect(reaches(n, port), "packets go on when FRR is killed")
