"""The state of the instance as data of the YANG module ietf-nat (RFC 8512), judged by yanglint."""

import contextlib
import json
import time
from pathlib import Path

import setups
from kit import *
from netlab import process
from netlab.topology import SRV1
from test_api import TOKENS
from test_api import Connection
from test_api import ask
from test_api import traffic

MODULES = Path(__file__).with_name("yang")
NAT = "/restconf/data/ietf-nat:nat"
INSTANCE = f"{NAT}/instances/instance=1"
FEATURES = "basic-nat44,napt44,dst-nat,nat64"
PROTOCOL_NUMBERS = {"icmp": 1, "tcp": 6, "udp": 17}

# What RFC 8512 has words for, and Natrix does or does not.
CAPABILITIES = {
    "nat-flavor": ["basic-nat44", "napt44", "dst-nat", "nat64"],
    "per-interface-binding": ["unsupported"],
    "transport-protocols": [{"protocol-id": number, "protocol-name": name.upper()} for name, number in PROTOCOL_NUMBERS.items()],
    "restricted-port-support": True,
    "static-mapping-support": True,
    "port-randomization-support": True,
    "port-range-allocation-support": True,
    "port-preservation-suport": False,
    "port-parity-preservation-support": True,
    "address-roundrobin-support": True,
    "paired-address-pooling-support": True,
    "endpoint-independent-mapping-support": True,
    "address-dependent-mapping-support": False,
    "address-and-port-dependent-mapping-support": True,
    "endpoint-independent-filtering-support": True,
    "address-dependent-filtering": True,
    "address-and-port-dependent-filtering": True,
    "fragment-behavior": "out-of-order",
}


def data(n, path, role="audit"):
    """The body of an answer, as text and read."""
    status, headers, body = ask(n, path, role)
    expect_equal((status, headers["content-type"]), (200, "application/yang-data+json"), path)
    text = body if isinstance(body, dict) else json.loads(body)
    return json.dumps(text), text


def judge(n, text, kind="data", *more):
    """What yanglint says about data of the module: (status, its words)."""
    path = n.state.directory / "nat.json"
    path.write_text(text)
    command = ["yanglint", "-F", f"ietf-nat:{FEATURES}", "-p", MODULES, "-t", kind, *more, MODULES / "ietf-nat@2019-01-10.yang", path]
    status, out, err = process.run(command, check=False)
    return status, out + err


@test("api_quiet")
@shows("8512-1", "8512-2", "8512-6", "6888-REQ-10")
def yanglint_accepts_the_data_of_ietf_nat(n):
    traffic(n, 20)
    with sockets(udp(n.sub2)) as sock:
        sock.sendto(b"x", (SRV1, 9))
    text, nat = data(n, NAT)
    expect_equal(judge(n, text), (0, ""), "yanglint")
    # It would have seen faults.
    for what, broken in [
        ("a timer that is text", text.replace('"udp-timeout": ', '"udp-timeout": "x", "hold-down-max": ', 1)),
        ("an unknown leaf", text.replace('"enable": true', '"enabled": true', 1)),
        ("a missing time", text.replace('"discontinuity-time"', '"continuity-time"', 1)),
    ]:
        expect(broken != text and judge(n, broken)[0] != 0, f"yanglint accepts {what}")
    (instance,) = nat["ietf-nat:nat"]["instances"]["instance"]
    status = n.dut.show("status")[0]
    policy = instance["policy"][0]
    timers = {name: status["timeouts"][key] // 1_000_000 for name, key in {
        "udp-timeout": "udp_us", "tcp-idle-timeout": "tcp_established_us", "tcp-trans-open-timeout": "tcp_opening_us",
        "tcp-trans-close-timeout": "tcp_closing_us", "icmp-timeout": "icmp_us",
    }.items()}  # fmt: skip
    expect_equal({name: policy["timers"][name] for name in timers}, timers, "timers")
    # RFC 8512's own defaults; those of RFC 6888 for ports that are held down.
    wanted = {"udp-timeout": 300, "tcp-idle-timeout": 7440, "tcp-trans-open-timeout": 240, "tcp-trans-close-timeout": 240,
              "tcp-in-syn-timeout": 6, "fragment-min-timeout": 2, "icmp-timeout": 60, "hold-down-timeout": 120}  # fmt: skip
    expect_equal({name: policy["timers"][name] for name in wanted}, wanted, "timers by default")
    expect_equal((policy["mapping-type"], policy["address-allocation-type"], policy["port-allocation-type"]), ("eim", "paired", "random"), "behaviour")
    expect_equal(len(instance["policy"]), len(n.dut.show("pools")), "a policy for each pool")
    expect_equal(policy["timers"]["hold-down-max"], status["held_ports_max"], "ports that can be held down")
    expect_equal(instance["capabilities"], CAPABILITIES, "capabilities")
    expect_equal(policy["fragments-limit"], status["fragments_held_max"], "fragments that may wait")
    quota = {one["quota-type"]: one["port-limit"] for one in policy["port-quota"]}
    limits = {PROTOCOL_NUMBERS[name]: limit for name, limit in status["subscriber_ports_max"].items() if limit is not None}
    expect_equal(quota, limits, "ports of a subscriber")


