"""IPv6 hosts beside the IPv4 subscribers: Natrix's part of NAT64, 464XLAT and DS-Lite, and the real clients of each.

unbound makes addresses of names (DNS64), tayga is a CLAT. The kernel is the B4 of DS-Lite: without ip6tnl, segment
routing with reduced headers (RFC 8986) sends and takes plain IPv4 in IPv6.
"""

import contextlib
import re
import shutil
import sys
from pathlib import Path

from . import process
from .topology import SRV1

INSIDE, OUTSIDE = "2001:db8:64::1", "2001:db8:198::2"
SUB1, SUB2, CORE6 = "2001:db8:64::10", "2001:db8:64::11", "2001:db8:198::1"

PREFIX, AFTR = "64:ff9b::", "2001:db8:64::aaaa"
SRV1_BEHIND = "64:ff9b::c000:20a"
CLAT, CLAT_SOURCE = "2001:db8:65::c1a7", "192.0.0.2"
# tayga sends no documentation addresses through the well-known prefix.
CLAT_PREFIX = "2001:db8:6464::"
# The inner address of the B4 is that of a host behind it.
HOME, B4 = "192.168.1.2", "2001:db8:64::b4"
AFTR_INNER = "192.0.0.1"
# An IPv6 packet of 1,500 bytes has room for this much IPv4: behind a CLAT, and in a softwire.
INNER_MTU = 1460
SERVERS = f"{SRV1.rpartition('.')[0]}.0/24"

# Natrix's own IPv6 addresses by those of IPv4, and a route to a network behind sub1.
ADDRESSES = {"100.64.0.1/24": f"{INSIDE}/64", "198.51.100.2/24": f"{OUTSIDE}/64"}
ROUTE = f"""
[[route]]
prefix = "2001:db8:65::/64"
via = "{SUB1}"
"""
CONFIGURATION = f"""
[[nat64]]
pool = "public"

[[nat64]]
prefix = "{CLAT_PREFIX}/96"
pool = "public"

[[softwire]]
aftr = "{AFTR}"
pool = "public"
"""


def allow_ipv6(host, *devices):
    for key in ("all", "default", *devices):
        host.sysctl(f"net.ipv6.conf.{key}.disable_ipv6", 0)


def leave_cables_to_natrix(network):
    """For devices of Natrix in the kernel, which have IPv6 addresses; those of the cables must have none."""
    allow_ipv6(network.nat)
    for device in ("inside", "outside"):
        network.nat.sysctl(f"net.ipv6.conf.{device}.disable_ipv6", 1)


def with_addresses(network):
    """Gives the kernels their addresses, without waiting for their own duplicate address detection."""
    for host, device, address in ((network.sub1, "eth0", SUB1), (network.sub2, "eth0", SUB2), (network.core, "nat", CORE6)):
        allow_ipv6(host, device)
        host.ip("-6", "address", "replace", f"{address}/64", "dev", device, "nodad")
        host.ip("-6", "neigh", "flush", "dev", device)


def ping(host, to, *more):
    status, out, err = host.run(["ping", "-n", "-c", "3", "-i", "0.2", "-W", "5", *more, to])
    return status, out + err


def wait_for_ping(host, to, who=""):
    """Returns once a ping is answered."""
    if not process.wait_until(lambda: ping(host, to)[0] == 0, 15, 0.2):
        raise process.CommandFailed(f"ping of {to}: {ping(host, to)[1]} {who}")


def with_routes(network):
    """IPv6-only clients: no IPv4 route leads anywhere."""
    with_addresses(network)
    for host in (network.sub1, network.sub2):
        host.ip("-6", "route", "replace", f"{PREFIX}/96", "via", INSIDE)
    wait_for_ping(network.sub1, SRV1_BEHIND)


@contextlib.contextmanager
def dns64(network, host, name):
    """unbound at ::1 of a host. It asks the name server at srv1 by NAT64, and knows `name` when this returns."""
    directory = network.state.directory
    configuration = directory / "unbound.conf"
    configuration.write_text(f"""
server:
    interface: ::1
    do-ip4: no
    module-config: "dns64 iterator"
    dns64-prefix: {PREFIX}/96
    edns-buffer-size: 4096
    max-udp-size: 4096
    chroot: ""
    username: ""
    directory: "{directory}"
    pidfile: ""
    use-syslog: no
    do-daemonize: no
    access-control: ::1 allow
    local-zone: "test." nodefault
forward-zone:
    name: "."
    forward-addr: {SRV1_BEHIND}
""")
    host.ip("link", "set", "lo", "up")
    unbound = host.start("unbound", ["unbound", "-d", "-c", configuration])
    try:
        if not process.wait_until(lambda: SRV1_BEHIND in dig(host, "::1", "AAAA", name, "+short"), 20, 0.3):
            raise process.CommandFailed(f"unbound makes no address of {name}: {unbound.log()}")
        yield unbound
    finally:
        unbound.end()


def dig(host, server, kind, name, *more):
    """What dig prints."""
    return host.run(["dig", "+time=5", "+tries=3", *more, f"@{server}", kind, name])[1]


# By UDP in one datagram, whatever its size.
IN_ONE_DATAGRAM = ("+notcp", "+ignore", "+bufsize=4096")


