"""The unit of the package under systemd: what the service may do, who may reach it, and its watchdog."""

import contextlib
import ctypes
import datetime
import json
import os
import re
import signal
import time
from pathlib import Path

from booted import ANN
from booted import BOB
from booted import EVE
from booted import OPERATORS
from booted import SERVICE
from booted import Booted
from kit import *
from netlab import process
from netlab.natrix import configure
from netlab.topology import SRV1

UNIT = (Path(__file__).resolve().parent.parent.parent / "packaging" / "natrix.service").read_text()
HTTP = f"""
[http]
listen = "unix:/run/natrix/http.sock"

[[http.user]]
name = "operators"
role = "operate"
group = "{OPERATORS[0]}"
"""
STORE = """
[log.store]
path = "/var/log/natrix/log"
"""
# A busy machine must not miss it by itself: three reports within this time.
WATCHDOG_SECONDS = 12
# The bits of linux/capability.h.
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_IPC_LOCK": 14}
_ATTACH, _DETACH, _WALL = 16, 17, 0x40000000
CLOCK = ["estimated_error_us", "maximum_error_us", "synchronised"]


def of_unit(key):
    return re.search(rf"^{key}=(.*)$", UNIT, re.MULTILINE)[1]


def configuration(n):
    # AF_XDP needs CAP_SYS_ADMIN, which af-xdp.conf adds.
    driver = "af_packet" if n.dut.driver == "af_xdp" else n.dut.driver
    text = configure("/run/natrix/control.sock", driver, tables=n.dut.tables, more=HTTP + STORE)
    # The audit log stays where the package has it.
    return re.sub(r'^audit = .*\n', "", text, flags=re.MULTILINE), driver


@test("unit")
def the_packaged_unit_runs_under_systemd(n):
    expect_equal(n.dut.stop(), None, "end of the instance before")
    text, driver = configuration(n)
    machine = Booted(n.nat, n.dut.binary, text, WATCHDOG_SECONDS)
    try:
        is_active(machine)
        if driver == "tap":
            n.dut.bridge_taps()
        packets_pass(n)
        the_process_has_what_the_unit_gives(machine)
        groups_reach_the_api_and_nothing_else(machine)
        expect_equal(machine.do("systemctl", "reload", "natrix")[::2], (0, ""), "systemctl reload")
        the_log_is_in_the_journal(machine)
        a_stuck_worker_is_a_restart(machine)
        a_killed_service_keeps_its_records(n, machine)
        expect_equal(machine.do("systemctl", "stop", "natrix")[0], 0, "systemctl stop")
        expect_equal(machine.show("Result"), "success", "end of the service")
        expect_equal(machine.do("ls", "/run/natrix")[0], 2, "the folder of the sockets after the end")
    finally:
        machine.end()
        n.dut.restart()
        if n.dut.driver == "tap":
            n.dut.bridge_taps()


def is_active(machine):
    """The unit is of type notify: it becomes active by READY=1."""
    expect_equal(of_unit("Type"), "notify", "type of the unit")
    ended = lambda: machine.show("ActiveState") in ("active", "failed")  # noqa: E731
    process.wait_until(ended, 60, 0.2)
    journal = machine.do("journalctl", "--no-pager", "-n", "40")[1]
    expect_equal((machine.show("ActiveState"), machine.show("SubState")), ("active", "running"), f"state of the unit: {journal}")


def packets_pass(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sock, server):
        external_of(sock, server, (SRV1, server.getsockname()[1]))


