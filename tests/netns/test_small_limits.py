"""Each limit that packets can meet, met by packets, and its count by every way of looking."""

import contextlib
import re
import time

import setups
from kit import *
from netlab import process
from netlab.topology import SRV1
from test_api import ask
from test_restconf import INSTANCE as RESTCONF_INSTANCE
from test_restconf import data
from test_restconf import follow
from test_restconf import notified
from test_snmp import INSTANCE
from test_snmp import agent
from test_snmp import get
from test_snmp import kinds
from test_snmp import set_value
from test_snmp import walk

# Column of natv2InstanceTable, leaf of ietf-nat, and the reasons for which both count packets. The
# YANG module has no leaf for a full table of mappings or of sessions.
ADDRESS = (15, "dropped-address-packets", ("address_draining",))
QUOTA = (16, "dropped-port-limit-packets", ("subscriber_port_quota", "block_limit"))
PORTS = (16, "dropped-port-packets", ("ports_exhausted",))
SUBSCRIBERS = (14, "dropped-subscriber-limit-packets", ("subscriber_table_full",))
FRAGMENTS = (17, "dropped-fragments", ("fragment_table_full", "fragment_buffers_full", "fragment_timeout"))
MAPPINGS = (13, None, ("mapping_table_full",))
OTHER = (18, None, ("protocol_unsupported", "session_table_full", "subscriber_session_quota", "subscriber_rate_limit"))
ALL = (ADDRESS, QUOTA, PORTS, SUBSCRIBERS, FRAGMENTS, MAPPINGS, OTHER)
COLUMNS = range(12, 19)
# No limit of the MIB: the first fragment never came.
NOT_IN_MIB = {"fragment_timeout"}
# Limits of one subscriber, which metrics count apart too.
OF_SUBSCRIBER = {
    "block_limit", "session_limit", "subscriber_port_quota", "subscriber_session_quota", "subscriber_memory_quota",
    "subscriber_rate_limit", "host_limit",
}  # fmt: skip
# Of a worker that does not get its CPU in time, which no limit is.
OF_A_BUSY_MACHINE = "hand_off_ring_full"


def drops(n):
    return {one["reason"]: one["packets"] for one in n.dut.show("drops", "--all") if one["reason"] != OF_A_BUSY_MACHINE}


def by_snmp(n):
    found = walk(n, INSTANCE)
    return {column: int(found[(*INSTANCE, column, 1)]) for column in COLUMNS}


def by_restconf(n):
    statistics = data(n, f"{RESTCONF_INSTANCE}/statistics")[1]["ietf-nat:statistics"]["traffic-statistics"]
    return {leaf: int(statistics[leaf]) for _, leaf, _ in ALL if leaf}


def by_metrics(n):
    text = ask(n, "/metrics")[2].decode()

    def values(name, label):
        found = re.findall(rf'^natrix_{name}\{{{label}="(\w+)"\}} (\S+)$', text, re.MULTILINE)
        return {reason: int(float(value)) for reason, value in found if reason != OF_A_BUSY_MACHINE}

    dropped, refused = values("drops_total", "reason"), values("quota_refused_packets_total", "limit")
    expect_equal(set(refused), OF_SUBSCRIBER, "limits of a subscriber in metrics")
    return dropped, refused


def moved(before, after):
    return {name: after[name] - count for name, count in before.items() if after[name] != count}


def expect_counted(n, what, limit, send, reasons=None, exactly=None):
    """Sends packets that meet a limit: its drops are counted where they belong, everywhere alike, and nowhere else."""
    column, leaf, known = limit
    begun = drops(n), by_snmp(n), by_restconf(n), *by_metrics(n)
    send()

    def seen():
        """How far all have moved, once they agree on one moment."""
        counted = moved(begun[0], drops(n))
        in_mib = sum(count for reason, count in counted.items() if reason not in NOT_IN_MIB)
        wanted = (
            {column: in_mib} if in_mib else {},
            {leaf: sum(counted.values())} if leaf and counted else {},
            counted,
            {reason: count for reason, count in counted.items() if reason in OF_SUBSCRIBER},
        )
        dropped, refused = by_metrics(n)
        now = moved(begun[1], by_snmp(n)), moved(begun[2], by_restconf(n)), moved(begun[3], dropped), moved(begun[4], refused)
        found.update(wanted=wanted, now=now)
        return counted.keys() >= set(reasons or known) and now == wanted

    found = {}
    expect(process.wait_until(seen, 30, 0.5), f"{what}: seen by SNMP, RESTCONF and metrics {found.get('now')}, wanted {found.get('wanted')}")
    counted = found["now"][2]
    expect(set(counted) <= set(known), f"{what}: dropped for {counted}")
    if exactly is not None:
        expect_equal(sum(counted.values()), exactly, f"{what}: packets dropped")


