"""The API under attack: TLS and client certificates, generated requests, slow clients, broken HTTP, odd input."""

import contextlib
import json
import random
import re
import socket
import ssl
import statistics
import subprocess
import time
import urllib.parse
from pathlib import Path

import setups
from kit import *
from netlab import process
from netlab import servers
from netlab.topology import SRV1
from test_api import PAUSE
from test_api import ROLES
from test_api import TOKENS
from test_api import Connection
from test_api import answer_seconds
from test_api import ask
from test_api import expect_as_quick
from test_api import further_clients
from test_api import traffic

SCHEMATHESIS = setups.TOOLS / "python" / "bin" / "schemathesis"
# Requests for each operation. With NATRIX_EXAMPLES each user also asks for what its role does not
# permit.
EXAMPLES = setups.os.environ.get("NATRIX_EXAMPLES")
# Streams without an end: odd_input_is_refused and test_restconf test their parameters.
ENDLESS = re.compile("/(trace|live|ietf-nat)$")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SEED = 20


def child_of(n):
    """The process of the API."""
    out = process.run(["ps", "--no-headers", "-o", "pid", "--ppid", n.dut.daemon.process.pid])[1]
    (child,) = out.split()
    return child


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@test("security")
def the_process_has_given_up_what_it_does_not_need(n):
    status = Path(f"/proc/{child_of(n)}/status").read_text()
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        expect_equal(re.search(rf"{name}:\s+(\w+)", status)[1], "0" * 16, name)
    expect_equal(re.search(r"NoNewPrivs:\s+(\d)", status)[1], "1", "NoNewPrivs, which Landlock sets")
    environment = Path(f"/proc/{child_of(n)}/environ").read_bytes()
    command = Path(f"/proc/{child_of(n)}/cmdline").read_bytes()
    expect(b"argon2" not in environment + command, "the settings are visible to other users")


@test("security")
def no_process_leaves_a_core(n):
    for what, pid in (("the daemon", n.dut.daemon.process.pid), ("the API", child_of(n))):
        limits = Path(f"/proc/{pid}/limits").read_text()
        size = re.search(r"Max core file size +(\S+) +(\S+)", limits)
        expect(size[1] == size[2] and size[1] in ("0", "1"), f"core files of {what}: {size[0]}")


@test("security")
def no_secret_is_shown_or_logged(n):
    secrets = [token.split(":")[1] for token in TOKENS.values()] + ["argon2id"]
    ask(n, "/api/v1/status", None, headers={"Authorization": f"Bearer noc:{secrets[0]}"})
    seen = n.dut.daemon.log()
    for path in ("/api/v1/status", "/metrics", "/api/v1/counters", "/api/v1/openapi.json", "/"):
        seen += str(ask(n, path)[2])
    seen += str(ask(n, "/api/v1/audit", "audit")[2])
    for command in (["show", "status", "--json"], ["audit", "--json"]):
        seen += n.dut.command(*command)[1]
    found = [secret for secret in secrets if secret in seen]
    expect_equal(found, [], "secrets")


@test("security")
def generated_requests_get_documented_answers(n):
    traffic(n, 5)
    # With several workers, CPython 3.11 may fail within its own parser (python/cpython#106905).
    _, _, document = ask(n, "/api/v1/openapi.json")
    answers = [answer for item in document["paths"].values() for operation in item.values() for answer in operation["responses"]]
    # A range of statuses would document them all.
    expect_equal([answer for answer in answers if not answer.isdigit()], [], "statuses that are not named")
    paths = {path for path in document["paths"] if not ENDLESS.search(path)}
    tested = set()
    for role, token in TOKENS.items():
        own = paths & {path.split("?")[0] for path in ROLES[role]}
        tested |= own
        asked = ["--exclude-path-regex", ENDLESS.pattern] if EXAMPLES else [word for path in sorted(own) for word in ("--include-path", path)]
        command = [
            "env", f"--chdir={n.state.directory}", "HOME=/nonexistent", SCHEMATHESIS, "run", f"http://127.0.0.1:{setups.API_PORT}/api/v1/openapi.json",
            "--header", f"Authorization: Bearer {token}", *asked, "--checks", CHECKS, "--workers", "1",
            "--max-examples", EXAMPLES or "4", "--seed", SEED, "--rate-limit", "80/s", "--phases", "examples,coverage,fuzzing",
            "--generation-database", "none", "--no-color", "--request-timeout", "120", "--continue-on-failure",
        ]  # fmt: skip
        status, out, err = n.nat.run(command, timeout=1800)
        summary = [line.strip() for line in out.splitlines() if "generated" in line or "passed" in line]
        print(f"# schemathesis as {role}: {'; '.join(summary)}", flush=True)
        expect(status == 0, f"schemathesis as {role}: status {status}\n{out[-6000:]}{err[-1000:]}")
    expect_equal(paths - tested, set(), "paths that no user is asked for")
    expect(n.dut.alive(), "the NAT has ended")


