"""The page in Chromium: quiet, usable on a telephone and by keyboard, accessible, and deaf to hostile names."""

import contextlib
import fcntl
import json
import math
import os
import pty
import random
import re
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from datetime import timezone
from pathlib import Path

import setups
from kit import *
from netlab import process
from netlab.process import wait_until
from netlab.topology import SRV1
from test_api import ask
from test_api import await_store
from test_first_steps import sample
from test_many_sessions import station_of_nat
from test_security import child_of

MODULES = setups.TOOLS / "node"
# A folder for screenshots of the page, as docs/ has them; none are taken without it.
SCREENSHOTS = os.environ.get("NATRIX_SCREENSHOTS", "")
SUBSCRIBER_WITH_BLOCK = "100.64.0.66"


def prepare(n):
    """Traffic for something to see: a mapping's internal, external and remote endpoint, and an address with blocks."""
    server = udp(n.srv1)
    try:
        remote = (SRV1, server.getsockname()[1])
        with sockets(udp(n.sub1), udp(n.sub2, address=SUBSCRIBER_WITH_BLOCK)) as (plain, in_block):
            external = external_of(plain, server, remote)
            in_blocks = external_of(in_block, server, remote)[0]
            internal = f"100.64.0.10:{plain.getsockname()[1]}"
        # Something is dropped, too: nobody has this port.
        with sockets(udp(n.srv1)) as sock:
            sock.sendto(b"x", (external[0], 9))
        return internal, f"{external[0]}:{external[1]}", f"{SRV1}:{remote[1]}", in_blocks
    finally:
        server.close()


def look(n, check, **more):
    """What page.mjs saw of this traffic; a failure for every fault of the page."""
    source, external, destination, in_blocks = prepare(n)
    return see(n, check, source=source, external=external, destination=destination, inBlocks=in_blocks, subscriber=SUBSCRIBER_WITH_BLOCK, **more)


def look_at_hosts(n, host, port, external, subscriber, softwire):
    """The page beside IPv6 hosts: it finds them by their address, names no number, and explains their packets.

    `softwire` is of a host behind a B4: the B4, its endpoint inside, its external endpoint, and the remote endpoint.
    """
    b4, inner, (address, at), remote = softwire
    seen = see(n, "hosts", host=f"[{host}]:{port}", inBlocks=external[0], softwireExternal=f"{address}:{at}")
    expect_equal(seen["found"][:4], [host, "default", f"udp {external[0]}:{external[1]}", f"[{host}]:{port}"], "holder")
    expect_equal(seen["byExternal"][0], host, "holder of the external endpoint")
    expect(subscriber in seen["address"], f"subscribers of the address: {seen['address']}")
    expect(not any(text.startswith("224.") for text in seen["address"]), f"numbers: {seen['address']}")
    for what, source, by in (("byNat64", f"[{host}]:{port}", ""), ("inSoftwire", inner, b4)):
        expect_equal(seen[what]["asked"], [source, remote, by], f"{what}: what was explained")
        expect_equal(seen[what]["last"][:2], ["verdict", "outbound"], f"{what}: verdict")


