#!/usr/bin/env python3
"""Sends frames as fast as it can: flood.py DEVICE STATION KIND SECONDS [SENDERS]; prints how many it has sent.

A virtual cable costs the kernel more than Natrix needs for a frame. `SharedMemory` sends the same frames by DPDK.

KIND is `arp` (requests from everybody for everybody), `bgp` (segments to the BGP port from far away), `bgp-near` (the
same from addresses of the link, none of them a neighbour of the routing), `bfd` and `ospf` (from such addresses, too),
or `pcp` (requests of port control: from the host's own address, from addresses of others, and for others by
THIRD_PARTY, with right and wrong client addresses).
SENDERS processes share the work; 1 if nothing is said.
"""

import ctypes
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))

from kit import ETH_P_IP  # noqa: E402
from kit import ip_packet  # noqa: E402
from kit import tcp_syn  # noqa: E402
from kit import udp_segment  # noqa: E402
from netlab.topology import NAT_INSIDE  # noqa: E402
from netlab.topology import NAT_OUTSIDE  # noqa: E402
from netlab.topology import SUBSCRIBERS  # noqa: E402

ETH_P_ARP, BGP, BFD, PCP, OSPF = 0x0806, 179, 3784, 5351, 89
# From linux/if_packet.h: frames go to the device at once.
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
LINK = "198.51.100"
FRAMES = 4096
# Handed to the kernel at a time: one by one it is fast enough to fill every queue.
BATCH = 1


def arp_request(dice, sender, link):
    # From any address of the link but the last ones, which the test itself has.
    source, target = (socket.inet_aton(f"{link}.{dice.randrange(100, 250)}") for _ in range(2))
    return struct.pack("!HHBBH", 1, ETH_P_IP, 6, 4, 1) + sender + source + bytes(6) + target


def pcp_request(dice, number, link):
    """A MAP, as an IP packet. `link`: see `frames`; without one, that of sub1."""
    own, server = (f"{link}.10", f"{link}.1") if link else (SUBSCRIBERS["sub1"], NAT_INSIDE)
    # Every address of the link but those of the test itself, and some that are not of the link.
    stranger = f"{dice.choice((*[server.rpartition('.')[0]] * 3, '100.64.7'))}.{dice.randrange(20, 250)}"
    source = own if number % 4 == 0 else stranger
    client = source if dice.randrange(4) else stranger
    mapped = lambda address: bytes(10) + b"\xff\xff" + socket.inet_aton(address)  # noqa: E731
    message = struct.pack("!BBHI", 2, 1, 0, 600) + mapped(client)
    message += dice.randbytes(12) + struct.pack("!B3xHH", dice.choice((6, 17)), 2000 + number, 0) + mapped("0.0.0.0")
    if number % 4 == 1:
        message += struct.pack("!BBH", 1, 0, 16) + mapped(SUBSCRIBERS["sub2"])
    return ip_packet(source, server, socket.IPPROTO_UDP, udp_segment(source, 1024 + number, server, PCP, message))


def routing_packet(dice, kind, source, number):
    """The first packet of a session that nobody has asked for."""
    if kind == "ospf":
        # A hello: version, type, length; the kernel looks at no more.
        return ip_packet(source, NAT_OUTSIDE, OSPF, struct.pack("!BBH", 2, 1, 44) + dice.randbytes(40), ttl=1)
    if kind == "bfd":
        # Version 1, down, a multiplier of 3, and discriminators that nobody has (RFC 5880 §4.1).
        control = struct.pack("!BBBB", 0x20, 0x40, 3, 24) + dice.randbytes(8) + struct.pack("!III", 300_000, 300_000, 0)
        segment = udp_segment(source, 49152 + number, NAT_OUTSIDE, BFD, control)
        return ip_packet(source, NAT_OUTSIDE, socket.IPPROTO_UDP, segment, ttl=255)
    syn = tcp_syn(source, 1024 + number, NAT_OUTSIDE, BGP)
    return ip_packet(source, NAT_OUTSIDE, socket.IPPROTO_TCP, syn)


def frames(station, kind, link=None):
    """Different ones, so that no source sends more than a few. `link`: the first three bytes of its addresses, if it
    is not the usual one."""
    dice = random.Random(1)
    for number in range(FRAMES):
        sender = b"\x02\x66" + dice.randbytes(4)
        if kind == "arp":
            yield b"\xff" * 6 + sender + struct.pack("!H", ETH_P_ARP) + arp_request(dice, sender, link or LINK)
            continue
        if kind == "pcp":
            packet = pcp_request(dice, number, link)
        else:
            far = socket.inet_ntoa(bytes([198, 18]) + dice.randbytes(2))
            source = far if kind == "bgp" else f"{link or LINK}.{dice.randrange(100, 250)}"
            packet = routing_packet(dice, kind, source, number)
        # One sender of requests, so that the switch has nothing to learn.
        yield station + (b"\x02\x66" + bytes(4) if kind == "pcp" else sender) + struct.pack("!H", ETH_P_IP) + packet


