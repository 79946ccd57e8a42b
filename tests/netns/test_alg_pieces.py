"""Messages in many small segments, from kernels that wait for an acknowledgement in between.

Linux sends ten segments at the start of a connection, and with Nagle's algorithm one that is not full. Without probes
for a lost tail (`tcp_early_retrans`), as in other systems, it then repeats the first one until that is acknowledged.
"""

import contextlib
import re
import socket
import time

from kit import *
from netlab import process
from netlab import sip
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS
from setups import SERVER_FORWARD

INSIDE = SUBSCRIBERS["sub1"]
RTSP_PORT = 554
FTP_PORT = 21
# Between two pieces: no two of them leave in one segment while the sender may send.
PAUSE_SECONDS = 0.003


@contextlib.contextmanager
def without_probes(*hosts):
    """What these hosts send is not repeated before a timeout."""
    setting = "net.ipv4.tcp_early_retrans"
    before = [host.run(["sysctl", "-n", setting], check=True)[1].strip() for host in hosts]
    try:
        for host in hosts:
            host.run(["sysctl", "-w", f"{setting}=0"], check=True)
        yield
    finally:
        for host, value in zip(hosts, before):
            host.run(["sysctl", "-w", f"{setting}={value}"], check=True)


def write(sock, text, by_line, nagle):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(not nagle))
    for piece in re.findall(".*\r\n" if by_line else "(?s).", text):
        sock.sendall(piece.encode())
        time.sleep(PAUSE_SECONDS)


def read_until(sock, end):
    got = b""
    while not got.endswith(end.encode()):
        part = sock.recv(4096)
        expect(part, f"the connection has ended after {got}")
        got += part
    return got.decode()


@contextlib.contextmanager
def connected(client_host, server_host, port, address):
    """The two ends of a connection."""
    with sockets(listener(server_host, port), tcp(client_host, timeout=20)) as (listening, client):
        client.connect((address, port))
        server, _ = listening.accept()
        with server:
            server.settimeout(20)
            yield client, server


def lets_in(n, endpoint, inside):
    with sockets(tcp(n.srv1, address=SRV1)) as sock:
        sock.connect(endpoint)
        inside.accept()[0].close()


def endpoint_of(numbers):
    octets = numbers.split(",")
    return ".".join(octets[:4]), int(octets[4]) << 8 | int(octets[5])


def numbers_of(port):
    return ",".join([*INSIDE.split("."), str(port >> 8), str(port & 255)])


def ftp_byte_by_byte(n, nagle):
    port = fresh_port()
    with connected(n.sub1, n.srv1, FTP_PORT, SRV1) as (client, server), sockets(listener(n.sub1, port)) as data:
        server.sendall(b"220 ready\r\n")
        read_until(client, "\r\n")
        for text in ("USER anonymous\r\n", f"PORT {numbers_of(port)}\r\n"):
            write(client, text, False, nagle)
            got = read_until(server, "\r\n")
        announced = endpoint_of(re.search(r"PORT ([\d,]+)", got)[1])
        expect(announced[0] in POOL, f"PORT is not rewritten: {got!r}")
        lets_in(n, announced, data)


def ftp_reply_byte_by_byte(n, nagle):
    port = fresh_port()
    ends = connected(n.srv1, n.sub1, FTP_PORT, SERVER_FORWARD)
    with ends as (client, server), sockets(listener(n.sub1, port)) as data:
        for sender, receiver, text in (
            (server, client, "220 ready\r\n"),
            (client, server, "USER a\r\n"),
            (server, client, "230 in\r\n"),
            (client, server, "PASV\r\n"),
            (server, client, f"227 Entering Passive Mode ({numbers_of(port)}).\r\n"),
        ):
            if text.startswith("220"):
                # Before its first word is whole, nobody knows that it is FTP.
                sender.sendall(text.encode())
            else:
                write(sender, text, False, nagle)
            got = read_until(receiver, "\r\n")
        announced = endpoint_of(re.search(r"\(([\d,]+)\)", got)[1])
        expect(announced[0] == SERVER_FORWARD, f"227 is not rewritten: {got!r}")
        lets_in(n, announced, data)


