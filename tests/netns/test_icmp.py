"""ICMP queries and errors between real kernels: RFC 5508, RFC 4787 REQ-12 and REQ-13."""

import errno
import socket
import struct

from kit import *
from netlab.topology import CORE
from netlab.topology import NARROW_MTU
from netlab.topology import NAT_INSIDE
from netlab.topology import NAT_OUTSIDE
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SRV1_SECOND
from netlab.topology import SRV2
from netlab.topology import SUBSCRIBERS

ECHO_REQUEST = 8
# No host has them: the first is on the link between the NAT and the core router, the second only
# for a while a subscriber's.
ABSENT_OUTSIDE = "198.51.100.200"
LEAVING = "100.64.0.240"


def echo(sock, to, sequence, payload=b"some payload"):
    """One echo request and its reply: (type, code, id, sequence, payload)."""
    sock.sendto(struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, 0, sequence) + payload, (to, 0))
    data, sender = receive(sock, f"echo reply of {to}")
    kind, code, _, identifier, number = struct.unpack("!BBHHH", data[:8])
    expect_equal(sender[0], to, "who replied")
    return kind, code, identifier, number, data[8:]


@test("default", "packet_sockets", "tap_devices")
@shows("5508-REQ-1", "5508-REQ-10a3", "3022-5")
def two_subscribers_with_the_same_query_id_get_their_own_replies(n):
    with sockets(echo_socket(n.sub1, 0x1234), echo_socket(n.sub2, 0x1234)) as subs:
        for sequence in range(1, 21):
            for number, sub in enumerate(subs):
                payload = f"of subscriber {number}, number {sequence}".encode()
                expect_equal(echo(sub, SRV1, sequence, payload), (0, 0, 0x1234, sequence, payload), "reply")


@test()
@shows("5508-REQ-1a")
def a_query_id_keeps_its_mapping_over_destinations(n):
    seen = set()
    with sockets(echo_socket(n.sub1, 0x4321)) as sub, Sniffer(n.srv1) as one, Sniffer(n.srv2) as two:
        for to, sniffer in ((SRV1, one), (SRV1_SECOND, one), (SRV2, two)):
            echo(sub, to, 1)
            packet = sniffer.packets(5, lambda p: p.protocol == 1 and p.payload[0] == ECHO_REQUEST and p.destination == to, 1)[0]
            seen.add((packet.source, struct.unpack("!H", packet.payload[4:6])[0]))
    expect(len(seen) == 1, f"several external endpoints: {sorted(seen)}")
    expect(seen.pop()[0] in POOL, "the external address is not of the pool")


@test()
@shows("5508-REQ-10a3")
def the_own_addresses_answer_pings(n):
    with sockets(echo_socket(n.sub1, 77)) as sub, sockets(echo_socket(n.srv1, 77)) as server:
        expect_equal(echo(sub, NAT_INSIDE, 5)[:4], (0, 0, 77, 5), "reply of the inside address")
        expect_equal(echo(server, NAT_OUTSIDE, 6)[:4], (0, 0, 77, 6), "reply of the outside address")


@test()
@shows("5508-REQ-4a", "5508-REQ-4b", "5508-REQ-4c", "4787-REQ-12b", "3022-7")
def the_subscriber_learns_of_a_closed_port_outside(n):
    with sockets(udp(n.sub1)) as sub:
        sub.connect((SRV1, fresh_port()))
        sub.send(b"anyone there?")
        expect_equal(errno.errorcode.get(pending_error(sub)), "ECONNREFUSED", "error on the socket")


@test()
@shows("5508-REQ-5a", "5508-REQ-5b", "5508-REQ-5c")
def the_server_learns_of_a_closed_port_inside(n):
    with sockets(udp(n.srv1)) as server:
        with sockets(udp(n.sub1)) as sub:
            endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        server.connect(endpoint)
        server.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        server.send(b"anyone there?")
        error = queued_icmp_error(server)
        expect_equal((error.kind, error.code), (3, 3), "ICMP type and code")
        expect_equal(error.offender, endpoint[0], "source of the error")


