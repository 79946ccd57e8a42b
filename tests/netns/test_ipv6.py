"""IPv6 of Natrix's own addresses against real kernels: RFC 4443, RFC 4861, RFC 4862."""

import ipaddress
import socket
import struct

from kit import *
from netlab.process import wait_until
from netlab.transition import INSIDE
from netlab.transition import OUTSIDE
from netlab.transition import SUB1
from netlab.transition import ping
from netlab.transition import with_addresses

BEHIND_SUB1 = "2001:db8:65::10"
ICMP6_FILTER = 1


def neighbour(host, address, device="eth0"):
    """What the kernel knows of a neighbour: (station, is it a router, state)."""
    _, out, _ = host.run(["ip", "-6", "neigh", "show", address, "dev", device])
    words = out.split()
    station = words[words.index("lladdr") + 1] if "lladdr" in words else None
    return station, "router" in words, words[-1] if words else None


def icmp6_socket(host, kind):
    """A raw socket that receives ICMPv6 messages of one type."""
    with host.entered():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    blocked = [0xFFFFFFFF] * 8
    blocked[kind >> 5] &= ~(1 << (kind & 31))
    sock.setsockopt(socket.IPPROTO_ICMPV6, ICMP6_FILTER, struct.pack("=8I", *blocked))
    sock.settimeout(5)
    return sock


@test("ipv6")
@shows("4443-4.2", "4861-7.2.4")
def the_own_ipv6_addresses_answer_a_kernel(n):
    with_addresses(n)
    for host, device, own in ((n.sub1, "eth0", INSIDE), (n.core, "nat", OUTSIDE)):
        expect(wait_until(lambda: ping(host, own)[0] == 0, 10, 0.2), f"ping of {own}: {ping(host, own)[1]}")
        station, is_router, state = neighbour(host, own, device)
        expect(station is not None and is_router, f"{own} is {neighbour(host, own, device)}")
        expect(state in ("REACHABLE", "DELAY", "STALE"), f"{own} is {state}")
        # The link-local address is that of the station.
        parts = [int(part, 16) for part in station.split(":")]
        interface = bytes([parts[0] ^ 2, *parts[1:3], 0xFF, 0xFE, *parts[3:]])
        local = str(ipaddress.IPv6Address(b"\xfe\x80" + bytes(6) + interface))
        status, text = ping(host, f"{local}%{device}")
        expect_equal(status, 0, f"ping of {local}: {text}")


@test("ipv6")
def large_ipv6_pings_are_answered_whole(n):
    with_addresses(n)
    expect(wait_until(lambda: ping(n.sub1, INSIDE, "-s", "1452")[0] == 0, 10, 0.2), "1,500 bytes")
    status, text = ping(n.sub1, INSIDE, "-s", "1452", "-M", "do", "-p", "a5")
    expect_equal(status, 0, text)


@test("ipv6")
@shows("4861-7.2.4")
def a_kernel_that_asks_for_the_same_address_loses_it(n):
    with_addresses(n)
    expect(wait_until(lambda: ping(n.sub2, INSIDE)[0] == 0, 10, 0.2), "Natrix has its address")
    n.sub1.sysctl("net.ipv6.conf.eth0.accept_dad", 1)
    n.sub1.ip("-6", "address", "add", f"{INSIDE}/64", "dev", "eth0")
    try:

        def failed():
            _, out, _ = n.sub1.run(["ip", "-6", "address", "show", "dev", "eth0"])
            return any(INSIDE in line and "dadfailed" in line for line in out.splitlines())

        expect(wait_until(failed, 10, 0.2), "the kernel does not see the duplicate")
        status, text = ping(n.sub2, INSIDE)
        expect_equal(status, 0, f"Natrix still answers: {text}")
    finally:
        n.sub1.ip("-6", "address", "del", f"{INSIDE}/64", "dev", "eth0")


@test("ipv6")
def answers_to_a_routed_network_go_by_its_router(n):
    with_addresses(n)
    n.sub1.ip("-6", "address", "replace", f"{BEHIND_SUB1}/128", "dev", "lo", "nodad")
    expect(wait_until(lambda: ping(n.sub1, INSIDE, "-I", BEHIND_SUB1)[0] == 0, 10, 0.2), "ping from behind sub1")


@test("ipv6")
@shows("4443-3.1")
def forwarded_ipv6_is_refused_by_name(n):
    with_addresses(n)
    expect(wait_until(lambda: ping(n.sub1, INSIDE)[0] == 0, 10, 0.2), "Natrix is there")
    n.sub1.ip("-6", "route", "replace", "2001:db8:99::/64", "via", INSIDE)
    n.sub1.ip("-6", "route", "replace", "2001:db8:65::/64", "via", INSIDE)

    def drops(reason):
        return next((drop["packets"] for drop in n.dut.show("drops") if drop["reason"] == reason), 0)

    for destination, code, reason in (("2001:db8:99::1", 0, "no_route"), ("2001:db8:65::77", 1, "ipv6_not_forwarded")):
        before = drops(reason)
        with n.sub1.entered():
            sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with sockets(sender, icmp6_socket(n.sub1, 1)) as (sender, errors):
            sender.sendto(b"x" * 100, (destination, 53))
            message, who = receive(errors, f"error about {destination}")
        expect_equal((message[0], message[1], who[0]), (1, code, INSIDE), "destination unreachable")
        expect_equal(ipaddress.IPv6Address(message[32:48]), ipaddress.IPv6Address(destination), "quoted destination")
        expect_equal(drops(reason), before + 1, f"counter of {reason}")


def echo_request6(station, source, destination):
    """A frame with an echo request."""
    address = lambda text: ipaddress.IPv6Address(text).packed  # noqa: E731
    message = struct.pack("!BBHHH", 128, 0, 0, 7, 1)
    pseudo = address(source) + address(destination) + struct.pack("!II", len(message), 58)
    message = message[:2] + struct.pack("!H", checksum(pseudo + message)) + message[4:]
    header = struct.pack("!IHBB", 6 << 28, len(message), 58, 64) + address(source) + address(destination)
    return bytes.fromhex(station.replace(":", "")) + bytes.fromhex("020000005ca9") + b"\x86\xdd" + header + message


@test("ipv6")
@shows("6583-6")
def a_scan_by_one_host_leaves_new_neighbours_of_another(n):
    with_addresses(n)
    expect(wait_until(lambda: ping(n.sub1, INSIDE)[0] == 0, 10, 0.2), "Natrix is there")
    station, _, _ = neighbour(n.sub1, INSIDE)
    with n.sub1.entered():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sock.bind(("eth0", 0))
    late, asked = [], 0
    with sockets(sock):
        for number in range(8):
            # Sources that nobody has.
            for host in range(1000):
                sock.send(echo_request6(station, f"2001:db8:64::5ca9:{number:x}:{host:x}", INSIDE))
            fresh = f"2001:db8:64::ac:{number:x}"
            n.sub2.ip("-6", "address", "add", f"{fresh}/64", "dev", "eth0", "nodad")
            if n.sub2.run(["ping", "-n", "-c", "1", "-W", "10", "-I", fresh, INSIDE])[0] != 0:
                late.append(fresh)
            n.sub2.ip("-6", "address", "del", f"{fresh}/64", "dev", "eth0")
            asked = max(asked, sum(one["state"] == "asking" for one in n.dut.show("neighbours", "--all")))
    expect(asked > 200, f"the scan made Natrix ask for {asked} addresses only")
    expect_equal(late, [], "new addresses without an answer")
