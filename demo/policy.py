"""The carrier's part of the demo: port blocks, a quota that refuses, and a change of it while traffic runs."""

import contextlib
import errno
import json
import re
import socket

from netlab import process
from netlab import topology
from netlab import torrent
from result import Result

# Two further subscribers of the demo's configuration, both addresses of sub2.
IN_BLOCKS = "100.64.0.12"
WITH_QUOTA = "100.64.0.13"
QUOTA = 50
RAISED_QUOTA = 80
# So many more than the quota are tried.
TOO_MANY = 10
# Below the ports that Linux chooses.
FIRST_PORT = 20000
IN_ONE_BLOCK = 40
IP_RECVERR = 11


def _ports(count, used=0):
    """So many internal ports after those in use. One that Linux chose might have a mapping already and need no new one."""
    return range(FIRST_PORT + used, FIRST_PORT + used + count)


def _exchange(host, source, ports):
    """Sends a datagram from each of these ports of this address to the server's echo. Returns how many got an answer and
    how many got an ICMP error instead."""
    answered, refused = 0, 0
    sockets = []
    try:
        for port in ports:
            with host.entered():
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sockets.append(sock)
            sock.settimeout(0.5)
            # Without this Linux keeps an unreachable host to itself.
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sock.bind((source, port))
            sock.connect((topology.SRV1, 53))
        # A burst to a station nobody has spoken to yet waits for ARP, and not all of it: ask again,
        # as a resolver does.
        waiting = sockets
        for _ in range(3):
            for sock in waiting:
                # A question for the root's name servers: whatever the server says to it is an
                # answer.
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


