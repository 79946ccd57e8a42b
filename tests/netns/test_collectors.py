"""What a running instance sends is read by collectors that others wrote, and is what was on the wire."""

import contextlib
import datetime
import json
import os
import random
import re
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import test_log
from kit import *
from netlab import process
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS
from setups import CERTIFICATES
from setups import COLLECTORS
from setups import COLLECTOR_STORE
from setups import TOOLS
from test_api import await_store

IN_BLOCKS = "100.64.0.65"
MAPPINGS = 40
# Rounds of mappings, and the pause before each, while a collector is away; the soak sets more.
OUTAGE_ROUNDS, OUTAGE_PAUSE_SECONDS = 1 + int(os.environ.get("NATRIX_OUTAGE_SECONDS", "0")) // 10, 10
# Templates come each second.
TEMPLATES_SECONDS = 1.5


class Lines:
    """A collector of lines of JSON on one TCP port: it reads all connections, and can be away for a while."""

    def __init__(self, n, port):
        self.n, self.port, self.records, self.starts = n, port, [], 0
        self.open()

    def open(self):
        self.listener = listener(self.n.nat, self.port, "127.0.0.1")
        # A sink that was refused for long tries again only after a while.
        self.listener.settimeout(None)
        self.connections = []
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                threading.Thread(target=self.read, args=(connection,), daemon=True).start()

    def read(self, connection):
        with contextlib.suppress(OSError, ValueError):
            for line in connection.makefile("rb"):
                record = json.loads(line)
                if record["event"] == "started":
                    self.starts += 1
                else:
                    self.records.append(record)

    def close(self):
        # A listener that is only closed still accepts while a thread waits in it.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def endpoints(self):
        return {
            (record["subscriber"], record["internal_port"], record["external_address"], record["external_port"])
            for record in list(self.records)
            if record["event"] == "mapping_created"
        }


def open_mappings(n, server, count=MAPPINGS):
    """Mappings of sub1, as (subscriber, port, external address, port), and their sockets."""
    opened, held = set(), []
    for _ in range(count):
        sock = udp(n.sub1)
        held.append(sock)
        external = external_of(sock, server, (SRV1, server.getsockname()[1]))
        opened.add((SUBSCRIBERS["sub1"], sock.getsockname()[1], *external))
    return opened, held


def lease(n, server):
    """A block of a subscriber of the pool with blocks: an external address and a port in the block."""
    with sockets(udp(n.sub2, address=IN_BLOCKS)) as sock:
        return external_of(sock, server, (SRV1, server.getsockname()[1]))


def sink(n, name):
    """What the status says of a sink."""
    log = n.dut.show("status")[0]["event_log"]
    return next(one for one in log["sinks"] if one["name"] == name)


def expect_soon(condition, text, seconds=60):
    expect(process.wait_until(condition, seconds, 0.2), text)


def expect_listening(n, daemon, *ports):
    """Waits until something receives datagrams on these ports: what is sent earlier is lost."""

    def bound():
        out = n.nat.run(["ss", "--no-header", "--udp", "--listening", "--numeric"])[1]
        return all(f":{port} " in out for port in ports)

    heard = process.wait_until(lambda: bound() or not daemon.alive(), 60, 0.2)
    expect(heard and daemon.alive(), f"nothing listens on {ports}:\n{daemon.log()}")


def held_by_store(n, mapping):
    """The store names the same subscriber and port as a collector did."""
    subscriber, internal_port, external, port = mapping
    # A time in whole seconds, after the mapping began, and before the last record.
    time.sleep(1)
    at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = ["find", f"{external}:{port}", "--at", at, "--dir", COLLECTOR_STORE, "--json"]
    holders, last = [], {}

    def is_complete():
        """Once the second is over, and the records of its end are in a frame."""
        nonlocal holders, last
        status, out, err = n.nat.run([n.dut.binary, *words])
        expect_equal(status, 0, f"natrix find: {err}")
        *holders, last = (json.loads(line) for line in out.splitlines())
        return last["complete"]

    expect(process.wait_until(is_complete, 20, 0.5), f"natrix find: {last}")
    seen = [(one["subscriber"], one["internal_port"]) for one in holders]
    expect_equal(seen, [(subscriber, internal_port)], f"natrix find {external}:{port}")


def await_templates(n, *names):
    """Waits until the templates have been sent again: collectors that started late need them."""
    with Sniffer(n.nat, "lo") as sniffer:
        for name in names:

            def has_templates(packet):
                # A message has a header of 16 bytes; a set of templates has the identifier 2.
                return has_ports(packet, 17, destination=COLLECTORS[name]) and packet.payload[24:26] == b"\0\2"  # noqa: B023

            for _ in range(2):
                expect(sniffer.packets(20, has_templates, 1), f"no templates come to {name}")
                time.sleep(TEMPLATES_SECONDS / 2)