@test("security")
def odd_input_is_refused(n):
    source = random.Random(SEED)
    pieces = ["", "0", "-1", "1e99", "4294967296", "18446744073709551616", "%00", "%ff%fe", "'", "\"", "<x>", "../" * 40, "a" * 4000,
              "%E2%80%AE", "null", "true", "[]", "{}", "0.0.0.0/0", "255.255.255.255:65536", "::1", "2026-13-45T99:99:99Z", "\u00e9"]  # fmt: skip
    paths = {
        "mappings": ["limit", "cursor", "protocol", "internal", "external_port", "pool", "vrf", "worker", "stream"],
        "sessions": ["state", "remote", "port", "limit"],
        "pools/addresses": ["cursor", "pool"],
        "rules": ["cursor", "limit"],
        "trace": ["protocol", "address", "port", "interface", "verdict"],
        "find": ["address", "port", "at", "vrf", "case", "cursor"],
        "why": ["protocol", "source", "destination", "b4", "inbound", "tcp_segment", "interface", "vrf", "length_bytes"],
        "audit": ["cursor", "limit"],
    }
    roles = {"pools/addresses": "view", "rules": "operate"}
    seen = set()
    for _ in range(600):
        path = source.choice(list(paths))
        names = source.choices(paths[path], k=source.randint(1, 3))
        query = "&".join(f"{name}={source.choice(pieces)}" for name in names)
        more = "&count=1&port=1&dropped_only=true" if path == "trace" else ""
        query = urllib.parse.quote(query, safe="=&%/:,.-")
        if path == "trace" and "port=" not in query:
            query += "&port=nonsense"
        status, headers, body = ask(n, f"/api/v1/{path}?{query}{more if 'port=' not in query else ''}", roles.get(path, "audit"))
        seen.add(status)
        expect(status in (200, 400, 414, 422, 429, 431), f"{status} for {path}?{query}: {body}")
        # The HTTP library itself refuses a target that is too long.
        if status >= 400 and status != 414:
            expect(isinstance(body, dict), f"{status} for {path}?{query}: {body}")
            expect(body["error"]["problem"] and body["error"]["remedy"], f"{path}?{query}: {body}")
        time.sleep(0.011)
    expect({200, 400} <= seen, f"statuses {seen}")
    deep = "a = " + "[" * 100_000
    for body in (deep, "\0" * 1000, "x = \"\\ud800\"", "[[pool]]\n" * 20_000, "{" * 100_000, b"\xff" * 1000):
        status, _, answer = ask(n, "/api/v1/plan", "operate", "POST", body)
        expect(status in (400, 422), f"{status} for a configuration of {len(body)} bytes: {answer}")
    expect(n.dut.alive() and n.dut.running(), "the NAT has ended")


