"""IPv6 hosts that reach IPv4 servers through real kernels: NAT64, 464XLAT and DS-Lite (netlab/transition.py)."""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import random
import re
import socket
import threading
from datetime import datetime
from datetime import timezone
from pathlib import Path

from families import Families
from kit import *
from netlab import servers
from netlab.process import wait_until
from netlab.topology import NAT_OUTSIDE
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS as SUBSCRIBER_ADDRESSES
from netlab.transition import AFTR
from netlab.transition import AFTR_INNER
from netlab.transition import B4
from netlab.transition import HOME
from netlab.transition import INNER_MTU
from netlab.transition import INSIDE
from netlab.transition import IN_ONE_DATAGRAM
from netlab.transition import PREFIX
from netlab.transition import SRV1_BEHIND
from netlab.transition import SUB1
from netlab.transition import SUB2
from netlab.transition import asking
from netlab.transition import clat
from netlab.transition import dig
from netlab.transition import dns64
from netlab.transition import kernel_as_b4
from netlab.transition import ping
from netlab.transition import program_as_b4
from netlab.transition import size_of_answer
from netlab.transition import with_routes
from programs import DNS_NAME
from programs import Programs
from programs import write_file
from setups import GRANTS
from setups import SETUPS
from test_api import ask
from test_api import objects
from test_first_steps import sample
from test_page import look_at_hosts
from test_page import same_numbers_everywhere
from test_port_control import CLIENTS
from test_port_control import holding
from test_port_control import pcp
from test_port_control import reaches_udp
from test_restconf import INSTANCE
from test_restconf import data
from test_restconf import judge
from test_snmp import ADDRESS_MAPS
from test_snmp import INSTANCE as INSTANCE_ROW
from test_snmp import MIB
from test_snmp import PORT_MAPS
from test_snmp import SUBSCRIBERS
from test_snmp import agent
from test_snmp import octets
from test_snmp import quiet
from test_snmp import table
from test_snmp import walk
DOWNLOAD_MIB = int(os.environ.get("NATRIX_NAT64_MIB", "64"))


@test("transition")
def the_demo_shows_every_family_through_one_pool(n):
    web, _ = servers.run_web(n, n.srv1, servers.WEB_PORT)
    names = servers.start_dns(n, n.srv1, DNS_NAME, SRV1)
    try:
        titles = set()
        for title, program in Families(Programs(n), DNS_NAME).all():
            if "1 GiB" in title:
                continue
            result = program()
            expect(result.passed, f"{title}: {result.saw}")
            titles.add(title.partition(":")[0])
        expect_equal(titles, {"NAT64", "464XLAT", "DS-Lite"}, "families")
        shown = {title.partition(":")[0] for title, _ in Programs(n).all()}
        expect(titles <= shown, f"the demo shows {shown}")
    finally:
        web.end()
        names.end()


@contextlib.contextmanager
def web_server(n, body):
    """Serves `body` to any request at srv1."""
    server = listener(n.srv1, 0, SRV1)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                sock, _ = server.accept()
                with sock:
                    sock.recv(65536)
                    sock.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


def fetch(host, url, asks=None, seconds=30):
    """The digest of what curl gets. `asks`: the network and its name server, instead of those of the machine."""
    words = ["set -o pipefail; curl -sS -g --noproxy '*' -m \"$0\" \"$1\" | sha256sum", str(seconds), url]
    argv = ["bash", "-c", *words]
    status, out, err = host.run(asking(*asks, argv) if asks else argv, timeout=seconds + 10)
    expect_equal(status, 0, f"curl {url}: {err}")
    return out.split()[0]


@test("transition")
@shows("6146-28", "7915-4.2a", "7915-5.2a")
def an_ipv6_only_client_pings_and_fetches_by_nat64(n):
    with_routes(n)
    status, text = ping(n.sub1, SRV1_BEHIND, "-s", "1400")
    expect_equal(status, 0, text)
    web, root = servers.run_web(n, n.srv1, WEB_PORT)
    try:
        digest = write_file(root / "body", DOWNLOAD_MIB << 20)
        seen = fetch(n.sub1, f"http://[{SRV1_BEHIND}]:{WEB_PORT}/body", seconds=30 + DOWNLOAD_MIB)
        expect_equal(seen, digest, "body")
    finally:
        (root / "body").unlink(missing_ok=True)
        web.end()


NAME = "long.srv1.test"


def answer_of(host, server, *more):
    """Bytes of the answer, in one datagram of UDP."""
    return size_of_answer(dig(host, server, "TXT", NAME, *IN_ONE_DATAGRAM, *more))


def fragmented(packets):
    """Whether one of the packets is a fragment."""
    return any(packet.more_fragments or packet.offset for packet in packets)


@contextlib.contextmanager
def names_at(n, host, address, port=53):
    """A name server at a host, until the end."""
    daemon = servers.start_dns(n, host, "srv1.test", address, port)
    try:
        yield
    finally:
        daemon.end()


@test("transition")
@shows("6146-8", "7915-4.1h")
def a_fragmented_dns_answer_passes_nat64_each_way(n):
    with_routes(n)
    with names_at(n, n.srv1, SRV1):
        expect(answer_of(n.sub1, SRV1_BEHIND) > LONG_ANSWER, "from outside to dig of an IPv6 host")
        with dns64(n, n.sub1, "srv1.test"):
            expect(answer_of(n.sub1, "::1") > LONG_ANSWER, "from outside to unbound of an IPv6 host")
    with names_at(n, n.sub1, SRV1, DNS_PORT), forwarded_by_reload(n, n.sub1, "[::]"), Sniffer(n.srv1) as sniffer:
        size = answer_of(n.srv1, FORWARDS_TO, "-p", DNS_FORWARD_PORT)
        expect(size > LONG_ANSWER, f"from an IPv6 host to dig outside: {size} bytes")
        expect(fragmented(sniffer.packets(1, lambda packet: packet.source == FORWARDS_TO)), "in fragments")


