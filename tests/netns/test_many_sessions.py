"""Millions of sessions through the API, page by page and streamed: complete, in bounded memory, beside traffic."""

import contextlib
import json
import os
import socket
import statistics
import struct
import threading
import time

from flood import messages
from flood import sendmmsg
from kit import *
from netlab import process
from netlab.topology import NAT_INSIDE
from netlab.topology import SRV1
from test_api import TOKENS
from test_api import Connection
from test_api import objects
from test_soak_management import processes
from test_soak_management import resident_kib

# A million and more for docs/api.md; `make test` has fewer.
SESSIONS = int(os.environ.get("NATRIX_SESSIONS", "30000"))
# Hosts of the pool `many`, and ports of each.
HOSTS = 120
PORTS = -(-SESSIONS // HOSTS)
PAGE = 10_000
# Handed to the kernel at a time, and frames a second: slow enough on a busy machine.
BATCH, FRAMES_PER_SECOND = 64, 20_000
# Datagrams of a client that is there all the time.
ECHOES_PER_SECOND = 100


def frames(station):
    """A datagram from each port of each host."""
    ethernet = station + b"\x02\x66" + bytes(4) + struct.pack("!H", ETH_P_IP)
    for host in range(HOSTS):
        source = f"100.64.0.{128 + host}"
        for port in range(PORTS):
            yield ethernet + ip_packet(source, SRV1, socket.IPPROTO_UDP, struct.pack("!HHHH", 1024 + port, 9, 8, 0))


def station_of_nat(n):
    _, entry, _ = n.sub1.run(["ip", "neighbour", "show", NAT_INSIDE], check=True)
    return bytes.fromhex(entry.split("lladdr")[1].split()[0].replace(":", "")) if "lladdr" in entry else None


def sessions(n):
    return n.dut.show("status")[0]["sessions"]


def fill(n, station):
    """Makes the sessions; what a full queue loses is sent again."""
    with n.sub1.entered():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sock.bind(("eth0", 0))
    with sockets(sock):
        for _ in range(8):
            batch, begun, sent = [], time.monotonic(), 0
            for frame in frames(station):
                batch.append(frame)
                if len(batch) == BATCH:
                    sent += sendmmsg(sock, messages(batch), BATCH)
                    batch = []
                    time.sleep(max(0, sent / FRAMES_PER_SECOND - (time.monotonic() - begun)))
            sendmmsg(sock, messages(batch), len(batch))
            if sessions(n) >= HOSTS * PORTS:
                return
    drops = {one["reason"]: one["packets"] for one in n.dut.show("drops") if one["packets"]}
    raise Failure(f"{sessions(n)} sessions of {HOSTS * PORTS}; the last of {sent} frames {time.monotonic() - begun:.1f} s ago; drops {drops}")


def rounds(n):
    """The rounds of all workers by their time: entry `n` counts those of at most 2^n µs."""
    return [sum(counts) for counts in zip(*(worker["rounds_by_time"] for worker in n.dut.show("status")[0]["workers"]))]


def bound_of(counts, share):
    """The least power of two that so large a share of the rounds did not exceed, in µs."""
    total, seen = sum(counts), 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= share * total:
            return 1 << place
    return None


class Echo:
    """A client and a server that answer each other all the time: what the workers do for others meanwhile."""

    def __init__(self, n):
        self.network, self.rounds = n, rounds(n)
        self.server, self.client = udp(n.srv1), udp(n.sub1)
        self.stop, self.times, self.lost = threading.Event(), [], 0
        self.threads = [threading.Thread(target=target) for target in (self.answer, self.ask)]
        for thread in self.threads:
            thread.start()

    def answer(self):
        self.server.settimeout(0.2)
        while not self.stop.is_set():
            with contextlib.suppress(socket.timeout):
                data, sender = self.server.recvfrom(100)
                self.server.sendto(data, sender)

    def ask(self):
        number, to = 0, (SRV1, self.server.getsockname()[1])
        while not self.stop.is_set():
            number += 1
            begun = time.monotonic()
            self.client.sendto(struct.pack("!Q", number), to)
            try:
                while self.client.recv(100) != struct.pack("!Q", number):
                    pass
                self.times.append(time.monotonic() - begun)
            except socket.timeout:
                self.lost += 1
            time.sleep(max(0, 1 / ECHOES_PER_SECOND - (time.monotonic() - begun)))

    def part(self):
        """Since the last part: lost round trips, their median and 99th percentile, and rounds of the workers."""
        (times, lost), (self.times, self.lost) = (self.times, self.lost), ([], 0)
        earlier, self.rounds = self.rounds, rounds(self.network)
        made = [now - then for now, then in zip(self.rounds, earlier)]
        cut = statistics.quantiles(times, n=100)
        return {"echoes": len(times), "lost": lost, "median_ms": round(1e3 * cut[49], 2), "p99_ms": round(1e3 * cut[98], 2),
                "rounds": sum(made), "rounds_99_us": bound_of(made, 0.99), "rounds_999_us": bound_of(made, 0.999)}  # fmt: skip

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.server.close()
        self.client.close()


def page_by_page(connection):
    """The sessions of all pages, by protocol, internal and remote endpoint; and the number of pages."""
    found, pages, cursor = set(), 0, ""
    while cursor is not None:
        path = f"/api/v1/sessions?limit={PAGE}&case=many{cursor and '&cursor=' + cursor}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKENS['audit']}"})
        answer = connection.getresponse()
        text = answer.read()
        expect_equal(answer.status, 200, text[:200])
        page = json.loads(text)
        expect(len(page["objects"]) <= PAGE, "a page has more than its limit")
        found.update((one["protocol"], one["internal"], one["remote"]) for one in page["objects"])
        pages, cursor = pages + 1, page["cursor"]
    return found, pages


