"""Port control with real clients: natpmpc (NAT-PMP); libtorrent, crab_nat and Tailscale's portmapper (PCP and NAT-PMP);
and a PCP client of a few lines. The same requests to miniupnpd show where it differs.

What was granted is reached from outside and by hairpin, in pools of single ports, blocks, slices and one-to-one.
"""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from flood import SharedMemory
from flood import capture
from flood import frames
from kit import *
from netlab import process
from netlab import topology
from netlab import torrent
from netlab.topology import NAT_INSIDE
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS
from setups import FLOOD_INSIDE
from setups import FLOOD_SOCKET
from setups import GRANTS
from setups import SETUPS

MAP, NONCE = 1, b"netns nonce!"
NUMBERS = {"udp": 17, "tcp": 6}
# Clients that scripts/setup.sh builds from tests/netns/clients.
CLIENTS = Path("/usr/local/lib/natrix-tools/bin")
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


def pcp_is_spoken(n):
    """Whether an ANNOUNCE is answered in version 2."""
    message = struct.pack("!BBHI", 2, 0, 0, 0) + mapped(SUBSCRIBERS["sub1"])
    with sockets(udp(n.sub1, address=SUBSCRIBERS["sub1"])) as sock:
        sock.sendto(message, (NAT_INSIDE, 5351))
        return receive(sock, "reply to ANNOUNCE")[0][0] == 2


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
def a_trace_names_what_asked_for_the_mapping(n):
    host, port, plain = SUBSCRIBERS["sub1"], fresh_port(), fresh_port()
    code, _, _ = pcp(n.sub1, host, "udp", port)
    expect_equal(code, 0, "result code")
    records = []
    with sockets(udp(n.sub1, port), udp(n.sub1, plain)) as (granted, other):
        for sock, number in ((granted, port), (other, plain)):
            # Its first packet may be before the trace begins.
            trace = n.nat.start(f"trace-{number}", [n.dut.binary, "trace", "--port", str(number), "--count", "1", "--json",
                                                    "--socket", str(n.dut.socket)])  # fmt: skip

            def seen():
                sock.sendto(b"x", (SRV1, 9))
                return not trace.alive()

            expect(process.wait_until(seen, 20, 0.2), f"no packet of port {number} was traced")
            records.append(json.loads(trace.log().splitlines()[0]))
    shown = n.dut.show("mappings", "--internal", f"{host}:{port}")
    expect_equal((records[0].get("origin"), shown[0]["origin"]), ("pcp", "pcp"), "origin in the trace and the mappings")
    expect("origin" not in records[1], f"a mapping that nobody asked for: {records[1]}")


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
        for remote in (n.srv1, n.srv2, n.sub2):
            reaches_udp(remote, (public, int(found.group(1))), inside)
        n.sub1.run([*asked, "-a", "0", str(port), "udp", "0"], check=True)
        with sockets(udp(n.srv2)) as stranger:
            stranger.sendto(b"gone?", (public, int(found.group(1))))
            expect_silence(inside, 0.5, "after the deletion")


@test("port_control", "port_control_nat_pmp")
def libtorrent_maps_its_listening_port(n):
    host = SUBSCRIBERS["sub1"]
    client, port = torrent.start(n.sub1, host, 60)
    expect(port, f"libtorrent: {client.log()}")
    shown = [grant for grant in n.dut.show("grants") if grant["internal"] == f"{host}:{port}"]
    mine = [grant for grant in shown if not grant["held_down"]]
    expect_equal({grant["protocol"] for grant in mine}, {"tcp", "udp"}, "protocols of libtorrent")
    origin = "pcp" if pcp_is_spoken(n) else "nat_pmp"
    expect_equal({grant["origin"] for grant in mine}, {origin}, "origin of the grants")
    for grant in mine:
        endpoint, protocol = grant["external"], grant["protocol"]
        _, found, _ = n.dut.command("find", endpoint, "--protocol", protocol, "--json")
        expect(f'"origin":"{origin}"' in found, f"find does not name the origin: {found}")
        _, why, _ = n.dut.command("why", protocol, "192.0.2.99:4000", endpoint, "--inbound")
        expect(f"granted by {origin}" in why, f"why does not name the origin: {why}")
    external = next(grant["external"] for grant in mine if grant["protocol"] == "tcp").split(":")
    # From outside, and by hairpin.
    for host in (n.srv1, n.srv2, n.sub2):
        with sockets(tcp(host)) as peer:
            peer.connect((external[0], int(external[1])))
    client.end()


