"""Real servers in namespaces, each with its own configuration and files; the host's own services stay as they are."""

from . import process
from . import topology

STUN_PORT = 3478
STUN_OTHER_PORT = 3479
WEB_PORT = 80


def start_web(network, host, port=WEB_PORT):
    """nginx: files of the run, `/whoami` returns the caller's endpoint, PUT below `/up/` stores a file."""
    return run_web(network, host, port)[1]


def run_web(network, host, port, address=None):
    """The same; returns the program, and the folder of its files.

    It listens at `address`, such as `[::]` for IPv6 only, and otherwise at all addresses of IPv4.
    """
    root = network.state.bulk / f"web-{host.name}"
    (root / "up").mkdir(parents=True, exist_ok=True)
    configuration = network.state.directory / f"nginx-{host.name}.conf"
    temporary = network.state.bulk / f"nginx-{host.name}"
    temporary.mkdir(exist_ok=True)
    configuration.write_text(
        f"""
        daemon off;
        master_process off;
        user root;
        pid {temporary}/pid;
        error_log {temporary}/error.log;
        events {{ worker_connections 2048; }}
        http {{
            access_log {temporary}/access.log;
            client_body_temp_path {temporary}/body;
            proxy_temp_path {temporary}/proxy;
            fastcgi_temp_path {temporary}/fastcgi;
            uwsgi_temp_path {temporary}/uwsgi;
            scgi_temp_path {temporary}/scgi;
            sendfile on;
            client_max_body_size 0;
            default_type application/octet-stream;
            server {{
                listen {f"{address}:{port}" if address else port} backlog=1024;
                root {root};
                location = /whoami {{ return 200 "$remote_addr:$remote_port\\n"; }}
                location /up/ {{ dav_methods PUT; }}
            }}
        }}
        """
    )
    daemon = host.start("nginx", ["nginx", "-e", f"{temporary}/error.log", "-c", configuration])
    network.wait_for_listener(host, port)
    return daemon, root


def start_dns(network, host, name, address, port=53):
    """dnsmasq: answers `name` with `address`, `long.<name>` with a text of 3 600 bytes, and nothing else."""
    argv = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=",
            "--user=root", "--cache-size=0", "--log-queries", "--log-facility=-", "--edns-packet-max=4096",
            f"--port={port}", f"--address=/{name}/{address}"]  # fmt: skip
    text = ",".join("x" * 250 for _ in range(14))
    argv.append(f"--txt-record=long.{name},{text}")
    daemon = host.start("dnsmasq", argv)
    network.wait_for_listener(host, port, "udp")
    return daemon


def start_stun(network, host):
    """coturn as a STUN server with two addresses and two ports, as RFC 5780 asks for."""
    files = network.state.bulk
    daemon = host.start(
        "turnserver",
        ["turnserver", "-n", "--stun-only", "--no-tls", "--no-dtls", "--no-cli", "--log-file", "stdout", "--simple-log",
         "--pidfile", files / "turnserver.pid", "--db", files / "turn.sqlite",
         "-L", topology.SRV1, "-L", topology.SRV1_SECOND,
         "-p", STUN_PORT, "--alt-listening-port", STUN_OTHER_PORT],
    )  # fmt: skip
    network.wait_for_listener(host, STUN_PORT, "udp")
    return daemon


IPERF_PORT = 5201


def start_iperf(network, host, port=IPERF_PORT):
    """iperf3 as the server of one test.

    An iperf3 server takes one test at a time, and stays busy for a moment after the client of a test has ended: it would
    refuse the next client. So each test has a server of its own, and the port is free again when the server of the last
    test has ended.
    """
    before = host.iperf_servers.pop(port, None)
    if before is not None and not process.wait_until(lambda: not before.alive(), 10):
        # Its client never came.
        before.end()
    daemon = host.start(f"iperf3-server-{port}", ["iperf3", "--server", "--one-off", "--port", port])
    host.iperf_servers[port] = daemon
    network.wait_for_listener(host, port)
    return daemon