@test("transition")
@shows("6333-2")
def a_fragmented_dns_answer_passes_a_softwire_each_way(n):
    # The kernel as B4 cannot join fragments of a softwire, so those of the answer fit into it.
    n.srv1.ip("route", "replace", "default", "via", "192.0.2.1", "mtu", INNER_MTU)
    try:
        with kernel_as_b4(n) as b4:
            with names_at(n, n.srv1, SRV1):
                expect(answer_of(b4, SRV1) > LONG_ANSWER, "from outside to dig behind the B4")
            with names_at(n, b4, SRV1, DNS_PORT), forwarded_by_reload(n, b4, HOME), Sniffer(n.srv1) as sniffer:
                size = answer_of(n.srv1, FORWARDS_TO, "-p", SOFTWIRE_DNS_FORWARD_PORT)
                expect(size > LONG_ANSWER, f"from behind the B4 to dig outside: {size} bytes")
                expect(fragmented(sniffer.packets(1, lambda packet: packet.source == FORWARDS_TO)), "in fragments")
    finally:
        n.srv1.ip("route", "replace", "default", "via", "192.0.2.1")


def found(n, asked, at):
    """The holders by the log's store, once it has everything of that time."""
    answer = []

    def is_complete():
        status, out, err = n.dut.command("find", asked, "--at", at, "--json")
        expect_equal(status, 0, f"status of natrix find {asked} ({err.strip()})")
        *answer[:], last = [json.loads(line) for line in out.splitlines()]
        return last["complete"]

    expect(wait_until(is_complete, 15, 0.2), f"{asked} at {at} has no complete answer: {answer}")
    return [(one["subscriber"], one["internal_port"], one["external_address"], one["first_port"]) for one in answer]


@test("transition")
@shows("6302-X")
def the_log_names_the_ipv6_host_of_an_endpoint(n):
    with_routes(n)
    with n.sub1.entered():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with sockets(sock, udp(n.srv1, 7064)) as (sock, server):
        sock.connect((SRV1_BEHIND, 7064))
        sock.send(b"x")
        _, external = receive(server, "a datagram")
        at = datetime.now(timezone.utc).isoformat()
        host, port = sock.getsockname()[:2]
    holder = (host, port, external[0], external[1])
    expect_equal(found(n, f"{external[0]}:{external[1]}", at), [holder], "the holder of the external endpoint")
    expect(holder in found(n, host, at), f"{host} holds {external}")
    expect_equal(found(n, f"[{host}]:{port}", at), [holder], "what the internal endpoint holds")
    expect_equal(found(n, "2001:db8:ffff::/56", at), [], "what another prefix holds")


@test("transition")
@shows("6146-6", "7915-4.2b")
def a_closed_port_outside_is_refused_at_once(n):
    with_routes(n)
    with n.sub1.entered():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with sockets(sock) as sock:
        sock.settimeout(20)
        sock.connect((SRV1_BEHIND, 9))
        sock.send(b"x")
        try:
            sock.recv(100)
            raise Failure("an answer from a closed port")
        except ConnectionRefusedError:
            pass


def why(n, *words):
    status, out, err = n.dut.command("why", *words, "--json")
    expect_equal(status, 0, f"why {words}: {err}")
    return json.loads(out)


@test("transition")
def why_and_trace_name_an_ipv6_host(n):
    with_routes(n)
    port, server = fresh_port(), udp(n.srv1, 0, SRV1)
    source, to = f"[{SUB1}]:{port}", server.getsockname()[1]
    explained = why(n, "udp", source, f"{SRV1}:{to}")
    expect_equal((explained["verdict"], explained["host"]["address"]), ("outbound", SUB1), f"before: {explained}")
    expect_equal(explained["destination"], f"[{SRV1_BEHIND}]:{to}", "destination behind the prefix")
    with n.sub1.entered():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with sockets(sock, server):
        sock.bind(("", port))
        words = ["trace", "--address", f"{SUB1}/128", "--port", str(port), "--count", "1", "--json"]
        trace = n.nat.start(f"trace-{port}", [n.dut.binary, *words, "--socket", str(n.dut.socket)])

        def seen():
            sock.sendto(b"x", (SRV1_BEHIND, to))
            return not trace.alive()

        expect(wait_until(seen, 20, 0.2), "no packet of the host was traced")
        external = "{}:{}".format(*receive(server, "a datagram")[1])
    record = json.loads(trace.log().splitlines()[0])
    expect(record["before"].startswith(f"udp {source} > [{SRV1_BEHIND}]:{to}"), f"before: {record}")
    expect(record["after"].startswith(f"udp {external} > {SRV1}:{to}"), f"after: {record}")
    expect_equal(record["steps"][0]["step"], "host", "first step")
    explained = why(n, "udp", source, f"[{SRV1_BEHIND}]:{to}")
    expect_equal(explained["translated_source"], external, "with the mapping")
    back = why(n, "udp", f"{SRV1}:{to}", external, "--inbound")
    leaves = back["translated_source"], back["translated_destination"]
    expect_equal(leaves, (f"[{SRV1_BEHIND}]:{to}", source), f"back: {back}")
    private = why(n, "udp", source, f"[{PREFIX}10.0.0.1]:{to}")
    expect_equal((private["verdict"], [step["step"] for step in private["steps"]]), ("embedded_private", ["edge"]), "refused")
    expect("10.0.0.1 is private" in private["steps"][0]["detail"], f"refused: {private}")
    home = why(n, "udp", f"{HOME}:{port}", f"{SRV1}:{to}", "--b4", SUB1)
    expect_equal((home["verdict"], home["host"]["inner"]), ("outbound", HOME), f"by softwire: {home}")
    refused = why(n, "udp", f"8.8.8.8:{port}", f"{SRV1}:{to}", "--b4", SUB1)
    expect_equal((refused["verdict"], refused["host"]["address"]), ("softwire_source", SUB1), f"refused: {refused}")


