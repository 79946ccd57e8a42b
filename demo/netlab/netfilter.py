"""The kernel's own NAT in the place of Natrix: to compare, and to see that the checks can fail."""

from . import topology


class Netfilter:
    """Source NAT by nf_tables, each subscriber on its own address of the pool."""

    name = "netfilter"

    def start(self, network, **_differences):
        nat = network.nat
        nat.ip("address", "add", f"{topology.NAT_INSIDE}/24", "dev", "inside")
        nat.ip("address", "add", f"{topology.NAT_OUTSIDE}/24", "dev", "outside")
        nat.ip("route", "add", "default", "via", topology.CORE)
        nat.sysctl("net.ipv4.ip_forward", 1)
        for address in topology.POOL:
            nat.ip("address", "add", f"{address}/32", "dev", "lo")
        pairs = zip(topology.SUBSCRIBERS.values(), topology.POOL)
        mapping = ", ".join(f"{inside} : {outside}" for inside, outside in pairs)
        nat.run(
            ["nft", "-f", "-"],
            check=True,
            stdin=f"""
                table ip nat {{
                    chain post {{
                        type nat hook postrouting priority srcnat;
                        oifname "outside" snat to ip saddr map {{ {mapping} }} fully-random
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
