"""UDP through real kernels: RFC 4787 and what RFC 7857 changed in it."""

import contextlib
import random
import socket
import struct
import time

from kit import *
from netlab.process import wait_until
from netlab.topology import NAT_INSIDE
from netlab.topology import NAT_OUTSIDE
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SRV1_SECOND
from netlab.topology import SRV2
from netlab.topology import SUBSCRIBERS


@test("default", "packet_sockets", "tap_devices")
@shows("4787-REQ-1", "3022-1")
def one_endpoint_keeps_its_mapping_over_many_destinations(n):
    port = fresh_port()
    with sockets(udp(n.sub1)) as sub:
        seen = set()
        for host, address in ((n.srv1, SRV1), (n.srv1, SRV1_SECOND), (n.srv2, SRV2)):
            for offset in range(5):
                with sockets(udp(host, port + offset, address)) as server:
                    seen.add(external_of(sub, server, (address, port + offset)))
        expect(len(seen) == 1, f"{len(seen)} external endpoints: {sorted(seen)}")
        expect(seen.pop()[0] in POOL, "the external address is not of the pool")


@test()
@shows("4787-REQ-2")
def all_mappings_of_one_subscriber_share_one_address(n):
    with sockets(udp(n.srv1)) as server:
        destination = (SRV1, server.getsockname()[1])
        seen = set()
        for _ in range(60):
            with sockets(udp(n.sub1)) as sub:
                seen.add(external_of(sub, server, destination)[0])
    expect(len(seen) == 1, f"several addresses: {sorted(seen)}")


@test("default", "packet_sockets", "tap_devices")
@shows("4787-REQ-3", "S15")
def no_external_endpoint_is_given_twice(n):
    with sockets(udp(n.srv1)) as server:
        destination = (SRV1, server.getsockname()[1])
        owners = {}
        subs = [udp(host) for host in (n.sub1, n.sub2) for _ in range(250)]
        with sockets(*subs):
            for sub in subs:
                endpoint = external_of(sub, server, destination)
                expect(endpoint not in owners, f"{endpoint} was given twice")
                owners[endpoint] = sub
            # Every one of them leads back to its owner only.
            for endpoint, sub in owners.items():
                server.sendto(str(endpoint).encode(), endpoint)
                data, _ = receive(sub, f"reply to {endpoint}")
                expect_equal(data, str(endpoint).encode(), "reply")


@test("default", "packet_sockets", "tap_devices")
@shows("4787-REQ-3", "4787-REQ-2")
def two_hundred_subscribers_each_get_their_own_replies(n):
    with sockets(udp(n.srv1)) as server:
        destination = (SRV1, server.getsockname()[1])
        subs = [udp(n.sub2, 5000, f"100.64.0.{last}") for last in range(20, 220)]
        with sockets(*subs):
            endpoints = [external_of(sub, server, destination) for sub in subs]
            expect_equal(len(set(endpoints)), 200, "different external endpoints")
            for sub, endpoint in zip(subs, endpoints):
                server.sendto(sub.getsockname()[0].encode(), endpoint)
            for sub in subs:
                data, _ = receive(sub, f"reply to {sub.getsockname()[0]}")
                expect_equal(data.decode(), sub.getsockname()[0], "reply")


@test()
@shows("4787-REQ-3a")
def low_ports_stay_low_and_high_ports_stay_high(n):
    with sockets(udp(n.srv1)) as server:
        destination = (SRV1, server.getsockname()[1])
        for port in (1, 500, 1023):
            with sockets(udp(n.sub1, port)) as sub:
                _, external = external_of(sub, server, destination)
                expect(0 < external < 1024, f"port {port} became {external}")
        for port in (1024, 40000, 65535):
            with sockets(udp(n.sub1, port)) as sub:
                _, external = external_of(sub, server, destination)
                expect(external >= 1024, f"port {port} became {external}")


@test()
@shows("4787-REQ-8", "7857-6a")
def with_independent_filtering_anyone_may_answer(n):
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1), udp(n.srv1, address=SRV1_SECOND), udp(n.srv2)) as (
        sub, first, second, third,
    ):  # fmt: skip
        endpoint = external_of(sub, first, (SRV1, first.getsockname()[1]))
        for stranger, address in ((second, SRV1_SECOND), (third, SRV2)):
            stranger.sendto(b"hello", endpoint)
            _, sender = receive(sub, f"datagram of {address}")
            expect_equal(sender, (address, stranger.getsockname()[1]), "sender")


