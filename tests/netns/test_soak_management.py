"""A day of scrapes, page updates and walks, compressed: memory does not grow."""

import contextlib
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit import *
from netlab import process
from test_api import TOKENS
from test_api import Connection
from test_api import ask
from test_api import further_clients
from test_api import traffic
from test_snmp import MIB
from test_snmp import agent
from test_snmp import walk

# A day has 5,760 scrapes, one every 15 s.
SCRAPES = int(os.environ.get("NATRIX_SCRAPES", "60"))
# In 15 s a page gets 15 states and asks seven times for its tables.
STATES, TABLES = 15, 7
TABLES_OF_PAGE = ("/api/v1/pools", "/api/v1/drops", "/api/v1/pools/addresses?limit=1024")
# Pages that ask side by side, each from an address of its own: the limit of requests is by address.
CLIENTS = 8


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


def processes(n):
    """The daemon and the processes beside it, by name."""
    pid = n.dut.daemon.process.pid
    lines = process.run(["ps", "--no-headers", "-o", "pid,args", "--ppid", pid])[1].splitlines()
    return {"run": pid, **{line.split()[-1]: int(line.split()[0]) for line in lines}}


def update_of_page(n):
    """One update, as the page gets them."""
    connection = Connection(n)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/live", headers={"Authorization": f"Bearer {TOKENS['view']}"})
        answer = connection.getresponse()
        expect_equal(answer.status, 200, "live")
        while not answer.fp.readline().startswith(b"data: "):
            pass


class Pages:
    """Pages that ask, each on a connection that stays."""

    def __init__(self, n, stack):
        clients = further_clients(n, CLIENTS)
        self.connections = [stack.enter_context(contextlib.closing(Connection(n, client))) for client in clients]
        self.threads = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        self.asked = 0

    def ask(self, connection, paths):
        for path in paths:
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKENS['view']}"})
            answer = connection.getresponse()
            text = answer.read()
            expect(answer.status == 200 and len(text) > 10, f"{path}: {answer.status} {text[:200]}")

    def quarter_of_a_minute(self):
        paths = ["/api/v1/status"] * STATES + list(TABLES_OF_PAGE * TABLES)
        shares = [paths[client::CLIENTS] for client in range(CLIENTS)]
        list(self.threads.map(self.ask, self.connections, shares))
        self.asked += len(paths)


def follow(n, stop, events):
    """A page that stays open."""
    connection = Connection(n, further_clients(n, CLIENTS + 1)[-1])
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/live", headers={"Authorization": f"Bearer {TOKENS['view']}"})
        answer = connection.getresponse()
        while not stop.is_set():
            events.append(answer.fp.readline().startswith(b"data: "))


@test("snmp")
def a_day_of_scrapes_and_page_updates_takes_no_memory(n):
    stop, events = threading.Event(), []
    follower = threading.Thread(target=follow, args=(n, stop, events), daemon=True)
    follower.start()
    try:
        with contextlib.ExitStack() as stack:
            compressed_day(n, Pages(n, stack))
    finally:
        stop.set()
        follower.join(10)
    expect(any(events), "the page that stayed open got no update")


def compressed_day(n, pages):
    agent(n)
    traffic(n, 20)
    known, begun = processes(n), time.monotonic()
    start = {name: resident_kib(pid) for name, pid in known.items()}
    expect({"run", "api", "snmp"} <= set(known), f"processes {known}")
    first = {}
    for number in range(SCRAPES):
        openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"} if number % 2 else {}
        status, _, text = ask(n, "/metrics", headers=openmetrics)
        expect(status == 200 and b"natrix_mappings" in text, f"scrape {number}: {status}")
        if number % 8 == 0:
            update_of_page(n)
            expect_equal(ask(n, "/restconf/data/ietf-nat:nat/instances/instance=1/statistics")[0], 200, "statistics")
        if number % 40 == 0:
            walk(n, MIB)
        if number == SCRAPES // 3:
            # By now everything has been touched once.
            first = {name: resident_kib(pid) for name, pid in known.items()}
        pages.quarter_of_a_minute()
    last = {name: resident_kib(pid) for name, pid in known.items()}
    expect_equal(processes(n), known, "processes: none was started again")
    print(f"# {SCRAPES} scrapes and {pages.asked} requests of pages in {time.monotonic() - begun:.0f} s; KiB at the start {start}, after a third {first}, at the end {last}", flush=True)
    for name in known:
        expect(last[name] <= first[name] * 1.1 + 2048, f"natrix {name} grew from {first[name]} to {last[name]} KiB")
