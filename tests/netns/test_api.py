"""The API as clients meet it: roles, limits, changes, lookups, metrics, and what it must refuse."""

import collections
import contextlib
import http.client
import json
import re
import socket
import statistics
import subprocess
import threading
import time
from base64 import b64encode
from datetime import datetime
from datetime import timezone
from pathlib import Path

import setups
from kit import *
from netlab import process
from netlab.topology import SRV1
from setups import API_PORT

TOKENS = {role: token for _, role, token, _ in setups.API_USERS}
# The server allows 200 requests at once from one address, and 100 a second.
AT_ONCE, A_SECOND = 200, 100
# After so many seconds an address that asked too much may ask AT_ONCE again.
PAUSE = 2.5


# Addresses of further clients on the machine of the NAT. All of 127.0.0.0/8 counts as one client.
CLIENT_SUBNET = "198.18.255"


def further_clients(n, count):
    """As many addresses to send from."""
    with n.nat.entered():
        subprocess.run(["ip", "route", "replace", "local", f"{CLIENT_SUBNET}.0/24", "dev", "lo"], check=True)
    return [f"{CLIENT_SUBNET}.{last + 1}" for last in range(count)]


class Pace:
    """Lets a source ask no more than the server allows it, with a margin, however fast both are."""

    def __init__(self):
        self.left, self.earned_at = AT_ONCE * 0.7, time.monotonic()

    def wait(self):
        while True:
            now = time.monotonic()
            self.left = min(self.left + (now - self.earned_at) * A_SECOND * 0.9, AT_ONCE * 0.7)
            self.earned_at = now
            if self.left >= 1:
                self.left -= 1
                return
            time.sleep(1 / A_SECOND)


PACES = collections.defaultdict(Pace)


class Connection(http.client.HTTPConnection):
    """A connection to the API from the machine of the NAT itself.

    It keeps to the server's limit, unless `unbounded`.
    """

    def __init__(self, n, source="127.0.0.1", unbounded=False):
        super().__init__("127.0.0.1", API_PORT, timeout=120)
        self.host_of_nat, self.source, self.unbounded = n.nat, source, unbounded
        # All of 127.0.0.0/8 is one client to the server.
        self.client = "127.0.0.0/8" if source.startswith("127.") else source

    def request(self, *args, **kwargs):
        if not self.unbounded:
            PACES[self.client].wait()
        super().request(*args, **kwargs)

    def connect(self):
        with self.host_of_nat.entered():
            self.sock = socket.create_connection(("127.0.0.1", API_PORT), timeout=120, source_address=(self.source, 0))


def ask(n, path, role="view", method="GET", body=None, headers=None):
    """(status, headers, body): JSON where it is JSON."""
    connection = Connection(n)
    login = {"Authorization": f"Bearer {TOKENS[role]}"} if role else {}
    with contextlib.closing(connection):
        connection.request(method, path, body, {**login, **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        if "json" in answer.headers.get("content-type", "") and "ndjson" not in answer.headers["content-type"]:
            text = json.loads(text)
        return answer.status, answer.headers, text


def objects(n, path, role="view"):
    status, _, body = ask(n, path, role)
    expect_equal(status, 200, path)
    return body["objects"]


def new_mapping(n):
    """A port of sub1, and the mapping that a datagram from it has made."""
    (source,) = traffic(n, 1)
    mappings = objects(n, "/api/v1/mappings?limit=10000", "audit")
    return source, next(one for one in mappings if one["internal"].endswith(f":{source}"))


def traffic(n, count):
    """Creates `count` mappings of sub1; returns their ports once the mappings exist."""

    def is_refused(sock):
        # The kernel of srv1 limits its ICMP errors.
        if pending_error(sock, 0.5):
            return True
        with contextlib.suppress(OSError):
            sock.send(b"x")
        return False

    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(sockets(udp(n.sub1))) for _ in range(count)]
        for sock in socks:
            sock.connect((SRV1, 9))
            sock.send(b"x")
        for sock in socks:
            expect(process.wait_until(lambda: is_refused(sock), 20, 0), "no ICMP error from srv1")  # noqa: B023
        return [sock.getsockname()[1] for sock in socks]


def await_store(n):
    """Waits until the log's store has all records up to now."""
    at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    last = {}

    def is_complete():
        _, out, err = n.dut.command("find", "203.0.113.1:9", "--at", at, "--json")
        expect(out, f"natrix find: {err}")
        last.update(json.loads(out.splitlines()[-1]))
        return last["complete"]

    expect(process.wait_until(is_complete, 30, 0.2), f"the records of {at} are not complete: {last}")


@test("api")
def the_api_and_the_command_show_the_same(n):
    traffic(n, 30)
    by_command = n.dut.show("mappings", "--all")
    listed = objects(n, "/api/v1/mappings?limit=10000", "audit")
    key = ("protocol", "internal", "external", "pool")
    expect(len(by_command) >= 30, f"{len(by_command)} mappings")
    same = lambda found: sorted(tuple(one[name] for name in key) for one in found)  # noqa: E731
    expect_equal(same(listed), same(by_command), "mappings")
    _, headers, lines = ask(n, "/api/v1/mappings?stream=true", "audit")
    expect_equal(headers["content-type"], "application/x-ndjson", "content type of a stream")
    expect_equal(same(map(json.loads, lines.splitlines())), same(by_command), "streamed mappings")
    paged, cursor = [], ""
    while cursor is not None:
        _, _, page = ask(n, f"/api/v1/mappings?limit=7{cursor and '&cursor=' + cursor}", "audit")
        expect(len(page["objects"]) <= 7, "a page has more than its limit")
        paged += page["objects"]
        cursor = page["cursor"]
    expect_equal(same(paged), same(by_command), "mappings page by page")
    only = objects(n, "/api/v1/mappings?protocol=tcp", "audit")
    expect(all(one["protocol"] == "tcp" for one in only), "a filter lets others through")
    status = n.dut.show("status")[0]
    _, _, shown = ask(n, "/api/v1/status")
    expect_equal((shown["pid"], shown["version"]), (status["pid"], status["version"]), "status")
    for role, names in [
        ("view", ("interfaces", "pools", "pools/addresses", "drops", "counters", "algs")),
        ("operate", ("rules", "routes")),
        ("audit", ("subscribers", "neighbours", "sessions", "grants", "expectations")),
    ]:
        for name in names:
            objects(n, f"/api/v1/{name}", role)


# Options by their other names in the API.
OTHER_NAMES = {"why --segment": "tcp_segment", "why --length": "length_bytes", "trace --dropped": "dropped_only"}
# Options that are no parameters: what is sent as a body, has a path of its own, or is in every
# answer.
NO_PARAMETERS = {
    "plan --config", "reload --config", "log verify --head", "reload --rollback", "show pools --addresses",
    "show pools --pool", "show pools --external", "trace --steps", "show counters --name",
}  # fmt: skip
# Short lists come whole.
WHOLE = {"show status", "show interfaces", "show pools", "show counters", "show drops"}
# How the command line answers, and how it reaches the instance. A stream is the whole list.
OF_THE_COMMAND_LINE = {"socket", "json", "help", "all"}


def helped(n, *words):
    """What `natrix WORDS --help` lists: commands and options."""
    text = subprocess.run([n.dut.binary, *words, "--help"], check=True, capture_output=True, text=True).stdout
    commands = re.search(r"^Commands:\n(.*?)\n\n", text, re.S | re.M)
    commands = re.findall(r"^  (\w+)  ", commands[1], re.M) if commands else []
    return commands, set(re.findall(r"^ +(?:-\w, )?--([a-z0-9-]+)", text, re.M)) - OF_THE_COMMAND_LINE


@test("api")
def the_api_has_every_command_or_says_why_not(n):
    document = ask(n, "/api/v1/openapi.json")[2]["paths"]
    text = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
    table = re.search(r"cannot, on purpose:\n\n(.*?)\n\n", text, re.S)[1]
    left_out = re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in table.splitlines()))
    commands, _ = helped(n)
    expect(len(commands) > 15, f"commands: {commands}")
    pairs = [(name, f"/api/v1/{name}") for name in commands if name not in ("show", "log")]
    pairs += [(f"show {name}", f"/api/v1/{name}") for name in helped(n, "show")[0]]
    pairs += [(f"log {name}", f"/api/v1/log/{name}") for name in helped(n, "log")[0]]
    missing = [name for name, path in pairs if path not in document and name not in left_out]
    expect_equal(missing, [], "commands that are neither in the API nor in the table of docs/api.md")
    lacking = []
    for name, path in pairs:
        if path not in document or name in left_out:
            continue
        operation = document[path].get("get") or document[path]["post"]
        known = {one["name"] for one in operation.get("parameters", [])}
        for option in sorted(helped(n, *name.split())[1] - ({"limit", "cursor"} if name in WHOLE else set())):
            other = OTHER_NAMES.get(f"{name} --{option}", option.replace("-", "_"))
            if other not in known and not {f"--{option}", f"{name} --{option}"} & (NO_PARAMETERS | set(left_out)):
                lacking.append(f"{name} --{option}")
    expect_equal(lacking, [], "options that are neither in the API nor in the table")


