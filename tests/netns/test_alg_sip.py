"""SIP with real programs: calls of SIPp over UDP and TCP with sound both ways; kamailio and two baresip phones.

SIPp makes 1,000 calls over each transport, or as many as `NATRIX_SIP_CALLS` says.
"""

import contextlib
import os
import re
import socket
import time

import setups
from kit import *
from netlab import process
from netlab import sip
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS

CALLS = int(os.environ.get("NATRIX_SIP_CALLS", "1000"))


def make_calls(n, transport, count, patience=sip.PATIENCE_SECONDS):
    """Calls from sub1 to srv1: SIPp's status and text, and the sound that came to each side."""
    inside, outside = SUBSCRIBERS["sub1"], SRV1
    answering = sip.answer(n, n.srv1, transport, outside)
    sounds = sip.Sound(n.sub1, inside), sip.Sound(n.srv1, outside)
    try:
        status, said = sip.call(n, n.sub1, transport, inside, outside, count, sounds, patience)
        time.sleep(1)
    finally:
        for sound in sounds:
            sound.close()
        answering.end()
    return status, said, *sounds


def expect_nothing_left(n):
    """No expectation and no port of the calls a while after they are over."""
    inside = SUBSCRIBERS["sub1"]

    def left():
        return n.dut.show("expectations", "--internal", inside) + n.dut.show("mappings", "--internal", inside)

    gone = process.wait_until(lambda: not left(), 60, 0.5)
    expect(gone, f"left after the calls: {left()[:5]}")


def calls_have_sound_both_ways(n, transport):
    status, said, inbound, outbound = make_calls(n, transport, CALLS)
    expect_equal(status, 0, f"status of SIPp\n{said[-2500:]}\n")
    for name, sound in (("to the caller", inbound), ("to the called", outbound)):
        expect_equal(len(sound.ports), min(CALLS, sip.MEDIA_CALLS), f"calls with sound {name}")
        total = sum(sound.ports.values())
        expect(total >= 0.99 * CALLS * sip.SOUND_PACKETS, f"{total} packets of sound {name} in {CALLS} calls")
    senders = set().union(*outbound.senders.values())
    expect(senders <= set(POOL), f"sound came from {senders}")
    if n.dut.name == "natrix":
        expect_nothing_left(n)


@test("gateways_short")
def sip_calls_over_udp_have_sound_both_ways(n):
    calls_have_sound_both_ways(n, "udp")


@test("gateways_short")
def sip_calls_over_tcp_have_sound_both_ways(n):
    calls_have_sound_both_ways(n, "tcp")


@test("gateways_off_short")
def sip_calls_without_the_gateway_have_no_sound_to_the_caller(n):
    """SIPp answers to where the request came from, so the signalling passes; the sound does not."""
    _, _, inbound, _ = make_calls(n, "udp", 2, patience=1)
    expect_equal(sum(inbound.ports.values()), 0, "packets of sound to the caller")


def phone_call(n, seconds=30, port=sip.PORT):
    """A call of baresip on sub1 to baresip on sub2 by way of kamailio: what each end heard, and what they printed."""
    a, b = SUBSCRIBERS["sub1"], SUBSCRIBERS["sub2"]
    registrar = sip.start_registrar(n, n.srv1, SRV1, port)
    at = f"{SRV1}:{port}"
    sounds = sip.Sound(n.sub1, a), sip.Sound(n.sub2, b)
    called = sip.start_phone(n, n.sub2, b, "bob", at)
    registered = process.wait_until(lambda: "200 OK" in called.log(), 30, 0.1)
    expect(registered, f"the called phone does not register: {called.log()}")
    caller = sip.start_phone(n, n.sub1, a, "alice", at, f"/dial sip:bob@{at}")
    try:
        process.wait_until(lambda: all(sum(sound.ports.values()) > 50 for sound in sounds), seconds, 0.1)
        shown, mappings = [], []
        if n.dut.name == "natrix":
            shown = n.dut.show("expectations", "--alg", "sip")
            inside = f"{a}:{min(sounds[0].ports, default=0)}"
            mappings = n.dut.show("mappings", "--internal", inside, "--protocol", "udp")
    finally:
        for sound in sounds:
            sound.close()
        for daemon in (caller, called, registrar):
            daemon.end()
    lines = [line for daemon in (caller, called, registrar) for line in daemon.log().splitlines() if line.strip()]
    said = "\n".join(lines[-80:])
    return [sum(sound.ports.values()) for sound in sounds], shown, mappings, said


