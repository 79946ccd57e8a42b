"""The configurations of the NAT that the tests run against: differences from the demo's."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from netlab import transition

# A fifth of the usual sizes: the kernel clears the memory of all tables at each of the many starts.
TABLES = """
[tables]
mappings = 200_000
extra_sessions = 100_000
subscribers = 20_000
"""

SHORT_SECONDS = 3
# Where one setup keeps what port control granted.
GRANTS = f"{tempfile.gettempdir()}/natrix-test-grants-{os.getpid()}"

# A thousand subscribers behind sub2, in 100.64.4.0/22; the first half of them in a class of their
# own.
MANY = 1000
MANY_FIRST = "100.64.4.0"
QUOTAS = {"few": {"udp": 2, "tcp": 1, "icmp": 1}, None: {"udp": 4, "tcp": 3, "icmp": 2}}


def limits():
    """Small quotas, and the way to the thousand."""

    def ports(quota):
        return "ports = { " + ", ".join(f"{protocol} = {number}" for protocol, number in quota.items()) + " }"

    return f"""
[[route]]
prefix = "100.64.4.0/22"
via = "100.64.0.11"

[subscriber]
{ports(QUOTAS[None])}

[[class]]
name = "few"
subscribers = ["100.64.4.0/23"]
{ports(QUOTAS["few"])}
"""


# Subscribers with blocks, besides those of the demo.
BLOCKS = """
[[pool]]
name = "leased"
addresses = ["203.0.113.40/31"]
allocation = "blocks"
block_size = 256
subscribers = ["100.64.0.64/28"]
"""


# Servers behind sub2 that share one external endpoint, with their weights.
BALANCED = ("203.0.113.9", 80)
SERVERS = {"100.64.0.81": 1, "100.64.0.82": 2, "100.64.0.83": 3}
DRAIN_SECONDS = 8


def balanced(servers):
    targets = ", ".join(f'"{address}:80 weight {weight}"' for address, weight in servers.items())
    return f"""{TABLES}flows = 10_000

[reload]
drain_time = "{DRAIN_SECONDS} s"

[[forward]]
protocol = "tcp"
external = "{BALANCED[0]}"
ports = {BALANCED[1]}
targets = [{targets}]
"""


# The store of the event log, in a folder that outlives the NAT and not the tests.
_LOG_FOLDER = tempfile.TemporaryDirectory(prefix="natrix-netns-")
LOG_STORE = f"""
[log.store]
path = "{_LOG_FOLDER.name}/log"
"""


# A file of lines, in a folder of its own.
LINES = Path(_LOG_FOLDER.name) / "lines" / "events.json"
LINES.parent.mkdir()


# Collectors of the log by their ports, in the namespace of the NAT.
COLLECTORS = {"nfcapd": 4739, "nfacctd": 4740, "syslog-ng": 5514, "rsyslog": 6514, "lines": 6515, "tls": 6516, "distrusted": 6516, "ipfix-tls": 4741}
# What scripts/setup.sh installs besides packages.
TOOLS = Path("/usr/local/lib/natrix-tools")
COLLECTOR_STORE = f"{_LOG_FOLDER.name}/collectors"


def collectors():
    make_certificates()

    def sink(name, kind, transport, more=""):
        address = f"{transport}://127.0.0.1:{COLLECTORS[name]}"
        return f"""
[[log.sink]]
name = "{name}"
kind = "{kind}"
address = "{address}"
domain = 7
template_interval = "1 s"
{more}
"""

    sinks = [
        sink("nfcapd", "ipfix", "udp"),
        sink("nfacctd", "ipfix", "udp"),
        sink("syslog-ng", "syslog", "udp"),
        sink("rsyslog", "syslog", "tcp"),
        sink("lines", "json", "tcp"),
        sink("tls", "syslog", "tls", f'certificates = "{CERTIFICATES}/authority.pem"'),
        sink("ipfix-tls", "ipfix", "tls", f'certificates = "{CERTIFICATES}/authority.pem"'),
        # Its collector's certificate is of another authority.
        sink("distrusted", "syslog", "tls", f'certificates = "{CERTIFICATES}/other.pem"'),
    ]
    return f"""
