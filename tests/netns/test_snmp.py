"""NATV2-MIB (RFC 7659) as managers meet it: snmpd of the distribution, with Natrix as its subagent."""

import contextlib
import re
import socket
import struct
import subprocess
import time
from pathlib import Path

import setups
from kit import *
from netlab import process
from netlab.topology import SRV1
from test_api import ask
from test_api import objects
from test_api import traffic
from test_first_steps import sample

MIBS = Path(__file__).with_name("mibs")
AGENT = "127.0.0.1:1161"
TRAPS = "127.0.0.1:1162"
MIB = (1, 3, 6, 1, 2, 1, 234)
SUBSCRIBERS, INSTANCE, PROTOCOLS, POOLS, RANGES, ADDRESS_MAPS, PORT_MAPS = (
    (*MIB, 1, 1, 1), *((*MIB, 2, number, 1) for number in range(1, 7))
)  # fmt: skip
PROTOCOL_NUMBERS = {"icmp": 1, "tcp": 6, "udp": 17}
EXTERNAL = (8, *b"external", 1, 4)
INTERNAL = (8, *b"internal", 1, 4)


def agent(n):
    """Starts snmpd, once: the first test of the setup needs it, and so do all others."""
    known = getattr(n, "snmpd", None)
    if known and known.alive():
        return
    folder = n.state.directory / "snmp"
    folder.mkdir(exist_ok=True)
    named = re.search(r'^agentx = "(.*)"$', n.dut.configuration.read_text(), re.MULTILINE)[1]
    master = f"tcp:{named}" if named == setups.AGENTX_TCP else named
    (folder / "snmpd.conf").write_text(
        f"master agentx\nagentXSocket {master}\nagentXPerms 0777 0777\nrocommunity see\nrwcommunity set\n"
        f"trap2sink {TRAPS} traps\nsysServices 4\n"
    )
    (folder / "snmptrapd.conf").write_text("disableAuthorization yes\n")
    environment = ["env", f"SNMP_PERSISTENT_DIR={folder}/state", "MIBS="]
    n.snmpd = n.nat.start(
        "snmpd", [*environment, "snmpd", "-f", "-Lo", "-C", "-c", folder / "snmpd.conf", "-p", folder / "snmpd.pid", f"udp:{AGENT}"]
    )
    traps = getattr(n, "snmptrapd", None)
    if not traps or not traps.alive():
        n.snmptrapd = n.nat.start(
            "snmptrapd",
            [*environment, "snmptrapd", "-f", "-Lo", "-C", "-c", folder / "snmptrapd.conf", "-On", "-OQ", "-Ot", "-m", "", f"udp:{TRAPS}"],
        )
    ready = process.wait_until(lambda: get(n, (*INSTANCE, 2, 1)) == '"6E 61 74 72 69 78 "', 40, 0.3)
    expect(ready, f"the subagent is not registered:\n{n.snmpd.log()[-2000:]}\n{n.dut.daemon.log()[-2000:]}")


def dotted(oid):
    return "." + ".".join(map(str, oid))


def snmp(n, command, *words, community="see", options=("-m", "", "-On", "-Oe", "-Ot", "-OQ", "-Ox")):
    return n.nat.run(["env", f"SNMP_PERSISTENT_DIR={n.state.directory}/snmp/client", command, "-v2c", "-c", community, "-r2", "-t5",
                      *options, AGENT, *words])  # fmt: skip


def get(n, oid):
    """The value of an object, as text."""
    status, out, err = snmp(n, "snmpget", dotted(oid))
    return out.partition(" = ")[2].strip() if status == 0 else f"error: {err}"


def walk(n, oid, command="snmpbulkwalk", *words):
    """Objects in the order of the walk: {oid: value}."""
    status, out, err = snmp(n, command, *words, dotted(oid))
    expect_equal((status, err), (0, ""), f"{command} {dotted(oid)}")
    found = {}
    for line in re.sub(r"\n(?!\.1)", "", out).splitlines():
        name, _, value = line.partition(" = ")
        if "No Such" not in value and "No more" not in value:
            found[tuple(map(int, name.strip(".").split(".")))] = value.strip()
    return found


def table(found, entry):
    """The rows of a table: {index: {column: value}}."""
    rows = {}
    for oid, value in found.items():
        if oid[: len(entry)] == entry:
            rows.setdefault(oid[len(entry) + 1 :], {})[oid[len(entry)]] = value
    return rows


def octets(value):
    return bytes.fromhex(value.strip('"'))