@test("gateways")
def phones_of_two_subscribers_call_by_a_registrar(n):
    heard, shown, mappings, said = phone_call(n)
    expect(min(heard) > 50, f"packets heard: {heard}\n{said}")
    if n.dut.name != "natrix":
        return
    inside = {expectation["internal"].partition(":")[0] for expectation in shown}
    expect_equal(inside, {SUBSCRIBERS["sub1"], SUBSCRIBERS["sub2"]}, "subscribers with expectations")
    expect_equal([mapping.get("origin") for mapping in mappings], ["sip"], "origin of the mapping of the sound")
    external = mappings[0]["external"]
    _, found, _ = n.dut.command("find", external, "--protocol", "udp", "--json")
    expect('"origin":"sip"' in found, f"find does not name the origin: {found}")
    _, why, _ = n.dut.command("why", "udp", f"{SRV1}:4000", external, "--inbound")
    expect("asked for by sip" in why, f"why does not name the origin: {why}")
    _, text, _ = n.dut.command("find", external, "--protocol", "udp")
    expect("(asked for by sip)" in text, f"the text of find does not name the origin: {text}")
    sip_gateway = next(gateway for gateway in n.dut.show("algs") if gateway["name"] == "sip")
    expect(sip_gateway["enabled"] and sip_gateway["sessions"] >= 2, f"gateway: {sip_gateway}")


@test("gateways")
def phones_call_by_a_registrar_on_a_configured_port(n):
    heard, _, _, said = phone_call(n, port=setups.SIP_OTHER_PORT)
    expect(min(heard) > 50, f"packets heard: {heard}\n{said}")


@test("gateways")
def a_header_and_its_body_arrive_from_an_old_sender(n):
    """Nagle's algorithm without probes for a lost tail, as in Linux before 3.10: the body waits for the header's ACK."""
    if n.dut.name != "natrix":
        return
    inside = SUBSCRIBERS["sub1"]
    body = f"v=0\r\nc=IN IP4 {inside}\r\nm=audio 40000 RTP/AVP 0\r\n".encode()
    header = (
        f"INVITE sip:a@{SRV1} SIP/2.0\r\nVia: SIP/2.0/TCP {inside}:5060;branch=z9\r\nContact: <sip:a@{inside}:5062>\r\n"
        f"CSeq: 1 INVITE\r\nContent-Type: application/sdp\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    _, before, _ = n.sub1.run(["sysctl", "-n", "net.ipv4.tcp_early_retrans"], check=True)
    n.sub1.run(["sysctl", "-w", "net.ipv4.tcp_early_retrans=0"], check=True)
    try:
        with sockets(listener(n.srv1, sip.PORT, SRV1), tcp(n.sub1, timeout=20)) as (server, client):
            client.connect((SRV1, sip.PORT))
            peer, _ = server.accept()
            with sockets(peer):
                peer.settimeout(20)
                client.send(header)
                client.send(body)
                got = b""
                while not got.endswith(body[-10:]):
                    part = peer.recv(4096)
                    expect(part, f"the connection has ended after {got}")
                    got += part
    finally:
        n.sub1.run(["sysctl", "-w", f"net.ipv4.tcp_early_retrans={before.strip()}"], check=True)
    head, _, rest = got.partition(b"\r\n\r\n")
    contact = re.search(rb"Contact: <sip:a@([0-9.]+):", head)[1].decode()
    expect(contact in POOL and inside.encode() not in got, f"it is not rewritten: {got}")
    expect(f"c=IN IP4 {contact}".encode() in rest, f"the body is not rewritten: {rest}")


@test("gateways_off")
def phones_without_the_gateway_are_not_reached(n):
    heard, _, _, said = phone_call(n, 4)
    expect_equal(heard, [0, 0], f"packets heard\n{said}\n")


DATABASE = 3306


def register(n, transport, contact):
    """The answer of the registrar behind the forward to a REGISTER from a socket of its own."""
    inside = SUBSCRIBERS["sub1"]
    with n.srv1.entered():
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM)
    with sock:
        sock.settimeout(20)
        sock.connect((setups.SERVER_FORWARD, sip.PORT))
        me = "{}:{}".format(*sock.getsockname())
        lines = [
            f"REGISTER sip:{setups.SERVER_FORWARD} SIP/2.0",
            f"Via: SIP/2.0/{transport.upper()} {me};branch=z9hG4bK1",
            "Max-Forwards: 70",
            f"From: <sip:a@{inside}>;tag=1",
            f"To: <sip:a@{inside}>",
            f"Call-ID: {me}",
            "CSeq: 1 REGISTER",
            *contact,
            "Content-Length: 0",
        ]
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        return sock.recv(4000).decode()


