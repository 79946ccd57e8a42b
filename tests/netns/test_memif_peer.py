"""Peers of net_memif that end while workers are in a burst of the memory they share."""

import subprocess
import time
from pathlib import Path

from flood import SharedMemory
from flood import capture
from flood import frames
from kit import *
from netlab.process import wait_until
from setups import FLOOD_LINK
from setups import shared_memory

HERE = Path(__file__).parent
# Of so many ends at most, so many shall find a worker in a burst. It stays there far longer than
# DPDK's own thread needs to take the memory away. A busy machine needs more ends.
ENDS_MAX, FOUND, LONG_US = 200, 3, 30_000
# Of frames, before each end.
FLOOD_SECONDS = 0.3


@test("memif_peer")
def a_worker_in_a_burst_outlives_the_end_of_its_peer(n):
    """DPDK's own thread unmapped what the peer had shared, and a worker whose CPU had been taken away meanwhile crashed."""
    folder = n.state.directory
    library, bursts, socket, path = (folder / name for name in ("long.so", "bursts", "peer.sock", "peer.pcap"))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "long_burst.c", "-ldl"], check=True)
    configuration = folder / "peer.toml"
    peer = shared_memory("peer", "outside", f"{FLOOD_LINK}.2/24", socket)
    configuration.write_text(n.dut.configuration.read_text() + peer)
    # ARP for everybody, of a station that does not matter.
    capture(path, frames(bytes(6), "arp", FLOOD_LINK))
    expect_equal(n.dut.stop(), None, "end of the instance before")
    words = ["env", f"LD_PRELOAD={library}", f"LONG_US={LONG_US}", f"BURSTS={bursts}", n.dut.binary, "run", "-c", configuration]
    instance = n.nat.start("natrix", words)

    def of_peer(key):
        """What the instance says; None while no worker has time to answer."""
        return {port["name"]: port[key] for port in n.dut.show("interfaces")}.get("peer")

    def wait_for_link(wanted, what):
        there = wait_until(lambda: not instance.alive() or of_peer("link_up") == wanted, 30, 0.05)
        expect(there and instance.alive(), f"{what}: {instance.log()[-300:]}")

    try:
        expect(wait_until(n.dut.running, 30, 0.1), f"Natrix is ready: {instance.log()[-300:]}")
        for end in range(1, ENDS_MAX + 1):
            sender = SharedMemory(n.core, path, socket)
            try:
                wait_for_link(True, f"the link to peer {end}")
                before = of_peer("rx_packets") or 0
                sender.begin()
                # A busy machine may let the sender wait.
                wait_until(lambda: (of_peer("rx_packets") or 0) > before, 5)  # noqa: B023
                time.sleep(FLOOD_SECONDS)
            finally:
                sender.end()
            wait_for_link(False, f"after the end of peer {end}")
            if len(bursts.read_text().splitlines()) >= FOUND:
                break
        found = len(bursts.read_text().splitlines())
        expect(found >= FOUND, f"{found} workers were in a burst at {ENDS_MAX} ends")
        expect_equal(instance.end(15), 0, f"end of the instance: {instance.log()}")
    finally:
        instance.end(15)
        n.dut.restart()