def address(value):
    return ".".join(map(str, octets(value)))


def quiet(n):
    """Waits until the numbers of the instance stand still, and the agent has forgotten older ones."""
    before = None

    def still():
        nonlocal before
        status = n.dut.show("status")[0]
        now = [status[name] for name in ("mappings", "subscribers", "packets_received", "held_ports", "mappings_created")]
        same, before = now == before, now
        return same

    # Longer than a picture of the tables is kept.
    expect(process.wait_until(still, 180, 2.5), f"the instance is never still: {before}")


def set_value(n, oid, kind, value):
    """(status, standard error) of snmpset."""
    status, _, err = snmp(n, "snmpset", dotted(oid), kind, str(value), community="set")
    return status, err


def traps(n):
    """Notifications of NATV2-MIB so far: [{oid: value}]."""
    found = []
    for line in n.snmptrapd.log().splitlines():
        if ".1.3.6.1.6.3.1.1.4.1.0 = .1.3.6.1.2.1.234.0." in line:
            pairs = (part.partition(" = ") for part in re.split(r"\t|, (?=\.1)", line))
            found.append({name.strip(): value.strip() for name, _, value in pairs})
    return found


def kinds(n):
    return [int(trap[".1.3.6.1.6.3.1.1.4.1.0"].rsplit(".", 1)[1]) for trap in traps(n)]


@test("snmp")
@shows("7659-1", "7659-7", "6888-REQ-10")
def tables_show_what_the_command_shows(n):
    agent(n)
    traffic(n, 30)
    with sockets(udp(n.sub2, address=setups.IN_BLOCK)) as sock:
        sock.sendto(b"x", (SRV1, 9))
    quiet(n)
    found = walk(n, MIB)
    mappings = n.dut.show("mappings", "--all")
    pools = n.dut.show("pools")
    index_of = {pool["name"]: number for number, pool in enumerate(pools, 1)}
    expect(list(found) == sorted(found), "the walk is not in order")

    rows = table(found, PORT_MAPS)
    wanted = {}
    for one in mappings:
        ip, port = one["external"].split(":")
        index = (1, PROTOCOL_NUMBERS[one["protocol"]], *EXTERNAL, *map(int, ip.split(".")), int(port))
        wanted[index] = (*one["internal"].split(":"), index_of[one["pool"]])
    seen = {index: (address(row[9]), row[12], int(row[13])) for index, row in rows.items()}
    expect_equal(seen, wanted, "port maps")
    expect(len(rows) >= 31, f"{len(rows)} port maps")
    for row in rows.values():
        expect_equal((octets(row[7]), row[8], row[10], row[9]), (b"internal", "1", "1", row[11]), "internal realm and address")

    subscribers = table(found, SUBSCRIBERS)
    by_index = {index[0]: address(row[4]) for index, row in subscribers.items()}
    shown = {one["address"]: one for one in n.dut.show("subscribers", "--all")}
    expect_equal(sorted(by_index.values()), sorted(shown), "subscribers")
    expect_equal({by_index[int(row[14])] for row in rows.values()}, {one["internal"].split(":")[0] for one in mappings}, "their maps")
    for row in subscribers.values():
        one = shown[address(row[4])]
        expect_equal((octets(row[2]), row[3], row[5]), (b"internal", "1", "32"), "realm and prefix")
        expect_equal(int(row[7]), sum(one["mappings"].values()), f"port maps of {one['address']}")
        expect_equal((int(row[9]), int(row[10])), (one["addresses_paired"], one["mappings_created"]), f"creations of {one['address']}")
        expect(int(row[10]) >= int(row[7]), f"{one['address']} has more mappings than it made")
        limit = one["ports_max"]
        expect_equal(int(row[15]), sum(limit.values()) if limit else 0, f"limit of {one['address']}")
        expect_equal((row[16], row[17]), ("-1", "60"), "threshold and interval by default")

    pairs = {(one["internal"].split(":")[0], one["external"].split(":")[0], index_of[one["pool"]]) for one in mappings}
    rows = table(found, ADDRESS_MAPS)
    seen = {(address(row[7]), address(row[10]), int(row[11])) for row in rows.values()}
    expect_equal(seen, pairs, "address maps, one for all protocols")
    for index, row in rows.items():
        inside = tuple(octets(row[7]))
        expect_equal(index[:-1], (1, *INTERNAL, *inside), "index of an address map")
        expect_equal((octets(row[8]), by_index[int(row[12])]), (b"external", address(row[7])), "realm and subscriber")

    for index, row in table(found, POOLS).items():
        pool = pools[index[1] - 1]
        expect_equal((index[0], octets(row[3]), row[4]), (1, b"external", "1"), "instance, realm and type")
        expect_equal((int(row[5]), int(row[6])), (pool["port_min"], pool["port_max"]), f"ports of {pool['name']}")
        expect_equal(int(row[7]), pool["subscribers"], f"address maps of {pool['name']}")
        mapped = sum(pool["ports_used"].values()) - sum(pool["ports_held"].values())
        expect_equal(int(row[8]), mapped, f"port maps of {pool['name']}")
        names = ("addresses_paired", "mappings_created", "refused_without_address", "refused_without_port")
        expect_equal([int(row[column]) for column in range(9, 13)], [pool[name] for name in names], f"counters of {pool['name']}")
        expect_equal((row[14], row[15], row[18]), ("-1", "-1", "20"), "thresholds and interval by default")
    ranges = {}
    for index, row in table(found, RANGES).items():
        first, last = (int.from_bytes(octets(row[column]), "big") for column in (4, 5))
        ranges.setdefault(pools[index[1] - 1]["name"], []).extend(range(first, last + 1))
    wanted = {}
    for one in n.dut.show("pools", "--addresses", "--all"):
        wanted.setdefault(one["pool"], []).append(int.from_bytes(bytes(map(int, one["address"].split("."))), "big"))
    expect_equal({name: sorted(some) for name, some in ranges.items()}, {name: sorted(some) for name, some in wanted.items()}, "ranges")