@test("address_dependent")
@shows("4787-REQ-8", "4787-REQ-8a")
def with_address_dependent_filtering_only_the_address_counts(n):
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1), udp(n.srv1, address=SRV1), udp(n.srv1, address=SRV1_SECOND)) as (
        sub, first, same_address, other_address,
    ):  # fmt: skip
        endpoint = external_of(sub, first, (SRV1, first.getsockname()[1]))
        other_address.sendto(b"no", endpoint)
        same_address.sendto(b"yes", endpoint)
        data, _ = receive(sub, "datagram of another port")
        expect_equal(data, b"yes", "datagram let in")
        expect_silence(sub, 0.5, "datagram of another address")


@test("address_and_port_dependent")
@shows("4787-REQ-8", "4787-REQ-8a")
def with_port_dependent_filtering_the_port_counts_too(n):
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1), udp(n.srv1, address=SRV1), udp(n.srv1, address=SRV1_SECOND)) as (
        sub, first, same_address, other_address,
    ):  # fmt: skip
        endpoint = external_of(sub, first, (SRV1, first.getsockname()[1]))
        other_address.sendto(b"no", endpoint)
        same_address.sendto(b"no", endpoint)
        first.sendto(b"yes", endpoint)
        data, _ = receive(sub, "datagram of the remote endpoint")
        expect_equal(data, b"yes", "datagram let in")
        expect_silence(sub, 0.5, "datagrams of others")


def hairpin(n):
    """Two subscribers and what each is seen as from outside."""
    with sockets(udp(n.srv1)) as server:
        destination = (SRV1, server.getsockname()[1])
        one, two = udp(n.sub1), udp(n.sub2)
        return one, external_of(one, server, destination), two, external_of(two, server, destination)


@test("default", "packet_sockets", "tap_devices")
@shows("4787-REQ-9", "4787-REQ-9a")
def subscribers_reach_each_other_by_external_endpoints(n):
    one, one_external, two, two_external = hairpin(n)
    with sockets(one, two):
        two.sendto(b"question", one_external)
        data, sender = receive(one, "hairpinned datagram")
        expect_equal(data, b"question", "datagram")
        expect_equal(sender, two_external, "source of the hairpinned datagram")
        one.sendto(b"answer", sender)
        data, sender = receive(two, "hairpinned reply")
        expect_equal((data, sender), (b"answer", one_external), "reply")


@test()
@shows("4787-REQ-9", "7857-6a")
def a_subscriber_reaches_itself_by_its_external_endpoint(n):
    one, one_external, two, _ = hairpin(n)
    with sockets(one, two):
        one.sendto(b"to myself", one_external)
        data, sender = receive(one, "datagram to myself")
        expect_equal((data, sender), (b"to myself", one_external), "datagram")


@test()
@shows("5508-REQ-7", "5508-REQ-7a", "S8")
def a_closed_port_is_reported_through_the_hairpin(n):
    one, one_external, two, _ = hairpin(n)
    one.close()
    with sockets(two):
        two.connect(one_external)
        two.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        two.send(b"anyone there?")
        error = queued_icmp_error(two)
        expect_equal((error.kind, error.code), (3, 3), "ICMP type and code")
        expect_equal(error.offender, one_external[0], "source of the error")


@test()
@shows("3022-4", "S2")
def no_checksum_stays_no_checksum_both_ways(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server), Sniffer(n.srv1) as outside, Sniffer(n.sub1) as inside:
        for sock in (sub, server):
            sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        destination = (SRV1, server.getsockname()[1])
        endpoint = external_of(sub, server, destination)
        server.sendto(b"back", endpoint)
        receive(sub, "datagram without checksum")
        for sniffer, sock, address in ((outside, server, SRV1), (inside, sub, SUBSCRIBERS["sub1"])):
            seen = sniffer.packets(5, lambda p, to=sock.getsockname()[1]: has_ports(p, 17, destination=to), 1)
            expect(seen, f"{address} saw no packet")
            expect_equal(seen[0].payload[6:8], b"\0\0", f"checksum seen by {address}")