@test("api_quiet")
def prefixes_that_pass_untranslated_are_those_of_the_rules(n):
    text = n.dut.configuration.read_text()
    rule = '\n[[rule]]\naction = "no-translation"\ninside = "100.64.0.%s/32"\n'
    whole, narrow = rule % 201, rule % 202 + 'outside = "192.0.2.0/24"\n'
    expect_equal(ask(n, "/api/v1/reload", "operate", "POST", text + whole + narrow)[0], 200, "reload")
    try:
        found = {}
        for role in ("view", "operate", "audit"):
            written, nat = data(n, NAT, role)
            expect_equal(judge(n, written), (0, ""), f"yanglint, as {role}")
            found[role] = nat["ietf-nat:nat"]["instances"]["instance"][0].get("nat-pass-through")
        wanted = [{"id": 1, "prefix": "100.64.0.201/32"}]
        expect_equal(found, {"view": None, "operate": wanted, "audit": wanted}, "nat-pass-through")
    finally:
        expect_equal(ask(n, "/api/v1/rollback", "operate", "POST")[0], 200, "rollback")


@test("api_quiet")
@shows("8512-4")
def mappings_and_statistics_are_those_of_the_command(n):
    patience = process.Patience(60)
    while True:
        traffic(n, 10)
        time.sleep(1.2)
        before = n.dut.show("status")[0]
        _, nat = data(n, NAT)
        _, table = data(n, f"{INSTANCE}/mapping-table")
        _, alone = data(n, f"{INSTANCE}/statistics")
        mappings = n.dut.show("mappings", "--all")
        pools, after = n.dut.show("pools"), n.dut.show("status")[0]
        if all(before[name] == after[name] for name in ("mappings", "packets_received", "held_ports")):
            break
        expect(not patience.is_over(), "the instance is never still")
    (instance,) = nat["ietf-nat:nat"]["instances"]["instance"]
    wanted = sorted(
        (PROTOCOL_NUMBERS[one["protocol"]], *one["internal"].split(":"), *one["external"].split(":")) for one in mappings
    )
    for what, entries in (
        ("the whole", instance["mapping-table"]["mapping-entry"]),
        ("the table", table["ietf-nat:mapping-table"]["mapping-entry"]),
    ):
        seen = sorted(
            (one["transport-protocol"], one["internal-src-address"].removesuffix("/32"), str(one["internal-src-port"]["start-port-number"]),
             one["external-src-address"].removesuffix("/32"), str(one["external-src-port"]["start-port-number"]))
            for one in entries
        )  # fmt: skip
        expect_equal(seen, wanted, f"mappings of {what}")
        expect_equal([one["index"] for one in entries], list(range(1, len(entries) + 1)), f"indices of {what}")
    statistics = instance["statistics"]
    still = {key: value for key, value in statistics.items() if key != "discontinuity-time"}
    other = {key: value for key, value in alone["ietf-nat:statistics"].items() if key != "discontinuity-time"}
    for one in (still, other):
        for pool in one["pools-stats"]["per-pool-stats"]:
            del pool["discontinuity-time"]
    expect_equal(still, other, "statistics alone")
    traffic_seen = {name: int(value) for name, value in statistics["traffic-statistics"].items()}
    expect_equal(traffic_seen["sent-packets"], before["packets_forwarded"], "packets sent")
    expect_equal(traffic_seen["rcvd-packets"], before["packets_received"], "packets received")
    expect_equal(traffic_seen["dropped-packets"], before["packets_dropped"], "packets dropped")
    totals = statistics["mappings-statistics"]
    expect_equal((totals["total-port-mappings"], totals["total-active-subscribers"]), (before["mappings"], before["subscribers"]), "totals")
    by_protocol = {one["protocol-id"]: one["total"] for one in totals["total-per-protocol"]}
    expect_equal(by_protocol, {number: sum(one[0] == number for one in wanted) for number in (1, 6, 17)}, "totals by protocol")
    stats = statistics["pools-stats"]
    expect_equal(stats["ports-stats"]["ports-allocated"], sum(sum(pool["ports_used"].values()) for pool in pools), "ports")
    addresses = sum(pool["addresses"] for pool in pools)
    expect_equal(stats["addresses-allocated"] + stats["addresses-free"], addresses, "addresses")
    per_pool = stats["per-pool-stats"]
    expect_equal(sum(sum(one["pool-stats"].values()) for one in per_pool), addresses, "addresses of the prefixes")
    limits = instance["mapping-limits"]
    expect_equal((limits["limit-port-mappings"], limits["limit-subscribers"]), (before["mappings_max"], before["subscribers_max"]), "limits")