@test("api")
def a_text_with_many_faults_names_the_first_and_counts_all(n):
    text = "".join(f"unknown{number} = 1\n" for number in range(50_000))

    def answered():
        status, _, answer = ask(n, "/api/v1/plan", "operate", "POST", text)
        # The API waits 60 s for the instance, which a busy machine may exceed.
        return status != 504 and (status, answer)

    found = process.wait_until(answered, 60, 0)
    expect(found, "the instance does not answer in time")
    status, refused = found
    expect_equal((status, len(refused["faults"])), (422, 1000), "faults of a text that are named")
    expect_equal(refused["error"]["problem"], "has faults; the first 1000 are listed", "what is wrong with the text")
    expect(int(refused["error"]["seen"]) >= 50_000, f"counted: {refused['error']}")


# The role of every path of the document; a query that is needed for an answer follows it.
NAT = "/restconf/data/ietf-nat:nat"
ROLES = {
    "view": [
        "/", "/page.js", "/api/v1/openapi.json", "/api/v1/status", "/api/v1/live", "/api/v1/interfaces", "/api/v1/pools",
        "/api/v1/pools/addresses", "/api/v1/algs", "/api/v1/counters", "/api/v1/drops", "/api/v1/log/stat", "/metrics", NAT,
        f"{NAT}/instances/instance=1/statistics", "/restconf/streams/ietf-nat?high-threshold=80",
    ],
    "operate": [
        "/api/v1/rules", "/api/v1/routes", "/api/v1/plan", "/api/v1/reload", "/api/v1/rollback", "/api/v1/drain",
    ],
    "audit": [
        "/api/v1/subscribers", "/api/v1/mappings", "/api/v1/sessions", "/api/v1/grants", "/api/v1/expectations", "/api/v1/neighbours",
        "/api/v1/find?address=203.0.113.1", "/api/v1/audit", "/api/v1/trace?count=1", f"{NAT}/instances/instance=1/mapping-table",
        "/api/v1/why?protocol=udp&source=100.64.0.10:1&destination=192.0.2.10:2", "/api/v1/plan?details=1",
        "/api/v1/log/head", "/api/v1/log/verify", "/api/v1/log/export?from=1%20h%20ago&to=now",
    ],
}  # fmt: skip


@test("api")
def roles_bound_what_a_user_may_do(n):
    _, _, document = ask(n, "/api/v1/openapi.json")
    decided = {path.split("?")[0] for paths in ROLES.values() for path in paths}
    expect_equal(set(document["paths"]) - decided, set(), "paths that no role is decided for")
    for needed, paths in ROLES.items():
        for path in paths:
            method = "POST" if path.split("?")[0].rsplit("/", 1)[-1] in ("plan", "reload", "rollback", "drain", "verify") else "GET"
            expect_equal(ask(n, path, None, method)[0], 401, f"{path} without a login")
            for role in ("view", "operate", "audit"):
                if role != needed and needed != "view":
                    expect_equal(ask(n, path, role, method)[0], 403, f"{path} as {role}")
    # Nothing that only view and operate may read has a subscriber's address in it.
    traffic(n, 3)
    for role in ("view", "operate"):
        for path in [*ROLES["view"], *(["/api/v1/rules"] if role == "operate" else [])]:
            if path not in ("/api/v1/live", "/restconf/streams/ietf-nat?high-threshold=80"):
                expect("100.64.0.10" not in str(ask(n, path, role)[2]), f"{path} as {role} names a subscriber")