@test("snmp")
def walks_that_name_subscribers_are_in_the_audit_log(n):
    agent(n)
    traffic(n, 3)
    quiet(n)
    for entry in (SUBSCRIBERS, ADDRESS_MAPS, PORT_MAPS):
        expect(walk(n, entry), "an empty table")
    records = objects(n, "/api/v1/audit?limit=10000", "audit")
    seen = {(one["action"], one["subject"]) for one in records if (one["who"], one["from"]) == ("snmp", "agentx")}
    wanted = {("show subscribers", "all"), ("show mappings", "all")}
    expect(wanted <= seen, f"lookups of SNMP: {seen}")
    # What a manager sets has its object and its value.
    expect_equal(set_value(n, (*INSTANCE, 21, 1), "i", 123_456)[0], 0, "setting a threshold")
    set_value(n, (*INSTANCE, 21, 1), "i", -1)
    one = objects(n, "/api/v1/audit?limit=2", "audit")[1]
    expect_equal((one["who"], one["from"], one["action"]), ("snmp", "agentx", "snmp set"), "the record of a set")
    expect("123456" in one["subject"], f"subject of a set: {one['subject']}")


@test("snmp")
@shows("7659-6")
def command_api_metrics_and_snmp_agree(n):
    agent(n)
    traffic(n, 10)
    quiet(n)
    _, _, status = ask(n, "/api/v1/status")
    metrics = ask(n, "/metrics")[2].decode()
    counters = {one["name"]: one["value"] for one in objects(n, "/api/v1/counters")}
    drops = {one["reason"]: one["packets"] for one in n.dut.show("drops", "--all")}
    found = walk(n, (*MIB, 2))
    row = table(found, INSTANCE)[1,]
    number = {column: int(value) for column, value in row.items() if column != 2}
    expect_equal(octets(row[2]), b"natrix", "alias")
    expect_equal([number[column] for column in (3, 4, 5, 6)], [0, 0, 1, 2], "behaviour")
    expect_equal(number[8], status["mappings"], "port maps")
    expect_equal(number[8], int(sample(metrics, "natrix_mappings")), "port maps in metrics")
    expect_equal(number[11], int(sample(metrics, "natrix_mappings_created_total")), "creations in metrics")
    expect_equal(number[9], counters["outbound"] + counters["inbound"] + counters["hairpin"], "translations")
    expect_equal(number[10], counters["addresses_paired"], "creations of address maps")
    by_pool = table(found, POOLS).values()
    for column, whole in ((9, 10), (10, 11), (11, 15), (12, 16)):
        expect_equal(sum(int(row[column]) for row in by_pool), number[whole], f"column {column} over all pools")
    expect(number[11] >= 10, f"{number[11]} mappings were made")
    for column, reasons in {
        12: [], 13: ["mapping_table_full"], 14: ["subscriber_table_full"], 15: ["address_draining"],
        16: ["ports_exhausted", "block_limit", "subscriber_port_quota"], 17: ["fragment_table_full", "fragment_buffers_full"],
    }.items():  # fmt: skip
        expect_equal(number[column], sum(drops[reason] for reason in reasons), f"drops in column {column}")
    expect_equal((number[24], number[26]), (status["mappings_max"], status["subscribers_max"]), "limits")
    expect_equal((number[20], number[21], number[22], number[23]), (-1, -1, 10, 0), "thresholds, interval and limit by default")
    maps = table(found, PORT_MAPS)
    for index, protocol in table(found, PROTOCOLS).items():
        expect_equal(int(protocol[3]), sum(other[1] == index[1] for other in maps), f"port maps of protocol {index[1]}")
        name = next(name for name, value in PROTOCOL_NUMBERS.items() if value == index[1])
        expect_equal(int(protocol[4]), counters[f"translated_{name}"], f"translations of {name}")
        expect_equal(int(protocol[5]), counters[f"mappings_created_{name}"], f"creations of {name}")
        expect_equal(int(protocol[6]), counters[f"ports_refused_{name}"], f"refusals of {name}")
    expect_equal([index for index in table(found, PROTOCOLS)], [(1, 1), (1, 6), (1, 17)], "protocols")
    expect_equal(sum(int(row[4]) for row in table(found, PROTOCOLS).values()), number[9], "translations of all protocols")
    expect_equal(number[7], len(table(found, ADDRESS_MAPS)), "address maps")


