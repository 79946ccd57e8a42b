"""Real web servers behind one external endpoint: shares by weight, and one taken out while somebody downloads from it."""

import json
import math
import re
import socket
import time

import setups
from kit import *
from netlab import process
from netlab.topology import SRV1

CONNECTIONS = 300
# Of a download that is slow enough to outlast what is granted to it: bytes of the file, of the
# buffer, and of one step.
SIZE, BUFFER, STEP = 28 << 20, 32 << 10, 64 << 10
PAUSE_SECONDS = 0.2
# Without a byte for so long it counts as over.
QUIET_SECONDS = 15
FIRST_PORT = 30_000
URL = f"http://{setups.BALANCED[0]}:{setups.BALANCED[1]}"


def start_servers(n):
    """One Python web server at each address, that says which it is."""
    for address in setups.SERVERS:
        root = n.state.bulk / f"server-{address}"
        root.mkdir()
        (root / "name").write_text(address)
        with (root / "large").open("wb") as file:
            file.truncate(SIZE)
        n.sub2.start(f"web-{address}", ["python3", "-m", "http.server", "--bind", address, "--directory", root, 80])
    up = lambda: n.sub2.run(["ss", "-ltnH", "sport = :80"])[1].count(":80 ") >= len(setups.SERVERS)  # noqa: E731
    expect(process.wait_until(up, 10), "the servers do not listen")


def ask(n, times):
    """Which servers answer so many connections: by server, the ports they came from."""
    write = "' %{local_port}\\n'"
    script = f"for i in $(seq {times}); do curl -sS --max-time 30 -w {write} {URL}/name; done"
    status, out, err = n.srv1.run(["bash", "-c", script], timeout=600)
    expect_equal(status, 0, f"status of curl ({err.strip()})")
    answers = [line.split() for line in out.splitlines()]
    expect_equal(len(answers), times, "answers")
    return {address: [port for server, port in answers if server == address] for address in setups.SERVERS}


def predicted(n, port):
    """The server that a connection from this port would have, by `natrix why`."""
    words = ("why", "tcp", f"{SRV1}:{port}", f"{setups.BALANCED[0]}:{setups.BALANCED[1]}", "--inbound", "--json")
    status, out, err = n.dut.command(*words)
    expect_equal(status, 0, f"status of natrix why ({err.strip()})")
    return json.loads(out)["translated_destination"].split(":")[0]


class Download:
    """A slow one, from the port that is led to this server; its buffer is small, so that the server goes on sending."""

    def __init__(self, n, address, ports):
        port = next(port for port in ports if predicted(n, port) == address)
        self.socket = tcp(n.srv1, port, timeout=QUIET_SECONDS)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self.socket.connect(setups.BALANCED)
        self.socket.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        self.bytes = 0

    def read(self, wanted):
        """Whether so many bytes more came."""
        while wanted > 0:
            try:
                data = self.socket.recv(min(wanted, BUFFER))
            except (socket.timeout, ConnectionError):
                return False
            if not data:
                return False
            wanted -= len(data)
            self.bytes += len(data)
        return True


@test("balanced")
def servers_share_by_weight_and_one_is_removed_live(n):
    start_servers(n)
    came = ask(n, CONNECTIONS)
    counts = {address: len(ports) for address, ports in came.items()}
    total = sum(setups.SERVERS.values())
    for address, weight in setups.SERVERS.items():
        share = weight / total
        spread = 4 * math.sqrt(CONNECTIONS * share * (1 - share))
        expect(abs(counts[address] - CONNECTIONS * share) < spread, f"{address} of weight {weight}: {counts}")
    rule = next(rule for rule in n.dut.show("rules") if rule["kind"] == "forward")
    # A client that comes again from the same port goes on with its session.
    expect_equal(rule["target_hits"], [len(set(came[address])) for address in setups.SERVERS], "hits of the targets")

    ports = iter(range(FIRST_PORT, FIRST_PORT + 200))
    stays, goes, *_ = setups.SERVERS
    gone, kept = Download(n, goes, ports), Download(n, stays, ports)
    for download in (gone, kept):
        expect(download.read(STEP), "a download does not begin")

    changed = n.dut.configuration.with_name("without.toml")
    left = {address: weight for address, weight in setups.SERVERS.items() if address != goes}
    text = n.dut.configuration.read_text()
    changed.write_text(text.replace(setups.balanced(setups.SERVERS), setups.balanced(left)))
    status, out, err = n.dut.command("plan", "-c", changed)
    expect_equal(status, 0, f"status of natrix plan ({err.strip()})")
    status, out, err = n.dut.command("reload", "-c", changed)
    expect_equal(status, 0, f"status of natrix reload ({err.strip() or out.strip()})")
    reloaded = time.monotonic()

    strangers = set(ask(n, 60)[goes]) - set(came[goes])
    expect_equal(strangers, set(), "connections to the server that was taken out")
    while time.monotonic() - reloaded < setups.DRAIN_SECONDS / 2:
        expect(gone.read(STEP), "a download from the server that was taken out does not go on")
        time.sleep(PAUSE_SECONDS)
    # What is in buffers still arrives after the end; then nothing more.
    while gone.read(STEP):
        elapsed = time.monotonic() - reloaded
        expect(elapsed < setups.DRAIN_SECONDS + 30, f"a download goes on {elapsed} s after its server was taken out")
        time.sleep(PAUSE_SECONDS)
    expect(time.monotonic() - reloaded > setups.DRAIN_SECONDS, "a download ended before its time")
    expect(gone.bytes < SIZE, "a download was over before its time")
    # The answer has a header before the file.
    while kept.read(STEP):
        pass
    expect(kept.bytes > SIZE, f"a download from a server that stays: {kept.bytes} of {SIZE} bytes")
    for download in (gone, kept):
        download.socket.close()


@test("balanced")
def find_lists_all_flows_of_an_endpoint_in_pages(n):
    """Without a protocol, and more than one page by default."""
    external, count = "{}:{}".format(*setups.BALANCED), 250
    clients = [tcp(n.srv1, FIRST_PORT + 1_000 + number, timeout=2) for number in range(count)]
    with sockets(*clients):
        for client in clients:
            client.settimeout(0)
            client.connect_ex(setups.BALANCED)
        wanted = {f"{SRV1}:{client.getsockname()[1]}" for client in clients}

        def found(*words):
            """The remote endpoints that the pages of a search name, and the number of pages."""
            named, pages, more = [], 0, []
            while True:
                _, out, err = n.dut.command("find", external, *words, *more, "--json")
                lines = [json.loads(line) for line in out.splitlines()]
                towards = [line["detail"].split(" towards ")[1] for line in lines if " towards " in line["detail"]]
                named += [text.partition(",")[0] for text in towards]
                pages += 1
                cursor = re.search(r"--cursor ([0-9.]+)", err)
                if cursor is None:
                    return named, pages
                more = ["--cursor", cursor[1]]

        expect(process.wait_until(lambda: wanted <= set(found("--all")[0]), 10, 0.5), "flows of all clients")
        for words in ((), ("--limit", "7"), ("--limit", "1000"), ("--protocol", "tcp", "--limit", "60")):
            named, pages = found(*words)
            expect(wanted <= set(named), f"{words}: {len(wanted - set(named))} flows are missing of {pages} pages")
            expect_equal(len(named), len(set(named)), f"{words}: flows that are named twice")
            expect((pages > 1) == (words != ("--limit", "1000")), f"{words}: {pages} pages")