def open_ports(n, stack, address, count):
    """One datagram from each of `count` ports of a subscriber, to one endpoint."""
    for _ in range(count):
        sock = stack.enter_context(sockets(udp(n.sub2, address=address)))
        sock.sendto(b"x", (SRV1, 9))


def limits_of_a_subscriber_or_pool(n, stack):
    """What `expect_counted` needs for each of these limits."""
    ports = lambda address, count: lambda: open_ports(n, stack, address, count)  # noqa: E731
    yield "ports of a subscriber", QUOTA, ports(setups.LIMITED, setups.SNMP_LIMIT + 3), ["subscriber_port_quota"], 3
    yield "blocks of a subscriber", QUOTA, ports(setups.ONE_BLOCK, 70), ["block_limit"]
    yield "ports of a pool", PORTS, ports(setups.SCARCE, 12), None, 2
    yield "addresses of a pool", PORTS, lambda: [open_ports(n, stack, address, 1) for address in setups.CROWDED], None, 1
    yield "a pool that drains", ADDRESS, ports(setups.DRAINING, 2), None, 2
    yield "a rate of a subscriber", OTHER, ports(setups.SLOW, 4), ["subscriber_rate_limit"]
    yield "sessions of a subscriber", OTHER, ports(setups.TWO_SESSIONS, 5), ["subscriber_session_quota"], 3


def limits_of_the_instance(n, stack):
    """The same for limits that all share."""

    def unsupported():
        with sockets(raw(n.sub1)) as sender:
            sender.sendto(ip_packet("100.64.0.10", SRV1, 132, b"\0" * 12), (SRV1, 0))

    yield "another protocol", OTHER, unsupported, ["protocol_unsupported"], 1

    def many_remotes():
        # Not UDP: without filtering its packets pass without a session of their own.
        source = fresh_port()
        with sockets(raw(n.sub1)) as sender:
            for port in range(4000, 4020):
                segment = tcp_syn("100.64.0.10", source, SRV1, port)
                sender.sendto(ip_packet("100.64.0.10", SRV1, 6, segment), (SRV1, 0))

    yield "sessions", OTHER, many_remotes, ["session_table_full"]

    def no_first_fragments():
        server = stack.enter_context(sockets(udp(n.srv1, address=SRV1)))
        port = server.getsockname()[1]
        external = external_of(stack.enter_context(sockets(udp(n.sub1))), server, (SRV1, port))
        segment = udp_segment(SRV1, port, *external, bytes(20_000))
        with sockets(raw(n.srv1)) as sender:
            # More fragments of one datagram than can be held, and more datagrams than can be
            # tracked.
            for part in fragments(SRV1, external[0], 17, segment, 6999, 1000)[1:]:
                sender.sendto(part, (external[0], 0))
            for identification in range(7000, 7030):
                sender.sendto(fragments(SRV1, external[0], 17, segment, identification, 1000)[1], (external[0], 0))

    yield "fragments", FRAGMENTS, no_first_fragments
    subscribers = lambda: [open_ports(n, stack, f"100.64.0.{last}", 1) for last in range(100, 170)]  # noqa: E731
    yield "subscribers", SUBSCRIBERS, subscribers


def limit_of_mappings(n, stack):
    """The same for the table of mappings."""
    sender = stack.enter_context(sockets(raw(n.sub1)))

    def send():
        for port in range(1024, 9024):
            sender.sendto(udp_segment_of_sub1(port), (SRV1, 0))
            # So many fit the queues of the kernel, also of a busy machine.
            if port % 256 == 0:
                time.sleep(0.005)
        return drops(n)["mapping_table_full"] > 0

    yield "mappings", MAPPINGS, lambda: process.wait_until(send, 60)


@test("small_limits")
@shows("7659-5", "8512-4", "6888-REQ-4", "6888-REQ-11d")
def packets_at_each_limit_of_a_subscriber_or_pool_are_counted(n):
    agent(n)
    with contextlib.ExitStack() as stack:
        for limit in limits_of_a_subscriber_or_pool(n, stack):
            expect_counted(n, *limit)


@test("small_limits")
@shows("7659-5", "8512-4", "6888-REQ-11d")
def packets_at_each_limit_of_the_instance_are_counted(n):
    agent(n)
    with contextlib.ExitStack() as stack:
        for limit in limits_of_the_instance(n, stack):
            expect_counted(n, *limit)