@test("snmp")
def get_next_and_bulk_find_the_same_objects(n):
    agent(n)
    traffic(n, 5)
    volatile = {(*INSTANCE, 9, 1)}
    same = lambda found: {oid: value for oid, value in found.items() if oid not in volatile}  # noqa: E731
    for _ in range(15):
        quiet(n)
        by_bulk = walk(n, MIB)
        by_next = walk(n, MIB, "snmpwalk")
        # On a busy machine a walk takes seconds, and a mapping may end meanwhile.
        if same(walk(n, MIB)) == same(by_bulk):
            break
    else:
        raise Failure("the instance is never still")
    differences = {oid for oid in by_bulk.keys() | by_next.keys() if by_bulk.get(oid) != by_next.get(oid)} - volatile
    expect_equal(differences, set(), "objects that snmpwalk and snmpbulkwalk show differently")
    names = list(by_bulk)
    for start in range(0, len(names), 50):
        some = names[start : start + 50]
        status, out, err = snmp(n, "snmpget", *map(dotted, some))
        expect_equal((status, err), (0, ""), f"snmpget of {len(some)} objects")
        expect("No Such" not in out, f"an object of the walk is not there: {out}")
    for what, oid, wanted in [
        ("a row that is not there", (*POOLS, 3, 1, 99), "No Such Instance"),
        ("an index that is too long", (*INSTANCE, 2, 1, 1), "No Such Instance"),
        ("an index that is too short", (*INSTANCE, 2), "No Such Instance"),
        ("a column that cannot be read", (*POOLS, 16, 1, 1), "No Such Object"),
        ("a column that the engine does not count", (*SUBSCRIBERS, 8, 1), "No Such Object"),
        ("an index column", (*INSTANCE, 1, 1), "No Such Object"),
    ]:
        expect(wanted in get(n, oid), f"{what}: {get(n, oid)}")
    end = walk(n, (*PORT_MAPS, 14))
    last = max(end)
    status, out, _ = snmp(n, "snmpgetnext", dotted(last))
    expect(status == 0 and ".1.3.6.1.2.1.234" not in out, f"the object after the last: {out}")