class Browser:
    """Chromium in the namespace of the NAT, for all checks of a setup: its start takes more than most of them."""

    def __init__(self, n):
        home = Path(tempfile.mkdtemp(prefix="browser-", dir=n.state.bulk))
        script = Path(__file__).with_name("page.mjs")
        # Chromium keeps its profile there and nowhere else.
        words = ["env", f"HOME={home}", f"XDG_RUNTIME_DIR={home}", "node", script, f"{MODULES}/", shutil.which("chromium") or "chromium"]
        self.errors = home / "errors"
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen([str(word) for word in n.nat.argv(words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, start_new_session=True, preexec_fn=process.die_with_parent)  # fmt: skip

    def look(self, settings, seconds=300):
        """What it saw with these settings; None if it has no answer within the time."""
        answer, patience = b"", process.Patience(seconds)
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(settings).encode() + b"\n")
            self.process.stdin.flush()
            while not answer.endswith(b"\n") and not patience.is_over():
                if select.select([self.process.stdout], [], [], 1)[0]:
                    more = os.read(self.process.stdout.fileno(), 65536)
                    if not more:
                        break
                    answer += more
        return json.loads(answer) if answer.endswith(b"\n") else None

    def end(self):
        """Part of the end of its namespace, as of every daemon."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def see(n, check, **more):
    """What page.mjs saw."""
    settings = {
        "base": f"http://127.0.0.1:{setups.API_PORT}",
        "users": {role: token.split(":") for _, role, token, _ in setups.API_USERS},
        "check": check,
        "configuration": n.dut.configuration.read_text() + '\n[timeouts]\nicmp = "2 min"\n',
        **more,
    }
    browser = next((daemon for daemon in n.nat.daemons if isinstance(daemon, Browser)), None)
    if browser is None:
        browser = Browser(n)
        n.nat.daemons.append(browser)
    outcome = browser.look(settings)
    if outcome is None:
        n.nat.daemons.remove(browser)
        browser.process.kill()
        browser.end()
        raise Failure(f"page.mjs has no answer: status {browser.process.returncode}: {browser.errors.read_text()[-2000:]}")
    expect("error" not in outcome, f"{outcome.get('error')}\nfaults: {outcome['faults']}")
    expect_equal(outcome["faults"], [], "faults of the page")
    return outcome["seen"]


def how_full(ports):
    """What the box of a block says to screen readers, its colour, and how far it is filled."""
    used, size = ports["ports_used"], ports["last_port"] - ports["first_port"] + 1
    expect(0 < max(used.values()) < size / 2, f"ports used in the block: {ports}")
    share = 100 * max(used.values()) / size
    numbers = f"{used['udp']} UDP, {used['tcp']} TCP, {used['icmp']} ICMP"
    label = f"block {ports['first_port']}–{ports['last_port']}: {SUBSCRIBER_WITH_BLOCK} of default, {share:.1f} % used ({numbers})"
    return [label, "level1", f"{max(share, 12):g}%"]


@test("page")
def the_page_shows_everything_and_disturbs_nothing(n):
    seen = look(n, "quiet")
    for role, page in seen.items():
        expect_equal(page["alerts"], [], f"alerts for {role}")
        for figure in ("packets a second", "sessions", "new mappings a second"):
            expect(figure in page["figures"], f"{role}: no {figure} among {page['figures']}")
        expect_equal(page["pools"], [one["name"] for one in n.dut.show("pools")], f"pools for {role}")
        expect_equal(page["boxes"], len(n.dut.show("pools", "--addresses", "--all")), f"boxes of addresses for {role}")
        expect("ports leased" in page["chosen"], f"{role}: {page['chosen']}")
        expect(page["drops"] and all(page["drops"]), f"{role}: drops without a remedy: {page['drops']}")
        expect_equal(page["workers"], len(n.dut.show("status")[0]["workers"]), f"workers for {role}")
        if role == "audit":
            blocks = [block for block in page["blocks"] if SUBSCRIBER_WITH_BLOCK in block[0]]
            (subscriber,) = n.dut.show("subscribers", "--internal", SUBSCRIBER_WITH_BLOCK)
            own = subscriber["subscriber_ports"]
            expect_equal(sorted(blocks), sorted(how_full(ports) for ports in own), f"{role}: blocks on the map")
            cells = [f"{ports['first_port']}–{ports['last_port']} ({re.search(r'[0-9.]+ %', how_full(ports)[0])[0]})" for ports in own]
            expect(all(any(cell in seen for seen in page["own"]) for cell in cells), f"{role}: {cells} in {page['own']}")
            expect(SUBSCRIBER_WITH_BLOCK in page["address"], f"{role}: subscribers {page['address']}")
            expect_equal(page["steps"][-1], "verdict", f"last step of why for {role}")
            expect_equal(page["hints"], [], f"hints for {role}")
        else:
            expect_equal((page["names"], page["blocks"], page["address"]), (False, [], []), f"subscribers for {role}")
            expect("need a user with the role audit" in page["hints"][0], f"{role}: hints {page['hints']}")
    allowed = {role: [title.split(":")[0] for title in page["sections"]] for role, page in seen.items()}
    changes, lookups = {"Change the configuration", "Drain"}, {"Search", "Why"}
    expect(changes <= set(allowed["operate"]) and not lookups & set(allowed["operate"]), str(allowed))
    expect(lookups <= set(allowed["audit"]) and not changes & set(allowed["audit"]), str(allowed))
    expect(not (lookups | changes) & set(allowed["view"]), str(allowed))
    expect_equal(seen["audit"]["found"][0], "100.64.0.10", "holder")


@test("page")
def the_page_fits_a_telephone(n):
    for role, page in look(n, "narrow").items():
        expect(page["width"] <= 390, f"{role}: the page is {page['width']} px wide")
        expect_equal(page["outside"], [], f"elements beyond the edge for {role}")
        expect_equal(page["small"], [], f"elements too small for a finger for {role}")


def by_keys(seen):
    """The map by keys: one stop of Tab, and each box by arrow keys, Home and End."""
    order = seen["order"]
    expect(len(set(order)) == len(order) > 4, f"boxes {order}")
    expect_equal(seen["entered"], order[0], "where Tab enters the map")
    expect_equal((seen["last"], seen["beyond"], seen["first"]), (order[-1], order[-1], order[0]), "End, beyond it, Home")
    expect_equal((seen["second"], seen["above"], seen["left"]), (order[1], order[1], order[0]), "right, up and left")
    places = {address: (left, top) for address, left, top in seen["rows"]}
    left, top = places[order[1]]
    next_row = min(row for _, row in places.values() if row > top)
    nearest = min((abs(place - left), address) for address, (place, row) in places.items() if row == next_row)
    expect_equal(seen["below"], nearest[1], "down")
    expect_equal((seen["after"], seen["back"] in order[1:]), (None, True), "Tab and Shift-Tab from a box within")


@test("page")
def the_page_works_by_keyboard_alone(n):
    seen = look(n, "keyboard")
    by_keys(seen["map"])
    expect_equal(seen["proposed"], SUBSCRIBER_WITH_BLOCK, "subscriber of the chosen block")
    expect_equal(seen["found"][0], "100.64.0.10", "holder")
    expect("verdict" in seen["fare"], f"steps {seen['fare']}")
    expect(seen["before"], "reload is possible before a plan")
    expect("timeouts.icmp" in seen["differences"], f"differences {seen['differences']}")
    expect(seen["tableFirst"], "the table of the plan is behind the button")
    icmp = n.dut.show("status")[0]["timeouts"]["icmp_us"]
    expect_equal(icmp, 60_000_000, "timer after reload and rollback")
    status, out, _ = n.dut.command("audit", "--json", "--limit", "10")
    actions = [json.loads(line)["action"] for line in out.splitlines()]
    expect_equal([action for action in actions if action in ("reload", "rollback")][:2], ["rollback", "reload"], "audit log")


@test("page")
def the_page_is_accessible_in_both_colours(n):
    seen = look(n, "axe")
    for page in seen:
        place = f"{page['colorScheme']}, {page['role']}, {page['width']} px"
        expect_equal(page["violations"], [], f"axe: {place}")
        expect(page["passes"] >= 10, f"axe: {place}: only {page['passes']} rules passed")
    backgrounds = {page["colorScheme"]: page["background"] for page in seen}
    expect(backgrounds["light"] != backgrounds["dark"], f"dark looks like light: {backgrounds}")


@test("page")
def hostile_names_do_nothing(n):
    for role, page in look(n, "hostile").items():
        expect_equal(page, {"hacked": "undefined", "made": 0, "shown": True}, f"page for {role}")
    evil = n.dut.configuration.read_text().replace('name = "public"', 'name = "<img src=x onerror=alert(1)>"')
    path = n.state.directory / "evil.toml"
    path.write_text(evil)
    status, _, err = n.nat.run([n.dut.binary, "check", "-c", path])
    expect(status != 0 and "is not a name" in err, f"check of a hostile name: {status} {err}")


def screen_of_top(n, lines=60, columns=160):
    """The screen of natrix top after some seconds, as lines of text."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    top = subprocess.Popen([str(word) for word in n.nat.argv(["env", "TERM=xterm", n.dut.binary, "top", "--socket", n.dut.socket])],
                           stdin=follower, stdout=follower, stderr=follower, start_new_session=True, preexec_fn=process.die_with_parent)  # fmt: skip
    os.close(follower)
    # The seconds count from the first output: a busy machine starts natrix top late.
    shown, patience, until = b"", process.Patience(20), None
    while time.monotonic() < until if until else not patience.is_over():
        if select.select([leader], [], [], 0.1)[0]:
            shown += os.read(leader, 65536)
            until = until or time.monotonic() + 4
    top.terminate()
    top.wait(60)
    os.close(leader)
    screen, row, column = [[" "] * columns for _ in range(lines)], 0, 0
    # What ratatui sends: places, text, and colours, which do not matter here.
    for place, other, text in re.findall(r"\x1b\[(\d+;\d+)H|(\x1b(?:\[[?\d;]*[ -/]*[@-~]|[^\[]))|([^\x1b]+)", shown.decode(errors="replace")):
        if place:
            row, column = (int(part) - 1 for part in place.split(";"))
        for letter in text:
            if row < lines and column < columns:
                screen[row][column] = letter
            column += 1
    return ["".join(line) for line in screen]