def rows_of_nfdump(n, flows):
    status, out, err = n.nat.run(["nfdump", "-R", flows, "-o", "json"])
    expect_equal(status, 0, f"nfdump: {err}")
    return json.loads(out)


def mapped_by_nfdump(n, flows):
    """Mappings in the complete files of nfcapd."""
    # There may be no file yet.
    with contextlib.suppress(Failure, ValueError):
        created = [row for row in rows_of_nfdump(n, flows) if row["nat_event_id"] == "8"]
        return {(row["src4_addr"], int(row["src_port"]), row["src4_xlt_ip"], int(row["src_xlt_port"])) for row in created}
    return set()


def rows_of_nfacctd(printed):
    """The complete lines of nfacctd."""
    text = printed.read_text() if printed.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def mapped_by_nfacctd(printed):
    created = [row for row in rows_of_nfacctd(printed) if row["nat_event"] == 8]
    return {(row["ip_src"], row["port_src"], row["post_nat_ip_src"], row["post_nat_port_src"]) for row in created}


def folder_of(n, name):
    folder = Path(n.state.directory) / name
    folder.mkdir(mode=0o777, exist_ok=True)
    return folder


@test("collectors")
@shows("8158-E3", "8158-E16", "8158-E17", "8158-G2")
def tshark_nfcapd_and_nfacctd_read_ipfix(n):
    flows, printed = folder_of(n, "nfcapd"), Path(n.state.directory) / "nfacctd.json"
    primitives, configuration = (Path(n.state.directory) / f"nfacctd.{end}" for end in ("primitives", "conf"))
    primitives.write_text(
        "name=block_start field_type=361 len=2 semantics=u_int\n"
        "name=block_end field_type=362 len=2 semantics=u_int\n"
        "name=block_ports field_type=364 len=2 semantics=u_int\n"
    )
    keys = "src_host, post_nat_src_host, src_port, post_nat_src_port, proto, nat_event, timestamp_start"
    configuration.write_text(
        f"daemonize: false\nplugins: print[a]\nnfacctd_port: {COLLECTORS['nfacctd']}\nnfacctd_ip: 127.0.0.1\n"
        f"nfacctd_time_new: true\naggregate_primitives: {primitives}\n"
        f"aggregate[a]: {keys}, block_start, block_end, block_ports\n"
        f"print_output[a]: json\nprint_output_file[a]: {printed}\nprint_output_file_append[a]: true\n"
        "print_refresh_time[a]: 2\n"
    )
    capture = Path(n.state.directory) / "ipfix.pcap"
    running = [
        n.nat.start("nfcapd", ["nfcapd", "-w", flows, "-p", COLLECTORS["nfcapd"], "-t", "2", "-I", "natrix"]),
        n.nat.start("nfacctd", ["nfacctd", "-f", configuration]),
        n.nat.start("tshark", ["tshark", "-i", "lo", "-w", capture, "udp", "port", COLLECTORS["nfcapd"]]),
    ]
    try:
        expect_listening(n, running[0], COLLECTORS["nfcapd"])
        expect_listening(n, running[1], COLLECTORS["nfacctd"])
        expect_soon(lambda: capture.exists() and capture.stat().st_size, "tshark does not begin to capture")
        await_templates(n, "nfcapd", "nfacctd")
        with sockets(udp(n.srv1)) as server:
            opened, held = open_mappings(n, server)
            external, port = lease(n, server)
            for sock in held:
                sock.close()
        expect_soon(lambda: sink(n, "nfcapd")["lag_us"] == 0, "the sink does not catch up")
        # Both write their files each two seconds.
        lacks = lambda: (opened - mapped_by_nfdump(n, flows), opened - mapped_by_nfacctd(printed))  # noqa: E731
        expect_soon(lambda: not any(lacks()), "mappings are missing")
        time.sleep(2)
    finally:
        for daemon in running:
            daemon.end(30)

    reports = re.findall(r"Sequence Errors: (\d+), Bad Packets: (\d+)", running[0].log())
    expect(len(reports) > 1, f"nfcapd reports nothing:\n{running[0].log()}")
    expect(all(report == ("0", "0") for report in reports), f"nfcapd counts errors: {reports}")
    bindings = {(row["src4_addr"], row["src4_xlt_ip"]) for row in rows_of_nfdump(n, flows) if row["nat_event_id"] == "14"}
    expect((SUBSCRIBERS["sub1"], next(iter(opened))[2]) in bindings, f"nfdump: no binding of sub1 among {bindings}")
    expect_equal(opened - mapped_by_nfdump(n, flows), set(), "nfdump: mappings that are missing")

    rows = rows_of_nfacctd(printed)
    mapped = mapped_by_nfacctd(printed)
    expect_equal(opened - mapped, set(), "nfacctd: mappings that are missing")
    for one in sorted(opened & mapped)[:3]:
        held_by_store(n, one)
    blocks = [row for row in rows if row["nat_event"] == 16 and row["ip_src"] == IN_BLOCKS]
    expect_equal(len(blocks), 1, "nfacctd: blocks of the subscriber")
    first, last, ports = (int(blocks[0][f"block_{field}"]) for field in ("start", "end", "ports"))
    expect_equal((blocks[0]["post_nat_ip_src"], last - first + 1, ports), (external, 256, 256), "nfacctd: the block")
    expect(first <= port <= last, f"nfacctd: port {port} is not in {first}-{last}")

    status, out, err = n.nat.run(
        ["tshark", "-r", capture, "-d", f"udp.port=={COLLECTORS['nfcapd']},cflow", "-V"], timeout=60
    )
    expect(status == 0 and "Observation Domain Id: 7" in out, f"tshark reads no IPFIX: {err}")
    for bad in ("Malformed", "Expert Info (Error"):
        expect(bad not in out, f"tshark: {bad}")
    expect(out.count("Nat Event: NAT44 BIB create") >= MAPPINGS, "tshark: too few mappings")
    lengths = [int(length) for length in re.findall(r"Cisco NetFlow/IPFIX\s+Version: 10\s+Length: (\d+)", out)]
    expect(lengths and max(lengths) <= 1500 - 48, f"tshark: messages of {max(lengths, default=0)} bytes")


