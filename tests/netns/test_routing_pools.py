"""Pools that are announced to the kernel, and the devices of the kernel, when something unusual happens."""

import contextlib
import ctypes
import json
import os
import socket
import struct
import time

from kit import *
from netlab.process import Patience
from netlab.process import wait_until
from netlab.topology import CORE
from netlab.topology import NAT_INSIDE
from netlab.topology import NAT_OUTSIDE
from netlab.topology import SRV1
from test_routing import LEARNED
from test_routing import OWN

LATE = '\n[[pool]]\nname = "late"\naddresses = ["203.0.113.60/30"]\nsubscribers = ["100.64.0.20/30"]\n'
LATE_PREFIX, LATE_SUBSCRIBER = "203.0.113.60/30", "100.64.0.21"
DRAIN = '\n[reload]\ndrain_time = "20 s"\n'
# Of linux/ptrace.h.
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
WAIT_FOR_THREADS = 0x40000000
ARP = 0x806


def announced(n):
    lines = n.nat.ip("route", "show", "proto", "110").splitlines()
    return {line.split()[1] for line in lines if line.startswith("blackhole")}


@contextlib.contextmanager
def with_route(n):
    """A route by which the pools can serve."""
    n.nat.ip("route", "replace", LEARNED, "via", CORE, "dev", "nx-outside", "proto", OWN)
    try:
        expect(wait_until(lambda: announced(n), 15, 0.1), "the pools are announced")
        yield
    finally:
        n.nat.run(["ip", "route", "flush", "proto", OWN])


@contextlib.contextmanager
def configured(n, more):
    before = n.dut.configuration.read_text()
    n.dut.configuration.write_text(before + more)
    try:
        yield before
    finally:
        n.dut.configuration.write_text(before)


@test("kernel_routes")
def a_start_removes_its_own_old_announcements_only(n):
    foreign = "203.0.115.0/30"
    with configured(n, LATE) as before:
        expect_equal(n.dut.stop(), None, "end of the instance before")
        n.dut.restart()
        try:
            with with_route(n):
                expect(wait_until(lambda: LATE_PREFIX in announced(n), 10, 0.1), f"announced: {announced(n)}")
                # Another instance in this network namespace.
                n.nat.ip("route", "add", "blackhole", foreign, "proto", "110")
                n.dut.daemon.process.kill()
                n.dut.daemon.process.wait(60)
                expect(LATE_PREFIX in announced(n), "a kill leaves the route")
                n.dut.configuration.write_text(before)
                n.dut.restart()
                expect(LATE_PREFIX not in announced(n), f"the removed pool after the start: {announced(n)}")
                expect(foreign in announced(n), f"the other instance's after the start: {announced(n)}")
            expect("1 of protocol 110 are left alone" in n.dut.daemon.log(), "a line of the log says so")
        finally:
            n.nat.run(["ip", "route", "del", "blackhole", foreign, "proto", "110"])
            if not n.dut.running():
                n.dut.configuration.write_text(before)
                n.dut.restart()


@test("kernel_routes")
def a_removed_pool_is_announced_while_its_flows_drain(n):
    with configured(n, DRAIN + LATE) as before, with_route(n):
        reload = lambda: n.dut.command("reload", "-c", str(n.dut.configuration))  # noqa: E731
        expect_equal(reload()[0], 0, "reload with the pool")
        with sockets(udp(n.srv1, address=SRV1), udp(n.sub2, address=LATE_SUBSCRIBER)) as (server, client):
            client.sendto(b"?", server.getsockname())
            external = receive(server, "a datagram")[1]
            expect(wait_until(lambda: LATE_PREFIX in announced(n), 10, 0.1), f"announced: {announced(n)}")
            shown = lambda: n.dut.show("pools", "--addresses", "--external", external[0])[0]  # noqa: E731
            of = lambda one: (one["state"], one["announced"], one["ends_in_us"] is not None)  # noqa: E731
            expect_equal(of(shown()), ("active", True, False), "the address of the flow")
            n.dut.configuration.write_text(before + DRAIN)
            expect_equal(reload()[0], 0, "reload without the pool")
            time.sleep(2)
            # Routes are announced by the address: only that of the flow is left of the pool.
            expect(f"{external[0]}" in announced(n), f"announced while the flow drains: {announced(n)}")
            expect_equal(of(shown()), ("removed", True, True), "the address while the flow drains")
            server.sendto(b"!", external)
            expect_equal(receive(client, "an answer to the flow")[0], b"!", "an answer to the flow")
            gone = lambda: external[0] not in announced(n)  # noqa: E731
            expect(wait_until(gone, 40, 0.2), f"withdrawn when the time is over: {announced(n)}")
        n.dut.configuration.write_text(before)
        expect_equal(reload()[0], 0, "reload as before")