def page_and_top(n):
    """Figures of the page, and the screen of natrix top, of the same few seconds."""
    with ThreadPoolExecutor(1) as beside:
        top = beside.submit(screen_of_top, n)
        return see(n, "numbers"), "\n".join(top.result())


def scaled(number):
    """A number as natrix top writes it where there is little room."""
    return str(number) if number < 10_000 else f"{number / 1000:.1f} k"


@test("page")
def the_page_top_and_the_api_show_the_same_numbers(n):
    prepare(n)
    same_numbers_everywhere(n)


def same_numbers_everywhere(n):
    """The figures of one moment on the page, in natrix top, in the API and in metrics."""

    def still():
        status = n.dut.show("status")[0]
        return [status[name] for name in ("mappings", "sessions", "subscribers", "packets_received", "held_ports")]

    # On a busy machine a round takes seconds, and hosts of IPv6 send something now and then.
    for _ in range(30):
        before = still()
        page, top = page_and_top(n)
        status, pools, drops = (ask(n, f"/api/v1/{name}")[2] for name in ("status", "pools", "drops"))
        metrics = ask(n, "/metrics")[2].decode()
        if still() == before:
            break
    else:
        raise Failure("the instance is never still")
    number = lambda text: int(text.replace(",", ""))  # noqa: E731
    for name in ("mappings", "sessions", "subscribers"):
        expect_equal(number(page["figures"][name]), status[name], f"{name} on the page")
        expect_equal(int(sample(metrics, f"natrix_{name}")), status[name], f"{name} in metrics")
        shown = re.search(rf"{name.capitalize()} +([\d,]+) ", top)
        expect(shown and number(shown[1]) == status[name], f"{name} in top: {status[name]} in\n{top}")
    by_name = {pool["name"]: pool for pool in pools["objects"]}
    expect_equal({row[0]: number(row[4]) for row in page["pools"]}, {name: sum(pool["ports_used"].values()) for name, pool in by_name.items()}, "ports")
    for name, pool in by_name.items():
        line = next((line for line in re.split(r"\n|│", top) if line.strip().startswith(name)), "")
        expect(scaled(sum(pool["ports_used"].values())) in line, f"pool {name} in top: {line}")
    dropped = {drop["reason"]: drop["packets"] for drop in drops["objects"] if drop["packets"]}
    expect_equal({row[0]: number(row[1]) for row in page["drops"]}, dropped, "drops on the page")
    for reason, packets in dropped.items():
        line = next((line for line in re.split(r"\n|│", top) if line.strip().startswith(f"{reason[:20]}")), "")
        expect(scaled(packets) in line, f"drop {reason} in top: {packets} in {line}")
    workers = [(str(one["worker"]), one["packets_received"], one["packets_forwarded"], one["packets_dropped"], one["sessions"]) for one in status["workers"]]
    expect_equal([(row[0], *map(number, row[4:])) for row in page["workers"]], workers, "workers on the page")