@test("snmp")
def names_of_the_published_mib_fit_the_objects(n):
    agent(n)
    options = ("-M", MIBS, "-m", "NATV2-MIB")
    status, out, err = snmp(n, "snmpwalk", "NATV2-MIB::natv2MIB", options=options)
    expect_equal((status, err), (0, ""), "snmpwalk with the MIB")
    for line in (
        "NATV2-MIB::natv2InstanceAlias.1 = STRING: natrix",
        "NATV2-MIB::natv2InstancePoolingBehavior.1 = INTEGER: paired(1)",
        "NATV2-MIB::natv2InstanceFragmentBehavior.1 = INTEGER: fragmentOutOfOrder(2)",
        "NATV2-MIB::natv2PoolMinimumPort.1.1 = Gauge32: ",
        "NATV2-MIB::natv2PoolNotificationInterval.1.1 = Gauge32: 20 Seconds",
    ):
        expect(line in out, f"no {line} in\n{out[:3000]}")
    # Net-SNMP says so when a value has another type than the MIB.
    expect("Wrong Type" not in out, out)
    status, out, err = snmp(n, "snmptable", "-Cb", "-Ci", "-Cf", ";", "NATV2-MIB::natv2PoolTable", options=options)
    expect_equal(status, 0, f"snmptable: {err}")
    lines = out.split("\n\n", 1)[1].splitlines()
    rows = [dict(zip(lines[0].split(";"), line.split(";"))) for line in lines[1:] if line]
    for row, pool in zip(rows, n.dut.show("pools"), strict=True):
        wanted = ("external", "ipv4", str(pool["port_min"]), str(pool["port_max"]), str(pool["subscribers"]))
        seen = tuple(row[name] for name in ("Realm", "AddressType", "MinimumPort", "MaximumPort", "AddressMapEntries"))
        expect_equal(seen, wanted, f"row of {pool['name']}")
    status, out, _ = snmp(n, "snmptable", "-Cb", "NATV2-MIB::natv2InstanceTable", options=options)
    expect(status == 0 and "endpointIndependent" in out, f"snmptable of instances: {out}")


@test("snmp")
@shows("7659-2")
def a_full_pool_is_reported_once(n):
    agent(n)
    scarce = 1 + [pool["name"] for pool in n.dut.show("pools")].index("scarce")
    expect_equal(traps(n), [], "notifications before a threshold is set")
    expect_equal(set_value(n, (*POOLS, 15, 1, scarce), "i", 80)[0], 0, "setting the threshold")
    expect_equal(set_value(n, (*POOLS, 18, 1, scarce), "u", 3600)[0], 0, "setting the interval")
    expect_equal(get(n, (*POOLS, 15, 1, scarce)), "80", "threshold as set")
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(sockets(udp(n.sub2, address=setups.SCARCE)))
            sock.sendto(b"x", (SRV1, 9))
        expect(process.wait_until(lambda: 2 in kinds(n), 20, 0.2), f"no notification: {n.snmptrapd.log()}")
        sock = stack.enter_context(sockets(udp(n.sub2, address=setups.SCARCE)))
        sock.sendto(b"x", (SRV1, 9))
        time.sleep(3)
    expect_equal(kinds(n).count(2), 1, "notifications within the interval")
    (high,) = (trap for trap in traps(n) if trap[".1.3.6.1.6.3.1.1.4.1.0"].endswith(".234.0.2"))
    entries, protocol = (int(high[dotted((*POOLS, column, 1, scarce))]) for column in (16, 17))
    expect(8 <= entries <= 9 and protocol == 17, f"notification: {high}")
    expect_equal(set_value(n, (*POOLS, 15, 1, scarce), "i", -1)[0], 0, "disabling the notification")
    # The low one is reported when its threshold is set and met.
    idle = 1 + [pool["name"] for pool in n.dut.show("pools")].index("leased")
    set_value(n, (*POOLS, 14, 1, idle), "i", 50)
    expect(process.wait_until(lambda: 1 in kinds(n), 20, 0.2), f"no notification of low usage: {n.snmptrapd.log()}")
    set_value(n, (*POOLS, 14, 1, idle), "i", -1)


@test("snmp")
@shows("7659-3")
def many_maps_of_the_instance_are_reported(n):
    agent(n)
    before = len(traps(n))
    set_value(n, (*INSTANCE, 22, 1), "u", 3600)
    set_value(n, (*INSTANCE, 20, 1), "i", 1)
    set_value(n, (*INSTANCE, 21, 1), "i", 1)
    traffic(n, 3)
    expect(process.wait_until(lambda: {3, 4} <= set(kinds(n)[before:]), 20, 0.2), f"no notifications: {n.snmptrapd.log()}")
    for column in (20, 21):
        set_value(n, (*INSTANCE, column, 1), "i", -1)
    set_value(n, (*INSTANCE, 22, 1), "u", 10)
    status = n.dut.show("status")[0]
    paired = sum(pool["addresses_paired"] for pool in n.dut.show("pools"))
    for kind, what, columns, most in ((3, "address maps", (7, 10), paired), (4, "port maps", (8, 11), status["mappings_created"])):
        (trap,) = (trap for trap in traps(n)[before:] if trap[".1.3.6.1.6.3.1.1.4.1.0"].endswith(f".234.0.{kind}"))
        entries, creations = (int(trap[dotted((*INSTANCE, column, 1))]) for column in columns)
        expect(1 <= entries <= creations <= most, f"{what}: notification {trap}, at most {most}")