@test("kernel_routes")
def a_pool_that_grows_is_announced_before_the_old_prefix_goes(n):
    with configured(n, LATE) as before, with_route(n):
        reload = lambda: n.dut.command("reload", "-c", str(n.dut.configuration))  # noqa: E731
        expect_equal(reload()[0], 0, "reload with the pool")
        try:
            expect(wait_until(lambda: LATE_PREFIX in announced(n), 10, 0.1), f"announced: {announced(n)}")
            monitor = n.nat.start("monitor", ["stdbuf", "-oL", "ip", "monitor", "route"])

            def places(start):
                """The lines of the monitor that begin so, by their numbers."""
                return [number for number, line in enumerate(monitor.log().splitlines()) if line.strip().startswith(start)]

            def watches():
                """Whether it sees what changes."""
                for verb in ("add", "del"):
                    n.nat.ip("route", verb, "192.0.2.99/32", "dev", "lo")
                return places("Deleted 192.0.2.99")

            try:
                expect(wait_until(watches, 10, 0.1), f"a monitor: {monitor.log()}")
                n.dut.configuration.write_text(before + LATE.replace("203.0.113.60/30", "203.0.113.56/29"))
                expect_equal(reload()[0], 0, "reload with the larger pool")
                expect(wait_until(lambda: LATE_PREFIX not in announced(n), 10, 0.1), f"announced: {announced(n)}")
                gone = wait_until(lambda: places(f"Deleted blackhole {LATE_PREFIX}"), 10, 0.1)
            finally:
                monitor.end()
            come = places("blackhole 203.0.113.56/29")
            expect(come and gone and come[0] < gone[0], f"what the kernel reports: {monitor.log()}")
        finally:
            n.dut.configuration.write_text(before)
            expect_equal(reload()[0], 0, "reload as before")


@contextlib.contextmanager
def stopped_worker(n):
    """One worker makes no step; the other threads do."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tasks = f"/proc/{n.dut.daemon.process.pid}/task"
    name = lambda task: open(f"{tasks}/{task}/comm", encoding="ascii").read()  # noqa: E731, SIM115
    worker = next(int(task) for task in os.listdir(tasks) if name(task).startswith("worker 0"))
    for request in (SEIZE, INTERRUPT):
        expect_equal(libc.ptrace(request, worker, None, None), 0, f"ptrace {request:#x}: {ctypes.get_errno()}")
    os.waitpid(worker, WAIT_FOR_THREADS)
    try:
        yield
    finally:
        libc.ptrace(DETACH, worker, None, None)


@test("kernel_routes")
def questions_are_answered_while_a_worker_is_stuck(n):
    with with_route(n):
        with stopped_worker(n):
            expect(wait_until(lambda: not announced(n), 6, 0.05), f"withdrawn: {announced(n)}")
            unknown = "not known, because worker 0"
            for words, wanted, known in (
                (("show", "status"), 1, ""),
                (("show", "counters", "--name", "routes"), 1, ""),
                (("drain",), 0, "drained; pools: not announced, drained for"),
                (("drain", "--wait", "3"), 1, "already drained; pools: not announced"),
                (("drain", "--undo"), 0, "drain undone; pools: not announced, a worker does not answer"),
            ):
                begun, patience = time.monotonic(), Patience(6)
                status, out, error = n.dut.command(*words)
                took = time.monotonic() - begun
                is_drain = words[0] == "drain"
                expect(status == wanted and "worker 0" in (out if is_drain else error), f"{words}: {status} {out} {error}")
                expect(known in out and (not is_drain or unknown in out), f"{words}: {out}")
                expect(not patience.is_over(), f"{words}: an answer after {took:.1f} s")
                print(f"# {' '.join(words)}: {took:.2f} s: {out.strip()} {error.strip()}", flush=True)
            drained = json.loads(n.dut.command("drain", "--undo", "--json")[1])
            expect_equal((drained["sessions"], drained["changed"]), (None, False), "in JSON")
            expect("worker 0" in drained["unknown"], f"the reason in JSON: {drained}")
        expect(wait_until(lambda: announced(n), 10, 0.1), "announced again")
        expect_equal(n.dut.command("show", "status")[0], 0, "status afterwards")
        log = n.dut.daemon.log()
        for line in ("worker 0: does not answer", "worker 0: answers again", "pools: not announced: a worker does not answer", "pools: announced"):
            expect(wait_until(lambda: line in n.dut.daemon.log(), 5, 0.1), f"{line!r} in the log: {log[-2000:]}")  # noqa: B023


def answers_arp(host, device, sender, target):
    """Whether a request on the link of a device gets a reply."""
    target = socket.inet_aton(target)
    with host.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP)) as sock:
        sock.bind((device, ARP))
        sock.settimeout(1)
        own = sock.getsockname()[4]
        head = b"\xff" * 6 + own + struct.pack("!HHHBBH", ARP, 1, 0x800, 6, 4, 1)
        sock.send(head + own + socket.inet_aton(sender) + bytes(6) + target)
        with contextlib.suppress(OSError):
            while True:
                frame = sock.recv(100)
                if frame[20:22] == b"\0\2" and frame[28:32] == target:
                    return True
    return False


@test("kernel_routes")
def a_device_answers_arp_for_its_own_addresses_only(n):
    expect(wait_until(lambda: answers_arp(n.core, "nat", CORE, NAT_OUTSIDE), 5), "its own address")
    expect(not answers_arp(n.core, "nat", CORE, NAT_INSIDE), "the address inside, which may be of another VRF")


@test("kernel_routes")
def a_station_changed_by_hand_is_put_back(n):
    station = lambda: n.nat.ip("-o", "link", "show", "nx-outside").split("link/ether ")[1].split()[0]  # noqa: E731
    before = station()
    with with_route(n), sockets(udp(n.srv1, address=SRV1), udp(n.sub1)) as (server, client):
        n.nat.ip("link", "set", "nx-outside", "address", "02:00:00:00:77:77")
        expect(wait_until(lambda: station() == before, 5, 0.05), f"put back: {station()}")
        expect("was given the address 02:00:00:00:77:77" in n.dut.daemon.log(), "a line of the log")
        # The core asks again within 10 s.
        n.core.ip("neigh", "flush", "all")
        for _ in range(10):
            client.sendto(b"?", server.getsockname())
            _, external = receive(server, "a datagram")
            server.sendto(b"!", external)
            expect_equal(receive(client, "an answer to the flow")[0], b"!", "an answer to the flow")