@test("sip_server")
def what_a_registrar_inside_lists_opens_no_port(n):
    """Somebody outside registers the database beside the registrar, and asks for the list from other sockets."""
    inside = SUBSCRIBERS["sub1"]
    with n.sub1.entered():
        database = socket.create_server((inside, DATABASE))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((inside, DATABASE))
    registrar = sip.start_registrar(n, n.sub1, inside)
    try:
        for transport in ("tcp", "udp"):
            contact = f"<sip:a@{inside}:{DATABASE};transport={transport}>"
            answers = [register(n, transport, [f"Contact: {contact}", "Expires: 3600"])]
            answers += [register(n, transport, []) for _ in range(2)]
            for answer in answers:
                listed = re.search(r"Contact: <sip:a@([0-9.]+):(\d+)", answer)
                expect(listed is not None, f"kamailio lists the contact: {answer}")
                expect(listed[1] in (inside, setups.SERVER_FORWARD), f"the address of the list: {answer}")
                expect_equal(listed[2], str(DATABASE), "the port of the list")
            expect_equal(n.dut.show("expectations", "--internal", inside), [], f"expectations after {transport}")
        gateway = next(gateway for gateway in n.dut.show("algs") if gateway["name"] == "sip")
        expect(gateway["sessions"] >= 4, f"sessions are read: {gateway}")
        for sock in (database, datagrams):
            sock.settimeout(2)
        with n.srv1.entered():
            for port in (DATABASE, sip.PORT + 1):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                    out.sendto(b"x", (setups.SERVER_FORWARD, port))
                with socket.socket() as out:
                    out.settimeout(1)
                    out.connect_ex((setups.SERVER_FORWARD, port))
        for name, reached in (("TCP", database.accept), ("UDP", lambda: datagrams.recv(10))):
            try:
                reached()
            except TimeoutError:
                continue
            expect(False, f"the database is reached over {name}")
    finally:
        registrar.end()
        database.close()
        datagrams.close()


@test("sip_server")
def each_client_of_a_server_behind_a_forward_is_read(n):
    """Three clients outside ask SIPp inside over UDP: each gets an answer without its internal address."""
    inside = SUBSCRIBERS["sub1"]
    answering = sip.answer(n, n.sub1, "udp", inside)
    try:
        for port in (40000, 40001, 40002):
            with n.srv1.entered():
                client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with client:
                client.bind((SRV1, port))
                client.settimeout(20)
                lines = [
                    f"INVITE sip:b@{setups.SERVER_FORWARD} SIP/2.0",
                    f"Via: SIP/2.0/UDP {SRV1}:{port};branch=z9hG4bK{port}",
                    "Max-Forwards: 70",
                    f"From: <sip:a@{SRV1}>;tag=1",
                    "To: <sip:b@example.com>",
                    f"Call-ID: {port}",
                    "CSeq: 1 INVITE",
                    f"Contact: <sip:a@{SRV1}:{port}>",
                    "Content-Length: 0",
                ]
                client.sendto("\r\n".join([*lines, "", ""]).encode(), (setups.SERVER_FORWARD, sip.PORT))
                answer = client.recv(4000).decode()
                expect(answer.startswith("SIP/2.0 200") and inside not in answer.partition("o=")[0], answer)
                media = re.search(r"m=audio (\d+)", answer)
                expect(f"c=IN IP4 {setups.SERVER_FORWARD}" in answer and media, f"no external address: {answer}")
    finally:
        answering.end()


