"""examples/sticky-next-hops.py on a router: its objects in the kernel after what may happen beside it.

The routes that it follows are not learned but set. Other routes are those of real zebra and staticd.
"""

import contextlib
import json

from frr import REPOSITORY
from frr import Router
from kit import *
from netlab.namespace import Namespace
from netlab.namespace import connect
from netlab.process import wait_until

ROUTER, OTHER = "10.255.0.1", "10.255.0.77"
# Two prefixes for each NAT.
POOLS = ("203.0.113", "203.0.114")


def pools(number):
    return [f"{net}.{16 * number + 8}/29" for net in POOLS]


class Bed:
    """A router with NATs 10.255.0.11 and so on, which need not exist, and a cable to other.77."""

    def __init__(self, n, mark):
        self.host, self.other = (Namespace(n.state, f"{mark}-{name}") for name in ("router", "other"))
        n.hosts.update({host.name: host for host in (self.host, self.other)})
        connect(self.host, "inside", self.other, "eth0")
        self.host.ip("address", "add", f"{ROUTER}/24", "dev", "inside")
        self.other.ip("address", "add", f"{OTHER}/24", "dev", "eth0")
        self.sticky = None

    def learn(self, *numbers):
        for number in numbers:
            for prefix in (f"10.255.1.{10 + number}", *pools(number)):
                self.host.ip("route", "replace", prefix, "via", self.hop(number), "proto", "ospf", "metric", 20)

    def hop(self, number):
        return f"10.255.0.{10 + number}"

    @contextlib.contextmanager
    def running(self, *numbers):
        """The script with these NATs."""
        words = ["--idle", 5, "--buckets", 256]
        for number in numbers:
            words += ["--nat", ",".join([self.hop(number), f"10.255.1.{10 + number}", *pools(number)])]
        self.sticky = self.host.start("sticky", [REPOSITORY / "examples/sticky-next-hops.py", *words])
        try:
            yield
        finally:
            self.sticky.end()

    def ask(self, *words):
        status, out, _ = self.host.run(["ip", "-j", *words])
        return json.loads(out or "[]") if status == 0 else []

    def hops(self, *words):
        """Next hops of a route in the kernel's group, with their shares; None if it does not use a group."""
        objects = {one["id"]: one for one in self.ask("nexthop", "show")}
        group = next((objects.get(route.get("nhid"), {}) for route in self.ask("route", "show", *words)), {})
        if group.get("type") != "resilient":
            return None
        return {objects[one["id"]]["gateway"]: one.get("weight", 1) for one in group["group"]}

    def places(self, *numbers):
        return (["default"], *([pool, "table", "4000"] for number in numbers for pool in pools(number)))

    def wait_for(self, hops, *numbers, what):
        """Waits until the default route and those of the pools of these NATs all use these next hops."""
        wanted = {self.hop(number): share for number, share in hops.items()}
        found = lambda: {" ".join(place): self.hops(*place) for place in self.places(*numbers)}  # noqa: E731
        fits = lambda: all(one == wanted for one in found().values())  # noqa: E731
        log = self.sticky.log
        expect(wait_until(fits, 15, 0.1), f"{what}: {found()}, not {wanted}: {log()[-600:]} {self.host.ip('nexthop', 'show')}")
        expect(self.sticky.alive(), f"{what}: it has ended: {log()[-600:]}")

    def leads_by(self, destination):
        """The table that decides about a destination."""
        found = self.ask("-d", "route", "get", "fibmatch", destination)
        return [(one["dst"], one.get("table"), "nhid" in one) for one in found]


@test("kernel_routes")
def next_hops_of_all_nats_survive_a_flap_of_their_link(n):
    bed = Bed(n, "flap")
    bed.learn(1, 2)
    with bed.running(1, 2):
        bed.wait_for({1: 250, 2: 250}, 1, 2, what="at first")
        bed.host.ip("link", "set", "inside", "down")
        away = lambda: bed.sticky.log().count("is away") == 2  # noqa: E731
        expect(wait_until(away, 15, 0.1), f"the log: {bed.sticky.log()}")
        bed.host.ip("link", "set", "inside", "up")
        bed.learn(1, 2)
        bed.wait_for({1: 250, 2: 250}, 1, 2, what="after the link was down")
        # So short that nobody sees the routes go.
        bed.host.run(["sh", "-c", "ip link set inside down; ip link set inside up"], check=True)
        bed.learn(1, 2)
        bed.wait_for({1: 250, 2: 250}, 1, 2, what="after a short flap")


