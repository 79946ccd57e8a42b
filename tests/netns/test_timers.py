"""Timers, made short by configuration, seen by real kernels: RFC 4787 §4.3, RFC 5508 §3.2, RFC 7857 §7.

Every test looks at the clock itself: where the machine was too slow for the question to make sense, it asks again.
"""

import socket
import struct
import time

from kit import *
from netlab.topology import SRV1
from setups import SHORT_SECONDS

# How much longer than its timer a mapping is given to be gone: the timer itself is exact at lookup.
MARGIN = 0.5


def mapped(n, sub, server):
    """The external endpoint; a time before the mapping was used, and a time after."""
    before = time.monotonic()
    endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
    return endpoint, before, time.monotonic()


def probe(server, sub, endpoint, seconds=0.4):
    """Whether a datagram from outside still finds its way in."""
    server.sendto(b"probe", endpoint)
    sub.settimeout(seconds)
    try:
        sub.recvfrom(100)
    except (socket.timeout, BlockingIOError):
        return False
    return True


def in_time(attempt):
    """Runs `attempt` until it says that the machine was quick enough (true)."""
    for _ in range(10):
        if attempt():
            return
    raise Failure("the machine is too slow to look within the timer ten times in a row")


@test("short_timers")
@shows("4787-REQ-5b", "3022-2")
def a_quiet_mapping_lives_its_time_and_then_goes(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):

        def alive_before():
            endpoint, begun, _ = mapped(n, sub, server)
            time.sleep(SHORT_SECONDS * 0.5)
            # A busy machine may deliver the datagram late: the NAT has the rest of the time.
            quick = time.monotonic() - begun < SHORT_SECONDS * 0.6
            alive = probe(server, sub, endpoint, SHORT_SECONDS)
            expect(alive or not quick, "gone before its time")
            return alive

        in_time(alive_before)
        endpoint, _, _ = mapped(n, sub, server)
        time.sleep(SHORT_SECONDS + MARGIN)
        expect(not probe(server, sub, endpoint), "still there after its time")


@test("short_timers")
@shows("4787-REQ-6")
def outbound_traffic_refreshes(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):

        def attempt():
            first, last, _ = mapped(n, sub, server)
            for _ in range(5):
                time.sleep(SHORT_SECONDS * 0.5)
                endpoint, begun, ended = mapped(n, sub, server)
                if ended - last >= SHORT_SECONDS:
                    return False
                last = begun
                expect_equal(endpoint, first, "external endpoint")
            return True

        in_time(attempt)


@test("short_timers")
@shows("4787-REQ-6a", "S14")
def inbound_traffic_does_not_refresh_by_default(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        endpoint, _, begun = mapped(n, sub, server)
        while time.monotonic() - begun < SHORT_SECONDS + MARGIN:
            server.sendto(b"refresh?", endpoint)
            time.sleep(0.2)
        # A busy machine may deliver datagrams late that were forwarded in time.
        time.sleep(MARGIN)
        while has_waiting_datagram(sub):
            pass
        expect(not probe(server, sub, endpoint), "inbound datagrams kept the mapping")


def has_waiting_datagram(sub):
    """Takes one datagram that waits already; false when there is none."""
    sub.settimeout(0)
    try:
        sub.recvfrom(100)
    except BlockingIOError:
        return False
    return True


@test("short_timers")
@shows("7857-7.1a", "S14")
def unreachables_sent_by_the_subscriber_do_not_refresh(n):
    with sockets(udp(n.srv1)) as server:
        with sockets(udp(n.sub1)) as sub:
            endpoint, _, begun = mapped(n, sub, server)
        server.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        errors = 0
        while time.monotonic() - begun < SHORT_SECONDS + MARGIN:
            errors += bounced(server, endpoint)
            time.sleep(0.2)
        expect(errors > 0, "no error came for the closed port")
        # A busy machine may deliver errors late that were sent in time.
        while bounced(server, endpoint, sends=False):
            pass
        expect_equal(bounced(server, endpoint), 0, "port unreachables after the time of the mapping")


def bounced(server, endpoint, sends=True):
    """1 if a datagram to `endpoint` comes back as unreachable, else 0. With `sends=False`: an earlier datagram."""
    try:
        if sends:
            server.sendto(b"closed?", endpoint)
        queued_icmp_error(server, 0.3)
    except Failure:
        return 0
    except OSError:
        # The error of an earlier datagram; it says the same.
        return 1
    return 1


@test("short_timers")
@shows("5508-REQ-2a")
def a_query_mapping_goes_after_its_time(n):
    def external_id(sub, sniffer):
        sub.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1), (SRV1, 0))
        receive(sub, "echo reply")
        # Errors of earlier tests may still come.
        packets = sniffer.packets(5, lambda p: p.protocol == 1 and p.payload[0] == 8 and p.destination == SRV1, 1)
        return packets[0].source, struct.unpack("!H", packets[0].payload[4:6])[0]

    with sockets(echo_socket(n.sub1, 4711)) as sub, Sniffer(n.srv1) as sniffer:
        # Identifiers are chosen at random: the same one three times over is no chance.
        seen = set()
        for _ in range(3):
            seen.add(external_id(sub, sniffer))
            time.sleep(SHORT_SECONDS + MARGIN)
        expect(len(seen) > 1, "the mapping never went")


@test("short_timers")
@shows("5382-REQ-5a", "7857-2.1a")
def an_established_connection_outlives_the_opening_timer(n):
    port = fresh_port()
    with sockets(listener(n.srv1, port), tcp(n.sub1)) as (server, sub):
        sub.connect((SRV1, port))
        accepted, _ = server.accept()
        with sockets(accepted):
            accepted.settimeout(20)
            time.sleep(SHORT_SECONDS * 2)
            accepted.sendall(b"after a pause")
            expect_equal(receive_stream(sub, 13), b"after a pause", "data")