@test("page")
def a_search_of_the_past_has_words_and_its_limits(n):
    server = udp(n.srv1)
    remote = (SRV1, server.getsockname()[1])
    with sockets(server, udp(n.sub1)) as (server, sub):
        address, port = external_of(sub, server, remote)
        inside = sub.getsockname()[1]
        then = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        await_store(n)
        seen = see(n, "past", external=f"{address}:{port}", at=then, long_before="2020-01-02T03:04:05Z")
    holder, vrf, external, internal, answer = seen["then"]["rows"][0]
    expect_equal((holder, vrf, external, internal), ("100.64.0.10", "default", f"udp {address}:{port}", f"100.64.0.10:{inside}"), "the row")
    expect(re.fullmatch(r"had a mapping of pool public since \S+ \S+\.\d{3} UTC and still has it by the last record", answer), f"answer {answer!r}")
    asked = f"{address}:{port} at {then[:10]} {then[11:23]} UTC"
    expect_equal(seen["then"]["notes"], f"{asked}: 1 answer; the records of that time are complete.", "what the records cover")
    expect_equal(seen["before"]["rows"], [], "holders before there were records")
    notes = seen["before"]["notes"]
    asked = f"{address}:{port} from 2020-01-02 03:04:05.000 UTC to 2020-01-02 03:04:05.999 UTC"
    expect(notes.startswith(f"{asked}: no holder found; the records of that time are not complete"), notes)
    expect("\nNote: " in notes, f"no reason: {notes}")
    raw = [word for part in seen.values() for word in ("since_exact", "complete true", "certain", "null", "undefined") if word in str(part)]
    expect_equal(raw, [], "raw fields on the page")


