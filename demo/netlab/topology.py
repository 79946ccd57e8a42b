"""The network itself: subscribers, switch, routers and servers, with the place for the NAT in the middle."""

from . import process
from . import state
from .namespace import Namespace
from .namespace import connect

SUBSCRIBERS = {"sub1": "100.64.0.10", "sub2": "100.64.0.11"}
INSIDE_PREFIX = "100.64.0.0/24"
NAT_INSIDE = "100.64.0.1"
NAT_OUTSIDE = "198.51.100.2"
CORE = "198.51.100.1"
# Deliberately not contiguous; the last one lies on the outside subnet itself, so that the NAT must
# answer ARP for it.
POOL = ["203.0.113.1", "203.0.113.9", "203.0.113.129", "198.51.100.77"]
SRV1 = "192.0.2.10"
SRV1_SECOND = "192.0.2.11"
SRV2 = "198.18.2.10"
FAR = "198.51.101.2"
NARROW_MTU = 1280


class Network:
    """All namespaces of one run. A context manager: leaving it ends every process and removes everything."""

    def __init__(self, kind, dut, extra_subscribers=()):
        self.cleared = state.clear_up_after_the_dead()
        self.state = state.State(kind)
        self.dut = dut
        self.hosts = {}
        self.closed = False
        try:
            self._build(extra_subscribers)
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name):
        try:
            return self.__dict__["hosts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _build(self, extra_subscribers):
        for name in (*SUBSCRIBERS, "access", "nat", "core", "far", "srv1", "srv2"):
            self.hosts[name] = Namespace(self.state, name)

        # The access switch.
        self.access.ip("link", "add", "switch", "type", "bridge")
        self.access.ip("link", "set", "switch", "up")
        for name, address in SUBSCRIBERS.items():
            subscriber = self.hosts[name]
            connect(subscriber, "eth0", self.access, name)
            self.access.ip("link", "set", name, "master", "switch")
            subscriber.ip("address", "add", f"{address}/24", "dev", "eth0")
            subscriber.ip("route", "add", "default", "via", NAT_INSIDE)
        self.sub2.ip_all(["address", "add", f"{address}/24", "dev", "eth0"] for address in extra_subscribers)

        # The two cables of the NAT.
        connect(self.access, "nat", self.nat, "inside")
        self.access.ip("link", "set", "nat", "master", "switch")
        connect(self.core, "nat", self.nat, "outside")
        self._finish_packets_before_the_nat()

        # The outside: a core router, one server behind it, another one behind a narrow link.
        for router in (self.core, self.far):
            router.sysctl("net.ipv4.ip_forward", 1)
        self.core.ip("address", "add", f"{CORE}/24", "dev", "nat")
        self.core.ip("route", "add", "203.0.113.0/24", "via", NAT_OUTSIDE)
        connect(self.core, "srv1", self.srv1, "eth0")
        self.core.ip("address", "add", "192.0.2.1/24", "dev", "srv1")
        self.srv1.ip("address", "add", f"{SRV1}/24", "dev", "eth0")
        self.srv1.ip("address", "add", f"{SRV1_SECOND}/24", "dev", "eth0")
        self.srv1.ip("route", "add", "default", "via", "192.0.2.1")
        connect(self.core, "far", self.far, "core", mtu=NARROW_MTU)
        self.core.ip("address", "add", "198.51.101.1/30", "dev", "far")
        self.far.ip("address", "add", f"{FAR}/30", "dev", "core")
        self.far.ip("route", "add", "default", "via", "198.51.101.1")
        connect(self.far, "srv2", self.srv2, "eth0")
        self.far.ip("address", "add", "198.18.2.1/24", "dev", "srv2")
        self.core.ip("route", "add", "198.18.2.0/24", "via", FAR)
        self.srv2.ip("address", "add", f"{SRV2}/24", "dev", "eth0")
        self.srv2.ip("route", "add", "default", "via", "198.18.2.1")

    def _finish_packets_before_the_nat(self):
        """Makes the kernel hand over finished packets.

        A virtual cable has no wire on which a segment must be whole: the kernel passes on TCP and UDP with the
        checksum left to the "hardware" and segments of 64 kB left to be cut by it. Switching checksumming off on
        the last device before the NAT finishes both, for without checksums no device may cut segments either.
        On the NAT's own end, received segments must not be joined again before a packet socket sees them.
        """
        for host in (self.access, self.core):
            host.run(["ethtool", "-K", "nat", "tx", "off"], check=True)
        for device in ("inside", "outside"):
            self.nat.run(["ethtool", "-K", device, "gro", "off"], check=True)

    def start_dut(self):
        self.dut.start(self)

    def close(self):
        if self.closed:
            return
        self.closed = True
        for host in reversed(list(self.hosts.values())):
            host.end()
        state.delete_namespaces(self.state.prefix)
        self.state.remove()

    def wait_for_listener(self, host, port, kind="tcp", seconds=10):
        """Waits until something in `host` listens on `port`."""
        flag = "-ltnH" if kind == "tcp" else "-lunH"

        def listening():
            return host.run(["ss", flag, f"sport = :{port}"])[1].strip()

        if not process.wait_until(listening, seconds):
            raise process.CommandFailed(f"{host.name}: nothing listens on {kind} port {port}")