@test("api")
def lookups_and_changes_are_in_the_audit_log(n):
    source, mapping = new_mapping(n)
    address, port = mapping["external"].split(":")
    before = len(objects(n, "/api/v1/audit?limit=10000", "audit"))
    found = objects(n, f"/api/v1/find?address={address}&port={port}&protocol=udp&case=AZ-17", "audit")
    expect_equal(f"{found[0]['mapping']['internal']}", mapping["internal"], "holder")
    text = n.dut.configuration.read_text()
    status, _, planned = ask(n, "/api/v1/plan", "operate", "POST", text)
    expect_equal((status, planned["changes"]), (200, []), "plan without a difference")
    changed = text + "\n[timeouts]\nicmp = \"2 min\"\n"
    status, _, done = ask(n, "/api/v1/reload", "operate", "POST", changed)
    expect_equal((status, [one["object"] for one in done["changes"]]), (200, ["timeouts.icmp"]), "reload")
    expect_equal(n.dut.show("status")[0]["timeouts"]["icmp_us"], 120_000_000, "timer after the reload")
    status, _, refused = ask(n, "/api/v1/reload", "operate", "POST", "nonsense = 1")
    expect_equal(status, 422, "a configuration with faults")
    expect(refused["faults"] and refused["error"]["problem"] == "has faults", str(refused))
    expect_equal(ask(n, "/api/v1/rollback", "operate", "POST")[0], 200, "rollback")
    # Without routes of the kernel there is nothing to withdraw.
    status, _, refused = ask(n, "/api/v1/drain", "operate", "POST")
    expect_equal((status, refused["error"]["object"]), (422, "drain"), "a drain")
    expect_equal(n.dut.show("status")[0]["timeouts"]["icmp_us"], 60_000_000, "timer after the rollback")
    records = objects(n, "/api/v1/audit?limit=10000", "audit")
    new = [(one["who"], one["action"], one["result"].split(":")[0], one["case"]) for one in records[: len(records) - before]]
    changes = [("drain", "failed"), ("rollback", "done"), ("reload", "failed"), ("reload", "done")]
    # A plan says how many subscribers a change of one prefix concerns.
    wanted = [("noc", *one, None) for one in [*changes, ("plan", "answered")]] + [("law", "find", "found 1", "AZ-17")]
    expect_equal(new, wanted, "audit log")
    _, out, _ = n.dut.command("audit", "--json", "--limit", "6")
    listed = [json.loads(line) for line in out.splitlines()]
    expect_equal(listed, records[:6], "natrix audit")
    expect(all(one["began"] < one["time"] and one["id"] for one in listed[:4]), f"when they began: {listed}")
    _, table, _ = n.dut.command("audit", "--limit", "6")
    expect_equal(len(table.splitlines()), 1 + 6, f"lines of natrix audit: {table}")
    # Each change is recorded before it is made, too.
    written = [json.loads(line) for line in n.dut.socket.with_suffix(".audit.jsonl").read_text().splitlines()[-8:]]
    pairs = [(one["id"], one["result"].split(":")[0]) for one in written]
    expect_equal(pairs, [(one["id"], result) for one in reversed(listed[:4]) for result in ("started", one["result"].split(":")[0])], "the file")


@test("api")
def a_rollback_takes_back_what_a_change_saved(n):
    path = n.dut.configuration
    text = path.read_text()
    changed, by_hand = text + '\n[timeouts]\nicmp = "3 min"\n', text + '\n[timeouts]\nicmp = "4 min"\n'
    timer = lambda: n.dut.show("status")[0]["timeouts"]["icmp_us"] // 60_000_000  # noqa: E731

    def change(command, body=None):
        status, _, answer = ask(n, f"/api/v1/{command}", "operate", "POST", body)
        expect_equal(status, 200, f"{command}: {answer}")
        return answer["reloaded"].get("not_saved")

    try:
        expect_equal((change("reload?save=true", changed), timer(), path.read_text()), (None, 3, changed), "saved")
        expect_equal((change("rollback"), timer(), path.read_text()), (None, 1, text), "taken back")
        expect_equal((change("rollback"), timer(), path.read_text()), (None, 3, changed), "and made again")
        path.write_text(by_hand)
        why = change("rollback")
        expect_equal((timer(), path.read_text()), (1, by_hand), "a file that somebody has changed stays")
        expect(why.endswith("has changed since"), f"why: {why}")
        # A rollback of what is in the file: a restart would bring it back.
        expect_equal(n.dut.command("reload", "-c", path)[0], 0, "natrix reload")
        _, out, _ = n.dut.command("reload", "--rollback")
        expect("warning: " in out and "has another configuration" in out, f"natrix reload --rollback: {out}")
        path.write_text(text)
        # Another file is in use than the one that a restart reads.
        other = n.state.directory / "in-use.toml"
        other.write_text(changed)
        status, out, _ = n.dut.command("reload", "-c", other)
        expect(status == 0 and "warning: " in out and "has another configuration" in out, f"natrix reload of another file: {out}")
        why = change("reload?save=true", by_hand)
        expect(why.startswith("a restart reads ") and why.endswith("in-use.toml is in use"), f"why: {why}")
        expect_equal((timer(), other.read_text(), path.read_text()), (4, changed, text), "neither file is written")
    finally:
        path.write_text(text)
        expect_equal(n.dut.command("reload", "-c", path)[0], 0, "the configuration of the tests")


@test("api")
def what_cannot_be_recorded_is_not_done(n):
    text = n.dut.configuration.read_text()
    log = n.dut.socket.with_suffix(".audit.jsonl")
    kept = log.with_name("kept")
    ask(n, "/api/v1/mappings?limit=1", "audit")
    log.rename(kept)
    log.mkdir()
    try:
        changed = text + "\n[timeouts]\nicmp = \"3 min\"\n"
        for role, method, path, body in [
            ("operate", "POST", "reload?save=true", changed),
            ("operate", "POST", "rollback", None),
            ("operate", "POST", "drain", None),
            ("audit", "GET", "mappings?limit=1", None),
            ("audit", "GET", "mappings?stream=true", None),
            ("audit", "GET", "find?address=100.64.0.10", None),
        ]:
            status, headers, refused = ask(n, f"/api/v1/{path}", role, method, body)
            expect_equal((status, refused["error"]["object"]), (503, "audit log"), path)
            expect(refused["error"]["remedy"].startswith("make room") and headers["retry-after"], f"{path}: {refused}")
        path = n.state.directory / "unrecorded.toml"
        path.write_text(changed)
        status, _, err = n.dut.command("reload", "-c", path)
        expect(status == 1 and "audit log: cannot be written" in err, f"natrix reload: {status} {err}")
        expect_equal(n.dut.configuration.read_text(), text, "the file of the configuration")
        expect_equal(n.dut.show("status")[0]["timeouts"]["icmp_us"], 60_000_000, "timer")
    finally:
        log.rmdir()
        kept.rename(log)
    expect_equal(ask(n, "/api/v1/mappings?limit=1", "audit")[0], 200, "a lookup afterwards")