@test("collector_ends")
@shows("8158-G3", "8158-E16")
def no_port_has_two_open_holders_after_a_stop_and_a_kill(n):
    """One address with few ports, so that each run gives the ports of the previous run to the other subscriber."""
    flows = folder_of(n, "nfcapd")
    daemon = n.nat.start("nfcapd", ["nfcapd", "-w", flows, "-p", COLLECTORS["nfcapd"], "-t", "2", "-I", "natrix"])
    reports = lambda: re.findall(r"Sequence Errors: (\d+), Bad Packets: (\d+)", daemon.log())  # noqa: E731
    opened = []

    def run(namespace, name):
        """Mappings of a subscriber, none of which ends before the run does."""
        with sockets(udp(n.srv1)) as server:
            held = [udp(namespace) for _ in range(MAPPINGS)]
            for sock in held:
                external = external_of(sock, server, (SRV1, server.getsockname()[1]))
                opened.append((SUBSCRIBERS[name], sock.getsockname()[1], *external))
            for sock in held:
                sock.close()

    try:
        expect_listening(n, daemon, COLLECTORS["nfcapd"])
        await_templates(n, "nfcapd")
        run(n.sub1, "sub1")
        expect_equal(n.dut.stop(), None, "the first stop")
        n.dut.restart()
        run(n.sub2, "sub2")
        expect_soon(lambda: sink(n, "nfcapd")["lag_us"] == 0, "the sink does not catch up")
        before = len(reports())
        expect_soon(lambda: len(reports()) > before + 2, f"nfcapd reports nothing:\n{daemon.log()}")
        expect(all(report == ("0", "0") for report in reports()), f"nfcapd counts errors: {reports()}")
        n.dut.daemon.process.kill()
        n.dut.daemon.process.wait()
        n.dut.restart()
        run(n.sub1, "sub1")
        expect_equal(n.dut.stop(), None, "the second stop")
        before = len(reports())
        expect_soon(lambda: len(reports()) > before + 2, f"nfcapd reports nothing:\n{daemon.log()}")
    finally:
        daemon.end(30)
        if not n.dut.alive():
            n.dut.restart()

    rows = rows_of_nfdump(n, flows)

    def all_of(event):
        of = [row for row in rows if row["nat_event_id"] == event]
        return [(row["src4_addr"], int(row["src_port"]), row["src4_xlt_ip"], int(row["src_xlt_port"])) for row in of]

    begun, ended = all_of("8"), all_of("9")
    expect_equal(set(opened) - set(begun), set(), "nfdump: mappings that are missing")
    expect_equal(set(begun) - set(ended), set(), "nfdump: mappings without an end")

    def time_of(row):
        # nfdump prints milliseconds without leading zeros.
        seconds, _, milliseconds = row["t_event"].partition(".")
        return seconds, int(milliseconds)

    moments = sorted((time_of(row), row["nat_event_id"] == "8", row["src4_xlt_ip"], row["src_xlt_port"], row["src4_addr"], row["src_port"]) for row in rows if row["nat_event_id"] in ("8", "9"))
    holders = {}
    for at, is_begin, *external, subscriber, port in moments:
        holder = holders.setdefault(tuple(external), set())
        if is_begin:
            # A kill may have it sent a second time.
            others = holder - {(subscriber, port)}
            history = [one for one in moments if list(one[2:4]) == external]
            expect_equal(others, set(), f"nfdump: open holders of {external} besides {subscriber} at {at}, of {history}")
            holder.add((subscriber, port))
        else:
            holder.discard((subscriber, port))
    shared = {row[2:] for row in begun if row[0] == SUBSCRIBERS["sub1"]} & {row[2:] for row in begun if row[0] == SUBSCRIBERS["sub2"]}
    expect(len(shared) > 5, f"only {len(shared)} ports had both subscribers")
    bindings = {event: {(row["src4_addr"], row["src4_xlt_ip"]) for row in rows if row["nat_event_id"] == event} for event in ("14", "15")}
    expect_equal(bindings["14"], bindings["15"], "nfdump: bindings that begin, and that end")
    expect_equal(len(bindings["14"]), 2, "nfdump: bindings")