class _Conversation:
    """One UDP socket of this address that asks the server's echo again and again, as a call or a game does."""

    def __init__(self, host, source):
        with host.entered():
            self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(2)
        self.sock.bind((source, 0))
        self.sock.connect((topology.SRV1, 53))

    def ask(self, times):
        """How many of so many questions, one after the other, were answered."""
        answered = 0
        for _ in range(times):
            with contextlib.suppress(OSError):
                self.sock.send(b"\x12\x34\x01\x00\x00\x01" + bytes(7) + b"\x00\x02\x00\x01")
                self.sock.recv(2048)
                answered += 1
        return answered

    def internal(self):
        """Its internal endpoint."""
        address, port = self.sock.getsockname()
        return f"{address}:{port}"

    def close(self):
        self.sock.close()


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
            ("natpmpc: a port on request", self.port_control),
            ("libtorrent: its port by PCP", self.torrent),
            ("natrix plan, then reload, under traffic", self.reload),
        ]

    def port_control(self):
        """A subscriber asks for a port; a server outside and the other subscriber reach it."""
        network = self.network
        asked = ["natpmpc", "-g", topology.NAT_INSIDE, "-a", "0", "7500", "udp", "600"]
        _, said, _ = network.sub1.run(asked, check=True)
        port = re.search(r"Mapped public port (\d+)", said)
        address = re.search(r"Public IP address : (\S+)", said)
        grants = self.natrix.show("grants", "--internal", f"{topology.SUBSCRIBERS['sub1']}:7500")
        if not port or not grants:
            return Result(False, f"{said} {grants}")
        host, _, shown = grants[0]["external"].rpartition(":")
        external = (host, int(shown))
        with network.sub1.entered():
            inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        reached = 0
        with inside:
            inside.settimeout(2)
            inside.bind(("", 7500))
            for remote in (network.srv1, network.srv2, network.sub2):
                with remote.entered():
                    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                with stranger, contextlib.suppress(OSError):
                    stranger.sendto(b"stranger", external)
                    reached += inside.recv(100) == b"stranger"
        seen = f"{host}:{shown} {'of ' + address.group(1) if address else ''}".strip()
        return Result(reached == 3 and int(port.group(1)) == external[1], f"{seen}, reached by {reached} of 3 hosts")

    def torrent(self):
        """A torrent client gets its listening port by PCP; a peer outside and one behind Natrix connect to it."""
        network = self.network
        host = topology.SUBSCRIBERS["sub1"]
        client, port = torrent.start(network.sub1, host, 20)
        try:
            if port is None:
                return Result(False, f"no port: {client.log()[-300:]}")
            grants = self.natrix.show("grants", "--internal", f"{host}:{port}")
            origins = {grant["protocol"]: grant["origin"] for grant in grants if not grant["held_down"]}
            address, _, shown = next((g["external"] for g in grants if g["protocol"] == "tcp"), ":0").rpartition(":")
            connected = 0
            for remote in (network.srv1, network.sub2):
                with contextlib.suppress(OSError), remote.entered():
                    socket.create_connection((address, int(shown)), timeout=3).close()
                    connected += 1
        finally:
            client.end()
        passed = origins == {"tcp": "pcp", "udp": "pcp"} and connected == 2
        asked = ", ".join(f"{protocol} by {origin}" for protocol, origin in sorted(origins.items()))
        return Result(passed, f"{address}:{shown}, {asked}; {connected} of 2 peers connected")

    def blocks(self):
        answered, _ = _exchange(self.network.sub2, IN_BLOCKS, _ports(IN_ONE_BLOCK))
        mappings = self._mappings(IN_BLOCKS)
        ports = sorted(int(m["external"].rpartition(":")[2]) for m in mappings)
        blocks = {port // 256 for port in ports}
        status, out, err = self.natrix.command("find", mappings[0]["external"] if mappings else IN_BLOCKS)
        passed = answered == len(ports) == IN_ONE_BLOCK and len(blocks) == 1 and status == 0 and IN_BLOCKS in out
        if not passed:
            return Result(False, f"{answered} answers, ports {ports}, {out or err}")
        first = blocks.pop() * 256
        return Result(True, f"{len(ports)} ports, all in {first}-{first + 255}")

    def _mappings(self, internal):
        return self.natrix.show("mappings", "--internal", internal, "--protocol", "udp")

    def quota(self):
        """Each socket up to the quota gets an answer, each further one an ICMP error, and Natrix counted the same."""
        answered, errors = _exchange(self.network.sub2, WITH_QUOTA, _ports(QUOTA + TOO_MANY))
        seen = self.natrix.show("subscribers", "--internal", WITH_QUOTA)
        has, refused = (seen[0]["mappings"]["udp"], seen[0]["refused"]["port_quota"]) if seen else (0, 0)
        saw = f"{answered} of {QUOTA + TOO_MANY} answered, {errors} refused with an ICMP error; {has} mappings"
        return Result((answered, errors, has) == (QUOTA, TOO_MANY, QUOTA) and refused >= TOO_MANY, saw)

    def _changed(self):
        """The configuration with the raised quota in which the external address of the subscriber in blocks drains, or None."""
        text = self.natrix.configuration.read_text()
        quota, blocks = f"ports = {QUOTA}\n", 'name = "blocks"\n'
        drained = {m["external"].rpartition(":")[0] for m in self._mappings(IN_BLOCKS)}
        if text.count(quota) != 1 or text.count(blocks) != 1 or len(drained) != 1:
            return None
        drain = f'drain = ["{drained.pop()}"]\n'
        return text.replace(quota, f"ports = {RAISED_QUOTA}\n").replace(blocks, blocks + drain)

    def _plan(self, path):
        """By pool, what `natrix plan` says: (subscribers that keep, that move; mappings that keep, drain, end); or an error."""
        status, out, err = self.natrix.command("plan", "-c", path, "--json")
        if status != 0:
            return None, err.strip()
        pools = [line for line in map(json.loads, out.splitlines()) if "mappings_keep" in line]
        names = ("subscribers_keep", "subscribers_move", "mappings_keep", "mappings_drain", "mappings_end", "blocks_drain")
        return {pool["pool"]: {name: pool[name] for name in names} for pool in pools}, None

    def reload(self):
        """Raises the quota and drains an address while a ping and a conversation on that address run; neither must notice."""
        with contextlib.closing(_Conversation(self.network.sub2, IN_BLOCKS)) as conversation:
            before = conversation.ask(5)
            external = [m["external"] for m in self._mappings(IN_BLOCKS) if m["internal"] == conversation.internal()]
            text = self._changed()
            if text is None or before != 5 or len(external) != 1:
                return Result(False, f"{before} of 5 answers by {external}, or the configuration is another")
            new = self.natrix.configuration.with_name("raised.toml")
            new.write_text(text)
            plan, error = self._plan(new)
            if plan is None:
                return Result(False, f"plan: {error}")
            # The subscriber in blocks moves with its next mapping; what it has drains. Everybody
            # else keeps all.
            blocks, public = plan["blocks"], plan["public"]
            expected = {
                "subscribers_keep": 0,
                "subscribers_move": 1,
                "mappings_keep": 0,
                "mappings_drain": IN_ONE_BLOCK + 1,
                "mappings_end": 0,
                "blocks_drain": 1,
            }
            nothing_else = not any(public[name] for name in ("subscribers_move", "mappings_drain", "mappings_end"))
            if blocks != expected or not nothing_else or public["mappings_keep"] < QUOTA:
                return Result(False, f"plan: {plan}")
            ping = self.network.sub1.start("ping", ["ping", "-n", "-c", "100", "-i", "0.02", "-W", "2", topology.SRV1])
            status, _, err = self.natrix.command("reload", "-c", new)
            if status != 0:
                return Result(False, f"reload: {err.strip()}")
            after = conversation.ask(100)
            still = [m["external"] for m in self._mappings(IN_BLOCKS) if m["internal"] == conversation.internal()]
        process.wait_until(lambda: not ping.alive(), 20, 0.1)
        replies = ping.log().split(" received")[0].split()[-1]
        more, errors = _exchange(self.network.sub2, WITH_QUOTA, _ports(RAISED_QUOTA - QUOTA + 1, QUOTA + TOO_MANY))
        passed = (replies, after, still) == ("100", 100, external) and (more, errors) == (RAISED_QUOTA - QUOTA, 1)
        saw = f"{blocks['mappings_drain']} mappings drain, as planned; ping {replies} of 100, conversation {after} of 100"
        return Result(passed, f"{saw}, then {QUOTA} + {more} ports")
