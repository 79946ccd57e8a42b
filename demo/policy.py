"""The carrier's part of the demo: port blocks, a quota that refuses, and a change of it while traffic runs."""

import contextlib
import errno
import json
import socket

from netlab import process
from netlab import topology
from result import Result

# Two further subscribers of the demo's configuration, both addresses of sub2.
IN_BLOCKS = "100.64.0.12"
WITH_QUOTA = "100.64.0.13"
QUOTA = 50
IP_RECVERR = 11
RAISED_QUOTA = 80


def _exchange(host, source, ports):
    """Sends a datagram from each of so many sockets of this address and asks the server's echo for an answer; how many got one,
    how many were told that there is no way."""
    answered, refused = 0, 0
    sockets = []
    try:
        for _ in range(ports):
            with host.entered():
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sockets.append(sock)
            sock.settimeout(0.5)
            # Without this Linux keeps an unreachable host to itself.
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sock.bind((source, 0))
            sock.connect((topology.SRV1, 53))
        # A burst to a station nobody has spoken to yet waits for ARP, and not all of it: ask again, as a resolver does.
        waiting = sockets
        for _ in range(3):
            for sock in waiting:
                # A question for the root's name servers: whatever the server says to it is an answer.
                with contextlib.suppress(OSError):
                    sock.send(b"\x12\x34\x01\x00\x00\x01" + bytes(7) + b"\x00\x02\x00\x01")
            silent = []
            for sock in waiting:
                try:
                    sock.recv(2048)
                    answered += 1
                except OSError as error:
                    if error.errno == errno.EHOSTUNREACH:
                        refused += 1
                    else:
                        silent.append(sock)
            waiting = silent
    finally:
        for sock in sockets:
            sock.close()
    return answered, refused


class Policy:
    """What only Natrix can be asked."""

    def __init__(self, network):
        self.network = network
        self.natrix = network.dut

    def all(self):
        """(title, function) of each program."""
        return [
            ("port blocks: one subscriber, one block", self.blocks),
            (f"quota: {QUOTA} ports and no more", self.quota),
            ("natrix plan, then reload, under traffic", self.reload),
        ]

    def blocks(self):
        answered, _ = _exchange(self.network.sub2, IN_BLOCKS, 40)
        mappings = [m for m in self.natrix.show("mappings", "--internal", IN_BLOCKS, "--protocol", "udp")]
        ports = sorted(int(m["external"].rpartition(":")[2]) for m in mappings)
        blocks = {port // 256 for port in ports}
        status, out, err = self.natrix.command("find", mappings[0]["external"] if mappings else IN_BLOCKS)
        passed = answered == 40 and len(ports) == 40 and len(blocks) == 1 and status == 0 and IN_BLOCKS in out
        if not passed:
            return Result(False, f"{answered} answers, ports {ports}, {out or err}")
        first = blocks.pop() * 256
        return Result(True, f"{len(ports)} ports, all in {first}-{first + 255}")

    def quota(self):
        answered, refused = _exchange(self.network.sub2, WITH_QUOTA, QUOTA + 10)
        saw = f"{answered} of {QUOTA + 10} answered, {refused} told by ICMP that there is no way"
        return Result(answered == QUOTA and refused > 0, saw)

    def reload(self):
        """Raises the quota while a ping and a download run; both must not notice."""
        configuration = self.natrix.configuration
        old = configuration.read_text()
        wanted = f"ports = {QUOTA}\n"
        if old.count(wanted) != 1:
            return Result(False, "the configuration has no quota")
        new = configuration.with_name("raised.toml")
        new.write_text(old.replace(wanted, f"ports = {RAISED_QUOTA}\n"))
        ping = self.network.sub1.start("ping", ["ping", "-n", "-c", "100", "-i", "0.02", "-W", "2", topology.SRV1])
        status, plan, err = self.natrix.command("plan", "-c", new, "--json")
        if status != 0:
            return Result(False, f"plan: {err.strip()}")
        status, out, err = self.natrix.command("reload", "-c", new)
        if status != 0:
            return Result(False, f"reload: {err.strip()}")
        process.wait_until(lambda: not ping.alive(), 20, 0.1)
        replies = ping.log().split(" received")[0].split()[-1]
        answered, _ = _exchange(self.network.sub2, WITH_QUOTA, RAISED_QUOTA - QUOTA)
        passed = replies == "100" and answered == RAISED_QUOTA - QUOTA and len(json.loads(plan.splitlines()[0])) > 0
        return Result(passed, f"ping {replies} of 100, then {QUOTA} + {answered} ports")
