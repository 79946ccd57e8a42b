"""Starting and ending processes: each in a namespace, each known by its process id, none outliving its parent."""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def die_with_parent():
    """The kernel kills the calling process when its parent goes, however that goes."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def mortal(argv):
    """The command, as one that dies with its parent.

    A program does that rather than this process between fork and exec, because fork copies the page tables of a large
    process for each command.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]


def start_time(pid):
    """When process `pid` began, in clock ticks since boot; None when there is no such process or it has ended.

    Together with the process id it names one process for good: ids are given out again, start times are not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may contain blanks and parentheses; fields are counted from behind it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class CommandFailed(Exception):
    """A command of the set-up ended with an error."""


def run(argv, timeout=120, check=True, stdin=None, env=None):
    """Runs a command to its end; returns (status, standard output, standard error). Status 124: out of time."""
    with subprocess.Popen(
        mortal(argv),
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
            status = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            status = 124
        except BaseException:
            process.kill()
            raise
    if check and status != 0:
        raise CommandFailed(f"{' '.join(map(str, argv))}: status {status}: {(err or out).strip()}")
    return status, out, err


class Daemon:
    """A process in the background, its output in a file."""

    def __init__(self, name, argv, log_path, env=None):
        self.name = name
        self.log_path = Path(log_path)
        with open(self.log_path, "ab") as log:
            # An earlier process of this name may have written there.
            self.log_start = os.fstat(log.fileno()).st_size
            self.process = subprocess.Popen(
                mortal(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self.start_time = start_time(self.pid)

    def alive(self):
        return self.process.poll() is None

    def log(self):
        """What this process has written."""
        return self.log_path.read_bytes()[self.log_start :].decode(errors="replace")

    def end(self, grace_seconds=5):
        """Asks it to end, then insists. Returns the exit status; None when it had to be killed."""
        if self.alive():
            self.process.terminate()
            if not wait_until(lambda: not self.alive(), grace_seconds, 0.02):
                self.process.kill()
                self.process.wait()
                return None
        return self.process.returncode


# `Patience` lasts at most this many times its seconds.
_FACTOR_MAX = 6


def _seconds_stalled():
    """Seconds since boot in which a program waited for a CPU or a disk; 0 if the kernel does not count them."""
    stalled = 0
    for what in ("cpu", "io"):
        try:
            some = Path(f"/proc/pressure/{what}").read_text().splitlines()[0]
        except OSError:
            continue
        stalled += int(some.rpartition("total=")[2]) / 1e6
    return stalled


class Patience:
    """A deadline that allows for a busy machine: seconds in which programs wait for a CPU or a disk do not count."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.begun, self.stalled = time.monotonic(), _seconds_stalled()

    def is_over(self):
        passed = time.monotonic() - self.begun
        if passed <= self.seconds:
            return False
        return passed > _FACTOR_MAX * self.seconds or passed - (_seconds_stalled() - self.stalled) > self.seconds


def wait_until(condition, seconds, interval=0.05):
    """Polls `condition` until it is true; False if the deadline (see `Patience`) is over first."""
    patience = Patience(seconds)
    while True:
        value = condition()
        if value:
            return value
        if patience.is_over():
            return False
        time.sleep(interval)


def end_recorded(pid, begun):
    """Ends a process of an earlier run, if it is still that very process."""
    if start_time(pid) == begun:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
