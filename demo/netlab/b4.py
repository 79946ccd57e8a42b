"""The B4 of a softwire as a program: IPv4 of a TUN device to and from the AFTR. The kernel cuts and joins the IPv6 packets.

Usage: b4.py DEVICE ADDRESS AFTR
"""

import fcntl
import os
import select
import socket
import struct
import sys

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DONT = 23, 0
IPV4_IN_IPV6 = 4
LARGEST = 65535


def main(device, address, aftr):
    softwire = socket.socket(socket.AF_INET6, socket.SOCK_RAW, IPV4_IN_IPV6)
    softwire.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DONT)
    softwire.bind((address, 0))
    # The last, so that all is ready once there is a device.
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    while True:
        ready, _, _ = select.select([tun, softwire], [], [])
        if tun in ready:
            packet = os.read(tun, LARGEST)
            if packet[0] >> 4 == 4:
                softwire.sendto(packet, (aftr, 0))
        if softwire in ready:
            packet, sender = softwire.recvfrom(LARGEST)
            if sender[0] == aftr:
                os.write(tun, packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
