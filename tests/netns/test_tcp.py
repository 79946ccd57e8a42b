"""TCP between real kernels: RFC 5382 and what RFC 7857 changed in it."""

import contextlib
import errno
import hashlib
import random
import socket
import struct
import threading
import time

from kit import *
from netlab.process import wait_until
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SRV1_SECOND
from netlab.topology import SRV2
from netlab.topology import SUBSCRIBERS


def connection(n, sub_port=0, host=None, address=SRV1):
    """A connection of sub1 to a server: (subscriber's end, server's end, external endpoint)."""
    port = fresh_port()
    with sockets(listener(host or n.srv1, port, address)) as server:
        sub = tcp(n.sub1, sub_port)
        sub.connect((address, port))
        accepted, external = server.accept()
        accepted.settimeout(20)
        return sub, accepted, external


@test()
@shows("5382-REQ-1", "3022-1")
def one_endpoint_keeps_its_mapping_over_many_destinations_tcp(n):
    port = fresh_port()
    ends, seen = [], set()
    for host, address in ((n.srv1, SRV1), (n.srv1, SRV1), (n.srv1, SRV1_SECOND), (n.srv2, SRV2)):
        sub, server, external = connection(n, port, host, address)
        ends += [sub, server]
        seen.add(external)
    with sockets(*ends):
        expect(len(seen) == 1, f"{len(seen)} external endpoints: {sorted(seen)}")
        expect(seen.pop()[0] in POOL, "the external address is not of the pool")


@test()
@shows("7857-5a")
def tcp_and_udp_mappings_are_independent(n):
    # With ports chosen at random, 20 pairs that all coincide would be no chance.
    same = 0
    for _ in range(20):
        port = fresh_port()
        sub, server, external = connection(n, port)
        with sockets(sub, server, udp(n.sub1, port), udp(n.srv1)) as (_, _, sub_udp, server_udp):
            same += external == external_of(sub_udp, server_udp, (SRV1, server_udp.getsockname()[1]))
    expect(same < 20, "TCP and UDP always share their external port")


@test()
@shows("5382-REQ-7")
def no_external_endpoint_is_given_twice_tcp(n):
    port = fresh_port()
    with sockets(listener(n.srv1, port)) as server:
        subs = [tcp(host) for host in (n.sub1, n.sub2) for _ in range(100)]
        ends = []
        with sockets(*subs):
            for sub in subs:
                sub.connect((SRV1, port))
                ends.append(server.accept())
            externals = [external for _, external in ends]
            for accepted, _ in ends:
                accepted.close()
        expect_equal(len(set(externals)), 200, "different external endpoints")


@test()
@shows("5382-REQ-3", "7857-6a")
def with_independent_filtering_a_stranger_may_connect(n):
    port = fresh_port()
    sub, server, external = connection(n, port)
    with sockets(sub, server, listener(n.sub1, port), tcp(n.srv2)) as (_, _, inside, stranger):
        stranger.connect(external)
        accepted, sender = inside.accept()
        with sockets(accepted):
            expect_equal(sender[0], SRV2, "sender")
            stranger.sendall(b"through")
            expect_equal(receive_stream(accepted, 7), b"through", "data")


@test("tcp_address_dependent")
@shows("5382-REQ-3", "5382-REQ-3a", "5382-REQ-3b")
def filtering_of_tcp_is_chosen_apart_from_udp(n):
    port = fresh_port()
    sub, server, external = connection(n, port)
    with sockets(sub, server, listener(n.sub1, port)) as (_, _, inside):
        with sockets(tcp(n.srv1, address=SRV1)) as same_address:
            same_address.connect(external)
            inside.accept()[0].close()
        with sockets(tcp(n.srv2, timeout=1.5)) as stranger:
            try:
                stranger.connect(external)
            except OSError:
                pass
            else:
                raise Failure("a stranger's connection was let in")
    with sockets(udp(n.sub1), udp(n.srv1), udp(n.srv2)) as (sub, server, stranger):
        endpoint = external_of(sub, server, (SRV1, server.getsockname()[1]))
        stranger.sendto(b"udp is open", endpoint)
        receive(sub, "datagram of a stranger")


@test()
@shows("5382-REQ-2", "S9")
def one_direction_goes_on_long_after_the_other_is_closed(n):
    size = 24 << 20
    data = random.Random(1).randbytes(size)
    sub, server, _ = connection(n)
    with sockets(sub, server):
        sub.settimeout(60)
        server.settimeout(60)
        sub.sendall(b"request")
        sub.shutdown(socket.SHUT_WR)
        expect_equal(receive_stream(server, 100), b"request", "request up to its end")
        sender = threading.Thread(target=lambda: (server.sendall(data), server.shutdown(socket.SHUT_WR)))
        sender.start()
        received = receive_stream(sub, size + 1)
        sender.join()
        expect_equal(len(received), size, "bytes")
        expect(received == data, "the bytes are others")


