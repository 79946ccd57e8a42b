"""Several instances of Natrix beside each other, between an access router and a border router.

    subscribers ── access ══ inside, 10.255.0.0/24 ══ nat1 … natN ══ outside, 198.51.100.0/24 ══ border ── server

Routing daemons are FRR. Each NAT has a pool of its own, 203.0.113.(16 n + 8)/29, and the access
router has a resilient group of next hops; or all have 203.0.113.16/29, and the metric decides. The
border announces a default route and routes of its own, as real ones do. The NATs have no static
routes: OSPF brings the way to the subscribers, and the default route.
"""

import contextlib
import json
import socket
import threading
import time
from types import SimpleNamespace

from frr import REPOSITORY
from frr import Router
from frr import recipe
from kit import *
from netlab.namespace import Namespace
from netlab.namespace import connect
from netlab.natrix import DRIVERS
from netlab.natrix import Natrix
from netlab.process import wait_until

ACCESS, BORDER, SERVER = "10.255.0.1", "198.51.100.1", "192.0.2.10"
SUBSCRIBERS_VIA = "10.254.0.2"
SERVER_PORT = 7000
# What OSPF brings to each NAT: the default route, and the subscribers.
LEARNED = {"0.0.0.0/0", "100.64.0.0/16"}
# Recipes.
SHARING, ANYCAST = "sharing", "anycast"
# Seconds without a packet after which the access router may give a bucket to another NAT.
IDLE_SECONDS = 3
# Hellos of BFD, 200 ms apart, after which a router is away. Programs that wait for a CPU miss some,
# and then subscribers move. So all have the greater number, and the NAT that is to be missed has
# the number of the recipe.
MISSED_BY_RECIPE, MISSED_PATIENTLY = 3, 100
# The same for OSPF, in seconds; it only sees what BFD does not.
DEAD_BY_RECIPE, DEAD_PATIENTLY = 4, 40
# Not in the socket module.
SO_RCVBUFFORCE = 33
BUCKETS = 8192
# What the routers on both sides announce besides their link: the way to the subscribers; those to
# the Internet and to the server. To FAR, which the server has too, only the default route leads.
INSIDE = ("redistribute kernel",)
OUTSIDE = ("default-information originate always", "network 192.0.2.0/24 area 0")
FAR = "198.18.0.1"
# A port for management at each NAT, and what is behind its router.
MANAGEMENT, MANAGED = "172.16.0.2", "172.20.0.0/16"


def subscriber(number):
    """The address of a subscriber."""
    return f"100.64.{4 + number // 250}.{1 + number % 250}"


class Instance(Natrix):
    """One of the NATs, with FRR beside it."""

    def __init__(self, binary, host, number, kind):
        super().__init__(binary)
        self.host = host
        self.number = number
        self.kind = kind
        self.inside, self.outside = f"10.255.0.{10 + number}", f"198.51.100.{10 + number}"
        self.pool = f"203.0.113.{16 * number + 8}/29" if kind == SHARING else "203.0.113.16/29"
        self.aggregate = f"203.0.113.{16 * number}/28"
        self.loopback = f"10.255.1.{10 + number}"
        self.router = None

    def begin(self):
        """Starts Natrix; the routing follows by `join`."""
        self.host.ip("address", "add", f"{self.loopback}/32", "dev", "lo")
        self.host.ip("link", "add", "mgmt", "type", "veth", "peer", "name", "mgmt-router")
        for device in ("mgmt", "mgmt-router"):
            self.host.ip("link", "set", device, "up")
        self.host.ip("address", "add", f"{MANAGEMENT}/24", "dev", "mgmt")
        self.host.ip("route", "add", MANAGED, "via", "172.16.0.1")
        self.network = SimpleNamespace(nat=self.host)
        folder = self.host.state.directory
        self.socket, self.configuration = folder / f"{self.host.name}.sock", folder / f"{self.host.name}.toml"
        inside, outside = DRIVERS[self.driver]
        self.configuration.write_text(f"""
[[interface]]
name = "inside"
realm = "inside"
driver = "{inside}"
addresses = ["{self.inside}/24"]
kernel = "nx-inside"

[[interface]]
name = "outside"
realm = "outside"
driver = "{outside}"
addresses = ["{self.outside}/24"]
kernel = "nx-outside"

[[pool]]
name = "public"
addresses = ["{self.pool}"]
subscribers = ["100.64.0.0/10"]

[routing]
kernel = true

[tables]
mappings = 20_000
subscribers = 4_000

[control]
socket = "{self.socket}"
""")
        self.restart()

    def restart(self):
        super().restart()
        if self.driver == "tap":
            for side in ("inside", "outside"):
                self.host.run(["ip", "link", "del", f"tie-{side}"])
            self.bridge_taps()

    def join(self):
        self.router = Router(self.host, self.outside, named(recipe(self.kind), self))

    def be_missed_soon(self, neighbours):
        """Has the routers notice its end as fast as with the recipe. `neighbours`: (router, address of this NAT)."""
        self.missed_after(MISSED_BY_RECIPE)
        for router, address in neighbours:
            known = lambda: router.bfd_peer(address).get("remote-detect-multiplier")  # noqa: B023, E731
            expect(wait_until(lambda: known() == MISSED_BY_RECIPE, 30, 0.02), f"BFD of {address}: {router.ask('bfd peers')}")  # noqa: B023

    def missed_after(self, hellos):
        self.router.configure("bfd", "profile fast", f"detect-multiplier {hellos}")

    def kill(self):
        """Ends Natrix without a word to anybody. Its devices go with it."""
        self.daemon.process.kill()
        self.daemon.process.wait(60)
        self.daemon = None

    def stop(self):
        failure = super().stop()
        self.daemon = None
        return failure


