"""The kernel's gateways (nf_nat_ftp, nf_nat_sip) as a second opinion: the same conversations of FTP and SIP through
Natrix and through Netfilter, and what the other side sees of them. docs/alg.md explains where they differ.

Only these: `tests/netns/run.py --natrix target/debug/natrix --only second_opinion`.
"""

import contextlib
import re
import socket
import time

from kit import *
from netlab import topology
from netlab.netfilter import Netfilter
from netlab.topology import Network
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS
from setups import SERVER_FORWARD
from setups import SETUPS

INSIDE, NEIGHBOUR = SUBSCRIBERS["sub1"], SUBSCRIBERS["sub2"]
# How long to wait for what should come, and for what should not.
DUE_SECONDS, QUIET_SECONDS = 10, 0.3


def commas(address, port):
    return ",".join([*address.split("."), str(port >> 8), str(port & 255)])


def endpoint_in(text, peer):
    """The endpoint that a command or a reply of FTP announces; EPSV says only the port. None if nothing came."""
    if not text:
        return None
    if found := re.search(r"(\d+,\d+,\d+,\d+),(\d+),(\d+)", text):
        return found[1].replace(",", "."), int(found[2]) << 8 | int(found[3])
    if found := re.search(r"\|1\|([\d.]+)\|(\d+)\|", text):
        return found[1], int(found[2])
    found = re.search(r"\|\|\|(\d+)\|", text)
    expect(found, f"no endpoint in {text!r}")
    return peer, int(found[1])


def connects(host, endpoint, inside, address="", seconds=DUE_SECONDS):
    """Whether a connection of `host` arrives at the listener `inside`."""
    with sockets(tcp(host, address=address, timeout=seconds)) as sock:
        try:
            sock.connect(endpoint)
            inside.settimeout(seconds)
            inside.accept()[0].close()
        except OSError:
            return False
    return True


def admitted(n, endpoint, inside):
    """What is announced leads inside for: another host, the peer, and the peer once more."""
    if not endpoint:
        return "nothing came"
    if endpoint[0] not in topology.POOL:
        return "unchanged"
    return {
        "stranger": connects(n.srv2, endpoint, inside, seconds=QUIET_SECONDS),
        "peer": connects(n.srv1, endpoint, inside, SRV1),
        "again": connects(n.srv1, endpoint, inside, SRV1, QUIET_SECONDS),
    }


def line_of(sock):
    """A line, in as many segments as it comes; what came of it until nothing more does."""
    sock.settimeout(DUE_SECONDS)
    line = b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\r\n") and (part := sock.recv(2048)):
            line += part
    return line.decode()


@contextlib.contextmanager
def ftp_control(n, server_is_inside=False):
    """The two ends of a connection to port 21: the client's, the server's."""
    server_host, client_host = (n.sub1, n.srv1) if server_is_inside else (n.srv1, n.sub1)
    address = SERVER_FORWARD if server_is_inside else SRV1
    with sockets(listener(server_host, 21), tcp(client_host)) as (listening, client):
        client.connect((address, 21))
        server, _ = listening.accept()
        with server:
            yield client, server


def ftp_active(n, command, greeting=b"220 ready\r\n", before=b"USER a\r\n", port=None, address=INSIDE, cut=0):
    """A client inside announces a port, in two segments if there is a `cut`."""
    port = port or fresh_port()
    with ftp_control(n) as (client, server), sockets(listener(n.sub1, port)) as data:
        for sender, receiver, text in ((server, client, greeting), (client, server, before)):
            if text:
                sender.sendall(text)
                line_of(receiver)
        text = command.format(commas=commas(address, port), port=port, address=address).encode()
        for piece in filter(None, (text[:cut], text[cut:])):
            client.sendall(piece)
            time.sleep(0.1)
        announced = endpoint_in(line_of(server), "")
        return admitted(n, announced, data)


def ftp_passive(n, command, reply):
    """A server inside, behind a forward, announces a port."""
    port = fresh_port()
    with ftp_control(n, server_is_inside=True) as (client, server), sockets(listener(n.sub1, port)) as data:
        for sender, receiver, text in (
            (server, client, "220 ready\r\n"),
            (client, server, "USER a\r\n"),
            (server, client, "230 in\r\n"),
            (client, server, command),
        ):
            sender.sendall(text.encode())
            line_of(receiver)
        server.sendall(reply.format(commas=commas(INSIDE, port), port=port).encode())
        return admitted(n, endpoint_in(line_of(client), SERVER_FORWARD), data)