def invite(address, target, call):
    body = f"v=0\r\nc=IN IP4 {address}\r\nm=audio 40004 RTP/AVP 0\r\n" + "".join(
        f"a=x:{line}\r\n" for line in range(10)
    )
    header = [
        f"INVITE sip:b@{target} SIP/2.0",
        f"Via: SIP/2.0/TCP {address}:5060;branch=z9hG4bK{call}",
        f"Contact: <sip:a@{address}:5062>",
        f"Call-ID: {call}",
        "CSeq: 1 INVITE",
        *(f"X-{line}: y" for line in range(10)),
        "Content-Type: application/sdp",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*header, "", body])


def sip_line_by_line(n, nagle):
    made = udp(n.sub1, 40004), udp(n.srv1)
    with connected(n.sub1, n.srv1, sip.PORT, SRV1) as (phone, proxy), sockets(*made) as (sound, caller):
        external = proxy.getpeername()[0]
        write(phone, invite(INSIDE, SRV1, 1), True, nagle)
        got = read_until(proxy, "a=x:9\r\n")
        expect(f"c=IN IP4 {external}" in got and INSIDE not in got, f"the INVITE is not rewritten: {got}")
        length, body = re.search(r"Content-Length: (\d+)", got)[1], got.partition("\r\n\r\n")[2]
        expect_equal(int(length), len(body), "length of the body")
        caller.sendto(b"sound", (external, int(re.search(r"m=audio (\d+) ", got)[1])))
        expect_equal(receive(sound, "sound")[0], b"sound", "sound")
        text = invite(SRV1, "192.0.2.7", 2)
        write(proxy, text, True, nagle)
        expect_equal(read_until(phone, "a=x:9\r\n"), text, "an INVITE from outside")
        write(phone, invite(INSIDE, SRV1, 3), True, nagle)
        got = read_until(proxy, "a=x:9\r\n")
        expect(f"c=IN IP4 {external}" in got, f"reading has ended: {got}")


def rtsp_line_by_line(n, nagle):
    lines = ["SETUP rtsp://x/ RTSP/1.0", *(f"X-{line}: y" for line in range(15)), "CSeq: 1"]
    text = "\r\n".join([*lines, "Transport: RTP/AVP;unicast;client_port=40006-40007", "", ""])
    made = udp(n.sub1, 40006), udp(n.srv1)
    with connected(n.sub1, n.srv1, RTSP_PORT, SRV1) as (player, server), sockets(*made) as (film, camera):
        external = server.getpeername()[0]
        write(player, text, True, nagle)
        got = read_until(server, "\r\n\r\n")
        camera.sendto(b"film", (external, int(re.search(r"client_port=(\d+)-", got)[1])))
        expect_equal(receive(film, f"film after {got}")[0], b"film", "film")


@test("gateways")
def messages_in_small_segments_are_rewritten(n):
    if n.dut.name != "natrix":
        return
    with without_probes(n.sub1, n.srv1):
        for nagle in (False, True):
            for say in (ftp_byte_by_byte, ftp_reply_byte_by_byte, sip_line_by_line, rtsp_line_by_line):
                say(n, nagle)


@test("gateways")
def control_connections_end_on_both_sides(n):
    """What the second side still sends, and its FIN, are acknowledged: nobody repeats them."""
    for first in ("client", "server"):
        port = fresh_port()
        with connected(n.sub1, n.srv1, FTP_PORT, SRV1) as (client, server):
            server.sendall(b"220 ready\r\n")
            read_until(client, "\r\n")
            for line in ("USER a\r\n", f"PORT {numbers_of(port)}\r\n"):
                client.sendall(line.encode())
                read_until(server, "\r\n")
            closes, other = (client, server) if first == "client" else (server, client)
            closes.shutdown(socket.SHUT_WR)
            expect_equal(other.recv(100), b"", "the end")
            other.sendall(b"226 last\r\n" if first == "client" else b"QUIT\r\n")
            read_until(closes, "\r\n")
            other.shutdown(socket.SHUT_WR)
            expect_equal(closes.recv(100), b"", "the other end")

        def repeating():
            states = [host.run(["ss", "-tanH"], check=True)[1] for host in (n.sub1, n.srv1)]
            ends = [line for text in states for line in text.splitlines() if f":{FTP_PORT} " in line]
            return [line for line in ends if line.startswith(("LAST-ACK", "CLOSING", "FIN-WAIT-1"))]

        expect(process.wait_until(lambda: not repeating(), 5, 0.1), f"{repeating()}, unacknowledged after the {first} has ended first")
