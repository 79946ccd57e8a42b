//! Keys of workers, DPDK, the control socket, HTTP and SNMP.

use super::Key;
use super::Kind;
use super::MIB;
use super::NAME;
use super::Preset;
use super::key;

pub(super) const WORKERS: &[Key] = &[
    key(
        "count",
        Kind::Integer { min: 1, max: 64, unit: "threads" },
        Preset::Derived { rule: "the length of `cpus`, otherwise 1", example: "2" },
        "Number of workers, at most the number of CPUs: two workers on one CPU wait for each other.",
    ),
    key(
        "cpus",
        Kind::List("CPU number, each once"),
        Preset::Value("[]"),
        "CPU of each worker, in order. If empty, the kernel chooses and may move them.",
    ),
];

pub(super) const DPDK: &[Key] = &[
    key(
        "hugepages",
        Kind::Choice(&["auto", "off", "required"]),
        Preset::Value("\"auto\""),
        "`auto` uses hugepages if enough are free, otherwise ordinary pages. `off` is for demos and tests. \
         PCI devices need hugepages.",
    ),
    key(
        "memory",
        Kind::Size { min: 64 * MIB, max: 1 << 40 },
        Preset::Derived { rule: "what the buffers and queues need", example: "\"256 MiB\"" },
        "Memory for packet buffers and queues.",
    ),
    key(
        "buffers",
        Kind::Integer { min: 1_024, max: 16_777_216, unit: "buffers" },
        Preset::Derived {
            rule: "for each port and worker its descriptors and 4096, and 2048 for each worker",
            example: "32768",
        },
        "Packet buffers of all ports and workers: 2.4 KiB each with an MTU of 1500. With too few, receive \
         rings stay empty and packets are lost.",
    ),
];

pub(super) const CONTROL: &[Key] = &[
    key(
        "socket",
        Kind::Text("absolute path of at most 107 bytes"),
        Preset::Value("\"/run/natrix/control.sock\""),
        "Path of the socket.",
    ),
    key(
        "mode",
        Kind::Text("octal permissions, `\"0600\"` to `\"0777\"`, readable and writable for the owner"),
        Preset::Value("\"0660\""),
        "Permissions of the socket. A client sees all subscribers.",
    ),
    key(
        "audit",
        Kind::Text("absolute path of a file"),
        Preset::Derived {
            rule: "the path of the socket, ending in `.audit.jsonl`; in `/var/log/natrix` for a socket in `/run`",
            example: "\"/var/log/natrix/control.audit.jsonl\"",
        },
        "File with one line of JSON for each change and each lookup of a subscriber (`natrix audit`). A lookup \
         that cannot be recorded is refused, and an instance whose file cannot be written does not start. The folder \
         of a socket in `/run` is removed when the service stops.",
    ),
];

pub(super) const HTTP: &[Key] = &[
    key(
        "listen",
        Kind::Text("`\"ADDRESS:PORT\"`, `\"unix:PATH\"`, or `\"\"`"),
        Preset::Value("\"\""),
        "Where the API listens. Other addresses than loopback need `[http.tls]`.",
    ),
    key(
        "hosts",
        Kind::List("names"),
        Preset::Value("[]"),
        "Names by which clients may call the server, besides `localhost` and its address. Requests for other \
         names are refused, so that foreign pages cannot use it.",
    ),
];

pub(super) const SNMP: &[Key] = &[
    key(
        "agentx",
        Kind::Text("`\"PATH\"`, `\"ADDRESS:PORT\"`, or `\"\"`"),
        Preset::Value("\"\""),
        "Where the master agent listens for subagents (`agentXSocket` of snmpd): the absolute path of a Unix \
         socket, or a loopback address. AgentX knows neither logins nor encryption, so other addresses are \
         refused.",
    ),
    key(
        "alias",
        Kind::Text("text of at most 64 printable ASCII characters"),
        Preset::Value("\"natrix\""),
        "Name of the instance in the MIB (natv2InstanceAlias).",
    ),
    key(
        "rows",
        Kind::Integer { min: 0, max: 1_000_000, unit: "rows" },
        Preset::Value("100_000"),
        "Maximum number of rows in each of the tables of subscribers, address maps and port maps. They name \
         subscribers to everybody who may read them; `0` leaves these tables empty. Each row takes some 100 bytes \
         of the process while a manager reads the tables.",
    ),
    key(
        "state",
        Kind::Text("absolute path of a file; `\"\"` for none"),
        Preset::Value("\"\""),
        "File that keeps the thresholds and intervals that managers set. Give it a folder of its own, which is \
         created if it is missing: the process may write there. Without it they are forgotten when the process \
         ends.",
    ),
];

pub(super) const HTTP_TLS: &[Key] = &[
    key(
        "certificate",
        Kind::Text("absolute path of a PEM file, or `\"\"`"),
        Preset::Value("\"\""),
        "Certificate and its chain. If empty, there is no TLS.",
    ),
    key(
        "key",
        Kind::Text("absolute path of a PEM file, or `\"\"`"),
        Preset::Value("\"\""),
        "Private key of the certificate.",
    ),
    key(
        "client_authorities",
        Kind::Text("absolute path of a PEM file, or `\"\"`"),
        Preset::Value("\"\""),
        "Authorities of client certificates. The common name of a client's certificate is the name of its user.",
    ),
];

pub(super) const HTTP_USER: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"noc\""), "Name in logins and in the audit log."),
    key(
        "role",
        Kind::Choice(&["view", "operate", "audit"]),
        Preset::Value("\"view\""),
        "`view`: see figures, nothing that names a subscriber. `operate`: also see rules and routes, \
         plan, reload, roll back and drain. `audit`: see figures and subscribers, look up who has or had an address, \
         explain and trace packets, and read the audit log.",
    ),
    key(
        "token",
        Kind::Text("hash that `natrix token` prints, or `\"\"`"),
        Preset::Value("\"\""),
        "Hash of the user's token. Without it the user can only log in by certificate or group.",
    ),
    key(
        "group",
        Kind::Text("name of a Unix group, or `\"\"`"),
        Preset::Value("\"\""),
        "Members of this group are this user on a Unix socket.",
    ),
];