FTP = {
    "PORT": lambda n: ftp_active(n, "PORT {commas}\r\n"),
    "EPRT": lambda n: ftp_active(n, "EPRT |1|{address}|{port}|\r\n"),
    "PASV": lambda n: ftp_passive(n, "PASV\r\n", "227 Entering Passive Mode ({commas}).\r\n"),
    "EPSV": lambda n: ftp_passive(n, "EPSV\r\n", "229 Entering Extended Passive Mode (|||{port}|)\r\n"),
    "PORT in two segments": lambda n: ftp_active(n, "PORT {commas}\r\n", cut=12),
    "PORT of another host": lambda n: ftp_active(n, "PORT {commas}\r\n", address=NEIGHBOUR),
    "PORT below 1024": lambda n: ftp_active(n, "PORT {commas}\r\n", port=139),
    "PORT before the greeting": lambda n: ftp_active(n, "PORT {commas}\r\n", greeting=b"", before=b""),
    "PORT after a request of HTTP": lambda n: ftp_active(n, "PORT {commas}\r\n", before=b"POST / HTTP/1.1\r\n"),
}


SIP_PORT = 5060
INVITE = (
    "INVITE sip:bob@{server} SIP/2.0\r\n{via}: SIP/2.0/UDP {inside}:5060;branch=z9hG4bK{tag}\r\n"
    "From: <sip:alice@example.com>;tag={tag}\r\nTo: <sip:bob@example.com>\r\nCall-ID: {tag}@{inside}\r\n"
    "CSeq: 1 INVITE\r\n{contact}: {fold}<sip:alice@{inside}:5060>\r\nMax-Forwards: 70\r\n{type}: application/sdp\r\n"
    "{length}: {size}\r\n\r\n"
)
LONG = {"via": "Via", "contact": "Contact", "type": "Content-Type", "length": "Content-Length"}
COMPACT = {"via": "v", "contact": "m", "type": "c", "length": "l"}
SDP = "v=0\r\no=- 1 1 IN IP4 {media}\r\ns=-\r\nc=IN IP4 {media}\r\nt=0 0\r\nm=audio {port} RTP/AVP 8\r\n"
REGISTER = (
    "REGISTER sip:{server} SIP/2.0\r\nVia: SIP/2.0/UDP {inside}:5060;branch=z9hG4bK{tag}\r\n"
    "From: <sip:alice@example.com>;tag={tag}\r\nTo: <sip:alice@example.com>\r\nCall-ID: {tag}@{inside}\r\n"
    "CSeq: 1 REGISTER\r\nContact: <sip:alice@{inside}:{port}>\r\nExpires: 600\r\nMax-Forwards: 70\r\n"
    "Content-Length: 0\r\n\r\n"
)


def arrives(host, endpoint, inside, address="", port=0, seconds=DUE_SECONDS):
    """Whether a datagram of `host` arrives at the socket `inside`."""
    with sockets(udp(host, port, address)) as sender:
        sender.sendto(b"hello", endpoint)
        inside.settimeout(seconds)
        try:
            return inside.recvfrom(2048)[0] == b"hello"
        except TimeoutError:
            return False


def sip_sent(n, message, answer=None):
    """What the server gets of a message that the phone sends from its port 5060; None if nothing. `answer`: of what it
    gets makes what it answers."""
    with sockets(udp(n.sub1, SIP_PORT, INSIDE), udp(n.srv1, SIP_PORT, SRV1)) as (phone, server):
        phone.sendto(message.encode(), (SRV1, SIP_PORT))
        server.settimeout(DUE_SECONDS)
        with contextlib.suppress(TimeoutError):
            data, sender = server.recvfrom(4096)
            if answer:
                server.sendto(answer(data.decode()).encode(), sender)
                receive(phone, "the answer")
            return data.decode()
    return None


def accepted(request):
    """The registrar's answer, which repeats what it was asked."""
    return "SIP/2.0 200 OK\r\n" + re.sub(r"^Max-Forwards.*\r\n", "", request.partition("\r\n")[2], flags=re.MULTILINE)


def field(text, pattern):
    found = re.search(pattern, text, re.MULTILINE)
    expect(found, f"no {pattern} in {text!r}")
    return found[1]


