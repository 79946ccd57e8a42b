"""Natrix in the middle of the network: its configuration, its start and stop, and what it says of itself."""

import json
import shutil
import socket
from pathlib import Path

from . import process
from .forward import Forward
from .topology import POOL
from .topology import SRV1
from .topology import SUBSCRIBERS

DEMO_CONFIGURATION = Path(__file__).resolve().parent.parent / "demo.toml"
_SOCKET_IN_DEMO = "/run/natrix/control.sock"
_DRIVERS_IN_DEMO = ("net_af_xdp0,iface=inside", "net_af_xdp1,iface=outside")
_AF_XDP = 44


def default_driver():
    """The driver for virtual cables that this kernel has: AF_XDP sockets, otherwise tap devices.

    Not packet sockets (net_af_packet): there the kernel puts fragments together before Natrix sees them.
    """
    try:
        socket.socket(_AF_XDP, socket.SOCK_RAW).close()
    except OSError:
        return "tap"
    return "af_xdp"


# How each driver names the two ports.
DRIVERS = {
    "af_xdp": _DRIVERS_IN_DEMO,
    "af_packet": ("net_af_packet0,iface=inside", "net_af_packet1,iface=outside"),
    "tap": ("net_tap0,iface=tap-inside", "net_tap1,iface=tap-outside"),
}