@test("api")
def changes_are_recorded_and_made_on_a_full_disk(n):
    text = n.dut.configuration.read_text()
    log = n.dut.socket.with_suffix(".audit.jsonl")
    kept, disk = log.with_name("kept"), log.with_name("disk")
    inside = ["nsenter", "--mount", f"--target={n.dut.daemon.process.pid}"]
    ask(n, "/api/v1/mappings?limit=1", "audit")
    log.rename(kept)
    disk.mkdir()
    process.run([*inside, "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk])
    log.symlink_to(disk / "audit.jsonl")
    try:
        expect_equal(ask(n, "/api/v1/mappings?limit=1", "audit")[0], 200, "a lookup while there is room")
        status, _, err = process.run([*inside, "dd", "if=/dev/zero", f"of={disk}/filler", "bs=4k", "count=1024"], check=False)
        expect(status != 0 and "No space left" in err, f"filling the disk: {status} {err}")
        answers = collections.Counter()
        for _ in range(2_000):
            status = ask(n, "/api/v1/mappings?limit=1", "audit", headers={"X-Natrix-Case": "x" * 1024})[0]
            answers[status] += 1
            if status == 503:
                break
        expect(answers[503] == 1 and answers[200] > 100, f"lookups until they leave the rest to changes: {answers}")
        changed = text + "\n[timeouts]\nicmp = \"3 min\"\n"
        expect_equal(ask(n, "/api/v1/reload", "operate", "POST", changed)[0], 200, "a reload")
        expect_equal(n.dut.show("status")[0]["timeouts"]["icmp_us"], 180_000_000, "timer after the reload")
        expect_equal(ask(n, "/api/v1/rollback", "operate", "POST")[0], 200, "a rollback")
        records = objects(n, "/api/v1/audit?limit=100", "audit")
        seen = [one["action"] for one in records if one["result"].split(":")[0] == "done"]
        expect_equal(seen, ["rollback", "reload"], "audit log")
    finally:
        process.run([*inside, "umount", disk])
        log.unlink()
        disk.rmdir()
        kept.rename(log)
    expect_equal(ask(n, "/api/v1/mappings?limit=1", "audit")[0], 200, "a lookup afterwards")


@test("api")
def a_case_is_recorded_whole_or_refused(n):
    def asked(case, headers):
        return ask(n, f"/api/v1/mappings?limit=1{case}", "audit", headers=headers)

    for case, headers in [
        ("", {"X-Natrix-Case": "M\u00fcller".encode("latin-1")}),
        ("", {"X-Natrix-Case": "x" * 1025}),
        ("&case=a%0Ab", {}),
        ("&case=a%1B%5B2J", {}),
    ]:
        status, _, refused = asked(case, headers)
        expect(status == 400 and "case" in refused["error"]["object"], f"{case} {headers}: {status} {refused}")
    for case, headers, recorded in [
        ("", {"X-Natrix-Case": "M\u00fcller 7".encode()}, "M\u00fcller 7"),
        ("&case=M%C3%BCller%208", {}, "M\u00fcller 8"),
        ("", {"X-Natrix-Case": "x" * 1024}, "x" * 1024),
    ]:
        expect_equal(asked(case, headers)[0], 200, recorded)
        expect_equal(objects(n, "/api/v1/audit?limit=1", "audit")[0]["case"], recorded, "case")


@test("api")
def an_operator_cannot_change_the_record_of_subscribers(n):
    text = n.dut.configuration.read_text()
    for more, object_ in [
        ("[log]\nrefusal_interval = \"1 s\"\n", "log.refusal_interval"),
        ("[log]\nback_pressure = \"drop\"\n", "log.back_pressure"),
    ]:
        for path in ("plan", "reload", "reload?save=true"):
            status, _, refused = ask(n, f"/api/v1/{path}", "operate", "POST", f"{text}\n{more}")
            expect_equal((status, refused["error"]["seen"]), (422, object_), f"{path} of {more}")
            expect("needs the role audit" in refused["error"]["problem"], str(refused))
        expect_equal(ask(n, "/api/v1/reload", "audit", "POST", f"{text}\n{more}")[0], 403, f"{more} as audit")
        # The refusal of `audit` may be there, too.
        _, out, _ = n.dut.command("audit", "--json", "--limit", "2")
        record = next(one for one in map(json.loads, out.splitlines()) if one["who"] == "noc")
        expect_equal((record["who"], record["action"]), ("noc", "reload --save"), "the record")
        expect(object_ in record["subject"] and record["result"].startswith("failed: "), f"the record: {record}")
    status, _, planned = ask(n, "/api/v1/plan", "operate", "POST", text)
    expect_equal((status, planned["changes"], n.dut.configuration.read_text()), (200, [], text), "what runs, and its file, are as before")
    # The command line is not bound by roles.
    path = n.state.directory / "records.toml"
    path.write_text(f"{text}\n[log]\nrefusal_interval = \"1 s\"\n")
    status, _, err = n.dut.command("reload", "-c", path)
    expect_equal((status, err), (0, ""), "natrix reload")
    status, _, refused = ask(n, "/api/v1/rollback", "operate", "POST")
    expect_equal((status, refused["error"]["seen"]), (422, "log.refusal_interval"), "a rollback over the API")
    expect_equal(n.dut.command("reload", "--rollback")[0], 0, "natrix reload --rollback")


@test("api")
def every_lookup_is_recorded_however_it_is_asked(n):
    source, mapping = new_mapping(n)
    address, port = mapping["external"].split(":")

    def latest():
        found = objects(n, "/api/v1/audit?limit=1", "audit")
        if not found:
            return None, None
        (one,) = found
        return one["time"], (one["who"], one["action"], one["case"])

    for role, who, path, action, case in [
        ("audit", "law", f"find?address={address}&port={port}&cursor=0.0", "find", None),
        ("audit", "law", f"find?address={address}&port={port}&at=2%20min%20ago&case=AZ-1", "find", "AZ-1"),
        ("audit", "law", f"mappings?external={address}&external_port={port}&case=AZ-2", "show mappings", "AZ-2"),
        ("audit", "law", f"mappings?external={address}&external_port={port}&cursor=0.0", "show mappings", None),
        ("audit", "law", f"mappings?external={address}&stream=true&case=AZ-3", "show mappings", "AZ-3"),
        ("audit", "law", "mappings?limit=1", "show mappings", None),
        ("audit", "law", "subscribers?stream=true", "show subscribers", None),
        ("audit", "law", f"sessions?port={source}", "show sessions", None),
        ("audit", "law", "subscribers?internal=100.64.0.10", "show subscribers", None),
        ("audit", "law", "grants?internal=100.64.0.10", "show grants", None),
        ("audit", "law", "neighbours?address=100.64.0.10&case=AZ-8", "show neighbours", "AZ-8"),
        ("audit", "law", "expectations?external_port=5060", "show expectations", None),
        ("audit", "law", f"why?protocol=udp&source={SRV1}:9&destination={address}:{port}&inbound=true&case=AZ-4", "why", "AZ-4"),
        ("audit", "law", f"trace?port={port}&verdict=nonsense&case=AZ-5", "trace", "AZ-5"),
        ("audit", "law", "../../restconf/data/ietf-nat:nat/instances/instance=1/mapping-table", "show mappings", None),
        ("audit", "law", "../../restconf/data/ietf-nat:nat", "show mappings", None),
    ]:  # fmt: skip
        before, _ = latest()
        ask(n, f"/api/v1/{path}".replace("/api/v1/../..", ""), role)
        after, seen = latest()
        expect(after != before, f"{path} is not recorded")
        expect_equal(seen, (who, action, case), path)
    # A plan that names subscribers is a lookup, and a header can name the case, too.
    text = n.dut.configuration.read_text()
    expect_equal(ask(n, "/api/v1/plan?details=5", "audit", "POST", text, {"X-Natrix-Case": "AZ-6"})[0], 200, "a plan with names")
    expect_equal(latest()[1], ("law", "plan", "AZ-6"), "a plan with names")
    # Figures are about nobody.
    before, _ = latest()
    for path in ("status", "pools", "pools/addresses?external=203.0.113.0/24", "drops", "counters?per_worker=true"):
        expect_equal(ask(n, f"/api/v1/{path}")[0], 200, path)
    expect_equal(ask(n, "/restconf/data/ietf-nat:nat")[0], 200, "data without mappings")
    expect_equal(latest()[0], before, "the latest record")
    # A plan without names counts subscribers: the record says what the text changes.
    moved = text.replace("[[pool]]", "[timeouts]\nicmp = \"2 min\"\n\n[[pool]]", 1)
    expect_equal(ask(n, "/api/v1/plan", "operate", "POST", moved)[0], 200, "a plan without names")
    (planned,) = objects(n, "/api/v1/audit?limit=1", "audit")
    seen = (planned["who"], planned["action"], planned["subject"], planned["result"])
    expect_equal(seen, ("noc", "plan", "a text: timeouts.icmp", "answered"), "a plan without names")
    before = planned["time"]
    # The command line too, and all its pages are one lookup.
    expect(n.dut.show("mappings", "--internal", "100.64.0.0/10", "--all"), "the command has no mappings")
    records = objects(n, "/api/v1/audit?limit=2", "audit")
    expect_equal((records[0]["who"], records[0]["action"], records[1]["time"]), ("uid 0", "show mappings", before), "the command's lookup")
    workers = {one["worker"] for one in objects(n, "/api/v1/counters?per_worker=true")}
    expect_equal(len(workers), len(n.dut.show("status")[0]["workers"]), "workers with counters")


@test("monitoring")
def every_lookup_names_its_subject_whichever_way_it_is_asked(n):
    """The command line and the API put the same question; both records say what it was about."""
    source, mapping = new_mapping(n)
    address, port = mapping["external"].split(":")
    inside, then, later = "100.64.0.10", "2026-05-03T19:04:17Z", "2026-05-04T00:00:00Z"
    changed = n.state.directory / "lookups.toml"
    text = n.dut.configuration.read_text()
    changed.write_text(text)

    def latest():
        (one,) = objects(n, "/api/v1/audit?limit=1", "audit")
        return one

    why = f"protocol=udp&source={inside}:{source}&destination={SRV1}:9"
    past = f"address={address}&port={port}&protocol=udp"
    seen = set()
    # The action, what the subject must have, the words of the command, and the path of the API.
    for action, wanted, words, path in [
        ("find", f"{address}:{port} udp", ["find", f"{address}:{port}", "--protocol", "udp"], f"find?{past}"),
        ("find", f"{address}:{port} udp at {then}", ["find", f"{address}:{port}", "--protocol", "udp", "--at", then], f"find?{past}&at={then}"),
        ("find", f"{address}:{port} udp from {then} to {later[:-1]}.999999Z", ["find", f"{address}:{port}", "--protocol", "udp", "--from", then, "--to", later],
         f"find?{past}&from={then}&to={later}"),
        ("show subscribers", f'"internal":"{inside}/32"', ["show", "subscribers", "--internal", inside], f"subscribers?internal={inside}"),
        ("show mappings", f'"external_port":{port}', ["show", "mappings", "--external", f"{address}:{port}"],
         f"mappings?external={address}&external_port={port}"),
        ("show sessions", f'"port":{source}', ["show", "sessions", "--port", source], f"sessions?port={source}"),
        ("show neighbours", f'"address":"{inside}"', ["show", "neighbours", "--address", inside], f"neighbours?address={inside}"),
        ("show grants", f'"internal":"{inside}/32"', ["show", "grants", "--internal", inside], f"grants?internal={inside}"),
        ("show expectations", f'"internal":"{inside}/32"', ["show", "expectations", "--internal", inside], f"expectations?internal={inside}"),
        ("show mappings", "all", ["show", "mappings"], "mappings"),
        ("why", f"udp {inside}:{source} {SRV1}:9", ["why", "udp", f"{inside}:{source}", f"{SRV1}:9"], f"why?{why}"),
        ("trace", f'"port":{source}', ["trace", "--port", source, "--count", "1", "--verdict", "nonsense"], f"trace?port={source}&count=1&verdict=nonsense"),
        ("plan", "3 of each kind named", ["plan", "--details", "3", "-c", changed], "plan?details=3"),
        ("log head", "the store", ["log", "head"], "log/head"),
        ("log verify", "the store", ["log", "verify"], None),
        ("log export", then, ["log", "export", "--from", then, "--to", later, "--output", n.state.directory / "exported", "--format", "json"], None),
        ("show mappings", "all", None, "/restconf/data/ietf-nat:nat/instances/instance=1/mapping-table"),
    ]:  # fmt: skip
        subjects = []
        if words is not None:
            before = latest()["time"]
            n.dut.command(*map(str, words), "--case", "AZ-30")
            one = latest()
            expect_equal(one["case"], "AZ-30", f"case of natrix {words}")
            expect(one["time"] != before, f"natrix {words} is not recorded")
            expect_equal((one["who"], one["action"], one["from"]), ("uid 0", action, "control socket"), f"record of natrix {words}")
            subjects.append(one["subject"])
        if path is not None:
            before = latest()["time"]
            sent = ("POST", text) if action == "plan" else ("GET", None)
            ask(n, path if path.startswith("/") else f"/api/v1/{path}", "audit", *sent, headers={"X-Natrix-Case": "AZ-31"})
            one = latest()
            expect(one["time"] != before, f"{path} is not recorded")
            expect_equal((one["who"], one["action"], one["case"]), ("law", action, "AZ-31"), f"record of {path}")
            subjects.append(one["subject"])
        if action == "plan":
            # The command names a file, the API sends a text.
            expect(str(changed) in subjects[0], f"subject of a plan: {subjects}")
            subjects = [subject.replace(str(changed), "a text") for subject in subjects]
        # The command line has parsed the time.
        subjects = [subject.replace(".000000Z", "Z") for subject in subjects]
        expect(len(set(subjects)) == 1 and wanted in subjects[0], f"{action}: subjects {subjects}, wanted {wanted}")
        seen.add(action)
    # As the daemon has them (`lookup_of`, and what is recorded for the log of events).
    source_text = (Path(__file__).parents[2] / "crates/daemon/src/server.rs").read_text()
    lookups = re.search(r"^fn lookup_of.*?^}", source_text, re.MULTILINE | re.DOTALL)[0]
    known = {words for words in re.findall(r'"([a-z ]+)"', lookups) if words.startswith("show ") or words in ("find", "why", "trace", "plan")}
    expect_equal(known | {"log export", "log head", "log verify"}, seen, "lookups of the daemon, and those of this test")


@test("monitoring")
def the_audit_log_says_what_came_of_a_lookup(n):
    # More than one page.
    traffic(n, 3)
    source, mapping = new_mapping(n)
    address, port = mapping["external"].split(":")
    # The records of the mapping reach the store.
    then = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    await_store(n)
    before, later = "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"
    exported = n.state.directory / "exported-results"
    inside = f"100.64.0.10:{source}"

    def results(count=1):
        return [one["result"] for one in objects(n, f"/api/v1/audit?limit={count}", "audit")]

    for words, wanted in [
        (["find", f"{address}:{port}", "--protocol", "udp"], "found 1"),
        (["find", f"{address}:9", "--protocol", "udp"], "none"),
        (["find", f"{address}:{port}", "--vrf", "nowhere"], "refused: "),
        (["find", f"{address}:{port}", "--protocol", "udp", "--at", then], "found 1"),
        (["find", f"{address}:{port}", "--protocol", "udp", "--at", before], "none; the records are not complete"),
        (["find", f"{address}:{port}", "--at", then, "--vrf", "nowhere"], "failed: "),
        (["show", "mappings", "--external", f"{address}:{port}"], "found 1"),
        (["show", "mappings", "--external", f"{address}:9"], "none"),
        (["why", "udp", inside, f"{SRV1}:9"], "answered"),
        (["trace", "--count", "1", "--verdict", "nonsense"], "refused: "),
        (["plan", "--details", "1", "-c", n.dut.configuration], "answered"),
    ]:
        n.dut.command(*map(str, words))
        (seen,) = results()
        expect(seen == wanted if not wanted.endswith(": ") else seen.startswith(wanted), f"natrix {words}: {seen!r}, wanted {wanted!r}")
    for path, wanted in [
        (f"find?address={address}&port={port}&protocol=udp&at={then}", "found 1"),
        (f"find?address={address}&port={port}&protocol=udp&at={before}", "none; the records are not complete"),
        (f"find?address={address}&port={port}&vrf=nowhere", "refused: "),
        (f"mappings?external={address}&external_port={port}", "found 1"),
        ("mappings?limit=1", "found 1 so far"),
    ]:
        ask(n, f"/api/v1/{path}", "audit")
        (seen,) = results()
        expect(seen == wanted if not wanted.endswith(": ") else seen.startswith(wanted), f"{path}: {seen!r}, wanted {wanted!r}")
    # What lasts has a record at its beginning too, and one line.
    before_that = results()[0]
    n.dut.command("log", "export", "--from", "1 h ago", "--to", "now", "--output", exported, "--case", "AZ-40")
    count = len(exported.read_text().splitlines())
    expect(count >= 1, "nothing is exported")
    expect_equal(results(2), [f"ended: found {count}", before_that], "records of an export")
    n.dut.command("log", "export", "--from", before, "--to", later, "--output", exported)
    expect_equal(results(2), ["ended: none", f"ended: found {count}"], "records of an export of nothing")
    with sockets(udp(n.sub1)) as sock:
        tracing = n.nat.start("trace", [n.dut.binary, "trace", "--port", "9", "--count", "2", "--socket", n.dut.socket])


        def has_ended():
            sock.sendto(b"x", (SRV1, 9))
            return not tracing.alive()

        expect(process.wait_until(has_ended, 20, 0.1), f"two packets are not traced: {tracing.log()}")
    expect_equal(results(2), ["ended: 2 packets", "ended: none"], "records of a trace")
    # Of a list that goes on, the last record has the number of all.
    traffic(n, 20)
    count = len(ask(n, "/api/v1/mappings?stream=true&limit=7", "audit")[2].splitlines())
    expect(count >= 20, f"{count} mappings streamed")
    expect_equal(results(2), [f"ended: found {count}", "found 7 so far"], "records of a stream of several pages")
    n.dut.show("mappings", "--limit", "7", "--all")
    expect_equal(results(2), [f"ended: found {count}", "found 7 so far"], "records of a list of the command line")


@test("api")
def packets_are_traced_as_events(n):
    connection = Connection(n)
    with contextlib.closing(connection), sockets(udp(n.sub1)) as sock:
        port = fresh_port()
        login = {"Authorization": f"Bearer {TOKENS['audit']}"}
        connection.request("GET", f"/api/v1/trace?port={port}&count=2", headers=login)
        answer = connection.getresponse()
        expect_equal(answer.headers["content-type"], "text/event-stream", "content type of a trace")
        stop = threading.Event()

        def send():
            while not stop.wait(0.1):
                sock.sendto(b"x", (SRV1, port))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            text = answer.read().decode()
        finally:
            stop.set()
            sender.join()
    expect_equal(text.count("event: trace"), 2, "events of a trace")
    expect("event: end" in text, "a trace has no end")
    record = json.loads(next(line for line in text.splitlines() if line.startswith("data: "))[6:])
    expect_equal(record["verdict"] in ("outbound", "outbound_new_mapping"), True, f"verdict {record['verdict']}")


@test("api")
def metrics_pass_the_checker_of_prometheus(n):
    _, headers, text = ask(n, "/metrics")
    expect(headers["content-type"].startswith("text/plain"), headers["content-type"])
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=120)
    expect_equal((checked.returncode, checked.stdout + checked.stderr), (0, b""), "promtool check metrics")
    _, headers, openmetrics = ask(n, "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    expect(headers["content-type"].startswith("application/openmetrics-text"), headers["content-type"])
    expect(openmetrics.endswith(b"# EOF\n"), "no end of OpenMetrics")
    status = n.dut.show("status")[0]
    value = next(line for line in text.decode().splitlines() if line.startswith("natrix_mappings_created_total "))
    expect(float(value.split()[1]) <= status["mappings_created"], f"{value} of {status['mappings_created']}")


@test("api")
def foreign_pages_and_hosts_are_refused(n):
    name, token = TOKENS["operate"].split(":")
    basic = {"Authorization": "Basic " + b64encode(f"{name}:{token}".encode()).decode()}
    text = n.dut.configuration.read_text()
    for what, wanted, headers in [
        ("no CSRF token", 403, {}),
        ("another CSRF token", 403, {"X-Natrix-CSRF": "0" * 64}),
        ("another origin", 403, {"Origin": "http://evil.example"}),
        ("another site", 403, {"Sec-Fetch-Site": "cross-site"}),
        ("another host", 421, {"Host": "evil.example"}),
        ("no known token", 401, {"Authorization": "Bearer noc:wrong"}),
    ]:
        expect_equal(ask(n, "/api/v1/plan", None, "POST", text, {**basic, **headers})[0], wanted, what)
    # A client that is no browser says so, which no page of another site can.
    client = {**basic, "X-Natrix-CSRF": "client"}
    expect_equal(ask(n, "/api/v1/plan", None, "POST", text, client)[0], 200, "a client that is no browser")
    status, _, _ = ask(n, "/api/v1/plan", None, "POST", text, {**client, "Origin": f"http://127.0.0.1:{API_PORT}"})
    expect_equal(status, 403, "a browser that claims to be none")
    expect_equal(ask(n, "/api/v1/status", headers={"Host": "LOCALHOST"})[0], 200, "a name in capitals")
    _, _, page = ask(n, "/", None, headers=basic)
    csrf = page.decode().split('name="csrf" content="')[1].split('"')[0]
    own = {**basic, "X-Natrix-CSRF": csrf, "Origin": f"http://127.0.0.1:{API_PORT}"}
    expect_equal(ask(n, "/api/v1/plan", None, "POST", text, own)[0], 200, "the page's own request")
    status, _, _ = ask(n, "/api/v1/plan", "operate", "POST", text, {"Origin": "http://evil.example"})
    expect_equal(status, 403, "another origin with a bearer token")
    # Nor does another site look somebody up in the name of a browser's user. It may have a link to
    # the page.
    name, token = TOKENS["audit"].split(":")
    audit = {"Authorization": "Basic " + b64encode(f"{name}:{token}".encode()).decode()}
    find = "/api/v1/find?address=100.64.0.10"
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        expect_equal(ask(n, find, None, headers={**audit, **headers})[0], 403, f"a lookup with {headers}")
    expect_equal(ask(n, find, None, headers={**audit, "Sec-Fetch-Site": "same-origin"})[0], 200, "the page's own lookup")
    expect_equal(ask(n, "/", None, headers={**audit, "Sec-Fetch-Site": "cross-site"})[0], 200, "a link to the page")


@test("api")
def wrong_requests_get_errors_that_say_so(n):
    for path, method, body, wanted in [
        ("/api/v1/nothing", "GET", None, 404),
        ("/api/v1/status", "POST", "x", 405),
        ("/api/v1/mappings?limit=many", "GET", None, 400),
        ("/api/v1/mappings?cursor=x", "GET", None, 422),
        ("/api/v1/mappings?nonsense=1", "GET", None, 400),
        ("/api/v1/mappings?remote=8.8.8.8", "GET", None, 400),
        ("/api/v1/neighbours?internal=100.64.0.10&stream=true", "GET", None, 400),
        ("/api/v1/status?verbose=true", "GET", None, 400),
        ("/api/v1/rollback?dry_run=true", "POST", "", 400),
        ("/api/v1/find?address=203.0.113.1&at=someday", "GET", None, 400),
        ("/api/v1/find?address=203.0.113.1&remote=198.51.100.7", "GET", None, 400),
        ("/api/v1/find?address=203.0.113.1&remote=server&at=1%20s%20ago", "GET", None, 400),
        ("/api/v1/why?protocol=udp", "GET", None, 400),
        ("/api/v1/plan", "POST", "x" * (1024 * 1024 + 1), 413),
    ]:
        status, _, answer = ask(n, path, "operate" if method == "POST" else "audit", method, body)
        expect_equal(status, wanted, f"{method} {path}")
        expect(answer["error"]["remedy"], f"{path}: {answer}")
        expect("--" not in str(answer["error"]), f"{path} is answered with an option of the command line: {answer}")
    _, _, document = ask(n, "/api/v1/openapi.json")
    expect_equal(document["openapi"].split(".")[:2], ["3", "1"], "version of the document")
    for path in ("/api/v1/status", "/api/v1/find", "/api/v1/reload", "/metrics"):
        expect(path in document["paths"], f"{path} is not in the document")


@test("api")
def a_rule_for_one_subscriber_counts_it_only_for_audit(n):
    """Who may reload may write a filter for one address, and must not read from it what it does."""
    text = n.dut.configuration.read_text()
    for inside, counts in [("100.64.0.10/32", [(5, None), (12, None)]), ("100.64.0.10/31", [(5, None), (12, 10)])]:
        only = f'\n[[filter]]\naction = "permit"\ndirection = "out"\ninside = "{inside}"\n'
        try:
            expect_equal(ask(n, "/api/v1/reload", "operate", "POST", text + only)[0], 200, f"a filter for {inside}")
            (record,) = objects(n, "/api/v1/audit?limit=1", "audit")
            expect(inside in record["subject"], f"the record names no prefix: {record}")
            for count, wanted in counts:
                traffic(n, count)
                exact = [one["hits"] for one in n.dut.show("rules") if one["inside"] == inside]
                shown = [one["hits"] for one in objects(n, "/api/v1/rules", "operate") if one["inside"] == inside]
                expect(exact[0] >= count, f"hits of the filter for {inside}: {exact}")
                expect_equal(shown, [wanted], f"hits for operate, for {inside}, of {exact}")
        finally:
            expect_equal(ask(n, "/api/v1/rollback", "operate", "POST")[0], 200, "the filter is removed")


@test("api")
def slow_clients_do_not_disturb_others(n):
    before = [answer_seconds(n) for _ in range(5)]
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            with n.nat.entered():
                slow = stack.enter_context(socket.socket())
            slow.settimeout(2)
            with contextlib.suppress(OSError):
                slow.connect(("127.0.0.1", API_PORT))
                slow.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: ")
        expect_as_quick([answer_seconds(n) for _ in range(5)], before, "a thousand slow clients")
        with sockets(udp(n.sub1), udp(n.srv1)) as (sock, server):
            sock.sendto(b"x", (SRV1, server.getsockname()[1]))
            receive(server, "a datagram beside a thousand slow clients")
    # Connections without headers are closed after 10 s at the latest; these are closed already.
    time.sleep(PAUSE)
    expect_equal(ask(n, "/api/v1/status")[0], 200, "status after slow clients")


@test("api")
def the_api_comes_back_after_it_was_killed(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sock, server):
        sock.sendto(b"x", (SRV1, server.getsockname()[1]))
        _, sender = receive(server, "a first datagram")
        pid = n.dut.daemon.process.pid
        children = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(pid)], capture_output=True, text=True)
        (child,) = children.stdout.split()
        subprocess.run(["kill", "-9", child], check=True)
        sock.sendto(b"x", (SRV1, server.getsockname()[1]))
        expect_equal(receive(server, "a datagram after the kill")[1], sender, "external endpoint after the kill")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if ask(n, "/api/v1/status")[0] == 200:
                return
        time.sleep(0.2)
    raise Failure("the API is not back after 20 s")


