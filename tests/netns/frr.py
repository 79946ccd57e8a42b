"""Routing daemons in namespaces: FRR and BIRD, as the distribution brings them."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

from kit import *
from netlab.process import wait_until

FRR = "/usr/lib/frr"
REPOSITORY = Path(__file__).resolve().parents[2]


class Router:
    """FRR in a namespace: zebra and these daemons, with sockets in a folder of their own."""

    def __init__(self, host, address, daemons):
        """`daemons`: the configuration of each by name, in the order of their start."""
        # All run as the user of the package, which may not enter the folder of the network.
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-frr-")
        self.folder = Path(self.directory.name)
        self.folder.chmod(0o755)
        shutil.chown(self.folder, "frr", "frr")
        self.host = host
        self.daemons = []
        zserv = self.folder / "zserv"
        for name, text in {"zebra": "", **daemons}.items():
            configuration = self.folder / f"{name}.conf"
            configuration.write_text(text)
            words = [f"{FRR}/{name}", "-f", configuration, "-i", self.folder / f"{name}.pid", "-P", "0", "-z", zserv]
            words += ["--vty_socket", self.folder, "--log", "stdout"]
            words += ["-l", address] if name == "bgpd" else []
            words += ["--bfdctl", self.folder / "bfdd.sock"] if name == "bfdd" else []
            self.daemons.append(host.start(name, words))
            is_up = zserv if name == "zebra" else self.folder / f"{name}.vty"
            expect(wait_until(is_up.exists, 10, 0.05), f"{name}: {self.daemons[-1].log()}")

    def ask(self, command):
        """The answer to `show COMMAND json`."""
        status, out, _ = self.host.run(["vtysh", "--vty_socket", self.folder, "-c", f"show {command} json"])
        return json.loads(out) if status == 0 else {}

    def configure(self, *lines):
        words = [word for line in ("configure terminal", *lines) for word in ("-c", line)]
        self.host.run(["vtysh", "--vty_socket", self.folder, *words], check=True)

    def is_established(self):
        peers = self.ask("bgp ipv4 unicast summary").get("peers", {})
        return bool(peers) and all(peer["state"] == "Established" for peer in peers.values())

    def bgp_routes(self):
        return set(self.ask("bgp ipv4 unicast").get("routes", {}))

    def is_full(self):
        areas = self.ask("ip ospf neighbor").get("neighbors", {})
        states = [one.get("nbrState", one.get("state", "")) for found in areas.values() for one in found]
        return bool(states) and all(state.startswith("Full") for state in states)

    def ospf_routes(self):
        return {prefix for prefix in self.ask("ip ospf route") if "/" in prefix}

    def bfd_peer(self, peer):
        return next((one for one in self.ask("bfd peers") if one["peer"] == peer), {})

    def kill(self):
        """Ends all at once, without a word to the peer or to the kernel."""
        for daemon in reversed(self.daemons):
            daemon.process.kill()
            daemon.process.wait(10)

    def end(self):
        """As `kill`, and removes what it has put into the kernel."""
        self.kill()
        for protocol in ("bgp", "ospf"):
            self.host.run(["ip", "route", "flush", "proto", protocol])


class Bird:
    """BIRD in a namespace, with its socket in a folder of its own."""

    def __init__(self, host, configuration):
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-bird-")
        self.folder = Path(self.directory.name)
        self.host = host
        (self.folder / "bird.conf").write_text(configuration)
        control = self.folder / "bird.ctl"
        words = ["/usr/sbin/bird", "-f", "-c", self.folder / "bird.conf", "-s", control, "-P", self.folder / "bird.pid"]
        self.daemon = host.start("bird", words)
        expect(wait_until(control.exists, 10, 0.05), f"bird: {self.daemon.log()}")

    def ask(self, *words):
        """What `birdc show WORDS` prints."""
        return self.host.run(["birdc", "-r", "-s", self.folder / "bird.ctl", "show", *words])[1]

    def is_established(self):
        return "Established" in self.ask("protocols", "all")

    def end(self):
        self.daemon.end()
        self.directory.cleanup()


@contextlib.contextmanager
def routers(*made):
    """Ends the routers at the end of the block."""
    try:
        yield made
    finally:
        for router in made:
            router.end()


def recipe(name):
    """The configuration of each daemon in a recipe of docs/routing.md."""
    blocks = (REPOSITORY / "docs/routing.md").read_text().split("```\n")
    found = {}
    for block in blocks:
        title, _, text = block.partition("\n")
        if title[:1] in "!#" and title[1:].startswith(f" {name} "):
            found[title.split()[2]] = text
    expect(found, f"docs/routing.md has no recipe {name}")
    return found
