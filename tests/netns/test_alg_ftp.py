"""FTP with real programs: three servers, three clients, four ways to open the data connection.

The client is inside, or the server is inside behind a forward. Without the gateway, what announces an inside address
fails; that is shown too. `NATRIX_FTP_SECONDS=600` makes the long transfer take ten minutes.
"""

import hashlib
import os
import random
import time
from pathlib import Path

from kit import *
from netlab import ftp
from netlab.topology import SRV1
from setups import SERVER_FORWARD
from setups import FTP_IDLE_SECONDS

SIZE = 300_000
# The long transfer; an idle connection may be idle for a third of the shortest one.
LONG_SECONDS = 3 * FTP_IDLE_SECONDS
CHOSEN_SECONDS = int(os.environ.get("NATRIX_FTP_SECONDS", LONG_SECONDS))
# Announce an address of the client, and of the server.
BY_CLIENT, BY_SERVER = ("PORT", "EPRT"), ("PASV", "EPSV")


def curl(way, url, into, *options):
    own = {
        "PORT": ["--ftp-port", "-", "--disable-eprt"],
        "EPRT": ["--ftp-port", "-"],
        "PASV": ["--disable-epsv"],
        "EPSV": [],
    }[way]
    return ["curl", "-sS", "-v", "-m", "30", *own, *options, url, "-o", into]


def lftp(way, url, into):
    settings = {
        "PORT": "set ftp:passive-mode no",
        "PASV": "set ftp:passive-mode yes; set ftp:prefer-epsv no",
        "EPSV": "set ftp:passive-mode yes; set ftp:prefer-epsv yes",
    }[way]
    common = "set net:max-retries 1; set net:timeout 20; set ftp:ssl-allow no; set cmd:fail-exit yes; set dns:order inet"
    return ["lftp", "-d", "-c", f"{common}; {settings}; get1 {url} -o {into}"]


def tnftp(way, url, into):
    """It uses the older commands after `epsv4 off`, which it runs once it has logged in."""
    netrc = Path(f"{into}.netrc")
    netrc.write_text("" if way in ("EPRT", "EPSV") else "default login anonymous password x\nmacdef init\nepsv4 off\n\n")
    mode = "-A" if way in BY_CLIENT else "-p"
    return ["tnftp", "-4", "-d", "-q", "20", "-N", str(netrc), mode, "-o", into, url]


# lftp sends no EPRT over IPv4.
CLIENTS = {
    "curl": (curl, ("PORT", "EPRT", "PASV", "EPSV")),
    "lftp": (lftp, ("PORT", "PASV", "EPSV")),
    "tnftp": (tnftp, ("PORT", "EPRT", "PASV", "EPSV")),
}


def folder_with_file(n, name, size=SIZE):
    """A folder to serve, and the checksum of its file `film`."""
    root = n.state.bulk / f"ftp-{name}"
    root.mkdir(exist_ok=True)
    content = random.Random(name).randbytes(size)
    (root / "film").write_bytes(content)
    os.chmod(root / "film", 0o644)
    return root, hashlib.sha256(content).hexdigest()


def fetch(n, host, client, way, address, *options, timeout=120):
    """Runs a client; its status, what it said, and the checksum of what it got."""
    command, _ = CLIENTS[client]
    into = n.state.bulk / f"got-{client}-{way}"
    into.unlink(missing_ok=True)
    status, out, err = host.run(command(way, f"ftp://{address}/film", str(into), *options), timeout=timeout)
    found = hashlib.sha256(into.read_bytes()).hexdigest() if into.exists() else None
    return status, out + err, found


def expectations(n):
    """Expectations so far; none are counted in another NAT."""
    return counter(n, "expectations_created") if n.dut.name == "natrix" else 0


def run_all(n, server_host, client_host, address, announced):
    """Every server with every client in every way; `announced`: the ways that the gateway must rewrite."""
    for server in ftp.NAMES:
        root, checksum = folder_with_file(n, server)
        daemon = ftp.start(n, server_host, server, root)
        try:
            for client, (_, ways) in CLIENTS.items():
                for way in ways:
                    what = f"{client} to {server} by {way}"
                    before = expectations(n)
                    status, said, found = fetch(n, client_host, client, way, address)
                    expect(status == 0 and found == checksum, f"{what}: status {status}, {found}\n{said[-1500:]}")
                    expect(way in said, f"{what}: it used another command\n{said[-1500:]}")
                    if n.dut.name == "natrix":
                        expect_equal(expectations(n) - before, int(way in announced), f"{what}: expectations")
        finally:
            daemon.end()


@test("gateways")
def ftp_clients_inside_reach_servers_outside(n):
    run_all(n, n.srv1, n.sub1, SRV1, BY_CLIENT)


@test("gateways")
def ftp_clients_outside_reach_a_server_behind_a_forward(n):
    run_all(n, n.sub1, n.srv1, SERVER_FORWARD, BY_SERVER)


@test("gateways_off")
def ftp_without_the_gateway_fails_with_inside_addresses(n):
    root, checksum = folder_with_file(n, "control")
    for server_host, client_host, address, announced in (
        (n.srv1, n.sub1, SRV1, BY_CLIENT),
        (n.sub1, n.srv1, SERVER_FORWARD, BY_SERVER),
    ):
        daemon = ftp.start(n, server_host, "vsftpd", root)
        try:
            for way in CLIENTS["curl"][1]:
                short = ["-m", "3", "--connect-timeout", "2"] if way in announced else []
                status, said, found = fetch(n, client_host, "curl", way, address, *short)
                what = f"{way} to {address} without the gateway"
                if way in announced:
                    expect(status != 0 and found != checksum, f"{what}: it works\n{said[-1500:]}")
                else:
                    expect(status == 0 and found == checksum, f"{what}: status {status}\n{said[-1500:]}")
        finally:
            daemon.end()
    expect_equal(expectations(n), 0, "expectations")


def long_transfer(n, seconds):
    """A download that takes longer than a TCP connection may be idle; the client's status, and what it said."""
    rate = 100_000
    root, checksum = folder_with_file(n, "long", rate * seconds)
    daemon = ftp.start(n, n.srv1, "vsftpd", root, rate)
    try:
        begun = time.monotonic()
        limit = str(seconds * 5 // 4 + 6)
        status, said, found = fetch(n, n.sub1, "curl", "EPSV", SRV1, "-m", limit, timeout=seconds * 2 + 30)
        took = time.monotonic() - begun
        expect(took > seconds * 2 // 3, f"{took:.0f} s are too short to show anything")
        expect_equal(found, checksum, "checksum")
        print(f"# {seconds * rate:,} bytes in {took:.0f} s, with a control connection that may be idle for "
              f"{FTP_IDLE_SECONDS} s: status {status}", flush=True)  # fmt: skip
        return status, said
    finally:
        daemon.end()


@test("gateways_short")
def an_idle_ftp_control_connection_survives_a_long_transfer(n):
    status, said = long_transfer(n, max(LONG_SECONDS, CHOSEN_SECONDS))
    expect(status == 0 and "226" in said, f"status {status}\n{said[-1500:]}")


@test("gateways_off_short")
def an_idle_ftp_control_connection_ends_without_the_gateway(n):
    status, said = long_transfer(n, LONG_SECONDS)
    expect(status != 0 and "226" not in said, f"status {status}\n{said[-1500:]}")