@test("collector_ends")
@shows("8158-E16")
def a_sink_that_a_reload_adds_learns_of_bindings(n):
    flows, before = folder_of(n, "late"), n.dut.configuration.read_text()
    words = ["nfcapd", "-w", flows, "-p", COLLECTORS["nfacctd"], "-t", "2", "-I", "natrix"]
    daemon = n.nat.start("nfcapd-late", words)
    late = before[before.index("[[log.sink]]") : before.index("[[pool]]\nname = \"own\"")]
    late = late.replace("nfcapd", "late").replace(str(COLLECTORS["nfcapd"]), str(COLLECTORS["nfacctd"]))

    def bound():
        """Subscribers of whose bindings the collector has heard."""
        status, out, _ = n.nat.run(["nfdump", "-R", flows, "-o", "json"])
        with contextlib.suppress(ValueError):
            rows = json.loads(out) if status == 0 else []
            return {row["src4_addr"] for row in rows if row["nat_event_id"] == "14"}
        return set()

    try:
        expect_listening(n, daemon, COLLECTORS["nfacctd"])
        with sockets(udp(n.srv1), udp(n.sub1), udp(n.sub2)) as (server, one, other):
            # Bound before the sink begins, and after.
            external_of(one, server, (SRV1, server.getsockname()[1]))
            n.dut.configuration.write_text(before.replace("[[log.sink]]", late + "\n[[log.sink]]", 1))
            status, out, err = n.dut.command("reload", "-c", n.dut.configuration)
            expect_equal(status, 0, f"natrix reload: {out} {err}")
            external_of(other, server, (SRV1, server.getsockname()[1]))
            both = {SUBSCRIBERS["sub1"], SUBSCRIBERS["sub2"]}
            expect_soon(lambda: both <= bound(), f"nfdump: bindings, of {both}: {sink(n, 'late')}")
    finally:
        daemon.end()
        n.dut.configuration.write_text(before)
        n.dut.command("reload", "-c", n.dut.configuration)


@test("collectors")
def rsyslog_reads_syslog(n):
    written, configuration = Path(n.state.directory) / "rsyslog.txt", Path(n.state.directory) / "rsyslog.conf"
    configuration.write_text(
        'module(load="imtcp")\n'
        f'input(type="imtcp" port="{COLLECTORS["rsyslog"]}" address="127.0.0.1" ruleset="all")\n'
        'template(name="one" type="string" string="%app-name% %msgid% %pri% %structured-data%\\n")\n'
        f'ruleset(name="all") {{ action(type="omfile" file="{written}" template="one") }}\n'
    )
    with sockets(udp(n.srv1)) as server:
        # While there is no collector: these wait in the store.
        before, held = open_mappings(n, server)
        daemon = n.nat.start(
            "rsyslogd", ["rsyslogd", "-n", "-f", configuration, "-i", f"{n.state.directory}/rsyslogd.pid"]
        )
        try:
            expect_soon(lambda: sink(n, "rsyslog")["connected"], f"rsyslog is not reached:\n{daemon.log()}", 40)
            after, more = open_mappings(n, server)
            external, port = lease(n, server)

            def read():
                return written.read_text() if written.exists() else ""

            def seen():
                found = re.findall(
                    r'^NAT APMADD 134 \[napmap SSUBIX="0" SVLAN="\d+" IATYP="IPv4" ISADDR="([\d.]+)" ISPORT="(\d+)" '
                    r'XATYP="IPv4" XSADDR="([\d.]+)" XSPORT="(\d+)" PROTO="17"\]',
                    read(),
                    re.MULTILINE,
                )
                return {(inside, int(one), outside, int(other)) for inside, one, outside, other in found}

            expect_soon(lambda: not (before | after) - seen(), "rsyslog: mappings are missing")
            numbers = re.findall(r'WORKER="(\d+)" SEQUENCE="(\d+)"', read())
            expect_equal(len(set(numbers)), len(numbers), "rsyslog: records without duplicates")
            block = re.search(
                rf'^NAT block_leased 134 \[natrix@32473 EVENT="block_leased" .*ISADDR="{re.escape(IN_BLOCKS)}" '
                r'XSADDR="([\d.]+)" XFPORT="(\d+)" XLPORT="(\d+)" XPORTS="256"\]',
                read(),
                re.MULTILINE,
            )
            expect(block, "rsyslog: no block")
            expect_equal(block[1], external, "rsyslog: address of the block")
            expect(int(block[2]) <= port <= int(block[3]), "rsyslog: ports of the block")
        finally:
            daemon.end()
            for sock in held + more:
                sock.close()