[log.store]
path = "{COLLECTOR_STORE}"
{"".join(sinks)}{BLOCKS}"""


def own_pool(keys):
    """A pool of their own for both subscribers."""
    return f'\n[[pool]]\nname = "own"\nsubscribers = ["100.64.0.10/31"]\n{keys}\n'


def collector_ends():
    """A collector of IPFIX, and few ports."""
    return f"""
[log.store]
path = "{_LOG_FOLDER.name}/ends"

[[log.sink]]
name = "nfcapd"
kind = "ipfix"
address = "udp://127.0.0.1:{COLLECTORS["nfcapd"]}"
domain = 7
template_interval = "1 s"
""" + own_pool('addresses = ["203.0.113.46/32"]\nports = "1024-1103"')


# Users of the API: name, role, token, hash of the token.
API_PORT = 8080
API_USERS = [
    ("see", "view", "see:cdf44c6d219ca9ac3bf4fc72da24368e5cdaf5a50d45c0a4", "$argon2id$v=19$m=19456,t=2,p=1$V9jdxkhy7MKSaYeJN6Ei2w$JSUFm9sYHJc61jkBXkcX3Wrch6Fu9CayOBnfBy+/Qeg"),
    ("noc", "operate", "noc:f2fab2d7bb14cc8d4065cc2cdbdbd747c263bbe70c485e0c", "$argon2id$v=19$m=19456,t=2,p=1$b9eTP73IpLaQGQhKb73m+A$U2kNrN/B++J7HIdru3rUaOlPTTMKvmwT4D/Q74EOwa4"),
    ("law", "audit", "law:bf7fe271f2b12fee1960caf922aaac9e3d6bb2c6a4bfe95b", "$argon2id$v=19$m=19456,t=2,p=1$Q72/TSYWObTN7qPil2kcFw$sXCu63d7a0R6FjwuPt7jm3yaEKrCopc73kKVfcFbPmM"),
]


def api():
    users = [
        f'[[http.user]]\nname = "{name}"\nrole = "{role}"\ntoken = "{digest}"\n' for name, role, _, digest in API_USERS
    ]
    return f'\n[http]\nlisten = "127.0.0.1:{API_PORT}"\n\n' + "\n".join(users)


# Certificates of the API, its clients and a collector: those of an authority, one of another
# authority, and one that has expired.
CERTIFICATES = Path(_LOG_FOLDER.name) / "certificates"


@functools.cache
def make_certificates():
    CERTIFICATES.mkdir(exist_ok=True)

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=CERTIFICATES)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("authority", "other"):
        openssl("req", "-x509", *curve, "-keyout", f"{authority}.key", "-out", f"{authority}.pem", "-subj", f"/CN={authority}", "-days", 2)
    for name, subject, authority, days in [
        ("server", "localhost", "authority", 2),
        ("noc", "noc", "authority", 2),
        ("law", "law", "authority", 2),
        ("stranger", "stranger", "authority", 2),
        ("foreign", "noc", "other", 2),
        ("expired", "noc", "authority", -1),
    ]:
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={subject}")
        (CERTIFICATES / f"{name}.ext").write_text(f"subjectAltName=DNS:{subject},IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", days, "-extfile", f"{name}.ext")  # fmt: skip


def api_tls():
    make_certificates()
    tls = f"""
[http.tls]
certificate = "{CERTIFICATES}/server.pem"
key = "{CERTIFICATES}/server.key"
client_authorities = "{CERTIFICATES}/authority.pem"
"""
    head, users = api().split("\n\n", 1)
    return f'{head.replace("127.0.0.1", "0.0.0.0")}\n{tls}\n{users}'


# The API on a Unix socket; a group of the system that every machine has stands for operators.
API_SOCKET = f"{tempfile.gettempdir()}/natrix-test-http-{os.getpid()}.sock"
API_GROUP = "games"
# One that no machine has.
API_NO_GROUP = "natrix-nightshift"
API_UNIX = f"""
[http]
listen = "unix:{API_SOCKET}"

[[http.user]]
name = "players"
role = "operate"
group = "{API_GROUP}"

