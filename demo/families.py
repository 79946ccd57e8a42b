"""IPv6 hosts that reach IPv4 through the same instance and the same pool: NAT64, 464XLAT and DS-Lite."""

import re

from netlab import topology
from netlab import transition
from result import Result


class Families:
    """Programs of IPv6-only hosts, of an IPv4-only host behind a CLAT, and of one behind a B4."""

    def __init__(self, programs, dns_name):
        self.network = programs.network
        self.programs = programs
        self.dns_name = dns_name

    def all(self):
        """(title, function) of each program."""
        return [
            ("NAT64: ping of sub1, IPv6 only", self.nat64_ping),
            ("NAT64: curl -6 by name, DNS64 of unbound", self.nat64_whoami),
            ("NAT64: dig, answer in fragments", self.nat64_dig_long),
            ("NAT64: curl 1 GiB from nginx, checksum", self.nat64_download),
            ("464XLAT: ping and curl behind tayga", self.xlat),
            ("DS-Lite: ping and curl, kernel as B4", self.softwire),
        ]

    def nat64_ping(self):
        transition.with_routes(self.network)
        return self.programs.ping(self.network.sub1, transition.SRV1_BEHIND)

    def nat64_whoami(self):
        network = self.network
        transition.with_routes(network)
        with transition.dns64(network, network.sub1, self.dns_name):
            out = self._curl(network.sub1, self.dns_name, "-6", "-w", "from %{local_ip} to %{remote_ip}", resolver="::1")
        external, _, ends = out.partition("\n")
        passed = self._is_of_pool(external) and transition.SRV1_BEHIND in ends and transition.SUB1 in ends
        return Result(passed, f"{self.dns_name} {ends.partition(' to ')[2]}, the server sees {external or 'nothing'}")

    def nat64_dig_long(self):
        network = self.network
        transition.with_routes(network)
        asked = "TXT", f"long.{self.dns_name}"
        size = transition.size_of_answer(
            transition.dig(network.sub1, transition.SRV1_BEHIND, *asked, *transition.IN_ONE_DATAGRAM)
        )
        return Result(size > 3000, f"an answer of {size} bytes")

    def nat64_download(self):
        transition.with_routes(self.network)
        return self.programs.download(f"[{transition.SRV1_BEHIND}]", "curl 1 GiB by NAT64")

    def xlat(self):
        with transition.clat(self.network) as host:
            return self._reaches(host, transition.CLAT_SOURCE, transition.CLAT)

    def softwire(self):
        with transition.kernel_as_b4(self.network) as b4:
            return self._reaches(b4, transition.HOME, transition.B4)

    def _reaches(self, host, inner, known_as):
        """Ping and curl of an IPv4-only client, whose connection Natrix knows by an IPv6 address."""
        ping = self.programs.ping(host, topology.SRV1)
        external = self._curl(host, topology.SRV1)
        mappings = self.network.dut.show("mappings", "--host", f"{known_as}/128")
        known = external in [mapping["external"] for mapping in mappings]
        passed = ping.passed and self._is_of_pool(external) and known
        return Result(passed, f"{ping.saw}; {inner} behind {known_as if known else 'no known host'} is {external or 'nothing'}")

    @staticmethod
    def _is_of_pool(external):
        return external.partition(":")[0] in topology.POOL

    def _curl(self, host, name, *options, resolver=None):
        argv = ["curl", "-sS", "-m", "10", *options, f"http://{name}/whoami"]
        _, out, err = host.run(transition.asking(self.network, resolver, argv) if resolver else argv)
        return out.strip() or re.sub(r"\s+", " ", err)
