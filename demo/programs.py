"""The programs of the demo: each is run as any user would run it, and judged by what it prints."""

import hashlib
import json
import random
import re
import socket

from families import Families
from netlab import ftp
from netlab import servers
from netlab import sip
from netlab import stun
from netlab import topology
from netlab import transition
from policy import Policy
from result import Result

DNS_NAME = "www.example"
DOWNLOAD_BYTES = 1 << 30
UPLOAD_BYTES = 32 << 20
FTP_BYTES = 16 << 20
CALLS = 10


def seconds_of(text):
    return float(re.search(r"time_total=([\d.]+)", text).group(1))


def write_file(path, size):
    """Fills a file with bytes that do not repeat within 1 GiB in step with any packet size; returns its SHA-256."""
    digest = hashlib.sha256()
    block = bytearray(random.Random(size).randbytes(1 << 20))
    with open(path, "wb") as file:
        for number in range(size >> 20):
            block[:8] = number.to_bytes(8, "big")
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


class Programs:
    """The servers, prepared once, and the programs in the order they run."""

    def __init__(self, network):
        self.network = network
        self.throughput = {}

    def prepare(self):
        """Starts the servers of the outside."""
        network = self.network
        web = servers.start_web(network, network.srv1)
        self.download_sum = write_file(web / "download", DOWNLOAD_BYTES)
        self.upload_file = network.state.bulk / "upload"
        self.upload_sum = write_file(self.upload_file, UPLOAD_BYTES)
        self.upload_root = servers.start_web(network, network.srv2)
        servers.start_dns(network, network.srv1, DNS_NAME, topology.SRV1)
        servers.start_stun(network, network.srv1)

    def all(self):
        """(title, function) of each program."""
        families, policy = [], []
        if self.network.dut.name == "natrix":
            families, policy = Families(self, DNS_NAME).all(), Policy(self.network).all()
        return [
            ("ping sub1 to srv1", lambda: self.ping(self.network.sub1, topology.SRV1)),
            ("ping sub2 to srv2", lambda: self.ping(self.network.sub2, topology.SRV2)),
            ("ping of the NAT itself", lambda: self.ping(self.network.sub1, topology.NAT_INSIDE)),
            ("ping of 4 000 bytes, in fragments", self.large_ping),
            ("traceroute", self.traceroute),
            ("dig over UDP", lambda: self.dig()),
            ("dig over TCP", lambda: self.dig("+tcp")),
            ("dig, answer in fragments", self.dig_long),
            ("curl: which address do I have?", self.whoami),
            ("curl: 200 pages over 200 connections", self.many_pages),
            ("curl: 1 GiB from nginx, checksum", lambda: self.download(topology.SRV1, "curl 1 GiB")),
            ("iperf3 TCP up", lambda: self.iperf_tcp("TCP up")),
            ("iperf3 TCP down", lambda: self.iperf_tcp("TCP down", "--reverse")),
            ("iperf3 UDP up", lambda: self.iperf_udp("UDP up")),
            ("iperf3 UDP down", lambda: self.iperf_udp("UDP down", "--reverse")),
            ("turnutils_natdiscovery: mapping", self.natdiscovery_mapping),
            ("turnutils_natdiscovery: filtering", self.natdiscovery_filtering),
            ("turnutils_natdiscovery: hairpinning", self.natdiscovery_hairpinning),
            ("stun", self.stun_client),
            ("dig sub2 to dnsmasq on sub1, by hairpin", self.hairpin_udp),
            ("curl sub2 to nginx on sub1, by hairpin", self.hairpin_tcp),
            *self.gateways(),
            ("tracepath through the narrow link", self.tracepath),
            ("ping with DF through the narrow link", self.ping_too_big),
            ("curl: upload through the narrow link", self.upload),
            *families,
            *policy,
        ]

    # Reachability.

    @staticmethod
    def ping(host, to, *options):
        _, out, _ = host.run(["ping", "-n", "-c", "5", "-i", "0.2", "-W", "2", *options, to])
        received = re.search(r"(\d+) received", out)
        times = re.search(r"= [\d.]+/([\d.]+)/", out)
        count = int(received.group(1)) if received else 0
        saw = f"{count} of 5 replies" + (f", {times.group(1)} ms" if times else "")
        return Result(count == 5, saw)

    def large_ping(self):
        return self.ping(self.network.sub1, topology.SRV1, "-s", "4000")

    def traceroute(self):
        _, out, _ = self.network.sub1.run(["traceroute", "-n", "-q", "1", "-w", "2", "-m", "6", topology.SRV1])
        hops = re.findall(r"^ *\d+ +(\S+)", out, re.M)
        expected = [topology.NAT_INSIDE, topology.CORE, topology.SRV1]
        return Result(hops == expected, " > ".join(hops) or "nothing")

    # Names.

    def dig(self, *options):
        out = transition.dig(self.network.sub2, topology.SRV1, "A", DNS_NAME, "+short", *options)
        return Result(out.strip() == topology.SRV1, f"{DNS_NAME} is {out.strip() or 'unknown'}")

    def dig_long(self):
        out = transition.dig(self.network.sub2, topology.SRV1, "TXT", f"long.{DNS_NAME}", *transition.IN_ONE_DATAGRAM)
        size = transition.size_of_answer(out)
        return Result(size > 3000, f"an answer of {size} bytes")

    # The web.

    def whoami(self):
        seen = []
        for host in (self.network.sub1, self.network.sub2):
            _, out, _ = host.run(["curl", "-sS", "-m", "5", f"http://{topology.SRV1}/whoami"])
            seen.append(out.strip() or "nothing")
        addresses = [endpoint.partition(":")[0] for endpoint in seen]
        return Result(all(a in topology.POOL for a in addresses), f"sub1 {seen[0]}, sub2 {seen[1]}")

    def many_pages(self):
        _, out, _ = self.network.sub1.run(
            ["curl", "-sS", "-m", "30", "--parallel", "--parallel-max", "50", "--parallel-immediate",
             "-H", "Connection: close", "-w", "%{http_code}\n", "-o", "/dev/null",
             f"http://{topology.SRV1}/whoami?[1-200]"],
            timeout=60,
        )  # fmt: skip
        good = out.split().count("200")
        return Result(good == 200, f"{good} of 200 pages")

    def download(self, server, what):
        """The large file from this address of the server to sub1."""
        host = self.network.sub1
        _, out, err = host.run(
            ["bash", "-c",
             "set -o pipefail; curl -sS -g -m 600 -w '%{stderr}time_total=%{time_total}\\n' "
             f"'http://{server}/download' | sha256sum"],
            timeout=620,
        )  # fmt: skip
        same = out.split()[:1] == [self.download_sum]
        if not same:
            return Result(False, f"another checksum: {out.strip()} {err.strip()}")
        rate = DOWNLOAD_BYTES * 8 / seconds_of(err) / 1e6
        self.throughput[what] = rate
        return Result(True, f"SHA-256 {self.download_sum[:12]}… as on the server, {rate:,.0f} Mbit/s")

    # Throughput.

    def iperf(self, *options):
        servers.start_iperf(self.network, self.network.srv1)
        status, out, _ = self.network.sub1.run(
            ["iperf3", "--json", "--time", "5", "--connect-timeout", "3000", *options, "--client", topology.SRV1],
            timeout=30,
        )
        try:
            report = json.loads(out)
        except json.JSONDecodeError:
            return None, f"status {status}"
        if "error" in report:
            return None, report["error"]
        return report["end"], ""

    def iperf_tcp(self, name, *options):
        end, error = self.iperf(*options)
        if end is None:
            return Result(False, error)
        rate = end["sum_received"]["bits_per_second"] / 1e6
        self.throughput[f"iperf3 {name}"] = rate
        return Result(rate > 0, f"{rate:,.0f} Mbit/s, {end['sum_sent'].get('retransmits', 0)} retransmissions")

    def iperf_udp(self, name, *options):
        end, error = self.iperf("--udp", "--bitrate", "100M", "--length", "1200", *options)
        if end is None:
            return Result(False, error)
        rate = end["sum"]["bits_per_second"] / 1e6
        lost = end["sum"]["lost_percent"]
        self.throughput[f"iperf3 {name}"] = rate
        # A loaded machine loses some at any queue; what a broken NAT does is lose all.
        return Result(lost < 50, f"{rate:,.0f} Mbit/s, {lost:.2f} % lost")

    # What kind of NAT is this?

    def natdiscovery(self, *options):
        _, out, err = self.network.sub1.run(["turnutils_natdiscovery", *options, topology.SRV1], timeout=60)
        return out + err

    def natdiscovery_mapping(self):
        return self.judge(self.natdiscovery("-m"), "Endpoint Independent Mapping", r"NAT with (.* Mapping)")

    def natdiscovery_filtering(self):
        return self.judge(self.natdiscovery("-f"), "Endpoint Independent Filtering", r"NAT with (.* Filtering)")

    def natdiscovery_hairpinning(self):
        # Its words for a request of its own that came back by the external endpoint.
        passed = "successful hairpinning" in self.natdiscovery("-H")
        return Result(passed, "hairpinning works" if passed else "no hairpinning")

    @staticmethod
    def judge(out, expected, pattern):
        found = re.search(pattern, out)
        saw = found.group(1).strip() if found else "no result: " + " ".join(out.split()[-12:])
        return Result(expected.lower() in saw.lower(), saw)

    def stun_client(self):
        _, out, err = self.network.sub1.run(["stun", topology.SRV1], timeout=60)
        primary = re.search(r"Primary: (.*)", out + err)
        saw = primary.group(1).strip() if primary else "no result"
        return Result("Independent Mapping, Independent Filter" in saw and "will hairpin" in saw, saw)

    # Subscriber to subscriber.

    def hairpin_udp(self):
        sub1, sub2 = self.network.sub1, self.network.sub2
        port = 5300
        with sub1.entered():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sock:
            sock.bind(("", port))
            address, external_port = stun.external_endpoint(sock, (topology.SRV1, servers.STUN_PORT))
        # The mapping outlives the socket: dnsmasq takes over its port.
        daemon = servers.start_dns(self.network, sub1, "sub1.example", topology.SUBSCRIBERS["sub1"], port)
        _, out, _ = sub2.run(
            ["dig", "+short", "+time=2", "+tries=2", f"@{address}", "-p", external_port, "sub1.example"]
        )
        answer = out.strip()
        seen = re.search(r"query\[A\] sub1.example from (\S+)", daemon.log())
        seen = seen.group(1) if seen else "nobody"
        passed = answer == topology.SUBSCRIBERS["sub1"] and seen in topology.POOL
        return Result(passed, f"asked at {address}:{external_port}, sub1 saw {seen}")

    def hairpin_tcp(self):
        sub1, sub2 = self.network.sub1, self.network.sub2
        port = 8080
        with sub1.entered():
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.settimeout(5)
            sock.bind(("", port))
            sock.connect((topology.SRV1, servers.WEB_PORT))
            sock.sendall(b"GET /whoami HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            endpoint = sock.recv(4096).decode().split("\r\n\r\n")[-1].strip()
            # While this connection keeps the mapping, nginx listens on the same port.
            servers.start_web(self.network, sub1, port)
            _, out, err = sub2.run(["curl", "-sS", "-m", "5", f"http://{endpoint}/whoami"])
        seen = out.strip()
        passed = seen.partition(":")[0] in topology.POOL
        return Result(passed, f"asked at {endpoint}, sub1 saw {seen or err.strip()}")

    # What announces addresses in its payload.

    def gateways(self):
        if self.network.dut.name != "natrix":
            return []
        return [
            ("curl: active FTP from vsftpd, checksum", self.active_ftp),
            ("SIPp: calls with sound both ways", self.call),
        ]

    def active_ftp(self):
        network = self.network
        root = network.state.bulk / "ftp"
        root.mkdir()
        checksum = write_file(root / "film", FTP_BYTES)
        ftp.start(network, network.srv1, "vsftpd", root)
        into = network.state.bulk / "film"
        _, _, err = network.sub1.run(
            ["curl", "-sS", "-v", "-m", "60", "--ftp-port", "-", f"ftp://{topology.SRV1}/film", "-o", into], timeout=70
        )
        said = re.search(r"> (EPRT \S+|PORT \S+)", err)
        same = into.exists() and hashlib.sha256(into.read_bytes()).hexdigest() == checksum
        announced = said.group(1) if said else "no address"
        return Result(same and bool(said), f"sub1 announced {announced}; {'same' if same else 'another'} checksum")

    def call(self):
        network = self.network
        inside = topology.SUBSCRIBERS["sub1"]
        sip.answer(network, network.srv1, "udp", topology.SRV1)
        sounds = sip.Sound(network.sub1, inside), sip.Sound(network.srv1, topology.SRV1)
        status, _ = sip.call(network, network.sub1, "udp", inside, topology.SRV1, CALLS, sounds)
        heard = []
        for sound in sounds:
            sound.close()
            heard.append(len(sound.ports))
        saw = f"{CALLS} calls, SIPp ended with {status}; sound to sub1 in {heard[0]}, from sub1 in {heard[1]}"
        return Result(status == 0 and heard == [CALLS, CALLS], saw)

    # The narrow link.

    def tracepath(self):
        _, out, _ = self.network.sub1.run(["tracepath", "-n", "-m", "6", topology.SRV2], timeout=60)
        found = re.search(r"Resume: pmtu (\d+)", out)
        mtu = int(found.group(1)) if found else 0
        return Result(mtu == topology.NARROW_MTU and "reached" in out, f"path MTU {mtu}")

    def ping_too_big(self):
        sub2 = self.network.sub2
        _, out, err = sub2.run(["ping", "-n", "-c", "2", "-i", "0.3", "-W", "1", "-M", "do", "-s", "1400", topology.SRV2])
        found = re.search(r"mtu ?= ?(\d+)", out + err)
        mtu = int(found.group(1)) if found else 0
        return Result(mtu == topology.NARROW_MTU, f"reported MTU: {mtu}" if mtu else "no MTU reported")

    def upload(self):
        _, out, err = self.network.sub2.run(
            ["curl", "-sS", "-m", "120", "-w", "time_total=%{time_total}\n", "-T", self.upload_file,
             f"http://{topology.SRV2}/up/file"],
            timeout=130,
        )  # fmt: skip
        arrived = self.upload_root / "up" / "file"
        if not arrived.exists():
            return Result(False, f"nothing arrived: {err.strip()}")
        same = hashlib.sha256(arrived.read_bytes()).hexdigest() == self.upload_sum
        rate = UPLOAD_BYTES * 8 / seconds_of(out) / 1e6
        return Result(same, f"32 MiB, {'same' if same else 'another'} checksum, {rate:,.0f} Mbit/s")