[[http.user]]
name = "night"
role = "view"
group = "{API_NO_GROUP}"
"""

# A subscriber of a pool with ten ports.
SCARCE = "100.64.0.90"
SCARCE_POOL = f"""
[[pool]]
name = "scarce"
addresses = ["203.0.113.50"]
ports = "2000-2009"
subscribers = ["{SCARCE}/32"]
"""
MONITORED = f"""{SCARCE_POOL}
[log]
events = "{_LOG_FOLDER.name}/monitored.json"

[log.store]
path = "{_LOG_FOLDER.name}/monitored"

[[log.sink]]
name = "court"
kind = "json"
address = "udp://127.0.0.1:6516"
"""


# A million sessions and more of 120 hosts, in tables for twice as many: hosts are spread unevenly.
SESSIONS = int(os.environ.get("NATRIX_SESSIONS", "30000"))
MANY_SESSIONS = f"""
[tables]
mappings = {2 * SESSIONS + 100_000}

[[pool]]
name = "many"
addresses = ["203.0.113.64/26"]
subscribers = ["100.64.0.128/25"]
"""


# SNMP: the socket of the master agent, a subscriber with blocks, and one with a limit of ports.
AGENTX = f"{_LOG_FOLDER.name}/agentx"
THRESHOLDS = f"{_LOG_FOLDER.name}/snmp/thresholds"
IN_BLOCK = "100.64.0.67"
LIMITED = "100.64.0.91"
SNMP_LIMIT = 4
SNMP = f"""{SCARCE_POOL}
[[class]]
name = "limited"
subscribers = ["{LIMITED}/32"]
ports = {{ udp = {SNMP_LIMIT}, tcp = {SNMP_LIMIT}, icmp = {SNMP_LIMIT} }}

[snmp]
agentx = "{AGENTX}"
state = "{THRESHOLDS}"
"""


# The same by TCP, without the tables that name subscribers.
AGENTX_TCP = "127.0.0.1:1705"
SNMP_TCP = f"""
[snmp]
agentx = "{AGENTX_TCP}"
rows = 0
"""

# Beside IPv6 hosts.
AGENTX_OF_HOSTS = f"{_LOG_FOLDER.name}/agentx-of-hosts"
SNMP_OF_HOSTS = f"""
[snmp]
agentx = "{AGENTX_OF_HOSTS}"
"""


# Every limit that a packet can meet, small. Each of the two workers has half of a table and an
# eighth more. One percent of the ports of all pools is less than a worker's mappings.
ONE_BLOCK, TWO_SESSIONS, DRAINING, SLOW = "100.64.0.93", "100.64.0.94", "100.64.0.95", "100.64.0.98"
IPFIX_OF_LIMITS = 4741
# Two subscribers for one block.
CROWDED = ("100.64.0.96", "100.64.0.97")
SMALL_LIMITS = f"""{SCARCE_POOL}threshold = 80

[[pool]]
name = "crowded"
addresses = ["203.0.113.43"]
allocation = "blocks"
block_size = 64
ports = "2048-2111"
subscribers = ["{CROWDED[0]}/31"]

[tables]
mappings = 12000
subscribers = 30
extra_sessions = 4
fragmented_datagrams = 8
fragments_held = 8

[[pool]]
name = "one_block"
addresses = ["203.0.113.40"]
allocation = "blocks"
block_size = 64
blocks_per_subscriber = 1
subscribers = ["{ONE_BLOCK}/32"]

[[pool]]
name = "draining"
addresses = ["203.0.113.41"]
draining = true
subscribers = ["{DRAINING}/32"]

[[class]]
name = "limited"
subscribers = ["{LIMITED}/32"]
ports = {SNMP_LIMIT}
threshold = 75

[[class]]
name = "slow"
subscribers = ["{SLOW}/32"]
new_mappings = "1/s"
new_mappings_burst = 1

[[class]]
name = "two_sessions"
subscribers = ["{TWO_SESSIONS}/32"]
sessions = 2

[log.store]
path = "{_LOG_FOLDER.name}/limits"

[[log.sink]]
name = "ipfix"
kind = "ipfix"
address = "tcp://127.0.0.1:{IPFIX_OF_LIMITS}"
domain = 7

