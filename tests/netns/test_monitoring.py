"""A Prometheus of the distribution that scrapes a running instance, with the alert rules and the dashboard shipped."""

import contextlib
import json
import re
import urllib.parse
from datetime import datetime
from datetime import timezone
from pathlib import Path

import setups
from kit import *
from netlab import process
from netlab.topology import SRV1
from test_api import TOKENS
from test_api import ask
from test_api import await_store
from test_api import traffic

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = ROOT / "packaging" / "monitoring"
PROMETHEUS_PORT = 9099


def start_prometheus(n):
    """Starts it with the rules shipped, which fire at once, on this instance."""
    folder = n.state.directory / "prometheus"
    folder.mkdir()
    rules = (SHIPPED / "natrix-alerts.yml").read_text()
    (folder / "natrix-alerts.yml").write_text(re.sub(r"\bfor: \S+", "for: 0s", rules))
    configuration = (SHIPPED / "prometheus.yml").read_text().replace("15s", "2s")
    (folder / "prometheus.yml").write_text(configuration.replace("127.0.0.1:8080", f"127.0.0.1:{setups.API_PORT}"))
    (folder / "natrix.token").write_text(TOKENS["view"])
    checked = process.run(["promtool", "check", "config", folder / "prometheus.yml"])
    expect("SUCCESS" in checked[1], f"promtool check config: {checked}")
    return n.nat.start(
        "prometheus",
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}", "--log.level=warn"],
    )  # fmt: skip


def query(n, expression):
    """The samples of an expression: [(labels, value)]."""
    address = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?query={urllib.parse.quote(expression)}"
    status, out, _ = n.nat.run(["curl", "-sS", address])
    if status != 0 or not out.startswith("{"):
        return []
    return [(one["metric"], float(one["value"][1])) for one in json.loads(out)["data"]["result"]]


def await_sample(n, expression, what):
    samples = process.wait_until(lambda: query(n, expression), 60, 0.5)
    expect(samples, f"{what}: Prometheus has no {expression}")
    return samples