@contextlib.contextmanager
def losing(sender, to):
    """What `sender` sends to `to` meanwhile is lost: its next hop has the link address of nobody."""
    _, route, _ = sender.run(["ip", "-o", "route", "get", to], check=True)
    via, dev = re.search(r"^\S+ (?:via (\S+) )?dev (\S+)", route).groups()
    hop = via or to
    _, entry, _ = sender.run(["ip", "neigh", "show", hop, "dev", dev], check=True)
    lladdr = re.search(r"lladdr (\S+)", entry)[1]

    def set_lladdr(lladdr):
        replace = ["ip", "neigh", "replace", hop, "lladdr", lladdr, "dev", dev, "nud", "permanent"]
        sender.run(replace, check=True)

    set_lladdr("02:00:00:00:00:99")
    try:
        yield
    finally:
        set_lladdr(lladdr)


def long_invite(call, address, target):
    """Of two segments: its length, 2 KB, comes of lines that nothing reads."""
    lines = ["v=0", f"c=IN IP4 {address}", "m=audio 40004 RTP/AVP 0", *("a=x:" + "y" * 440 for _ in range(4)), ""]
    body = "\r\n".join(lines)
    header = [
        f"INVITE sip:b@{target} SIP/2.0",
        f"Via: SIP/2.0/TCP {address}:5060;branch=z9hG4bK{call}",
        f"Contact: <sip:a@{address}:5062>",
        f"Call-ID: {call}",
        "CSeq: 1 INVITE",
        "Content-Type: application/sdp",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*header, "", body]).encode()


def received(peer):
    """What comes until the body has ended, or nothing has come for a while."""
    got = b""
    while got.count(b"a=x:") < 4 or not got.endswith(b"y\r\n"):
        part = peer.recv(8192)
        if not part:
            break
        got += part
    return got.decode()


@test("gateways")
def a_lost_first_segment_takes_no_sound(n):
    """The first segment of an INVITE over TCP is lost once, from inside and from outside: sound is let in."""
    inside = SUBSCRIBERS["sub1"]
    made = listener(n.srv1, sip.PORT, SRV1), tcp(n.sub1), udp(n.sub1, 40004), udp(n.srv1)
    with sockets(*made) as (server, client, phone, caller):
        client.connect((SRV1, sip.PORT))
        peer, (external, _) = server.accept()
        with sockets(peer):
            peer.settimeout(20)
            for end in (client, peer):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def say(call, sender, end, other, address, target, is_lost):
                text = long_invite(call, address, target)
                with losing(sender, target) if is_lost else contextlib.nullcontext():
                    end.send(text[:1448])
                end.send(text[1448:])
                return received(other)

            def expect_sound(call, is_lost):
                text = say(call, n.sub1, client, peer, inside, SRV1, is_lost)
                expect(f"c=IN IP4 {external}" in text and inside not in text, f"call {call}: {text}")
                port = int(re.search(r"m=audio (\d+) ", text)[1])
                caller.sendto(b"sound %d" % call, (external, port))
                expect_equal(receive(phone, f"sound of call {call}")[0], b"sound %d" % call, "sound")

            for call, is_lost in enumerate((False, True, False)):
                expect_sound(call, is_lost)
            say(3, n.srv1, peer, client, SRV1, external, True)
            expect_sound(4, False)