def named(daemons, instance):
    """The recipe of docs/routing.md, for this NAT."""
    whose = 2 if instance.kind == SHARING else 1
    changes = {
        f"198.51.100.{10 + whose}": instance.outside,
        f"10.255.0.{10 + whose}": instance.inside,
        f"10.255.1.{10 + whose}": instance.loopback,
        "203.0.113.32/28": instance.aggregate,
        "metric 10 ": f"metric {10**instance.number} ",
        f"detect-multiplier {MISSED_BY_RECIPE}\n": f"detect-multiplier {MISSED_PATIENTLY}\n",
        f"dead-interval {DEAD_BY_RECIPE}\n": f"dead-interval {DEAD_PATIENTLY}\n",
    }
    for old, new in changes.items():
        daemons = {name: text.replace(old, new) for name, text in daemons.items()}
    return daemons


BFD = f"""bfd
 profile fast
  detect-multiplier {MISSED_PATIENTLY}
  receive-interval 200
  transmit-interval 200
 exit
exit
"""


def ospf(device, prefix, router_id, *more):
    """Of the routers on both sides: the designated ones of their link."""
    more = "".join(f" {line}\n" for line in more)
    return f"""interface {device}
 ip ospf hello-interval 1
 ip ospf dead-interval {DEAD_PATIENTLY}
 ip ospf priority 200
 ip ospf bfd
 ip ospf bfd profile fast
router ospf
 ospf router-id {router_id}
 network {prefix} area 0
{more} timers throttle spf 10 50 100
 timers throttle lsa all 0
 timers lsa min-arrival 0
"""


