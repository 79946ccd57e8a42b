"""Just enough of a STUN client (RFC 8489) to learn the external endpoint of a socket."""

import ipaddress
import os
import socket
import struct

_BINDING_REQUEST = 0x0001
_BINDING_SUCCESS = 0x0101
_MAGIC_COOKIE = 0x2112A442
_XOR_MAPPED_ADDRESS = 0x0020


def external_endpoint(sock, server, tries=5):
    """(address, port) that `server` sees behind `sock`; raises TimeoutError when it does not answer."""
    transaction = os.urandom(12)
    request = struct.pack("!HHI12s", _BINDING_REQUEST, 0, _MAGIC_COOKIE, transaction)
    sock.settimeout(0.5)
    for _ in range(tries):
        sock.sendto(request, server)
        try:
            reply, _sender = sock.recvfrom(2048)
        except (socket.timeout, BlockingIOError):
            continue
        kind, length, cookie, echoed = struct.unpack("!HHI12s", reply[:20])
        if (kind, cookie, echoed) != (_BINDING_SUCCESS, _MAGIC_COOKIE, transaction):
            continue
        at = 20
        while at + 4 <= 20 + length:
            attribute, size = struct.unpack("!HH", reply[at : at + 4])
            if attribute == _XOR_MAPPED_ADDRESS:
                port, address = struct.unpack("!HI", reply[at + 6 : at + 12])
                return str(ipaddress.IPv4Address(address ^ _MAGIC_COOKIE)), port ^ (_MAGIC_COOKIE >> 16)
            at += 4 + (size + 3) // 4 * 4
    raise TimeoutError(f"no STUN answer from {server[0]}:{server[1]}")