def syslog_ng(n, name, transport):
    """The daemon, which listens on the port of `name`, and what returns the mappings that it has read."""
    written, configuration = (Path(n.state.directory) / f"{name}.{end}" for end in ("txt", "conf"))
    version = n.nat.run([f"{TOOLS}/bin/syslog-ng", "--version"])[1]
    version = re.search(r"Config version: ([\d.]+)", version)
    expect(version, "syslog-ng does not start; run scripts/setup.sh")
    configuration.write_text(
        f"@version: {version[1]}\n"
        f"source all {{ syslog(ip(127.0.0.1) port({COLLECTORS[name]}) {transport}); }};\n"
        'template one { template("$MSGID ${.SDATA.napmap.ISADDR} ${.SDATA.napmap.ISPORT} ${.SDATA.napmap.XSADDR} '
        '${.SDATA.napmap.XSPORT} ${.SDATA.natrix@32473.EVENT}\\n"); };\n'
        f'destination file {{ file("{written}" template(one)); }};\n'
        "log { source(all); destination(file); };\n"
    )
    files = [f"--{one}={n.state.directory}/{name}.{one}" for one in ("persist-file", "pidfile", "control")]
    daemon = n.nat.start(name, [f"{TOOLS}/bin/syslog-ng", "-F", "-f", configuration, *files])

    def seen():
        lines = (line.split() for line in (written.read_text() if written.exists() else "").splitlines())
        added = [line for line in lines if line[:1] == ["APMADD"] and line[-1] == "mapping_created"]
        return {(inside, int(one), outside, int(other)) for _, inside, one, outside, other, _ in added}

    return daemon, seen


@test("collectors")
def syslog_ng_reads_syslog_datagrams(n):
    daemon, seen = syslog_ng(n, "syslog-ng", 'transport("udp")')
    try:
        expect_listening(n, daemon, COLLECTORS["syslog-ng"])
        # Datagrams may get lost on a busy machine; what comes is what was sent.
        for _ in range(3):
            with sockets(udp(n.srv1)) as server:
                opened, held = open_mappings(n, server)
                for sock in held:
                    sock.close()
            if process.wait_until(lambda: not opened - seen(), 20, 0.2):
                break
        expect(not opened - seen(), f"syslog-ng: missing {opened - seen()}, {sink(n, 'syslog-ng')}\n{daemon.log()}")
    finally:
        daemon.end()


@test("collectors")
def syslog_ng_reads_syslog_over_tls(n):
    with sockets(udp(n.srv1)) as server:
        # While there is no collector: these wait in the store.
        before, held = open_mappings(n, server)
        own = f'key-file("{CERTIFICATES}/server.key") cert-file("{CERTIFICATES}/server.pem")'
        daemon, seen = syslog_ng(n, "tls", f'transport("tls") tls({own} peer-verify(optional-untrusted))')
        try:
            expect_soon(lambda: sink(n, "tls")["connected"], f"syslog-ng is not reached:\n{daemon.log()}", 60)
            after, more = open_mappings(n, server)
            expect_soon(lambda: not (before | after) - seen(), "syslog-ng: mappings are missing")
            distrusted = lambda: (one := sink(n, "distrusted")) and one["last_error"] and "certificate" in one["last_error"]  # noqa: E731
            expect_soon(distrusted, f"a collector of a foreign authority: {sink(n, 'distrusted')}")
            expect_equal(sink(n, "distrusted")["connected"], False, "a sink whose collector is not trusted")
        finally:
            daemon.end()
            for sock in held + more:
                sock.close()