@test("monitoring")
def prometheus_scrapes_and_an_alert_fires(n):
    daemon = start_prometheus(n)
    await_sample(n, 'up{job="natrix"} == 1', "the scrape")
    expect_equal(query(n, 'ALERTS{alertname="NatrixPoolNearlyFull"}'), [], "alerts before the pool is full")
    # The pool of this setup has ten ports.
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            sock = stack.enter_context(sockets(udp(n.sub2, address=setups.SCARCE)))
            sock.sendto(b"x", (SRV1, 9))
        fired = await_sample(n, 'ALERTS{alertname="NatrixPoolNearlyFull", alertstate="firing"}', "the alert")
        expect_equal([labels["pool"] for labels, _ in fired], ["scarce"], "pools that the alert names")
        exhausted = await_sample(n, 'natrix_drops_total{reason="ports_exhausted"} >= 2', "the drops")
        expect_equal(exhausted[0][1], 2.0, "packets without a port")
        said = lambda: [line for line in n.dut.daemon.log().splitlines() if 'pool "' in line]  # noqa: E731
        expect(process.wait_until(said, 30, 0.1), "the log does not say that the pool is full")
        expect('pool "scarce": an address has no free port for udp, and new mappings are refused' in said()[0], f"the log says {said()}")
        used = lambda: {pool["name"]: pool["ports_used"]["udp"] for pool in n.dut.show("pools")}  # noqa: E731
        seen = lambda: {labels["pool"]: value for labels, value in query(n, 'natrix_pool_ports_used{protocol="udp"}')}  # noqa: E731
        expect(process.wait_until(lambda: seen() == used(), 30, 0.5), f"ports in use: {seen()}, not {used()}")
    rounds = await_sample(n, "natrix_worker_round_seconds_count > 0", "rounds of the workers")
    bounds = await_sample(n, 'count by (worker) (natrix_worker_round_seconds_bucket)', "the buckets")
    expect(all(value == 16 for _, value in bounds) and len(bounds) >= len(rounds), f"buckets of rounds: {bounds}")
    # Every panel of the dashboard has something to draw, the alert too.
    text = (SHIPPED / "natrix-dashboard.json").read_text()
    expressions = [target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", [])]
    expect_equal(len(expressions), text.count('"expr"'), "expressions of the dashboard")
    expressions = [one.replace("$instance", ".*").replace("$__rate_interval", "1m") for one in expressions]

    def all_drawn():
        # After a scrape that times out, no expression has a sample until the next scrape.
        expressions[:] = [one for one in expressions if not query(n, one)]
        return not expressions

    expect(process.wait_until(all_drawn, 30, 1), f"panels without data: {expressions}")
    expect("level=error" not in daemon.log(), f"Prometheus: {daemon.log()}")


@test("monitoring")
def every_metric_of_rules_and_dashboard_exists(n):
    text = ask(n, "/metrics")[2].decode()
    exposed = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    # Families without a member now: the instance of this setup has a log with one sink.
    used_by = {}
    for name in ("natrix-alerts.yml", "natrix-dashboard.json"):
        used = set(re.findall(r"\bnatrix_[a-z_]+", (SHIPPED / name).read_text()))
        used_by[name] = used
        # Those of TLS have a test with it.
        used = {one for one in used if not one.startswith("natrix_api_certificate_")}
        expect_equal(sorted(used - exposed), [], f"metrics of {name} that are not exposed")
    # Who gets an alert because something is lost finds on the dashboard since when, and how much.
    losses = {metric for metric in used_by["natrix-alerts.yml"] if re.search("lost|missed|unsent", metric)}
    expect(len(losses) >= 5, f"rules about losses: {losses}")
    expect_equal(sorted(losses - used_by["natrix-dashboard.json"]), [], "losses with an alert that the dashboard lacks")
    # Where several instances are scraped, each line is of one of them, and says so, or of all.
    panels = json.loads((SHIPPED / "natrix-dashboard.json").read_text())["panels"]
    for target in (target for panel in panels for target in panel.get("targets", [])):
        is_of_all = re.match(r"(topk\(\d+, )?sum( by \((reason|limit|le)\))? ?\(", target["expr"])
        expect(bool(is_of_all) != ("{{instance}}" in target["legendFormat"]), f"legend {target['legendFormat']!r} of {target['expr']}")
    documented = (ROOT / "docs" / "monitoring.md").read_text()
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed}
    expect_equal(sorted(name for name in families if f"`{name}`" not in documented), [], "metrics that docs/monitoring.md lacks")


@test("monitoring")
def the_api_has_the_statistics_of_the_log(n):
    for _ in range(5):
        status, out, _ = n.dut.command("log", "stat", "--json")
        code, _, by_api = ask(n, "/api/v1/log/stat")
        expect_equal((status, code), (0, 200), "answers")
        by_command = json.loads(out)
        # These go on by themselves.
        moving = {"bytes_free", "days_left", "bytes_per_day", "sinks"}
        seen = [{name: value for name, value in one.items() if name not in moving} for one in (by_api, by_command)]
        if seen[0] == seen[1]:
            break
    expect_equal(*seen, "statistics")
    expect(by_api["bytes"] > 0 and by_api.keys() == by_command.keys(), f"statistics: {by_api}")
    expect_equal([one["name"] for one in by_api["sinks"]], ["court"], "collectors")
    expect_equal(ask(n, "/api/v1/log/stat", None)[0], 401, "without a login")


def events_of(text):
    """The server-sent events of an answer: (name, object)."""
    events = re.findall(r"^event: ?(\w+)\ndata: ?(.*)$", text.decode(), re.MULTILINE)
    return [(name, json.loads(data)) for name, data in events]


def latest_records(n, count):
    _, _, page = ask(n, f"/api/v1/audit?limit={count}", "audit")
    return [(one["who"], one["action"], one["subject"], one["case"], one["result"]) for one in page["objects"]]


