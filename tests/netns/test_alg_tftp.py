"""TFTP with tftpd-hpa: the server answers from another port, which the pool's filtering refuses without the gateway."""

import os
import random

from kit import *
from netlab.topology import SRV1

FIRMWARE = random.Random("firmware").randbytes(100_000)


def serve(n):
    root = n.state.bulk / "tftp"
    root.mkdir(exist_ok=True)
    for folder in (n.state.bulk, root):
        os.chmod(folder, 0o755)
    (root / "firmware").write_bytes(FIRMWARE)
    os.chmod(root / "firmware", 0o644)
    upload = root / "upload"
    upload.write_bytes(b"")
    os.chmod(upload, 0o666)
    daemon = n.srv1.start("tftpd", ["in.tftpd", "--foreground", "--secure", "--user", "nobody", root])
    n.wait_for_listener(n.srv1, 69, "udp")
    return daemon, upload


def get(n, into, *options):
    into.unlink(missing_ok=True)
    return n.sub1.run(["curl", "-sS", "-m", "30", *options, f"tftp://{SRV1}/firmware", "-o", into], timeout=60)


@test("gateways")
def tftp_reads_and_writes_pass(n):
    daemon, upload = serve(n)
    into = n.state.bulk / "got-tftp"
    status, _, err = get(n, into)
    expect(status == 0 and into.read_bytes() == FIRMWARE, f"curl: status {status} {err}")
    into.unlink()
    _, out, err = n.sub1.run(["tftp", "-m", "binary", SRV1, "-c", "get", "firmware", into], timeout=60)
    expect(into.exists() and into.read_bytes() == FIRMWARE, f"tftp-hpa: {out} {err}")
    _, out, err = n.sub1.run(["tftp", "-m", "binary", SRV1, "-c", "put", into, "upload"], timeout=60)
    expect(upload.read_bytes() == FIRMWARE, f"tftp-hpa, put: {out} {err}")
    if n.dut.name == "natrix":
        expect_equal(counter(n, "alg_tftp_sessions"), 3, "control sessions")
    daemon.end()


@test("gateways_off")
def tftp_without_the_gateway_gets_no_answer(n):
    daemon, _ = serve(n)
    into = n.state.bulk / "got-tftp"
    status, _, _ = get(n, into, "-m", "4")
    expect(status != 0 and not (into.exists() and into.read_bytes() == FIRMWARE), "it works without")
    daemon.end()
