"""Port control with real clients: natpmpc (NAT-PMP), libtorrent (PCP and NAT-PMP), and a PCP client of a few lines.

What was granted is reached from outside and by hairpin, in pools of single ports, blocks, slices and one-to-one.
"""

import re
import socket
import struct
import time

from kit import *
from netlab import topology
from netlab.topology import NAT_INSIDE
from netlab.topology import SUBSCRIBERS
from setups import SETUPS

MAP, NONCE = 1, b"netns nonce!"
NUMBERS = {"udp": 17, "tcp": 6}
# The epoch time of each reply.
EPOCH_TIMES = []


def mapped(address):
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


def pcp(host, address, protocol, port, lifetime=600):
    """One MAP; the result code, the lifetime and the external endpoint."""
    message = struct.pack("!BBHI", 2, MAP, 0, lifetime) + mapped(address)
    message += NONCE + struct.pack("!B3xHH", NUMBERS[protocol], port, 0) + mapped("0.0.0.0")
    with sockets(udp(host, address=address)) as sock:
        sock.sendto(message, (NAT_INSIDE, 5351))
        reply, sender = receive(sock, "reply of PCP")
    expect_equal(sender, (NAT_INSIDE, 5351), "sender of the reply")
    expect_equal(reply[:2], bytes([2, MAP | 0x80]), "version and opcode")
    code, (granted, epoch_time) = reply[3], struct.unpack("!II", reply[4:12])
    EPOCH_TIMES.append(epoch_time)
    return code, granted, (socket.inet_ntoa(reply[56:60]), struct.unpack("!H", reply[42:44])[0])


def reaches_udp(remote, external, inside):
    with sockets(udp(remote)) as sender:
        sender.sendto(b"stranger", external)
        data, _ = receive(inside, f"datagram to {external}")
        expect_equal(data, b"stranger", "datagram")


def reaches_tcp(remote, external, inside):
    with sockets(tcp(remote)) as client:
        client.connect(external)
        served, _ = inside.accept()
        with served:
            client.sendall(b"stranger")
            expect_equal(receive_stream(served, 8), b"stranger", "stream")


@test("port_control", "port_control_blocks", "port_control_slices", "port_control_whole")
@shows("6888-REQ-9", "6887-11.3b")
def a_granted_port_is_reached_from_outside_and_by_hairpin(n):
    host = SUBSCRIBERS["sub1"]
    port = fresh_port()
    with sockets(udp(n.sub1, port), listener(n.sub1, port)) as (datagrams, streams):
        datagrams.settimeout(3)
        streams.settimeout(3)
        for protocol, inside, reaches in (("udp", datagrams, reaches_udp), ("tcp", streams, reaches_tcp)):
            code, lifetime, external = pcp(n.sub1, host, protocol, port)
            expect_equal((code, lifetime), (0, 600), f"{protocol}: code and lifetime")
            reaches(n.srv1, external, inside)
            reaches(n.srv2, external, inside)
            reaches(n.sub2, external, inside)
    mine = [grant for grant in n.dut.show("grants") if grant["internal"] == f"{host}:{port}"]
    expect_equal(sorted(grant["protocol"] for grant in mine), ["tcp", "udp"], "grants shown")
    expect(all(grant["origin"] == "pcp" for grant in mine), f"origin: {mine}")
    _, said, _ = n.dut.command("why", "tcp", "192.0.2.99:4000", "{}:{}".format(*external), "--inbound")
    expect("granted by pcp" in said, f"why does not name the origin: {said}")
    mappings = n.dut.show("mappings", "--internal", f"{host}:{port}")
    expect_equal([mapping["origin"] for mapping in mappings], ["pcp", "pcp"], "origin of the mappings")