[snmp]
agentx = "{_LOG_FOLDER.name}/agentx-of-limits"
rows = 0
"""


# Gateways: where the outside finds the servers of sub1, and how long connections may be idle.
SERVER_FORWARD = "203.0.113.9"
FTP_IDLE_SECONDS = 4
SIP_IDLE_SECONDS = 5
# An idle connection passes from `tcp_established` to the shorter timers before it ends.
GATEWAY_TIMEOUTS = {
    "tcp_established": f"{FTP_IDLE_SECONDS} s",
    "tcp_opening": "2 s",
    "tcp_closing": "2 s",
    "udp": f"{SIP_IDLE_SECONDS} s",
}
GATEWAYS = ("ftp", "sip", "rtsp", "tftp")
# Of a registrar outside, beside 5060.
SIP_OTHER_PORT = 5070


def gateways(enabled, timeouts=None, unused="30 s", forwards=(("tcp", 21),)):
    """All gateways on or off, in a pool that admits only known remote endpoints; `unused`: for announced ports."""
    keys = {name: {"enabled": enabled, "timeout": unused} for name in GATEWAYS}
    keys["sip"]["ports"] = [5060, SIP_OTHER_PORT]
    return {
        "filtering": "address-and-port-dependent",
        "timeouts": timeouts,
        "gateways": keys,
        "forwards": [(protocol, SERVER_FORWARD, port, "100.64.0.10") for protocol, port in forwards],
    }


# A third interface, whose other end is a program that sends as fast as it can.
FLOOD_LINK, FLOOD_SOCKET = "198.51.102", f"{tempfile.gettempdir()}/natrix-test-flood-{os.getpid()}.sock"


def shared_memory(name, realm, addresses, socket, more=""):
    """An interface whose peer, a program, connects to `socket`."""
    return f"""
