"""The log's store, asked about what other machines saw: after each kill -9, nobody else is ever named."""

import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import statistics
import struct
import time
from datetime import datetime
from datetime import timezone

from kit import *
from netlab.process import wait_until
from netlab.topology import SRV1
from setups import LINES

# Ends by SIGKILL under traffic; the soak sets more.
KILLS = int(os.environ.get("NATRIX_KILLS", "5"))
# The target for a restart, of which at least half of those of a soak are faster: a single one says
# little on a busy machine.
RESTART_MEDIAN_MAX_S = 2.0
# Datagrams that are sent before and around each end, and endpoints that are asked about afterwards.
DATAGRAMS, ASKED = 400, 30
SO_TIMESTAMPNS = 35


def seen_by(server):
    """What arrived: (time on the wire in ns, external endpoint, internal endpoint)."""
    found = []
    while select.select([server], [], [], 0.3)[0]:
        data, ancillary, _, sender = server.recvmsg(2048, 256)
        seconds, nanos = struct.unpack("=qq", ancillary[0][2][:16])
        internal, port = data.decode().rsplit(":", 1)
        found.append((seconds * 10**9 + nanos, sender, (internal, int(port))))
    return found


def send(n, address, port):
    """One datagram of a subscriber that says whose it is; nothing if the port is taken on this machine."""
    try:
        with sockets(udp(n.sub2, port, address)) as sub:
            sub.sendto(f"{address}:{port}".encode(), (SRV1, 7017))
    except OSError:
        return


def await_forwarding(n, server):
    """Returns as soon as a datagram arrives: a busy machine may not run the workers before all have been sent."""
    attempts = itertools.count()

    def is_forwarded():
        send(n, "100.64.0.20", 2000 + next(attempts))
        return select.select([server], [], [], 0.1)[0]

    expect(wait_until(is_forwarded, 10, 0), "nothing is forwarded after a start")