@test("transition")
def why_names_the_route_to_an_ipv6_host_or_its_absence(n):
    with_routes(n)
    for far, verdict, way in [
        ("2001:db8:65::77", "inbound", f"via {SUB1}"),
        ("2001:db8:e:100::6", "no_route", "none to 2001:db8:e:100::6"),
    ]:
        n.sub1.ip("-6", "address", "replace", f"{far}/128", "dev", "lo", "nodad")
        with n.sub1.entered():
            sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with sockets(sock, udp(n.srv1, 0, SRV1)) as (sock, server):
            sock.bind((far, 0))
            to = server.getsockname()[1]
            sock.sendto(b"x", (SRV1_BEHIND, to))
            remote = receive(server, "a datagram")[1]
            external = "{}:{}".format(*remote)
            back = why(n, "udp", f"{SRV1}:{to}", external, "--inbound")
            ways = [step["decision"] for step in back["steps"] if step["step"] == "route"]
            expect_equal((back["verdict"], back["host"]["address"]), (verdict, far), f"{back}")
            expect(len(ways) == 1 and way in ways[0], f"{way} is not in {ways}")
            # The trace says what becomes of it, too.
            words = ["trace", "--address", SRV1, "--port", str(to), "--verdict", verdict, "--count", "1", "--json"]
            trace = n.nat.start(f"trace-{to}", [n.dut.binary, *words, "--socket", str(n.dut.socket)])

            def seen():
                server.sendto(b"y", remote)
                return not trace.alive()

            expect(wait_until(seen, 20, 0.2), f"no packet was traced as {verdict}")


@test("transition")
def names_are_synthesised_by_unbound_and_reached(n):
    with_routes(n)
    # Only unbound asks it, through NAT64 itself.
    names = servers.start_dns(n, n.srv1, "srv1.test", SRV1)
    try:
        body = random.Random(53).randbytes(100_000)
        with dns64(n, n.sub1, "srv1.test"), web_server(n, body) as port:
            digest = fetch(n.sub1, f"http://srv1.test:{port}/", asks=(n, "::1"))
        expect_equal(digest, hashlib.sha256(body).hexdigest(), "body")
    finally:
        names.end()


@test("transition")
def an_ipv4_only_client_behind_a_clat_reaches_ipv4(n):
    with_routes(n)
    with clat(n) as host:
        body = random.Random(464).randbytes(2 << 20)
        with web_server(n, body) as port:
            digest = fetch(host, f"http://{SRV1}:{port}/")
        expect_equal(digest, hashlib.sha256(body).hexdigest(), "body")


@test("transition")
@shows("6333-4", "6333-5", "6333-8")
def a_kernel_as_b4_reaches_ipv4_through_its_softwire(n):
    with kernel_as_b4(n) as b4:
        status, text = ping(b4, AFTR_INNER)
        expect_equal(status, 0, f"the AFTR inside the softwire: {text}")
        body = random.Random(6333).randbytes(1 << 20)
        with web_server(n, body) as port:
            digest = fetch(b4, f"http://{SRV1}:{port}/")
        expect_equal(digest, hashlib.sha256(body).hexdigest(), "body")


def udp6(host, port):
    with host.entered():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.settimeout(5)
    sock.bind(("::", port))
    return sock


def grant_of(n, host, port):
    """The external endpoint that an IPv6 host was granted for a port; None without."""
    grants = [grant for grant in n.dut.show("grants", "--host", host) if not grant["held_down"]]
    found = next((grant for grant in grants if grant["internal"].endswith(f":{port}")), None)
    if not found:
        return None
    address, _, number = found["external"].rpartition(":")
    return address, int(number)


@test("transition_port_control")
@shows("6887-12.1", "6887-8.5b", "6888-REQ-9")
def crab_nat_maps_a_port_of_an_ipv6_host_over_a_kill(n):
    with_routes(n)
    port = fresh_port()
    argv = [CLIENTS / "crab-nat-client", INSIDE, SUB1, "udp", port]
    with holding(n.sub1, argv) as ((by, external_port, _), end), sockets(udp6(n.sub1, port)) as inside:
        expect_equal(by, "pcp", "protocol")
        external = grant_of(n, SUB1, port)
        expect_equal(external[1], int(external_port), "external port")
        for remote in (n.srv1, n.srv2):
            reaches_udp(remote, external, inside)
        n.dut.daemon.process.kill()
        n.dut.daemon.process.wait()
        n.dut.start(n, **SETUPS["transition_port_control"])
        with_routes(n)
        expect_equal(grant_of(n, SUB1, port), external, "external endpoint after the kill")
        reaches_udp(n.srv2, external, inside)
        asked = f"{external[0]}:{external[1]}"
        status, out, err = n.dut.command("find", asked, "--protocol", "udp", "--json")
        expect_equal(status, 0, f"status of natrix find ({err.strip()})")
        expect(SUB1 in out and '"pcp"' in out, f"natrix find names host and origin: {out}")
        end()
    expect_equal(grant_of(n, SUB1, port), None, "grant after the deletion")


