"""The lab against real devices: small runs of its tests, what it leaves behind, and what it refuses to call a result."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from kit import *

# Nothing here asks for a speed: all rates are far below what any machine can.
FEW = ["--sessions", "200", "--repetitions", "1", "--preparation-rate", "2000", "--no-ceiling"]
SHORT = ["--trial-seconds", "0.3"]
# Frames a second that the bottleneck lets through, bytes of a frame as the kernel counts them, what
# its bucket and queue add in a trial.
BOTTLENECK, FRAME, BUCKET_FRAMES = 5_000, 60, 100
TRIAL_SECONDS = 0.4
# Far longer than anything here takes on a busy machine: only what hangs takes so long.
WAIT_SECONDS = 300


def lab(n, *words, ok=True, timeout=WAIT_SECONDS):
    """Runs `natrix lab`, which leaves no namespace; its result as an object, or its error."""
    with subprocess.Popen([str(n.dut.binary), "lab", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, output = child.communicate(timeout=timeout)
        finally:
            child.kill()
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    expect_equal(child.returncode, 0 if ok else 1, f"status of natrix lab {' '.join(words)} ({output[-300:]})")
    expect_equal(len(errors), 0 if ok else 1, "errors")
    expect_equal(namespaces(child.pid), [], "namespaces that are left")
    return json.loads(out) if ok else errors[0]


def until_kept(n, *words):
    """As `lab`, again when the machine was too busy for the tester to keep even these rates: it says so, and gives no result."""
    for _ in range(20):
        command = [str(n.dut.binary), "lab", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        expect("error: tester: slower" in done.stderr or "error: device: made" in done.stderr, done.stderr[-300:])
    raise Failure(f"natrix lab {' '.join(words)} has no result in 20 tries: {done.stderr[-300:]}")


def ceiling(n, cpu, *words):
    """Runs the shortest measurement of the tester where it may use this CPU only; again when the CPU was too busy with others."""
    few = ["--transport", "memif", "--sessions", "100", "--rate-max", "2000", *SHORT]
    command = ["taskset", "-c", str(cpu), str(n.dut.binary), "lab", "ceiling", *few, *words, "--json"]
    for _ in range(20):
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        if "error: tester: slower" not in done.stderr and "error: device: made" not in done.stderr:
            break
    return done


@test("lab")
def without_cpu_0_the_lab_uses_the_cpus_it_may_use(n):
    allowed = sorted(os.sched_getaffinity(0))
    done = ceiling(n, allowed[-1])
    expect_equal(done.returncode, 0, f"status ({done.stderr[-300:]})")
    expect_equal(json.loads(done.stdout)["cpus"], [allowed[-1]], "CPUs")
    # A CPU that is asked for is not replaced.
    other = allowed[0] if len(allowed) > 1 else 255
    done = ceiling(n, allowed[-1], "--tester-cpu", str(other))
    expect_equal(done.returncode, 1, "status with a CPU that it may not use")
    expect(f"error: --tester-cpu: cannot be used ({other}); name a CPU that is on" in done.stderr, done.stderr[-300:])


def namespaces(pid):
    """Those of the run `pid`: others may run beside it."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in names.splitlines() if line.startswith(f"natrix-lab-{pid}-")]


@test("lab")
def the_lab_measures_either_device_and_says_on_what(n):
    for dut in ("natrix", "netfilter"):
        latency = until_kept(n, "latency", "--dut", dut, "--rate", "500", *FEW, *SHORT)
        (repetition,) = latency["result"]["repetitions"]
        expect_equal([one["way"] for one in repetition["delays"]], ["outbound", "inbound"], "ways")
        expect(all(0 < one["min_us"] <= one["typical_us"] <= one["max_us"] for one in repetition["delays"]), "delays")
        expect_equal((latency["dut"], latency["schema"], latency["interrupted"]), (dut, 1, False), "record")
        expect_equal(latency["parameters"]["N"], 200, "N")
        # A busy machine makes some of them again.
        expect_equal(list(dict.fromkeys(one["phase"] for one in latency["trials"])), ["preparation", "phase2"], "trials")
        expect("version" in latency["device"] and "dpdk" in latency["versions"], "versions")
        capacity = until_kept(
            n, "capacity", "--dut", dut, "--room", "200", "--c0", "200", "--capacity-error", "200",
            "--rate-max", "2000", "--error", "1000", *FEW[2:], *SHORT,
        )
        expect(capacity["result"]["samples"]["median"] >= 200, "connections held")