def streamed(connection):
    """The sessions of one answer, and its bytes."""
    connection.request("GET", "/api/v1/sessions?stream=true&case=many", headers={"Authorization": f"Bearer {TOKENS['audit']}"})
    answer = connection.getresponse()
    expect_equal(answer.status, 200, "status of the stream")
    found, octets, count = set(), 0, 0
    for line in answer:
        one = json.loads(line)
        found.add((one["protocol"], one["internal"], one["remote"]))
        octets, count = octets + len(line), count + 1
    return found, octets, count


@test("many_sessions")
def millions_of_sessions_are_listed_beside_traffic(n):
    with sockets(udp(n.sub1)) as sock:
        sock.sendto(b"x", (SRV1, 9))
    process.wait_until(lambda: station_of_nat(n), 5, 0.1)
    station = station_of_nat(n)
    made = {("udp", f"100.64.0.{128 + host}:{1024 + port}", f"{SRV1}:9") for host in range(HOSTS) for port in range(PORTS)}
    # Nobody answers, and nobody refuses.
    with sockets(udp(n.srv1, 9)):
        begun = time.monotonic()
        fill(n, station)
        print(f"# {sessions(n):,} sessions after {time.monotonic() - begun:.0f} s", flush=True)
        known, echo = processes(n), Echo(n)
        memory = lambda: {name: resident_kib(pid) for name, pid in known.items()}  # noqa: E731
        connection = Connection(n)
        try:
            time.sleep(3)
            before, quiet = memory(), echo.part()
            begun = time.monotonic()
            paged, pages = page_by_page(connection)
            seconds = time.monotonic() - begun
            print(f"# {len(paged):,} in {pages} pages of {PAGE:,}: {seconds:.1f} s", flush=True)
            beside_pages, after_pages = echo.part(), memory()
            begun = time.monotonic()
            once, octets, count = streamed(connection)
            seconds = time.monotonic() - begun
            print(f"# {len(once):,} streamed: {seconds:.1f} s, {octets / 1e6:.0f} MB", flush=True)
            beside_stream, after_stream = echo.part(), memory()
        finally:
            connection.close()
            echo.end()
    print(f"# KiB before {before}, after the pages {after_pages}, after the stream {after_stream}", flush=True)
    print(f"# echoes before {quiet}, beside the pages {beside_pages}, beside the stream {beside_stream}", flush=True)
    for what, found in (("pages", paged), ("stream", once)):
        expect_equal(len(made - found), 0, f"sessions that the {what} lack")
    expect_equal(processes(n), known, "processes: none was started again")
    # All of the lines would be hundreds of megabytes.
    for name in ("run", "api"):
        grown = max(after_pages[name], after_stream[name]) - before[name]
        expect(grown < 64 * 1024, f"natrix {name} grew by {grown} KiB")
    # The first record of a list says "so far", the last one how many there were.
    ended, started = objects(n, "/api/v1/audit?limit=2", "audit")
    if count > PAGE:
        expect_equal((started["result"], started["case"]), (f"found {PAGE} so far", "many"), "first record of the stream")
        expect_equal((ended["result"], ended["case"]), (f"ended: found {count}", "many"), "last record of the stream")