@test("transition_port_control")
@shows("6887-14.1b")
def a_loss_of_grants_is_announced_to_the_ipv6_hosts_of_the_link(n):
    with_routes(n)
    n.dut.daemon.process.kill()
    n.dut.daemon.process.wait()
    Path(f"{GRANTS}-ipv6").unlink(missing_ok=True)
    with sockets(udp6(n.sub1, 5350)) as client:
        client.settimeout(15)
        n.dut.start(n, **SETUPS["transition_port_control"])
        message, sender = receive(client, "announcement")
        expect_equal((message[:2], message[3]), (b"\x02\x80", 0), "version, opcode and result")
        expect_equal(sender[:2], (INSIDE, 5351), "sender")


@test("transition_port_control")
@shows("6887-13.1c")
def natpmpc_maps_a_port_through_a_softwire(n):
    with kernel_as_b4(n) as b4:
        port = fresh_port()
        asked = ["natpmpc", "-g", AFTR_INNER]
        _, said, _ = b4.run([*asked, "-a", "0", str(port), "udp", "300"], check=True)
        found = re.search(r"Mapped public port (\d+) protocol UDP to local port (\d+)", said)
        expect(found, f"natpmpc: {said}")
        external = grant_of(n, B4, port)
        expect_equal(external[1], int(found.group(1)), "external port")
        with sockets(udp(b4, port)) as inside:
            reaches_udp(n.srv1, external, inside)


# An IPv6 host, and one behind a B4, at the same external address.
FORWARDS_TO = "203.0.113.9"
FORWARD_PORT, SOFTWIRE_FORWARD_PORT, WEB_PORT = 8064, 8065, 8080
DNS_FORWARD_PORT, SOFTWIRE_DNS_FORWARD_PORT, DNS_PORT = 8066, 8067, 5353
# The header around a packet in a softwire.
OUTER = 40
ETH_P_IPV6 = 0x86DD
# Bytes; one packet has 1,500.
LONG_ANSWER = 3000
# To each of the two hosts by each protocol.
FORWARDS = "".join(
    f'\n[[forward]]\nprotocol = "{protocol}"\nexternal = "{FORWARDS_TO}"\nports = {port}\ninside = {inside}\ninside_port = {inside_port}\n'
    for protocol, inside_port, ports in (
        ("tcp", WEB_PORT, (FORWARD_PORT, SOFTWIRE_FORWARD_PORT)),
        ("udp", DNS_PORT, (DNS_FORWARD_PORT, SOFTWIRE_DNS_FORWARD_PORT)),
    )
    for port, inside in zip(ports, (f'"{SUB1}"', f'"{HOME}"\nb4 = "{B4}"'))
)


@contextlib.contextmanager
def forwarded_by_reload(n, host, address):
    """nginx at a host, and the forwards of `FORWARDS` until the end."""
    web, root = servers.run_web(n, host, WEB_PORT, address)
    body = random.Random(3).randbytes(4 << 20)
    (root / "body").write_bytes(body)
    changed = n.dut.configuration.with_name("forwards.toml")
    changed.write_text(n.dut.configuration.read_text() + FORWARDS)
    try:
        for word in ("plan", "reload"):
            status, out, err = n.dut.command(word, "-c", changed)
            expect(status in (0, 2) if word == "plan" else status == 0, f"natrix {word}: {status} {err.strip()}")
            if word == "plan":
                expect(f"to [{SUB1}]:{WEB_PORT}" in out and f"to {HOME}:{WEB_PORT} behind 2001:db8:64::b4" in out, f"plan: {out}")
        yield hashlib.sha256(body).hexdigest()
        status, _, err = n.dut.command("reload", "--rollback")
        expect_equal(status, 0, f"status of natrix reload --rollback ({err.strip()})")
        status, _, _ = n.srv2.run(["curl", "-sS", "--noproxy", "*", "-m", "3", f"http://{FORWARDS_TO}:{FORWARD_PORT}/"])
        expect(status != 0, "a removed forward is open")
    finally:
        web.end()


def answered(host, url):
    """What curl prints."""
    status, out, err = host.run(["curl", "-sS", "-g", "--noproxy", "*", "-m", "30", url])
    expect_equal(status, 0, f"curl {url}: {err}")
    return out.strip()


def leads_to(n, external_port):
    """What `why` and `find` say of a forward: verdict, destination, holders."""
    explained = why(n, "tcp", f"{SRV1}:40000", f"{FORWARDS_TO}:{external_port}", "--inbound")
    _, out, _ = n.dut.command("find", f"{FORWARDS_TO}:{external_port}", "--protocol", "tcp", "--json")
    hosts = [json.loads(line).get("host") for line in out.splitlines()]
    expect("static mapping" in str(explained["steps"]) or "mapping" in str(explained["steps"]), f"why: {explained}")
    return explained["verdict"], explained["translated_destination"], hosts


