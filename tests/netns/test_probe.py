"""`natrix lab probe`, in namespaces of its own: what it finds of real Natrix and of the kernel's NAT is what they are known to do."""

import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from kit import *
from test_lab import IN_DEVICE, WAIT_SECONDS, another_operators_device

# What it says of both, by finding; of times the configured seconds.
FINDINGS = {
    "natrix": {
        "mapping.udp": "endpoint-independent",
        "mapping.tcp": "endpoint-independent",
        "mapping.icmp": "endpoint-independent",
        "filtering.udp": "endpoint-independent",
        "filtering.tcp": "endpoint-independent",
        "ports.overloading": "none",
        "ports.order": "random",
        "ports.range": "one for all hosts",
        "pooling": "paired",
        "hairpinning.udp": "yes, with the external source",
        "hairpinning.tcp": "yes, with the external source",
        "hairpinning.icmp_error": "yes, quoting what was sent",
        "tcp.unsolicited_syn": "silence for 6 s, then ICMP 3/3",
        "tcp.matching_syn": "not to be seen: the filter lets the stranger's SYN in",
        "tcp.stray_segment": "dropped",
    },
    "netfilter": {
        "mapping.udp": "address-and-port-dependent",
        "mapping.tcp": "address-and-port-dependent",
        "filtering.udp": "address-and-port-dependent",
        "filtering.tcp": "address-and-port-dependent",
        "ports.overloading": "external endpoints are shared",
        "ports.order": "random",
        "ports.range": "one for all hosts",
        "pooling": "arbitrary",
        "hairpinning.udp": "no",
        "hairpinning.tcp": "no",
        # The SYN is one that nobody knows, to an address that nobody has.
        "tcp.matching_syn": "ICMP 3/0 at once",
        # It is probed as it comes: nf_conntrack_tcp_loose is on.
        "tcp.stray_segment": "opens a connection",
    },
}
BOTH = {
    "fragments.out.in_order": "passed",
    "fragments.out.out_of_order": "passed",
    "fragments.in.in_order": "passed",
    "fragments.in.out_of_order": "passed",
    "fragments.out.full_size": "passed",
    "fragments.in.full_size": "passed",
    "ttl.out": "less by 1",
    "ttl.in": "less by 1",
    "ttl.out.expired": "ICMP 11/0 in the sender's terms",
    "ttl.in.expired": "ICMP 11/0 in the sender's terms",
    "icmp.query": "answered, each host by itself",
    "icmp.errors.in.udp": "translated",
    "icmp.errors.in.tcp": "translated",
    "icmp.errors.survival.udp": "the flow lives on",
    "icmp.errors.out": "translated",
    "icmp.errors.bad_checksum": "dropped",
    "tcp.simultaneous_open": "works",
    "exhaustion.refusal": "no end found",
    "exhaustion.eviction": "not known: no end was found, so that none had to go",
}
# As the lab sets them with --quick. Natrix takes a SYN-ACK for the end of the opening (RFC 7857
# §2), keeps half-closed connections as established ones, and lets those that were silent for long
# close.
TIMES = {
    "natrix": {"udp.answered": 5, "tcp.syn_received": 9, "tcp.established": 9, "tcp.client_closed": 9},
    "netfilter": {"udp.answered": 3, "tcp.syn_received": 4, "tcp.established": 7, "tcp.client_closed": 2},
}
TIMES_OF_BOTH = {"udp.unanswered": 3, "udp.stream": 5, "tcp.syn_sent": 4, "tcp.closed": 2, "tcp.server_reset": 2, "icmp.query": 6}
REFRESH = {"natrix": "outbound", "netfilter": "both"}


# A flow that is asked later than this, or a packet that takes so long, does not count: it shows
# nothing about the intended time.
LATE_SECONDS = 0.4
ATTEMPTS = 5