@test("page")
def no_search_shows_the_explanation_of_another(n):
    _, external, _, _ = prepare(n)
    address = external.split(":")[0]
    searches = {
        "past": [external, "2020-01-02T03:04:05Z"],
        "address": [address, ""],
        "faulty": [f"{address}:nonsense.9", ""],
        "elsewhere": ["198.18.0.1:9", ""],
        "nobody": [f"{address}:9", ""],
    }
    seen = see(n, "stale", external=external, searches=searches)
    for name in ("past", "address", "faulty", "elsewhere"):
        expect_equal(seen[name]["steps"], [], f"{name}: explained")
        shown = seen[name]["alert" if name == "faulty" else "sentence"]
        expect(shown and "undefined" not in shown, f"{name}: {shown!r}")
    expect_equal(seen["faulty"]["found"], 0, "found for a faulty input")
    expect_equal(seen["nobody"]["asked"], ["192.0.2.1:443", f"{address}:9", True], "what was explained of nobody's endpoint")
    verdict = next(step for step in seen["nobody"]["steps"] if step[0] == "verdict")
    status, out, err = n.dut.command("why", "udp", "192.0.2.1:443", f"{address}:9", "--inbound", "--json")
    expect_equal(status, 0, f"natrix why: {err}")
    expect_equal(verdict[1], json.loads(out)["verdict"], "verdict")


@test("page")
def the_page_goes_on_after_a_restart_of_the_api_and_a_refusal(n):
    seen = see(n, "returns", api=child_of(n))
    expect_equal(seen["restarted"], "The connection to Natrix is lost; trying again.", "while there is no API")
    expect("refused" in seen["refused"], f"without a place for live figures: {seen['refused']}")
    # One user has half of the places, and the page's own follower is among them.
    expect_equal(seen["answers"].count(200), 15, f"followers of one user: {seen['answers']}")


