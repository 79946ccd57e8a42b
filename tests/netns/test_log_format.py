"""The log of the daemon: lines of text, lines of JSON, and the fields of systemd's journal."""

import contextlib
import json
import os
import socket
import tempfile
import time
from pathlib import Path

from kit import *
from netlab import process
from netlab.natrix import configure
from test_log import send


@contextlib.contextmanager
def service(n, name, log, before=""):
    """An instance with these keys of [log], instead of the usual one; its log is complete at the end."""
    expect_equal(n.dut.stop(), None, "end of the instance before")
    with tempfile.TemporaryDirectory(prefix="natrix-log-") as folder:
        configuration = Path(folder) / "natrix.toml"
        text = configure(f"{folder}/control.sock", n.dut.driver, tables=n.dut.tables, more=f"\n[log]\n{log}\n")
        configuration.write_text(text)
        # As systemd says which stream is its journal's.
        path = n.state.directory / f"{n.nat.name}-{name}.log"
        path.touch()
        stream = f"{os.stat(path).st_dev}:{os.stat(path).st_ino}"
        run = f"{before}exec env JOURNAL_STREAM={stream} {n.dut.binary} run -c {configuration}"
        daemon = n.nat.start(name, ["unshare", "--mount", "--propagation", "private", "sh", "-c", run])
        show = [n.dut.binary, "show", "status", "--json", "--socket", f"{folder}/control.sock"]
        ready = process.wait_until(lambda: not daemon.alive() or n.nat.run(show)[0] == 0, 30, 0.1)
        expect(ready and daemon.alive(), f"the instance did not start:\n{daemon.log()}")
        yield daemon
        expect_equal(daemon.end(15), 0, f"end of the instance: {daemon.log()}")
    n.dut.restart()
    if n.dut.driver == "tap":
        n.dut.bridge_taps()


def fields(datagram):
    """The fields of a message in the protocol of the journal."""
    found = {}
    while datagram:
        name, end, rest = datagram.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            datagram = rest
        else:
            key, length = name, int.from_bytes(rest[:8], "little")
            value, datagram = rest[8 : 8 + length], rest[8 + length + 1 :]
        found[key.decode()] = value.decode()
    return found


@test("log_format")
def the_log_is_text_unless_asked_otherwise(n):
    with service(n, "log-text", 'format = "text"') as daemon:
        pass
    lines = [line for line in daemon.log().splitlines() if "control socket" in line or "stopping" in line]
    expect_equal(len(lines), 2, f"lines about start and end: {daemon.log()}")
    expect(lines[0].startswith("info: natrix ") and lines[1] == "info: SIGTERM: stopping", f"{lines}")