def _guess(n, source, token):
    with contextlib.closing(Connection(n, source)) as connection:
        connection.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status


@test("api")
def ten_wrong_logins_make_a_client_wait(n):
    everybody = ("view", "operate", "audit")
    expect_equal([ask(n, "/api/v1/status", role)[0] for role in everybody], [200] * 3, "right logins before")
    # All addresses of loopback are one client, whatever names it tries.
    guesses = [(f"127.0.0.{last}", f"{'noc' if last % 2 else f'name{last}'}:wrong") for last in range(1, 41)]
    statuses = [_guess(n, *guess) for guess in guesses]
    expect_equal(statuses, [401] * 10 + [429] * 30, "answers to wrong logins")
    (elsewhere,) = further_clients(n, 1)
    expect_equal(_guess(n, elsewhere, TOKENS["operate"]), 200, "the right login from elsewhere")
    expect_equal(_guess(n, elsewhere, "noc:wrong"), 401, "a wrong one from elsewhere")
    expect_equal(ask(n, "/api/v1/status", None, headers={"Authorization": "Bearer see:wrong"})[0], 429, "one more guess")
    expect_equal(ask(n, "/api/v1/status", None)[0], 401, "a request without a login, from the place of the guesses")
    # Who has logged in before is not locked out.
    expect_equal([ask(n, "/api/v1/status", role)[0] for role in everybody], [200] * 3, "right logins afterwards")


