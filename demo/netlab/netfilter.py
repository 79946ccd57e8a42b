"""The kernel's own NAT in the place of Natrix: to compare, and to see that the checks can fail."""

from . import topology

# What the kernel has helpers for, and where they listen.
HELPERS = {"ftp": [("tcp", 21)], "sip": [("udp", 5060), ("tcp", 5060)], "tftp": [("udp", 69)]}


class Netfilter:
    """Source NAT by nf_tables, each subscriber on its own address of the pool."""

    name = "netfilter"

    def start(self, network, gateways=None, forwards=(), **_differences):
        nat = network.nat
        nat.ip("address", "add", f"{topology.NAT_INSIDE}/24", "dev", "inside")
        nat.ip("address", "add", f"{topology.NAT_OUTSIDE}/24", "dev", "outside")
        nat.ip("route", "add", "default", "via", topology.CORE)
        nat.sysctl("net.ipv4.ip_forward", 1)
        for address in topology.POOL:
            nat.ip("address", "add", f"{address}/32", "dev", "lo")
        pairs = zip(topology.SUBSCRIBERS.values(), topology.POOL)
        mapping = ", ".join(f"{inside} : {outside}" for inside, outside in pairs)
        led = "".join(
            f'iifname "outside" ip daddr {external} {protocol} dport {port} dnat to {inside}\n'
            for protocol, external, port, inside in forwards
        )
        nat.run(
            ["nft", "-f", "-"],
            check=True,
            stdin=f"""
                table ip nat {{
                    chain pre {{
                        type nat hook prerouting priority dstnat;
                        {led}
                    }}
                    chain post {{
                        type nat hook postrouting priority srcnat;
                        oifname "outside" snat to ip saddr map {{ {mapping} }} fully-random
                    }}
                }}
            """,
        )
        self._help(nat, [name for name, keys in (gateways or {}).items() if keys["enabled"] and name in HELPERS])

    @staticmethod
    def _help(nat, names):
        """The kernel's own gateways (nf_nat_ftp and others)."""
        if not names:
            return
        helpers = [(f"{name}-{protocol}", name, protocol, port) for name in names for protocol, port in HELPERS[name]]
        objects = "".join(f'ct helper {each} {{ type "{name}" protocol {protocol}; }}\n' for each, name, protocol, _ in helpers)
        rules = "".join(f'{protocol} dport {port} ct helper set "{each}"\n' for each, _, protocol, port in helpers)
        nat.run(
            ["nft", "-f", "-"],
            check=True,
            stdin=f"""
                table ip helpers {{
                    {objects}
                    chain pre {{
                        type filter hook prerouting priority filter;
                        {rules}
                    }}
                }}
            """,
        )

    def alive(self):
        return True

    def stop(self):
        """Goes with its namespace. Returns what went wrong, here nothing."""

    def summary(self):
        """Lines of text about the NAT, for the end of the run."""
        return []

    def how_to_look(self):
        return []