@test("snmp")
@shows("7659-4", "7659-5")
def a_subscriber_at_its_limit_is_counted_and_reported(n):
    agent(n)
    sent = setups.SNMP_LIMIT + 3
    before = {column: int(get(n, (*INSTANCE, column, 1))) for column in range(12, 19)}
    full_before = {index: int(row[12]) for index, row in table(walk(n, POOLS), POOLS).items()}
    refused = {number: int(get(n, (*PROTOCOLS, 6, 1, number))) for number in PROTOCOL_NUMBERS.values()}
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(sockets(udp(n.sub2, address=setups.LIMITED))) for _ in range(sent)]
        socks[0].sendto(b"x", (SRV1, 9))

        def found():
            rows = table(walk(n, SUBSCRIBERS), SUBSCRIBERS).items()
            return next((index[0] for index, row in rows if address(row[4]) == setups.LIMITED), None)

        index = process.wait_until(found, 30, 1)
        expect(index, "the subscriber is not in the table")
        index = found()
        expect_equal(int(get(n, (*SUBSCRIBERS, 15, index))), setups.SNMP_LIMIT * 3, "limit over three transports")
        expect_equal(set_value(n, (*SUBSCRIBERS, 16, index), "i", setups.SNMP_LIMIT)[0], 0, "setting the threshold")
        for sock in socks[1:]:
            sock.sendto(b"x", (SRV1, 9))
        expect(process.wait_until(lambda: 5 in kinds(n), 40, 0.5), f"no notification: {n.snmptrapd.log()}")
        seen = process.wait_until(lambda: get(n, (*SUBSCRIBERS, 12, index)) == "3", 30, 1)
        expect(seen, f"refused packets of the subscriber: {get(n, (*SUBSCRIBERS, 12, index))}")
        moved = {column: int(get(n, (*INSTANCE, column, 1))) - value for column, value in before.items()}
        by_protocol = {number: int(get(n, (*PROTOCOLS, 6, 1, number))) - value for number, value in refused.items()}
        full = {index: int(row[12]) - full_before[index] for index, row in table(walk(n, POOLS), POOLS).items()}
        expect_equal([count for count in full.values() if count], [3], f"refusals by pool: {full}")
        expect_equal(get(n, (*SUBSCRIBERS, 10, index)), str(setups.SNMP_LIMIT), "mappings made for the subscriber")
    (trap,) = (trap for trap in traps(n) if trap[".1.3.6.1.6.3.1.1.4.1.0"].endswith(".234.0.5"))
    expect_equal(trap[dotted((*SUBSCRIBERS, 7, index))], str(setups.SNMP_LIMIT), "port maps in the notification")
    expect_equal(trap[dotted((*SUBSCRIBERS, 10, index))], str(setups.SNMP_LIMIT), "creations in the notification")
    expect_equal({column: count for column, count in moved.items() if count}, {16: 3}, "drop counters that moved")
    expect_equal({number: count for number, count in by_protocol.items() if count}, {17: 3}, "protocols whose drops moved")
    set_value(n, (*SUBSCRIBERS, 16, index), "i", -1)


@test("snmp")
def only_thresholds_and_intervals_can_be_set(n):
    agent(n)
    for what, oid, kind, value, wanted in [
        ("a threshold above 100 percent", (*POOLS, 15, 1, 1), "i", 101, "wrongValue"),
        ("a threshold below -1", (*INSTANCE, 21, 1), "i", -2, "wrongValue"),
        ("an interval of 0", (*INSTANCE, 22, 1), "u", 0, "wrongValue"),
        ("an interval of more than an hour", (*INSTANCE, 22, 1), "u", 3601, "wrongValue"),
        ("a threshold of another type", (*INSTANCE, 21, 1), "u", 5, "wrongType"),
        ("a pool that is not there", (*POOLS, 15, 1, 99), "i", 5, "noCreation"),
        ("a limit of the engine", (*INSTANCE, 24, 1), "u", 5, "notWritable"),
        ("a counter", (*INSTANCE, 9, 1), "i", 5, "notWritable"),
        ("an object that is not there", (*MIB, 9, 9), "i", 5, "notWritable"),
    ]:
        status, err = set_value(n, oid, kind, value)
        expect(status != 0 and wanted in err, f"{what}: {status} {err}")
    # All or nothing.
    status, _, err = snmp(n, "snmpset", dotted((*INSTANCE, 21, 1)), "i", "77", dotted((*INSTANCE, 22, 1)), "u", "0", community="set")
    expect(status != 0 and "wrongValue" in err, f"one good and one bad value: {status} {err}")
    expect_equal(get(n, (*INSTANCE, 21, 1)), "-1", "threshold after a refused request")