@test("monitoring")
def the_api_proves_that_the_log_is_whole(n):
    traffic(n, 5)
    await_store(n)
    status, headers, head = ask(n, "/api/v1/log/head?case=AZ-50", "audit")
    expect_equal((status, headers["content-type"].split(";")[0]), (200, "text/plain"), "answer")
    expect(head.startswith(b"natrix log head\nstore ") and b"\nsignature " in head, f"head {head}")
    expect_equal(latest_records(n, 1), [("law", "log head", "the store", "AZ-50", "answered")], "record of the head")
    _, headers, text = ask(n, "/api/v1/log/verify?case=AZ-51", "audit", "POST", head)
    expect_equal(headers["content-type"], "text/event-stream", "content type of a verification")
    name, verified = events_of(text)[-1]
    expect_equal((name, verified["faults"]), ("verified", []), "verification with the exported head")
    subject = "the store, with an exported head"
    wanted = [("law", "log verify", subject, "AZ-51", "ended: no faults"), ("law", "log head", "the store", "AZ-50", "answered")]
    expect_equal(latest_records(n, 2), wanted, "record of a verification")
    status, out, _ = n.dut.command("log", "verify", "--json")
    expect_equal((status, json.loads(out).keys()), (0, verified.keys()), "what the command prints")
    # A head that was changed, and no head at all.
    other = head.replace(b"\nentries 1 ", b"\nentries 2 ") if b"\nentries 1 " in head else head.replace(b"\nentries ", b"\nentries 9")
    name, verified = events_of(ask(n, "/api/v1/log/verify", "audit", "POST", other)[2])[-1]
    expect(name == "verified" and len(verified["faults"]) == 1 and "its signature is wrong" in verified["faults"][0], f"{name} {verified}")
    expect_equal(latest_records(n, 1)[0][-1], "ended: 1 fault", "record of a fault")
    name, refused = events_of(ask(n, "/api/v1/log/verify", "audit", "POST", b"nonsense")[2])[-1]
    expect(name == "error" and "not what natrix log head prints" in str(refused), f"{name} {refused}")
    expect("failed" in latest_records(n, 1)[0][-1], "record of what is no head")
    name, verified = events_of(ask(n, "/api/v1/log/verify", "audit", "POST")[2])[-1]
    expect_equal((name, verified["faults"]), ("verified", []), "verification without a head")


@test("monitoring")
def the_api_exports_what_the_command_exports(n):
    traffic(n, 5)
    await_store(n)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    span = ("2026-01-01T00:00:00Z", now)
    path = n.state.directory / "exported-beside-the-api"
    for form, kind in (
        ("json", "application/x-ndjson"), ("ipfix", "application/ipfix"), ("parquet", "application/vnd.apache.parquet"),
    ):
        # What is open goes on between the two: those before have their end in both.
        n.dut.command("log", "export", "--format", form, "--from", span[0], "--to", span[1], "--output", path)
        status, headers, body = ask(n, f"/api/v1/log/export?from={span[0]}&to={span[1]}&format={form}&case=AZ-60", "audit")
        expect_equal((status, headers["content-type"]), (200, kind), f"answer of {form}")
        # The year began before the records.
        expect_equal(headers["x-natrix-complete"], "false", "whether it is complete")
        expect(headers["x-natrix-note"].startswith("the records "), f"notes {headers['x-natrix-note']}")
        by_command = path.read_bytes()
        if form == "json":
            key = lambda line: (line["subscriber"], line["external_address"], line["first_port"], line["since"])  # noqa: E731
            seen = [sorted(key(json.loads(line)) for line in text.splitlines()) for text in (body, by_command)]
            expect(len(seen[0]) >= 5 and seen[0] == seen[1], f"{len(seen[0])} intervals by the API, {len(seen[1])} by the command")
            # One of the command, too.
            expect_equal([one[-1] for one in latest_records(n, 2)], [f"ended: found {len(seen[0])}"] * 2, "records")
            expect_equal(latest_records(n, 1)[0][1:4], ("log export", f"from {span[0][:-1]}.000000Z to {span[1][:-1]}.999999Z", "AZ-60"), "record")
        elif form == "parquet":
            # The footer is complete: its length and the mark of the format are the last bytes.
            for whole in (body, by_command):
                footer = int.from_bytes(whole[-8:-4], "little")
                expect(whole[:4] == whole[-4:] == b"PAR1" and 0 < footer < len(whole), f"{len(whole)} bytes of Parquet")
            expect_equal([one[0] for one in latest_records(n, 2)], ["law", "uid 0"], "records")
        else:
            # Version 10 of each message, and as many bytes but for what ended meanwhile.
            expect(body[:2] == b"\0\x0a" and abs(len(body) - len(by_command)) < 500, f"{len(body)} and {len(by_command)} bytes")
    expect_equal(ask(n, "/api/v1/log/export?from=monday&to=now", "audit")[0], 400, "a time that is none")
    for path in ("log/export?", "find?address=203.0.113.1&"):
        status, _, refused = ask(n, f"/api/v1/{path}from={span[1]}&to={span[0]}", "audit")
        expect_equal((status, refused["error"]["problem"]), (400, "is before from"), f"{path}: a range that ends before it begins")
    expect_equal(ask(n, "/api/v1/log/export?from=monday", "audit")[0], 400, "half a range")