@test("transition")
@shows("6146-3", "6146-29")
def a_web_server_of_ipv6_only_is_reached_from_ipv4_by_a_forward(n):
    with_routes(n)
    n.sub2.ip("-6", "route", "replace", "64:ff9b::/96", "via", INSIDE)
    with forwarded_by_reload(n, n.sub1, "[::]") as digest:
        host = {"address": SUB1, "prefix_length": 128}
        for _ in ("before anyone came", "while it is in use"):
            expect_equal(leads_to(n, FORWARD_PORT), ("inbound", f"[{SUB1}]:{WEB_PORT}", [host]), "why and find")
            seen = answered(n.srv1, f"http://{FORWARDS_TO}:{FORWARD_PORT}/whoami")
            expect(seen.startswith(f"{SRV1_BEHIND}:"), f"the server sees {seen}")
        url = f"http://{FORWARDS_TO}:{FORWARD_PORT}/body"
        expect_equal(fetch(n.srv2, url), digest, "body")
        # By hairpin: from a host of NAT64, and from a subscriber of IPv4.
        seen = answered(n.sub2, f"http://[{PREFIX}{FORWARDS_TO}]:{FORWARD_PORT}/whoami")
        expect(seen.startswith(PREFIX), f"the server sees {seen}")
        expect(answered(n.sub2, f"http://{FORWARDS_TO}:{FORWARD_PORT}/whoami").startswith(PREFIX), "hairpin from IPv4")
        at = datetime.now(timezone.utc).isoformat()
        holders = found(n, f"{FORWARDS_TO}:{FORWARD_PORT}", at)
        expect(all(holder[:2] == (SUB1, WEB_PORT) for holder in holders) and holders, f"the log's holders: {holders}")


@test("transition")
@shows("6333-5")
def a_web_server_behind_a_b4_is_reached_by_a_forward(n):
    with kernel_as_b4(n) as b4, forwarded_by_reload(n, b4, HOME) as digest:
        host = {"address": B4, "prefix_length": 128, "inner": HOME}
        verdict, _, hosts = leads_to(n, SOFTWIRE_FORWARD_PORT)
        expect_equal((verdict, hosts), ("inbound", [host]), "why and find")
        seen = answered(n.srv1, f"http://{FORWARDS_TO}:{SOFTWIRE_FORWARD_PORT}/whoami")
        expect(seen.startswith(f"{SRV1}:"), f"the server sees {seen}")
        url = f"http://{FORWARDS_TO}:{SOFTWIRE_FORWARD_PORT}/body"
        expect_equal(fetch(n.srv1, url), digest, "body")


# An address that a host or B4 gives up, and a port that leads to it then.
LEAVING6, OFF_FORWARD_PORT = "2001:db8:64::240", 8068


@test("transition")
@shows("4861-7.2.2b")
def ipv6_hosts_that_left_are_unreachable_from_outside(n):
    with_routes(n)
    n.sub1.ip("-6", "route", "replace", AFTR, "via", INSIDE)
    n.sub1.ip("-6", "address", "add", f"{LEAVING6}/64", "dev", "eth0", "nodad")
    with sockets(udp(n.srv1, address=SRV1), udp(n.srv1, address=SRV1)) as servers_of_kinds:
        ports = [server.getsockname()[1] for server in servers_of_kinds]
        try:
            with n.sub1.entered():
                by_nat64 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                in_softwire = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 4)
            with sockets(by_nat64, in_softwire):
                by_nat64.bind((LEAVING6, 0))
                in_softwire.bind((LEAVING6, 0))
                by_nat64.sendto(b"x", (SRV1_BEHIND, ports[0]))
                in_softwire.sendto(ip_packet(HOME, SRV1, 17, udp_segment(HOME, 5353, SRV1, ports[1], b"y")), (AFTR, 0))
                endpoints = [receive(server, "a datagram of the host")[1] for server in servers_of_kinds]
        finally:
            n.sub1.ip("-6", "address", "delete", f"{LEAVING6}/64", "dev", "eth0")
        for server, endpoint in zip(servers_of_kinds, endpoints):
            server.connect(endpoint)
            server.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            server.send(b"still there?")
        for server in servers_of_kinds:
            error = queued_icmp_error(server, 15)
            expect_equal((error.kind, error.code, error.offender), (3, 1, NAT_OUTSIDE), "type, code and sender")


@test("transition")
@shows("4861-7.2.2b")
def a_connection_to_an_ipv6_host_that_is_off_fails(n):
    with_routes(n)
    changed = n.dut.configuration.with_name("host_off.toml")
    forward = f'protocol = "tcp"\nexternal = "{FORWARDS_TO}"\nports = {OFF_FORWARD_PORT}\ninside = "{LEAVING6}"\ninside_port = {WEB_PORT}\n'
    changed.write_text(f"{n.dut.configuration.read_text()}\n[[forward]]\n{forward}")
    status, _, err = n.dut.command("reload", "-c", changed)
    expect_equal(status, 0, f"status of natrix reload ({err.strip()})")
    try:
        n.sub2.ip("-6", "route", "replace", "64:ff9b::/96", "via", INSIDE)
        with n.sub2.entered():
            hairpin = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        hairpin.settimeout(20)
        with sockets(tcp(n.srv1), tcp(n.sub2), hairpin) as (server, subscriber, hairpin):
            for sock, to in ((server, FORWARDS_TO), (subscriber, FORWARDS_TO), (hairpin, f"{PREFIX}{FORWARDS_TO}")):
                error = sock.connect_ex((to, OFF_FORWARD_PORT))
                expect_equal(errno.errorcode.get(error), "EHOSTUNREACH", f"result of connect() to {to} from {sock.getsockname()}")
    finally:
        status, _, err = n.dut.command("reload", "--rollback")
    expect_equal(status, 0, f"status of natrix reload --rollback ({err.strip()})")


def outer_packets(host):
    """The IPv6 packets that a host receives, each with its length, from now on."""
    with host.entered():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IPV6))
        sock.bind(("eth0", ETH_P_IPV6))
    sock.setblocking(False)
    return sock