def the_process_has_what_the_unit_gives(machine):
    pid = machine.pid()
    status = Path(f"/proc/{pid}/status").read_text()
    field = lambda name: re.search(rf"^{name}:\s+(.*)$", status, re.MULTILINE)[1]  # noqa: E731
    expect_equal(set(field("Uid").split()), {str(SERVICE[1])}, "user")
    wanted = sum(1 << CAPABILITIES[name] for name in of_unit("AmbientCapabilities").split())
    expect_equal(int(field("CapEff"), 16), wanted, "capabilities")
    expect_equal((field("CapBnd"), field("NoNewPrivs"), field("Seccomp")), (field("CapEff"), "1", "2"), "further rights")
    limits = Path(f"/proc/{pid}/limits").read_text()
    # In some containers root may not raise limits; there systemd gives as much as it may.
    hard = process.run(["sh", "-c", "prlimit --memlock=unlimited:unlimited sh -c 'ulimit -Hl' || ulimit -Hl"])[1].strip()
    expect_equal(of_unit("LimitMEMLOCK"), "infinity", "locked memory of the unit")
    for what, wanted in (("Max locked memory", hard if hard == "unlimited" else str(int(hard) * 1024)), ("Max core file size", "1")):
        expect_equal(re.search(rf"{what} +(\S+)", limits)[1], wanted, what)
    children = process.run(["ps", "--no-headers", "-o", "pid,ni,args", "--ppid", pid])[1].splitlines()
    ((api, nice),) = [line.split()[:2] for line in children if line.endswith(" api")]
    own = int(process.run(["ps", "--no-headers", "-o", "ni", "-p", pid])[1])
    expect_equal(int(nice), min(own + 10, 19), "nice value of the API's process, which gives way to workers")
    # Out of memory, the API ends first, and the service goes on.
    expect_equal(Path(f"/proc/{api}/oom_score_adj").read_text().strip(), "500", "oom_score_adj of the API's process")
    expect_equal(machine.show("OOMPolicy"), "continue", "what the end of one process for memory is to the service")
    status = Path(f"/proc/{api}/status").read_text()
    # Without new privileges the bounding set gives nothing.
    expect_equal((field("CapEff"), field("CapAmb"), field("NoNewPrivs")), ("0" * 16, "0" * 16, "1"), "rights of the API's process")


def groups_reach_the_api_and_nothing_else(machine):
    def code(user, path):
        curl = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", "/run/natrix/http.sock", f"http://localhost{path}"]
        return int(machine.do_as(user, *curl)[1])

    expect_equal(code(ANN, "/api/v1/rules"), 200, "a member of the group that operates")
    expect_equal(code(ANN, "/api/v1/audit"), 403, "what this group may not do")
    expect_equal(code(EVE, "/api/v1/status"), 401, "a user without a group")
    show = ["natrix", "show", "status", "--json"]
    status, _, err = machine.do_as(ANN, *show)
    expect(status == 1 and "Permission denied" in err, f"the control socket for a member of another group: {status} {err}")
    status, out, err = machine.do_as(BOB, *show)
    expect_equal((status, err), (0, ""), "the control socket for a member of the service's group")
    expect_equal(json.loads(out)["state"], "running", "its answer")
    # The filter of system calls lets the service ask, and not set it.
    expect_equal(sorted(json.loads(out)["clock"] or {}), CLOCK, "what it knows of the clock")
    owner = f"{SERVICE[0]}:{SERVICE[0]}"
    listed = machine.do("sh", "-c", "stat -c '%a %U:%G %F %n' /run/natrix /run/natrix/* /var/log/natrix /var/lib/natrix")[1]
    modes = {line.split()[-1]: line.split()[:2] for line in listed.splitlines()}
    expect_equal(modes["/run/natrix"], ["755", owner], "the folder of the sockets")
    expect_equal(modes["/run/natrix/http.sock"], ["666", owner], "the API's socket")
    expect_equal(modes["/run/natrix/control.sock"], ["660", owner], "the control socket")
    for name in ("/var/log/natrix", "/var/lib/natrix"):
        expect_equal(modes[name], ["750", owner], name)
    # Nothing else in the open folder is for others.
    rest = {name: mode for name, (mode, _) in modes.items() if name.startswith("/run/natrix/") and name != "/run/natrix/http.sock"}
    expect(all(mode.endswith("0") for mode in rest.values()), f"modes {rest}")


def the_log_is_in_the_journal(machine):
    out = machine.do("journalctl", "--no-pager", "-u", "natrix", "-o", "json")[1]
    lines = [json.loads(line) for line in out.splitlines()]
    own = [one for one in lines if one.get("SYSLOG_IDENTIFIER") == "natrix" and "TARGET" in one]
    expect(own and all("PRIORITY" in one for one in own), f"lines of the daemon: {lines[-5:]}")