def answer_seconds(n):
    """How long one answer to the command line takes."""
    begun = time.monotonic()
    status, _, err = n.dut.command("show", "status", "--json")
    expect_equal(status, 0, f"show status: {err}")
    return time.monotonic() - begun


def expect_as_quick(beside, quiet, what):
    """The command line answers within a second, or, where the machine is too busy for that, about as soon as before."""
    beside, before = statistics.median(beside), statistics.median(quiet)
    print(f"# {what}: median answer to the command line {beside:.2f} s, without {before:.2f} s", flush=True)
    expect(beside < max(1, 3 * before), f"{what}: the command line answers after {beside:.2f} s, without after {before:.2f} s")


def _flood(n, seconds, statuses):
    deadline = time.monotonic() + seconds
    connection = Connection(n, unbounded=True)
    while time.monotonic() < deadline:
        connection.request("GET", "/api/v1/nothing")
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)


@test("api")
def a_flood_of_requests_is_bounded(n):
    statuses, begun = [], time.monotonic()
    threads = [threading.Thread(target=_flood, args=(n, 2, statuses)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    passed = time.monotonic() - begun
    admitted = sum(status != 429 for status in statuses)
    expect(admitted <= AT_ONCE + A_SECOND * passed, f"{admitted} of {len(statuses)} requests were admitted in {passed:.1f} s")