@test("page")
def the_manual_has_the_number_of_pages_of_one_address(n):
    most = see(n, "connections")["most"]
    manual, source = (Path(__file__).parents[2] / path for path in ("docs/api.md", "crates/api/src/connections.rs"))
    of_one = int(re.search(r"CONNECTIONS_OF_ONE_MAX: usize = (\d+);", source.read_text())[1])
    pages, of_page = map(int, re.search(r"(\d+) pages of (\d+)\s+connections", manual.read_text()).groups())
    expect(0 < most <= of_page and pages == of_one // of_page, f"{most} connections of a page; the manual has {pages} pages of {of_page}")


@test("page")
def the_page_explains_a_full_pool_as_the_command_does(n):
    with contextlib.ExitStack() as stack:
        # The pool has ten ports.
        socks = [stack.enter_context(sockets(udp(n.sub2, address=setups.SCARCE))) for _ in range(11)]
        for sock in socks:
            sock.sendto(b"x", (SRV1, 9))
        source = f"{setups.SCARCE}:{socks[-1].getsockname()[1]}"
        seen = see(n, "full", source=source)
        status, out, err = n.dut.command("why", "udp", source, seen["destination"], "--json")
    expect_equal(status, 0, f"natrix why: {err}")
    by_command = json.loads(out)
    expect_equal(by_command["verdict"], "ports_exhausted", "verdict of the command")
    steps = [[step["step"], step["decision"], step["detail"]] for step in by_command["steps"]]
    expect_equal(seen["steps"][: len(steps)], steps, "steps")
    expect_equal(seen["steps"][len(steps)], ["verdict", "ports_exhausted", by_command["description"]], "verdict")
    remedy = next(drop["remedy"] for drop in n.dut.show("drops", "--all") if drop["reason"] == "ports_exhausted")
    expect_equal(seen["steps"][len(steps) + 1 :], [["what to do", remedy, "–"]], "what to do")


def mapping_in_other_vrf(n, address, port, remote):
    """Makes a mapping of this endpoint in the other VRF; returns it as `show mappings` has it."""
    vrf, vlan = setups.OTHER_VRF
    packet = ip_packet(address, remote[0], socket.IPPROTO_UDP, udp_segment(address, port, *remote, b"x"))
    ethernet = station_of_nat(n) + bytes.fromhex("020000000b1e")
    # Into the last cable: a bridge would take the tag out of the frame.
    with n.access.entered():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sock.bind(("nat", 0))
    with sockets(sock):
        sock.send(ethernet + struct.pack("!HHH", 0x8100, vlan, 0x0800) + packet)
    found = []
    is_there = lambda: found.extend(n.dut.show("mappings", "--vrf", vrf, "--all")) or found  # noqa: E731
    drops = lambda: {one["reason"]: one["packets"] for one in n.dut.show("drops") if one["packets"]}  # noqa: E731
    expect(wait_until(is_there, 10, 0.2), f"no mapping in VRF {vrf}; drops {drops()}")
    return found[0]


@test("page")
def the_page_explains_the_packet_of_the_vrf_that_was_found(n):
    server = udp(n.srv1)
    remote = (SRV1, server.getsockname()[1])
    with sockets(server, udp(n.sub1)) as (server, sub):
        address, port = external_of(sub, server, remote)
        inside = f"100.64.0.10:{sub.getsockname()[1]}"
        other = mapping_in_other_vrf(n, "100.64.0.10", sub.getsockname()[1], remote)
        expect_equal(other["internal"], inside, "the endpoint in the other VRF")
        outcome = see(n, "vrfs", searches=[f"{address}:{port}", other["external"], inside])
        command = ["why", "udp", inside, f"{SRV1}:{remote[1]}", "--json"]
        by_command = [json.loads(n.dut.command(*command, *more)[1])["translated_source"] for more in ([], ["--vrf", other["vrf"]])]
    expect_equal(by_command, [f"{address}:{port}", other["external"]], "natrix why without and with the VRF")
    by_default, by_other, by_inside = outcome["seen"]
    for seen, vrf, external in ((by_default, "default", f"{address}:{port}"), (by_other, other["vrf"], other["external"])):
        expect_equal((seen["asked"], seen["found"][0][1]), (vrf, vrf), f"VRF of {external}")
        expect_equal(seen["leaves"], [f"udp {external} > {SRV1}:{remote[1]}"], f"the packet of {external}")
        expect_equal(seen["sentence"], "", f"one VRF alone has {external}")
    expect_equal(sorted(row[1] for row in by_inside["found"]), sorted(["default", other["vrf"]]), "VRFs of the inside endpoint")
    expect(f"a packet of VRF {by_inside['asked']};" in by_inside["sentence"], by_inside["sentence"])
    expect('VRF "nonesuch": does not exist; use one of: default, ' in outcome["alert"], f"an unknown VRF: {outcome['alert']!r}")


def rates_at_once(n):
    """The rates on the page and in natrix top; the rates that the command and the API returned meanwhile; whether both
    missed a second of the daemon; the screen of natrix top."""
    stop, by_command, by_api = threading.Event(), set(), set()
    times = {id(by_command): [], id(by_api): []}

    def send(sock):
        # Some change from second to second.
        while not stop.wait(0.01):
            sock.sendto(b"x", (SRV1, 9))

    # A busy machine is late for one of them, and must not miss the seconds of the other.
    def watch(rates, status):
        while not stop.wait(0.2):
            begun = time.monotonic()
            rates.add(status()["packets_per_second"])
            times[id(rates)].append((begun, time.monotonic()))

    with sockets(udp(n.sub1)) as sock:
        watched = [(by_command, lambda: n.dut.show("status")[0]), (by_api, lambda: ask(n, "/api/v1/status")[2])]
        threads = [threading.Thread(target=send, args=(sock,)), *(threading.Thread(target=watch, args=one) for one in watched)]
        for thread in threads:
            thread.start()
        try:
            page, top = page_and_top(n)
            time.sleep(2)
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)

    def is_late(asked):
        return len(asked) < 2 or any(ended - begun >= 1 for (begun, _), (_, ended) in zip(asked, asked[1:]))

    # Each shows the rate of one of these seconds, whenever it asked.
    shown = re.search(r"Forwarded packets\D*?([\d,.]+)/s", top)
    rates = {"page": int(page["figures"]["packets a second"].replace(",", "")), "top": shown and int(shown[1].replace(",", ""))}
    return rates, by_command, by_api, all(map(is_late, times.values())), top


