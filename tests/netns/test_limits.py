"""A thousand subscribers with real sockets against small quotas: each has exactly what its class grants, and keeps it."""

import contextlib
import errno
import ipaddress
import random
import resource
import select
import socket
import struct
import time

from kit import *
from netlab.topology import SRV1
from setups import MANY
from setups import MANY_FIRST
from setups import QUOTAS

# What each subscriber tries, of every protocol more than it may have.
WANTED = {"udp": 6, "tcp": 5, "icmp": 4}
# Every packet is sent so often at least: lost ones, and those a full queue of the kernel refused,
# do not decide.
ROUNDS = 6
PATIENCE_SECONDS = 30
# So long at most, where a busy machine loses much.
EXCHANGE_SECONDS = 60


def addresses():
    first = ipaddress.ip_address(MANY_FIRST)
    return [str(first + number) for number in range(MANY)]


def class_of(address):
    return "few" if ipaddress.ip_address(address) in ipaddress.ip_network("100.64.4.0/23") else None


def bring_up(n):
    """Gives sub2 the thousand addresses, and this process files enough for all their sockets."""
    if "100.64.4.0/32" in n.sub2.run(["ip", "-o", "address"], check=True)[1]:
        return
    lines = [f"address add {address}/32 dev eth0" for address in addresses()]
    n.sub2.run(["ip", "-batch", "-"], check=True, stdin="\n".join(lines) + "\n")
    # The most of one test: its sockets, and as many accepted ones.
    needed = 2 * max(WANTED.values()) * MANY + 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    expect(hard == resource.RLIM_INFINITY or hard >= needed, f"ulimit -n is {hard}, {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if soft < needed else soft, hard))


def expect_exact(n, protocol, served):
    """Compares how many sockets of each subscriber were served with its quota. A failure says what Natrix knows of the first."""
    wrong = {}
    for address in addresses():
        quota, seen = QUOTAS[class_of(address)][protocol], len(served[address])
        if seen != quota:
            wrong[address] = f"{seen} instead of {quota}"
    if wrong:
        known = shown(n).get(next(iter(wrong)))
        counted = [line for line in n.dut.show("counters") if line]
        raise Failure(
            f"{protocol}: {len(wrong)} subscribers of {MANY}: {dict(list(wrong.items())[:5])}; Natrix knows of the first {known}; {counted}"
        )


def shown(n):
    return {line["address"]: line for line in n.dut.show("subscribers", "--limit", "100000")}


def expect_shown(n, protocol):
    """What Natrix says of each: as many mappings as its quota, its class, and that it was refused."""
    lines = shown(n)
    for address in addresses():
        line = lines.get(address)
        expect(line is not None, f"{address} is not shown")
        expect_equal(line["class"], class_of(address), f"class of {address}")
        expect_equal(line["mappings"][protocol], QUOTAS[class_of(address)][protocol], f"{protocol} mappings of {address}")
        expect(line["refused"]["port_quota"] > 0, f"{address} was never refused: {line['refused']}")


def bound(n, kind, protocol, count):
    """`count` sockets for each subscriber, by subscriber."""
    made = {}
    with n.sub2.entered():
        for address in addresses():
            made[address] = []
            for _ in range(count):
                sock = socket.socket(socket.AF_INET, kind, protocol)
                sock.setblocking(False)
                sock.bind((address, 0))
                made[address].append(sock)
    return made


def close(made):
    for sockets_of_one in made.values():
        for sock in sockets_of_one:
            sock.close()


def answer_all(server):
    """Sends back what has come."""
    while True:
        try:
            data, sender = server.recvfrom(2048)
        except (BlockingIOError, socket.timeout):
            return
        server.sendto(data, sender)


def exchange(protocol, made, server, target, message, pump):
    """Sends from every socket, ROUNDS times and until all have what they may; which sockets of each subscriber ever got an answer."""
    served = {address: set() for address in made}
    poller = select.epoll()
    owners = {}
    for address, socks in made.items():
        for number, sock in enumerate(socks):
            owners[sock.fileno()] = (address, number, sock)
            poller.register(sock.fileno(), select.EPOLLIN)
    begun = time.monotonic()
    rounds = 0
    order = list(owners.values())
    # Another order each time: a queue that is full loses those that come last.
    shuffled = random.Random(7)
    while rounds < ROUNDS or time.monotonic() < begun + EXCHANGE_SECONDS:
        if rounds >= ROUNDS and all(len(served[address]) >= QUOTAS[class_of(address)][protocol] for address in made):
            break
        rounds += 1
        shuffled.shuffle(order)
        for count, (address, number, sock) in enumerate(order):
            if number in served[address]:
                continue
            try:
                sock.sendto(message(number), target)
            except OSError:
                # The ICMP error of an earlier one.
                pass
            if count % 50 == 0:
                pump(server)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            pump(server)
            events = poller.poll(0.05, 4096)
            for file, _ in events:
                address, number, sock = owners[file]
                try:
                    sock.recv(2048)
                    served[address].add(number)
                except OSError:
                    pass
    poller.close()
    return served


@test("limits")
@shows("6888-REQ-4", "6888-REQ-4b", "6888-REQ-11d")
def a_thousand_subscribers_have_exactly_the_udp_ports_they_may(n):
    bring_up(n)
    with sockets(udp(n.srv1, 7007)) as server:
        server.setblocking(False)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        made = bound(n, socket.SOCK_DGRAM, 0, WANTED["udp"])
        try:
            served = exchange("udp", made, server, (SRV1, 7007), lambda number: b"%d" % number, answer_all)
            expect_exact(n, "udp", served)
            expect_shown(n, "udp")
            # Those that had a port have it still, after thousands of refusals.
            having = {address: [made[address][number] for number in sorted(served[address])] for address in made}
            again = exchange("udp", having, server, (SRV1, 7007), lambda number: b"again", answer_all)
            expect_exact(n, "udp", again)
        finally:
            close(made)


@test("limits")
@shows("6888-REQ-4", "6888-REQ-4b", "6888-REQ-11a")
def a_thousand_subscribers_have_exactly_the_connections_they_may(n):
    bring_up(n)
    port = fresh_port()
    with sockets(listener(n.srv1, port)) as server:
        server.listen(8192)
        server.setblocking(False)
        accepted = []
        made = bound(n, socket.SOCK_STREAM, 0, WANTED["tcp"])
        poller = select.epoll()
        try:
            owners = {}
            for address, socks in made.items():
                for number, sock in enumerate(socks):
                    if sock.connect_ex((SRV1, port)) not in (0, errno.EINPROGRESS):
                        # Refused before the call came back; such a socket has no error any more,
                        # and is not connected.
                        continue
                    owners[sock.fileno()] = (address, number)
                    poller.register(sock.fileno(), select.EPOLLOUT | select.EPOLLONESHOT)
                take_connections(server, accepted)
            served = {address: set() for address in made}
            quota = sum(QUOTAS[class_of(address)]["tcp"] for address in made)
            deadline = time.monotonic() + PATIENCE_SECONDS
            settled = None
            while time.monotonic() < deadline and (settled is None or time.monotonic() < settled):
                take_connections(server, accepted)
                for file, _ in poller.poll(0.05, 4096):
                    address, number = owners[file]
                    # A refused socket may have got its error already; then it has no peer.
                    if made[address][number].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and has_peer(made[address][number]):
                        served[address].add(number)
                if settled is None and sum(map(len, served.values())) >= quota:
                    # All that may be are there. Those above the quota go on trying: none must get
                    # through.
                    settled = time.monotonic() + 3
            expect_exact(n, "tcp", served)
            take_connections(server, accepted)
            expect_equal(len(accepted), quota, "connections the server has")
            expect_shown(n, "tcp")
        finally:
            poller.close()
            close(made)
            for sock in accepted:
                sock.close()


def has_peer(sock):
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def take_connections(server, accepted):
    while True:
        try:
            accepted.append(server.accept()[0])
        except (BlockingIOError, socket.timeout):
            return


@test("limits")
@shows("6888-REQ-4", "6888-REQ-4b")
def a_thousand_subscribers_have_exactly_the_query_ids_they_may(n):
    bring_up(n)
    n.sub2.sysctl("net.ipv4.ping_group_range", "0 2147483647")
    made = bound(n, socket.SOCK_DGRAM, socket.IPPROTO_ICMP, WANTED["icmp"])
    try:
        echo = lambda number: struct.pack("!BBHHH", 8, 0, 0, 0, number)  # noqa: E731
        served = exchange("icmp", made, None, (SRV1, 0), echo, lambda _: None)
        expect_exact(n, "icmp", served)
        expect_shown(n, "icmp")
    finally:
        close(made)


@test("limits")
@shows("6888-REQ-11b", "6888-REQ-11c")
def a_refusal_is_reported_and_counted(n):
    bring_up(n)
    address = addresses()[-1]
    with contextlib.ExitStack() as stack:
        for _ in range(QUOTAS[None]["udp"] + 3):
            sock = stack.enter_context(sockets(udp(n.sub2, 0, address)))
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sock.sendto(b"one more", (SRV1, 7007))
        error = queued_icmp_error(sock)
        expect_equal((error.kind, error.code), (3, 1), "ICMP type and code")
    drops = {drop["reason"]: drop["packets"] for drop in n.dut.show("drops")}
    # Every refused packet is some subscriber's.
    shown_refusals = sum(line["refused"]["port_quota"] for line in shown(n).values())
    expect(shown_refusals > 0, "no refusal is shown")
    expect_equal(shown_refusals, drops["subscriber_port_quota"], "refused packets by subscriber, and dropped")