@test("kernel_routes")
def next_hops_of_one_nat_survive_a_flap_of_its_port(n):
    bed = Bed(n, "port")
    connect(bed.host, "second", bed.other, "eth1")
    bed.host.ip("address", "add", "10.255.0.1/32", "dev", "second")
    bed.host.ip("route", "add", "10.255.0.12/32", "dev", "second")
    bed.learn(1, 2)
    with bed.running(1, 2):
        bed.wait_for({1: 250, 2: 250}, 1, 2, what="at first")
        bed.host.ip("link", "set", "second", "down")
        bed.wait_for({1: 250}, 1, 2, what="without the second")
        bed.host.ip("link", "set", "second", "up")
        bed.host.ip("route", "add", "10.255.0.12/32", "dev", "second")
        bed.learn(2)
        bed.wait_for({1: 250, 2: 250}, 1, 2, what="after the port was down")
        bed.host.ip("route", "del", pools(1)[0])
        bed.host.ip("route", "del", pools(1)[1])
        bed.wait_for({1: 1, 2: 250}, 1, 2, what="the first is drained")


@test("kernel_routes")
def routes_and_rules_of_all_pools_are_kept(n):
    """Each NAT has two pools. What others remove comes back, and what another start had goes."""
    bed = Bed(n, "pools")
    bed.learn(1, 2, 3)
    with bed.running(1, 2, 3):
        bed.wait_for({1: 250, 2: 250, 3: 250}, 1, 2, 3, what="at first")
        for number in (1, 2, 3):
            for net, pool in zip(POOLS, pools(number)):
                expect_equal(bed.leads_by(f"{net}.{16 * number + 9}"), [(pool, "4000", True)], "what decides about the pool")
        # One of two pools is there: the NAT serves.
        bed.host.ip("route", "del", pools(1)[0])
        for words in (("route", "del", "default"), ("route", "del", pools(3)[0], "table", 4000), ("rule", "del", "to", pools(2)[1])):
            bed.host.ip(*words)
        bed.wait_for({1: 250, 2: 250, 3: 250}, 1, 2, 3, what="after others removed routes")
        ruled = lambda: len(bed.ask("rule", "show", "table", "4000"))  # noqa: E731
        expect(wait_until(lambda: ruled() == 6, 15, 0.1), f"rules: {bed.host.ip('rule')}")
        group = bed.ask("route", "show", "default")[0]["nhid"]
        bed.host.ip("nexthop", "del", "id", group)
        bed.wait_for({1: 250, 2: 250, 3: 250}, 1, 2, 3, what="after others removed the group")
    with bed.running(1, 2):
        bed.wait_for({1: 250, 2: 250}, 1, 2, what="with fewer NATs")
        expect(wait_until(lambda: ruled() == 4, 15, 0.1), f"rules: {bed.host.ip('rule')}")
        left = lambda: {one["dst"] for one in bed.ask("route", "show", "table", "4000")}  # noqa: E731
        expect(wait_until(lambda: left() == {*pools(1), *pools(2)}, 15, 0.1), f"routes: {left()}")
        mine = lambda: len(bed.ask("nexthop", "show", "protocol", "111"))  # noqa: E731
        expect(wait_until(lambda: mine() == 3, 15, 0.1), f"objects: {bed.host.ip('nexthop', 'show')}")


@test("kernel_routes")
def zebra_and_sticky_next_hops_leave_each_other_alone(n):
    """zebra goes on from the highest number of a next hop that it sees, and removes at its start what it takes for its own."""
    bed = Bed(n, "zebra")
    frr = Router(bed.host, ROUTER, {"staticd": ""})
    static = "172.20.0.0/16"
    # At the end, `Router` removes the routes of OSPF.
    with contextlib.ExitStack() as stack:
        stack.callback(frr.end)
        bed.learn(1, 2, 3, 4)
        for numbers in ((1, 2), (1, 2, 3), (1, 2, 3, 4)):
            with bed.running(*numbers):
                shares = dict.fromkeys(numbers, 250)
                bed.wait_for(shares, *numbers, what=f"NATs {numbers}")
                frr.configure(f"ip route {static} {OTHER}")
                by_other = lambda: [route.get("gateway") for route in bed.ask("route", "show", static)] == [OTHER]  # noqa: E731
                expect(wait_until(by_other, 15, 0.1), f"the route of FRR: {bed.host.ip('route')}")
                bed.wait_for(shares, *numbers, what=f"NATs {numbers} beside a route of FRR")
        every = (1, 2, 3, 4)
        with bed.running(*every):
            frr.kill()
            frr.start()
            bed.learn(*every)
            bed.wait_for(dict.fromkeys(every, 250), *every, what="after a restart of FRR")
            bed.host.run(["sh", "-c", "ip link set inside down; ip link set inside up"], check=True)
            bed.learn(*every)
            bed.wait_for(dict.fromkeys(every, 250), *every, what="after a flap")