@test("port_control")
@shows("6886-2", "6886-5", "6886-7")
def natpmpc_maps_and_deletes(n):
    port = fresh_port()
    asked = ["natpmpc", "-g", NAT_INSIDE]
    _, said, _ = n.sub1.run(asked, check=True)
    public = re.search(r"Public IP address : (\S+)", said).group(1)
    expect(public in topology.POOL, f"public address {public}")
    with sockets(udp(n.sub1, port)) as inside:
        _, said, _ = n.sub1.run([*asked, "-a", "0", str(port), "udp", "300"], check=True)
        found = re.search(r"Mapped public port (\d+) protocol UDP to local port (\d+) liftime (\d+)", said)
        expect(found, f"natpmpc: {said}")
        expect_equal((int(found.group(2)), int(found.group(3))), (port, 300), "local port and lifetime")
        reaches_udp(n.srv1, (public, int(found.group(1))), inside)
        n.sub1.run([*asked, "-a", "0", str(port), "udp", "0"], check=True)
        with sockets(udp(n.srv2)) as stranger:
            stranger.sendto(b"gone?", (public, int(found.group(1))))
            expect_silence(inside, 0.5, "after the deletion")


TORRENT = """
import sys, time
import libtorrent as lt
address, seconds = sys.argv[1], float(sys.argv[2])
session = lt.session({
    "listen_interfaces": f"{address}:0", "enable_natpmp": True, "enable_upnp": False, "enable_lsd": False,
    "enable_dht": False, "alert_mask": lt.alert.category_t.port_mapping_notification | lt.alert.category_t.error_notification,
})
print("listen", session.listen_port(), flush=True)
until = time.monotonic() + seconds
while time.monotonic() < until:
    session.wait_for_alert(200)
    for alert in session.pop_alerts():
        if isinstance(alert, lt.portmap_alert):
            print("mapped", alert.map_protocol, alert.external_port, flush=True)
        elif isinstance(alert, lt.portmap_error_alert):
            print("refused", alert.message(), flush=True)
"""


@test("port_control", "port_control_nat_pmp")
def libtorrent_maps_its_listening_port(n):
    host = SUBSCRIBERS["sub1"]
    client = n.sub1.start("libtorrent", ["/usr/bin/python3", "-c", TORRENT, host, "12"])
    until = time.monotonic() + 10
    lines = []
    while time.monotonic() < until and sum(line.startswith("mapped") for line in lines) < 2:
        time.sleep(0.3)
        lines = client.log().splitlines()
    expect(sum(line.startswith("mapped") for line in lines) >= 2, f"libtorrent: {lines}")
    port = int(next(line for line in lines if line.startswith("listen")).split()[1])
    shown = [grant for grant in n.dut.show("grants") if grant["internal"] == f"{host}:{port}"]
    mine = [grant for grant in shown if not grant["held_down"]]
    expect_equal({grant["protocol"] for grant in mine}, {"tcp", "udp"}, "protocols of libtorrent")
    external = next(grant["external"] for grant in mine if grant["protocol"] == "tcp").split(":")
    with sockets(tcp(n.srv1)) as peer:
        peer.connect((external[0], int(external[1])))
    client.end()


@test("port_control_state")
@shows("6887-8.5b")
def grants_survive_a_kill(n):
    host, port = SUBSCRIBERS["sub1"], fresh_port()
    with sockets(udp(n.sub1, port)) as inside:
        code, _, external = pcp(n.sub1, host, "udp", port)
        expect_equal(code, 0, "code")
        time.sleep(2)
        pcp(n.sub1, host, "tcp", port)
        before = EPOCH_TIMES[-1]
        time.sleep(0.2)
        n.dut.daemon.process.kill()
        n.dut.daemon.process.wait()
        n.dut.start(n, **SETUPS["port_control_state"])
        reaches_udp(n.srv1, external, inside)
        expect_equal(pcp(n.sub1, host, "udp", port)[2], external, "external endpoint after the kill")
        expect(EPOCH_TIMES[-1] >= before, f"the epoch time went back from {before} to {EPOCH_TIMES[-1]}")