@test("log_format")
def the_log_as_json_has_an_object_a_line(n):
    with service(n, "log-json", 'format = "json"') as daemon:
        daemon.process.send_signal(1)
        seen = process.wait_until(lambda: "SIGHUP" in daemon.log(), 10)
        expect(seen, f"no warning of SIGHUP: {daemon.log()}")
    # DPDK writes lines of its own.
    found = [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{")]
    for one in found:
        expect_equal(sorted(one), ["level", "message", "object", "time"], "keys")
    expect(any(one["level"] == "warning" and one["message"].startswith("SIGHUP is ignored") for one in found), f"{found}")
    last = [(one["level"], one["object"], one["message"]) for one in found]
    expect(("info", "SIGTERM", "stopping") in last, f"{last}")
    # The process for SNMP writes by the same format and level.
    nowhere = '[snmp]\nagentx = "/nonexistent/agentx"'
    with service(n, "log-snmp", f'format = "json"\n{nowhere}') as daemon:
        process.wait_until(lambda: "master agent" in daemon.log(), 20)
    found = [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{")]
    of_snmp = [(one["level"], one["message"].split(" (")[0]) for one in found if one["object"] == "snmp"]
    expect_equal(of_snmp[:1], [("warning", "no session with the master agent")], f"lines of the process for SNMP: {daemon.log()}")
    with service(n, "log-snmp-quiet", f'format = "json"\nlevel = "error"\n{nowhere}') as daemon:
        time.sleep(2)
    expect("master agent" not in daemon.log(), daemon.log())
    # The level holds for all formats.
    with service(n, "log-quiet", 'format = "json"\nlevel = "error"') as daemon:
        pass
    expect("stopping" not in daemon.log(), daemon.log())


@test("log_format")
def under_systemd_the_log_goes_to_its_journal(n):
    with tempfile.TemporaryDirectory(prefix="natrix-journal-") as folder:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as journal:
            journal.bind(f"{folder}/socket")
            journal.settimeout(5)
            mount = "mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/journal && "
            mount += f"mount --bind {folder} /run/systemd/journal && "
            # `auto` finds that standard error is the journal's.
            with service(n, "log-journal", "", mount) as daemon:
                pass
            found = []
            journal.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(fields(journal.recv(65536)))
    # An empty one asks whether there is a journal.
    stopping = next((one for one in found if one.get("MESSAGE") == "stopping"), None)
    expect(stopping, f"messages: {found}")
    # 5: notice, which is how the journal keeps information of programs.
    expect_equal((stopping["NATRIX_OBJECT"], stopping["SYSLOG_IDENTIFIER"]), ("SIGTERM", "natrix"), "fields")
    expect(stopping["PRIORITY"] in "56", f"priority of a message of the level info: {stopping}")
    expect("stopping" not in daemon.log(), f"the log is on standard error, too: {daemon.log()}")


@contextlib.contextmanager
def journald(n):
    """systemd-journald of the distribution, with a journal of its own: where it listens, and how to read entries."""
    with tempfile.TemporaryDirectory(prefix="natrix-journald-") as folder:
        listens, kept = f"{folder}/listens", f"{folder}/kept"
        mount = f"mkdir -p {listens}/journal {kept}/journal /run/systemd /run/log && mount --bind {listens} /run/systemd && "
        mount += f"mount --bind {kept} /run/log && "
        # Neither the kernel's messages nor the journal of this machine.
        mount += "mount -t tmpfs none /etc/systemd && printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\n' > /etc/systemd/journald.conf && "
        run = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mount}exec /lib/systemd/systemd-journald"]
        # Not in a namespace of the network: the journal asks for the cgroup of each sender.
        daemon = process.Daemon("journald", run, n.state.directory / "journald.log")
        n.state.record(daemon)
        ready = process.wait_until(lambda: os.path.exists(f"{listens}/journal/socket"), 20, 0.1)
        expect(ready, f"journald does not listen: {daemon.log()}")

        def entries(*matches):
            argv = ["journalctl", "--no-pager", "-o", "json", "-D", f"{kept}/journal", *matches]
            _, out, _ = process.run(argv)
            return [json.loads(line) for line in out.splitlines()]

        try:
            yield f"{listens}/journal", entries
        finally:
            daemon.end()


@test("log_format")
def journalctl_finds_the_log_by_its_fields(n):
    with journald(n) as (socket_folder, entries):
        mount = "mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/journal && "
        mount += f"mount --bind {socket_folder} /run/systemd/journal && "
        with service(n, "log-journald", "", mount) as daemon:
            daemon.process.send_signal(1)

            def warned():
                found = entries("SYSLOG_IDENTIFIER=natrix", "PRIORITY=4")
                return any("SIGHUP is ignored" in entry["MESSAGE"] for entry in found)

            expect(process.wait_until(warned, 20, 0.2), f"no warning of SIGHUP among {entries()}")
        # The journal takes messages in its own time.
        ended = process.wait_until(lambda: entries("SYSLOG_IDENTIFIER=natrix", "NATRIX_OBJECT=SIGTERM"), 20, 0.2)
        expect(ended, f"no end among {entries()}")
        (end,) = entries("SYSLOG_IDENTIFIER=natrix", "NATRIX_OBJECT=SIGTERM")
        expect_equal((end["MESSAGE"], end["_TRANSPORT"], end["_COMM"]), ("stopping", "journal", "natrix"), "entry of the end")
        expect_equal(end["PRIORITY"] in "56", True, f"priority of information: {end}")


@test("log_format")
def without_a_journal_the_log_is_text(n):
    with service(n, "log-none", 'format = "journald"', "mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && ") as daemon:
        pass
    expect("warning: log.format: the journal cannot be reached" in daemon.log(), daemon.log())
    expect("info: SIGTERM: stopping" in daemon.log(), daemon.log())


@test("log_format")
def a_full_disk_is_said_when_it_begins_and_when_it_ends(n):
    store = 'back_pressure = "refuse"\nqueue = 64\n[log.store]\npath = "/mnt/log"'
    with service(n, "log-full", store, before="mount -t tmpfs -o size=6m tmpfs /mnt && ") as daemon:
        if n.dut.driver == "tap":
            n.dut.bridge_taps()
        filler = Path(f"/proc/{daemon.process.pid}/root/mnt/filler")
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        ports = iter(range(2000, 60000))

        def said(text, while_sending=True):
            if while_sending:
                send(n, "100.64.0.20", next(ports))
            return text in daemon.log()

        for text in ["log store: cannot be written: store /mnt/log/", "new mappings are refused, because"]:
            expect(process.wait_until(lambda: said(text), 30, 0.01), f"no line with {text!r}: {daemon.log()}")
        filler.unlink()
        for text in ["log store: written again after", "no more mappings are refused"]:
            expect(process.wait_until(lambda: said(text, False), 30), f"no line with {text!r}: {daemon.log()}")
        lines = [line for line in daemon.log().splitlines() if "log store:" in line or "event log:" in line]
        # Records of the refusals may be lost as well, which is two more.
        expect(4 <= len(lines) <= 6, f"each is said once: {lines}")
