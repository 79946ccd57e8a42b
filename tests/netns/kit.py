"""Sockets, raw packets and the registry of tests for the tests in network namespaces."""

import contextlib
import errno
import itertools
import socket
import struct
import time

from netlab.process import Patience

# Values of Linux that the socket module does not name.
IP_MTU_DISCOVER, IP_RECVERR, IP_MTU = 10, 11, 14
IP_PMTUDISC_DONT, IP_PMTUDISC_DO = 0, 2
SO_NO_CHECK = 11
MSG_FASTOPEN = 0x20000000
MSG_ERRQUEUE = 0x2000

ETH_P_IP = 0x0800

TESTS = []


def test(*names):
    """Registers a test; the names are the setups of the NAT it runs against (see setups.py), "default" without any."""

    def register(function):
        TESTS.extend((name, function) for name in names or ("default",))
        return function

    return register


def shows(*requirements):
    """Names the requirements that a test shows; docs/conformance.md is generated from these."""

    def mark(function):
        function.requirements = requirements
        return function

    return mark


class Failure(Exception):
    """The NAT did not behave; the text says how."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


def expect_equal(seen, wanted, what):
    expect(seen == wanted, f"{what}: {seen!r} instead of {wanted!r}")


def counter(n, name):
    """The value of a counter of Natrix."""
    return sum(one["value"] for one in n.dut.show("counters", "--all", "--name", name) if one["name"] == name)


# Sockets.

_PORTS = itertools.count(20000)


def fresh_port():
    """A port no earlier test has used."""
    return next(_PORTS)


@contextlib.contextmanager
def sockets(*made):
    """Closes the sockets at the end of the block."""
    try:
        yield made if len(made) > 1 else made[0]
    finally:
        for sock in made:
            sock.close()


def udp(host, port=0, address="", timeout=5.0):
    with host.entered():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(timeout)
    sock.bind((address, port))
    return sock


def tcp(host, port=0, address="", timeout=20.0):
    with host.entered():
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    return sock


def listener(host, port, address=""):
    sock = tcp(host, port, address)
    sock.listen(64)
    return sock


def echo_socket(host, identifier, timeout=2.0):
    """A socket of ICMP queries with this query identifier."""
    with host.entered():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    sock.settimeout(timeout)
    sock.bind(("", identifier))
    return sock


def raw(host):
    """Sends whole IP packets as they are; the kernel fills in the header checksum."""
    with host.entered():
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)


def receive(sock, what, size=65535):
    """One datagram and its sender; a failure if none comes within the timeout of the socket (see `Patience`)."""
    patience = Patience(max(5.0, sock.gettimeout() or 0))
    while True:
        try:
            return sock.recvfrom(size)
        except (socket.timeout, BlockingIOError):
            if patience.is_over():
                raise Failure(f"{what}: nothing came") from None


def expect_silence(sock, seconds, what):
    sock.settimeout(seconds)
    try:
        data, sender = sock.recvfrom(65535)
    except (socket.timeout, BlockingIOError):
        return
    raise Failure(f"{what}: {len(data)} bytes came from {sender}")


def receive_stream(sock, size):
    """`size` bytes of a stream, or what came before its end."""
    parts, left = [], size
    while left:
        part = sock.recv(min(left, 1 << 20))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def external_of(sock, server_sock, server):
    """Sends one datagram to `server`, whose socket is `server_sock`; returns the external endpoint it sees."""
    token = struct.pack("!Q", time.monotonic_ns())
    for _ in range(5):
        sock.sendto(token, server)
        try:
            data, sender = server_sock.recvfrom(2048)
        except (socket.timeout, BlockingIOError):
            continue
        if data == token:
            return sender
    raise Failure(f"no datagram of {sock.getsockname()} reached {server}")


def pending_error(sock, seconds=5.0):
    """The error number an ICMP message left on a connected socket, 0 when none comes in time."""
    patience = Patience(seconds)
    while not patience.is_over():
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return error
        time.sleep(0.02)
    return 0


class IcmpError:
    """An ICMP error that the kernel has queued on a socket with IP_RECVERR."""

    def __init__(self, kind, code, offender, information):
        self.kind, self.code, self.offender, self.information = kind, code, offender, information


def queued_icmp_error(sock, seconds=5.0):
    """The next queued ICMP error; a failure when none comes."""
    patience = Patience(seconds)
    while not patience.is_over():
        try:
            _, ancillary, _, _ = sock.recvmsg(2048, 512, MSG_ERRQUEUE)
        except (BlockingIOError, socket.timeout):
            time.sleep(0.02)
            continue
        except OSError as error:
            # An error that is not taken from the queue is reported by the next call as well.
            if error.errno in (errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EMSGSIZE, errno.EAGAIN):
                continue
            raise
        for level, kind, data in ancillary:
            if (level, kind) == (socket.IPPROTO_IP, IP_RECVERR):
                _, origin, icmp_type, icmp_code, _, information, _ = struct.unpack("=IBBBBII", data[:16])
                if origin == 2:
                    # The kernel queues an error first and then marks the socket, so that the
                    # next call on it would fail with an error that was taken already.
                    time.sleep(0.02)
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    return IcmpError(icmp_type, icmp_code, socket.inet_ntoa(data[20:24]), information)
    raise Failure("no ICMP error came")


# Raw packets.


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip_packet(source, destination, protocol, payload, identification=0, flags_and_offset=0, ttl=64):
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), identification, flags_and_offset, ttl, protocol, 0,
                         socket.inet_aton(source), socket.inet_aton(destination))  # fmt: skip
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + payload


def _transport_checksum(source, destination, protocol, segment):
    pseudo = socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!BBH", 0, protocol, len(segment))
    return checksum(pseudo + segment)


def udp_segment(source, source_port, destination, destination_port, payload):
    head = struct.pack("!HHH", source_port, destination_port, 8 + len(payload))
    total = _transport_checksum(source, destination, socket.IPPROTO_UDP, head + b"\0\0" + payload) or 0xFFFF
    return head + struct.pack("!H", total) + payload


def tcp_syn(source, source_port, destination, destination_port, sequence=1):
    head = struct.pack("!HHIIBBH", source_port, destination_port, sequence, 0, 5 << 4, 0x02, 64240)
    total = _transport_checksum(source, destination, socket.IPPROTO_TCP, head + b"\0\0\0\0")
    return head + struct.pack("!HH", total, 0)


def icmp_error(kind, code, quoted, word=0):
    head = struct.pack("!BB", kind, code)
    rest = struct.pack("!I", word) + quoted
    return head + struct.pack("!H", checksum(head + b"\0\0" + rest)) + rest


def fragments(source, destination, protocol, payload, identification, size):
    """The datagram in fragments of `size` payload bytes, a multiple of 8, in order."""
    packets = []
    for offset in range(0, len(payload), size):
        more = 0x2000 if offset + size < len(payload) else 0
        part = payload[offset : offset + size]
        packets.append(ip_packet(source, destination, protocol, part, identification, more | offset // 8))
    return packets


class Packet:
    """A received IPv4 packet."""

    def __init__(self, data):
        self.header_length = (data[0] & 0xF) * 4
        self.class_of_service = data[1]
        self.total_length, self.identification, flags = struct.unpack("!HHH", data[2:8])
        self.dont_fragment = bool(flags & 0x4000)
        self.more_fragments = bool(flags & 0x2000)
        self.offset = (flags & 0x1FFF) * 8
        self.ttl, self.protocol = data[8], data[9]
        self.header_is_valid = checksum(data[: self.header_length]) == 0
        self.source, self.destination = socket.inet_ntoa(data[12:16]), socket.inet_ntoa(data[16:20])
        self.payload = data[self.header_length : self.total_length]


def has_ports(packet, protocol, source=None, destination=None):
    """Whether a packet has this protocol and these ports; None stands for any port."""
    seen = struct.unpack("!HH", packet.payload[:4]) if packet.protocol == protocol and packet.offset == 0 else None
    return seen is not None and source in (None, seen[0]) and destination in (None, seen[1])


def quotes(packet, ports):
    """Whether a packet is an ICMP error about a packet with these ports, (source, destination)."""
    is_error = packet.protocol == 1 and packet.payload[0] in (3, 4, 5, 11, 12)
    return is_error and Packet(packet.payload[8:]).payload[:4] == struct.pack("!HH", *ports)


class Sniffer:
    """The IPv4 packets that arrive at a device, from now on."""

    def __init__(self, host, device="eth0"):
        with host.entered():
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
            self.sock.bind((device, ETH_P_IP))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def packets(self, seconds, wanted, count=None):
        """Packets for which `wanted` holds: all within these seconds, or the first `count` (see `Patience`)."""
        found = []
        patience, deadline = Patience(seconds), time.monotonic() + seconds
        is_over = (lambda: time.monotonic() >= deadline) if count is None else patience.is_over
        while not is_over() and (count is None or len(found) < count):
            self.sock.settimeout(max(0.01, min(0.5, deadline - time.monotonic())))
            try:
                data, address = self.sock.recvfrom(65535)
            except (socket.timeout, BlockingIOError):
                continue
            if address[2] == socket.PACKET_OUTGOING:
                continue
            packet = Packet(data)
            if wanted(packet):
                found.append(packet)
        return found