def subagent(n):
    """The process identifier of natrix snmp."""
    lines = process.run(["ps", "--no-headers", "-o", "pid,args", "--ppid", n.dut.daemon.process.pid])[1].splitlines()
    return next((line.split()[0] for line in lines if line.split()[-1] == "snmp"), None)


@test("snmp")
def thresholds_outlast_the_process(n):
    agent(n)
    pool = 1 + [pool["name"] for pool in n.dut.show("pools")].index("scarce")

    def subscriber():
        rows = table(walk(n, SUBSCRIBERS), SUBSCRIBERS).items()
        return next((index[0] for index, row in rows if address(row[4]) == setups.LIMITED), None)

    with sockets(udp(n.sub2, address=setups.LIMITED)) as sock:
        sock.sendto(b"x", (SRV1, 9))
        expect(process.wait_until(subscriber, 30, 1), "the subscriber is not in the table")
        kept = ((INSTANCE, 21, 1), "i", 70), ((POOLS, 15, 1, pool), "i", 99), ((POOLS, 18, 1, pool), "u", 77)
        kept = [(entry, rest, kind, value) for (entry, *rest), kind, value in kept]
        kept.append((SUBSCRIBERS, [16, subscriber()], "i", 1000))
        for entry, rest, kind, value in kept:
            expect_equal(set_value(n, (*entry, *rest), kind, value), (0, ""), f"setting {rest}")
        saved = Path(setups.THRESHOLDS)
        expect_equal(saved.stat().st_mode & 0o777, 0o600, "who may read the file, which names subscribers")
        expect_equal([path.name for path in saved.parent.iterdir()], [saved.name], "files beside it")
        subprocess.run(["kill", "-9", subagent(n)], check=True)
        back = process.wait_until(lambda: get(n, (*INSTANCE, 21, 1)) == "70", 40, 0.3)
        expect(back, f"threshold of the instance: {get(n, (*INSTANCE, 21, 1))}\n{n.dut.daemon.log()[-1000:]}")
        expect(process.wait_until(subscriber, 30, 1), "the subscriber is not in the table of the new process")
        # The new process may number subscribers otherwise.
        kept[-1] = (SUBSCRIBERS, [16, subscriber()], "i", 1000)
        expect_equal([get(n, (*entry, *rest)) for entry, rest, _, _ in kept], ["70", "99", "77", "1000"], "thresholds")
        # Nothing is said to be set that the next process would not have.
        in_the_way = saved.with_name(saved.name + ".new")
        in_the_way.mkdir()
        status, err = set_value(n, (*INSTANCE, 21, 1), "i", 71)
        expect(status != 0 and "commitFailed" in err, f"a set that cannot be saved: {status} {err}")
        expect_equal(get(n, (*INSTANCE, 21, 1)), "70", "threshold after it")
        in_the_way.rmdir()
        for entry, rest, kind, value in kept:
            set_value(n, (*entry, *rest), kind, 20 if kind == "u" else -1)
    expect_equal(saved.read_text(), '{"version":1,"set":[]}\n', "file without thresholds")


@test("snmp")
def the_process_is_confined_and_comes_back(n):
    agent(n)
    child = subagent(n)
    status = Path(f"/proc/{child}/status").read_text()
    expect_equal(re.search(r"CapEff:\s+(\w+)", status)[1], "0" * 16, "capabilities")
    expect_equal(re.search(r"NoNewPrivs:\s+(\d)", status)[1], "1", "NoNewPrivs, which Landlock sets")
    with sockets(udp(n.sub1), udp(n.srv1)) as (sock, server):
        subprocess.run(["kill", "-9", child], check=True)
        sock.sendto(b"x", (SRV1, server.getsockname()[1]))
        receive(server, "a datagram after the kill")
    back = process.wait_until(lambda: get(n, (*INSTANCE, 8, 1)).isdigit(), 40, 0.3)
    expect(back, f"the subagent is not back: {n.dut.daemon.log()[-1000:]}")
    # The master agent goes and comes.
    expect_equal(n.snmpd.end(10), 0, "end of snmpd")
    agent(n)
    started = int(get(n, (*INSTANCE, 19, 1)))
    expect_equal(started, 0, "sysUpTime of the younger snmpd when the instance started")
    expect(n.dut.alive() and n.dut.running(), "the NAT has ended")


