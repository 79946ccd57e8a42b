"""FRR in a namespace: routing daemons as the distribution brings them."""

import json
import shutil
import signal
import tempfile
from pathlib import Path

from . import process

FRR = "/usr/lib/frr"


class Router:
    """FRR in a namespace: zebra and these daemons, with sockets in a folder of their own.

    A name with a number, such as ospfd-2, is an instance of its own of that daemon.
    """

    def __init__(self, host, address, daemons, zebra=(), in_one_file=False):
        """`daemons`: the configuration of each by name, in the order of their start. `zebra`: options of zebra.

        `in_one_file`: all daemons start without a configuration and get it then, as the package does it.
        """
        # All run as the user of the package, which may not enter the folder of the network.
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-frr-")
        self.folder = Path(self.directory.name)
        self.folder.chmod(0o755)
        shutil.chown(self.folder, "frr", "frr")
        self.host = host
        self.names = ["zebra", *daemons]
        zserv = self.folder / "zserv"
        self.options = {
            "zebra": [*zebra],
            "bgpd": ["-l", address],
            "bfdd": ["--bfdctl", self.folder / "bfdd.sock"],
        }
        self.options = {name: ["-z", zserv, *self.options.get(name, [])] for name in self.names}
        self.together = "!\n".join(daemons.values()) if in_one_file else ""
        for name, text in {"zebra": "", **daemons}.items():
            (self.folder / f"{name}.conf").write_text("" if in_one_file else text)
        self.start()

    def start(self):
        """Starts all daemons, after `kill` as well."""
        self.daemons = []
        for name in self.names:
            is_up = self.folder / ("zserv" if name == "zebra" else f"{name}.vty")
            # Of a process that was killed.
            is_up.unlink(missing_ok=True)
            program, _, number = name.partition("-")
            words = [f"{FRR}/{program}", *(["-n", number] if number else []), "-f", self.folder / f"{name}.conf", "-i", self.folder / f"{name}.pid", "-P", "0"]
            words += ["--vty_socket", self.folder, "--log", "stdout", *self.options[name]]
            self.daemons.append(self.host.start(name, words))
            if not process.wait_until(is_up.exists, 20, 0.05):
                raise process.CommandFailed(f"{name} is not ready after 20 s: {self.daemons[-1].log()}")
        if self.together:
            self.load(self.together)

    def ask(self, command):
        """The answer to `show COMMAND json`."""
        status, out, _ = self.host.run(["vtysh", "--vty_socket", self.folder, "-c", f"show {command} json"])
        return json.loads(out) if status == 0 else {}

    def load(self, text):
        """Takes over a configuration of all daemons in one file, as the package does with /etc/frr/frr.conf."""
        path = self.folder / "frr.conf"
        path.write_text(text)
        status, out, err = self.host.run(["vtysh", "--vty_socket", self.folder, "-f", path])
        if status != 0 or "%" in out + err:
            raise process.CommandFailed(f"vtysh -f frr.conf: status {status}: {out} {err}")

    def configure(self, *lines):
        words = [word for line in ("configure terminal", *lines) for word in ("-c", line)]
        self.host.run(["vtysh", "--vty_socket", self.folder, *words], check=True)

    def is_established(self):
        peers = self.ask("bgp ipv4 unicast summary").get("peers", {})
        return bool(peers) and all(peer["state"] == "Established" for peer in peers.values())

    def bgp_routes(self):
        return set(self.ask("bgp ipv4 unicast").get("routes", {}))

    def ask_ospf(self, command):
        """The answer to `show ip ospf COMMAND json`, of the first instance if there are several."""
        number = next((name.partition("-")[2] for name in self.names if name.startswith("ospfd")), "")
        return self.ask(f"ip ospf {number} {command}")

    def is_full(self):
        areas = self.ask_ospf("neighbor").get("neighbors", {})
        states = [one.get("nbrState", one.get("state", "")) for found in areas.values() for one in found]
        return bool(states) and all(state.startswith("Full") for state in states)

    def ospf_routes(self):
        return {prefix for prefix in self.ask_ospf("route") if "/" in prefix}

    def bfd_peer(self, peer):
        return next((one for one in self.ask("bfd peers") if one["peer"] == peer), {})

    def kill(self):
        """Ends all at once, without a word to the peer or to the kernel."""
        # zebra removes the routes of a daemon that ends before it does, and the others notice
        # that zebra has ended.
        for daemon in self.daemons:
            daemon.process.send_signal(signal.SIGSTOP)
        for daemon in self.daemons:
            daemon.process.kill()
            daemon.process.wait(10)

    def end(self):
        """As `kill`, and removes what it has put into the kernel."""
        self.kill()
        for protocol in ("bgp", "ospf"):
            self.host.run(["ip", "route", "flush", "proto", protocol])
