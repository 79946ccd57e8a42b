"""Stands in for `vpp` and `vppctl`: accepts only what VPP 25.06 accepts of what the lab says, and lets Natrix translate.

Usage: vpp_stand_in.py vpp NATRIX -c FILE, or vpp_stand_in.py vppctl -s SOCKET COMMAND...
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

# Sections and keys of the start-up configuration, by the configuration reference of VPP.
CONFIGURATION = [
    r"unix \{ nodaemon log (?P<log>\S+) cli-listen (?P<cli>\S+) runtime-dir (?P<runtime>\S+) startup-config (?P<commands>\S+) \}",
    r"api-segment \{ prefix [a-z0-9-]+ \}",
    r"cpu \{ main-core (?P<main>\d+)(?: corelist-workers (?P<workers>[0-9,]+))? \}",
    r"memory \{ main-heap-size \d+M \}",
    r"buffers \{ buffers-per-numa \d+ \}",
    r"plugins \{ plugin dpdk_plugin\.so \{ disable \} \}",
]
# Commands, by their syntax in VPP's plugins memif and nat44-ed, and in vnet.
ADDRESS = r"\d+\.\d+\.\d+\.\d+"
COMMANDS = {
    "socket": r"create memif socket id (?P<id>\d+) filename (?P<file>/\S+)",
    "memif": r"create interface memif id (?P<id>\d+) socket-id (?P<socket>\d+) ring-size (?P<ring>\d+) (?P<role>slave)",
    "address": rf"set interface ip address (?P<port>\S+) (?P<address>{ADDRESS}/\d+)",
    "up": r"set interface state (?P<port>\S+) up",
    "route": rf"ip route add (?P<prefix>{ADDRESS}/\d+) via (?P<via>{ADDRESS}) (?P<port>\S+)",
    "enable": r"nat44 plugin enable sessions (?P<sessions>\d+)",
    "timeout": r"set nat timeout udp (?P<seconds>\d+)",
    "pool": rf"nat44 add address (?P<first>{ADDRESS}) - (?P<last>{ADDRESS})",
    "sides": r"set interface nat44 in (?P<inside>\S+) out (?P<outside>\S+)",
}


def fail(text):
    print(f"vpp: {text}", flush=True)
    sys.exit(1)


def read_configuration(path):
    text = " ".join(Path(path).read_text().split())
    found = re.fullmatch(" ".join(CONFIGURATION), text)
    return found.groupdict() if found else fail(f"unknown input in {path}: {text}")


def read_commands(path):
    """What each command asks for, in order."""
    asked = []
    for line in Path(path).read_text().splitlines():
        found = ((name, re.fullmatch(syntax, line)) for name, syntax in COMMANDS.items())
        asked.append(next(((name, match.groupdict()) for name, match in found if match), None) or fail(f"unknown input `{line}'"))
    return asked


def configuration_of_natrix(asked, cpu, control):
    """The configuration that does what the commands ask for."""
    of = lambda name: [words for kind, words in asked if kind == name]
    sockets = {words["id"]: words["file"] for words in of("socket")}
    (sides,), (pool,), (enable,), (timeout,) = of("sides"), of("pool"), of("enable"), of("timeout")
    realms = {sides["inside"]: "inside", sides["outside"]: "outside"}
    text = ""
    for memif in of("memif"):
        # VPP names an interface by its socket and its own number.
        port = f"memif{memif['socket']}/{memif['id']}"
        (address,) = [words["address"] for words in of("address") if words["port"] == port]
        if not any(words["port"] == port for words in of("up")):
            fail(f"{port} stays down")
        ring = int(memif["ring"]).bit_length() - 1
        driver = f"net_memif{memif['id']},role=client,id={memif['id']},socket={sockets[memif['socket']]},socket-abstract=no,rsize={ring}"
        text += f'[[interface]]\nname = "{realms[port]}"\nrealm = "{realms[port]}"\ndriver = "{driver}"\naddresses = ["{address}"]\n'
        text += "rx_descriptors = 2048\ntx_descriptors = 2048\n"
    for route in of("route"):
        text += f'[[route]]\nprefix = "{route["prefix"]}"\nvia = "{route["via"]}"\n'
    text += f'[[pool]]\nname = "lab"\naddresses = ["{pool["first"]}-{pool["last"]}"]\nsubscribers = ["10.0.0.0/16"]\nreuse_delay = "0 s"\n'
    text += f'[timeouts]\nudp = "{timeout["seconds"]} s"\n[tables]\nmappings = {enable["sessions"]}\nextra_sessions = 1\nsubscribers = 65536\n'
    return text + f'[workers]\ncount = 1\ncpus = [{cpu}]\n[control]\nsocket = "{control}"\n'


class Translator:
    """Natrix, started anew where VPP would clear its sessions."""

    def __init__(self, binary, folder, text, control):
        self.binary, self.configuration, self.control, self.child = binary, folder / "stand-in.toml", control, None
        self.configuration.write_text(text)

    def start(self):
        self.stop()
        command = ["setpriv", "--pdeathsig", "KILL", self.binary, "run", "-c", str(self.configuration)]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        while self.sessions() is None:
            if self.child.poll() is not None:
                fail("the translator has ended")
            time.sleep(0.02)

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait()

    def sessions(self):
        command = [self.binary, "show", "status", "--json", "--socket", self.control]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return json.loads(done.stdout)["sessions"] if done.returncode == 0 else None

    def answer(self, command):
        if command == "show version":
            return "vpp v25.06-stand-in built by nobody\n"
        if command == "show nat44 interfaces":
            return "NAT44 interfaces:\n memif1/0 in\n memif2/1 out\n"
        if command == "show nat44 summary":
            return f"max translations per thread: 1 fib 0\ntotal timed out sessions: 0\ntotal sessions: {self.sessions()}\n"
        if command == "clear nat44 ed sessions":
            if self.sessions():
                self.start()
            return ""
        if re.fullmatch(r"set nat44 session limit \d+", command):
            return ""
        return f"unknown input `{command}'\n"


def serve(binary, configuration):
    settings = read_configuration(configuration)
    asked = read_commands(settings["commands"])
    folder = Path(settings["runtime"])
    folder.mkdir()
    control = str(folder / "control.sock")
    text = configuration_of_natrix(asked, settings["main"], control)
    translator = Translator(binary, folder, text, control)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        translator.start()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(settings["cli"])
            listener.listen()
            while True:
                client, _ = listener.accept()
                with client, client.makefile("rw") as stream:
                    stream.write(translator.answer(stream.readline().strip()))
    finally:
        translator.stop()


def ask(path, command):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError as error:
            sys.exit(f"vppctl: {path}: {error}")
        with client.makefile("rw") as stream:
            stream.write(command + "\n")
            stream.flush()
            sys.stdout.write(stream.read())


if __name__ == "__main__":
    if sys.argv[1] == "vpp":
        _, _, binary, _, configuration = sys.argv
        serve(binary, configuration)
    else:
        ask(sys.argv[3], " ".join(sys.argv[4:]))
