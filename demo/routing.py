"""FRR on both sides of the cable outside, in place of static routes: BGP with BFD."""

from netlab import process
from netlab.frr import Router
from netlab.topology import CORE
from netlab.topology import NAT_OUTSIDE

NAT_NUMBER, CORE_NUMBER = 64500, 64501
DEFAULT = "0.0.0.0/0"


def _bfd(peer, address):
    timers = "detect-multiplier 3\n  receive-interval 300\n  transmit-interval 300"
    return f"bfd\n peer {peer} local-address {address}\n  {timers}\n exit\nexit\n"


def _bgp(number, address, peer_number, peer, *lines):
    more = "".join(f"  {line}\n" for line in lines)
    return (
        "ip prefix-list pools permit 203.0.113.0/24 le 32\n"
        f"router bgp {number}\n bgp router-id {address}\n no bgp ebgp-requires-policy\n"
        f" neighbor {peer} remote-as {peer_number}\n neighbor {peer} timers connect 1\n neighbor {peer} bfd\n"
        f" address-family ipv4 unicast\n{more} exit-address-family\n"
    )


class Routing:
    """A routing daemon on Natrix's devices, and one in the core router."""

    def __init__(self, network):
        self.network = network
        self.near = Router(
            network.nat,
            NAT_OUTSIDE,
            {
                "bfdd": _bfd(CORE, NAT_OUTSIDE),
                "bgpd": _bgp(NAT_NUMBER, NAT_OUTSIDE, CORE_NUMBER, CORE, "redistribute kernel", f"neighbor {CORE} prefix-list pools out"),
            },
        )
        self.core = Router(
            network.core,
            CORE,
            {
                "bfdd": _bfd(NAT_OUTSIDE, CORE),
                "bgpd": _bgp(CORE_NUMBER, CORE, NAT_NUMBER, NAT_OUTSIDE, f"neighbor {NAT_OUTSIDE} default-originate"),
            },
        )

    def announced(self):
        """The prefixes of pools that Natrix announces, but those on the subnet outside."""
        routes = self.network.dut.show("routes", "--all", "--source", "pool")
        return {route["prefix"] for route in routes if route["used"] and route["prefix"].startswith("203.0.113.")}

    def _is_ready(self):
        learned = [route for route in self.network.dut.show("routes", "--all") if route["prefix"] == DEFAULT and route["used"]]
        announced = self.announced()
        return bool(learned) and bool(announced) and announced <= self.core.bgp_routes()

    def wait(self):
        """Returns when both sides have the routes of the other one."""
        if not process.wait_until(self._is_ready, 60, 0.2):
            raise process.CommandFailed(f"BGP brings no routes: {self.near.ask('bgp ipv4 unicast summary')}")

    def summary(self):
        bfd = self.near.bfd_peer(CORE)
        state = "Established" if self.near.is_established() else "down"
        pools = len(self.announced() & self.core.bgp_routes())
        timers = f"{bfd.get('receive-interval')} ms x {bfd.get('detect-multiplier')}"
        return f"routing by FRR: BGP {state}, BFD {bfd.get('status')} ({timers}), default route learned, {pools} prefixes of pools announced"

    def end(self):
        for router in (self.near, self.core):
            router.kill()
