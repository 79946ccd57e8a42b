"""Each command of the lab ends soon when its terminal or its reader goes away, and on a signal at any moment."""

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from kit import *
from netlab.process import wait_until
from test_lab import FEW, WAIT_SECONDS, devices, namespaces

# How long each command runs if nothing ends it, and how long it may take to end on a busy machine.
FOREVER, SOON_SECONDS = "600", 20
# Each command gets one of them, each of them two commands; `make soak` sends all to each.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def commands():
    """Commands of the lab that run on, each with what it says when it is under way."""
    long = [*FEW, "--trial-seconds", FOREVER, "--rate", "500"]
    return [
        (["latency", "--dut", "natrix", "--transport", "memif", *long], "phase2 takes"),
        (["latency", "--dut", "netfilter", *long], "phase2 takes"),
        (["ceiling", "--transport", "memif", "--rate-max", "2000", "--trial-seconds", FOREVER], "phase2 takes"),
        (["probe", "--dut", "netfilter", "--only", "timers", "--timer-max", FOREVER], "flows are asked"),
        (["sharing", "--nats", "2", "--subscribers", "20", "--rate-seconds", FOREVER], "NATs: rates"),
        (["study", "sessions", "--dut", "netfilter"], ""),
    ]


@contextlib.contextmanager
def running(n, words, output, errors, **more):
    """A command of the lab; whatever happens, it is not left running."""
    results = tempfile.mkdtemp()
    if words[0] == "study":
        words = [*words, "--results", results]
    child = subprocess.Popen([str(n.dut.binary), "lab", *words], stdin=subprocess.DEVNULL, stdout=output, stderr=errors, **more)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        shutil.rmtree(results)


def wait_for(child, errors, sign):
    """Reads what the command says until it is under way; a study prints no line."""
    seen = b""
    while sign.encode() not in seen:
        expect(select.select([errors], [], [], WAIT_SECONDS)[0], f"{sign} is not said: {seen.decode(errors='replace')[-300:]}")
        try:
            some = os.read(errors, 4096)
        except OSError:
            some = b""
        expect(some, f"it has ended: {seen.decode(errors='replace')[-300:]}")
        seen += some
    time.sleep(0.3 if sign else 2)
    expect_equal(child.poll(), None, "status while it runs")


def ends(child, why):
    """It ends, and leaves nothing behind."""
    expect(wait_until(lambda: child.poll() is not None, SOON_SECONDS), f"{' '.join(child.args[1:])}: runs on after {why}")
    folder = Path(tempfile.gettempdir()) / f"natrix-lab-{child.pid}"
    left = (namespaces(child.pid), devices(child.pid), folder.exists())
    expect_equal(left, ([], [], False), f"{' '.join(child.args[1:])}: namespaces, devices and folder after {why}")


@test("lab_end")
def the_lab_ends_on_each_signal_and_leaves_nothing(n):
    for number, (words, sign) in enumerate(commands()):
        for sent in SIGNALS if "NATRIX_SIGNALS" in os.environ else (SIGNALS[number % len(SIGNALS)],):
            with running(n, words, subprocess.DEVNULL, subprocess.PIPE) as child:
                wait_for(child, child.stderr.fileno(), sign)
                child.send_signal(sent)
                ends(child, sent.name)


@test("lab_end")
def the_lab_ends_on_a_signal_at_any_moment(n):
    words = ["throughput", "--dut", "natrix", "--transport", "memif", "--sessions", "200", "--rate-max", "2000", "--trial-seconds", FOREVER]
    # While it starts, while the tester is measured, while the device starts, in a trial.
    for moment in (0.0, 0.02, 0.1, 0.3, 1.0, 3.0, 6.0):
        with running(n, words, subprocess.DEVNULL, subprocess.DEVNULL) as child:
            time.sleep(moment)
            expect_equal(child.poll(), None, f"status after {moment} s")
            child.send_signal(signal.SIGTERM)
            ends(child, f"SIGTERM after {moment} s")


@test("lab_end")
def the_lab_ends_without_its_reader(n):
    for words, sign in commands():
        with running(n, words, subprocess.PIPE, subprocess.PIPE) as child:
            wait_for(child, child.stderr.fileno(), sign)
            child.stdout.close()
            ends(child, "its reader has gone")


@test("lab_end")
def the_lab_ends_without_its_terminal(n):
    for words, sign in commands():
        for has_session in (True, False):
            ours, device = pty.openpty()

            def controlled(device=device):
                fcntl.ioctl(device, termios.TIOCSCTTY, 0)

            # With a session of its own it gets SIGHUP from the kernel. Without, it has to watch the
            # terminal.
            more = {"start_new_session": True, "preexec_fn": controlled} if has_session else {}
            with running(n, words, device, device, **more) as child:
                os.close(device)
                # On a terminal there is a bar, except where no share of the whole is known.
                wait_for(child, ours, sign if words[0] == "sharing" else "\x1b[")
                time.sleep(0.5)
                os.close(ours)
                ends(child, f"its terminal has gone ({'its own' if has_session else 'that of another'})")


@test("lab_end")
def ports_of_memif_close_while_their_peers_end_is_handled(n):
    """DPDK's own thread handles the peer's end, and looked at a device that the main thread had freed: a crash at the end of a run."""
    words = ["ceiling", "--transport", "memif", "--sessions", "100", "--rate-max", "2000", "--trial-seconds", "0.1", "--json"]
    source = Path(__file__).with_name("late_end_of_file.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "late.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        # The moment that mattered was some 0.3 ms after the end.
        for late_us in (100, 200, 250, 300, 350, 400, 500, 1_000):
            environment = {**os.environ, "LD_PRELOAD": str(library), "LATE_US": str(late_us)}
            command = [str(n.dut.binary), "lab", *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, env=environment, check=False)
            # A busy machine may give no result: an error, and no crash.
            expect(done.returncode in (0, 1), f"with {late_us} us: status {done.returncode} ({done.stderr[-300:]})")