@test("api_quiet")
def without_lookup_rights_the_data_lacks_mappings(n):
    traffic(n, 5)
    for role in ("view", "operate"):
        text, nat = data(n, NAT, role)
        (instance,) = nat["ietf-nat:nat"]["instances"]["instance"]
        expect("mapping-table" not in instance, f"{role} gets the mappings")
        expect("100.64.0.10" not in text, f"{role} gets a subscriber")
        matches = [policy["id"] for policy in instance["policy"] if "subscriber-match" in policy]
        expect_equal(bool(matches), role == "operate", f"policies with the prefixes of their subscribers for {role}: {matches}")
        expect_equal(judge(n, text), (0, ""), "yanglint")
        expect_equal(ask(n, f"{INSTANCE}/mapping-table", role)[0], 403, f"the table for {role}")
    (whole,) = data(n, NAT)[1]["ietf-nat:nat"]["instances"]["instance"]
    expect(whole["mapping-table"]["mapping-entry"], "audit gets no mappings")


@test("api_quiet")
@shows("8512-3")
def nothing_of_restconf_can_be_written(n):
    for path in (NAT, f"{INSTANCE}/statistics"):
        for method in ("PUT", "PATCH", "DELETE", "POST"):
            expect_equal(ask(n, path, "operate", method, "{}")[0], 405, f"{method} {path}")
        expect_equal(ask(n, path, None)[0], 401, f"{path} without a login")
    expect_equal(ask(n, f"{NAT}/instances/instance=2/statistics")[0], 404, "another instance")


def follow(n, stack, query):
    """The lines of a stream of notifications."""
    connection = stack.enter_context(contextlib.closing(Connection(n)))
    connection.request("GET", f"/restconf/streams/ietf-nat?{query}", headers={"Authorization": f"Bearer {TOKENS['view']}"})
    answer = connection.getresponse()
    expect_equal((answer.status, answer.headers["content-type"]), (200, "text/event-stream"), f"stream {query}")
    return answer.fp