def lengths_of(sock, source):
    """The lengths of the packets of a softwire or its fragments that came from `source`."""
    lengths = []
    with contextlib.suppress(BlockingIOError):
        while True:
            packet, _ = sock.recvfrom(65535)
            # IPv4, or a fragment of it.
            if packet[8:24] == socket.inet_pton(socket.AF_INET6, source) and packet[6] in (4, 44):
                lengths.append(len(packet))
    return lengths


@test("transition", "transition_1280", "transition_1281")
@shows("6333-1", "6333-2")
def a_softwire_carries_whole_packets_over_each_mtu(n):
    configured = re.search(r'name = "inside"\nmtu = (\d+)', n.dut.configuration.read_text())
    mtu = int(configured[1]) if configured else 1500
    n.sub2.ip("link", "set", "eth0", "mtu", mtu)
    try:
        with program_as_b4(n) as b4, sockets(outer_packets(b4)) as outer:
            # Of an inner packet: the header, that of ICMP, and this much.
            for size in sorted({mtu - OUTER - 1, mtu - OUTER, mtu - OUTER + 1, 1500}):
                for fragment in ("do", "dont"):
                    lengths_of(outer, AFTR)
                    status, text = ping(b4, SRV1, "-c", "1", "-M", fragment, "-s", size - 28)
                    expect_equal(status, 0, f"{size} bytes inside, -M {fragment}: {text}")
                    lengths = lengths_of(outer, AFTR)
                    wanted = 1 if size + OUTER <= mtu else 2
                    expect_equal(len(lengths), wanted, f"packets of the softwire with {size} bytes, -M {fragment}: {lengths}")
                    expect(max(lengths) <= mtu, f"{lengths} on a link of {mtu}")
            status, text = ping(b4, SRV1, "-c", "1", "-s", "4000")
            expect_equal(status, 0, f"fragments inside: {text}")
    finally:
        n.sub2.ip("link", "set", "eth0", "mtu", 1500)


PREFIX_LENGTH = 56


def subscriber_of(address):
    """The prefix that is the subscriber of a host, as octets."""
    return socket.inet_pton(socket.AF_INET6, address)[: PREFIX_LENGTH // 8].ljust(16, b"\0")


@contextlib.contextmanager
def hosts_of_both_kinds(n):
    """A mapping of sub1 by NAT64, and one of a host behind sub2's softwire: their external endpoints by kind."""
    with_routes(n)
    n.sub2.ip("-6", "route", "replace", AFTR, "via", INSIDE)
    with n.sub1.entered():
        by_nat64 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with n.sub2.entered():
        in_softwire = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 4)
    with sockets(by_nat64, in_softwire, udp(n.srv1, address=SRV1)) as (by_nat64, in_softwire, server):
        port = server.getsockname()[1]
        by_nat64.sendto(b"x", (SRV1_BEHIND, port))
        first = receive(server, "a datagram by NAT64")[1]
        in_softwire.sendto(ip_packet(HOME, SRV1, 17, udp_segment(HOME, 5353, SRV1, port, b"y")), (AFTR, 0))
        second = receive(server, "a datagram by the softwire")[1]
        yield by_nat64.getsockname()[1], first, second