@test()
@shows("4787-REQ-12", "4787-REQ-12a", "5508-REQ-6")
def no_icmp_error_ends_a_mapping(n):
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1), raw(n.core)) as (sub, server, sender):
        port = server.getsockname()[1]
        endpoint = external_of(sub, server, (SRV1, port))
        quoted = ip_packet(endpoint[0], SRV1, 17, udp_segment(endpoint[0], endpoint[1], SRV1, port, b"quoted"))
        errors = [(3, code) for code in range(16)] + [(4, 0), (5, 0), (11, 0), (11, 1), (12, 0), (40, 0)]
        for kind, code in errors:
            packet = ip_packet("192.0.2.1", endpoint[0], 1, icmp_error(kind, code, quoted, 1400 if code == 4 else 0))
            sender.sendto(packet, (endpoint[0], 0))
            server.sendto(b"still here", endpoint)
            expect_equal(receive(sub, f"datagram after ICMP {kind}/{code}")[0], b"still here", "datagram")
        expect_equal(external_of(sub, server, (SRV1, port)), endpoint, "mapping afterwards")


@test()
@shows("S7", "5508-REQ-10a2")
def the_nat_is_a_hop_seen_from_inside(n):
    with sockets(udp(n.sub1)) as sub:
        sub.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        for ttl, hop in ((1, NAT_INSIDE), (2, CORE)):
            sub.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            sub.sendto(b"how far?", (SRV1, 33434))
            error = queued_icmp_error(sub)
            expect_equal((error.kind, error.code, error.offender), (11, 0, hop), f"answer to TTL {ttl}")


@test()
@shows("S7", "5508-REQ-10a2")
def the_nat_is_a_hop_seen_from_outside(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server), Sniffer(n.sub1) as sniffer:
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        server.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        # The core router takes one, the NAT the other.
        server.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 2)
        server.sendto(b"how far?", endpoint)
        error = queued_icmp_error(server)
        expect_equal((error.kind, error.code), (11, 0), "answer to TTL 2")
        expect(error.offender in (NAT_OUTSIDE, endpoint[0]), f"the hop is {error.offender}")
        server.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 3)
        server.sendto(b"far enough", endpoint)
        expect_equal(receive(sub, "datagram with TTL 3")[0], b"far enough", "datagram")
        port = sub.getsockname()[1]
        arrived = sniffer.packets(5, lambda p: p.source == SRV1 and has_ports(p, 17, destination=port), 1)
        expect_equal([p.ttl for p in arrived], [1], "TTL inside")


@test()
@shows("4787-REQ-12a", "5508-REQ-10a1", "S12")
def the_subscriber_learns_of_a_narrow_link_outside(n):
    with sockets(udp(n.sub1)) as sub:
        sub.connect((SRV2, 9))
        sub.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        sub.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        sub.send(b"x" * 1400)
        error = queued_icmp_error(sub)
        expect_equal((error.kind, error.code), (3, 4), "ICMP type and code")
        expect_equal(error.information, NARROW_MTU, "next-hop MTU")


@test("narrow_outside")
@shows("4787-REQ-13", "5508-REQ-10a1", "S12")
def a_packet_too_big_for_the_outside_is_answered_with_the_mtu(n):
    with sockets(udp(n.sub1)) as sub, Sniffer(n.srv1) as sniffer:
        sub.connect((SRV1, 9))
        sub.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        sub.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        sub.send(b"x" * 1472)
        error = queued_icmp_error(sub)
        expect_equal((error.kind, error.code, error.offender), (3, 4, NAT_INSIDE), "type, code and sender")
        expect_equal(error.information, 1400, "next-hop MTU")
        seen = sniffer.packets(0.5, lambda p: p.protocol == 17)
        expect(not seen, "the packet went on all the same")


@test("narrow_outside")
@shows("4787-REQ-13a", "3022-3")
def a_packet_that_may_be_fragmented_is(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server), Sniffer(n.srv1) as sniffer:
        sub.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        payload = bytes(range(256)) * 5 + b"x" * 192
        sub.sendto(payload, (SRV1, server.getsockname()[1]))
        expect_equal(receive(server, "fragmented datagram")[0], payload, "payload")
        seen = sniffer.packets(5, lambda p: p.protocol == 17, 2)
        expect_equal(len(seen), 2, "fragments")
        expect(seen[0].more_fragments and seen[0].offset == 0, "the first fragment does not come first")
        expect(seen[1].offset == len(seen[0].payload), "the second does not follow on it")
        expect_equal(seen[0].identification, seen[1].identification, "identification")
        expect(all(p.total_length <= 1400 for p in seen), "a fragment is larger than the MTU")