def notified(lines):
    """The next notification: (its name, its content)."""
    while not (line := lines.readline()).startswith(b"data: "):
        expect(line, "the stream has ended")
    envelope = json.loads(line[6:])["ietf-restconf:notification"]
    expect(envelope.pop("eventTime").endswith("Z"), f"no time in {envelope}")
    ((name, content),) = envelope.items()
    return name, content


@test("api_quiet")
@shows("8512-5")
def a_pool_that_crosses_a_threshold_is_notified_once(n):
    place = [pool["name"] for pool in n.dut.show("pools")].index("scarce")
    _, nat = data(n, NAT)
    scarce = nat["ietf-nat:nat"]["instances"]["instance"][0]["policy"][place]
    policy = scarce["id"]
    (pool,) = (one["pool-id"] for one in scarce["external-ip-address-pool"])
    with contextlib.ExitStack() as stack:
        quick = follow(n, stack, "high-threshold=80&low-threshold=50&pool-notify-interval=1")
        slow = follow(n, stack, "high-threshold=80&low-threshold=50&pool-notify-interval=3600")
        instance = follow(n, stack, f"notify-subscribers-limit={n.dut.show('status')[0]['subscribers'] + 1}")
        usage = data(n, f"{INSTANCE}/statistics")[1]["ietf-nat:statistics"]["pools-stats"]
        used, free = usage["addresses-allocated"], usage["addresses-free"]
        one_more = (used + 1) * 100 // (used + free)
        addresses = follow(n, stack, f"notify-addresses-usage={one_more}")

        def next_of_pool(lines):
            while (event := notified(lines))[1]["pool-id"] != pool:
                pass
            return event

        low = {"id": 1, "policy-id": policy, "pool-id": pool, "notify-pool-threshold": 50}
        for lines in (quick, slow):
            expect_equal(next_of_pool(lines), ("ietf-nat:nat-pool-event", low), "the empty pool is below the low threshold")
        for _ in range(8):
            sock = stack.enter_context(sockets(udp(n.sub2, address=setups.SCARCE)))
            sock.sendto(b"x", (SRV1, 9))
        high = next_of_pool(quick)
        expect_equal(high, ("ietf-nat:nat-pool-event", {**low, "notify-pool-threshold": 80}), "the pool is nearly full")
        expect_equal(notified(instance), ("ietf-nat:nat-instance-event", {"id": 1, "notify-subscribers-threshold": n.dut.show("status")[0]["subscribers"]}),
                     "one more subscriber")  # fmt: skip
        expect_equal(notified(addresses), ("ietf-nat:nat-instance-event", {"id": 1, "notify-addresses-threshold": one_more}), "one more address")
        # As a YANG module sees it: the notification refers to what is there.
        tree = n.state.directory / "operational.json"
        tree.write_text(data(n, NAT)[0])
        expect_equal(judge(n, json.dumps(dict([high])), "notif", "-O", tree), (0, ""), "yanglint about the notification")
        nowhere = {high[0]: {**high[1], "pool-id": 999}}
        expect(judge(n, json.dumps(nowhere), "notif", "-O", tree)[0] != 0, "yanglint accepts a pool that is not there")
        # The second crossing is within the interval.
        slow.raw._sock.settimeout(4)
        with contextlib.suppress(TimeoutError):
            raise Failure(f"a second notification within the interval: {next_of_pool(slow)}")
    for query in ("", "high-threshold=101", "high-threshold=1&low-threshold=2", "pool-notify-interval=0&high-threshold=1", "nonsense=1"):
        status, _, refused = ask(n, f"/restconf/streams/ietf-nat?{query}")
        expect(status == 400 and refused["error"]["remedy"], f"stream {query}: {status} {refused}")
    expect_equal(ask(n, "/restconf/streams/ietf-nat?high-threshold=80", None)[0], 401, "a stream without a login")