@test("default", "packet_sockets", "tap_devices")
@shows("5382-REQ-2", "3022-3")
def both_directions_at_once_arrive_as_sent(n):
    size = 16 << 20
    data = {"up": random.Random(2).randbytes(size), "down": random.Random(3).randbytes(size)}
    sub, server, _ = connection(n)
    received = {}
    with sockets(sub, server):
        sub.settimeout(60)
        server.settimeout(60)

        def read(name, sock):
            received[name] = hashlib.sha256(receive_stream(sock, size)).digest()

        threads = [
            threading.Thread(target=sub.sendall, args=(data["up"],)),
            threading.Thread(target=server.sendall, args=(data["down"],)),
            threading.Thread(target=read, args=("up", server)),
            threading.Thread(target=read, args=("down", sub)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name, sent in data.items():
        expect_equal(received.get(name), hashlib.sha256(sent).digest(), f"checksum {name}")


@test()
@shows("5382-REQ-2a")
def both_ends_may_open_at_the_same_time(n):
    sub_port, server_port = fresh_port(), fresh_port()
    first, first_server, external = connection(n, sub_port, n.srv2, SRV2)
    # The server's own kernel must not answer the subscriber's SYN: it is lost on the last metre.
    table = f"ip open{server_port}"
    n.srv1.run(
        ["nft", "-f", "-"],
        check=True,
        stdin=f"""
            table {table} {{
                chain in {{
                    type filter hook input priority 0;
                    tcp dport {server_port} tcp flags & (syn | ack) == syn counter drop
                }}
            }}
        """,
    )
    try:
        with sockets(first, first_server, tcp(n.sub1, sub_port), tcp(n.srv1, server_port)) as (_, _, sub, server):
            sub.setblocking(False)
            expect_equal(sub.connect_ex((SRV1, server_port)), errno.EINPROGRESS, "connect")
            with_syn = lambda: "packets 0" not in n.srv1.run(["nft", "list", "table", *table.split()])[1]
            expect(wait_until(with_syn, 5), "the subscriber's SYN does not arrive")
            server.connect(external)
            server.sendall(b"from outside")
            sub.settimeout(20)
            expect_equal(receive_stream(sub, 12), b"from outside", "data")
            sub.sendall(b"from inside")
            expect_equal(receive_stream(server, 11), b"from inside", "data")
    finally:
        n.srv1.run(["nft", "delete", "table", *table.split()])


@test()
@shows("5382-REQ-2")
def data_in_the_syn_passes(n):
    port = fresh_port()
    for host in (n.sub1, n.srv1):
        host.sysctl("net.ipv4.tcp_fastopen", 3)
    with sockets(listener(n.srv1, port)) as server, Sniffer(n.srv1) as sniffer:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
        # The first connection brings the cookie, the second one's SYN carries data.
        for text in (b"first", b"second"):
            with sockets(tcp(n.sub1)) as sub:
                # Only a blocking socket takes data before the connection is there; two SYNs bound
                # the wait.
                sub.setblocking(True)
                sub.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, 2)
                sub.sendto(text, MSG_FASTOPEN, (SRV1, port))
                accepted, _ = server.accept()
                with sockets(accepted):
                    accepted.settimeout(20)
                    expect_equal(receive_stream(accepted, len(text)), text, "data")
        syns = sniffer.packets(1, lambda p: has_ports(p, 6, destination=port) and p.payload[13] & 0x12 == 2)
        expect(any(p.payload.endswith(b"second") for p in syns), "no SYN carried data")


@test()
@shows("5382-REQ-2")
def urgent_data_and_congestion_marks_pass(n):
    for host in (n.sub1, n.srv1):
        host.sysctl("net.ipv4.tcp_ecn", 1)
    with Sniffer(n.srv1) as sniffer:
        sub, server, _ = connection(n)
        with sockets(sub, server):
            sub.send(b"!", socket.MSG_OOB)
            # A socket with a timeout waits for ordinary data first.
            server.setblocking(False)

            def urgent():
                with contextlib.suppress(OSError):
                    return server.recv(1, socket.MSG_OOB)

            expect_equal(wait_until(urgent, 5, 0.02), b"!", "urgent byte")
            port = server.getsockname()[1]
        seen = sniffer.packets(1, lambda p: has_ports(p, 6, destination=port) and p.payload[13] & 0x02)
        expect(seen and seen[0].payload[13] & 0xC0 == 0xC0, "the SYN has lost its congestion marks")


def reset(sock):
    """Closes with a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def expect_reset(sock, who):
    try:
        data = sock.recv(1)
    except ConnectionResetError:
        return
    except (socket.timeout, BlockingIOError):
        raise Failure(f"{who} got no error") from None
    raise Failure(f"{who} read {data!r}")


@test()
@shows("7857-2.2a")
def resets_pass_in_both_directions(n):
    sub, server, _ = connection(n)
    reset(server)
    with sockets(sub):
        expect_reset(sub, "the subscriber")
    sub, server, _ = connection(n)
    reset(sub)
    with sockets(server):
        expect_reset(server, "the server")


@test()
@shows("S9")
def the_same_five_numbers_work_again_right_after_a_reset(n):
    sub_port, port = fresh_port(), fresh_port()
    externals = set()
    with sockets(listener(n.srv1, port)) as server:
        for _ in range(3):
            sub = tcp(n.sub1, sub_port)
            sub.connect((SRV1, port))
            accepted, external = server.accept()
            externals.add(external)
            with sockets(accepted):
                reset(sub)
                expect_reset(accepted, "the server")
    expect(len(externals) == 1, f"the mapping changed: {sorted(externals)}")


@test("default", "packet_sockets", "tap_devices")
@shows("5382-REQ-8", "5382-REQ-8a")
def subscribers_connect_to_each_other_by_external_endpoints(n):
    port = fresh_port()
    sub, server, external = connection(n, port)
    with sockets(sub, server, listener(n.sub1, port), tcp(n.sub2)) as (_, _, inside, other):
        other.connect(external)
        accepted, sender = inside.accept()
        with sockets(accepted):
            expect(sender[0] in POOL, f"the caller is seen as {sender}")
            accepted.settimeout(20)
            other.settimeout(20)
            data = random.Random(4).randbytes(4 << 20)
            thread = threading.Thread(target=other.sendall, args=(data,))
            thread.start()
            expect(receive_stream(accepted, len(data)) == data, "the bytes are others")
            thread.join()
            accepted.shutdown(socket.SHUT_WR)
            expect_equal(other.recv(1), b"", "end of data")


@test()
@shows("5382-REQ-9")
def a_connecting_socket_learns_of_an_unreachable_network(n):
    n.core.ip("route", "add", "unreachable", "198.51.102.0/24")
    try:
        with sockets(tcp(n.sub1)) as sub:
            begun = time.monotonic()
            error = sub.connect_ex(("198.51.102.1", 80))
            # Without the ICMP error the connection would end by its own timer: 20 s here, minutes
            # elsewhere.
            expect_equal(errno.errorcode.get(error), "EHOSTUNREACH", f"error after {time.monotonic() - begun:.1f} s")
    finally:
        n.core.ip("route", "del", "unreachable", "198.51.102.0/24")


@test()
@shows("5382-REQ-10")
def icmp_errors_do_not_end_a_connection(n):
    sub, server, external = connection(n)
    with sockets(sub, server, raw(n.core)) as (_, _, sender):
        server_endpoint = server.getsockname()
        quoted = ip_packet(external[0], server_endpoint[0], 6, struct.pack("!HHI", external[1], server_endpoint[1], 1))
        for code in (0, 1, 2, 3, 9, 10, 13):
            packet = ip_packet("192.0.2.1", external[0], 1, icmp_error(3, code, quoted))
            sender.sendto(packet, (external[0], 0))
        time.sleep(0.2)
        server.sendall(b"still here")
        expect_equal(receive_stream(sub, 10), b"still here", "data")
        sub.sendall(b"me too")
        expect_equal(receive_stream(server, 6), b"me too", "data")


@test()
@shows("5382-REQ-4", "S10")
def an_unsolicited_syn_is_answered_after_six_seconds(n):
    port = 60000 + fresh_port() % 5000
    with sockets(raw(n.srv1)) as sender, Sniffer(n.srv1) as sniffer:
        begun = time.monotonic()
        sender.sendto(ip_packet(SRV1, POOL[2], 6, tcp_syn(SRV1, 5555, POOL[2], port)), (POOL[2], 0))
        # What is still under way from earlier tests has other ports.
        is_segment = lambda p: p.source == POOL[2] and p.payload[:4] == struct.pack("!HH", port, 5555)
        answers = sniffer.packets(20, lambda p: is_segment(p) or quotes(p, (5555, port)), 1)
        waited = time.monotonic() - begun
        expect(answers, "no answer at all")
        answer = answers[0]
        expect_equal((answer.protocol, answer.payload[0], answer.payload[1]), (1, 3, 3), "protocol, type and code")
        # Read from the socket's clock, the answer can only seem later than it was.
        expect(waited >= 5.99, f"answered after {waited:.2f} s")
        quoted = Packet(answer.payload[8:])
        expect_equal((quoted.source, quoted.destination), (SRV1, POOL[2]), "quoted addresses")
        expect_equal(struct.unpack("!HH", quoted.payload[:4]), (5555, port), "quoted ports")


@test()
@shows("5382-REQ-5-note2")
def a_stray_segment_creates_nothing(n):
    with sockets(raw(n.sub1)) as sender, Sniffer(n.srv1) as sniffer:
        sequence = 0x57A7 << 16
        segment = bytearray(tcp_syn(SUBSCRIBERS["sub1"], 4444, SRV1, 80, sequence))
        segment[13] = 0x10  # ACK in the place of SYN; the checksum covers the same 16-bit word
        total = struct.unpack("!H", segment[16:18])[0] - 0x0E
        segment[16:18] = struct.pack("!H", total & 0xFFFF)
        sender.sendto(ip_packet(SUBSCRIBERS["sub1"], SRV1, 6, bytes(segment)), (SRV1, 0))
        # Segments of earlier connections have other sequence numbers.
        seen = sniffer.packets(1, lambda p: has_ports(p, 6, destination=80) and p.payload[4:8] == struct.pack("!I", sequence))
        expect(not seen, "the segment came through")