class Sharing:
    """The network, in the namespaces of the tests. It goes with them."""

    @staticmethod
    def of(n, count, kind=SHARING):
        """The one with so many NATs; all of them serve."""
        if kind not in n.__dict__:
            n.__dict__[kind] = Sharing(n, count, kind)
        network = n.__dict__[kind]
        for nat in network.nats:
            if nat.daemon is None:
                network.restart(nat)
        network.wait_for_all()
        return network

    def __init__(self, n, count, kind):
        names = ("subs", "access", "border", "server", *(f"nat{number}" for number in range(1, count + 1)))
        hosts = {name: Namespace(n.state, f"{kind}-{name}") for name in names}
        n.hosts.update({host.name: host for host in hosts.values()})
        self.kind = kind
        self.sticky = None
        self._build(n.dut.binary, count, hosts)

    def _build(self, binary, count, hosts):
        self.subs, self.access, self.border, self.server = (hosts[name] for name in ("subs", "access", "border", "server"))
        connect(self.subs, "eth0", self.access, "subs")
        self.subs.ip("address", "add", f"{SUBSCRIBERS_VIA}/24", "dev", "eth0")
        self.subs.ip("route", "add", "default", "via", "10.254.0.1")
        # All subscribers are here.
        self.subs.ip("route", "add", "local", "100.64.0.0/16", "dev", "lo")
        self.access.ip("address", "add", "10.254.0.1/24", "dev", "subs")
        self.access.ip("route", "add", "100.64.0.0/16", "via", SUBSCRIBERS_VIA)
        connect(self.server, "eth0", self.border, "server")
        self.server.ip("address", "add", f"{SERVER}/24", "dev", "eth0")
        self.server.ip("address", "add", f"{FAR}/32", "dev", "lo")
        self.server.ip("route", "add", "default", "via", "192.0.2.1")
        self.border.ip("address", "add", "192.0.2.1/24", "dev", "server")
        self.border.ip("route", "add", f"{FAR}/32", "via", SERVER)
        for host, address, bridge in ((self.access, ACCESS, "inside"), (self.border, BORDER, "outside")):
            host.ip("link", "add", bridge, "type", "bridge")
            host.ip("address", "add", f"{address}/24", "dev", bridge)
            host.ip("link", "set", bridge, "up")
            host.sysctl("net.ipv4.ip_forward", 1)
        self.nats = []
        for number in range(1, count + 1):
            nat = hosts[f"nat{number}"]
            for host, bridge in ((self.access, "inside"), (self.border, "outside")):
                connect(host, f"nat{number}", nat, bridge)
                host.ip("link", "set", f"nat{number}", "master", bridge)
                host.run(["ethtool", "-K", f"nat{number}", "tx", "off"], check=True)
                nat.run(["ethtool", "-K", bridge, "gro", "off"], check=True)
            self.nats.append(Instance(binary, nat, number, self.kind))
        for nat in self.nats:
            nat.begin()
        # Where the default route leads follows from where this address leads.
        of_access = {} if self.kind == SHARING else {"staticd": "ip route 0.0.0.0/0 203.0.113.17\n"}
        self.routers = [
            Router(self.access, ACCESS, {"bfdd": BFD, "ospfd": ospf("inside", "10.255.0.0/24", ACCESS, *INSIDE), **of_access}),
            Router(self.border, BORDER, {"bfdd": BFD, "ospfd": ospf("outside", "198.51.100.0/24", BORDER, *OUTSIDE)}),
        ]
        for nat in self.nats:
            nat.join()
        if self.kind == SHARING:
            self.begin_sticky()

    def begin_sticky(self):
        words = ["--hash", "--idle", IDLE_SECONDS, "--buckets", BUCKETS]
        for nat in self.nats:
            words += ["--nat", f"{nat.inside},{nat.loopback},{nat.pool}"]
        self.sticky = self.access.start("sticky", [REPOSITORY / "examples/sticky-next-hops.py", *words])

    def stop(self, nat):
        """Ends a NAT, and waits until the access router sends it nothing more."""
        nat.be_missed_soon(self.neighbours(nat))
        expect_equal(nat.stop(), None, "end of an instance")
        if self.kind == SHARING:
            self.wait_for(**{f"nat{nat.number}": "is away"})

    def kill(self, nat):
        """Ends a NAT without a word to anybody."""
        nat.be_missed_soon(self.neighbours(nat))
        nat.kill()

    def restart(self, nat):
        """Starts a NAT again; that all know it is to be waited for."""
        nat.missed_after(MISSED_PATIENTLY)
        nat.restart()

    def neighbours(self, nat):
        return (self.routers[0], nat.inside), (self.routers[1], nat.outside)

    def is_balanced(self):
        """Whether each NAT has its share of the buckets, so that none moves while all NATs stay."""
        objects = json.loads(self.access.ip("-j", "nexthop", "show"))
        groups = [one["resilient_args"] for one in objects if one.get("type") == "resilient"]
        return len(groups) == 1 and groups[0]["unbalanced_time"] == 0

    def wait_until_balanced(self):
        expect(wait_until(self.is_balanced, 60, 0.1), f"buckets: {self.access.ip('nexthop', 'show')}")

    def states(self):
        """What the access router last said of each NAT: serves, drains, is away."""
        lines = self.sticky.log().splitlines()
        states = lines[-1].split(" ", 1)[1].split(", ") if lines else []
        return {address: words for address, _, words in (one.partition(" ") for one in states)}

    def wait_for(self, **wanted):
        """Waits until the access router says so of these NATs, and the border router has a way to the pools of all that live."""
        wanted = {self.nats[int(name.removeprefix("nat")) - 1].inside: words for name, words in wanted.items()}
        there = lambda: wanted.items() <= self.states().items()  # noqa: E731
        expect(wait_until(there, 60, 0.02), f"{wanted}, not {self.sticky.log()[-600:]}")

    def next_hop(self, host, prefix):
        """Where a router sends packets to a prefix."""
        words = host.ip("route", "show", prefix).split()
        return words[words.index("via") + 1] if "via" in words else None

    def wait_until_learned(self, nat):
        """Waits until a NAT forwards both ways by routes that OSPF has brought."""
        def learned():
            used = [route for route in nat.show("routes", "--all") if route["used"]]
            return {route["prefix"] for route in used if (route["source"], route["protocol"]) == ("kernel", "ospf")}

        expect(wait_until(lambda: LEARNED <= learned(), 60, 0.1), f"{nat.inside} has learned {learned()}, not {LEARNED}")

    def wait_for_all(self):
        for nat in self.nats:
            self.wait_until_learned(nat)
        if self.kind == ANYCAST:
            self.wait_for_first(self.nats[0])
            return
        self.wait_for(**{f"nat{nat.number}": "serves" for nat in self.nats})
        pools = {nat.pool for nat in self.nats}
        known = lambda: pools <= {line.split()[0] for line in self.border.ip("route", "show", "proto", "ospf").splitlines()}  # noqa: E731
        expect(wait_until(known, 60, 0.1), f"the border router has a route to {pools}: {self.border.ip('route')}")
        self.wait_until_balanced()

    def learned(self, host):
        """The prefixes that a router has by OSPF."""
        return {route["dst"] for route in json.loads(host.ip("-j", "route", "show", "proto", "ospf") or "[]")}

    def wait_for_first(self, nat):
        """Waits until both routers use this one of the pair."""
        used = lambda: (self.next_hop(self.access, "default"), self.next_hop(self.border, nat.pool))  # noqa: E731
        wanted = (nat.inside, nat.outside)
        expect(wait_until(lambda: used() == wanted, 60, 0.05), f"the routers use {used()}, not {wanted}")

    def nat_of(self, external):
        """Which NAT has this address in its pool, from 0."""
        return int(external.rpartition(".")[2]) // 16 - 1


