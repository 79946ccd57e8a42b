"""A machine that boots systemd with the unit of the package: a root of its own over this machine's files, in namespaces.

Nothing is installed: the root is an overlay in memory, with the binary, the unit and the configuration where the package
has them. systemd is process 1 there, so user, capabilities, folders, filters and the watchdog are those of the unit.
"""

import os
import tempfile
from pathlib import Path

from kit import *
from netlab import process

ROOT = Path(__file__).resolve().parent.parent.parent
# Users of the booted machine, besides that of the service: name, number, and further groups.
SERVICE = ("natrix", 64990)
ANN, BOB, EVE = ("ann", 64991), ("bob", 64992), ("eve", 64993)
OPERATORS = ("operators", 64994)

# Arguments: a folder, and the name of a control group. It goes on as process 1 of that group.
_GROUP = """
set -e
mount --make-rprivate /
mkdir "$1/cgroup" "$1/memory"
mount -t cgroup2 cgroup "$1/cgroup"
mkdir "$1/cgroup/$2"
echo $$ > "$1/cgroup/$2/cgroup.procs"
umount "$1/cgroup"
exec unshare --cgroup sh -c "$3" sh "$1" "$2"
"""
# The target starts nothing but the service and the journal.
_ROOT = """
set -e
memory=$1/memory root=$1/memory/root
mount -t tmpfs tmpfs "$memory"
mkdir "$memory/upper" "$memory/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$memory/upper,workdir=$memory/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
for folder in run tmp var/log var/lib; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm"
for device in null zero full random urandom tty net/tun; do
    [ -e "/dev/$device" ] || continue
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
rm -rf "$root"/etc/systemd/system "$root"/lib/systemd/system/*.target.wants "$root/etc/systemd/journald.conf"*
mkdir "$root/etc/systemd/system" "$root/old"
cp -a "$1/files/." "$root/"
: > "$root/etc/machine-id"
: > "$root/etc/fstab"
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=natrix PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=natrix-test.target --log-target=journal --show-status=no
"""
_TARGET = """
[Unit]
Requires=systemd-journald.service
Wants=natrix.service
After=systemd-journald.service
AllowIsolate=yes
"""


class Booted:
    """The machine, in the namespace of the network of `host`. The service starts with it."""

    def __init__(self, host, binary, configuration, watchdog_seconds):
        self.host = host
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-booted-")
        self.folder = Path(self.directory.name)
        self._write(binary, configuration, watchdog_seconds)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc"]
        self.daemon = host.start("booted", [*words, "sh", "-c", _GROUP, "sh", self.folder, self.folder.name, _ROOT])
        # The child of unshare becomes systemd.
        self.first = process.wait_until(self._child, 10)
        if not process.wait_until(lambda: self.do("systemctl", "show-environment")[0] == 0, 60, 0.2):
            log = self.daemon.log()
            self.end()
            raise Failure(f"systemd does not boot: {log[-3000:]}")

    def _child(self):
        return process.run(["ps", "--no-headers", "-o", "pid", "--ppid", self.daemon.pid], check=False)[1].strip()

    def _write(self, binary, configuration, watchdog_seconds):
        """The files of the machine that differ from this one's."""
        files = self.folder / "files"

        def write(path, text, mode=0o644):
            path = files / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
            path.chmod(mode)

        write("usr/bin/natrix", Path(binary).read_bytes(), 0o755)
        write("etc/systemd/system/natrix.service", (ROOT / "packaging/natrix.service").read_bytes())
        write("etc/systemd/system/natrix-test.target", _TARGET.encode())
        # The unit waits 30 s: too long for a test.
        quick = f"[Service]\nWatchdogSec={watchdog_seconds}\n"
        write("etc/systemd/system/natrix.service.d/quick.conf", quick.encode())
        # As the package makes the folder, and natrix init the file: with the group of the folder.
        folder = files / "etc/natrix"
        folder.mkdir(parents=True)
        os.chown(folder, 0, SERVICE[1])
        folder.chmod(0o2770)
        (folder / "natrix.toml").write_bytes(configuration.encode())
        (folder / "natrix.toml").chmod(0o640)
        users = [SERVICE, ANN, BOB, EVE]
        passwd = "".join(f"{name}:x:{number}:{number}::/nonexistent:/usr/sbin/nologin\n" for name, number in users)
        members = {SERVICE: BOB[0], OPERATORS: ANN[0]}
        groups = "".join(f"{name}:x:{number}:{members.get((name, number), '')}\n" for name, number in [*users, OPERATORS])
        write("etc/passwd", Path("/etc/passwd").read_bytes() + passwd.encode())
        write("etc/group", Path("/etc/group").read_bytes() + groups.encode())

    def do(self, *words, timeout=180):
        """(status, standard output, standard error) of a command as root of this machine."""
        return process.run(["nsenter", f"--target={self.first}", "--all", *words], timeout=timeout, check=False)

    def do_as(self, user, *words):
        """As `do`, as this user with its groups."""
        return self.do("setpriv", f"--reuid={user[0]}", f"--regid={user[0]}", "--init-groups", *words)

    def show(self, key):
        """A property of the service."""
        return self.do("systemctl", "show", "--property", key, "--value", "natrix.service")[1].strip()

    def pid(self):
        """The service's main process: its number for the machine of the test."""
        inner = self.show("MainPID")
        for line in process.run(["ps", "--no-headers", "-e", "-o", "pid,pidns"])[1].splitlines():
            pid, namespace = line.split()
            if namespace == self._namespace() and self._inner(pid) == inner:
                return int(pid)
        return None

    def _namespace(self):
        return process.run(["ps", "--no-headers", "-o", "pidns", "-p", self.first])[1].strip()

    @staticmethod
    def _inner(pid):
        """The number of a process in its own namespace."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return next(line.split()[-1] for line in lines if line.startswith("NSpid:"))

    def end(self):
        """Kills all of it: process 1 takes the others with it."""
        self.daemon.end(1)
        remove = 'mount -t cgroup2 cgroup "$1" && cd "$1" && find "$2" -depth -type d -exec rmdir {} +'
        words = ["unshare", "--mount", "sh", "-c", remove, "sh", self.folder, self.folder.name]
        # The kernel ends its processes within moments.
        gone = process.wait_until(lambda: process.run(words, check=False)[0] == 0, 10, 0.2)
        self.directory.cleanup()
        expect(gone, "control groups of the booted machine are left")
