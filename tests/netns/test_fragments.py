"""Fragments in every order through real kernels: RFC 4787 REQ-14, RFC 7857 §10."""

import itertools
import random
import time

from kit import *
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS

_IDENTIFICATIONS = itertools.count(1000)


def inbound(n, server, sub, endpoint, order, pause=0.0):
    """Sends one datagram of three fragments to `endpoint` in the given order; it must arrive as it was."""
    port = server.getsockname()[1]
    payload = random.Random(str(order)).randbytes(2900)
    segment = udp_segment(SRV1, port, *endpoint, payload)
    parts = fragments(SRV1, endpoint[0], 17, segment, next(_IDENTIFICATIONS), 1000)
    with sockets(raw(n.srv1)) as sender:
        for number, index in enumerate(order):
            if number == len(order) - 1:
                time.sleep(pause)
            sender.sendto(parts[index], (endpoint[0], 0))
    expect_equal(receive(sub, f"datagram in order {order}")[0], payload, "payload")


@test("default", "tap_devices")
@shows("4787-REQ-14", "S4")
def inbound_fragments_arrive_in_every_order(n):
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1)) as (sub, server):
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        for order in itertools.permutations(range(3)):
            inbound(n, server, sub, endpoint, order)


@test()
@shows("4787-REQ-14", "S4")
def a_late_fragment_still_arrives(n):
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1)) as (sub, server):
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        for order in ((0, 1, 2), (1, 2, 0)):
            inbound(n, server, sub, endpoint, order, pause=0.8)


@test("default", "tap_devices")
@shows("4787-REQ-14", "3022-3")
def outbound_fragments_arrive_in_every_order(n):
    inside = SUBSCRIBERS["sub1"]
    with sockets(udp(n.sub1), udp(n.srv1, address=SRV1)) as (sub, server):
        port, sub_port = server.getsockname()[1], sub.getsockname()[1]
        endpoint = external_of(sub, server, (SRV1, port))
        for order in itertools.permutations(range(3)):
            payload = random.Random(str(order)).randbytes(2900)
            segment = udp_segment(inside, sub_port, SRV1, port, payload)
            parts = fragments(inside, SRV1, 17, segment, next(_IDENTIFICATIONS), 1000)
            with sockets(raw(n.sub1)) as sender:
                for index in order:
                    sender.sendto(parts[index], (SRV1, 0))
            data, source = receive(server, f"datagram in order {order}")
            expect_equal((data, source), (payload, endpoint), "datagram and its source")


@test()
@shows("7857-10", "S5")
def equal_identifications_of_two_subscribers_do_not_mix(n):
    with sockets(udp(n.srv1, address=SRV1)) as server:
        port = server.getsockname()[1]
        # Several subscribers, so that some share an external address.
        addresses = [f"100.64.0.{last}" for last in range(20, 32)]
        payloads = {address: random.Random(address).randbytes(2400) for address in addresses}
        with sockets(raw(n.sub2)) as sender:
            parts = [
                fragments(address, SRV1, 17, udp_segment(address, 6000, SRV1, port, payload), 4242, 1200)
                for address, payload in payloads.items()
            ]
            for piece in itertools.chain.from_iterable(zip(*parts)):
                sender.sendto(piece, (SRV1, 0))
        received = [receive(server, "datagram of fragments")[0] for _ in addresses]
        expect_equal(sorted(received), sorted(payloads.values()), "datagrams")


@test()
@shows("4787-REQ-14", "4787-REQ-9")
def large_datagrams_pass_the_hairpin(n):
    with sockets(udp(n.sub1), udp(n.sub2), udp(n.srv1)) as (one, two, server):
        destination = (SRV1, server.getsockname()[1])
        one_external = external_of(one, server, destination)
        two_external = external_of(two, server, destination)
        payload = random.Random(9).randbytes(6000)
        two.sendto(payload, one_external)
        data, sender = receive(one, "large hairpinned datagram")
        expect(data == payload, "the bytes are others")
        expect_equal(sender, two_external, "source")
