"""What must hold over everything the other tests did; runs last in every setup."""

import socket

from kit import *
from netlab.process import wait_until
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS


@test()
def the_owner_of_an_external_endpoint_is_found(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        address, port = external_of(sub, server, (SRV1, server.getsockname()[1]))
        status, out, err = n.dut.command("find", f"{address}:{port}", "--json")
        expect_equal(status, 0, f"status of natrix find ({err.strip()})")
        expect(f"{SUBSCRIBERS['sub1']}:{sub.getsockname()[1]}" in out, f"natrix find says: {out.strip()}")


@test()
@shows("S7")
def a_packet_whose_ttl_ends_here_makes_no_mapping(n):
    with sockets(udp(n.sub1)) as sub:
        sub.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        sub.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
        sub.sendto(b"how far?", (SRV1, 33434))
        queued_icmp_error(sub)
        internal = f"{SUBSCRIBERS['sub1']}:{sub.getsockname()[1]}"
        found = n.dut.show("mappings", "--protocol", "udp", "--internal", internal)
        expect_equal(found, [], "mappings")


@test("default", "packet_sockets", "tap_devices")
@shows("S15")
def both_workers_took_part(n):
    workers = n.dut.show("status")[0]["workers"]
    expect_equal(len(workers), 2, "workers")
    for worker in workers:
        number = worker["worker"]
        expect(worker["packets_forwarded"] > 0, f"worker {number} has forwarded nothing")


@test("default", "packet_sockets", "tap_devices")
@shows("S15")
def the_verdicts_add_up_to_the_packets_received(n):
    def sums():
        counters = n.dut.show("counters", "--all")
        received = sum(c["value"] for c in counters if c["name"] == "received")
        verdicts = sum(c["value"] for c in counters if c["kind"] in ("forwarded", "local", "dropped"))
        return received, verdicts

    # A packet may be on its way between two readings: the two must agree as soon as nothing moves.
    def agree():
        nonlocal received, verdicts
        received, verdicts = sums()
        return received == verdicts

    received = verdicts = 0
    wait_until(agree, 5, 0.1)
    expect(received > 0, "nothing received")
    expect_equal(verdicts, received, "verdicts, of packets received")


@test("default", "packet_sockets", "tap_devices")
@shows("S15", "6888-REQ-11a")
def no_inside_source_was_ever_seen_outside(n):
    # Counted by the core router from the first packet on; see run.py.
    out = n.core.run(["nft", "list", "table", "ip", "leaks"], check=True)[1]
    expect("packets 0 bytes 0" in out, f"packets with an inside source left outside: {out}")


@test("default", "packet_sockets", "tap_devices")
@shows("3022-3", "S1", "S3")
def no_kernel_saw_a_wrong_checksum(n):
    for name, host in n.hosts.items():
        if name == "nat":
            continue
        lines = host.run(["cat", "/proc/net/snmp"], check=True)[1].splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            for key, value in zip(names.split()[1:], values.split()[1:]):
                if key in ("InCsumErrors", "InHdrErrors") and (names.split(":")[0], key) != ("Ip", "InHdrErrors"):
                    expect_equal(int(value), 0, f"{name}: {names.split(':')[0]} {key}")