@test("small_limits")
@shows("7659-3", "7659-5", "8512-5", "6888-REQ-11d")
def mappings_up_to_the_table_are_reported_and_counted(n):
    agent(n)
    full, high = 6000, len(kinds(n))
    set_value(n, (*INSTANCE, 22, 1), "u", 3600)
    set_value(n, (*INSTANCE, 21, 1), "i", full)
    with contextlib.ExitStack() as stack:
        events = follow(n, stack, "notify-ports-usage=1")
        for limit in limit_of_mappings(n, stack):
            expect_counted(n, *limit)
        expect(process.wait_until(lambda: 4 in kinds(n)[high:], 20, 0.2), f"no notification: {n.snmptrapd.log()}")
        expect_equal(notified(events), ("ietf-nat:nat-instance-event", {"id": 1, "notify-ports-threshold": 1}), "ports of all pools")
    status = n.dut.show("status")[0]
    expect_equal(int(get(n, (*INSTANCE, 8, 1))), status["mappings"], "port maps")
    expect(full < status["mappings"] < status["mappings_max"], f"{status['mappings']} mappings of {status['mappings_max']}")
    set_value(n, (*INSTANCE, 21, 1), "i", -1)


def udp_segment_of_sub1(port):
    """A whole packet of sub1."""
    return ip_packet("100.64.0.10", SRV1, 17, udp_segment("100.64.0.10", port, SRV1, 9, b"x"))


def meet_each_limit(n, stack):
    """Has packets meet each limit that none has met so far."""
    begun = drops(n)

    def is_met():
        after = drops(n)
        return all(after[reason] > before[reason] for reason in wanted)

    for limits in (limits_of_a_subscriber_or_pool, limits_of_the_instance, limit_of_mappings):
        for what, (_, _, known), send, *reasons in limits(n, stack):
            wanted = (reasons and reasons[0]) or known
            if all(begun[reason] for reason in wanted):
                continue
            before = drops(n)
            send()
            expect(process.wait_until(is_met, 30, 0.2), f"{what}: dropped for {moved(before, drops(n))}")


def records_of(n, received):
    """The data records of IPFIX messages, as ipfixDump reads them: their fields by name."""
    path = n.state.directory / "limits.ipfix"
    path.write_bytes(received)
    status, out, err = n.nat.run(["ipfixDump", "--in", path], timeout=60)
    expect_equal((status, err), (0, ""), "ipfixDump (run scripts/setup.sh if it is missing)")
    parts = out.split("--- data record ")[1:]
    return [dict(re.findall(r"^\t\(\d+\)\s+(\w+) : (.*)$", part, re.MULTILINE)) for part in parts]


def expect_each_limit(records):
    """These data records name each limit that was met."""
    expect_equal({one["natInstanceID"] for one in records}, {"7"}, "observation domain")

    def of(event, **fields):
        found = [one for one in records if one["natEvent"] == str(event) and fields.items() <= one.items()]
        expect(found, f"no event {event} with {fields}")
        return found

    limited = {"sourceIPv4Address": setups.LIMITED}
    pool = of(12, postNATSourceIPv4Address="203.0.113.50", protocolIdentifier="17")[0]["natPoolId"]
    expect(of(3)[0]["natPoolId"] != pool, "the pool without an address")
    of(13, **limited, natQuotaExceededEvent="3", maxEntriesPerUser=str(setups.SNMP_LIMIT))
    for reason, limit in [
        ("1", "maxSessionEntries"),
        ("2", "maxBIBEntries"),
        ("4", "maxSubscribers"),
        ("5", "maxFragmentsPendingReassembly"),
    ]:
        expect(int(of(13, natQuotaExceededEvent=reason)[0][limit]) > 0, f"the limit of reason {reason}")
    # A walk over the pools notices the use, which may be higher by then.
    high = of(18, natThresholdEvent="1", natPoolId=pool)[0]["addressPoolHighThreshold"]
    expect(80 <= int(high) <= 100, f"use of the pool: {high}")
    expect(int(of(18, **limited, natThresholdEvent="4")[0]["addressPortMappingHighThreshold"]) >= 75, "use of the subscriber")


@test("small_limits")
@shows("8158-E5", "8158-E6", "8158-E7", "8158-E8", "8158-E9", "8158-E10", "8158-E11", "8158-E12", "8158-E14", "8158-G1")
def a_collector_reads_of_each_limit_by_ipfix(n):
    received, faults = b"", []

    def is_read():
        """Reads on; whether that names each limit."""
        nonlocal received
        with contextlib.suppress(TimeoutError):
            while part := connection.recv(65536):
                received += part
        try:
            expect_each_limit(records_of(n, received))
        except Failure as fault:
            faults.append(fault)
            return False
        return True

    with contextlib.ExitStack() as stack:
        meet_each_limit(n, stack)
        # The collector was away: everything since the start waits for it.
        waiting = stack.enter_context(contextlib.closing(listener(n.nat, setups.IPFIX_OF_LIMITS, "127.0.0.1")))
        waiting.settimeout(60)
        connection = stack.enter_context(contextlib.closing(waiting.accept()[0]))
        connection.settimeout(1)
        expect(process.wait_until(is_read, 60), f"{len(received)} bytes of IPFIX: {faults[-1:]}")