def utc(nanos):
    at = datetime.fromtimestamp(nanos // 10**9, timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{nanos % 10**9 // 1000:06}Z"


def ask(n, wire_ns, external, internal):
    """Whether the holder is named for sure; a failure when it is missing, or another one is named."""
    endpoint = f"{external[0]}:{external[1]}"
    status, out, err = n.dut.command("find", endpoint, "--at", utc(wire_ns), "--json")
    expect_equal(status, 0, f"status of natrix find {endpoint} ({err.strip()})")
    *holders, last = [json.loads(line) for line in out.splitlines()]
    named = [(holder["subscriber"], holder["internal_port"]) for holder in holders]
    wrong = [holder for holder in holders if (holder["subscriber"], holder["internal_port"]) != internal]
    expect(not [holder for holder in wrong if holder["certain"]], f"{endpoint} was of {internal}, not of {wrong}")
    expect(internal in named, f"{endpoint} of {internal} at {utc(wire_ns)} is not found: {out}")
    return last["complete"]


@test("log_store")
@shows("6888-4", "6302-X")
def every_endpoint_seen_on_the_wire_is_found_after_kill_9(n):
    chance = random.Random(17)
    seen, restarts, complete, asked = [], [], 0, 0
    with sockets(udp(n.srv1, 7017)) as server:
        server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        for kill in range(KILLS):
            await_forwarding(n, server)
            last = chance.randrange(DATAGRAMS // 4, DATAGRAMS)
            for number in range(DATAGRAMS):
                if number == last:
                    n.dut.daemon.process.send_signal(signal.SIGKILL)
                send(n, f"100.64.0.{chance.randint(20, 219)}", chance.randint(1024, 65535))
                if number < last - ASKED:
                    # The last moments before a kill are unknown, on a busy machine for longer.
                    time.sleep(0.005)
            n.dut.daemon.process.wait(60)
            arrived = seen_by(server)
            begun = time.monotonic()
            n.dut.restart()
            restarts.append(time.monotonic() - begun)
            # The last ones are the hardest; and some of all before.
            for one in arrived[-ASKED // 2 :] + chance.sample(arrived, min(len(arrived), ASKED // 2)):
                complete, asked = complete + ask(n, *one), asked + 1
            seen += arrived
            status, out, err = n.dut.command("log", "verify")
            expect_equal(status, 0, f"status of natrix log verify after end {kill}: {out} {err}")
    for one in chance.sample(seen, min(len(seen), KILLS * ASKED)):
        complete, asked = complete + ask(n, *one), asked + 1
    restart = statistics.median(restarts)
    print(f"# {KILLS} ends: {asked} answers, {complete} of them complete")
    print(f"# restart: {restart:.2f} s in the median, {max(restarts):.2f} s at most")
    if "NATRIX_KILLS" in os.environ:
        expect(restart < RESTART_MEDIAN_MAX_S, f"a restart takes {restart:.2f} s in the median")
    expect(complete > asked // 2, f"{complete} complete answers of {asked}")


def lines(path=LINES):
    """The whole lines of a file; none if it is not there."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def first_line(path=LINES):
    return next(iter(lines(path)), {})


@test("lines")
def a_log_that_another_program_takes_goes_on(n):
    """logrotate and rm beside Natrix: each is said once, and what is held now is found in the new file alone."""
    said = lambda: [line for line in n.dut.daemon.log().splitlines() if "event log:" in line]  # noqa: E731
    of = lambda words: [line for line in said() if words in line]  # noqa: E731

    def is_recorded(port, cause=None):
        found = (one for one in lines() if one["event"] == "mapping_created" and one["external_port"] == port)
        return any(cause in (None, one["cause"]) for one in found)

    def is_found(endpoint, at):
        """Whether the file alone names the one holder for sure."""
        status, out, err = n.dut.command("find", f"{endpoint[0]}:{endpoint[1]}", "--at", at, "--log", LINES, "--json")
        expect_equal(status, 0, f"status of natrix find: {err}")
        *holders, last = [json.loads(line) for line in out.splitlines()]
        return last["complete"] and len(holders) == 1 and holders[0]["certain"]

    with sockets(udp(n.srv1), udp(n.sub1), udp(n.sub1)) as (server, sub, later):
        destination = (SRV1, server.getsockname()[1])
        held = external_of(sub, server, destination)
        expect(wait_until(lambda: is_recorded(held[1]), 20, 0.05), f"no record of {held}: {lines()}")
        renamed = LINES.with_name("events.json.1")
        LINES.rename(renamed)
        expect(wait_until(lambda: first_line(), 20, 0.05), "no new file after the renaming")
        first = first_line()
        expect_equal([first[key] for key in ("event", "cause", "earlier")], ["opened", "renamed", str(renamed)], "first line")
        expect(wait_until(lambda: is_recorded(held[1], "log_opened"), 20, 0.05), f"{held} is not reported: {lines()}")
        reported = utc(time.time_ns())
        expect(wait_until(lambda: is_found(held, reported), 30, 0.2), f"{held} is not found in the new file alone: {lines()}")
        expect(wait_until(lambda: of(f"renamed {LINES} to {renamed}"), 20, 0.05), f"nothing is said: {said()}")
        LINES.unlink()
        expect(wait_until(lambda: first_line(), 20, 0.05), "no new file after the deletion")
        expect_equal([first_line().get(key) for key in ("event", "cause", "earlier")], ["opened", "deleted", None], "first line")
        expect_equal(n.dut.show("status")[0]["event_log"]["files_taken"], 2, "files that another program took")
        expect_equal(len(of("another program")), 1, f"lines within a minute: {said()}")
        # With its folder. Records wait, and packets pass.
        shutil.rmtree(LINES.parent)
        expect(wait_until(lambda: of("cannot be written: open: "), 20, 0.05), f"nothing is said: {said()}")
        made = external_of(later, server, destination)
        time.sleep(3)
        expect_equal(len(of("cannot be written")), 1, f"lines about the folder: {said()}")
        LINES.parent.mkdir()
        expect(wait_until(lambda: is_recorded(made[1]), 20, 0.05), f"no record of {made}: {lines()}")
        expect_equal(first_line()["cause"], "deleted", "first line after the folder is back")
        expect(wait_until(lambda: of("written again"), 30, 0.1), f"its end is not said: {said()}")
        # So soon after the last report, the next one comes later.
        expect(wait_until(lambda: is_recorded(held[1], "log_opened"), 60, 0.1), f"{held} is not reported: {lines()}")
        reported = utc(time.time_ns())
        for endpoint in (made, held):
            expect(wait_until(lambda: is_found(endpoint, reported), 30, 0.2), f"{endpoint} is not found: {lines()}")