@test("security")
def broken_http_is_refused(n):
    time.sleep(PAUSE)
    login = f"Authorization: Bearer {TOKENS['operate']}\r\n"
    host = f"Host: 127.0.0.1:{setups.API_PORT}\r\nConnection: close\r\n"
    many = "X: a\r\n" * 1000
    for what, text, wanted in [
        ("no HTTP", "\x16\x03\x01\x02\x00\x01\x00", {400, None}),
        ("headers without an end", f"GET / HTTP/1.1\r\n{host}X: {'a' * 100_000}\r\n\r\n", {431, None}),
        ("a thousand headers", f"GET / HTTP/1.1\r\n{host}{many}\r\n", {431, None}),
        ("two lengths", f"POST /api/v1/plan HTTP/1.1\r\n{host}{login}Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", {400, None}),
        ("a negative length", f"POST /api/v1/plan HTTP/1.1\r\n{host}{login}Content-Length: -1\r\n\r\n", {400, None}),
        ("length and chunks", f"POST /api/v1/plan HTTP/1.1\r\n{host}{login}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         {400, 422, None}),
        ("a broken chunk", f"POST /api/v1/plan HTTP/1.1\r\n{host}{login}Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 413, None}),
        ("no host", f"GET /api/v1/status HTTP/1.1\r\nConnection: close\r\n{login}\r\n", {421}),
        ("two hosts", f"GET /api/v1/status HTTP/1.1\r\n{host}Host: evil.example\r\n{login}\r\n", {400}),
        ("the same host twice", f"GET /api/v1/status HTTP/1.1\r\n{host}{host}{login}\r\n", {400}),
        ("another host in the target", f"GET http://evil.example/api/v1/status HTTP/1.1\r\n{host}{login}\r\n", {421}),
        ("a path outside", f"GET /../../etc/passwd HTTP/1.1\r\n{host}{login}\r\n", {400, 404}),
        ("an unknown method", f"BREW /api/v1/status HTTP/1.1\r\n{host}{login}\r\n", {400, 405}),
        ("a login that is no text", f"GET /api/v1/status HTTP/1.1\r\n{host}Authorization: Basic \xff\xfe\r\n\r\n", {400, 401}),
    ]:
        with n.nat.entered():
            sock = socket.create_connection(("127.0.0.1", setups.API_PORT), timeout=20)
        with contextlib.closing(sock):
            with contextlib.suppress(OSError):
                sock.sendall(text.encode("latin-1"))
            answer = b""
            with contextlib.suppress(OSError):
                answer = receive_stream(sock, 4096)
        status = int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else None
        expect(status in wanted, f"{what}: {answer[:300]!r}")
    expect_equal(ask(n, "/api/v1/status")[0], 200, "status afterwards")


@test("security")
def slow_attacks_change_nothing(n):
    pid = child_of(n)
    quiet = [answer_seconds(n) for _ in range(20)]
    before = resident_kib(pid)
    url = f"http://127.0.0.1:{setups.API_PORT}/api/v1/status"
    for name, arguments in [
        ("headers", ["-H", "-i", "2"]),
        ("bodies", ["-B", "-i", "2", "-s", "8192"]),
        ("ranges", ["-R"]),
        ("reading", ["-X", "-w", "1", "-y", "2", "-n", "1", "-z", "1"]),
    ]:
        attack = n.nat.start(f"slow-{name}", ["slowhttptest", *arguments, "-c", "1000", "-r", "500", "-l", "8", "-u", url])
        time.sleep(3)
        beside = []
        with sockets(udp(n.sub1), udp(n.srv1)) as (sock, server):
            for _ in range(20):
                beside.append(answer_seconds(n))
                # A busy machine may lose a datagram.
                for _ in range(3):
                    sock.sendto(b"x", (SRV1, server.getsockname()[1]))
                    with contextlib.suppress(socket.timeout, BlockingIOError):
                        server.recv(16)
                        break
                else:
                    raise Failure(f"no datagram of 3 comes beside slow {name}")
        expect_as_quick(beside, quiet, f"slow {name}")
        attack.process.wait(180)
        answered = process.wait_until(lambda: is_answered(n), 30, 0.5)
        expect(answered, f"the API does not answer after slow {name}")
    expect_equal(child_of(n), pid, "process of the API")
    print(f"# memory of the API: {before} KiB before, {resident_kib(pid)} KiB after", flush=True)


@test("security")
def slow_requests_end_and_connections_are_bounded(n):
    """64 connections of one address at most, 10 s for headers, 10 s for a body."""

    def connect(stack):
        with n.nat.entered():
            sock = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", setups.API_PORT), timeout=20)))
        return sock

    with contextlib.ExitStack() as stack:
        begun, patience = time.monotonic(), process.Patience(19)
        host = f"Host: 127.0.0.1:{setups.API_PORT}\r\n"
        body = connect(stack)
        login = f"Authorization: Bearer {TOKENS['operate']}\r\n"
        body.sendall(f"POST /api/v1/plan HTTP/1.1\r\n{host}{login}Content-Length: 10\r\n\r\nx".encode())
        # Once this is answered, its login was read, too: it is not the oldest without one.
        expect_equal(ask(n, "/api/v1/status")[0], 200, "a connection beside it")
        headers = [connect(stack) for _ in range(63)]
        for sock in headers:
            sock.sendall(b"GET /api/v1/status HTTP/1.1\r\n")
        # The oldest without a login gives way to the 65th, which is answered.
        headers[0].settimeout(5)
        expect_equal(ask(n, "/api/v1/status")[0], 200, "the 65th connection")
        with contextlib.suppress(ConnectionError):
            expect_equal(headers[0].recv(1), b"", "the oldest connection")
        answer = receive_stream(body, 4096)
        expect(answer.startswith(b"HTTP/1.1 408 "), f"half a body: {answer[:100]!r}")
        for sock in headers:
            with contextlib.suppress(ConnectionError):
                rest = receive_stream(sock, 4096)
                expect(b" 200 " not in rest, f"half of the headers: {rest[:100]!r}")
        took = time.monotonic() - begun
        expect(9 < took and not patience.is_over(), f"slow requests ended after {took:.1f} s")
    expect(process.wait_until(lambda: is_answered(n), 10, 0.3), "the API does not answer afterwards")


# Each address may have 64 connections, all together 256.
SOURCES_MAX = 16
CONNECTIONS_MAX = 256
# Measurements with and without them, in turns; a figure for docs/api.md takes more.
ROUNDS = int(setups.os.environ.get("NATRIX_ROUNDS", "3"))
ROUNDS_MAX = max(ROUNDS, 12)


def slow_connection(n, source):
    """A connection that does not finish its headers; None if the server has closed it by then."""
    with n.nat.entered():
        slow = socket.socket()
    slow.settimeout(5)
    slow.bind((source, 0))
    try:
        slow.connect(("127.0.0.1", setups.API_PORT))
        slow.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: ")
    except OSError:
        slow.close()
        return None
    return slow


@contextlib.contextmanager
def slow_connections(n, count):
    """As many connections that do not finish their headers, from several addresses; how many the server keeps."""
    sources = further_clients(n, SOURCES_MAX)
    with contextlib.ExitStack() as stack:
        opened = []
        for place in range(count):
            if slow := slow_connection(n, sources[place % len(sources)]):
                opened.append(stack.enter_context(slow))
        kept = lambda: sum(is_open(slow) for slow in opened)  # noqa: E731
        # A busy machine has not accepted all of them yet, nor closed those beyond the limit.
        process.wait_until(lambda: kept() <= CONNECTIONS_MAX, 60, 0.1)
        yield kept()


@test("security")
def connections_without_login_block_no_user(n):
    """Four addresses have all connections, and further ones go on; an operator elsewhere connects, and stays."""
    (operator, *sources) = further_clients(n, 60)
    login = {"Authorization": f"Bearer {TOKENS['operate']}"}
    with contextlib.ExitStack() as stack:

        def hold(some):
            more = [slow for source in some if (slow := slow_connection(n, source))]
            return [stack.enter_context(slow) for slow in more]

        first = hold(sources[place % 4] for place in range(CONNECTIONS_MAX))
        begun = time.monotonic()
        expect(process.wait_until(lambda: sum(map(is_open, first)) == CONNECTIONS_MAX, 5, 0.1), f"{sum(map(is_open, first))} are open")
        kept = stack.enter_context(contextlib.closing(Connection(n, operator)))
        for number in range(5):
            # It must not connect again.
            kept.auto_open = number == 0
            kept.request("GET", "/api/v1/status", headers=login)
            answer = kept.getresponse()
            answer.read()
            expect_equal(answer.status, 200, f"status {number}")
            hold(sources[(number * 64 + place) % len(sources)] for place in range(64))
        took = time.monotonic() - begun
        left = sum(map(is_open, first))
        print(f"# {left} of {len(first)} connections of four addresses are left after 320 of {len(sources)}, in {took:.1f} s", flush=True)
        expect(left < CONNECTIONS_MAX, f"{left} connections of the four addresses are left")
    expect(process.wait_until(lambda: is_answered(n), 10, 0.3), "the API does not answer afterwards")


def cpu_seconds(pid):
    """The CPU time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / setups.os.sysconf("SC_CLK_TCK")


def is_open(sock):
    """Whether the other end has not closed it."""
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@test("security")
def slow_connections_leave_the_forwarding_rate_alone(n):
    def rate():
        servers.start_iperf(n, n.srv1)
        _, out, _ = n.sub1.run(["iperf3", "--json", "--time", "1", "--client", SRV1], timeout=120)
        return json.loads(out)["end"]["sum_received"]["bits_per_second"]

    rates = {"without": [], "with": []}
    answers = {"without": [], "with": []}
    kept = []
    loads, took = [], 0
    pid = child_of(n)

    def ratio():
        """The better of two: a single rate may be twice the next on a busy machine. What the connections cost would
        lower both."""
        return max(of(rates["with"]) / of(rates["without"]) for of in (statistics.median, max))

    # The busier the machine, the more rounds it takes until chance has evened out.
    while len(kept) < ROUNDS or len(kept) < ROUNDS_MAX and ratio() <= 0.7:
        rates["without"].append(rate())
        answers["without"] += [answer_seconds(n) for _ in range(7)]
        loads.append(setups.os.getloadavg()[0])
        begun = cpu_seconds(pid)
        with slow_connections(n, 1000) as count:
            kept.append(count)
            rates["with"].append(rate())
            answers["with"] += [answer_seconds(n) for _ in range(7)]
        took += cpu_seconds(pid) - begun
    # A busy machine takes so long that the first of them have ended.
    print(f"# slow connections that are kept, of 1000 of {SOURCES_MAX} addresses: {kept}", flush=True)
    expect(64 < max(kept) <= CONNECTIONS_MAX, f"connections kept: {kept}")
    median, best = ({name: of(some) for name, some in rates.items()} for of in (statistics.median, max))
    text = ", ".join(f"{name} {median[name] / 1e6:.0f} (best {best[name] / 1e6:.0f}) Mbit/s" for name in best)
    print(f"# forwarding beside 1000 slow connections, median of {len(kept)} in turns: {text}; load {min(loads):.1f} to {max(loads):.1f}", flush=True)
    spread = {name: [round(rate / 1e6) for rate in sorted(some)] for name, some in rates.items()}
    print(f"# each rate in Mbit/s: {spread}; CPU time of the API for 1000 connections: {1000 * took / len(kept):.0f} ms", flush=True)
    # Wide, because the machine has other work; a rate that they change would be far below.
    expect(ratio() > 0.7, f"rates {rates}")
    expect_as_quick(answers["with"], answers["without"], "1000 slow connections")


def is_answered(n):
    with contextlib.suppress(OSError):
        return ask(n, "/api/v1/status")[0] == 200
    return False


def talk_tls(n, context, path, login=None, name="localhost"):
    """The status of an answer over TLS."""
    answer, version = answer_tls(n, context, path, login, name)
    return int(answer.split()[1]), version


def answer_tls(n, context, path, login=None, name="localhost"):
    with n.nat.entered():
        plain = socket.create_connection(("127.0.0.1", setups.API_PORT), timeout=20)
    with context.wrap_socket(plain, server_hostname=name) as sock:
        head = f"GET {path} HTTP/1.1\r\nHost: {name}:{setups.API_PORT}\r\nConnection: close\r\n"
        sock.sendall((head + (f"Authorization: Bearer {login}\r\n" if login else "") + "\r\n").encode())
        return receive_stream(sock, 1 << 20), sock.version()


def client(certificate=None):
    folder = setups.CERTIFICATES
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    if certificate:
        context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    return context


@test("api_tls")
def tls_proves_the_server_and_clients(n):
    status, version = talk_tls(n, client(), "/api/v1/status", TOKENS["view"])
    expect_equal((status, version), (200, "TLSv1.3"), "a token over TLS")
    expect_equal(talk_tls(n, client(), "/api/v1/status")[0], 401, "TLS without a login")
    # The common name of the certificate is a user's name.
    expect_equal(talk_tls(n, client("noc"), "/api/v1/status")[0], 200, "a client certificate")
    expect_equal(talk_tls(n, client("noc"), "/api/v1/audit")[0], 403, "what the certificate's user may not do")
    expect_equal(talk_tls(n, client("law"), "/api/v1/audit")[0], 200, "what another certificate's user may do")
    expect_equal(talk_tls(n, client("stranger"), "/api/v1/status")[0], 401, "a certificate of nobody")
    for what, context in [("foreign", client("foreign")), ("expired", client("expired"))]:
        try:
            status = talk_tls(n, context, "/api/v1/status")[0]
        except (ssl.SSLError, ConnectionError):
            continue
        raise Failure(f"a certificate that is {what} is accepted: status {status}")


@test("api_tls")
def a_certificate_changes_with_the_header_of_the_example(n):
    """The call of docs/api.md: browsers send certificates by themselves, but not this header."""
    folder = setups.CERTIFICATES
    curl = ["curl", "-s", "--cacert", folder / "authority.pem", "--cert", folder / "noc.pem", "--key", folder / "noc.key"]
    curl += ["--data-binary", f"@{n.dut.configuration}", "-o", "/dev/null", "-w", "%{http_code}"]
    url = f"https://localhost:{setups.API_PORT}/api/v1/plan"
    for wanted, headers in [
        ("403", []),
        ("200", ["X-Natrix-CSRF: client"]),
        ("403", ["X-Natrix-CSRF: client", f"Origin: https://localhost:{setups.API_PORT}"]),
    ]:
        with n.nat.entered():
            words = [*curl, *(word for header in headers for word in ("-H", header)), url]
            status = subprocess.run(words, capture_output=True, text=True).stdout
        expect_equal(status, wanted, f"a plan with a certificate and {headers}")


@test("api_tls")
def metrics_say_when_the_certificate_ends(n):
    text = answer_tls(n, client(), "/metrics", TOKENS["view"])[0].decode()
    found = dict(re.findall(r"^(natrix_api_certificate_[a-z_]+) (\S+)$", text, re.MULTILINE))
    _, out, _ = process.run(["openssl", "x509", "-noout", "-enddate", "-in", setups.CERTIFICATES / "server.pem"])
    ends = ssl.cert_time_to_seconds(out.strip().removeprefix("notAfter="))
    wanted = {"expiry_timestamp_seconds": ends, "load_failing": 0, "load_failures_total": 0}
    expect_equal({name: float(value) for name, value in found.items()}, {f"natrix_api_certificate_{name}": value for name, value in wanted.items()}, "metrics")


@test("api_tls")
def old_and_plain_protocols_are_refused(n):
    old = client()
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    try:
        talk_tls(n, old, "/api/v1/status", TOKENS["view"])
        raise Failure("TLS 1.1 is accepted")
    except (ssl.SSLError, ConnectionError, ValueError):
        pass
    with n.nat.entered():
        plain = socket.create_connection(("127.0.0.1", setups.API_PORT), timeout=20)
    with contextlib.closing(plain):
        plain.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = receive_stream(plain, 4096)
    expect(b"HTTP/1.1 200" not in answer, f"plain HTTP is answered: {answer[:100]!r}")
    expect_equal(talk_tls(n, client(), "/api/v1/status", TOKENS["view"])[0], 200, "status afterwards")


@test("api_tls")
def other_addresses_need_tls(n):
    text = n.dut.configuration.read_text()
    head, _, tail = text.partition("[http.tls]")
    path = n.state.directory / "plain.toml"
    path.write_text(head.replace(f"0.0.0.0:{setups.API_PORT}", "192.0.2.1:80") + tail.partition("\n\n")[2])
    status, _, err = n.nat.run([n.dut.binary, "check", "-c", path])
    expect(status != 0 and "http.listen" in err and "tls" in err, f"check of plain HTTP on another address: {status} {err}")


@test("api_unix")
def groups_of_a_unix_socket_have_roles(n):
    socket_path = setups.API_SOCKET

    def code(user, path, method="GET"):
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, "--unix-socket", socket_path, f"http://localhost{path}"]
        return int(n.nat.run(["setpriv", *user, *command])[1])

    group = ["--reuid=65534", f"--regid={setups.API_GROUP}", "--clear-groups"]
    nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    # Only this process has the group; the user database does not.
    also = ["--reuid=65534", "--regid=65534", f"--groups={setups.API_GROUP}"]
    expect_equal(code(["--reuid=0"], "/api/v1/audit"), 200, "root")
    expect_equal(code(nobody, "/api/v1/status"), 401, "a user without a group")
    expect_equal(code(group, "/api/v1/status"), 200, "a member of the group")
    expect_equal(code(group, "/api/v1/audit"), 403, "what the group may not do")
    expect_equal(code(also, "/api/v1/status"), 200, "a process with the group beside its own")


@test("api_unix")
def status_names_a_user_without_its_group(n):
    missing = [{"user": "night", "group": setups.API_NO_GROUP}]
    expect_equal(n.dut.show("status")[0].get("users_without_group"), missing, "users without their group")
    text = n.dut.command("show", "status")[1]
    expect(f'http.user "night": group {setups.API_NO_GROUP} does not exist' in text, text)