# Not over packet sockets: when the queue of a flow is nearly full, the kernel moves on to another
# one with it.
@test("default", "tap_devices")
@shows("S15")
def order_is_kept_within_a_flow(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        for sender, receiver, to in ((sub, server, (SRV1, server.getsockname()[1])), (server, sub, endpoint)):
            seen = []

            def read(seconds):
                receiver.settimeout(seconds)
                with contextlib.suppress(socket.timeout, BlockingIOError):
                    while len(seen) < 3000:
                        seen.append(struct.unpack("!I", receiver.recv(64))[0])

            for number in range(3000):
                sender.sendto(struct.pack("!I", number), to)
                if number % 20 == 19:
                    time.sleep(0.002)
                    read(0)
                    # No queue on the path may overflow while a busy machine forwards late.
                    wait_until(lambda: read(0.01) or number - len(seen) < 400, 2, 0)  # noqa: B023
            wait_until(lambda: read(0.5) or len(seen) == 3000, 2, 0)
            expect(len(seen) > 2500, f"only {len(seen)} of 3000 came")
            expect(seen == sorted(seen), "datagrams overtook each other")


@test()
@shows("3022-3", "3022-6")
def every_payload_length_arrives_both_ways(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        destination = (SRV1, server.getsockname()[1])
        for length in (*range(0, 66), *range(1465, 1473)):
            payload = random.Random(length).randbytes(length)
            sub.sendto(payload, destination)
            data, endpoint = receive(server, f"datagram of {length} bytes")
            expect_equal(data, payload, "payload outside")
            server.sendto(payload, endpoint)
            expect_equal(receive(sub, f"reply of {length} bytes")[0], payload, "payload inside")


@test()
@shows("3022-6", "3022-3")
def ip_options_of_every_length_pass(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        destination = (SRV1, server.getsockname()[1])
        for words in range(1, 11):
            # No-operation options: legal, harmless and four bytes a word.
            sub.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x01" * 4 * words)
            sub.sendto(b"with options", destination)
            receive(server, f"datagram with {4 * words} bytes of options")


@test()
@shows("S7")
def ttl_loses_one_here_and_the_class_of_service_stays(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server), Sniffer(n.srv1) as outside, Sniffer(n.sub1) as inside:
        for sock in (sub, server):
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 100)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0xB8)
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        server.sendto(b"back", endpoint)
        receive(sub, "reply")
        for sniffer, sock, address in ((outside, server, SRV1), (inside, sub, SUBSCRIBERS["sub1"])):
            seen = sniffer.packets(5, lambda p, to=sock.getsockname()[1]: has_ports(p, 17, destination=to), 1)
            # The core router takes one as well.
            expect_equal([(p.ttl, p.class_of_service) for p in seen], [(98, 0xB8)], f"TTL and TOS seen by {address}")


@test()
def a_forged_source_goes_nowhere(n):
    port = fresh_port()
    with sockets(raw(n.sub1)) as sender, Sniffer(n.srv1) as sniffer:
        for source in (*POOL, "8.8.8.8", "127.0.0.1", NAT_INSIDE):
            segment = udp_segment(source, port, SRV1, port, b"forged")
            sender.sendto(ip_packet(source, SRV1, 17, segment), (SRV1, 0))
        seen = sniffer.packets(1, lambda p: p.payload.endswith(b"forged"))
        expect(not seen, f"a packet of {[p.source for p in seen]} came through")


@test()
def packets_from_outside_cannot_reach_an_inside_address(n):
    n.core.ip("route", "add", "100.64.0.0/10", "via", NAT_OUTSIDE)
    try:
        with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
            endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
            server.sendto(b"direct", (SUBSCRIBERS["sub1"], sub.getsockname()[1]))
            server.sendto(b"translated", endpoint)
            expect_equal(receive(sub, "translated datagram")[0], b"translated", "datagram")
            expect_silence(sub, 0.5, "datagram to the inside address")
    finally:
        n.core.ip("route", "del", "100.64.0.0/10")


@test()
@shows("3022-10")
def other_protocols_are_dropped(n):
    with sockets(raw(n.sub1)) as sender, Sniffer(n.srv1) as sniffer:
        for protocol in (47, 132, 253):
            sender.sendto(ip_packet(SUBSCRIBERS["sub1"], SRV1, protocol, b"\0" * 32), (SRV1, 0))
        seen = sniffer.packets(1, lambda p: p.protocol in (47, 132, 253))
        expect(not seen, f"{len(seen)} packets came through")


@test()
def unused_external_ports_are_silent(n):
    with sockets(udp(n.srv1)) as server, Sniffer(n.srv1) as sniffer:
        for address in POOL:
            server.sendto(b"anyone?", (address, 9))
        # What is still under way from earlier tests has other ports.
        own = server.getsockname()[1]
        is_datagram = lambda p: p.source in POOL and p.protocol == 17 and p.payload[:4] == struct.pack("!HH", 9, own)
        seen = sniffer.packets(1.5, lambda p: is_datagram(p) or quotes(p, (own, 9)))
        expect(not seen, f"{len(seen)} answers, the first from {seen[0].source if seen else None}")


@test()
def a_pool_address_on_the_outside_subnet_is_answered_by_arp(n):
    with sockets(udp(n.core)) as sock:
        sock.sendto(b"who has?", ("198.51.100.77", 9))
        deadline = time.monotonic() + 5
        entry = ""
        while time.monotonic() < deadline and "lladdr" not in entry:
            time.sleep(0.1)
            entry = n.core.ip("neighbour", "show", "198.51.100.77")
        expect("lladdr" in entry, f"no neighbour: {entry.strip()}")