class Vector(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """`struct mmsghdr`: a message without an address, and how much of it was sent."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.POINTER(Vector)),
        ("vectors_length", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        # `struct msghdr` ends with it, at a multiple of 8 bytes.
        ("padding", ctypes.c_int),
        ("sent", ctypes.c_uint),
    ]


def messages(every):
    vectors = (Vector * len(every))(*((frame, len(frame)) for frame in every))
    made = (Message * len(every))()
    for number, message in enumerate(made):
        message.vectors, message.vectors_length = ctypes.pointer(vectors[number]), 1
    return made


_SENDMMSG = ctypes.CDLL(None, use_errno=True).sendmmsg


def sendmmsg(sock, made, count):
    """Hands `count` messages to the kernel; returns how many it took. An error is a full queue of the device: none."""
    return max(_SENDMMSG(sock.fileno(), ctypes.byref(made), count, 0), 0)


def send(device, made, begin, end):
    """Sends until a time, from one of the frames on; returns how many."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    sock.bind((device, 0))
    sent, at = 0, begin
    while time.monotonic() < end:
        sent += sendmmsg(sock, made[at], BATCH)
        at = (at + BATCH) % len(made)
    return sent


def capture(path, every):
    """Writes frames to a file in the format of pcap."""
    with open(path, "wb") as file:
        file.write(struct.pack("=IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in every:
            file.write(struct.pack("=IIII", 0, 0, len(frame), len(frame)) + frame)


class SharedMemory:
    """dpdk-testpmd, which sends the frames of a capture again and again by net_memif, as fast as it can."""

    PROGRAM = "dpdk-testpmd"
    # Bytes that its buffers may take, and workers of Natrix with a queue each.
    MIB, QUEUES = 512, 2
    # Of its second port, for the first is the capture: sent, not accepted, and both together.
    SENT = re.compile(r"statistics for port 1 .*?TX-packets: (\d+) +TX-dropped: \d+ +TX-total: (\d+)", re.DOTALL)

    def __init__(self, host, path, socket_path):
        if not shutil.which(self.PROGRAM):
            raise FileNotFoundError(f"{self.PROGRAM} is not installed; apt-get install dpdk-dev")
        captures = ",".join([f"rx_pcap={path}"] * self.QUEUES)
        words = [
            self.PROGRAM, "--no-huge", "--no-shconf", "--no-telemetry", "--no-pci", "-m", self.MIB,
            # Its first thread waits for commands, the second sends.
            "--lcores", "0@0-1,1@0-1", "--vdev", f"net_pcap0,{captures},infinite_rx=1",
            "--vdev", f"net_memif0,role=client,id=0,socket={socket_path},socket-abstract=no",
            "--", "-i", f"--rxq={self.QUEUES}", f"--txq={self.QUEUES}", "--nb-cores=1", "--forward-mode=io",
            "--no-flush-rx", f"--total-num-mbufs={16 * FRAMES}",
        ]  # fmt: skip
        pipe = subprocess.PIPE
        argv = host.argv([str(word) for word in words])
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def send(self, seconds, wait_for_more):
        """Sends for so long and until `wait_for_more` returns, then ends.

        Returns how many frames it had for Natrix, and how many the ring had room for.
        """
        self.begin()
        time.sleep(seconds)
        wait_for_more()
        self._say("stop")
        try:
            out, _ = self.process.communicate("quit\n", timeout=60)
        finally:
            self.end()
        sent = self.SENT.search(out)
        if not sent:
            raise RuntimeError(f"{self.PROGRAM}: {out[-500:]}")
        return int(sent[2]), int(sent[1])

    def begin(self):
        """Begins to send."""
        self._say("start")

    def _say(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()


def main():
    device, station, kind, seconds, *senders = sys.argv[1:]
    senders = int(*senders) if senders else 1
    made = messages(list(frames(bytes.fromhex(station.replace(":", "")), kind)))
    end = time.monotonic() + float(seconds)
    counts = []
    for number in range(senders):
        reader, writer = os.pipe()
        if os.fork() == 0:
            sent = send(device, made, number * len(made) // senders // BATCH * BATCH, end)
            os.write(writer, sent.to_bytes(8, "big"))
            os._exit(0)
        os.close(writer)
        counts.append(reader)
    print(sum(int.from_bytes(os.read(reader, 8), "big") for reader in counts))
    for _ in counts:
        os.wait()


if __name__ == "__main__":
    main()