[[interface]]
name = "{name}"
realm = "{realm}"
driver = "net_memif0,role=server,id=0,socket={socket},socket-abstract=no"
addresses = ["{addresses}"]
{more}"""


SHARED_MEMORY = shared_memory("flood", "outside", f"{FLOOD_LINK}.2/24", FLOOD_SOCKET, 'kernel = "nx-flood"\n')
# The same with subscribers at its other end.
FLOOD_INSIDE = "100.64.3"
SHARED_MEMORY_INSIDE = shared_memory("flood", "inside", f"{FLOOD_INSIDE}.1/24", FLOOD_SOCKET)

# Another VRF behind the inside port, with the same addresses.
OTHER_VRF = ("blue", 30)
OVERLAPPING = f"""
[[interface]]
name = "inside30"
realm = "inside"
vrf = "{OTHER_VRF[0]}"
parent = "inside"
vlan = {OTHER_VRF[1]}
addresses = ["100.64.0.2/24"]
"""

# The longest first: run.py runs several side by side.
SETUPS = {
    # The tests of the lab, one after the other: they measure, in networks of their own, and some
    # remove what earlier runs left.
    "lab": {},
    "security": {"more": LOG_STORE.replace("/log", "/attacked") + api()},
    # In networks of its own, too. It waits most of the time.
    "probe": {},
    # Instances and networks of their own beside the routes of the kernel, one after the other.
    "routing_own": {},
    "page": {"more": OVERLAPPING + SCARCE_POOL + BLOCKS + LOG_STORE.replace("/log", "/paged") + api()},
    "kernel_routes": {"kernel": True, "more": "\n[routing]\nkernel = true\n" + api()},
    "collectors": {"more": collectors()},
    "transition": {
        "addresses": transition.ADDRESSES,
        "more": transition.ROUTE + transition.CONFIGURATION + LOG_STORE.replace("/log", "/transition") + SNMP_OF_HOSTS + api(),
    },
    # How the lab ends; these measure nothing.
    "lab_end": {},
    "log_store": {"more": LOG_STORE},
    "lines": {"more": f'\n[log]\nevents = "{LINES}"\n'},
    "balanced": {"more": balanced(SERVERS)},
    "routing_links": {"kernel": True, "more": "\n[routing]\nkernel = true\n"},
    "gateways_short": gateways(True, GATEWAY_TIMEOUTS, f"{SIP_IDLE_SECONDS} s"),
    # The unit of the package, on a machine of its own.
    "unit": {},
    "snmp": {"more": SNMP + BLOCKS + api()},
    "gateways": gateways(True),
    "small_limits": {"more": SMALL_LIMITS + api()},
    "short_timers": {"timeouts": dict.fromkeys(("udp", "icmp", "tcp_opening"), f"{SHORT_SECONDS} s")},
    "default": {},
    "ipv6": {"addresses": transition.ADDRESSES, "more": transition.ROUTE},
    # IPv6 on the narrowest link, and on one that is a byte wider.
    "transition_1280": {"addresses": transition.ADDRESSES, "more": transition.CONFIGURATION, "inside_mtu": 1280},
    "transition_1281": {"addresses": transition.ADDRESSES, "more": transition.CONFIGURATION, "inside_mtu": 1281},
    "transition_port_control": {
        "addresses": transition.ADDRESSES,
        "more": transition.ROUTE + transition.CONFIGURATION,
        "port_control": f'pcp = true\nnat_pmp = true\nstate = "{GRANTS}-ipv6"',
    },
    # Networks of their own, one after the other.
    "load_sharing": {},
    "links": {},
    "kernel_flood": {"kernel": True, "more": "\n[routing]\nkernel = true\n" + SHARED_MEMORY},
    "address_dependent": {"filtering": "address-dependent"},
    "address_and_port_dependent": {"filtering": "address-and-port-dependent"},
    "tcp_address_dependent": {"filtering": {"tcp": "address-dependent", "udp": "endpoint-independent"}},
    "narrow_outside": {"outside_mtu": 1400},
    "narrow_inside": {"inside_mtu": 1300},
    # Other ways to receive, with a queue for each worker: flows come to any of them.
    "packet_sockets": {"driver": "af_packet"},
    "tap_devices": {"driver": "tap"},
    "limits": {"more": limits()},
    # Mappings end within the test.
    "collector_ends": {"more": collector_ends(), "timeouts": {"udp": "10 min"}},
    "daily_exports": {"timeouts": {"udp": "4 s"}, "more": LOG_STORE.replace("/log", "/daily")},
    # Instances of their own, one after the other.
    "log_format": {},
    "memif_peer": {},
    "api": {"more": api()},
    "many_sessions": {"more": MANY_SESSIONS + api(), "timeouts": {"udp": "2 h"}},
    # For tests that must not wait because another has used up the requests of its client.
    "api_quiet": {"more": SCARCE_POOL + api()},
    "api_tls": lambda: {"more": api_tls()},
    "api_unix": {"more": API_UNIX},
    "monitoring": {"more": MONITORED + BLOCKS + api()},
    "snmp_tcp": {"more": SNMP_TCP},
    "live_change": {"more": BLOCKS},
    # One address for both clients.
    "alg_pptp": {"more": own_pool('addresses = ["203.0.113.46/32"]') + "\n[alg.pptp]\nenabled = true\n"},
    "port_control": {"filtering": "address-and-port-dependent"},
    "port_control_flood": {"filtering": "address-and-port-dependent"},
    "port_control_memory": {"filtering": "address-and-port-dependent", "more": SHARED_MEMORY_INSIDE},
    "port_control_blocks": {
        "more": own_pool('addresses = ["203.0.113.40/31"]\nallocation = "blocks"\nblock_size = 256'),
        "filtering": "address-and-port-dependent",
    },
    "port_control_slices": {
        "more": own_pool('addresses = ["203.0.113.42/31"]\nallocation = "deterministic"'),
        "filtering": "address-and-port-dependent",
    },
    "port_control_whole": {"more": own_pool('addresses = ["203.0.113.44/31"]\none_to_one = true')},
    "port_control_nat_pmp": {"port_control": "nat_pmp = true"},
    "port_control_state": {"port_control": f'pcp = true\nstate = "{GRANTS}"'},
    "gateways_off": gateways(False),
    "gateways_off_short": gateways(False, GATEWAY_TIMEOUTS),
    "sip_server": gateways(True, forwards=(("udp", 5060), ("tcp", 5060))),
}
