"""The configuration changes again and again while real programs talk: who is not concerned must not notice."""

import contextlib
import hashlib
import json
import random
import re
import socket

from kit import *
from netlab import process
from netlab import servers
from netlab import topology
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS

# What one run of a program lasts; one that ends before the last reload is judged and started again.
SECONDS = 12
DOWNLOAD_BYTES = 6 << 20
UDP_UP, UDP_DOWN, TCP = 5201, 5202, 5203
# Bytes of a datagram, and how many may be on their way: a tenth of a second.
LENGTH, IN_FLIGHT = 1000, 25
FORBIDDEN, RULED, BRIEF = 7077, 7078, 553

# Addresses of sub2, by what becomes of them.
IN_NEW_POOL, IN_BLOCKS, IN_BLOCKS_LATER, LIMITED, OTHER = (f"100.64.0.{last}" for last in (81, 65, 66, 97, 120))
QUOTA = 2


class Iperf:
    """iperf3 from sub1, without an error; of UDP without a lost datagram."""

    def __init__(self, n, port, *options):
        self.n, self.port, self.options, self.runs = n, port, options, 0
        self.udp = "--udp" in options
        self.receiver = n.sub1 if "--reverse" in options else n.srv1
        self.start()

    def start(self):
        self.runs += 1
        servers.start_iperf(self.n, self.n.srv1, self.port)
        self.not_taken_before = not_taken(self.receiver)
        self.daemon = self.n.sub1.start(
            f"iperf3-{self.port}-{self.runs}",
            ["iperf3", "--json", "--time", SECONDS, "--port", self.port, *self.options, "--client", SRV1],
        )  # fmt: skip

    def alive(self):
        return self.daemon.alive()

    def judge(self):
        report = json.loads(self.daemon.log())
        what = f"iperf3 to port {self.port}, run {self.runs}"
        expect("error" not in report, f"{what}: {report.get('error')}")
        expect_equal(self.daemon.process.returncode, 0, f"{what}: status")
        if not self.udp:
            expect(report["end"]["sum_received"]["bytes"] > 0, f"{what}: nothing arrived")
            return
        total = report["end"]["sum"]
        expect(total["packets"] > 100, f"{what}: {total['packets']} datagrams")
        # Datagrams that the receiver's kernel had no room for came through the NAT; that kernel
        # counts them.
        late = not_taken(self.receiver) - self.not_taken_before
        expect(total["lost_packets"] <= late, f"{what}: {total['lost_packets']} of {total['packets']} datagrams lost")
        # Only gaps count as lost there, not silence up to the end; what is on its way when iperf3
        # ends is no silence.
        sent, arrived = (report["end"][side]["bytes"] // LENGTH for side in ("sum_sent", "sum_received"))
        expect(arrived + late + IN_FLIGHT >= sent, f"{what}: {arrived} of {sent} datagrams arrived")


class Download:
    """curl from sub1, slow enough to last, with the right checksum."""

    def __init__(self, n, digest):
        self.n, self.digest, self.runs = n, digest, 0
        self.start()

    def start(self):
        self.runs += 1
        rate = DOWNLOAD_BYTES // SECONDS
        self.daemon = self.n.sub1.start(
            f"curl-{self.runs}",
            ["bash", "-c", f"set -o pipefail; curl -sS --limit-rate {rate} http://{SRV1}/slow | sha256sum"],
        )

    def alive(self):
        return self.daemon.alive()

    def judge(self):
        expect_equal(self.daemon.log().split()[:1], [self.digest], "checksum of the download")
        expect_equal(self.daemon.process.returncode, 0, "status of curl")


def not_taken(host):
    """Datagrams that sockets of this host had no room for."""
    lines = host.run(["cat", "/proc/net/snmp"], check=True)[1].splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    return int(dict(zip(names, values))["RcvbufErrors"])


def checksum_of_new_file(path):
    data = random.Random(7).randbytes(DOWNLOAD_BYTES)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


class Change:
    """The configuration as it is now, and the ways from there."""

    def __init__(self, n):
        self.n = n
        self.text = n.dut.configuration.read_text()
        self.path = n.dut.configuration.with_name("changed.toml")

    def replace(self, old, new):
        expect_equal(self.text.count(old), 1, f"places of {old!r} in the configuration")
        self.text = self.text.replace(old, new)

    def add(self, more):
        self.text += more

    def reload(self):
        self.path.write_text(self.text)
        for word in ("plan", "reload"):
            status, out, err = self.n.dut.command(word, "-c", self.path)
            expect_equal(status, 0, f"status of natrix {word} ({err.strip() or out.strip()})")

    def refused(self, text, says):
        """A reload of this text is refused with these words, and before it a plan is."""
        path = self.path.with_name("faulty.toml")
        path.write_text(text)
        for word in ("plan", "reload"):
            status, out, err = self.n.dut.command(word, "-c", path)
            expect(status != 0, f"natrix {word} takes a faulty file: {out.strip()}")
            expect(re.search(says, err), f"natrix {word} of a faulty file says: {err.strip()}")

    def is_running(self, text):
        """Whether this text is the running configuration: then a reload has nothing to do."""
        path = self.path.with_name("compared.toml")
        path.write_text(text)
        status, out, err = self.n.dut.command("plan", "-c", path)
        expect_equal(status, 0, f"status of natrix plan ({err.strip()})")
        return "no difference" in out


def mappings(n):
    """{(protocol, internal): external} of all mappings; a failure when two have one external endpoint."""
    seen, owners = {}, {}
    for mapping in n.dut.show("mappings", "--all"):
        internal, external = mapping["internal"], (mapping["protocol"], mapping["external"])
        other = owners.setdefault(external, internal)
        expect_equal(internal, other, f"owner of {external}")
        seen[mapping["protocol"], internal] = mapping["external"]
    expect(seen, "there are no mappings")
    return seen


def external_port(sub, server, port):
    return external_of(sub, server, (SRV1, port))


@test("live_change")
@shows("6888-REQ-4a")
def reloads_lose_no_packet_of_unaffected_subscribers(n):
    web = servers.start_web(n, n.srv1)
    digest = checksum_of_new_file(web / "slow")
    change = Change(n)
    sub1 = SUBSCRIBERS["sub1"]
    with contextlib.ExitStack() as stack:
        new = lambda host, address="", port=0: stack.enter_context(sockets(udp(host, port, address)))  # noqa: E731
        server = new(n.srv1)
        port = server.getsockname()[1]
        forbidden, ruled, brief = (new(n.srv1, "", number) for number in (FORBIDDEN, RULED, BRIEF))

        # Bystanders: each keeps its external endpoint from the first reload to the last.
        watched = {sock: external_port(sock, server, port) for sock in (
            new(n.sub1), new(n.sub2, IN_BLOCKS), new(n.sub2, OTHER), *(new(n.sub2, LIMITED) for _ in range(QUOTA + 1))
        )}  # fmt: skip
        in_block = watched[[s for s in watched if s.getsockname()[0] == IN_BLOCKS][0]]

        pace = ("--length", LENGTH, "--bitrate", "2M")
        flows = [
            Iperf(n, UDP_UP, "--udp", *pace),
            Iperf(n, UDP_DOWN, "--udp", "--reverse", *pace),
            Iperf(n, TCP, "--bitrate", "10M"),
            Download(n, digest),
        ]
        wanted = len(flows) - 1
        talking = lambda: [m for m in n.dut.show("mappings", "--internal", sub1, "--all")]  # noqa: E731
        # Each iperf3 has a connection for its control besides.
        there = process.wait_until(lambda: len(talking()) >= 2 * wanted + 2, 10)
        expect(there, f"the programs do not talk: {talking()}; {[flow.daemon.log() for flow in flows]}")

        def step(what):
            """After each reload: nobody has two owners, nobody moved, and all go on."""
            now = mappings(n)
            for sock, external in watched.items():
                seen = external_port(sock, server, port)
                expect_equal(seen, external, f"{what}: external endpoint of {sock.getsockname()}")
            for flow in flows:
                if not flow.alive():
                    flow.judge()
                    flow.start()
            return now

        before = step("before")

        # A pool for some who had another.
        change.add(
            """
[[pool]]
name = "added"
addresses = ["203.0.113.48/31"]
subscribers = ["100.64.0.80/28"]
"""
        )
        change.reload()
        step("a pool added")
        seen = external_port(new(n.sub2, IN_NEW_POOL), server, port)
        expect(seen[0] in ("203.0.113.48", "203.0.113.49"), f"the added pool gives {seen}")

        # Larger blocks for those who lease one from now on.
        change.replace('addresses = ["203.0.113.40/31"]\nallocation = "blocks"\nblock_size = 256\n',
                       'addresses = ["203.0.113.40/31"]\nallocation = "blocks"\nblock_size = 1024\n')  # fmt: skip
        change.reload()
        step("block size")
        made = [external_port(new(n.sub2, IN_BLOCKS_LATER), server, port) for _ in range(300)]
        blocks = {(address, number // 1024) for address, number in made}
        expect_equal(len(blocks), 1, "blocks of 1024 ports that 300 mappings lie in")
        # The pool has two addresses.
        foreign = (in_block[0], in_block[1] // 256)
        expect(foreign not in {(address, number // 256) for address, number in made}, "a port of another's block")

        # A faulty file changes nothing.
        good = change.text
        change.refused(good + '\n[[pool]]\nname = "wrong"\naddresses = ["203.0.113.300"]\n', "203.0.113.300")
        change.refused(good.replace("block_size = 1024", "block_size = 1000"), "1000")
        expect(change.is_running(good), "a faulty file changed something")
        step("a faulty file")

        # Limits below what somebody uses: it stays, and nothing is added.
        change.add(f'\n[[class]]\nname = "little"\nsubscribers = ["{LIMITED}/32"]\nports = {QUOTA}\n')
        change.reload()
        step("limits")
        above = new(n.sub2, LIMITED)
        above.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        above.sendto(b"one more", (SRV1, port))
        error = queued_icmp_error(above)
        expect_equal((error.kind, error.code), (3, 1), "answer above the limit")

        # A filter: the port is closed in mappings that exist, too.
        asker = new(n.sub1)
        external_port(asker, forbidden, FORBIDDEN)
        change.add(
            f'\n[[filter]]\naction = "deny"\nprotocol = "udp"\ninside = "{sub1}/32"\noutside_ports = {FORBIDDEN}\n'
        )
        change.reload()
        step("a filter")
        asker.sendto(b"still there?", (SRV1, FORBIDDEN))
        # What is sent after it arrives, so it would have arrived as well.
        external_port(asker, server, port)
        expect_silence(forbidden, 0.05, "a datagram the filter denies")

        # A rule: new mappings to this port come from another pool.
        change.add(
            f'\n[[rule]]\naction = "translate"\npool = "added"\nprotocol = "udp"\noutside_ports = {RULED}\n'
        )
        change.reload()
        step("a rule")
        seen = external_port(new(n.sub2, "100.64.0.130"), ruled, RULED)
        expect(seen[0] in ("203.0.113.48", "203.0.113.49"), f"the rule gives {seen}")

        # A timer: what speaks to this port only is soon gone.
        change.add(f'\n[[port_timeout]]\nprotocol = "udp"\nports = "{BRIEF}"\nidle = "500 ms"\n')
        change.reload()
        step("timers")
        short = new(n.sub1)
        external_port(short, brief, BRIEF)
        internal = f"{sub1}:{short.getsockname()[1]}"
        gone = process.wait_until(lambda: not n.dut.show("mappings", "--protocol", "udp", "--internal", internal), 15)
        expect(gone, "a mapping with a timer of 500 ms is still there")

        # The very address that all the programs use drains: they stay, new mappings go elsewhere.
        used = [sock for sock in watched if sock.getsockname()[0] in ("0.0.0.0", sub1)][0]
        drained = watched[used][0]
        undrained = change.text
        change.replace('name = "public"\n', f'name = "public"\ndrain = ["{drained}"]\n')
        change.reload()
        step("an address drained")
        seen = external_port(new(n.sub1), server, port)
        expect(seen[0] in topology.POOL and seen[0] != drained, f"{drained} drains and is given out: {seen}")
        expect(not change.is_running(undrained), "nothing drains")

        # And back.
        status, out, err = n.dut.command("reload", "--rollback")
        expect_equal(status, 0, f"status of the rollback ({err.strip() or out.strip()})")
        expect(change.is_running(undrained), "the rollback did not go back")
        after = step("the rollback")
        for flow in [key for key in before if key[1].startswith(f"{sub1}:") and key in after]:
            expect_equal(after[flow], before[flow], f"external endpoint of {flow}")

        ended = process.wait_until(lambda: not any(flow.alive() for flow in flows), 4 * SECONDS, 0.1)
        expect(ended, "programs that do not end")
        for flow in flows:
            flow.judge()
        mappings(n)


@test("live_change")
def a_removed_address_is_left_to_another_station(n):
    n.dut.command("reload", "-c", n.dut.configuration)
    change = Change(n)
    without, address = change.text, "198.51.100.78"

    def is_answered():
        n.core.run(["ip", "neigh", "flush", "to", address])
        n.core.run(["ping", "-c", "1", "-W", "1", address])
        return "lladdr" in n.core.run(["ip", "neigh", "show", address, "dev", "nat"])[1]

    change.add(f'\n[[pool]]\nname = "spare"\naddresses = ["{address}/32"]\nsubscribers = ["100.64.0.200/32"]\n')
    change.reload()
    expect(is_answered(), f"Natrix does not answer ARP for {address} of its pool")
    change.text = without
    change.reload()
    expect(process.wait_until(lambda: not is_answered(), 30, 0.5), f"Natrix goes on answering ARP for {address}")
    listed = [one["address"] for one in n.dut.show("pools", "--addresses", "--all")]
    expect(address not in listed, f"{address} is still listed")
    said = f"external address {address}: removed, and no longer in use; other stations may have it from now on"
    expect(said in n.dut.daemon.log(), n.dut.daemon.log()[-1000:])


@test("live_change")
def a_reload_addresses_the_instance_that_the_file_is_for(n):
    # Whatever the tests before have left.
    n.dut.command("reload", "-c", n.dut.configuration)
    status, out, err = n.nat.run([n.dut.binary, "reload", "-c", n.dut.configuration])
    expect_equal((status, err), (0, ""), "reload without a socket on the command line")
    expect(out.startswith(f"no changes: {n.dut.configuration} matches the running configuration"), out)