@test("transition")
def management_names_ipv6_hosts_and_not_their_numbers(n):
    agent(n)
    with hosts_of_both_kinds(n) as (port, by_nat64, in_softwire):
        quiet(n)
        found = walk(n, MIB)
        rows = {(".".join(map(str, index[-5:-1])), index[-1]): row for index, row in table(found, PORT_MAPS).items() if index[1] == 17}
        prefixes = {index[0]: (row[3], octets(row[4]), row[5]) for index, row in table(found, SUBSCRIBERS).items()}
        maps = {(octets(row[10]), index[-19:-18], octets(row[7])) for index, row in table(found, ADDRESS_MAPS).items()}
        for what, external, host, mapped, inside_port in [
            ("by NAT64", by_nat64, SUB1, socket.inet_pton(socket.AF_INET6, SUB1), port),
            ("in a softwire", in_softwire, SUB2, socket.inet_aton(HOME), 5353),
        ]:
            expect(external in rows, f"{what}: no port map of {external} among {sorted(rows)}")
            row = rows[external]
            expect_equal((row[8], octets(row[9])), ("2", socket.inet_pton(socket.AF_INET6, host)), f"{what}: internal address")
            expect_equal((octets(row[11]), int(row[12])), (mapped, inside_port), f"{what}: mapped address and port")
            expect_equal(row[10], "1" if len(mapped) == 4 else "2", f"{what}: type of the mapped address")
            wanted = ("2", subscriber_of(host), str(PREFIX_LENGTH))
            expect_equal(prefixes.get(int(row[14])), wanted, f"{what}: its subscriber")
            expect((socket.inet_aton(external[0]), (2,), mapped) in maps, f"{what}: no address map among {maps}")
        text, table_of = data(n, f"{INSTANCE}/mapping-table")
        entries = {(one["external-src-address"], one["external-src-port"]["start-port-number"]): one["internal-src-address"]
                   for one in table_of["ietf-nat:mapping-table"]["mapping-entry"] if one["transport-protocol"] == 17}  # fmt: skip
        expect_equal(entries[f"{by_nat64[0]}/32", by_nat64[1]], f"{SUB1}/128", "RESTCONF: by NAT64")
        expect_equal(entries[f"{in_softwire[0]}/32", in_softwire[1]], f"{HOME}/32", "RESTCONF: in a softwire")
        whole, nat = data(n, "/restconf/data/ietf-nat:nat")
        expect_equal(judge(n, whole), (0, ""), "yanglint")
        policies = nat["ietf-nat:nat"]["instances"]["instance"][0]["policy"]
        known = [{one["nat64-prefix"] for one in policy["nat64-prefixes"]} for policy in policies]
        expect_equal([one for one in known if one], [{"64:ff9b::/96", "2001:db8:6464::/96"}], "prefixes of NAT64, in the policy that serves its hosts")
        subnets = {one["subnet"] for policy in policies for one in policy.get("subscriber-match", [])}
        pools = [one for one in objects(n, "/api/v1/pools", "audit") if one["serves_ipv6_hosts"]]
        listed = {prefix for one in pools for prefix in one["subscriber_prefixes"]}
        expect_equal((len(pools), "224.0.0.0/3" in subnets | listed), (1, False), f"pools: {pools}, {subnets}")
        expect("IPv6 hosts" in n.dut.command("show", "pools")[1], "show pools")
        # 224.0.0.0 and above are the numbers, with which nobody can do anything.
        numbers = [value for oid, value in found.items() if value.upper().startswith('"E0 00') and oid[len(MIB)] != 0]
        expect_equal((numbers, '"224.' in text), ([], False), "numbers of hosts")
        listed = objects(n, f"/api/v1/mappings?host={SUB1}/128&internal_port={port}&case=AZ-20", "audit")
        expect_equal([one["host"]["address"] for one in listed], [SUB1], "API")
        # `find` answers for the host, for one of its ports, and for its prefix; from the log, too.
        external = f"{by_nat64[0]}:{by_nat64[1]}"
        for asked in (SUB1, f"[{SUB1}]:{port}", subscriber_text(SUB1)):
            _, out, err = n.dut.command("find", asked, "--json", "--case", "AZ-21")
            found = [json.loads(line) for line in out.splitlines()]
            held = [one["mapping"]["external"] for one in found if one["mapping"] and one["host"]["address"] == SUB1]
            expect(external in held, f"find {asked}: {out}{err}")
        last = objects(n, "/api/v1/audit?limit=1", "audit")[0]
        expect_equal((last["who"], last["action"], last["subject"], last["case"]), ("uid 0", "find", subscriber_text(SUB1), "AZ-21"), "the lookup of the command")
        (none,) = [json.loads(line) for line in n.dut.command("find", f"[{SUB1}]:1", "--json")[1].splitlines()]
        expect(none["mapping"] is None and "no mapping" in none["detail"], str(none))
        for own, said in [
            (INSIDE, "Natrix's own address on interface"),
            (AFTR, "the AFTR"),
            (SRV1_BEHIND, f"stands for {SRV1}"),
            (AFTR_INNER, "own address inside softwires"),
            ("fe80::1", "link-local"),
        ]:
            status, out, err = n.dut.command("find", own, "--case", "AZ-21")
            expect(said in out, f"find {own}: {status} {out}{err}")
        rows = [row["host"] for row in n.dut.show("subscribers", "--host", SUB1)]
        expect_equal([(row["address"], row["prefix_length"]) for row in rows], [(subscriber_text(SUB1).split("/")[0], PREFIX_LENGTH)], "by its host")
        for query in (f"address={SUB1}&port={port}&protocol=udp", f"address={subscriber_text(SUB1)}"):
            found = objects(n, f"/api/v1/find?{query}&case=AZ-20", "audit")
            expect(external in [one["mapping"]["external"] for one in found if one["mapping"]], f"API: find {query}: {found}")
        listed = objects(n, f"/api/v1/mappings?host={SUB1}/128&internal_port={port}&case=AZ-20", "audit")
        last = objects(n, "/api/v1/audit?limit=1", "audit")[0]
        expect_equal((last["who"], last["action"], last["case"]), ("law", "show mappings", "AZ-20"), "the lookup in the audit log")
        expect(SUB1 in last["subject"], f"subject {last['subject']}")
        expect_equal(ask(n, "/api/v1/mappings?host=nonsense", "audit")[0], 400, "a host that is none")
        remote = objects(n, f"/api/v1/sessions?host={SUB1}/128&internal_port={port}", "audit")[0]["remote"]
        softwire = (SUB2, f"{HOME}:5353", in_softwire, remote)
        look_at_hosts(n, SUB1, port, by_nat64, subscriber_text(SUB1), softwire)


