"""One host: a network namespace with commands, daemons and sockets in it."""

import contextlib
import ctypes
import os

from . import process

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


class Namespace:
    """A named network namespace; `ip netns exec` reaches it from any shell."""

    def __init__(self, state, name):
        self.state = state
        self.name = name
        self.full_name = f"{state.prefix}-{name}"
        self.daemons = []
        # iperf3 servers by port.
        self.iperf_servers = {}
        process.run(["ip", "netns", "add", self.full_name])
        self.ip("link", "set", "lo", "up")
        # Silence of its own: no IPv6 chatter, no filtering by reverse path, answers to every packet
        # that deserves one.
        for key, value in (
            ("net.ipv6.conf.all.disable_ipv6", 1),
            ("net.ipv6.conf.default.disable_ipv6", 1),
            ("net.ipv4.conf.all.rp_filter", 0),
            ("net.ipv4.conf.default.rp_filter", 0),
            ("net.ipv4.icmp_ratelimit", 0),
            ("net.ipv4.ping_group_range", "0 2147483647"),
        ):
            self.sysctl(key, value)

    def sysctl(self, key, value):
        # A kernel without IPv6 has no such key, and needs none.
        path = "/proc/sys/" + key.replace(".", "/")
        with self.entered():
            if os.path.exists(path):
                with open(path, "w", encoding="ascii") as file:
                    file.write(str(value))

    def argv(self, argv):
        return ["ip", "netns", "exec", self.full_name, *argv]

    def ip(self, *args):
        return process.run(["ip", "-n", self.full_name, *args])[1]

    def ip_all(self, lines):
        """As `ip`, for many lines of words: a process for each takes far longer than what it does."""
        text = "".join(" ".join(map(str, words)) + "\n" for words in lines)
        process.run(["ip", "-n", self.full_name, "-batch", "-"], stdin=text)

    def run(self, argv, timeout=120, check=False, stdin=None):
        """Runs a command in here; returns (status, standard output, standard error)."""
        return process.run(self.argv(argv), timeout=timeout, check=check, stdin=stdin)

    def run_quickly(self, argv):
        """As `run`, for a program that has no use for /sys: `ip netns exec` mounts one for each command."""
        return process.run(["nsenter", f"--net=/run/netns/{self.full_name}", "--", *argv], check=False)

    def start(self, name, argv):
        """Starts a daemon in here."""
        daemon = process.Daemon(name, self.argv(argv), self.state.directory / f"{self.name}-{name}.log")
        self.state.record(daemon)
        self.daemons.append(daemon)
        return daemon

    @contextlib.contextmanager
    def entered(self):
        """The calling thread is in this namespace inside the block; sockets made there stay in it."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.full_name}", os.O_RDONLY)
        try:
            self._set(there)
            yield
        finally:
            self._set(here)
            os.close(there)
            os.close(here)

    @staticmethod
    def _set(fd):
        if _LIBC.setns(fd, _CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.end()
        self.daemons.clear()


def connect(a, a_device, b, b_device, mtu=1500):
    """A cable between two namespaces: a virtual Ethernet pair with one queue each way."""
    process.run(
        ["ip", "link", "add", a_device, "netns", a.full_name, "mtu", mtu, "type", "veth",
         "peer", "name", b_device, "netns", b.full_name, "mtu", mtu]
    )  # fmt: skip
    a.ip("link", "set", a_device, "up")
    b.ip("link", "set", b_device, "up")