class Echo:
    """The server: sends each datagram back, with the address it came from."""

    def __init__(self, host, address=SERVER):
        self.sock = udp(host, SERVER_PORT, address, timeout=0.2)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self.stopped = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.stopped:
            with contextlib.suppress(socket.timeout):
                data, (address, port) = self.sock.recvfrom(2048)
                self.sock.sendto(data[:8] + f"{address} {port}".encode(), (address, port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped = True
        self.thread.join()
        self.sock.close()


class Flows:
    """A flow of each of these subscribers: sends now and then, and keeps account of the answers."""

    def __init__(self, host, numbers, interval, server=SERVER):
        self.interval = interval
        self.flows = {}
        for number in numbers:
            sock = udp(host, 0, subscriber(number), timeout=0)
            sock.connect((server, SERVER_PORT))
            self.flows[number] = sock
        # By flow: external endpoints with the time of the first answer; numbers sent and answered.
        self.seen = {number: {} for number in self.flows}
        self.sent = dict.fromkeys(self.flows, 0)
        self.answered = {number: {} for number in self.flows}
        self.stopped = threading.Event()
        self.thread = None

    def __enter__(self):
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end()
        for sock in self.flows.values():
            sock.close()

    def end(self):
        """Sends nothing more, and waits for the last answers."""
        self.stopped.set()
        self.thread.join()
        deadline = time.monotonic() + 10
        while self.lost() and time.monotonic() < deadline:
            for number in self.flows:
                self._read(number)
            time.sleep(0.02)

    def _run(self):
        pause = self.interval / max(1, len(self.flows))
        due = time.monotonic()
        while not self.stopped.is_set():
            for number, sock in self.flows.items():
                with contextlib.suppress(OSError):
                    sock.send(self.sent[number].to_bytes(8, "big"))
                    self.sent[number] += 1
                self._read(number)
                due += pause
                # Never faster than the interval, to make up for time lost.
                due = max(due, time.monotonic() - 0.05)
                if (wait := due - time.monotonic()) > 0.002:
                    time.sleep(wait)

    def _read(self, number):
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError, OSError):
            while True:
                data = self.flows[number].recv(2048)
                now = time.monotonic()
                self.answered[number][int.from_bytes(data[:8], "big")] = now
                self.seen[number].setdefault(data[8:].decode(), now)

    def external(self, number):
        """The external addresses of a subscriber so far."""
        return {endpoint.split()[0] for endpoint in self.seen[number]}

    def of(self, sharing, index):
        """The flows whose first answer came through this NAT."""
        first = {number: next(iter(seen)).split()[0] for number, seen in self.seen.items() if seen}
        return [number for number, address in first.items() if sharing.nat_of(address) == index]

    def lost(self, numbers=None):
        """How many datagrams of these flows have no answer."""
        numbers = self.flows if numbers is None else numbers
        return sum(self.sent[number] - len(self.answered[number]) for number in numbers)

    def silence(self, number):
        """The longest time between two answers."""
        times = sorted(self.answered[number].values())
        return max((later - earlier for earlier, later in zip(times, times[1:])), default=0)
