"""What one run holds: a directory with its records, so that a later run can clear up after a killed one."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from . import process

# Only root can write here, so nobody can plant a record.
BASE = Path("/run/natrix-lab")


class Gone(Exception):
    """The folder of all runs is not there."""


def _is_base(folder):
    try:
        return os.path.samestat(os.fstat(folder), os.stat(BASE))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked():
    """Keeps other runs from taking a folder without its owner yet for one of the dead.

    Raises Gone without the folder, which the last run removes."""
    try:
        base = os.open(BASE, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise Gone from None
    try:
        fcntl.flock(base, fcntl.LOCK_EX)
        if not _is_base(base):
            raise Gone
        yield
    finally:
        os.close(base)


class State:
    """The records, logs and files of one run."""

    def __init__(self, kind):
        self.prefix = f"{kind}{os.getpid()}"
        self.directory = BASE / self.prefix
        is_made = False
        while not is_made:
            BASE.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(Gone), locked():
                self.directory.mkdir(mode=0o700)
                (self.directory / "owner").write_text(f"{os.getpid()} {process.start_time(os.getpid())}\n")
                is_made = True
        # /run is memory; files of a gigabyte are better on a disk.
        self.bulk = Path(tempfile.mkdtemp(prefix=f"natrix-{self.prefix}-", dir="/var/tmp"))
        (self.directory / "bulk").write_text(f"{self.bulk}\n")

    def record(self, daemon):
        with open(self.directory / "processes", "a", encoding="ascii") as file:
            file.write(f"{daemon.pid} {daemon.start_time}\n")

    def remove(self):
        shutil.rmtree(self.bulk, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        # Only the last run can.
        with contextlib.suppress(OSError, Gone), locked():
            BASE.rmdir()


def namespaces(prefix):
    """Names of the namespaces of the run with this prefix."""
    directory = Path("/run/netns")
    if not directory.exists():
        return []
    return sorted(p.name for p in directory.iterdir() if p.name.startswith(prefix + "-"))


def delete_namespaces(prefix):
    for name in namespaces(prefix):
        process.run(["ip", "netns", "del", name], check=False)


def clear_up_after_the_dead():
    """Removes what runs that no longer live have left. Returns their prefixes."""
    try:
        with locked():
            return _clear_up()
    except Gone:
        return []


def _clear_up():
    cleared = []
    for directory in sorted(BASE.iterdir()):
        try:
            pid, begun = map(int, (directory / "owner").read_text().split())
        except (FileNotFoundError, ValueError):
            pid, begun = 0, 0
        if pid and process.start_time(pid) == begun:
            continue
        records = directory / "processes"
        if records.exists():
            for line in records.read_text().splitlines():
                process.end_recorded(*map(int, line.split()))
        delete_namespaces(directory.name)
        bulk = directory / "bulk"
        if bulk.exists():
            path = Path(bulk.read_text().strip())
            if path.parent == Path("/var/tmp") and path.name.startswith(f"natrix-{directory.name}-"):
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)
        cleared.append(directory.name)
    return cleared