@test("collectors")
def openssl_and_ipfixdump_read_ipfix_over_tls(n):
    """No packaged collector reads it, so OpenSSL takes the stream, and ipfixDump reads what was in it."""
    received = Path(n.state.directory) / "tls.ipfix"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    field = re.compile(r"\((8|225|7|227|230)\)\s+\w+ : (\S+)")

    def seen():
        with contextlib.suppress(TimeoutError):
            while part := stream.recv(1 << 16):
                out.write(part)
        out.flush()
        status, text, err = n.nat.run(["ipfixDump", "--data", "--in", received], timeout=60)
        expect_equal((status, err), (0, ""), "ipfixDump")
        records = [dict(field.findall(record)) for record in text.split("--- data record")[1:]]
        return {
            (record["8"], int(record["7"]), record["225"], int(record["227"]))
            for record in records
            if record["230"] == "8"
        }

    with sockets(listener(n.nat, COLLECTORS["ipfix-tls"], "127.0.0.1"), udp(n.srv1)) as (waiting, server):
        # While there is no collector: these wait in the store.
        before, held = open_mappings(n, server)
        waiting.settimeout(60)
        connection, _ = waiting.accept()
        with context.wrap_socket(connection, server_side=True) as stream, received.open("wb") as out:
            stream.settimeout(0.5)
            after, more = open_mappings(n, server)
            expect_soon(lambda: not (before | after) - seen(), "mappings are missing")
        for sock in held + more:
            sock.close()


@test("collectors")
@shows("8158-G3")
def after_an_outage_all_lines_come_in_order(n):
    lines = Lines(n, COLLECTORS["lines"])
    try:
        with sockets(udp(n.srv1)) as server:
            expect_soon(lambda: sink(n, "lines")["connected"], "the collector is not reached")
            first, held = open_mappings(n, server)
            expect_soon(lambda: not first - lines.endpoints(), "lines are missing")
            lines.close()
            during, more = open_mappings(n, server)
            expect_soon(lambda: not sink(n, "lines")["connected"], "the outage is not noticed")
            wanted = first | during
            for _ in range(OUTAGE_ROUNDS - 1):
                opened, ended = open_mappings(n, server)
                wanted |= opened
                for sock in ended:
                    sock.close()
                time.sleep(OUTAGE_PAUSE_SECONDS)
            again, rest = open_mappings(n, server)
            wanted |= again
            lines.open()
            # After a long outage the sink tries again only once in a while.
            expect_soon(lambda: not wanted - lines.endpoints(), "lines are missing after the outage", 90)
            expect_equal(sink(n, "lines")["records_lost"], 0, "lost records")
            for one in sorted(again)[:3]:
                held_by_store(n, one)
            for sock in held + more + rest:
                sock.close()
        # In order but for what was sent again, and no number is missing.
        for worker in {record["worker"] for record in lines.records}:
            numbers = [record["sequence"] for record in lines.records if record["worker"] == worker]
            steps = [(one, other) for one, other in zip(numbers, numbers[1:]) if other > one + 1]
            expect_equal(steps, [], f"worker {worker}: missing numbers")
            expect_equal(set(numbers), set(range(1, max(numbers) + 1)), f"worker {worker}: numbers")
    finally:
        lines.close()


def generated(n, form):
    """A generated store, and an export of all of it in this format."""
    store, exported = Path(n.state.directory) / f"generated-{form}", Path(n.state.directory) / f"all.{form}"
    natrix, whole = n.dut.binary, ("--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z")
    if exported.exists():
        return store, exported
    n.nat.run([natrix, "log", "generate", "--dir", store, "--mappings", "50000", "--seed", "5"], check=True, timeout=60)
    words = [natrix, "log", "export", "--dir", store, "--format", form, "--output", exported, *whole]
    _, out, _ = n.nat.run(words, check=True, timeout=60)
    expect(out.startswith("50000 intervals"), f"natrix log export: {out}")
    return store, exported


@test("collectors")
def ipfixdump_counts_the_records_of_an_export(n):
    _, exported = generated(n, "ipfix")
    status, out, err = n.nat.run(["ipfixDump", "--stats", "--in", exported], timeout=60)
    expect_equal(status, 0, f"ipfixDump (run scripts/setup.sh if it is missing): {err}")
    expect("100000 Data Records, 26 Template Records" in out and not err, f"ipfixDump: {out} {err}")