def seen(address):
    return "changed" if address in topology.POOL else "unchanged"


def sip_call(n, names=LONG, port=None, media=INSIDE, fold=""):
    """A phone inside calls: what the called side sees, and who reaches the phone's sound."""
    port = port or 40_000 + fresh_port() % 10_000 * 2
    body = SDP.format(media=media, port=port)
    head = INVITE.format(server=SRV1, inside=INSIDE, tag=f"t{port}", size=len(body), fold=fold, **names)
    text = sip_sent(n, head + body)
    if not text:
        return "nothing came"
    sound = field(text, r"^c=IN IP4 ([\d.]+)"), int(field(text, r"^m=audio (\d+)"))
    length = int(field(text, rf"^{names['length']}: (\d+)"))
    result = {
        "Via": seen(field(text, rf"^{names['via']}: SIP/2.0/UDP ([\d.]+)")),
        "Contact": seen(field(text, r"<sip:alice@([\d.]+)")),
        "c=": seen(sound[0]),
        "length": length == len(text.partition("\r\n\r\n")[2]),
    }
    if sound[0] in topology.POOL:
        with sockets(udp(n.sub1, port, INSIDE), udp(n.sub1, port + 1, INSIDE)) as (rtp, rtcp):
            result["RTP of a stranger"] = arrives(n.srv2, sound, rtp, seconds=QUIET_SECONDS)
            result["RTP of the peer"] = arrives(n.srv1, sound, rtp, SRV1)
            result["RTCP of the peer"] = arrives(n.srv1, (sound[0], sound[1] + 1), rtcp, SRV1)
        result["even port"] = sound[1] % 2 == 0
    return result


def sip_registration(n):
    """A phone registers a port that it does not send from."""
    port = 30_000 + fresh_port() % 10_000
    text = sip_sent(n, REGISTER.format(server=SRV1, inside=INSIDE, tag=f"r{port}", port=port), accepted)
    contact = field(text, r"<sip:alice@([\d.]+)"), int(field(text, r"<sip:alice@[\d.]+:(\d+)"))
    result = {"Contact": seen(contact[0])}
    if contact[0] in topology.POOL:
        with sockets(udp(n.sub1, port, INSIDE)) as phone:
            result["a stranger"] = arrives(n.srv2, contact, phone, seconds=QUIET_SECONDS)
            result["the registrar"] = arrives(n.srv1, contact, phone, SRV1, SIP_PORT)
            result["again"] = arrives(n.srv1, contact, phone, SRV1, SIP_PORT)
    return result


SIP = {
    "call": sip_call,
    "call, compact names": lambda n: sip_call(n, COMPACT),
    "call, folded Contact": lambda n: sip_call(n, fold="\r\n "),
    "call, sound of another host": lambda n: sip_call(n, media=NEIGHBOUR),
    "call, sound below 1024": lambda n: sip_call(n, port=136),
    "registration": sip_registration,
}

ONE_CONNECTION = {"stranger": False, "peer": True, "again": False}
# Natrix, then Netfilter. It drops what it cannot change, and knows neither low ports nor other
# protocols on port 21.
DIFFERENCES = {
    "PORT in two segments": (ONE_CONNECTION, "nothing came"),
    "PORT below 1024": ("unchanged", ONE_CONNECTION),
    "PORT after a request of HTTP": ("unchanged", ONE_CONNECTION),
    "call, sound below 1024": (
        {"Via": "changed", "Contact": "changed", "c=": "unchanged", "length": True},
        "nothing came",
    ),
}


def outcomes(n):
    return {name: sequence(n) for name, sequence in (FTP | SIP).items()}


@test("gateways")
def a_second_opinion_on_ftp_and_sip_by_netfilter(n):
    ours = outcomes(n)
    for name in ("PORT", "EPRT", "PASV", "EPSV"):
        expect_equal(ours[name], ONE_CONNECTION, name)
    expect_equal(set(ours["call"].values()), {"changed", True, False}, f"a call: {ours['call']}")
    with Network("nxsecond", Netfilter()) as other:
        other.dut.start(other, **SETUPS["gateways"])
        theirs = outcomes(other)
    differ = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
    expect_equal(differ, DIFFERENCES if n.dut.name == "natrix" else {}, "(Natrix, Netfilter) where they differ")