@test("lab")
def each_family_is_measured_with_every_test(n):
    memif = ["--transport", "memif"]
    for family in ("nat64", "dslite"):
        words = ["--family", family, *FEW, *SHORT, "--rate-max", "2000"]
        for protocol in ("udp", "tcp"):
            latency = until_kept(n, "latency", "--rate", "500", "--protocol", protocol, *words, *memif)
            (repetition,) = latency["result"]["repetitions"]
            expect_equal([one["frames"] > 0 for one in repetition["delays"]], [True, True], f"delays of {family} over {protocol}")
            expect_equal((repetition["lost"], latency["parameters"]["family"], latency["device"]["family"]), (0, family, family), "loss")
        # The largest frames fit both links, and each customer may have a rule of its own.
        loss = until_kept(n, "loss", "--frame-bytes", "1518", "--rules", "20", *words)
        expect_equal([step["lost"] for step in loss["result"]["steps"]], [0] * 10, f"loss of {family} by rate")
        capacity = until_kept(
            n, "capacity", "--family", family, "--room", "200", "--c0", "200", "--capacity-error", "200",
            "--rate-max", "2000", "--error", "1000", *FEW[2:], *SHORT, *memif,
        )
        expect(capacity["result"]["samples"]["median"] >= 200, "connections held")
    refused = lab(n, "latency", "--dut", "netfilter", "--family", "nat64", *FEW, ok=False)
    expect("device netfilter: has no IPv6 hosts in this lab; leave --family out" in refused, refused)