class Stuck:
    """A thread that the kernel keeps stopped, while the other threads of its process run."""

    def __init__(self, thread):
        self.thread = thread
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        expect_equal(self.libc.ptrace(_ATTACH, thread, None, None), 0, "ptrace")
        os.waitpid(thread, _WALL)

    def reap(self):
        """A traced thread that was killed is there until its tracer has seen its end, and the process with it."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.thread, _WALL | os.WNOHANG)
        return True

    def let_go(self):
        # Fails once the process has ended.
        self.libc.ptrace(_DETACH, self.thread, None, None)


def threads_of(pid):
    """The numbers of the threads of a process, by name."""
    return {Path(f"/proc/{pid}/task/{one}/comm").read_text().strip(): int(one) for one in os.listdir(f"/proc/{pid}/task")}


def a_stuck_worker_is_a_restart(machine):
    reported = lambda: int(machine.show("WatchdogTimestampMonotonic"))  # noqa: E731
    first = reported()
    expect(process.wait_until(lambda: reported() > first, 4 * WATCHDOG_SECONDS, 0.2), "no WATCHDOG=1 comes")
    pid, restarts = machine.pid(), machine.show("NRestarts")
    threads = threads_of(pid)
    worker = next((thread for name, thread in threads.items() if re.search(r"worker|^w\d", name)), None)
    expect(worker, f"no worker among the threads {sorted(threads)}")
    stuck = Stuck(worker)
    try:
        # A report may be on its way; after it there is none.
        time.sleep(1)
        last = reported()
        restarted = process.wait_until(lambda: stuck.reap() and machine.show("NRestarts") != restarts, 10 * WATCHDOG_SECONDS, 0.5)
        journal = machine.do("journalctl", "--no-pager", "-n", "60")[1]
    finally:
        stuck.let_go()
    expect(restarted, f"no restart: {journal}")
    expect("Watchdog timeout" in journal, f"the reason of the restart: {journal}")
    expect("does not answer; see the log of the daemon; the service manager gets no report" in journal, f"the daemon says so: {journal}")
    process.wait_until(lambda: machine.show("ActiveState") == "active" and machine.pid() != pid, 60, 0.2)
    is_active(machine)
    expect(process.wait_until(lambda: reported() > last, 4 * WATCHDOG_SECONDS, 0.2), "no WATCHDOG=1 comes after the restart")


def a_killed_service_keeps_its_records(n, machine):
    """Records that were only in the rings, in memory, are in the store after systemd's own restart."""
    packets_pass(n)
    pid, restarts = machine.pid(), machine.show("NRestarts")
    stuck = Stuck(threads_of(pid)["event log"])
    try:
        # A read may be under way.
        time.sleep(0.5)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(sockets(udp(n.srv1)))
            seen = []
            for _ in range(8):
                sock = stack.enter_context(sockets(udp(n.sub1)))
                sock.sendto(b"x", (SRV1, server.getsockname()[1]))
                (address, port) = receive(server, "a datagram while the log's thread waits")[1]
                seen.append((f"{address}:{port}", time.time_ns() // 1000, sock.getsockname()[1]))
        os.kill(pid, signal.SIGKILL)
        restarted = process.wait_until(lambda: stuck.reap() and machine.show("NRestarts") != restarts, 60, 0.2)
    finally:
        stuck.let_go()
    expect(restarted, "no restart after a kill")
    process.wait_until(lambda: machine.show("ActiveState") == "active" and machine.pid() != pid, 60, 0.2)
    is_active(machine)
    for endpoint, unix_us, internal_port in seen:
        at = f"{datetime.datetime.fromtimestamp(unix_us // 1_000_000, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{unix_us % 1_000_000:06}Z"
        _, out, err = machine.do("natrix", "find", endpoint, "--protocol", "udp", "--at", at, "--json")
        holders = [(one.get("subscriber"), one.get("internal_port")) for one in map(json.loads, out.splitlines())]
        expect(("100.64.0.10", internal_port) in holders, f"{endpoint} at {at}: {out} {err}")
