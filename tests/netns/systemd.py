"""systemd itself as the manager of one service: its user instance, in a mount namespace of its own.

It runs only on a system that was booted with systemd, and looks for a folder to find out. The folder is made in the mount
namespace, so nobody else sees it.
"""

import os
import tempfile
from pathlib import Path

from kit import *
from netlab.process import Daemon
from netlab.process import wait_until

# Arguments: a folder to mount on, control groups, and the command. /sys becomes that of the
# network namespace.
_BOOTED = """
mount --rbind /sys/fs/cgroup "$1" && mount -t sysfs sysfs /sys && mount --rbind "$1" /sys/fs/cgroup || exit 1; shift
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift
mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && mkdir /run/systemd/system && exec "$@"
"""
# The hierarchies of control groups: one of version 2, or several of version 1.
_ROOT = Path("/sys/fs/cgroup")


def _hierarchies():
    trees = [_ROOT, *_ROOT.iterdir()]
    # Without these two a group of version 1 takes no process.
    sets = ("cpuset.cpus", "cpuset.mems")
    is_one = lambda tree: (tree / "cgroup.procs").exists() and not all((tree / name).exists() for name in sets)  # noqa: E731
    # Links are second names of the same.
    found = [tree for tree in trees if is_one(tree) and not tree.is_symlink()]
    return found[:1] if found and found[0] == _ROOT else found


class Service:
    """A command as a service of type notify with a store of descriptors, in a namespace. It is not started yet."""

    def __init__(self, host, command):
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-systemd-")
        self.folder = Path(self.directory.name)
        self.host = host
        units = self.folder / "systemd/user"
        units.mkdir(parents=True)
        (units / "natrix.service").write_text(
            f"[Service]\nType=notify\nNotifyAccess=main\nFileDescriptorStoreMax=64\nExecStart={' '.join(map(str, command))}\n"
        )
        self.groups = [tree / self.folder.name for tree in _hierarchies()]
        for group in self.groups:
            group.mkdir()
        (self.folder / "cgroup").mkdir()
        # `ip netns exec` hides the control groups.
        words = ["nsenter", f"--net=/run/netns/{host.full_name}", "unshare", "--mount", "--propagation", "private"]
        words += ["sh", "-c", _BOOTED, "sh", self.folder / "cgroup", *self.groups, "--", *self._environment()]
        words += ["systemd", "--user", "--log-target=console"]
        self.daemon = Daemon("systemd", words, self.folder / "log")
        host.state.record(self.daemon)
        running = lambda: self.ask("show-environment")[0] == 0  # noqa: E731
        if not wait_until(running, 20, 0.1):
            log = self.daemon.log()
            self.end()
            raise Failure(f"systemd does not run: {log}")

    def _environment(self):
        return ["env", f"XDG_RUNTIME_DIR={self.folder}"]

    def ask(self, *words):
        return self.host.run([*self._environment(), "systemctl", "--user", *words], timeout=180)

    def do(self, word):
        """`systemctl start`, `restart` or `stop`: returns when the service says that it is ready, or has ended."""
        status, _, error = self.ask(word, "natrix.service")
        expect_equal(status, 0, f"systemctl {word}: {error} {self.daemon.log()[-600:]}")

    def show(self, key):
        return self.ask("show", "--property", key, "--value", "natrix.service")[1].strip()

    def end(self):
        self.daemon.end(20)
        for group in self.groups:
            # Those below it first.
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
        self.directory.cleanup()
