"""PPTP with pptpd and pptp-linux. A script stands in for pppd, because these kernels have no PPP: it answers each frame.

Both clients speak to one server from behind one address, and with equal call identifiers: they draw them from
`/dev/random`, which is the same file for both here.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time

from kit import *
from netlab import process
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS

# In place of pppd: frames of RFC 1662 on a terminal, each answered with the number of this process.
PPPD = f"""#!{sys.executable}
import contextlib, os, sys, tty
sys.path[:] = {sys.path!r}
from test_alg_pptp import Frames
tty.setraw(0)
frames = Frames()
# pptpd reads no GRE packet before pppd has spoken.
os.write(1, Frames.wrap(b"\\xff\\x03\\xc0\\x21 hello"))
# The terminal ends with the call.
with contextlib.suppress(OSError):
    while data := os.read(0, 4096):
        for frame in frames.take(data):
            os.write(1, Frames.wrap(frame + b" answered by %d" % os.getpid()))
"""

FLAG, ESCAPE = 0x7E, 0x7D


class Frames:
    """Frames of PPP in a byte stream (RFC 1662 §4)."""

    def __init__(self):
        self.bytes = b""

    @staticmethod
    def check(data):
        value = 0xFFFF
        for byte in data:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (0x8408 if value & 1 else 0)
        return value

    @staticmethod
    def wrap(frame):
        frame += (Frames.check(frame) ^ 0xFFFF).to_bytes(2, "little")
        plain = bytes([FLAG])
        for byte in frame:
            plain += bytes([ESCAPE, byte ^ 0x20]) if byte < 0x20 or byte in (FLAG, ESCAPE) else bytes([byte])
        return plain + bytes([FLAG])

    def take(self, data):
        """The sound frames that are complete now."""
        *parts, self.bytes = (self.bytes + data).split(bytes([FLAG]))
        for part in filter(None, parts):
            pieces = part.split(bytes([ESCAPE]))
            frame = pieces[0] + b"".join(bytes([piece[0] ^ 0x20]) + piece[1:] for piece in pieces[1:] if piece)
            if len(frame) > 2 and self.check(frame) == 0xF0B8:
                yield frame[:-2]


def start_server(n):
    directory = n.state.directory
    script, conf = directory / "pppd", directory / "pptpd.conf"
    script.write_text(PPPD)
    script.chmod(0o755)
    conf.write_text("localip 10.9.0.1\nremoteip 10.9.0.100-120\n")
    options = directory / "pptpd-options"
    options.touch()
    n.srv1.start("pptpd", ["pptpd", "--fg", "--conf", conf, "--option", options, "--ppp", script, "--pidfile", directory / "pptpd.pid"])
    up = lambda: ":1723 " in n.srv1.run(["ss", "-ltnH"])[1]  # noqa: E731
    expect(process.wait_until(up, 10), "pptpd does not listen")


class Client:
    """A pptp whose PPP frames come from here."""

    def __init__(self, host, random):
        self.ours, theirs = socket.socketpair()
        self.frames = Frames()
        # Its call manager has a socket named after the server: one place for each client.
        mounts = f"mount -t tmpfs none /run/pptp && mount --bind {random} /dev/random"
        command = f"mkdir -p /run/pptp && {mounts} && exec pptp {SRV1} --nolaunchpppd --timeout 2"
        with theirs:
            self.process = subprocess.Popen(
                host.argv(["unshare", "--mount", "sh", "-c", command]), stdin=theirs, stdout=theirs,
                stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=process.die_with_parent,
            )  # fmt: skip

    def exchange(self, frame, seconds=20):
        """Sends the frame until it is answered, because the call may not be there yet."""
        deadline = time.monotonic() + seconds
        self.ours.settimeout(0.5)
        while time.monotonic() < deadline:
            expect(self.process.poll() is None, "pptp has ended")
            self.ours.sendall(Frames.wrap(frame))
            try:
                for answer in self.frames.take(self.ours.recv(4096)):
                    if answer.startswith(frame + b" answered by "):
                        return answer[len(frame) + 13 :]
            except (socket.timeout, BlockingIOError):
                continue
        raise Failure(f"{frame!r} was not answered")

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.ours.close()


def calls(n):
    return [one for one in n.dut.show("expectations") if one["alg"] == "pptp"]


@test("alg_pptp")
def two_clients_with_equal_calls_tunnel_to_one_server(n):
    start_server(n)
    random = n.state.directory / "random"
    random.write_bytes(b"\x12\x67")
    with contextlib.ExitStack() as stack:
        clients = []
        for name in SUBSCRIBERS:
            clients.append(Client(n.hosts[name], random))
            stack.callback(clients[-1].end)
        answered_by = set()
        for i, client in enumerate(clients):
            answered_by.add(client.exchange(b"\xff\x03\xc0\x21 first of %d" % i))
        expect_equal(len(answered_by), 2, "programs in place of pppd that answered")
        # Both at once, and each gets its own.
        for number in range(50):
            for i, client in enumerate(clients):
                by = client.exchange(b"\xff\x03\xc0\x21 frame %d of %d" % (number, i))
                expect(by in answered_by, f"answered by {by}")
        leased = calls(n)
        expect_equal(sorted(grant["internal"].split(":")[0] for grant in leased), sorted(SUBSCRIBERS.values()), "calls")
        expect_equal(len({grant["internal"].split(":")[1] for grant in leased}), 1, "call identifiers inside")
        expect_equal(len({grant["external"] for grant in leased}), 2, "call identifiers outside")
        for client in clients:
            client.end()
        expect(process.wait_until(lambda: not calls(n), 20), f"calls remain: {calls(n)}")