def established(dut, pid, n):
    """What the device says of its TCP connections: how many it has, and how many of them are established and answered."""
    if dut == "netfilter":
        command = ["ip", "netns", "exec", f"natrix-lab-{pid}-device", "conntrack", "-L", "-p", "tcp"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return len(lines), sum("ESTABLISHED" in line and "[ASSURED]" in line for line in lines)
    socket = Path(tempfile.gettempdir()) / f"natrix-lab-{pid}" / "control.sock"
    command = [str(n.dut.binary), "show", "sessions", "--protocol", "tcp", "--all", "--json", "--socket", str(socket)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return len(lines), sum(json.loads(line)["state"] == "established" for line in lines)


@test("lab")
def with_tcp_the_device_has_the_connections_as_established(n):
    words = ["latency", "--protocol", "tcp", "--rate", "500", *FEW, "--trial-seconds", "3", "--json"]
    for dut in ("natrix", "netfilter"):
        for _ in range(20):
            child = subprocess.Popen(
                [str(n.dut.binary), "lab", *words, "--dut", dut], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            output, seen = [], None
            for line in child.stderr:
                output.append(line)
                if "preparation at" in line and ": 0 of 200 lost" in line:
                    # Data passes over the connections now. On a busy machine the device may be
                    # gone already.
                    with contextlib.suppress(subprocess.CalledProcessError):
                        seen = established(dut, child.pid, n)
                    break
            out, rest = child.communicate(timeout=WAIT_SECONDS)
            if child.returncode == 0:
                preparations = [one for one in json.loads(out)["trials"] if one["phase"] == "preparation"]
                # A busy machine: it was made in parts, or the tester was too slow for it.
                if len(preparations) > 1 or preparations[0]["void"]:
                    continue
                expect_equal(seen, (200, 200), f"connections {dut} has, and established ones")
                break
            output = "".join(output) + rest
            expect("error: tester: slower" in output or "error: device: made" in output, output[-300:])
        expect_equal(child.returncode, 0, "status")
        record = json.loads(out)
        expect_equal(record["parameters"]["protocol"], "tcp", "protocol")
        if dut == "netfilter":
            values = [record["device"][f"nf_conntrack_tcp_{key}"] for key in ("loose", "be_liberal")]
            expect_equal(values, ["0", "0"], "what the kernel's tracking makes of segments of no connection, and out of windows")
        preparation, phase2 = [trial for trial in record["trials"] if not trial["void"]]
        expect_equal((preparation["sent"], preparation["answers"], preparation["lost"]), (200, 400, 0), "segments of handshakes")
        expect_equal((phase2["sent"], phase2["answers"], phase2["faults"]), (1500, 0, 0), "segments with data")


def passes_at_the_highest(n, *words):
    """Runs a test whose highest rate any device keeps: it says so. Returns what the trials printed."""
    for _ in range(20):
        command = [str(n.dut.binary), "lab", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        if "error: rate: the device passes even the highest (500 connections/s)" in done.stderr:
            return done.stderr
        # The machine was too busy for the tester, or for the device.
        expect(done.returncode == 0 or "error: tester: slower" in done.stderr, done.stderr[-300:])
    raise Failure(f"natrix lab {' '.join(words)} does not pass in 20 tries: {done.stderr[-300:]}")


@test("lab")
def new_connections_of_tcp_are_measured_open_and_closed(n):
    words = ["cps", "--protocol", "tcp", "--rate-min", "200", "--rate-max", "500", "--error", "300", *FEW]
    for dut in ("natrix", "netfilter"):
        output = passes_at_the_highest(n, *words, "--dut", dut)
        expect("phase1 at 500/s: 0 of 200 lost\n" in output, output)
        expect("validation at 400/s: 0 of 200 lost\n" in output, output)
        output = passes_at_the_highest(n, *words, "--dut", dut, "--tcp-close")
        expect("phase1 at 500/s: 0 of 200 lost\n" in output and "validation" not in output, output)
    output = lab(n, "cps", "--tcp-close", *FEW, ok=False)
    expect("--tcp-close: datagrams have no end" in output, output)


@test("lab")
def a_result_has_the_testers_ceiling_over_each_transport(n):
    few = [word for word in FEW if word != "--no-ceiling"]
    for transport, loopback in [("af-packet", "one virtual Ethernet pair"), ("memif", "net_memif to net_memif"), ("vhost-user", "net_vhost to net_virtio_user")]:
        record = until_kept(n, "latency", "--transport", transport, "--rate", "500", *few, *SHORT)
        ceiling = record["ceiling"]
        expect(ceiling["loopback"].startswith(loopback), f"{transport}: {ceiling['loopback']}")
        expect(ceiling["frames_per_second"] > 500, f"{transport}: {ceiling['frames_per_second']} frames/s")
        expect_equal((ceiling["connections_per_second"], ceiling["share"]), (None, None), f"{transport}: handshakes, share")
        # Shared memory has no kernel on the way.
        runs = " ".join(what for core in record["cores"] for what in core["runs"])
        expect_equal("kernel" in runs, transport == "af-packet", f"{transport}: {runs}")


@test("lab")
def a_test_with_handshakes_has_a_ceiling_of_handshakes(n):
    few = [word for word in FEW if word != "--no-ceiling"]
    for first, segments in ([], None), (["--first-packet"], 3):
        record = until_kept(n, "latency", "--protocol", "tcp", "--dut", "netfilter", "--transport", "af-packet", "--rate", "500", *first, *few, *SHORT)
        ceiling = record["ceiling"]
        expect(ceiling["frames_per_second"] > 500, f"{first}: {ceiling['frames_per_second']} frames/s")
        connections = ceiling["connections_per_second"]
        expect_equal(connections and round(ceiling["frames_per_second"] / connections, 6), segments, f"{first}: frames of a handshake")
    found = until_kept(
        n, "ceiling", "--protocol", "tcp", "--handshakes", "--tcp-close", "--transport", "memif", "--sessions", "20000", "--rate-max", "2000", *SHORT,
    )
    expect_equal((found["unit"], found["result"]["frames_per_connection"]), ("connections/s", 7), "unit, frames of a short connection")
    kept = [trial for trial in found["trials"] if not trial["void"]]
    expect(kept and all(trial["answers"] == 6 * trial["sent"] and trial["lost"] == 0 for trial in kept), str(found["trials"]))
    output = lab(n, "ceiling", "--handshakes", *SHORT, ok=False)
    expect("--handshakes: datagrams have none (--protocol udp); add --protocol tcp" in output, output)


@test("lab")
def a_device_faster_than_what_was_asked_for_is_no_result(n):
    output = lab(n, "throughput", "--dut", "netfilter", "--rate-max", "1000", "--rate-min", "500", *FEW, *SHORT, ok=False)
    expect("rate: the device passes even the highest (1000 frames/s); raise --rate-max" in output or "tester: slower" in output, output)


@test("lab")
def an_interrupted_run_keeps_its_results_and_cleans_up(n):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        words = ["latency", "--dut", "netfilter", "--rate", "500", "--output", str(file), *FEW, "--trial-seconds", "60"]
        child = subprocess.Popen([str(n.dut.binary), "lab", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in child.stderr:
            if "preparation at" in line:
                break
        child.send_signal(signal.SIGINT)
        output = child.communicate(timeout=WAIT_SECONDS)[1]
        expect_equal(child.returncode, 1, "status")
        expect("error: lab: interrupted (1 trial made)" in output, output)
        record = json.loads(file.read_text())
        expect_equal((record["interrupted"], len(record["trials"])), (True, 1), "interrupted, trials")
        expect_equal(namespaces(child.pid), [], "namespaces left")


def devices(pid):
    """Processes of the device that the run `pid` has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if f"natrix-lab-{pid}/natrix.toml".encode() in b" ".join(words) and b"run" in words[:2]:
                found.append(int(path.parent.name))
    return found


def until(what, happens):
    """Waits until it happens, however long that takes on a busy machine."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if happens():
            return
        time.sleep(0.05)
    raise Failure(f"{what}: not within {WAIT_SECONDS} s")


@test("lab")
def a_device_ends_with_a_run_that_is_killed_or_hung_up(n):
    words = ["latency", "--dut", "natrix", "--rate", "500", *FEW, "--trial-seconds", "60"]
    for sent in (signal.SIGHUP, signal.SIGKILL):
        child = subprocess.Popen([str(n.dut.binary), "lab", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in child.stderr:
            if "preparation at" in line:
                break
        expect_equal(len(devices(child.pid)), 1, "devices while it runs")
        child.send_signal(sent)
        child.communicate(timeout=WAIT_SECONDS)
        until(f"the device ends after {sent.name}", lambda: not devices(child.pid))
        left = namespaces(child.pid)
        folder = Path(tempfile.gettempdir()) / f"natrix-lab-{child.pid}"
        if sent == signal.SIGHUP:
            expect_equal((child.returncode, left, folder.exists()), (1, [], False), "status, namespaces, folder after SIGHUP")
        else:
            expect_equal((len(left), folder.exists()), (2, True), "namespaces, folder of a run that could not remove them")
            output = subprocess.run([str(n.dut.binary), "lab", "down"], capture_output=True, text=True, check=True).stdout
            expect(str(folder) in output and all(name in output for name in left), output)
            expect_equal((namespaces(child.pid), folder.exists()), ([], False), "after lab down")


@test("lab")
def lab_down_ends_a_device_whose_run_is_gone(n):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    folder = Path(tempfile.gettempdir()) / f"natrix-lab-{gone.pid}"
    folder.mkdir()
    configuration = folder / "natrix.toml"
    configuration.write_text(
        f'[[interface]]\nname = "inside"\nrealm = "inside"\ndriver = "net_null0"\naddresses = ["10.255.0.1/30"]\n'
        f'[[interface]]\nname = "outside"\nrealm = "outside"\ndriver = "net_null1"\naddresses = ["172.16.255.1/30"]\n'
        f'[[pool]]\nname = "lab"\naddresses = ["198.18.0.1"]\nsubscribers = ["10.255.0.0/30"]\n'
        f'[control]\nsocket = "{folder}/control.sock"\n'
    )
    device = subprocess.Popen(
        [str(n.dut.binary), "run", "-c", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        until("the device runs", lambda: (folder / "control.sock").exists() or device.poll() is not None)
        expect_equal(device.poll(), None, "status of the device")
        output = subprocess.run([str(n.dut.binary), "lab", "down"], capture_output=True, text=True, check=True).stdout
        expect(f"ended devices of interrupted runs: processes {device.pid}" in output and str(folder) in output, output)
        device.wait(timeout=WAIT_SECONDS)
        expect(not folder.exists(), "the folder is there still")
    finally:
        device.kill()
        device.wait()


@test("lab")
def a_command_that_empties_and_hangs_ends_with_the_lab(n):
    words = ["cps", "--dut", "external", "--inside", "no", "--outside", "no", "--empty-command", "sleep 600; true"]
    child = subprocess.Popen([str(n.dut.binary), "lab", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def hangs():
        names = Path("/proc") / str(child.pid) / "task" / str(child.pid) / "children"
        return names.exists() and names.read_text().strip()

    until("the command runs", hangs)
    child.send_signal(signal.SIGTERM)
    output = child.communicate(timeout=WAIT_SECONDS)[1]
    expect_equal(child.returncode, 1, "status")
    expect("error: lab: interrupted while the device was started or emptied" in output, output)


@test("lab")
def a_failure_is_recorded_and_a_full_disk_loses_no_result(n):
    words = ["latency", "--dut", "netfilter", "--rate", "50000000", "--json", *FEW, "--trial-seconds", "0.05"]
    done = subprocess.run([str(n.dut.binary), "lab", *words], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    expect_equal(done.returncode, 1, "status")
    record = json.loads(done.stdout)
    expect_equal((record["result"]["samples"], record["test"]), (None, "latency"), "samples, test")
    expect("tester: slower than asked for" in record["failure"] and record["failure"] in done.stderr, str(record["failure"]))
    expect(record["trials"][-1]["void"] and record["trials"][-1]["phase"] == "phase2", str(record["trials"][-1]))
    words = ["latency", "--dut", "netfilter", "--rate", "500", "--json", "--output", "/dev/full", *FEW, *SHORT]
    for _ in range(20):
        done = subprocess.run([str(n.dut.binary), "lab", *words], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        if "No space left" in done.stderr:
            break
        # The machine was too busy for the tester.
        expect("error: tester: slower" in done.stderr or "error: device: made" in done.stderr, done.stderr[-300:])
    expect("error: --output: /dev/full: No space left" in done.stderr and done.returncode == 1, done.stderr[-300:])
    expect_equal(json.loads(done.stdout)["failure"], None, "failure of what was measured")


@test("lab")
def numbers_that_no_device_could_do_are_refused_with_what_helps(n):
    output = lab(n, "cps", "--dut", "netfilter", "--alpha", "3", *FEW, ok=False)
    expect("--alpha: is not below 1 (3)" in output, output)
    few = ["--external-addresses", "1", "--dut-ports", "2000-2099"]
    for dut in ("natrix", "netfilter"):
        output = lab(n, "throughput", "--dut", dut, *few, "--sessions", "5000", "--no-ceiling", ok=False)
        expect("--sessions: need more external ports than the device is given (100 for 5000 inside endpoints)" in output, output)


@test("lab")
def without_root_the_lab_says_so_and_makes_nothing(n):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        binary = Path(folder) / "natrix"
        shutil.copy(n.dut.binary, binary)
        done = subprocess.run(
            [str(binary), "lab", "cps", "--dut", "netfilter", "--no-ceiling"], capture_output=True, text=True, user=65534, group=65534,
            extra_groups=[], timeout=WAIT_SECONDS, check=False,
        )
    expect_equal(done.returncode, 1, "status")
    expect("error: lab: network namespaces need root (user 65534 asks); run it with sudo" in done.stderr, done.stderr)


@test("lab")
def a_capability_that_root_lacks_is_named_and_nothing_is_left(n):
    cases = {
        "net_raw": ["probe", "--dut", "netfilter", "--only", "ttl"],
        "net_admin": ["cps", "--dut", "netfilter", "--no-ceiling"],
        "sys_nice": ["loss", "--dut", "netfilter", "--transport", "af-packet", *FEW],
    }
    for capability, words in cases.items():
        command = ["setpriv", "--bounding-set", f"-{capability}", str(n.dut.binary), "lab", *words]
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        _, output = started.communicate(timeout=WAIT_SECONDS)
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        expect_equal((started.returncode, len(errors)), (1, 1), f"{capability}: {output[-300:]}")
        named = f"needs CAP_{capability.upper()}, which this process lacks; run it with CAP_{capability.upper()}"
        expect(named in errors[0], errors[0])
        expect_equal(namespaces(started.pid), [], "namespaces")


@test("lab")
def a_device_from_elsewhere_needs_its_ports_and_its_command(n):
    output = lab(n, "cps", "--dut", "external", ok=False)
    expect("--empty-command: is missing" in output, output)
    output = lab(n, "cps", "--dut", "external", "--empty-command", "false", "--inside", "no", "--outside", "no", ok=False)
    expect("--empty-command: `false` failed (exit status: 1" in output, output)


@contextlib.contextmanager
def bottleneck(n):
    """Standing test hosts whose device sends no more than so many frames a second to the outside."""
    subprocess.run([str(n.dut.binary), "lab", "up"], check=True, stdout=subprocess.DEVNULL)
    try:
        room = f"{BUCKET_FRAMES // 2 * FRAME}"
        subprocess.run(
            ["ip", "netns", "exec", "natrix-lab-device", "tc", "qdisc", "add", "dev", "outside", "root", "tbf",
             "rate", f"{BOTTLENECK * FRAME * 8}bit", "burst", room, "limit", room],
            check=True,
        )
        yield
    finally:
        subprocess.run([str(n.dut.binary), "lab", "down"], check=True, stdout=subprocess.DEVNULL)


@test("lab")
def a_known_rate_and_the_loss_beyond_it_are_reported(n):
    error = BOTTLENECK // 10
    # What bucket and queue hold passes in a trial besides.
    highest = BOTTLENECK + BUCKET_FRAMES / TRIAL_SECONDS
    words = ["--dut", "netfilter", "--direction", "outbound", *FEW, "--trial-seconds", str(TRIAL_SECONDS)]
    with bottleneck(n):
        for attempt in range(5):
            found = until_kept(n, "throughput", "--rate-max", str(2 * BOTTLENECK), "--error", str(error), *words)
            median = found["result"]["samples"]["median"]
            expect(median <= highest, f"{median} frames/s are reported of a device that passes {highest} at most")
            # A busy machine may lose frames of its own, so that it finds less: then it is asked
            # again.
            if median >= BOTTLENECK - error:
                break
        expect(median >= BOTTLENECK - error, f"{median} frames/s are reported of a device that passes {BOTTLENECK}")
        for attempt in range(5):
            steps = until_kept(n, "loss", "--rate-max", str(2 * BOTTLENECK), *words)["result"]["steps"]
            twice = max(steps, key=lambda step: step["rate"])
            share = twice["lost"] / twice["sent"]
            expect_equal(twice["lost_share"]["values"], [share], "share lost in each repetition")
            lowest, most = 1 - highest / twice["rate"], 1 - BOTTLENECK / twice["rate"] + SHARE_ERROR
            expect(lowest - 0.001 <= share, f"{share:.3f} is lost at {twice['rate']} frames/s, {lowest:.3f} at least should be")
            # As above: a busy machine may lose more.
            if share <= most:
                break
        expect(share <= most, f"{share:.3f} is lost at {twice['rate']} frames/s, {most:.3f} at most should be")


# Delay of the slow link, what of it is lost, and the error within which both are reported.
SLOW_US, SLOW_LOSS = 20_000, 0.10
SLOW_ERROR_US, SHARE_ERROR = 2_000, 0.05


@contextlib.contextmanager
def slow_link(n):
    """Standing test hosts whose device sends to the outside late, and not all of it. The share that is lost at twice the bottleneck's rate.

    By netem where the kernel has it. Else a full queue before a bottleneck is as late: its length by its rate.
    """
    subprocess.run([str(n.dut.binary), "lab", "up"], check=True, stdout=subprocess.DEVNULL)
    try:
        add = ["ip", "netns", "exec", "natrix-lab-device", "tc", "qdisc", "add", "dev", "outside", "root"]
        netem = ["netem", "delay", f"{SLOW_US}us", "loss", f"{100 * SLOW_LOSS}%", "limit", "10000"]
        if subprocess.run([*add, *netem], capture_output=True, check=False).returncode == 0:
            yield SLOW_LOSS
        else:
            queue = BOTTLENECK * SLOW_US // 1_000_000 * FRAME
            bucket = BUCKET_FRAMES // 2 * FRAME
            subprocess.run([*add, "tbf", "rate", f"{BOTTLENECK * FRAME * 8}bit", "burst", str(bucket), "limit", str(queue)], check=True)
            yield 0.5
    finally:
        subprocess.run([str(n.dut.binary), "lab", "down"], check=True, stdout=subprocess.DEVNULL)


@test("lab")
def a_known_delay_and_a_known_loss_are_reported_within_the_error(n):
    words = ["--dut", "netfilter", "--direction", "outbound", *FEW, "--trial-seconds", str(TRIAL_SECONDS)]
    frames = 2 * BOTTLENECK * TRIAL_SECONDS
    with slow_link(n) as known_share:
        for attempt in range(10):
            record = until_kept(n, "latency", "--rate", str(2 * BOTTLENECK), *words)
            (repetition,) = record["result"]["repetitions"]
            (delays,) = repetition["delays"]
            share = repetition["lost"] / frames
            typical_us = delays["typical_us"]
            expect_equal(sum(count for _, count in delays["histogram_ns"]), delays["frames"], "delays in the histogram")
            (over,) = record["result"]["over_repetitions"]["delays"]
            expect_equal((over["way"], over["typical_us"]["values"]), ("outbound", [typical_us]), "over the repetitions")
            # A busy machine may be late itself, and lose: then it is asked again.
            if abs(typical_us - SLOW_US) <= SLOW_ERROR_US and abs(share - known_share) <= SHARE_ERROR:
                return
        raise Failure(f"{typical_us} us and a loss of {share:.3f} are reported of a link of {SLOW_US} us that loses {known_share}")


@test("lab")
def impossible_numbers_are_refused_before_the_setup(n):
    for words, expected in [
        (["latency", "--rate=-5"], "--rate: is not a number above 0 (-5)"),
        (["latency", "--rate", "nan"], "--rate: is not a number above 0 (NaN)"),
        (["latency", "--trial-seconds", "nan"], "--trial-seconds: is not a number above 0 (NaN)"),
        (["loss", "--rate-max", "inf"], "--rate-max: is not a number above 0 (inf)"),
        (["loss", "--rate-max", "1e18"], "--rate-max: makes a trial of too many frames"),
        (["cps", "--alpha", "0"], "--alpha: is not a number above 0 (0)"),
        (["cps", "--preparation-rate", "0"], "--preparation-rate: is not a number above 0 (0)"),
        (["cps", "--rate-min", "5000", "--rate-max", "3000"], "--rate-min: is not below --rate-max (5000 and 3000 frames/s)"),
        (["capacity", "--gamma", "2"], "--gamma: is more than 1 (2)"),
        (["ceiling", "--rate-max", "0"], "--rate-max: is not a number above 0 (0)"),
    ]:
        seen = lab(n, *words, ok=False)
        expect(expected in seen, f"{words}: {seen}")


# The kernel's NAT as somebody might have set it up who has never heard of the lab.
RULESET = """
table ip somebodys {
    chain post {
        type nat hook postrouting priority srcnat;
        oifname "outside" masquerade fully-random
    }
}
"""


@contextlib.contextmanager
def another_operators_device(n):
    """Standing test hosts with a NAT between them that the test set up by itself."""
    subprocess.run([str(n.dut.binary), "lab", "up"], check=True, stdout=subprocess.DEVNULL)
    inside = ["ip", "netns", "exec", "natrix-lab-device"]
    words = [
        "ip addr add 10.255.0.1/30 dev inside", "ip addr add 172.16.255.1/30 dev outside", "ip route add 10.0.0.0/8 via 10.255.0.2",
        "ip route add 198.19.0.0/16 via 172.16.255.2", "sysctl -qw net.ipv4.ip_forward=1",
    ]
    try:
        for line in words:
            subprocess.run([*inside, *line.split()], check=True)
        subprocess.run([*inside, "nft", "-f", "-"], input=RULESET, text=True, check=True)
        yield
    finally:
        subprocess.run([str(n.dut.binary), "lab", "down"], check=True, stdout=subprocess.DEVNULL)


IN_DEVICE = ["ip", "netns", "exec", "natrix-lab-device"]


def of_somebody(n, test, *words, few=FEW):
    """The command of a test of somebody else's device."""
    return [
        "ip", "netns", "exec", "natrix-lab-tester", str(n.dut.binary), "lab", test, "--dut", "external", "--transport", "af-packet",
        "--inside", "inside", "--outside", "outside", "--empty-command", "ip netns exec natrix-lab-device conntrack -F", *few, *words,
    ]


def error_of_somebody(n, expected, test, *words):
    """What such a test ends with; again where the machine was too busy for it."""
    for _ in range(20):
        done = subprocess.run(of_somebody(n, test, *words), capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        if "error: tester: slower" not in done.stderr:
            break
    expect_equal((done.returncode, expected in done.stderr), (1, True), f"status, and the reason ({done.stderr[-300:]})")


@test("lab")
def a_device_without_translation_or_link_gives_no_result(n):
    tests = [
        ["latency", "--first-packet", "--rate", "500"],
        ["capacity", "--room", "200", "--c0", "100", "--rate-min", "500", "--rate-max", "1000", "--error", "1000"],
    ]
    with another_operators_device(n):
        for _ in range(20):
            command = of_somebody(n, "latency", "--rate", "500", "--trial-seconds", "5")
            child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            for line in child.stderr:
                if "preparation at" in line:
                    break
            subprocess.run([*IN_DEVICE, "ip", "link", "set", "outside", "down"], check=True)
            output = child.communicate(timeout=WAIT_SECONDS)[1]
            subprocess.run([*IN_DEVICE, "ip", "link", "set", "outside", "up"], check=True)
            subprocess.run([*IN_DEVICE, "ip", "route", "replace", "198.19.0.0/16", "via", "172.16.255.2"], check=True)
            if "error: tester: slower" not in output:
                break
        expect_equal(child.returncode, 1, "status")
        expect("error: device: its outside link is down; see that it runs" in output, output[-300:])
        subprocess.run([*IN_DEVICE, "sysctl", "-qw", "net.ipv4.ip_forward=0"], check=True)
        for words in tests:
            error_of_somebody(n, "passes nothing (0 of ", *words)
        subprocess.run([*IN_DEVICE, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        subprocess.run([*IN_DEVICE, "nft", "flush", "ruleset"], check=True)
        for words in tests:
            error_of_somebody(n, "see that it translates what comes from", *words)


@test("lab")
def a_command_that_empties_nothing_is_found_out_by_each_test(n):
    with another_operators_device(n):
        few = FEW.copy()
        few[few.index("--repetitions") + 1] = "2"
        for words in (["teardown"], ["latency", "--first-packet", "--rate", "500"]):
            command = [word.replace("conntrack -F", "true") for word in of_somebody(n, *words, few=few)]
            for _ in range(20):
                done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
                if "error: tester: slower" not in done.stderr:
                    break
            expect_equal(done.returncode, 1, f"status of {words}")
            expect("its table was not emptied (" in done.stderr, done.stderr[-300:])


@test("lab")
def a_device_started_outside_the_lab_is_measured_and_probed(n):
    in_tester = ["ip", "netns", "exec", "natrix-lab-tester", str(n.dut.binary), "lab"]
    with another_operators_device(n):
        found = json.loads(
            subprocess.run(
                [str(n.dut.binary), "lab", "probe", "--dut", "external", "--only", "mapping,ports", "--patience", "600", "--json"],
                capture_output=True, text=True, timeout=WAIT_SECONDS, check=True,
            ).stdout
        )
        values = {finding["name"]: finding["value"] for finding in found["findings"]}
        expect_equal((found["dut"], values["mapping.udp"]), ("external", "address-and-port-dependent"), "device, mapping")
        expect_equal(values["pooling"], "one external address", "pooling")
        # The same by the ports themselves, as a device with cables would be.
        through = ["probe", "--dut", "external", "--transport", "af-packet", "--inside", "inside", "--outside", "outside", "--only", "mapping", "--patience", "600", "--json"]
        done = subprocess.run([*in_tester, *through], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        expect_equal(done.returncode, 0, f"status ({done.stderr[-300:]})")
        found = json.loads(done.stdout)
        values = {finding["name"]: finding["value"] for finding in found["findings"]}
        expect_equal((found["transport"], values["mapping.udp"]), ("net_af_packet", "address-and-port-dependent"), "through named ports")
        words = [
            "latency", "--dut", "external", "--transport", "af-packet", "--inside", "inside", "--outside", "outside", "--rate", "500",
            "--described", "a kernel that masquerades", "--sessions", "200", "--preparation-rate", "2000", *SHORT, "--json",
        ]

        def measured(empty, repetitions):
            command = [*in_tester, *words, "--repetitions", str(repetitions), "--empty-command", empty]
            for _ in range(20):
                done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
                if "tester: slower" not in done.stderr:
                    break
            return done

        done = measured("ip netns exec natrix-lab-device conntrack -F", 2)
        expect_equal(done.returncode, 0, f"status ({done.stderr[-300:]})")
        record = json.loads(done.stdout)
        expect_equal((record["dut"], record["device"]["described"]), ("external", "a kernel that masquerades"), "device")
        for repetition in record["result"]["repetitions"]:
            expect_equal([one["way"] for one in repetition["delays"]], ["outbound", "inbound"], "ways")
        # A command that empties nothing is found out, by frames to the old endpoints.
        done = measured("true", 2)
        expect_equal(done.returncode, 1, "status where the table is not emptied")
        expect("its table was not emptied (" in done.stderr, done.stderr[-300:])


@test("lab")
def a_killed_device_is_an_error_and_not_total_loss(n):
    for _ in range(20):
        command = [str(n.dut.binary), "lab", "loss", "--dut", "natrix", *FEW, "--rate-max", "1000", "--trial-seconds", "3"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in child.stderr:
            if "phase2 at" in line:
                break
        configuration = f"/tmp/natrix-lab-{child.pid}/natrix.toml"
        of_child = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and configuration in cmdline(entry)
        ]
        for pid in of_child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        out, output = child.communicate(timeout=WAIT_SECONDS)
        # Tester and device have both CPUs: this test may get one only when all is over.
        if "error: tester: slower" not in output and child.returncode != 0:
            break
    expect_equal((child.returncode, out), (1, ""), "status and result")
    expect("error: device natrix: ended while it was measured (signal: 9" in output, output[-300:])


def cmdline(process):
    """The words a process was started with; none where it has ended meanwhile."""
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


@test("lab")
def two_nats_behind_one_router_share_its_subscribers(n):
    record = lab(n, "sharing", "--nats", "2", "--subscribers", "40", "--rate-seconds", "0.5", "--seed", "3", "--json")
    result = record["result"]
    steady, drain, kill = result["steady"], result["drain"], result["kill"]
    expect_equal((steady["answered"], sum(steady["of_each_nat"])), (40, 40), "subscribers with an answer, of all NATs")
    for what in ("limited", "unlimited"):
        carried = result[what]["packets_of_each_nat"]
        expect(result[what]["mbit_per_second"] > 0 and len(carried) == 2 and min(carried) > 0, f"{what}: {result[what]}")
    # Each link passes so much, and what its queue held before.
    expect(result["limited"]["mbit_per_second"] < 2.2 * record["link_mbit_per_second"], f"{result['limited']}")
    expect_equal(drain["flows"] + drain["other_flows"], 40, "flows during the drain")
    expect(drain["seconds"] >= 2 * record["idle_seconds"] and drain["new_subscribers"] == 20, f"{drain}")
    expect_equal(kill["subscribers"] + kill["others"], 40, "subscribers when one NAT is killed")
    expect(kill["noticed_seconds"] > 0 and kill["back_seconds"] > 0, f"{kill}")


@test("lab")
def a_single_nat_has_no_other_way(n):
    record = lab(n, "sharing", "--nats", "1", "--subscribers", "20", "--rate-seconds", "0.3", "--transport", "af-packet", "--json")
    result = record["result"]
    expect_equal((result["drain"], result["kill"]), (None, None), "a drain and a kill")
    expect_equal((result["steady"]["answered"], record["driver"]), (20, "net_af_packet"), "subscribers, driver")
    command = [str(n.dut.binary), "lab", "sharing", "--transport", "memif"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    expect_equal(done.returncode, 2, f"status ({done.stderr[-300:]})")
    expect("--transport: is not a valid value (memif); use one of: af-xdp af-packet" in done.stderr, done.stderr)
