"""The commands for a new machine, and one instance seen by every way of looking."""

import json
import os
import pty
import re
import subprocess
import time
import urllib.request
from base64 import b64encode

from kit import *
from netlab import process
from netlab.natrix import DRIVERS
from netlab.natrix import Natrix
from netlab.topology import Network
from test_api import ask
from test_api import objects
from test_api import traffic


def on_a_terminal(n, words, answers):
    """Runs a command of natrix on a terminal and types; returns (status, what the terminal shows)."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [str(word) for word in n.nat.argv([n.dut.binary, *words])], stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True, preexec_fn=process.die_with_parent,
    )  # fmt: skip
    os.close(follower)
    os.write(leader, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(leader)
    return child.wait(120), shown.decode(errors="replace")


@test("api")
def init_asks_three_questions_and_its_file_passes(n):
    path = n.state.directory / "first.toml"
    # The kernel has no addresses on the ports of a running instance, so they are given.
    known = ["--inside-address=100.64.0.1/24", "--outside-address=198.51.100.2/24", "--gateway=198.51.100.1", "-o", path]
    status, shown = on_a_terminal(n, ["init", *known], ["inside", "outside", "203.0.113.0/29, 203.0.113.9"])
    expect_equal(status, 0, f"natrix init on a terminal: {shown}")
    expect_equal(len(re.findall(r"(?:\]|\)|Internet): ", shown)), 3, f"questions: {shown}")
    status, out, err = n.nat.run([n.dut.binary, "check", "-c", path])
    expect(status == 0 and "9 addresses" in out, f"check of what init wrote: {out}{err}")
    expect_equal(oct(path.stat().st_mode & 0o777), "0o640", "permissions of the file")
    status, _, err = n.nat.run([n.dut.binary, "init", *known, "--inside=inside", "--outside=outside", "--pool=203.0.113.1"])
    expect(status == 1 and "exists already" in err, f"init over a file: {status} {err}")
    words = ["--inside=inside", "--outside=outside", "--pool=203.0.113.1", "--force"]
    expect_equal(n.nat.run([n.dut.binary, "init", *known, *words])[0], 0, "init with flags")
    status, _, err = n.nat.run([n.dut.binary, "init", *known[:-1], n.state.directory / "other.toml"])
    expect(status == 1 and "--inside" in err, f"init without flags and without a terminal: {status} {err}")


@test("api")
def doctor_names_what_is_missing_and_mends(n):
    status, out, err = n.nat.run([n.dut.binary, "doctor", "-c", n.dut.configuration, "--json"])
    found = {one["check"]: one for one in map(json.loads, out.splitlines())}
    expect_equal((status, err), (0, ""), f"doctor beside a running instance: {out}")
    for check in ("privileges", "hugepages", "locked memory", "clock", "time", "CPUs", "port inside", "port outside"):
        expect(check in found, f"no check of {check}: {sorted(found)}")
    expect(all(one["remedy"] for one in found.values() if one["state"] != "ok"), f"no remedy: {found}")
    if n.dut.driver == "af_xdp":
        expect("tx off" in found["port inside: offloads"]["remedy"], f"offloads: {found}")
    text = n.dut.configuration.read_text().replace("iface=inside", "iface=elsewhere")
    path = n.state.directory / "elsewhere.toml"
    path.write_text(text)
    status, out, _ = n.nat.run([n.dut.binary, "doctor", "-c", path])
    expect(status == 1 or n.dut.driver == "tap", f"doctor with an interface that is not there: {out}")


def beside(n):
    """A configuration with the interfaces of the instance, and with another control socket and audit log."""
    path = n.state.directory / "beside.toml"
    text = n.dut.configuration.read_text()
    path.write_text(text.replace(f"{n.dut.socket.parent}/control.", f"{n.dut.socket.parent}/beside."))
    return path


@test("packet_sockets", "tap_devices")
def a_second_instance_on_an_interface_is_refused(n):
    path, device = beside(n), DRIVERS[n.dut.driver][0].partition("iface=")[2]
    pid = n.dut.show("status")[0]["pid"]
    status, out, err = n.nat.run(["timeout", "30", n.dut.binary, "run", "-c", path], check=False)
    wanted = f'error: port "inside": another natrix already runs on {device} (pid {pid}); stop it, or give this port another device\n'
    expect_equal((status, out, err), (1, "", wanted), "a second instance on the same interfaces")
    expect(n.dut.running(), "the first instance has ended")
    status, out, _ = n.nat.run([n.dut.binary, "doctor", "-c", path, "--json"])
    found = {one["check"]: one for one in map(json.loads, out.splitlines())}
    expect(status == 1 and "port inside: instance" in found, f"doctor beside another instance: {found}")
    expect(f"(pid {pid})" in found["port inside: instance"]["seen"], f"doctor does not name the process: {found}")
    _, out, _ = n.nat.run([n.dut.binary, "doctor", "-c", n.dut.configuration, "--json"])
    expect("instance" not in out, f"doctor takes the instance for another one: {out}")


HOLDER = """
import socket, sys, time
name = socket.socket(socket.AF_UNIX)
name.bind("\\0natrix/device/" + sys.argv[1])
name.listen()
print("held", flush=True)
time.sleep(600)
"""


@test("packet_sockets")
def a_name_that_another_user_took_stops_no_instance(n):
    expect_equal(n.dut.stop(), None, "end of the instance")
    device = DRIVERS[n.dut.driver][0].partition("iface=")[2]
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    holder = n.nat.start("holder", [*as_user, "python3", "-c", HOLDER, device])
    try:
        expect(process.wait_until(lambda: "held" in holder.log(), 30, 0.05), f"the name is not taken: {holder.log()}")
        n.dut.restart()
        warning = f'port "inside": {device} is not protected from a second instance'
        expect(warning in n.dut.daemon.log(), f"no warning: {n.dut.daemon.log()}")
        # The other interface is still protected.
        status, _, err = n.nat.run(["timeout", "30", n.dut.binary, "run", "-c", beside(n)], check=False)
        expect(status == 1 and 'port "outside": another natrix' in err, f"a second instance: {status} {err}")
        expect_equal(n.dut.stop(), None, "end of the instance without protection")
    finally:
        holder.end()
    n.dut.restart()
    expect("not protected" not in n.dut.daemon.log(), f"the name is free again: {n.dut.daemon.log()}")


@test("api")
def doctor_knows_virtual_cables_from_what_stands_on_an_interface(n):
    """The other end of a cable may have the same index in its namespace; a macvlan may be apart from its interface."""
    here, there = n.nat.full_name, n.sub1.full_name
    ip = lambda *words: process.run(["ip", *map(str, words)])  # noqa: E731
    # Far from the indexes of others.
    ip("-n", here, "link", "add", "dcsame", "index", 7001, "type", "veth", "peer", "name", "dcfar", "index", 7001, "netns", there)
    ip("-n", here, "link", "add", "dcnear", "index", 7003, "type", "veth", "peer", "name", "dcpeer", "index", 7004)
    ip("-n", there, "link", "add", "dcmac", "link", "dcfar", "index", 7002, "type", "macvlan")
    ip("-n", there, "link", "set", "dcmac", "netns", here)
    path = n.state.directory / "doctor.toml"
    try:
        found = {}
        for name in ("dcsame", "dcnear", "dcmac"):
            text = "".join(
                f'[[interface]]\nname = "{side}"\nrealm = "{side}"\ndriver = "net_af_packet{number},iface={device}"\naddresses = ["{address}"]\n'
                for number, (side, device, address) in enumerate(
                    [("inside", name, "100.64.0.1/24"), ("outside", "dcpeer", "198.51.100.2/24")]
                )
            )
            text += '[[route]]\nprefix = "0.0.0.0/0"\nvia = "198.51.100.1"\n'
            text += '[[pool]]\nname = "main"\naddresses = ["203.0.113.1"]\nsubscribers = ["100.64.0.0/24"]\n'
            path.write_text(text)
            _, out, err = n.nat.run([n.dut.binary, "doctor", "-c", path, "--json"])
            checks = {one["check"]: one for one in map(json.loads, out.splitlines())}
            expect("port inside" in checks, f"{name}: {out}{err}")
            found[name] = checks.get("port inside: offloads")
    finally:
        for name in ("dcsame", "dcnear", "dcmac"):
            process.run(["ip", "-n", here, "link", "del", name], check=False)
    same, near = found["dcsame"], found["dcnear"]
    expect(same and same["state"] == "warning" and "interface 7001 (" in same["remedy"], f"a cable with equal indexes: {same}")
    expect(near and "dcpeer" in near["seen"], f"a cable whose other end is here: {near}")
    expect_equal(found["dcmac"], None, "a macvlan of an interface in another namespace")


@test("api")
def doctor_finds_a_port_that_loses_or_leaks_packets(n):
    """Its MTU is too small; the kernel answers on it, and forwards. What doctor prints mends each."""
    here = n.nat.full_name
    process.run(["ip", "-n", here, "link", "add", "drport", "type", "veth", "peer", "name", "drpeer"])
    path = n.state.directory / "port.toml"
    path.write_text(
        "".join(
            f'[[interface]]\nname = "{side}"\nrealm = "{side}"\ndriver = "net_af_packet{number},iface={device}"\naddresses = ["{address}"]\n'
            for number, (side, device, address) in enumerate([("inside", "drport", "100.64.0.1/24"), ("outside", "drpeer", "198.51.100.2/24")])
        )
        + '[[route]]\nprefix = "0.0.0.0/0"\nvia = "198.51.100.1"\n'
        + '[[pool]]\nname = "main"\naddresses = ["203.0.113.1"]\nsubscribers = ["100.64.0.0/24"]\n'
    )

    def found(check):
        _, out, err = n.nat.run([n.dut.binary, "doctor", "-c", path, "--json"])
        checks = {one["check"]: one for one in map(json.loads, out.splitlines())}
        expect("port inside" in checks, f"{out}{err}")
        return checks.get(check)

    def mend(one):
        expect_equal(n.nat.run(["sh", "-c", one["remedy"].partition("; or ")[0]])[0], 0, f"remedy: {one}")

    try:
        expect_equal((found("port inside: mtu"), found("port inside: kernel")), (None, None), "nothing is wrong")
        n.nat.run(["ip", "link", "set", "drport", "mtu", "1300"])
        narrow = found("port inside: mtu")
        expect(narrow and narrow["state"] == "error" and "drport has the MTU 1300" in narrow["seen"], f"{narrow}")
        mend(narrow)
        expect_equal(found("port inside: mtu"), None, "the MTU is mended")
        n.nat.run(["ip", "address", "add", "192.168.7.1/24", "dev", "drport"])
        n.nat.run(["sysctl", "-w", "net.ipv4.conf.drport.forwarding=0"])
        answers = found("port inside: kernel")
        expect(answers and answers["state"] == "warning" and "192.168.7.1" in answers["seen"], f"{answers}")
        n.nat.run(["sysctl", "-w", "net.ipv4.conf.drport.forwarding=1"])
        forwards = found("port inside: kernel")
        expect(forwards and forwards["state"] == "error" and "untranslated" in forwards["seen"], f"{forwards}")
        mend(forwards)
        expect_equal(found("port inside: kernel"), None, "the address is gone")
        forwarding = n.nat.run(["cat", "/proc/sys/net/ipv4/conf/drport/forwarding"])[1].strip()
        expect_equal(forwarding, "0", "and so is forwarding")
    finally:
        process.run(["ip", "-n", here, "link", "del", "drport"], check=False)


@test("api")
def doctor_tries_the_disk_of_the_log(n):
    """A store on a disk that is filled to the last byte, and on one that is read-only."""
    place = n.state.directory / "disk"
    place.mkdir()
    path = n.state.directory / "disk.toml"
    text = n.dut.configuration.read_text().split("[log", 1)[0]
    path.write_text(f'{text}\n[log.store]\npath = "{place}/log"\n')
    doctor = f"{n.dut.binary} doctor -c {path} --json"
    # The mount ends with the process that sees it.
    script = f"mount -t tmpfs -o size=SIZE none {place}; mkdir {place}/log; WEAR; {doctor}"
    cases = [
        ("64k", f"dd if=/dev/zero of={place}/full bs=1k", "error", "cannot be written: No space left"),
        ("2g", f"mount -o remount,ro {place}", "error", "cannot be written: Read-only file system"),
        ("100m", "true", "warning", " MiB are free on its disk"),
        ("2g", "true", "ok", "store"),
    ]
    for size, wear, state, seen in cases:
        words = script.replace("SIZE", size).replace("WEAR", wear)
        _, out, err = n.nat.run(["unshare", "-m", "sh", "-c", words])
        log = next((one for one in map(json.loads, out.splitlines()) if one["check"] == "event log"), None)
        expect(log and log["state"] == state and seen in log["seen"], f"{wear}: {log} {out}{err}")
        expect((log["remedy"] == "") == (state == "ok"), f"{wear}: {log}")


@test("api")
def the_demo_shows_the_users_that_may_search_its_page(n):
    with Network("nxlook", Natrix(n.dut.binary, driver="tap", has_page=True)) as demo:
        demo.start_dut()
        lines = demo.dut.how_to_look()
        for role, title in (("audit", b'id="find"'), ("operate", b'id="change"')):
            (line,) = [line for line in lines if f"(role {role})" in line]
            name, password = re.search(r"log in as (\S+) with the password (\S+)", line).groups()
            login = {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}
            with urllib.request.urlopen(urllib.request.Request(demo.dut.page.address, headers=login), timeout=120) as answer:
                expect(title in answer.read(), f"the page of {name} lacks what {role} may do")
        (line,) = [line for line in lines if "snmpbulkwalk" in line]
        walk = line.split("     ")[0].split()
        seen = lambda: ".1.3.6.1.2.1.234" in process.run([*walk[:4], "env", f"SNMP_PERSISTENT_DIR={demo.state.directory}/snmp/client", "MIBS=", *walk[4:], "-On"], check=False)[1]  # noqa: E731
        expect(process.wait_until(seen, 20, 0.5), f"nothing is seen by {line}")


def sample(text, name):
    """The sum of a metric over its labels."""
    values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    expect(values, f"no metric {name}")
    return sum(map(float, values))


@test("api_quiet")
def command_api_and_metrics_show_the_same(n):
    traffic(n, 40)
    time.sleep(1.5)
    patience = process.Patience(60)
    while True:
        # Nothing sends now. Should a timer expire between the three, they are asked again.
        before = n.dut.show("status")[0]
        _, _, status = ask(n, "/api/v1/status")
        metrics = ask(n, "/metrics")[2].decode()
        pools, drops = objects(n, "/api/v1/pools", "operate"), objects(n, "/api/v1/drops")
        by_command = {pool["name"]: pool for pool in n.dut.show("pools")}
        drops_by_command = {drop["reason"]: drop for drop in n.dut.show("drops", "--all")}
        after = n.dut.show("status")[0]
        still = ("mappings", "sessions", "subscribers", "packets_received", "held_ports")
        if all(before[name] == after[name] for name in still):
            break
        expect(not patience.is_over(), f"the instance is never still: {before} {after}")
    for field, metric in {
        "mappings": "natrix_mappings", "sessions": "natrix_sessions", "subscribers": "natrix_subscribers",
        "mappings_max": "natrix_mappings_max", "packets_received": "natrix_packets_received_total",
        "packets_forwarded": "natrix_packets_forwarded_total", "packets_dropped": "natrix_packets_dropped_total",
        "bytes_forwarded": "natrix_forwarded_bytes_total", "mappings_created": "natrix_mappings_created_total",
        "sessions_created": "natrix_sessions_created_total", "held_ports": "natrix_held_ports",
    }.items():  # fmt: skip
        expect_equal((status[field], sample(metrics, metric)), (before[field], before[field]), field)
    expect_equal(pools, list(by_command.values()), "pools")
    viewed = [{**pool, "subscriber_prefixes": []} for pool in pools]
    expect_equal(objects(n, "/api/v1/pools"), viewed, "pools for the role view: as before, without prefixes of subscribers")
    expect_equal(drops, list(drops_by_command.values()), "drops")
    for name, pool in by_command.items():
        for protocol, ports in pool["ports_used"].items():
            metric = rf'natrix_pool_ports_used\{{pool="{name}",protocol="{protocol}"\}}'
            expect_equal(float(re.search(rf"^{metric} (\S+)$", metrics, re.MULTILINE)[1]), ports, f"ports of {name}")
    expect_equal(sample(metrics, "natrix_drops_total"), sum(drop["packets"] for drop in drops), "sum of the drops")
    expect_equal(sample(metrics, "natrix_drops_total"), before["packets_dropped"], "drops of the status")
    rounds = lambda status: sum(sum(worker["rounds_by_time"]) for worker in status["workers"])  # noqa: E731
    counted = sample(metrics, "natrix_worker_round_seconds_count")
    expect(0 < rounds(status) <= counted <= rounds(after), f"rounds {rounds(status)}, {counted}, {rounds(after)}")
    counters = {one["name"]: one["value"] for one in objects(n, "/api/v1/counters")}
    expect_equal(counters["blocks_leased"], sample(metrics, "natrix_blocks_leased_total"), "leased blocks")