@test("page")
def rates_are_those_of_the_daemon_everywhere(n):
    for _ in range(10):
        rates, by_command, by_api, is_late, top = rates_at_once(n)
        # The rate of a second that both missed is unknown: measure again.
        if not is_late or set(rates.values()) <= by_command | by_api:
            break
    for what, rate in rates.items():
        expect(rate in by_command | by_api and rate > 0, f"{what} shows {rate}, the daemon had {sorted(by_command | by_api)}:\n{top}")
    expect((by_command & by_api) - {0}, f"command {by_command}, API {by_api}")


# Subscribers of the pool with blocks in a screenshot, and mappings of the busiest.
BUSY_SUBSCRIBERS = [f"100.64.0.{last}" for last in range(65, 80)]
BUSY_MAPPINGS = 250


def busy(n, stop):
    """Traffic of a working day: subscribers with few and many mappings, at a rate that comes and goes."""
    dice, begun = random.Random(20), time.monotonic()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(sockets(udp(n.srv1)))
        to = (SRV1, server.getsockname()[1])
        talkers = [stack.enter_context(sockets(udp(n.sub2, address=address))) for address in BUSY_SUBSCRIBERS * 4]
        made = dict.fromkeys(BUSY_SUBSCRIBERS, 0)
        while not stop.wait(0.05):
            for place, address in enumerate(BUSY_SUBSCRIBERS):
                if made[address] < BUSY_MAPPINGS * (place + 1) // len(BUSY_SUBSCRIBERS) and dice.random() < 0.7:
                    # The mapping outlives the socket.
                    with sockets(udp(n.sub2, address=address)) as sock:
                        sock.sendto(b"x", to)
                    made[address] += 1
            wave = 1.2 + math.sin((time.monotonic() - begun) / 4)
            for sock in dice.choices(talkers, k=int(60 * wave)):
                with contextlib.suppress(OSError):
                    sock.sendto(b"x" * dice.randint(20, 1200), to)


if SCREENSHOTS:

    @test("page")
    def screenshots_of_the_page(n):
        folder, stop = Path(SCREENSHOTS).resolve(), threading.Event()
        traffic = threading.Thread(target=busy, args=(n, stop))
        traffic.start()
        try:
            # Blocks fill.
            time.sleep(20)
            look(n, "screenshots", folder=str(folder))
        finally:
            stop.set()
            traffic.join(30)
        for path in folder.glob("page-*.png"):
            subprocess.run(["cwebp", "-quiet", "-q", "60", path, "-o", path.with_suffix(".webp")], check=True)
            path.unlink()