def size_of_answer(out):
    """Bytes of the answer that dig prints; 0 without one."""
    size = re.search(r"MSG SIZE +rcvd: (\d+)", out)
    return int(size.group(1)) if size and "NOERROR" in out else 0


def asking(network, resolver, argv):
    """The command as one that asks this name server. `ip netns exec` gives each command mounts of its own."""
    names = network.state.directory / "resolv.conf"
    names.write_text(f"nameserver {resolver}\n")
    return ["sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', names, *argv]


@contextlib.contextmanager
def clat(network):
    """sub1 with tayga as CLAT (RFC 6877): its IPv4 packets to the servers leave as IPv6."""
    host = network.sub1
    directory = network.state.directory / "tayga"
    directory.mkdir(exist_ok=True)
    configuration = directory / "tayga.conf"
    configuration.write_text(f"""
tun-device clat
ipv4-addr 192.0.0.3
ipv6-addr 2001:db8:65::1
prefix {CLAT_PREFIX}/96
map {CLAT_SOURCE} {CLAT}
data-dir {directory}
""")
    host.run(["tayga", "-c", configuration, "--mktun"])
    tayga = host.start("tayga", ["tayga", "-c", configuration, "-d"])
    try:
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            host.sysctl(key, 1)
        host.ip("link", "set", "clat", "up")
        host.ip("address", "replace", f"{CLAT_SOURCE}/32", "dev", "clat")
        host.ip("-6", "route", "replace", CLAT, "dev", "clat")
        host.ip("route", "replace", SERVERS, "dev", "clat", "src", CLAT_SOURCE, "mtu", INNER_MTU)
        host.ip("-6", "route", "replace", f"{CLAT_PREFIX}/96", "via", INSIDE)
        wait_for_ping(host, SRV1, tayga.log())
        yield host
    finally:
        tayga.end()
        host.run(["ip", "route", "del", SERVERS])
        host.run(["ip", "link", "del", "clat"])
        host.sysctl("net.ipv6.conf.all.forwarding", 0)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def kernel_as_b4(network):
    """sub2 as a B4 with HOME behind it: its IPv4 packets to the servers leave by the softwire."""
    with_addresses(network)
    b4 = network.sub2
    b4.sysctl("net.ipv6.conf.all.seg6_enabled", 1)
    b4.sysctl("net.ipv6.conf.eth0.seg6_enabled", 1)
    b4.sysctl("net.ipv4.conf.all.rp_filter", 0)
    b4.sysctl("net.ipv4.conf.eth0.rp_filter", 0)
    b4.ip("address", "replace", f"{HOME}/32", "dev", "lo")
    b4.ip("link", "set", "lo", "up")
    b4.ip("-6", "route", "replace", AFTR, "via", INSIDE)
    b4.run(["ip", "sr", "tunsrc", "set", B4])
    # What comes in the softwire goes to the inner destination, which is this host.
    b4.ip("-6", "route", "replace", f"{B4}/128", "encap", "seg6local", "action", "End.DX4", "nh4", HOME, "dev", "eth0")
    b4.sysctl("net.ipv6.conf.all.forwarding", 1)
    b4.sysctl("net.ipv4.ip_forward", 1)
    b4.sysctl("net.ipv6.conf.eth0.proxy_ndp", 1)
    b4.ip("-6", "neigh", "replace", "proxy", B4, "dev", "eth0")
    destinations = (SERVERS, f"{AFTR_INNER}/32")
    for destination in destinations:
        b4.ip("route", "replace", destination, "encap", "seg6", "mode", "encap.red", "segs", AFTR, "dev", "eth0",
              "src", HOME, "mtu", INNER_MTU)  # fmt: skip
    try:
        wait_for_ping(b4, SRV1, network.dut.show("drops"))
        yield b4
    finally:
        for destination in destinations:
            b4.run(["ip", "route", "del", destination])
        b4.run(["ip", "-6", "route", "del", f"{B4}/128"])
        b4.sysctl("net.ipv6.conf.all.forwarding", 0)


@contextlib.contextmanager
def program_as_b4(network):
    """sub2 as a B4 whose host sends IPv4 packets of up to 1,500 bytes: the softwire cuts what is too large for it."""
    with_addresses(network)
    b4 = network.sub2
    b4.ip("-6", "address", "replace", f"{B4}/64", "dev", "eth0", "nodad")
    program = b4.start("b4", [sys.executable, Path(__file__).with_name("b4.py"), "home", B4, AFTR])
    try:
        has_device = process.wait_until(lambda: not program.alive() or " home: " in b4.ip("link"), 10)
        if not has_device or not program.alive():
            raise process.CommandFailed(f"the B4 has no device: {program.log()}")
        b4.ip("link", "set", "home", "up", "mtu", 1500)
        b4.ip("-6", "route", "replace", AFTR, "via", INSIDE, "src", B4)
        b4.ip("address", "replace", f"{HOME}/32", "dev", "home")
        b4.ip("route", "replace", SERVERS, "dev", "home", "src", HOME)
        wait_for_ping(b4, SRV1, program.log())
        yield b4
    finally:
        program.end()
        b4.run(["ip", "-6", "address", "del", f"{B4}/64", "dev", "eth0"])
