"""SIP with real programs: calls of SIPp over UDP and TCP with sound both ways; kamailio and two baresip phones.

By default as many calls as take half a minute. `NATRIX_SIP_CALLS=1000` makes as many over each transport.
"""

import os
import time

from kit import *
from netlab import process
from netlab import sip
from netlab.topology import POOL
from netlab.topology import SRV1
from netlab.topology import SUBSCRIBERS

CALLS = int(os.environ.get("NATRIX_SIP_CALLS", "200"))
# Calls take ports from here on again and again.
MEDIA_CALLS = 10000 // sip.MEDIA_STEP


def make_calls(n, transport, count):
    """Calls from sub1 to srv1: SIPp's status and text, and the sound that came to each side."""
    inside, outside = SUBSCRIBERS["sub1"], SRV1
    answering = sip.answer(n, n.srv1, transport, outside)
    sounds = sip.Sound(n.sub1, inside), sip.Sound(n.srv1, outside)
    try:
        status, said = sip.call(n, n.sub1, transport, inside, outside, count)
        time.sleep(1)
    finally:
        for sound in sounds:
            sound.close()
        answering.end()
    return status, said, *sounds


def expect_nothing_left(n):
    """No expectation and no port of the calls a while after they are over."""
    inside = SUBSCRIBERS["sub1"]

    def left():
        return n.dut.show("expectations", "--internal", inside) + n.dut.show("mappings", "--internal", inside)

    gone = process.wait_until(lambda: not left(), 60, 0.5)
    expect(gone, f"left after the calls: {left()[:5]}")


def calls_have_sound_both_ways(n, transport):
    status, said, inbound, outbound = make_calls(n, transport, CALLS)
    expect_equal(status, 0, f"status of SIPp\n{said[-2500:]}\n")
    used = {sip.MEDIA + sip.MEDIA_STEP * call for call in range(1, min(CALLS, MEDIA_CALLS) + 1)}
    for name, sound in (("to the caller", inbound), ("to the called", outbound)):
        ports = len(sound.ports)
        expect_equal(ports, len(used), f"calls with sound {name}")
        total = sum(sound.ports.values())
        expect(total >= 0.99 * CALLS * sip.SOUND_PACKETS, f"{total} packets of sound {name} in {CALLS} calls")
    senders = set().union(*outbound.senders.values())
    expect(senders <= set(POOL), f"sound came from {senders}")
    if n.dut.name == "natrix":
        expect_nothing_left(n)


@test("gateways_short")
def sip_calls_over_udp_have_sound_both_ways(n):
    calls_have_sound_both_ways(n, "udp")


@test("gateways_short")
def sip_calls_over_tcp_have_sound_both_ways(n):
    calls_have_sound_both_ways(n, "tcp")


@test("gateways_off_short")
def sip_calls_without_the_gateway_have_no_sound_to_the_caller(n):
    """SIPp answers to where the request came from, so the signalling passes; the sound does not."""
    _, _, inbound, _ = make_calls(n, "udp", 2)
    expect_equal(sum(inbound.ports.values()), 0, "packets of sound to the caller")


def phone_call(n, seconds=8):
    """A call of baresip on sub1 to baresip on sub2 by way of kamailio: what each end heard, and what they printed."""
    a, b = SUBSCRIBERS["sub1"], SUBSCRIBERS["sub2"]
    registrar = sip.start_registrar(n, n.srv1, SRV1)
    sounds = sip.Sound(n.sub1, a), sip.Sound(n.sub2, b)
    called = sip.start_phone(n, n.sub2, b, "bob", SRV1)
    process.wait_until(lambda: "200 OK" in called.log(), 10, 0.1)
    caller = sip.start_phone(n, n.sub1, a, "alice", SRV1, f"/dial sip:bob@{SRV1}")
    try:
        process.wait_until(lambda: all(sum(sound.ports.values()) > 50 for sound in sounds), seconds, 0.1)
        shown, mappings = [], []
        if n.dut.name == "natrix":
            shown = n.dut.show("expectations", "--alg", "sip")
            inside = f"{a}:{min(sounds[0].ports, default=0)}"
            mappings = n.dut.show("mappings", "--internal", inside, "--protocol", "udp")
    finally:
        for sound in sounds:
            sound.close()
        for daemon in (caller, called, registrar):
            daemon.end()
    lines = [line for daemon in (caller, called, registrar) for line in daemon.log().splitlines() if line.strip()]
    said = "\n".join(lines[-80:])
    return [sum(sound.ports.values()) for sound in sounds], shown, mappings, said


@test("gateways")
def phones_of_two_subscribers_call_by_a_registrar(n):
    heard, shown, mappings, said = phone_call(n)
    expect(min(heard) > 50, f"packets heard: {heard}\n{said}")
    if n.dut.name != "natrix":
        return
    inside = {expectation["internal"].partition(":")[0] for expectation in shown}
    expect_equal(inside, {SUBSCRIBERS["sub1"], SUBSCRIBERS["sub2"]}, "subscribers with expectations")
    expect_equal([mapping.get("origin") for mapping in mappings], ["sip"], "origin of the mapping of the sound")
    external = mappings[0]["external"]
    _, found, _ = n.dut.command("find", external, "--protocol", "udp", "--json")
    expect('"origin":"sip"' in found, f"find does not name the origin: {found}")
    _, why, _ = n.dut.command("why", "udp", f"{SRV1}:4000", external, "--inbound")
    expect("asked for by sip" in why, f"why does not name the origin: {why}")
    sip_gateway = next(gateway for gateway in n.dut.show("algs") if gateway["name"] == "sip")
    expect(sip_gateway["enabled"] and sip_gateway["sessions"] >= 2, f"gateway: {sip_gateway}")


@test("gateways_off")
def phones_without_the_gateway_are_not_reached(n):
    heard, _, _, said = phone_call(n, 4)
    expect_equal(heard, [0, 0], f"packets heard\n{said}\n")