@test("narrow_inside")
@shows("4787-REQ-13", "5508-REQ-10a1", "S12")
def a_packet_too_big_for_the_inside_is_answered_to_the_server(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        server.connect(endpoint)
        server.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        server.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        server.send(b"x" * 1400)
        error = queued_icmp_error(server)
        expect_equal((error.kind, error.code, error.offender), (3, 4, NAT_OUTSIDE), "type, code and sender")
        expect_equal(error.information, 1300, "next-hop MTU")


@test("narrow_inside")
@shows("S12", "5382-REQ-2")
def tcp_finds_the_mtu_of_a_narrow_inside(n):
    port = fresh_port()
    with sockets(listener(n.srv1, port), tcp(n.sub1)) as (server, sub):
        sub.settimeout(20)
        sub.connect((SRV1, port))
        accepted, _ = server.accept()
        with sockets(accepted):
            accepted.settimeout(20)
            data = b"0123456789abcdef" * 4096
            accepted.sendall(data)
            expect(receive_stream(sub, len(data)) == data, "the bytes are others")
            expect_equal(accepted.getsockopt(socket.IPPROTO_IP, IP_MTU), 1300, "path MTU of the server's socket")


@test()
def a_silent_neighbour_outside_is_unreachable(n):
    _, output, _ = n.sub1.run(["ping", "-n", "-c", "1", "-W", "15", ABSENT_OUTSIDE])
    expect(f"From {NAT_INSIDE} icmp_seq=1 Destination Host Unreachable" in output, f"ping printed {output!r}")
    with sockets(tcp(n.sub1)) as sub:
        error = sub.connect_ex((ABSENT_OUTSIDE, 80))
        expect_equal(errno.errorcode.get(error), "EHOSTUNREACH", "result of connect()")


@test()
def a_subscriber_that_left_is_unreachable(n):
    n.sub1.ip("address", "add", f"{LEAVING}/24", "dev", "eth0")
    with sockets(udp(n.srv1)) as server:
        try:
            with sockets(udp(n.sub1, address=LEAVING)) as sub:
                endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        finally:
            n.sub1.ip("address", "delete", f"{LEAVING}/24", "dev", "eth0")
        server.connect(endpoint)
        server.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        server.send(b"still there?")
        error = queued_icmp_error(server, 15)
        expect_equal((error.kind, error.code, error.offender), (3, 1, NAT_OUTSIDE), "type, code and sender")


@test()
@shows("5508-REQ-4")
def errors_about_nothing_are_dropped(n):
    with sockets(raw(n.core)) as sender, Sniffer(n.sub1) as one, Sniffer(n.sub2) as two:
        for address in POOL:
            quoted = ip_packet(address, SRV1, 17, udp_segment(address, 7, SRV1, 7, b"never sent"))
            sender.sendto(ip_packet("192.0.2.1", address, 1, icmp_error(3, 3, quoted)), (address, 0))
        for sniffer in (one, two):
            # A translated error quotes another source; those that earlier tests cause have other
            # ports.
            seen = sniffer.packets(0.7, lambda p: p.protocol == 1 and p.payload[0] == 3 and p.payload[30:32] == struct.pack("!H", 7))
            expect(not seen, "an error came through")


@test()
@shows("5508-REQ-5", "5508-REQ-10b3")
def errors_of_a_subscriber_about_nothing_are_dropped(n):
    inside = SUBSCRIBERS["sub1"]
    with sockets(raw(n.sub1)) as sender, Sniffer(n.srv1) as sniffer:
        quoted = ip_packet(SRV1, inside, 17, udp_segment(SRV1, 7, inside, 7, b"never came"))
        sender.sendto(ip_packet(inside, SRV1, 1, icmp_error(3, 3, quoted)), (SRV1, 0))
        # Errors that earlier tests cause have other ports.
        seen = sniffer.packets(0.7, lambda p: p.protocol == 1 and p.payload[0] == 3 and p.payload[28:30] == struct.pack("!H", 7))
        expect(not seen, "an error came through")