@test("monitoring")
def the_alert_rules_pass_their_tests(n):
    for command in (
        ["promtool", "check", "rules", SHIPPED / "natrix-alerts.yml"],
        ["promtool", "test", "rules", ROOT / "tests" / "monitoring" / "natrix-alerts.test.yml"],
    ):
        status, out, err = process.run(command, check=False)
        expect(status == 0 and "SUCCESS" in out, f"{command}: {out}{err}")


@test("monitoring")
def the_api_finds_past_holders_as_the_command_does(n):
    with sockets(udp(n.sub1), udp(n.srv1)) as (sub, server):
        address, port = external_of(sub, server, (SRV1, server.getsockname()[1]))
        inside = sub.getsockname()[1]
        then = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        await_store(n)
        for words, query_string in [
            (["--at", then], f"at={then}"),
            (["--from", "1 h ago", "--to", then], f"from=1%20h%20ago&to={then}"),
        ]:
            status, out, err = n.dut.command("find", f"{address}:{port}", "--protocol", "udp", *words, "--json")
            expect_equal(status, 0, f"status of natrix find ({err.strip()})")
            code, _, body = ask(n, f"/api/v1/find?address={address}&port={port}&protocol=udp&{query_string}", "audit")
            expect_equal(code, 200, f"status of the API: {body}")
            holder, last = body["objects"]
            expect_equal((holder["subscriber"], holder["internal_port"], holder["certain"]), ("100.64.0.10", inside, True), "holder")
            by_command = [json.loads(line) for line in out.splitlines()]
            for one in (last, by_command[-1]):
                # "1 h ago" was resolved twice.
                for differs in ("reads", "from"):
                    del one[differs]
            expect_equal(body["objects"], by_command, f"answers to {words}")


@test("monitoring")
def holders_of_an_earlier_time_have_pages(n):
    traffic(n, 20)
    await_store(n)
    text = n.dut.command("find", "100.64.0.10", "--from", "1 h ago", "--to", "now", "--json")[1]
    wanted = [json.loads(line) for line in text.splitlines()][:-1]
    expect(len(wanted) >= 20, f"{len(wanted)} holders by the command")
    path = "/api/v1/find?address=100.64.0.10&from=1%20h%20ago&to=now"
    times = set()
    found, cursor, pages = [], "", 0
    while cursor is not None and pages < 1_000:
        status, _, page = ask(n, f"{path}&limit=7{cursor and '&cursor=' + cursor}", "audit")
        expect_equal(status, 200, f"page {pages}: {page}")
        *holders, last = page["objects"]
        expect(len(holders) <= 7 and "complete" in last, f"page {pages}: {page}")
        # Each page is about the time that was meant first, and its record says which.
        times.add(latest_records(n, 1)[0][2].split(" from ")[1])
        found, cursor, pages = found + holders, page["cursor"], pages + 1
    key = lambda one: (one["external_address"], one["first_port"], one["protocol"], one["since"])  # noqa: E731
    expect_equal(sorted(map(key, found)), sorted(map(key, wanted)), "holders of all pages")
    ((*_, result),) = latest_records(n, 1)
    expect(result.startswith(f"found {len(wanted)}"), f"record: {result}")
    (meant,) = times
    expect("Z to 2" in meant and "ago" not in meant, f"time of the records: {times}")
    status, _, refused = ask(n, f"{path}&cursor=nonsense", "audit")
    expect_equal((status, refused["error"]["object"]), (400, "cursor"), "a cursor that is none")