# DuckDB prints a progress bar for a query that takes over 2 s.
QUIET_DUCKDB = 'import duckdb; duckdb.sql("SET enable_progress_bar = false")'
ENGINES = QUIET_DUCKDB + """
import chdb.session, duckdb, json, sys
files, table, in_clickhouse, in_duckdb, asked = json.loads(sys.stdin.read())
session = chdb.session.Session()
session.query("CREATE DATABASE logs")
session.query(table)
for file in files:
    session.query(f"INSERT INTO logs.nat SELECT * FROM file('{file}', Parquet)")
answers = []
for address, port, first, last in asked:
    def of(query):
        for place, value in (("203.0.113.7", address), ("41233", str(port)), ("AAAA", first), ("BBBB", last)):
            query = query.replace(place, value)
        return query
    rows = [json.loads(line) for line in str(session.query(of(in_clickhouse), "JSONCompactEachRow")).splitlines()]
    clickhouse = [[*row[:4], bool(row[8])] for row in rows]
    duck = duckdb.sql(f"SELECT subscriber, inner_address, internal_port, protocol, proved FROM ({of(in_duckdb)})").fetchall()
    answers.append((clickhouse, duck))
count = int(json.loads(str(session.query("SELECT count() FROM logs.nat", "JSONCompactEachRow")))[0])
print(json.dumps([count, answers]))
"""


def engines(n, files, asked):
    """What the queries of the page for operators find in these files: the rows in all, and ClickHouse's and DuckDB's
    answers to each (address, port, first moment, moment after the last)."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = re.search(r"CREATE TABLE nat .*?;", page, re.DOTALL)[0].replace("TABLE nat", "TABLE logs.nat")
    in_clickhouse = re.search(r"WITH parseDateTime64BestEffort.*?;", page, re.DOTALL)[0].rstrip(";").replace("FROM nat", "FROM logs.nat")
    in_duckdb = re.search(r"WITH asked AS.*?;", page, re.DOTALL)[0].rstrip(";")
    for old, new in (("17", "AAAA"), ("18", "BBBB")):
        in_clickhouse = in_clickhouse.replace(f"'2026-05-03T21:04:{old}+02:00', 6", f"'{new}', 6, 'UTC'")
        in_duckdb = in_duckdb.replace(f"'2026-05-03 21:04:{old}+02'", f"'{new}+00'")
    in_duckdb = in_duckdb.replace("'nat*.parquet'", f"read_parquet({[str(file) for file in files]})")
    expect("AAAA" in in_clickhouse and "AAAA" in in_duckdb, "the page's queries have another form")
    question = json.dumps([[str(file) for file in files], table, in_clickhouse, in_duckdb, asked])
    words = [f"{TOOLS}/python/bin/python", "-c", ENGINES]
    with n.nat.entered():
        done = subprocess.run(words, input=question, capture_output=True, text=True, timeout=1200)
    expect_equal(done.returncode, 0, f"duckdb and chdb (run scripts/setup.sh if they are missing): {done.stderr[-1500:]}")
    return json.loads(done.stdout)


def sql_time(micros):
    return test_log.utc(micros * 1000).replace("T", " ").rstrip("Z")


def found_at(n, where, address, port, at):
    """What `natrix find` says of a moment, as the engines' rows."""
    _, out, _ = n.nat.run([n.dut.binary, "find", f"{address}:{port}", "--at", at, *where, "--json"])
    *found, _ = (json.loads(line) for line in out.splitlines())
    return sorted(([one["subscriber"], one["inner_address"], one["internal_port"], one["protocol"], one["certain"]] for one in found), key=str)


def compare_with_find(n, where, files, moments):
    """Asks the engines and `find` about endpoints at moments (in µs); returns the rows in all, and how many holders
    were proved and only possible."""
    asked = [(address, port, sql_time(at), sql_time(at + 1)) for address, port, at in moments]
    count, answers = engines(n, files, asked)
    proved = possible = 0
    for (address, port, at), answer in zip(moments, answers):
        found = found_at(n, where, address, port, test_log.utc(at * 1000))
        for name, rows in zip(("ClickHouse", "DuckDB"), answer):
            expect_equal(sorted(rows, key=str), found, f"{name}: {address}:{port} at {test_log.utc(at * 1000)}")
        proved += sum(one[4] for one in found)
        possible += sum(not one[4] for one in found)
    return count, proved, possible


@test("collectors")
def duckdb_and_chdb_find_in_parquet_what_find_finds(n):
    store, parquet = generated(n, "parquet")
    script = f"""
{QUIET_DUCKDB}
import json
print(json.dumps(duckdb.sql(f'''
    select external_address, first_port, date_diff('microsecond', timestamptz '1970-01-01 00:00:00+00', since + (until - since) / 2)
    from read_parquet('{parquet}') using sample reservoir(20 rows) repeatable (1)''').fetchall()))
"""
    _, out, _ = n.nat.run([f"{TOOLS}/python/bin/python", "-c", script], check=True, timeout=600)
    count, proved, possible = compare_with_find(n, ("--dir", str(store)), [parquet], json.loads(out))
    expect_equal((count, possible), (50000, 0), "rows, and holders that are only possible")
    expect(proved >= 20, f"{proved} holders")


