"""The lab with VPP as the device. A stand-in is on the path, because VPP is in no archive that these tests may use."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from kit import *
from test_lab import FEW, SHORT, WAIT_SECONDS, until

STAND_IN = Path(__file__).resolve().parent / "vpp_stand_in.py"


@contextlib.contextmanager
def stand_in(n, vpp=f'exec "{sys.executable}" "{STAND_IN}" vpp NATRIX "$@"'):
    """The environment of a command that finds `vpp` and `vppctl` on the path."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = {"vpp": vpp.replace("NATRIX", f'"{n.dut.binary}"'), "vppctl": f'exec "{sys.executable}" "{STAND_IN}" vppctl "$@"'}
        for name, script in scripts.items():
            path = Path(folder) / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        yield dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")


def lab_vpp(n, environment, *words):
    """Runs a test of the lab, again where the machine was too busy for it."""
    for _ in range(20):
        command = [str(n.dut.binary), "lab", *words, "--dut", "vpp", *FEW, *SHORT, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False, env=environment)
        if "error: tester: slower" not in done.stderr and "error: device: made" not in done.stderr:
            break
    return done


@test("lab")
def vpp_from_the_path_is_set_up_and_measured(n):
    with stand_in(n) as environment:
        done = lab_vpp(n, environment, "latency", "--rate", "500", "--external-addresses", "2")
        expect_equal(done.returncode, 0, f"status ({done.stderr[-300:]})")
        record = json.loads(done.stdout)
        expect_equal((record["dut"], record["transport"]), ("vpp", "net_memif"), "device, transport")
        (repetition,) = record["result"]["repetitions"]
        expect_equal([one["way"] for one in repetition["delays"]], ["outbound", "inbound"], "ways")
        device = record["device"]
        expect_equal(device["version"], "vpp v25.06-stand-in built by nobody", "version")
        expect("nat44 add address 198.18.0.1 - 198.18.0.2\n" in device["commands"], device["commands"])
        expect(f"main-core {record['cpus'][1]} " in device["configuration"], device["configuration"])
        # Its sessions are counted, and deleted by its own command.
        done = lab_vpp(n, environment, "teardown")
        expect_equal(done.returncode, 0, f"status ({done.stderr[-300:]})")
        record = json.loads(done.stdout)
        expect_equal(record["result"]["repetitions"][0]["connections"], 200, "connections deleted")


def processes_of(pid):
    """Processes whose command line names the folder of this run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"/natrix-lab-{pid}/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@test("lab")
def vpp_ends_with_the_lab(n):
    with stand_in(n) as environment:
        for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
            words = ["latency", "--dut", "vpp", "--rate", "500", *FEW, "--trial-seconds", "60"]
            command = [str(n.dut.binary), "lab", *words]
            child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
            for line in child.stderr:
                if "preparation at" in line:
                    break
            expect(len(processes_of(child.pid)) >= 2, "VPP and its translator run")
            child.send_signal(sent)
            child.communicate(timeout=WAIT_SECONDS)
            until(f"VPP ends after {sent.name}", lambda: not processes_of(child.pid))
    subprocess.run([str(n.dut.binary), "lab", "down"], capture_output=True, check=True)


@test("lab")
def a_vpp_that_is_missing_or_does_not_start_is_an_error(n):
    done = lab_vpp(n, dict(os.environ, PATH="/nowhere"), "latency")
    expect_equal(done.returncode, 1, "status without VPP")
    expect("error: device vpp: there is no program `vpp` on the path (/nowhere); install VPP" in done.stderr, done.stderr[-300:])
    with stand_in(n, vpp="echo 'no plugin nat44-ed'; exit 3") as environment:
        done = lab_vpp(n, environment, "latency")
        expect("error: device vpp: does not start (no plugin nat44-ed); see " in done.stderr, done.stderr[-300:])
        done = lab_vpp(n, environment, "latency", "--transport", "af-packet")
        expect("error: --transport: vpp is measured over memif only (net_af_packet); leave it out" in done.stderr, done.stderr[-300:])
        done = lab_vpp(n, environment, "latency", "--rules", "5")
        expect("error: device vpp: has no such rules; leave --rules and --rules-kind out" in done.stderr, done.stderr[-300:])