@contextlib.contextmanager
def everything(n):
    """Hosts of both kinds, a subscriber of IPv4, a port on request, and an FTP connection that announces a port; the
    function announces another port, because what is expected of a port ends soon."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(hosts_of_both_kinds(n))
        stack.enter_context(sockets(udp(n.sub1))).sendto(b"x", (SRV1, 9))
        code, _, _ = pcp(n.sub1, SUBSCRIBER_ADDRESSES["sub1"], "udp", fresh_port())
        expect_equal(code, 0, "result of PCP")
        server = stack.enter_context(sockets(listener(n.srv1, 21)))
        client = stack.enter_context(sockets(tcp(n.sub1)))
        client.connect((SRV1, 21))
        accepted = stack.enter_context(sockets(server.accept()[0]))
        accepted.settimeout(20)
        # The gateway reads what an FTP server has greeted.
        for reply, command in ((b"220 ready\r\n", b"USER anonymous\r\n"), (b"230 welcome\r\n", None)):
            accepted.sendall(reply)
            expect_equal(client.recv(64), reply, "a reply")
            if command:
                client.sendall(command)
                expect_equal(accepted.recv(64), command, "a command")
        inside, ports = SUBSCRIBER_ADDRESSES["sub1"].replace(".", ","), itertools.count(10)

        def announce():
            client.sendall(f"PORT {inside},200,{next(ports)}\r\n".encode())
            announced = accepted.recv(64)
            expect(announced.startswith(b"PORT ") and inside.encode() not in announced, f"announced: {announced}")

        announce()
        yield announce


@test("transition")
@shows("7659-6", "8512-4")
def all_families_gateways_and_grants_count_alike_everywhere(n):
    agent(n)
    with everything(n) as announce:
        for _ in range(15):
            announce()
            quiet(n)
            before = n.dut.show("counters", "--all")
            lists = {
                name: (n.dut.show(name, "--all") if name != "algs" else n.dut.show(name), objects(n, f"/api/v1/{name}?limit=10000", "audit"))
                for name in ("mappings", "sessions", "subscribers", "grants", "expectations", "algs")
            }
            status, of_api = n.dut.show("status")[0], ask(n, "/api/v1/status")[2]
            metrics, by_api = ask(n, "/metrics")[2].decode(), objects(n, "/api/v1/counters")
            nat, found = data(n, f"{INSTANCE}/statistics")[1]["ietf-nat:statistics"], walk(n, MIB)
            entries = data(n, f"{INSTANCE}/mapping-table")[1]["ietf-nat:mapping-table"]["mapping-entry"]
            after = n.dut.show("counters", "--all")
            # What is expected of a port may have ended before all were asked.
            if before == after and lists["expectations"][0]:
                break
        else:
            raise Failure(f"the instance is never still: {[(one, other) for one, other in zip(before, after) if one != other]}")
    # Each counter, whatever it counts.
    values = {one["name"]: one["value"] for one in before}
    expect_equal({one["name"]: one["value"] for one in by_api}, values, "counters of the API")
    labelled = {name: int(float(value)) for name, value in
                re.findall(r'^natrix_(?:events|verdicts|drops|current)(?:_total)?\{\w+="(\w+)"\} (\S+)$', metrics, re.MULTILINE)}  # fmt: skip
    expect_equal({name: values[name] for name in labelled if name in values}, labelled, "counters of metrics")
    expect({"grants_opened", "expectations_created", "alg_ftp_sessions", "outbound"} <= set(values), f"counters: {sorted(values)}")
    for metric, name in (("grants_opened_total", "grants_opened"), ("expectations_created_total", "expectations_created")):
        expect_equal((sample(metrics, f"natrix_{metric}"), values[name] > 0), (values[name], True), name)
    # Lists: times go on between two answers.
    keys = {
        "mappings": ("protocol", "internal", "external", "pool"), "sessions": ("protocol", "internal", "external", "remote"),
        "subscribers": ("address", "mappings_created"), "grants": ("protocol", "internal", "external"),
        "expectations": ("protocol", "external"), "algs": ("name", "sessions", "sessions_total", "messages_changed", "expectations_total"),
    }  # fmt: skip
    for name, (by_command, listed) in lists.items():
        same = lambda some: sorted(str([one.get("host"), *(one[key] for key in keys[name])]) for one in some)  # noqa: E731,B023
        expect_equal(same(listed), same(by_command), f"{name} of the API")
        expect(by_command, f"no {name}")
    mappings, algs = lists["mappings"][0], {one["name"]: one for one in lists["algs"][0]}
    for name, gateway in algs.items():
        for metric, key in (("alg_sessions", "sessions_total"), ("alg_messages_changed", "messages_changed")):
            value = re.search(rf'^natrix_{metric}_total\{{alg="{name}"\}} (\S+)$', metrics, re.MULTILINE)
            expect_equal(float(value[1]), gateway[key], f"{metric} of {name}")
    expect(algs["ftp"]["messages_changed"] > 0 and algs["ftp"]["sessions_total"] > 0, f"FTP: {algs['ftp']}")
    hosts = {one["host"]["address"] for one in mappings if one.get("host")}
    expect({SUB1, SUB2} <= hosts and any(not one.get("host") for one in mappings), f"hosts of mappings: {hosts}")
    # Numbers of all families together.
    rows, subscribers = table(found, PORT_MAPS), table(found, SUBSCRIBERS)
    counts = {
        "status": status["mappings"], "status of the API": of_api["mappings"], "metrics": sample(metrics, "natrix_mappings"),
        "rows of SNMP": len(rows), "port maps of SNMP": int(found[(*INSTANCE_ROW, 8, 1)]),
        "RESTCONF": nat["mappings-statistics"]["total-port-mappings"], "entries of RESTCONF": len(entries),
    }  # fmt: skip
    expect_equal(counts, dict.fromkeys(counts, len(mappings)), "mappings")
    expect_equal({row[8] for row in rows.values()}, {"1", "2"}, "families of port maps")
    counts = {
        "API": of_api["subscribers"], "metrics": sample(metrics, "natrix_subscribers"),
        "RESTCONF": nat["mappings-statistics"]["total-active-subscribers"],
        "rows of SNMP": sum(int(row[7]) > 0 for row in subscribers.values()),
    }  # fmt: skip
    expect_equal(counts, dict.fromkeys(counts, status["subscribers"]), "subscribers")


@test("transition")
def the_page_and_top_show_the_same_numbers_beside_ipv6(n):
    with everything(n):
        mappings = n.dut.show("mappings", "--all")
        expect(any(one.get("host") for one in mappings) and any(not one.get("host") for one in mappings), f"families: {mappings}")
        same_numbers_everywhere(n)


def subscriber_text(address):
    return f"{socket.inet_ntop(socket.AF_INET6, subscriber_of(address))}/{PREFIX_LENGTH}"