UNPROVED = QUIET_DUCKDB + """
import sys
old, new = sys.argv[1:]
nothing = "null::timestamptz as known_since, null::timestamptz as known_until"
duckdb.sql(f"copy (select * replace ({nothing}) from read_parquet('{old}')) to '{new}' (format parquet)")
"""


@test("collectors")
def the_queries_of_the_page_prove_nothing_of_rows_without_proof(n):
    store, parquet = generated(n, "parquet")
    unproved = parquet.with_name("unproved.parquet")
    n.nat.run([f"{TOOLS}/python/bin/python", "-c", UNPROVED, str(parquet), str(unproved)], check=True, timeout=600)
    script = f"""
{QUIET_DUCKDB}
import json
print(json.dumps(duckdb.sql(f'''
    select external_address, first_port, date_diff('microsecond', timestamptz '1970-01-01 00:00:00+00', since)
    from read_parquet('{parquet}') using sample reservoir(20 rows) repeatable (1)''').fetchall()))
"""
    _, out, _ = n.nat.run([f"{TOOLS}/python/bin/python", "-c", script], check=True, timeout=600)
    # The whole time around the beginning of each.
    asked = [(address, port, sql_time(at - 500_000), sql_time(at + 500_000)) for address, port, at in json.loads(out)]
    for file, is_proved in ((parquet, True), (unproved, False)):
        _, answers = engines(n, [file], asked)
        for question, (clickhouse, duck) in zip(asked, answers):
            expect(clickhouse and sorted(clickhouse, key=str) == sorted(duck, key=str), f"{question}: {clickhouse}, {duck}")
            expect_equal({row[4] for row in duck}, {is_proved}, f"{question} in {file.name}: proved")


@test("daily_exports")
def daily_exports_are_as_sure_as_find_after_a_kill(n):
    def export(name, begin):
        path = Path(n.state.directory) / f"nat-{name}.parquet"
        words = ("--from", test_log.utc(begin * 1000), "--to", test_log.utc(time.time_ns()), "--output", path)
        status, out, err = n.dut.command("log", "export", "--format", "parquet", *words)
        expect_equal(status, 0, f"natrix log export: {out} {err}")
        return path

    def now():
        return time.time_ns() // 1000

    def send(day):
        for subscriber in range(8):
            test_log.send(n, f"100.64.0.{30 + subscriber}", 4000 + day)

    @contextlib.contextmanager
    def in_use(day):
        """Keeps the mappings of this day open until the end of the block, which is late on a busy machine."""
        stop = threading.Event()

        def refresh():
            while not stop.wait(0.5):
                send(day)

        thread = threading.Thread(target=refresh)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    begin, moments, files = now(), [], []
    with sockets(udp(n.srv1, 7017)) as server:
        server.setsockopt(socket.SOL_SOCKET, test_log.SO_TIMESTAMPNS, 1)
        test_log.await_forwarding(n, server)
        for day in range(3):
            # Datagrams of the day before.
            test_log.seen_by(server)
            send(day)
            endpoints = [external for _, external, _ in test_log.seen_by(server)]
            with in_use(day):
                time.sleep(2.2)
                # Those of this day are open in its export; those of the day before have ended.
                files.append(export(day, begin))
                if day == 2:
                    n.dut.daemon.process.kill()
                    n.dut.daemon.process.wait()
                    killed = now()
            time.sleep(5 if day < 2 else 0)
            moments += [(address, port) for address, port in endpoints]
        test_log.seen_by(server)
        time.sleep(2)
        n.dut.restart()
        test_log.await_forwarding(n, server)
        time.sleep(2.5)
    await_store(n)
    files.append(export("after", begin))
    end = now() - 1_500_000
    dice = random.Random(17)
    asked = [(*endpoint, dice.randrange(begin, end)) for endpoint in moments for _ in range(6)]
    # Between the kill and the start nobody is sure.
    asked += [(*endpoint, killed + 1_000_000) for endpoint in moments[-8:]]
    _, proved, possible = compare_with_find(n, ("--socket", n.dut.socket), files, asked)
    expect(proved >= 10 and possible >= 8, f"{proved} proved, {possible} possible")
    # The old files alone: what was open in them is proved no longer than they reach.
    late = [(*endpoint, end) for endpoint in moments]
    _, answers = engines(n, files[:1], [(address, port, sql_time(at), sql_time(at + 1)) for address, port, at in late])
    for clickhouse, duck in answers:
        expect(not any(row[4] for row in clickhouse + duck), f"proved after the end of an export: {clickhouse} {duck}")