@contextlib.contextmanager
def holding(host, argv):
    """A client that holds its port until its input ends: the line in which it says what it got, and how to end it."""
    client = subprocess.Popen(
        host.argv(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=process.die_with_parent,
    )  # fmt: skip
    said = []
    try:
        for line in client.stdout:
            said.append(line)
            if line.startswith("mapped "):
                break
        expect(said and said[-1].startswith("mapped "), f"{argv[0]} got no port: {''.join(said)[-1500:]}")
        yield said[-1].split()[1:], lambda: client.communicate(timeout=120)[0]
    finally:
        client.kill()
        client.communicate()


def live_grant(n, internal, protocol):
    """The grant of an internal endpoint that is not held down; None without."""
    grants = n.dut.show("grants", "--internal", internal, "--protocol", protocol)
    return next((grant for grant in grants if not grant["held_down"]), None)


def check_held(n, protocol, port, origin):
    """The port of sub1 is granted and reached from outside and by the other subscriber; the external endpoint."""
    grant = live_grant(n, f"{SUBSCRIBERS['sub1']}:{port}", protocol)
    expect(grant and grant["origin"] == origin, f"grant of {protocol} {port}: {grant}")
    address, _, number = grant["external"].rpartition(":")
    external = (address, int(number))
    opened, reaches = (udp, reaches_udp) if protocol == "udp" else (listener, reaches_tcp)
    with sockets(opened(n.sub1, port)) as inside:
        for remote in (n.srv1, n.srv2, n.sub2):
            reaches(remote, external, inside)
    return external


@test("port_control", "port_control_nat_pmp")
def crab_nat_maps_renews_and_deletes(n):
    """The crate falls back to NAT-PMP where PCP is not spoken."""
    spoken = "pcp" if pcp_is_spoken(n) else "nat_pmp"
    for is_used in (False, True):
        port = fresh_port()
        argv = [CLIENTS / "crab-nat-client", NAT_INSIDE, SUBSCRIBERS["sub1"], "tcp", port]
        with holding(n.sub1, argv) as ((by, external_port, lifetime), end):
            expect_equal((by, int(lifetime)), (spoken, 7200), "protocol and lifetime")
            grant = live_grant(n, f"{SUBSCRIBERS['sub1']}:{port}", "tcp")
            expect_equal(grant["external"].split(":")[1], external_port, "external port")
            if is_used:
                check_held(n, "tcp", port, spoken)
            said = end()
        # RFC 6887 §15: while connections keep the mapping, the reply has the time that is
        # left, which crab_nat calls wrong.
        wanted = "InvalidDeletionResponse" if is_used and spoken == "pcp" else "dropped"
        expect(wanted in said, f"after the deletion, used: {is_used}: {said}")
        expect_equal(live_grant(n, f"{SUBSCRIBERS['sub1']}:{port}", "tcp"), None, "grant after the deletion")


@test("port_control")
def tailscale_maps_its_port(n):
    for protocol, origin in (("pcp", "pcp"), ("pmp", "nat_pmp")):
        port = fresh_port()
        with holding(n.sub1, [CLIENTS / "tailscale-client", NAT_INSIDE, SUBSCRIBERS["sub1"], port, protocol]) as ((said,), end):
            external = check_held(n, "udp", port, origin)
            expect_equal(said, "{}:{}".format(*external), "external endpoint that Tailscale believes in")
            refused = counter(n, "pcp_not_authorized")
            end()
        # It asks to delete the mapping when it ends. By PCP it does so with another
        # nonce, which RFC 6887 §11.3 refuses.
        deleted = lambda: not live_grant(n, f"{SUBSCRIBERS['sub1']}:{port}", "udp")  # noqa: E731
        denied = lambda: counter(n, "pcp_not_authorized") > refused  # noqa: E731
        expect(process.wait_until(deleted if protocol == "pmp" else denied, 5, 0.1), f"{protocol}: the end was not noticed")


@test("port_control_state")
def grants_are_closed_to_other_users(n):
    with sockets(udp(n.sub1, fresh_port())) as inside:
        expect_equal(pcp(n.sub1, SUBSCRIBERS["sub1"], "udp", inside.getsockname()[1])[0], 0, "code")
    mode = os.stat(GRANTS).st_mode
    expect_equal(mode & 0o137, 0, f"rights of others in {mode:o}: the file names subscribers")


@test("port_control_state")
@shows("6887-8.5b")
def all_grants_survive_a_kill_right_after_the_reply(n):
    host, granted = SUBSCRIBERS["sub1"], {}
    with sockets(udp(n.sub1, fresh_port())) as inside:
        first = inside.getsockname()[1]
        for round in range(4):
            asked = [first] if round == 0 else [fresh_port() for _ in range(8)]
            for port in asked:
                code, _, granted[port] = pcp(n.sub1, host, "udp", port)
                expect_equal(code, 0, "code")
            n.dut.daemon.process.kill()
            n.dut.daemon.process.wait()
            n.dut.start(n, **SETUPS["port_control_state"])
            reaches_udp(n.srv1, granted[first], inside)
            before = EPOCH_TIMES[-1]
            for port, external in granted.items():
                expect_equal(pcp(n.sub1, host, "udp", port)[2], external, f"external endpoint of {port} after kill {round}")
            expect(EPOCH_TIMES[-1] >= before, f"the epoch time went back from {before} to {EPOCH_TIMES[-1]}")


# A flood takes so long, and by shared memory longer if fewer requests have come by then.
FLOOD_SECONDS, FLOOD_REQUESTS_MIN = 3, 900_000
# Requests a second that a worker answers to one address, so many more at once, and workers.
REQUESTS_OF_ONE, REQUESTS_AT_ONCE, WORKERS = 400, 100, 2


def lost_by_hop(n):
    """Frames that queues other than Natrix's had no room for, by where it was: all links of the traffic, the kernel's
    queues, the sockets at both ends, and what a port lost before Natrix could take it."""
    lost = {"softnet": sum(int(line.split()[1], 16) for line in Path("/proc/net/softnet_stat").read_text().splitlines())}
    for host, *devices in (
        (n.sub1, "eth0"), (n.sub2, "eth0"), (n.access, "sub1", "sub2", "nat"), (n.nat, "inside", "outside"),
        (n.core, "nat", "srv1", "far"), (n.srv1, "eth0"), (n.far, "core", "srv2"), (n.srv2, "eth0"),
    ):  # fmt: skip
        for device in devices:
            _, out, _ = host.run(["ip", "-s", "-json", "link", "show", device], check=True)
            for way in ("rx", "tx"):
                lost[f"{host.name} {device} {way}"] = json.loads(out)[0]["stats64"][way]["dropped"]
    for host in (n.sub2, n.srv1, n.srv2):
        _, out, _ = host.run(["nstat", "-asz", "UdpRcvbufErrors"], check=True)
        lost[f"{host.name} sockets"] = sum(int(line.split()[1]) for line in out.splitlines() if line.startswith("Udp"))
    for port in n.dut.show("interfaces"):
        lost[f"{port['name']} rx_missed"] = port["rx_missed"]
    return lost


def drops(n):
    """Packets that Natrix has dropped, by reason, and frames that it could not send, but for answers to a flood by
    shared memory, which nobody reads."""
    lost = {drop["reason"]: drop["packets"] for drop in n.dut.show("drops")}
    ports = [port for port in n.dut.show("interfaces") if port["name"] != "flood"]
    return {**lost, "tx_dropped": sum(port["tx_dropped"] for port in ports)}


def accounts(n):
    """Packets that the ports have counted, those that workers have taken from them, and those with a verdict; without
    those that wait, on all workers."""
    found = {one["name"]: one for one in n.dut.show("counters", "--all")}
    value = lambda name: found[name]["value"]  # noqa: E731
    held = sum(value(name) for name in ("fragments_held", "neighbour_pending"))
    crossing = value("handed_off") - value("taken_over")
    verdicts = sum(one["value"] for one in found.values() if one["kind"] in ("forwarded", "local", "dropped"))
    ports = sum(port["rx_packets"] for port in n.dut.show("interfaces"))
    return ports - held - crossing, value("received") - held - crossing, verdicts


def expect_balance(n):
    """Between two polls each packet that has entered a port has one verdict."""
    is_exact = lambda: len(set(accounts(n))) == 1  # noqa: E731
    expect(process.wait_until(is_exact, 10, 0.1), f"in ports, in workers, with a verdict: {accounts(n)}")


def established_during(n, flood):
    """Datagrams both ways during a flood, from inside and through a granted port, which began earlier. `flood` returns
    how many requests it had, and how many of them reached Natrix if somebody has counted them.

    Natrix takes none of what has reached it. What is lost before, because the machine is too slow, is counted there.
    """
    port = fresh_port()
    code, _, granted = pcp(n.sub2, SUBSCRIBERS["sub2"], "udp", port)
    expect_equal(code, 0, "code")
    server, stranger = udp(n.srv1, address=SRV1), udp(n.srv2)
    client, inside = udp(n.sub2), udp(n.sub2, port)
    stop, sent, seen = threading.Event(), [0], {name: set() for name in ("echoed", "granted")}

    def echo():
        server.settimeout(0.2)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                data, sender = server.recvfrom(2048)
                server.sendto(data, sender)

    def read(name, sock):
        sock.settimeout(0.2)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                seen[name].add(int.from_bytes(sock.recv(2048), "big"))

    def talk():
        # Established before the flood begins, from inside and through the granted port.
        while not ended.wait(0.005):
            client.sendto(sent[0].to_bytes(8, "big"), server.getsockname())
            stranger.sendto(sent[0].to_bytes(8, "big"), granted)
            sent[0] += 1

    ended = threading.Event()
    with sockets(server, stranger, client, inside):
        talker = threading.Thread(target=talk)
        readers = [threading.Thread(target=echo), *(threading.Thread(target=read, args=one) for one in
                                                    (("echoed", client), ("granted", inside)))]  # fmt: skip
        for thread in (*readers, talker):
            thread.start()
        try:
            at, limited, before, queues = time.monotonic(), counter(n, "port_control_limited"), drops(n), lost_by_hop(n)
            offered, arrived = flood()
        finally:
            ended.set()
            talker.join()
            process.wait_until(lambda: all(len(of) == sent[0] for of in seen.values()), 10, 0.05)
            stop.set()
            for thread in readers:
                thread.join()
    limited, passed = counter(n, "port_control_limited") - limited, time.monotonic() - at
    waited = {hop: now - queues[hop] for hop, now in lost_by_hop(n).items() if now != queues[hop]}
    waited.pop("flood rx_missed", None)
    lost = {name: sent[0] - len(of) for name, of in seen.items()}
    arrived = offered - sum(waited.values()) if arrived is None else arrived
    print(f"# {arrived:,} of {offered:,} requests in {passed:.1f} s, {limited:,} not answered; frames lost in queues: "
          f"{waited}; of {sent[0]} datagrams each way lost: {lost}", flush=True)  # fmt: skip
    expect_balance(n)
    expect_equal(drops(n), before, "drops by Natrix")
    # What is lost before the workers see it, because the machine is too slow for its own flood.
    expect(max(lost.values()) <= sum(waited.values()), f"established datagrams lost: {lost}")
    # Every fourth is of sub1's own address. How many of the others are too many is up to the speed.
    answered = WORKERS * (REQUESTS_OF_ONE * passed + REQUESTS_AT_ONCE)
    least = arrived // 4 - answered
    expect(limited >= least, f"{limited} of {arrived} requests were not answered, at least {least:.0f} are too many")
    code, _, again = pcp(n.sub2, SUBSCRIBERS["sub2"], "udp", port)
    expect_equal((code, again), (0, granted), "renewal after the flood")


@test("port_control_flood")
@shows("6887-8.2e")
def a_flood_of_requests_takes_no_established_packet(n):
    """sub1 sends as fast as this machine can: its own requests, forged ones, and ones for third parties."""
    n.sub2.run(["ping", "-c1", "-W2", NAT_INSIDE], check=True)
    _, neighbour, _ = n.sub2.run(["ip", "neighbour", "show", NAT_INSIDE], check=True)
    station = neighbour.split("lladdr")[1].split()[0]

    def flood():
        words = [Path(__file__).parent / "flood.py", "eth0", station, "pcp", FLOOD_SECONDS]
        status, out, err = n.sub1.run([sys.executable, *map(str, words)], timeout=60)
        expect_equal(status, 0, f"the flood: {err}")
        return int(out), None

    established_during(n, flood)


@test("port_control_memory")
def a_request_flood_over_memif_takes_no_established_packet(n):
    """The same to another port of Natrix than that of the established packets, without a kernel between."""
    port = lambda: next(port for port in n.dut.show("interfaces") if port["name"] == "flood")  # noqa: E731
    path = n.state.directory / "flood.pcap"
    capture(path, frames(bytes.fromhex(port()["mac"].replace(":", "")), "pcp", FLOOD_INSIDE))

    def flood():
        before = port()["rx_packets"]
        arrived = lambda: port()["rx_packets"] - before  # noqa: E731
        sender = SharedMemory(n.access, path, FLOOD_SOCKET)
        try:
            expect(process.wait_until(lambda: port()["link_up"], 20, 0.1), f"the link of the flood: {port()}")
            at = time.monotonic()
            is_flood = lambda: arrived() >= FLOOD_REQUESTS_MIN  # noqa: E731
            offered, sent = sender.send(FLOOD_SECONDS, lambda: process.wait_until(is_flood, 60, 0.5))
            passed = time.monotonic() - at
        finally:
            sender.end()
        print(f"# {offered / passed:,.0f} requests a second offered, {arrived() / passed:,.0f} taken", flush=True)
        # What is still in the ring when the sender ends is lost.
        expect(FLOOD_REQUESTS_MIN <= arrived() <= sent, f"{arrived()} of {sent} arrived")
        return offered, arrived()

    established_during(n, flood)


MINIUPNPD = Path("/usr/local/lib/natrix-tools/miniupnpd-nftables")


def start_miniupnpd(n):
    """miniupnpd on sub2, as a router of the inside link whose outside leads nowhere."""
    folder = n.state.directory / "miniupnpd"
    folder.mkdir()
    n.sub2.ip("link", "add", "wan", "type", "veth", "peer", "name", "nowhere")
    n.sub2.ip("address", "add", "5.5.5.5/24", "dev", "wan")
    for name in ("wan", "nowhere"):
        n.sub2.ip("link", "set", name, "up")
    n.sub2.run(["nft", "-f", "-"], check=True, stdin="""
        table inet filter {
            chain forward { type filter hook forward priority 0; }
            chain miniupnpd { }
            chain prerouting { type nat hook prerouting priority -100; }
            chain postrouting { type nat hook postrouting priority 100; }
            chain prerouting_miniupnpd { }
            chain postrouting_miniupnpd { }
        }
    """)  # fmt: skip
    (folder / "conf").write_text(
        f"ext_ifname=wan\nlistening_ip=eth0\nenable_natpmp=yes\nenable_upnp=no\nsecure_mode=yes\n"
        f"min_lifetime=120\nmax_lifetime=86400\nlease_file={folder}/leases\nuuid=00000000-0000-0000-0000-000000000000\n"
        f"allow 1-65535 100.64.0.0/24 1-65535\n"
    )
    daemon = n.sub2.start("miniupnpd", [MINIUPNPD / "usr/sbin/miniupnpd", "-d", "-f", folder / "conf", "-P", folder / "pid"])
    n.wait_for_listener(n.sub2, 5351, "udp")
    return daemon


def option(code, data):
    return struct.pack("!BBH", code, 0, len(data)) + data + bytes(-len(data) % 4)


def request(opcode=MAP, lifetime=600, nonce=NONCE, protocol=17, port=7777, suggested=0, version=2, rest=b""):
    message = struct.pack("!BBHI", version, opcode, 0, lifetime) + mapped(SUBSCRIBERS["sub1"])
    if opcode in (1, 2):
        message += nonce + struct.pack("!B3xHH", protocol, port, suggested) + mapped("0.0.0.0")
    return message + rest


def outcome(n, server, message):
    """Version, opcode and result code of the reply; of a success also whether there is a lifetime. None without one."""
    with sockets(udp(n.sub1, address=SUBSCRIBERS["sub1"])) as sock:
        sock.sendto(message, (server, 5351))
        try:
            reply = sock.recv(2000)
        except TimeoutError:
            return None
    if reply[0] == 2:
        return 2, reply[1], reply[3], reply[3] == 0 and struct.unpack("!I", reply[4:8])[0] > 0
    return reply[0], reply[1], struct.unpack("!H", reply[2:4])[0]


def pmp(opcode, port=7788, lifetime=600):
    return struct.pack("!BBHHHI", 0, opcode, 0, port, 0, lifetime)


# What is asked, in order.
ASKED = {
    "map": request(),
    "renewal": request(),
    "other nonce": request(nonce=b"other nonce!"),
    "other nonce deletes": request(nonce=b"other nonce!", lifetime=0),
    "deletion": request(lifetime=0),
    "deletion again": request(lifetime=0),
    "deletion of nothing": request(lifetime=0, port=7778),
    "too short": request()[:20],
    "not whole words": request() + b"x",
    "other version": request(version=3),
    "unknown opcode": request(opcode=9),
    "unknown option": request(rest=option(100, b"")),
    "unknown optional option": request(port=7779, rest=option(200, b"")),
    "third party": request(rest=option(1, mapped(SUBSCRIBERS["sub2"]))),
    "prefer failure": request(port=7780, suggested=7, rest=option(2, b"")),
    "filter": request(port=7781, rest=option(3, struct.pack("!xBH", 128, 0) + mapped("192.0.2.10"))),
    "sctp": request(protocol=132),
    "forged client": request()[:8] + mapped("100.64.0.99") + request()[24:],
    "peer": request(opcode=2, port=7782, rest=struct.pack("!HH", 80, 0) + mapped("192.0.2.10")),
    "announce": request(opcode=0, lifetime=0),
    "nat-pmp address": b"\0\0",
    "nat-pmp map": pmp(1),
    "nat-pmp deletion": pmp(1, lifetime=0),
    "nat-pmp unknown opcode": pmp(9),
}
# Ours, then miniupnpd's. It keeps no nonce, has no answer to the deletion of what is not there,
# answers what is no message of PCP as one of NAT-PMP, and maps SCTP.
DIFFERENCES = {
    "other nonce": ((2, 129, 2, False), (2, 129, 0, True)),
    "other nonce deletes": ((2, 129, 2, False), (2, 129, 0, False)),
    "deletion": ((2, 129, 0, False), (2, 129, 8, False)),
    "deletion again": ((2, 129, 0, False), (2, 129, 8, False)),
    "deletion of nothing": ((2, 129, 0, False), (2, 129, 8, False)),
    "too short": (None, (0, 128, 3)),
    "not whole words": ((2, 129, 3, False), (0, 128, 3)),
    "sctp": ((2, 129, 9, False), (2, 129, 0, True)),
}


@test("port_control")
def miniupnpd_answers_the_same_but_for_known_differences(n):
    daemon = start_miniupnpd(n)
    differ = {}
    for name, message in ASKED.items():
        ours, theirs = outcome(n, NAT_INSIDE, message), outcome(n, SUBSCRIBERS["sub2"], message)
        if ours != theirs:
            differ[name] = ours, theirs
    daemon.end()
    expect_equal(differ, DIFFERENCES, "(ours, theirs) where they differ")
