#!/usr/bin/env python3
"""Sends frames as fast as it can: flood.py DEVICE STATION KIND SECONDS; prints how many it has sent.

KIND is `arp` (requests from everybody for everybody), `bgp` (segments to the BGP port from far away), or `bgp-near`
(the same from one address of the link, which is no neighbour of the routing).
"""

import contextlib
import random
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))

from kit import ETH_P_IP  # noqa: E402
from kit import ip_packet  # noqa: E402
from kit import tcp_syn  # noqa: E402
from netlab.topology import NAT_OUTSIDE  # noqa: E402

ETH_P_ARP, BGP = 0x0806, 179
NEAR = "198.51.100.66"
FRAMES = 4096


def frames(station, kind):
    """Different ones, so that no source sends more than a few."""
    dice = random.Random(1)
    for number in range(FRAMES):
        sender = b"\x02\x66" + dice.randbytes(4)
        if kind == "arp":
            # From any address of the link but the last ones, which the test itself has.
            source, target = (socket.inet_aton(f"198.51.100.{dice.randrange(100, 250)}") for _ in range(2))
            message = struct.pack("!HHBBH", 1, ETH_P_IP, 6, 4, 1) + sender + source + bytes(6) + target
            yield b"\xff" * 6 + sender + struct.pack("!H", ETH_P_ARP) + message
        else:
            source = NEAR if kind == "bgp-near" else socket.inet_ntoa(bytes([198, 18]) + dice.randbytes(2))
            syn = tcp_syn(source, 1024 + number, NAT_OUTSIDE, BGP)
            packet = ip_packet(source, NAT_OUTSIDE, socket.IPPROTO_TCP, syn)
            yield station + sender + struct.pack("!H", ETH_P_IP) + packet


def main():
    device, station, kind, seconds = sys.argv[1:]
    every = list(frames(bytes.fromhex(station.replace(":", "")), kind))
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((device, 0))
    sent, end = 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        for frame in every:
            # An error is a full queue of the device.
            with contextlib.suppress(OSError):
                sock.send(frame)
                sent += 1
    print(sent)


if __name__ == "__main__":
    main()
