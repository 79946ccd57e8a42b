"""RTSP with gst-rtsp-server and ffmpeg: media over UDP, and interleaved in the connection."""

import re

from kit import *
from netlab.topology import SRV1

SERVER = """
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_service("554")
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch("( audiotestsrc is-live=true ! audioconvert ! audio/x-raw,rate=8000,channels=1 ! rtpL16pay name=pay0 pt=96 )")
server.get_mount_points().add_factory("/tone", factory)
server.attach(None)
GLib.MainLoop().run()
"""


def serve(n):
    daemon = n.srv1.start("gst-rtsp-server", ["/usr/bin/python3", "-c", SERVER])
    n.wait_for_listener(n.srv1, 554)
    return daemon


def play(n, transport, seconds=1, patience=20):
    """Samples that ffmpeg received in `seconds` of sound, and what it said."""
    command = ["ffmpeg", "-hide_banner", "-nostdin", "-rtsp_transport", transport, "-timeout", str(patience * 1_000_000),
               "-i", f"rtsp://{SRV1}/tone", "-t", str(seconds), "-c", "copy", "-f", "framecrc", "-"]  # fmt: skip
    _, out, err = n.sub1.run(command, timeout=120)
    frames = re.findall(r"^0, +\d+, +\d+, +(\d+), +\d+,", out, re.M)
    return sum(map(int, frames)), err


@test("gateways")
def rtsp_media_come_over_udp_and_interleaved(n):
    daemon = serve(n)
    created = counter(n, "expectations_created")
    samples, said = play(n, "udp")
    expect(samples >= 7000, f"{samples} samples over UDP\n{said[-1500:]}")
    expect(counter(n, "expectations_created") > created, "nothing was expected")
    created = counter(n, "expectations_created")
    samples, said = play(n, "tcp")
    expect(samples >= 7000, f"{samples} samples, interleaved\n{said[-1500:]}")
    expect_equal(counter(n, "expectations_created"), created, "expectations of interleaved media")
    daemon.end()


@test("gateways_off")
def rtsp_without_the_gateway_has_only_interleaved_media(n):
    daemon = serve(n)
    samples, _ = play(n, "udp", patience=4)
    expect_equal(samples, 0, "samples over UDP")
    samples, said = play(n, "tcp")
    expect(samples >= 7000, f"{samples} samples, interleaved\n{said[-1500:]}")
    daemon.end()
