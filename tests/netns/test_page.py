"""The page in Chromium: quiet, usable on a telephone and by keyboard, accessible, and deaf to hostile names."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import setups
from kit import *
from netlab.topology import SRV1

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
    """What page.mjs saw; a failure for every fault of the page."""
    source, external, destination, in_blocks = prepare(n)
    settings = {
        "base": f"http://127.0.0.1:{setups.API_PORT}",
        "users": {role: token.split(":") for _, role, token, _ in setups.API_USERS},
        "modules": f"{MODULES}/",
        "chromium": shutil.which("chromium") or "chromium",
        "check": check,
        "source": source,
        "external": external,
        "destination": destination,
        "inBlocks": in_blocks,
        "configuration": n.dut.configuration.read_text() + '\n[timeouts]\nicmp = "2 min"\n',
        **more,
    }
    script = Path(__file__).with_name("page.mjs")
    with tempfile.TemporaryDirectory(prefix="natrix-page-") as home:
        # Chromium keeps its profile there and nowhere else.
        command = ["env", f"HOME={home}", f"XDG_RUNTIME_DIR={home}", "node", script, json.dumps(settings)]
        status, out, err = n.nat.run(command, timeout=300)
    expect(status == 0 and out.strip(), f"page.mjs: status {status}: {err[-2000:]}")
    outcome = json.loads(out.strip().splitlines()[-1])
    expect("error" not in outcome, f"{outcome.get('error')}\nfaults: {outcome['faults']}")
    expect_equal(outcome["faults"], [], "faults of the page")
    return outcome["seen"]


@test("page")
def the_page_shows_everything_and_disturbs_nothing(n):
    seen = look(n, "quiet")
    for role, page in seen.items():
        expect_equal(page["alerts"], [], f"alerts for {role}")
        for figure in ("packets a second", "sessions", "new mappings a second"):
            expect(figure in page["figures"], f"{role}: no {figure} among {page['figures']}")
        expect_equal(page["pools"], [one["name"] for one in n.dut.show("pools")], f"pools for {role}")
        expect_equal(page["boxes"], len(n.dut.show("pools", "--addresses", "--all")), f"boxes of addresses for {role}")
        expect(page["blocks"] >= 1, f"{role}: no block on the map")
        expect(SUBSCRIBER_WITH_BLOCK in page["address"], f"{role}: subscribers {page['address']}")
        expect(page["drops"] and all(page["drops"]), f"{role}: drops without a remedy: {page['drops']}")
        expect_equal(page["workers"], len(n.dut.show("status")[0]["workers"]), f"workers for {role}")
        expect_equal(page["steps"][-1], "verdict", f"last step of why for {role}")
    allowed = {role: [title.split(":")[0] for title in page["sections"]] for role, page in seen.items()}
    expect("Change the configuration" in allowed["operate"] and "Search" not in allowed["operate"], str(allowed))
    expect("Search" in allowed["audit"] and "Change the configuration" not in allowed["audit"], str(allowed))
    expect(not {"Search", "Change the configuration"} & set(allowed["view"]), str(allowed))
    expect_equal(seen["audit"]["found"][0], "100.64.0.10", "holder")


@test("page")
def the_page_fits_a_telephone(n):
    for role, page in look(n, "narrow").items():
        expect(page["width"] <= 390, f"{role}: the page is {page['width']} px wide")
        expect_equal(page["outside"], [], f"elements beyond the edge for {role}")
        expect_equal(page["small"], [], f"elements too small for a finger for {role}")


@test("page")
def the_page_works_by_keyboard_alone(n):
    seen = look(n, "keyboard")
    expect_equal(seen["proposed"], SUBSCRIBER_WITH_BLOCK, "subscriber of the chosen block")
    expect_equal(seen["found"][0], "100.64.0.10", "holder")
    expect("verdict" in seen["fare"], f"steps {seen['fare']}")
    expect(seen["before"], "reload is possible before a plan")
    expect("timeouts.icmp" in seen["differences"], f"differences {seen['differences']}")
    expect(seen["tableFirst"], "the table of the plan is behind the button")
    icmp = n.dut.show("status")[0]["timeouts"]["icmp_us"]
    expect_equal(icmp, 60_000_000, "timer after reload and rollback")
    status, out, _ = n.dut.command("audit", "--json", "--limit", "4")
    expect_equal([json.loads(line)["action"] for line in out.splitlines()][:2], ["rollback", "reload"], "audit log")


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


if SCREENSHOTS:

    @test("page")
    def screenshots_of_the_page(n):
        folder = Path(SCREENSHOTS).resolve()
        look(n, "screenshots", folder=str(folder))
        for path in folder.glob("page-*.png"):
            subprocess.run(["cwebp", "-quiet", "-q", "60", path, "-o", path.with_suffix(".webp")], check=True)
            path.unlink()