def probe_both(binary):
    """Both at the same time, as most of it is waiting. What they found, by device; by finding and by timer."""
    words = ["lab", "probe", "--quick", "--patience", "600", "--json", "--dut"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    running = {dut: subprocess.Popen([str(binary), *words, dut], **pipes) for dut in FINDINGS}
    outputs = {}
    for dut, process in running.items():
        try:
            outputs[dut] = process.communicate(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            outputs[dut] = process.communicate()
    results = {}
    for dut, (out, errors) in outputs.items():
        process = running[dut]
        expect_equal(process.returncode, 0, f"status of the probe of {dut}, which says {errors.decode()[-300:]}")
        result = json.loads(out)
        expect_equal((result["test"], result["dut"]), ("probe", dut), "test and device")
        if dut == "netfilter":
            expect_equal(result["device"]["nf_conntrack_tcp_loose"], "1", "nf_conntrack_tcp_loose, as the kernel comes")
        findings = {finding["name"]: finding for finding in result["findings"]}
        timers = {f"{timer['protocol']}.{timer['state']}": timer for timer in result["timers"]}
        results[dut] = (findings, timers)
    return results


def was_in_time(results):
    """Whether the machine was quick enough for the times to mean anything."""
    timers = [timer for _, timers in results.values() for timer in timers.values()]
    return all(timer["late_seconds"] < LATE_SECONDS and timer["contradictions"] == 0 for timer in timers)


@test("probe")
def the_probe_finds_natrix_and_netfilter_as_they_are(n):
    for _ in range(ATTEMPTS):
        results = probe_both(n.dut.binary)
        if was_in_time(results):
            break
    else:
        raise Failure(f"the machine is too slow to ask in time {ATTEMPTS} times in a row")
    for dut, (findings, timers) in results.items():
        for name, value in (BOTH | FINDINGS[dut]).items():
            found = findings[name]
            expect_equal(found["value"], value, f"{dut}, {name}, seen {found['evidence']}")
        for name, seconds in (TIMES_OF_BOTH | TIMES[dut]).items():
            low, high = timers[name]["seconds_low"], timers[name]["seconds_high"]
            is_there = low is not None and high is not None
            expect(
                is_there and low - LATE_SECONDS <= seconds <= high + LATE_SECONDS,
                f"{dut}, {name}: {seconds} s is between {low} and {high}",
            )
        expect_equal(timers["udp.answered"]["refresh"], REFRESH[dut], f"{dut}: what refreshes UDP")


def probe(n, *words):
    """What the probe found: status, object or None, what it said."""
    command = [str(n.dut.binary), "lab", "probe", "--patience", "600", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


OF_FAMILIES = "mapping,filtering,ports,hairpinning,fragments,ttl,icmp"


@test("probe")
def the_probe_finds_the_same_behaviour_for_ipv6_hosts(n):
    for family in ("nat64", "dslite"):
        # What a busy machine leaves undecided is asked again.
        for _ in range(5):
            status, found, errors = probe(n, "--dut", "natrix", "--family", family, "--quick", "--only", OF_FAMILIES)
            expect_equal(status, 0, f"status of the probe of {family} ({errors[-300:]})")
            expect_equal((found["parameters"]["family"], found["device"]["family"]), (family, family), "family")
            values = {finding["name"]: finding["value"] for finding in found["findings"]}
            unmet = {
                finding["name"]: judgement["verdict"]
                for finding in found["findings"]
                for judgement in finding["judgements"]
                if judgement["verdict"] not in ("met", "not_applicable")
            }
            if "undecided" not in unmet.values():
                break
        expected = {name: value for name, value in (BOTH | FINDINGS["natrix"]).items() if not name.startswith(("tcp.", "exhaustion."))}
        expect_equal({name: values[name] for name in expected}, expected, f"what is found of {family}")
        expect_equal(unmet, {"ports.low": "not_met"}, f"what {family} does not meet")
    status, _, errors = probe(n, "--dut", "netfilter", "--family", "nat64")
    expect_equal(status, 1, "status of the probe of Netfilter's IPv6 hosts")
    expect("error: device netfilter: has no IPv6 hosts in this lab; leave --family out" in errors, errors[-300:])


# A pool of each kind, and what is found of it: ranges of ports, pooling, ports below 1024.
OWN_RANGE, OWN_RANGES = "each host has a range of its own", "each host has ranges of its own"
POOLS = {
    "arbitrary pooling, blocks of 64": (
        """
pooling = "arbitrary"
allocation = "blocks"
block_size = 64
""",
        (OWN_RANGE, "arbitrary"),
    ),
    "paired pooling, blocks of 64": ('allocation = "blocks"\nblock_size = 64\n', (OWN_RANGE, "paired")),
    "deterministic": ('allocation = "deterministic"\nblocks_per_subscriber = 0\n', (OWN_RANGE, "paired")),
    "deterministic, spread": ('allocation = "deterministic"\nalgorithm = "spread"\nblocks_per_subscriber = 0\n', (OWN_RANGE, "paired")),
    "deterministic, keyed": (
        """
allocation = "deterministic"
algorithm = "keyed"
algorithm_key = "abcdefghijkl"
blocks_per_subscriber = 0
""",
        (OWN_RANGE, "paired"),
    ),
    "deterministic with dynamic blocks": (
        """
allocation = "deterministic"
ports = "1024-5119"
dynamic_slices = 16
blocks_per_subscriber = 4
block_size = 64
""",
        (OWN_RANGES, "paired"),
    ),
}
NATRIX = """
[[interface]]
name = "inside"
realm = "inside"
driver = "net_memif0,role=client,id=0,socket={folder}/in.sock,socket-abstract=no"
addresses = ["10.255.0.1/30"]

[[interface]]
name = "outside"
realm = "outside"
driver = "net_memif1,role=client,id=1,socket={folder}/out.sock,socket-abstract=no"
addresses = ["172.16.255.1/30"]

[[route]]
prefix = "10.0.0.0/16"
via = "10.255.0.2"

[[route]]
prefix = "198.19.0.0/16"
via = "172.16.255.2"

[[pool]]
name = "lab"
addresses = ["198.18.0.0-198.18.0.255"]
subscribers = ["10.0.0.0/16"]
{pool}

[tables]
flows = 50000
mappings = 200000
extra_sessions = 1000
subscribers = 65536

[workers]
count = 1

[control]
socket = "{folder}/control.sock"
"""


def beside_natrix_over_memif(n, pool, *words):
    """The status of the probe of Natrix with a pool of this kind, which it knows nothing of; what it found, what it said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "natrix.toml").write_text(NATRIX.format(folder=folder, pool=pool))
        port = "net_memif{},role=server,id={},socket={}/{}.sock,socket-abstract=no"
        ends = ["--inside", port.format(0, 0, folder, "in"), "--outside", port.format(1, 1, folder, "out")]
        command = [str(n.dut.binary), "lab", "probe", "--dut", "external", *ends, "--patience", "600", "--json", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as prober:
            # The sockets are the probe's.
            until = time.monotonic() + WAIT_SECONDS
            while not ((folder / "in.sock").exists() and (folder / "out.sock").exists()) and time.monotonic() < until:
                time.sleep(0.05)
            natrix = subprocess.Popen(
                [str(n.dut.binary), "run", "-c", str(folder / "natrix.toml")],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            )
            try:
                out, output = prober.communicate(timeout=WAIT_SECONDS)
            finally:
                prober.kill()
                natrix.kill()
                natrix.wait()
        return prober.returncode, out, output.decode()


def probed_over_memif(n, pool, *words):
    """What the probe finds of it."""
    for _ in range(ATTEMPTS):
        status, out, output = beside_natrix_over_memif(n, pool, *words)
        # The probe waits for 30 s, and on a busy machine Natrix may begin later.
        late = ("error: device: does not answer ARP", "link is down")
        if not any(error in output for error in late):
            break
    expect_equal(status, 0, f"status of the probe, which says {output[-300:]}")
    return json.loads(out)


@test("probe")
def the_probe_finds_port_ranges_and_pooling_of_each_pool(n):
    for name, (pool, (ranges, pooling)) in POOLS.items():
        result = probed_over_memif(n, pool, "--only", "ports")
        findings = {finding["name"]: finding for finding in result["findings"]}
        values = {what: findings[what]["value"] for what in ("pooling", "ports.low")}
        expect_equal(values, {"pooling": pooling, "ports.low": "all lead to 1024 or more"}, f"{name}: {findings}")
        expect(findings["ports.range"]["value"].startswith(ranges), f"{name}: {findings['ports.range']}")
        verdicts = {finding["name"]: finding["verdict"] for finding in result["findings"]}
        wanted = "met" if pooling == "paired" else "not_met"
        expect_equal((verdicts["pooling"], verdicts["ports.low"]), (wanted, "not_met"), f"{name}: verdicts")


def expect_mapping_once_another_has_the_port(result):
    classes = {"udp": "address-and-port-dependent", "tcp": "address-and-port-dependent", "icmp": "address-dependent"}
    findings = {finding["name"]: finding for finding in result["findings"]}
    for protocol, value in classes.items():
        found = findings[f"mapping.{protocol}"]
        seen = (found["value"], found["verdict"])
        expect_equal(seen, (f"{value}, once another host has the port", "not_met"), f"mapping of {protocol}, seen {found['evidence']}")


@test("probe")
def the_probe_sees_through_ports_kept_until_they_collide(n):
    status, result, output = probe(n, "--dut", "netfilter", "--masquerade", "--only", "mapping", "--tester-cpu", "1", "--seed", "5")
    expect_equal(status, 0, f"status ({output[-300:]})")
    expect("masquerade\n" in result["device"]["ruleset"] and "fully-random" not in result["device"]["ruleset"], "the rule")
    expect_mapping_once_another_has_the_port(result)
    # It works where the tester sends.
    expect_equal((result["cpus"], result["parameters"]["seed"]), ([1], 5), "CPUs, seed")
    expect_equal([len(core["runs"]) for core in result["cores"]], [2], "who works there")
    with another_operators_device(n):
        # The last does not keep the probe's own ports: they are in another range.
        for rule in (
            "snat to 198.18.0.1-198.18.0.4 persistent",
            "snat to 198.18.0.0-198.18.0.255 persistent",
            "meta l4proto { tcp, udp } snat to 198.18.0.1:2000-8999; oifname outside snat to 198.18.0.1",
        ):
            ruleset = f"flush ruleset; table ip t {{ chain p {{ type nat hook postrouting priority srcnat; oifname outside {rule}; }}; }}"
            subprocess.run([*IN_DEVICE, "nft", ruleset], check=True)
            status, result, output = probe(n, "--dut", "external", "--only", "mapping")
            expect_equal(status, 0, f"status with {rule} ({output[-300:]})")
            expect_mapping_once_another_has_the_port(result)
            expect_equal(result["cpus"], [0], "the tester's CPU, and none of a device that is not known")
        subprocess.run([*IN_DEVICE, "nft", "flush", "ruleset"], check=True)
        status, result, output = probe(n, "--dut", "external", "--only", "mapping")
        expect_equal((status, result), (1, None), "a router has no result")
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        expect_equal(
            errors,
            ["error: device: passes what comes from 10.0.1.0 to 198.19.0.1 without translating it; see that it translates 10.0.1.0"],
            "its error",
        )


@test("probe")
def the_probe_shows_its_findings_if_the_file_cannot_be_written(n):
    status, result, output = probe(n, "--dut", "natrix", "--only", "ttl", "--output", "/dev/full")
    expect_equal((status, result["dut"]), (1, "natrix"), "status, result")
    expect("error: --output: /dev/full: " in output, output[-300:])
    expect_equal([core["cpu"] for core in result["cores"]], result["cpus"], "cores and CPUs")


@test("probe")
def an_interrupted_probe_keeps_what_it_found(n):
    words = ["lab", "probe", "--dut", "netfilter", "--only", "mapping,timers", "--timer-max", "60", "--patience", "600", "--json"]
    child = subprocess.Popen([str(n.dut.binary), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if "timers:" in line:
            break
    child.send_signal(signal.SIGINT)
    out, output = child.communicate(timeout=WAIT_SECONDS)
    expect_equal(child.returncode, 1, "status")
    expect("error: lab: interrupted (" in output, output)
    result = json.loads(out)
    values = {finding["name"]: finding["value"] for finding in result["findings"]}
    expect_equal((result["interrupted"], values["mapping.udp"]), (True, "address-and-port-dependent"), "interrupted, mapping")