def configure(socket_path, driver, filtering=None, inside_mtu=None, outside_mtu=None, timeouts=None, port_control=None,
              gateways=None, forwards=(), more="", addresses=(), kernel=False, has_default=True, tables=""):  # fmt: skip
    """The demo's configuration with other drivers, and with differences as a test wants them; `more` comes at its end.

    `addresses` are further addresses: each is added to the list with this one. `kernel` gives each port a device;
    without `has_default`, the default route is left to a routing daemon. `tables` is the section of that name, unless
    `more` has one.
    """
    text = DEMO_CONFIGURATION.read_text()

    def replace(old, new):
        nonlocal text
        if text.count(old) != 1:
            raise process.CommandFailed(f"{DEMO_CONFIGURATION}: {old!r} is not there exactly once")
        text = text.replace(old, new)

    def toml(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
        return json.dumps(value)

    # Several run side by side, and other programs may take hugepages while DPDK counts them:
    # then it cannot start.
    if "[dpdk]" not in more:
        replace("[control]\n", '[dpdk]\nhugepages = "off"\n\n[control]\n')
    if "[tables]" not in more:
        replace("[control]\n", f"{tables}\n[control]\n")
    # Each has an audit log of its own.
    audit = Path(socket_path).with_suffix(".audit.jsonl")
    replace(f'socket = "{_SOCKET_IN_DEMO}"\n', f'socket = "{socket_path}"\naudit = "{audit}"\n')
    for old, new in zip(_DRIVERS_IN_DEMO, DRIVERS[driver]):
        replace(old, new)
    for name, mtu in (("inside", inside_mtu), ("outside", outside_mtu)):
        if mtu is not None:
            replace(f'name = "{name}"\n', f'name = "{name}"\nmtu = {mtu}\n')
    if kernel:
        for name in ("inside", "outside"):
            replace(f'name = "{name}"\n', f'name = "{name}"\nkernel = "nx-{name}"\n')
    if not has_default:
        replace('[[route]]\nprefix = "0.0.0.0/0"\nvia = "198.51.100.1"\n', "")
    if filtering is not None:
        replace('name = "public"\n', f'name = "public"\nfiltering = {toml(filtering)}\n')
    if port_control is not None:
        replace("[port_control]\npcp = true\nnat_pmp = true\n", f"[port_control]\n{port_control}\n")
    if timeouts is not None:
        lines = [f"{key} = {toml(value)}" for key, value in timeouts.items()]
        text += "\n".join(["", "[timeouts]", "allow_below_rfc = true", *lines, ""])
    for known, further in dict(addresses).items():
        replace(f'"{known}"', f'"{known}", "{further}"')
    for name, keys in (gateways or {}).items():
        table = f"\n[alg.{name}]\n"
        before = f"{table}enabled = true\n"
        text = text.replace(before, "") + table + "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
    for protocol, external, port, inside in forwards:
        text += f'\n[[forward]]\nprotocol = "{protocol}"\nexternal = "{external}"\nports = {port}\ninside = "{inside}"\n'
    return text + more


# The page of the demo: one user may search, another may change the configuration.
PAGE_PORT = 8080
PAGE = f"""
[http]
listen = "127.0.0.1:{PAGE_PORT}"
"""
PAGE_USERS = {"look": "audit", "change": "operate"}
SNMP_AGENT = "127.0.0.1:1161"


class Natrix:
    """A `natrix run` in the NAT's namespace."""

    name = "natrix"

    def __init__(self, binary, driver=None, has_page=False):
        self.has_page = has_page
        self.page = None
        # Names and passwords of the page, and the SNMP agent, where one is installed.
        self.logins = {}
        self.snmpd = None
        self.binary = Path(binary).resolve()
        self.driver = driver or default_driver()
        self.daemon = None
        self.network = None
        # Its section [tables], unless a configuration has one.
        self.tables = ""

    def start(self, network, driver=None, **differences):
        """Starts it with the demo's configuration and these differences; returns when it is ready for traffic."""
        if not self.binary.exists():
            raise process.CommandFailed(f"no binary {self.binary}; build it first, see the Makefile")
        self.network = network
        self.driver = driver or self.driver
        self.socket = network.state.directory / "control.sock"
        self.configuration = network.state.directory / "natrix.toml"
        if self.has_page:
            differences["more"] = differences.get("more", "") + PAGE + self._users() + self._snmp()
        self.configuration.write_text(configure(self.socket, self.driver, tables=self.tables, **differences))
        status, out, err = network.nat.run([self.binary, "check", "-c", self.configuration])
        if status != 0:
            raise process.CommandFailed(f"natrix check: {err.strip() or out.strip()}")
        self.restart()
        if self.driver == "tap":
            self.bridge_taps()
        if self.has_page:
            self.page = Forward(network.nat, PAGE_PORT)

    def _users(self):
        """Users of the page with tokens of their own, as lines of the configuration."""
        lines = ""
        for name, role in PAGE_USERS.items():
            _, out, _ = self.network.nat.run([self.binary, "token", name, "--role", role, "--json"], check=True)
            made = json.loads(out)
            self.logins[role] = made["token"]
            lines += f'\n[[http.user]]\nname = "{name}"\nrole = "{role}"\ntoken = "{made["hash"]}"\n'
        return lines

    def _snmp(self):
        """Starts the system's SNMP agent, if there is one; what Natrix needs to know of it."""
        if shutil.which("snmpd") is None:
            return ""
        folder = self.network.state.directory / "snmp"
        folder.mkdir()
        socket_path = folder / "agentx"
        configuration = folder / "snmpd.conf"
        configuration.write_text(f"master agentx\nagentXSocket {socket_path}\nrocommunity public\n")
        environment = ["env", f"SNMP_PERSISTENT_DIR={folder}/state", "MIBS="]
        command = ["snmpd", "-f", "-Lo", "-C", "-c", configuration, "-p", folder / "snmpd.pid", f"udp:{SNMP_AGENT}"]
        self.snmpd = self.network.nat.start("snmpd", [*environment, *command])
        return f'\n[snmp]\nagentx = "{socket_path}"\n'

    def restart(self):
        """Starts it with the same configuration, after its end; returns when it is ready for traffic."""
        self.daemon = self.network.nat.start("natrix", [self.binary, "run", "-c", self.configuration])
        if not process.wait_until(lambda: not self.daemon.alive() or self.running(), 30, 0.1):
            raise process.CommandFailed(f"natrix is not ready after 30 s:\n{self.daemon.log()}")
        if not self.daemon.alive():
            raise process.CommandFailed(f"natrix has ended:\n{self.daemon.log()}")

    def bridge_taps(self):
        """A tap device is a wire of its own: ties each to its cable.

        Its kernel end gets another address, for it has the one that Natrix answers to, and a bridge keeps frames
        to addresses of its ports for itself.
        """
        nat = self.network.nat
        for number, side in enumerate(("inside", "outside")):
            nat.ip("link", "set", f"tap-{side}", "address", f"02:00:00:00:00:{number + 1:02x}")
            nat.ip("link", "add", f"tie-{side}", "type", "bridge")
            for device in (side, f"tap-{side}"):
                nat.ip("link", "set", device, "master", f"tie-{side}")
                nat.ip("link", "set", device, "up")
            nat.ip("link", "set", f"tie-{side}", "up")

    def running(self):
        status = self.show("status")
        return bool(status) and status[0]["state"] == "running"

    def alive(self):
        return self.daemon is not None and self.daemon.alive()

    def stop(self):
        """Ends it by SIGTERM. Returns what went wrong, or None."""
        if self.page is not None:
            self.page.close()
        if self.daemon is None:
            return None
        if not self.alive():
            return f"natrix had ended with status {self.daemon.process.returncode}:\n{self.daemon.log()[-2000:]}"
        status = self.daemon.end(grace_seconds=15)
        if status != 0:
            return f"natrix ended with status {status} on SIGTERM:\n{self.daemon.log()[-2000:]}"
        return None

    def command(self, *words):
        """A natrix command against this instance: (status, standard output, standard error)."""
        return self.network.nat.run_quickly([self.binary, *words, "--socket", self.socket])

    def show(self, *words):
        """`natrix show … --json`: a list of objects; empty when it does not answer."""
        status, out, _ = self.command("show", *words, "--json")
        if status != 0:
            return []
        return [json.loads(line) for line in out.splitlines() if line.strip()]

    def summary(self):
        status = self.show("status")[0]
        lines = [
            f"sessions now {status['sessions']:,}, mappings now {status['mappings']:,}, subscribers {status['subscribers']}; "
            f"sessions made {status['sessions_created']:,}, mappings made {status['mappings_created']:,}",
            f"packets received {status['packets_received']:,}, forwarded {status['packets_forwarded']:,}, "
            f"dropped {status['packets_dropped']:,}",
        ]
        for worker in status["workers"]:
            lines.append(
                f"worker {worker['worker']}: received {worker['packets_received']:,}, handed over {worker['handed_off']:,}, "
                f"taken over {worker['taken_over']:,}"
            )
        drops = [drop for drop in self.show("drops") if drop["packets"]]
        lines.append("drops by reason:" if drops else "no drops")
        lines += [f"  {drop['packets']:>8,}  {drop['reason']:<24} {drop['description']}" for drop in drops]
        return lines

    def how_to_look(self):
        binary = self.binary
        page = []
        if self.page:
            page = [f"{self.page.address}     the page"]
            for role, login in self.logins.items():
                name, password = login.split(":")
                may = {"audit": "may search, and explain packets", "operate": "may change the configuration"}[role]
                page.append(f"  log in as {name} with the password {password}     {may} (role {role})")
            page.append(f"curl -u {self.logins['audit']} {self.page.address}metrics     also api/v1/status, api/v1/openapi.json")
        if self.snmpd:
            inside = f"ip netns exec {self.network.nat.full_name}"
            page.append(f"{inside} snmpbulkwalk -v2c -c public {SNMP_AGENT} 1.3.6.1.2.1.234     NATV2-MIB (RFC 7659)")
        return page + [
            f"export NATRIX_SOCKET={self.socket}",
            f"{binary} top",
            f"{binary} show sessions     also: status, interfaces, pools, subscribers, mappings, counters, drops",
            f"{binary} find {POOL[0]}     who holds this external address",
            f"{binary} why udp {SUBSCRIBERS['sub1']}:5000 {SRV1}:53     what would happen to this packet",
            f"{binary} trace     packets as they pass",
        ]