def pdu(code, payload=b"", session=7):
    """A PDU of AgentX as a master agent sends it, in its own order of bytes."""
    return struct.pack("<BBBBIIII", 1, code, 0, 0, session, 8, 9, len(payload)) + payload


def take_pdu(sock):
    """(type, order, packet, payload) of the next PDU of the subagent."""
    head = receive_exactly(sock, 20)
    order = ">" if head[2] & 16 else "<"
    _, _, packet, length = struct.unpack(f"{order}IIII", head[4:])
    return head[1], order, packet, receive_exactly(sock, length)


def receive_exactly(sock, size):
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        expect(more, f"the subagent closed the connection after {len(data)} of {size} bytes")
        data += more
    return data


def respond(sock, packet, error=0):
    sock.sendall(struct.pack("<BBBBIIII", 1, 18, 0, 0, 7, 0, packet, 8) + struct.pack("<IHH", 100, error, 0))


@test("snmp_tcp")
def a_rogue_master_agent_does_no_harm(n):
    child = subagent(n)
    host, port = setups.AGENTX_TCP.split(":")
    with n.nat.entered():
        master = socket.create_server((host, int(port)))
    master.settimeout(20)
    subtree = struct.pack("<BBBBII", 2, 2, 0, 0, 1, 234)
    nothing = bytes(4)
    with contextlib.closing(master):
        sock, _ = master.accept()
        with contextlib.closing(sock):
            # A payload of 4 GiB to come.
            sock.sendall(struct.pack("<BBBBIIII", 1, 18, 0, 0, 1, 1, 1, 0xFFFFFFFC) + b"x" * 1000)
            expect_equal(take_pdu(sock)[0], 1, "first PDU: a session is asked for")
        sock, _ = master.accept()
        with contextlib.closing(sock):
            sock.settimeout(10)
            for wanted in (1, 3):
                code, order, packet, payload = take_pdu(sock)
                expect_equal((code, order), (wanted, ">"), "session and registration")
                respond(sock, packet)
            for what, request, error in [
                ("a truncated object", pdu(5, b"\x05\x02\x00\x00" + b"\x00" * 8), 266),
                ("half of a range", pdu(6, subtree), 266),
                ("a context", struct.pack("<BBBBIIII", 1, 5, 8, 0, 7, 8, 9, 24) + struct.pack("<I", 4) + b"vrf1" + subtree + nothing, 262),
                ("values that nobody tested", pdu(9), 14),
                ("a set of an object that is not there", pdu(8, struct.pack("<HH", 2, 0) + subtree + struct.pack("<i", 1)), 17),
            ]:
                sock.sendall(request)
                code, order, packet, payload = take_pdu(sock)
                expect_equal((code, packet, struct.unpack(f"{order}IHH", payload[:8])[1]), (18, 9, error), what)
            # The most objects of the most repetitions.
            sock.sendall(pdu(7, struct.pack("<HH", 0, 65535) + (subtree + nothing) * 100))
            code, order, _, payload = take_pdu(sock)
            expect_equal((code, struct.unpack(f"{order}IHH", payload[:8])[1]), (18, 0), "a large GetBulk")
            expect(100 < len(payload) <= 65536, f"{len(payload)} bytes of answer")
            # An unknown type, and one that gets no answer; then it still answers.
            sock.sendall(pdu(200) + pdu(11) + pdu(5, subtree + nothing))
            code, order, _, payload = take_pdu(sock)
            expect_equal((code, payload[8:10]), (18, struct.pack(f"{order}H", 128)), "an object that is not there")
    status = Path(f"/proc/{child}/status").read_text()
    expect(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) < 100_000, "memory of the subagent")
    expect(n.dut.alive() and n.dut.running(), "the NAT has ended")


@test("snmp_tcp")
def agentx_over_tcp_and_without_subscribers(n):
    agent(n)
    with sockets(udp(n.sub1)) as sock:
        sock.sendto(b"x", (SRV1, 9))
        process.wait_until(lambda: get(n, (*INSTANCE, 8, 1)) != "0", 10, 0.3)
        expect(int(get(n, (*INSTANCE, 8, 1))) >= 1, "port maps of the instance")
        found = walk(n, MIB)
    for what, entry in (("subscribers", SUBSCRIBERS), ("address maps", ADDRESS_MAPS), ("port maps", PORT_MAPS)):
        expect_equal(table(found, entry), {}, what)
    expect(table(found, POOLS) and table(found, RANGES), "no pools")
