//! Every key of the configuration file, once: the parser takes types, ranges and defaults from
//! here, and `docs/configuration.md` is written from it.

use std::sync::LazyLock;

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionKeys {
    /// Its name in the file.
    pub(crate) name: &'static str,
    /// `[[name]]`, any number of times, or `[name]`, once.
    pub(crate) repeats: bool,
    /// Its purpose: one paragraph of the manual.
    pub(crate) about: &'static str,
    /// Its keys.
    pub(crate) keys: &'static [Key],
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// Its name in the file.
    pub(crate) name: &'static str,
    /// Type, unit and range.
    pub(crate) kind: Kind,
    /// Its default.
    pub(crate) default: Preset,
    /// Its effect, and the cost of larger or smaller values.
    pub(crate) consequence: &'static str,
}

/// Type, unit and range of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A whole number.
    Integer { min: u64, max: u64, unit: &'static str },
    /// `"5 min"`; bounds in microseconds.
    Duration { min_us: u64, max_us: u64, bound: Option<RfcBound> },
    /// `"64 MiB"`; bounds in bytes.
    Size { min: u64, max: u64 },
    /// `"1000/s"`; bounds in events per second.
    Rate { min: u64, max: u64 },
    /// `true` or `false`.
    Boolean,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// A string, and its valid content.
    Text(&'static str),
    /// An array, and its elements.
    List(&'static str),
    /// Several types, in words.
    Mixed(&'static str),
}

/// The least value an RFC allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RfcBound {
    /// The requirement.
    pub(crate) requirement: &'static str,
    /// Bound in microseconds.
    pub(crate) min_us: u64,
}

/// The default. Values are TOML, read by the same code as the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    /// There is none; an error shows the example.
    Required(&'static str),
    /// This value.
    Value(&'static str),
    /// Depends on other keys, as `rule` says; an error shows the example.
    Derived { rule: &'static str, example: &'static str },
}

impl Preset {
    /// A valid value.
    pub(crate) const fn example(self) -> &'static str {
        match self {
            Preset::Required(example) | Preset::Value(example) | Preset::Derived { example, .. } => example,
        }
    }
}

const MS: u64 = 1_000;
const S: u64 = 1_000_000;
const MINUTE: u64 = 60 * S;
const DAY: u64 = 24 * 60 * MINUTE;
const MIB: u64 = 1 << 20;

/// Largest MTU: the size of a slot for fragments and own packets.
pub(crate) const MTU_MAX: u64 = 9_216;
/// External addresses of all pools together. Each takes 0.8 MiB: this many take 51 GiB.
pub(crate) const POOL_ADDRESSES_MAX: u64 = 65_536;
/// Tables `[[interface]]`, `[[pool]]` and so on of one kind.
pub(crate) const REPEATS_MAX: usize = 4_096;

const fn key(name: &'static str, kind: Kind, default: Preset, consequence: &'static str) -> Key {
    Key { name, kind, default, consequence }
}

const fn timeout(min_us: u64, max_us: u64, bound: Option<RfcBound>) -> Kind {
    Kind::Duration { min_us, max_us, bound }
}

const fn bound(requirement: &'static str, min_us: u64) -> Option<RfcBound> {
    Some(RfcBound { requirement, min_us })
}

/// All tables, in the order of the manual.
const SECTIONS: &[SectionKeys] = &[
    SectionKeys {
        name: "interface",
        repeats: true,
        about: "A logical interface. With `driver` it is a port of the machine; with `parent` and `vlan` it \
                is an 802.1Q sub-interface of the parent's port. At least one interface is inside and one \
                outside.",
        keys: INTERFACE,
    },
    SectionKeys {
        name: "route",
        repeats: true,
        about: "A static route. Connected prefixes need no route. The longest prefix wins. Inside and \
                outside have separate tables.",
        keys: ROUTE,
    },
    SectionKeys {
        name: "pool",
        repeats: true,
        about: "A set of external addresses and the allocation of their ports. A subscriber is served by the \
                pool with the longest matching prefix in `subscribers`. At least one pool is needed. A pool \
                address may be Natrix's own address on an outside interface, but not on an inside one (RFC \
                3022 §5.1).",
        keys: POOL,
    },
    SectionKeys {
        name: "nat64",
        repeats: true,
        about: "A prefix of stateful NAT64 (RFC 6146): IPv6 hosts inside reach the IPv4 address inside each \
                address of the prefix (RFC 6052), as subscribers of a pool. 464XLAT needs nothing else (RFC \
                6877). IPv4 subscribers of the same VRF are not affected. See docs/ipv6.md.",
        keys: NAT64,
    },
    SectionKeys {
        name: "softwire",
        repeats: true,
        about: "An AFTR of DS-Lite (RFC 6333): IPv4 packets of subscribers come inside IPv6 packets to this \
                address. A host is the IPv6 address of the subscriber's router and an IPv4 address behind \
                it. See docs/ipv6.md.",
        keys: SOFTWIRE,
    },
    SectionKeys {
        name: "forward",
        repeats: true,
        about: "A static port forward: external ports that always lead to one inside address and are \
                allocated to no other subscriber. Packets from these internal ports leave from these \
                external ports. An internal endpoint has one external endpoint (RFC 4787 REQ-1), so it can \
                be forwarded only once. With `targets`, the ports lead to several inside endpoints (load \
                balancing): each session is then a flow, and connections that a target opens itself get an \
                external port of its pool.",
        keys: rules::FORWARD,
    },
    SectionKeys {
        name: "rule",
        repeats: true,
        about: "The action for packets from inside that open a mapping or a session. The first matching rule \
                in the order of the file applies; without one, the pool of the subscriber translates. \
                Answers to packets from outside, by a forward or a mapping, are not redirected or exempted \
                from translation, but `drop` drops UDP answers too. The number of rules does not matter \
                while few of them match the same packet; rules that differ only in overlapping port ranges \
                are compared one by one. Protocols other than TCP, UDP and ICMP are dropped unless a rule \
                with `action = \"pass\"` passes them untranslated, between its prefixes and in both \
                directions.",
        keys: rules::RULE,
    },
    SectionKeys {
        name: "rule_file",
        repeats: true,
        about: "A file with one rule a line, for thousands or millions of rules from a script. Its rules \
                take the place of this table among the `[[rule]]`s. The first line names the columns, which \
                are keys of `[[rule]]` in any order, separated by commas. An empty field means the default. \
                Several `targets` are separated by `;`. A field may be in double quotes, for example if it \
                contains a comma. Empty lines and lines that begin with `#` are ignored. All files together \
                may have 4194304 rules.",
        keys: rules::FILE,
    },
    SectionKeys {
        name: "filter",
        repeats: true,
        about: "Permits or denies packets by their five-tuple, with inside addresses. Filters have no state: \
                each direction is checked separately, and the first matching filter in the order of the file \
                decides; without one, packets pass. Sessions that may pass in both directions are not \
                slower. Packets to Natrix itself and ICMP errors are not filtered.",
        keys: rules::FILTER,
    },
    SectionKeys {
        name: "filter_file",
        repeats: true,
        about: "As `[[rule_file]]`, with the keys of `[[filter]]`.",
        keys: rules::FILE,
    },
    SectionKeys {
        name: "subscriber",
        repeats: false,
        about: "Limits of each subscriber (RFC 6888 REQ-4, REQ-5). A packet above a limit is dropped, \
                answered by ICMP as `icmp.no_resources` says, and counted by cause, in total and for the \
                subscriber. Existing state is not touched.",
        keys: SUBSCRIBER,
    },
    SectionKeys {
        name: "class",
        repeats: true,
        about: "Subscribers with other limits. Limits that a class does not set are those of `[subscriber]`.",
        keys: CLASS,
    },
    SectionKeys {
        name: "timeouts",
        repeats: false,
        about: "Timers, exact to the microsecond. A value below the bound of an RFC is refused unless \
                `allow_below_rfc` is set.",
        keys: TIMEOUTS,
    },
    SectionKeys {
        name: "port_timeout",
        repeats: true,
        about: "A separate timer for sessions with certain destination ports. If several match, the first \
                applies.",
        keys: PORT_TIMEOUT,
    },
    SectionKeys {
        name: "tables",
        repeats: false,
        about: "Table sizes of the whole instance. All memory is reserved at start, and no entry is ever \
                evicted (RFC 6888 REQ-11). With one worker the tables have exactly these sizes. With more, \
                each worker has its share and an eighth more, because subscribers are not spread evenly.",
        keys: TABLES,
    },
    SectionKeys {
        name: "reload",
        repeats: false,
        about: "How `natrix reload` treats existing state that has no place in the new configuration. The \
                values of the new configuration apply.",
        keys: RELOAD,
    },
    SectionKeys {
        name: "icmp",
        repeats: false,
        about: "ICMP messages of Natrix itself. Messages of other hosts are translated in any case.",
        keys: ICMP,
    },
    SectionKeys {
        name: "port_control",
        repeats: false,
        about: "External ports on request of subscribers, by PCP (RFC 6887, RFC 7753) and NAT-PMP (RFC 6886), on \
                UDP port 5351 of Natrix's inside addresses: [port-control.md](port-control.md).",
        keys: PORT_CONTROL,
    },
    SectionKeys {
        name: "routing",
        repeats: false,
        about: "Routes that come from the kernel, where a routing daemon such as FRR or BIRD puts them: \
                [routing.md](routing.md).",
        keys: ROUTING,
    },
    SectionKeys {
        name: "alg",
        repeats: false,
        about: "Application-level gateways: what they rewrite and when to leave them off is in \
                [alg.md](alg.md). Each has a table of its own and is off by default (RFC 4787 REQ-10, RFC \
                5382 REQ-6).",
        keys: ALG,
    },
    SectionKeys {
        name: "workers",
        repeats: false,
        about: "The threads that process packets. A worker with its own CPU polls and uses it fully; a \
                worker without one sleeps when idle.",
        keys: WORKERS,
    },
    SectionKeys { name: "dpdk", repeats: false, about: "Options for DPDK.", keys: DPDK },
    SectionKeys {
        name: "control",
        repeats: false,
        about: "The control socket for `natrix show`, `find`, `why`, `plan`, `reload`, `trace` and `top`.",
        keys: CONTROL,
    },
    SectionKeys {
        name: "http",
        repeats: false,
        about: "The REST API, metrics and page, in a process of their own: [api.md](api.md). Off without `listen`. \
                A change needs a restart.",
        keys: HTTP,
    },
    SectionKeys {
        name: "http.tls",
        repeats: false,
        about: "TLS for the API, needed unless it listens on loopback or a Unix socket. Renewed files are used \
                within 10 s.",
        keys: HTTP_TLS,
    },
    SectionKeys {
        name: "http.user",
        repeats: true,
        about: "A user of the API. Without any user, clients of this machine may see (`view`) but neither change \
                nor look up; root may do everything through a Unix socket.",
        keys: HTTP_USER,
    },
    SectionKeys {
        name: "snmp",
        repeats: false,
        about: "NATV2-MIB (RFC 7659) through the SNMP agent of the system, by a process of its own: \
                [snmp.md](snmp.md). Off without `agentx`. A change needs a restart.",
        keys: SNMP,
    },
    SectionKeys {
        name: "log",
        repeats: false,
        about: "The log of the daemon (`level`, `format`), and the event log that records who had which external \
                port (all other keys). Its volume and format: [operations.md](operations.md#logs).",
        keys: LOG,
    },
    SectionKeys {
        name: "log.store",
        repeats: false,
        about: "The store of the event log: compressed, signed, and searched by `natrix find --at`. Alone or \
                besides `log.events`. Formats and guarantees: [logging.md](logging.md).",
        keys: LOG_STORE,
    },
    SectionKeys {
        name: "log.sink",
        repeats: true,
        about: "A collector that gets the records of the store, as IPFIX (RFC 7011, RFC 8158), syslog (RFC 5424) or \
                lines of JSON. By TCP and TLS it gets everything, in order, also after an outage: what may not have \
                been read is sent again, with the same sequence numbers. Formats: [logging.md](logging.md#sinks).",
        keys: LOG_SINK,
    },
];

const NAME: &str = "1 to 32 letters, digits, `-`, `_` and `.`, starting with a letter or digit; unique";
const HOSTS: &str = "IPv4 prefix `\"a.b.c.d/length\"` or IPv6 prefix, host bits zero";
const PREFIX: &str = "IPv4 prefix `\"a.b.c.d/length\"`, host bits zero";

const INTERFACE: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"lan\""), "Name in commands and counters."),
    key(
        "realm",
        Kind::Choice(&["inside", "outside"]),
        Preset::Required("\"inside\""),
        "`inside` faces the subscribers, `outside` the Internet.",
    ),
    key(
        "vrf",
        Kind::Text("as `name`"),
        Preset::Value("\"default\""),
        "Inside interfaces: the VRF of their subscribers. VRFs are separate, so their inside addresses may \
         overlap; mappings, pairing and limits belong to a subscriber of one VRF. At most 128.",
    ),
    key(
        "driver",
        Kind::Text(
            "PCI address, or one of `net_af_xdp`, `net_af_packet`, `net_tap`, `net_memif`, `net_virtio_user`, \
             `net_ring`, `net_pcap`, `net_null` with an instance number and arguments",
        ),
        Preset::Derived { rule: "none: needed unless `parent` is given", example: "\"net_af_xdp0,iface=eth1\"" },
        "The DPDK device in the form of `--allow` or `--vdev`. A device serves one port.",
    ),
    key(
        "parent",
        Kind::Text("name of an interface with a `driver`"),
        Preset::Derived { rule: "none", example: "\"wan\"" },
        "Makes this an 802.1Q sub-interface of that port; `vlan` is needed too.",
    ),
    key(
        "vlan",
        Kind::Integer { min: 1, max: 4_094, unit: "" },
        Preset::Derived { rule: "none: untagged", example: "100" },
        "802.1Q VLAN of the frames. Once per port; one interface of a port may be untagged.",
    ),
    key(
        "addresses",
        Kind::List(
            "address with the length of its connected prefix: IPv4, 1 to 32, one of them below 32, needed outside; IPv6, 1 to 128",
        ),
        Preset::Required("[\"10.0.0.1/24\"]"),
        "Natrix's own addresses. Neighbours and next hops must be in their prefixes. With an IPv6 address, \
         the interface also has a link-local one, and answers neighbours and pings; IPv6 is not forwarded.",
    ),
    key(
        "mtu",
        Kind::Integer { min: 68, max: MTU_MAX, unit: "bytes" },
        Preset::Derived { rule: "1500, or the value of the parent", example: "1500" },
        "Largest IP packet to send. Larger ones are fragmented, or answered with ICMP \"too big\" if they \
         may not be fragmented. Packet buffers are as large as the largest MTU needs.",
    ),
    key(
        "kernel",
        Kind::Text("1 to 15 letters, digits, `-`, `_` or `.`"),
        Preset::Derived { rule: "none", example: "\"nx-wan\"" },
        "Name of a TAP device that stands for the port in the kernel, with its Ethernet address, MTU and \
         addresses, so that FRR, BIRD, LLDP and SSH can use the port: [routing.md](routing.md). Sub-interfaces of \
         the port become VLAN devices, called `NAME.VLAN` unless they have a name of their own.",
    ),
    key(
        "kernel_table",
        Kind::Integer { min: 1, max: 4_294_967_295, unit: "number of a table" },
        Preset::Derived {
            rule: "the table of the VRF device that it is in, otherwise 254, the main table",
            example: "10",
        },
        "With `[routing] kernel`: the kernel's table whose routes count for this interface. The interfaces of a \
         VRF have one table, and so have those of the outside.",
    ),
    key(
        "rx_descriptors",
        Kind::Integer { min: 64, max: 8_192, unit: "packets" },
        Preset::Value("1024"),
        "Receive ring of each queue, a power of two. Larger rings absorb longer bursts and take more buffers \
         and cache.",
    ),
    key(
        "tx_descriptors",
        Kind::Integer { min: 64, max: 8_192, unit: "packets" },
        Preset::Value("1024"),
        "Transmit ring of each queue, a power of two.",
    ),
];

const ROUTE: &[Key] = &[
    key(
        "prefix",
        Kind::Text("IPv4 or IPv6 prefix, host bits zero"),
        Preset::Required("\"0.0.0.0/0\""),
        "Destinations of the route.",
    ),
    key(
        "via",
        Kind::Text("address on a connected prefix, or a link-local IPv6 address"),
        Preset::Required("\"192.0.2.1\""),
        "The router.",
    ),
    key(
        "interface",
        Kind::Text("name of an interface"),
        Preset::Derived { rule: "the one with the connected prefix of `via`", example: "\"wan\"" },
        "Interface towards the router. Only a check, because `via` implies it, unless `via` is link-local.",
    ),
];

const HOSTS_VRF: Key = key(
    "vrf",
    Kind::Text("VRF of an inside interface with an IPv6 address"),
    Preset::Value("\"default\""),
    "The VRF of the hosts.",
);
const HOSTS_POOL: Key = key(
    "pool",
    Kind::Text("name of a pool"),
    Preset::Required("\"main\""),
    "The pool that serves the hosts, beside its `subscribers`. One for all of a VRF's hosts; neither one-to-one \
     nor deterministic.",
);

const NAT64: &[Key] = &[
    key(
        "prefix",
        Kind::Text("IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits"),
        Preset::Value("\"64:ff9b::/96\""),
        "IPv6 addresses with an IPv4 address inside. The well-known prefix 64:ff9b::/96 reaches no private \
         addresses (RFC 6052 §3.1). Prefixes of a VRF do not overlap. Routes of the network lead the prefix here.",
    ),
    HOSTS_VRF,
    HOSTS_POOL,
    key(
        "lowest_ipv6_mtu",
        Kind::Integer { min: 1_280, max: MTU_MAX, unit: "bytes" },
        Preset::Value("1280"),
        "Size of IPv6 packets that reaches every host (RFC 7915 §4.1). IPv4 packets without Don't Fragment are cut to \
         it, so a larger value means fewer fragments if all links inside carry such packets. It does not raise the \
         MTU of the interfaces.",
    ),
];

const SOFTWIRE: &[Key] = &[
    key(
        "aftr",
        Kind::Text("IPv6 address"),
        Preset::Required("\"2001:db8:1::aaaa\""),
        "Address of the AFTR. It may be an address of an interface; otherwise routes of the network lead it here.",
    ),
    HOSTS_VRF,
    HOSTS_POOL,
    key(
        "inner",
        Kind::List("IPv4 prefix"),
        Preset::Value("[\"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\", \"192.0.0.0/29\"]"),
        "Sources permitted inside the softwires; packets from others are dropped (RFC 6333 §11).",
    ),
    key(
        "subscribers",
        Kind::List("IPv6 prefix, host bits zero"),
        Preset::Value("[]"),
        "Addresses of customers, if not all: softwires from other addresses are dropped as `softwire_subscriber` (RFC \
         6333 §11).",
    ),
];

const POOL: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"main\""), "Name in commands and counters."),
    key(
        "addresses",
        Kind::List("`\"a\"`, `\"a-b\"` or `\"prefix/length\"`; 65536 addresses in all pools together"),
        Preset::Required("[\"203.0.113.0/28\"]"),
        "External addresses, contiguous or not. Each takes 0.8 MiB. All addresses of a prefix are used.",
    ),
    key(
        "exclude",
        Kind::List("as `addresses`"),
        Preset::Value("[]"),
        "Addresses to remove from `addresses`. Each element must remove at least one.",
    ),
    key(
        "ports",
        Kind::Text("`\"low-high\"` within 1-65535"),
        Preset::Value("\"1024-65535\""),
        "External ports to allocate. Blocks and slices limit ICMP identifiers too; with single ports these \
         are 1 to 65535, because they reach no service. Internal ports 0-1023 are mapped to external ports \
         below 1024 if the range has any (RFC 4787 REQ-3a).",
    ),
    key(
        "reserved_ports",
        Kind::List("port, or `\"low-high\"`, within 1-65535"),
        Preset::Value("[]"),
        "TCP and UDP ports that are never allocated, for services on the address. A port block without other \
         ports is never leased; a block with some reserved ports must keep half of its ports.",
    ),
    key(
        "subscribers",
        Kind::List(PREFIX),
        Preset::Value("[\"0.0.0.0/0\"]"),
        "Inside addresses that this pool serves; the longest prefix of all pools wins. An inside interface \
         or route must reach each.",
    ),
    key(
        "vrfs",
        Kind::List("name of a VRF"),
        Preset::Derived { rule: "all", example: "[\"default\"]" },
        "VRFs of the subscribers. Pools of different VRFs may serve the same prefixes; the VRFs of one pool \
         share its addresses.",
    ),
    key(
        "draining",
        Kind::Boolean,
        Preset::Value("false"),
        "No new mappings and no new subscribers in this pool; existing ones stay. Its subscribers need \
         another pool: `check` warns if it still serves some, and refuses rules and a `penalty_pool` that \
         use it.",
    ),
    key(
        "drain",
        Kind::List("as `addresses`"),
        Preset::Value("[]"),
        "The same for some addresses: subscribers get another address of the pool with their next mapping. \
         Each element must contain an address of the pool. If it contains all of them, the pool drains. \
         `check` warns if guaranteed ports (`reserved_ports` of a class) do not exist without them.",
    ),
    key(
        "pooling",
        Kind::Choice(&["paired", "arbitrary"]),
        Preset::Value("\"paired\""),
        "`paired`: a subscriber keeps one external address (RFC 6888 REQ-2). `arbitrary` fills the pool more \
         evenly, but breaks applications that compare the addresses of their connections.",
    ),
    key(
        "allocation",
        Kind::Choice(&["ports", "blocks", "deterministic"]),
        Preset::Value("\"ports\""),
        "`ports`: each mapping gets any free port; this uses addresses best and logs each mapping. `blocks`: \
         subscribers lease blocks of ports, and only blocks are logged (RFC 6888 REQ-14). `deterministic`: a \
         formula gives each subscriber a slice of one address, so only dynamic blocks are logged (RFC 7422); \
         `natrix find --config FILE` finds the holder of a port offline.",
    ),
    key(
        "block_size",
        Kind::Integer { min: 64, max: 4_096, unit: "ports" },
        Preset::Value("512"),
        "Ports of a block, a power of two that divides `ports`. Larger blocks mean fewer records and fewer \
         subscribers per address.",
    ),
    key(
        "blocks_per_subscriber",
        Kind::Integer { min: 0, max: 1_023, unit: "blocks" },
        Preset::Value("8"),
        "Blocks of one subscriber at a time. If all are full, new mappings are refused. In a deterministic \
         pool: dynamic blocks in addition to the slice; 0 for none.",
    ),
    key(
        "block_idle",
        timeout(0, 7 * DAY, None),
        Preset::Value("\"2 min\""),
        "Time to keep a block without ports in use. Longer means fewer records, and a subscriber that \
         returns gets the same ports.",
    ),
    key(
        "dynamic_slices",
        Kind::Integer { min: 0, max: 65_535, unit: "slices" },
        Preset::Value("2"),
        "Deterministic pools: slices of each address that remain for dynamic blocks (D in RFC 7422). The \
         ports are divided by the subscribers per address plus this number.",
    ),
    key(
        "algorithm",
        Kind::Choice(&["sequential", "spread", "keyed"]),
        Preset::Value("\"sequential\""),
        "Deterministic pools: which subscriber has which slice (RFC 7422 §2). `sequential`: one address \
         after the other (algorithm 0). `spread`: neighbouring subscribers are on different addresses, so \
         that a busy prefix uses all of them. `keyed`: in an order that nobody can compute without \
         `algorithm_key`; keep the key as long as the holder of a port may have to be found.",
    ),
    key(
        "algorithm_key",
        Kind::Text("8 to 64 characters"),
        Preset::Derived { rule: "none", example: "\"winter-sparrow-42\"" },
        "For `algorithm = \"keyed\"`.",
    ),
    key(
        "selection",
        Kind::Choice(&["least-used", "round-robin", "hash"]),
        Preset::Value("\"least-used\""),
        "The address of a new subscriber. `least-used`: of two random ones the one with clearly fewer ports \
         in use (with blocks: leased), otherwise the one with fewer subscribers. `round-robin`: one after \
         the other. `hash`: always the same for a subscriber, while the addresses of the pool stay the same. \
         Addresses without free ports are skipped; after a change to blocks, at most 64 addresses with \
         single ports in all blocks are skipped for one packet.",
    ),
    key(
        "filtering",
        Kind::Mixed(
            "`\"endpoint-independent\"`, `\"address-dependent\"`, `\"address-and-port-dependent\"`, or one of these for \
             each of `{ udp, tcp, icmp }`",
        ),
        Preset::Value("\"endpoint-independent\""),
        "Remotes that may send to a mapping: all, addresses that it has sent to, or endpoints that it has \
         sent to. Peer-to-peer applications need `endpoint-independent` (RFC 4787 REQ-8). Protocols without \
         a value keep the default.",
    ),
    key(
        "parity",
        Kind::Boolean,
        Preset::Value("false"),
        "Even internal ports get even external ports, odd get odd (RFC 4787 REQ-4). For old RTP \
         applications; one half of the ports is then used up sooner.",
    ),
    key(
        "threshold",
        Kind::Integer { min: 1, max: 100, unit: "%" },
        Preset::Derived { rule: "none", example: "90" },
        "Log an event when this share of the ports of a protocol is in use, or leased in blocks.",
    ),
    key(
        "threshold_clear",
        Kind::Integer { min: 0, max: 99, unit: "%" },
        Preset::Derived { rule: "10 less than `threshold`", example: "80" },
        "Log another event when use has fallen to this share.",
    ),
    key(
        "one_to_one",
        Kind::Boolean,
        Preset::Value("false"),
        "The n-th address belongs to the n-th address of `subscribers` in both directions, with all ports \
         and ICMP. Ports are not translated (RFC 2663 basic NAT). Both lists are equally long, and the pool \
         serves one VRF. Keys about ports do not apply.",
    ),
    key(
        "reuse_delay",
        timeout(0, DAY, None),
        Preset::Value("\"2 min\""),
        "Hold-down of an external port after its mapping has ended (RFC 6888 REQ-8: 2 min), so that late \
         packets reach no other subscriber. Held ports are not free: a shorter time fills the pool better. \
         `tables.held_ports` limits their number. On shared ports each five-tuple is held, in its record of \
         `tables.flows`, and the port itself when it has no flow. A reload that changes this key does not \
         affect ports that are already held.",
    ),
    key(
        "reuse_at_once",
        Kind::List("`\"tcp-closed\"`, `\"filtered\"`"),
        Preset::Value("[\"tcp-closed\"]"),
        "Ports without hold-down, as RFC 6888 REQ-8 allows. `tcp-closed`: TCP ports whose last connection \
         both sides closed, after `timeouts.tcp_closing`. `filtered`: ports of protocols whose `filtering` \
         is not endpoint-independent, and shared ports.",
    ),
    key(
        "shared_ports",
        Kind::Integer { min: 1, max: 4_096, unit: "ports" },
        Preset::Value("64"),
        "Number of ports of an external address and protocol over which a worker spreads endpoint-dependent \
         flows before two of them share one. More ports are harder to guess (RFC 6056); fewer leave more \
         ports for other uses and for the `ports` limit of subscribers. When no port is free, workers use \
         the ports of other workers.",
    ),
];

/// The sense of a limit that is not written.
const UNLIMITED: &str = "none: no limit; in a class as in `[subscriber]`";
/// The most ports a subscriber's limit can be.
pub(crate) const SUBSCRIBER_PORTS_MAX: u32 = 10_000_000;

const fn no_limit(example: &'static str) -> Preset {
    Preset::Derived { rule: UNLIMITED, example }
}

/// Keys that `[subscriber]` and `[[class]]` have in common.
const LIMITS: [Key; 9] = [
    key(
        "ports",
        Kind::Mixed("number 0 to 10000000, or one for some of `{ udp, tcp, icmp }`"),
        no_limit("2000"),
        "External ports and query identifiers of one subscriber at a time, for each protocol. Above it, new \
         mappings are refused and existing ones stay (RFC 6888 REQ-4). A mapping counts until its port is \
         free, some seconds after its end. A shared port counts for the subscriber whose flow was first on \
         it, while that subscriber has a flow there; other subscribers share it without charge, even at \
         their limit.",
    ),
    key(
        "sessions",
        Kind::Integer { min: 1, max: 4_000_000_000, unit: "sessions" },
        no_limit("4000"),
        "Sessions of one subscriber at a time, in all its mappings (RFC 6888 REQ-5). The first session of a \
         mapping counts until the mapping ends. Above it, new mappings and new remotes of existing mappings \
         are refused.",
    ),
    key(
        "memory",
        Kind::Size { min: 0, max: 1 << 40 },
        no_limit("\"256 KiB\""),
        "State of one subscriber at a time (RFC 6888 REQ-5): 73 bytes for each mapping, 58 for each session beyond \
         its first, 110 for each endpoint-dependent flow. `check` refuses less than 73.",
    ),
    key(
        "new_mappings",
        Kind::Rate { min: 1, max: 10_000_000 },
        no_limit("\"100/s\""),
        "Rate of new mappings of one subscriber (RFC 6888 REQ-4c), so that scanners and infected hosts leave \
         ports and CPU to others. It is remembered after the last mapping until the burst is full again.",
    ),
    key(
        "new_mappings_burst",
        Kind::Integer { min: 1, max: nat::class::BURST_MAX as u64, unit: "mappings" },
        Preset::Derived { rule: "a second's worth of `new_mappings`", example: "200" },
        "Burst after a pause: a browser opens dozens of mappings.",
    ),
    key(
        "new_sessions",
        Kind::Rate { min: 1, max: 10_000_000 },
        no_limit("\"200/s\""),
        "Rate of further sessions in the mappings of one subscriber, opened from either side (RFC 6888 \
         REQ-5b). It also limits a flood of SYNs from outside to an open port.",
    ),
    key(
        "new_sessions_burst",
        Kind::Integer { min: 1, max: nat::class::BURST_MAX as u64, unit: "sessions" },
        Preset::Derived { rule: "a second's worth of `new_sessions`", example: "400" },
        "Burst after a pause.",
    ),
    key(
        "threshold",
        Kind::Integer { min: 1, max: 100, unit: "%" },
        Preset::Derived { rule: "none; in a class as in `[subscriber]`", example: "80" },
        "Log an event when a subscriber uses this share of its `ports` of a protocol or of its `sessions`.",
    ),
    key(
        "threshold_clear",
        Kind::Integer { min: 0, max: 99, unit: "%" },
        Preset::Derived { rule: "10 less than `threshold`", example: "70" },
        "Log another event when use has fallen to this share.",
    ),
];

const SUBSCRIBER: &[Key] = &[
    key(
        "ipv6_prefix_length",
        Kind::Integer { min: 32, max: 128, unit: "bits" },
        Preset::Value("56"),
        "IPv6 hosts with this many leading bits in common are one subscriber: the length of the prefixes that \
         customers get. Limits, pairing and port blocks are by subscriber.",
    ),
    key(
        "ipv6_hosts",
        Kind::Integer { min: 1, max: 1_000_000, unit: "hosts" },
        Preset::Value("1024"),
        "IPv6 hosts of one subscriber with mappings at a time. Packets of further ones are dropped, so that a scan \
         from many addresses cannot fill the table.",
    ),
    key(
        "sessions_per_mapping",
        Kind::Integer { min: 1, max: 65_535, unit: "sessions" },
        Preset::Value("4096"),
        "Remote endpoints of one mapping at a time. Packets of further ones are dropped without a session, \
         so that a single subscriber cannot fill the table (RFC 6888 REQ-5).",
    ),
    key(
        "hairpin_between_vrfs",
        Kind::Boolean,
        Preset::Value("true"),
        "Subscribers of different VRFs reach each other's external endpoints (RFC 4787 REQ-9), as they would \
         over the Internet. If false, such packets are dropped as `hairpin_refused`.",
    ),
    LIMITS[0],
    LIMITS[1],
    LIMITS[2],
    LIMITS[3],
    LIMITS[4],
    LIMITS[5],
    LIMITS[6],
    LIMITS[7],
    LIMITS[8],
];

const CLASS: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"business\""), "Name in commands and counters."),
    key(
        "subscribers",
        Kind::List(HOSTS),
        Preset::Required("[\"100.64.0.0/16\"]"),
        "Inside addresses of the class; the longest prefix of all classes wins. An IPv6 prefix means subscribers \
         behind NAT64 and B4s; it is not longer than `subscriber.ipv6_prefix_length`.",
    ),
    key(
        "vrfs",
        Kind::List("name of a VRF"),
        Preset::Derived { rule: "all", example: "[\"default\"]" },
        "VRFs of the class.",
    ),
    key(
        "alg",
        Kind::List("`ftp`, `sip`, `rtsp`, `tftp`, `pptp`"),
        Preset::Derived { rule: "those with `enabled = true`", example: "[\"sip\"]" },
        "Exactly these application-level gateways read sessions of this class, whatever their `enabled` says. \
         `[]`: none. The other keys of their tables apply.",
    ),
    key(
        "reserved_ports",
        Kind::Mixed("number 0 to 10000000, or one for some of `{ udp, tcp, icmp }`"),
        Preset::Derived { rule: "none", example: "100" },
        "Guaranteed external ports for each of these subscribers, in use or not, however full the pool is: \
         [operations](operations.md#limits-offenders-thresholds). Use small prefixes. Needs a pool with single \
         ports (from 1024 on) and paired pooling; other pools that a rule uses are not affected. `check` refuses \
         guarantees that exceed the ports of addresses that do not drain (without ports of forwards), the \
         `ports`, `sessions` or `memory` of the class (one session and 73 bytes for each port of any protocol), \
         or `tables.mappings`. Held ports count as in use by others; if no others are left, a guaranteed port is \
         free at once. Other modes do not need this key: a deterministic pool guarantees each slice, and a \
         subscriber with a block has all its ports.",
    ),
    key(
        "penalty_pool",
        Kind::Text("name of a pool"),
        Preset::Derived { rule: "none", example: "\"penalty\"" },
        "Offenders get new mappings from this pool instead of their own: subscribers with `penalty_refusals` \
         refused packets. Existing mappings stay. With the next mapping they are paired with an address of \
         this pool, so that scanners and infected hosts use up only its ports and harm only its reputation. \
         The pool may have `subscribers = []`.",
    ),
    key(
        "penalty_refusals",
        Kind::Integer { min: 1, max: 1_000_000_000, unit: "packets" },
        Preset::Value("1000"),
        "Packets from inside, refused within `penalty_window` because of any limit of the subscriber, that \
         make an offender. Packets from other hosts and an exhausted pool do not count.",
    ),
    key(
        "penalty_window",
        timeout(S, DAY, None),
        Preset::Value("\"1 min\""),
        "Time in which refusals are counted, from the first one on.",
    ),
    key(
        "penalty_release",
        timeout(S, 30 * DAY, None),
        Preset::Value("\"10 min\""),
        "The penalty ends after this time without a refusal; the next mapping is from the subscriber's own \
         pool again.",
    ),
    LIMITS[0],
    LIMITS[1],
    LIMITS[2],
    LIMITS[3],
    LIMITS[4],
    LIMITS[5],
    LIMITS[6],
    LIMITS[7],
    LIMITS[8],
];

const PORT_TIMEOUT: &[Key] = &[
    key(
        "protocol",
        Kind::Choice(&["udp", "tcp"]),
        Preset::Value("\"udp\""),
        "`udp`, or `tcp` for established sessions.",
    ),
    key(
        "ports",
        Kind::Text("port, or `\"low-high\"`, within 1-65535"),
        Preset::Required("\"53\""),
        "Destination ports, before translation.",
    ),
    key(
        "idle",
        timeout(100 * MS, 30 * DAY, None),
        Preset::Required("\"10 s\""),
        "Idle time of sessions to these ports, answered or not. For UDP it may be below 2 min only for ports \
         up to 1023 (RFC 4787 §4.3 REQ-5a): a DNS or NTP query ends with its answer, and its port is free at \
         once.",
    ),
];

const TIMEOUTS: &[Key] = &[
    key(
        "udp",
        timeout(100 * MS, 7 * DAY, bound("RFC 4787 §4.3 REQ-5", 2 * MINUTE)),
        Preset::Value("\"5 min\""),
        "Idle UDP mapping and session. Shorter frees ports sooner, but breaks games and calls during silence.",
    ),
    key(
        "udp_unanswered",
        timeout(100 * MS, 7 * DAY, bound("RFC 4787 §4.3 REQ-5", 2 * MINUTE)),
        Preset::Derived { rule: "value of `udp`", example: "\"2 min\"" },
        "Idle UDP session without an answer. If shorter than `udp`, unanswered packets, above all scans, \
         hold their ports for less time. Packets of such sessions take a longer way through Natrix until the \
         first answer.",
    ),
    key(
        "tcp_opening",
        timeout(100 * MS, 7 * DAY, None),
        Preset::Value("\"4 min\""),
        "TCP session before its handshake is complete. May be lower (RFC 7857 §2.1), so that scans and SYN \
         floods hold ports for less time.",
    ),
    key(
        "tcp_established",
        timeout(100 * MS, 30 * DAY, bound("RFC 5382 §5 REQ-5", 124 * MINUTE)),
        Preset::Value("\"2 h 4 min\""),
        "Idle TCP session. Shorter breaks connections with keep-alives every two hours.",
    ),
    key(
        "tcp_closing",
        timeout(100 * MS, 7 * DAY, bound("RFC 5382 §5 REQ-5", 4 * MINUTE)),
        Preset::Value("\"4 min\""),
        "TCP session after both FINs, after a RST (RFC 7857 §2.2), and after its idle time.",
    ),
    key(
        "icmp",
        timeout(100 * MS, 7 * DAY, bound("RFC 5508 §3.2 REQ-2", MINUTE)),
        Preset::Value("\"1 min\""),
        "ICMP query session.",
    ),
    key(
        "unsolicited_syn",
        timeout(100 * MS, MINUTE, bound("RFC 5382 §4.3 REQ-4", 6 * S)),
        Preset::Value("\"6 s\""),
        "Time to hold an unsolicited inbound SYN for a simultaneous open, before it is answered.",
    ),
    key(
        "fragment",
        timeout(100 * MS, MINUTE, bound("RFC 6146 §3.4", 2 * S)),
        Preset::Value("\"2 s\""),
        "Time to keep an incomplete fragmented datagram.",
    ),
    key(
        "adapt_above",
        Kind::Integer { min: 1, max: 99, unit: "%" },
        Preset::Derived { rule: "never", example: "80" },
        "Above this share of the fullest pool's ports of a protocol, idle times of UDP, ICMP, opening and \
         established TCP shrink evenly, to the bounds of the RFCs when no port is left. Values below the \
         bounds, and those of `[[port_timeout]]`, do not change. A session gets the current time with each \
         packet; a silent session ends when the current time has passed since the change, if it would last \
         longer. `natrix show status` shows the current times.",
    ),
    key(
        "inbound_refresh",
        Kind::Boolean,
        Preset::Value("false"),
        "Inbound UDP and ICMP packets refresh the timer too (RFC 4787 §4.3 REQ-6), so a remote can keep a \
         mapping alive. TCP always does this.",
    ),
    key(
        "allow_below_rfc",
        Kind::Boolean,
        Preset::Value("false"),
        "Permit timers below the bounds of the RFCs, for tests and special cases.",
    ),
];

const TABLES: &[Key] = &[
    key(
        "mappings",
        Kind::Integer { min: 1, max: 4_000_000_000, unit: "mappings" },
        Preset::Value("1000000"),
        "Mappings: 73 bytes each. If all are in use, new mappings are refused.",
    ),
    key(
        "extra_sessions",
        Kind::Integer { min: 1, max: 4_000_000_000, unit: "sessions" },
        Preset::Value("500000"),
        "Sessions beyond the first of their mapping: 58 bytes each. If all are in use, further sessions are refused.",
    ),
    key(
        "flows",
        Kind::Integer { min: 0, max: 4_000_000_000, unit: "flows" },
        Preset::Value("0"),
        "Endpoint-dependent flows, which share external ports: 110 bytes each, or 135 with several workers. \
         Endpoint-dependent rules and forwards with `targets` need some. If all are in use, further flows are refused.",
    ),
    key(
        "subscribers",
        Kind::Integer { min: 1, max: 100_000_000, unit: "subscribers" },
        Preset::Value("100000"),
        "Subscribers with a mapping at the same time: 181 bytes each. Further ones are refused. After the last mapping of \
         a subscriber, its record keeps rates and offences while they count, unless a new subscriber needs it; the \
         oldest such record is used first.",
    ),
    key(
        "ipv6_hosts",
        Kind::Integer { min: 1, max: 100_000_000, unit: "hosts" },
        Preset::Value("200000"),
        "IPv6 hosts and their prefixes, of NAT64 and softwires, with mappings at a time: 41 bytes each. Reserved only \
         if there is a `[[nat64]]` or `[[softwire]]`. Further hosts are refused.",
    ),
    key(
        "fragmented_datagrams",
        Kind::Integer { min: 1, max: 1_000_000, unit: "datagrams" },
        Preset::Value("4096"),
        "Fragmented datagrams to track at a time. Further ones are dropped.",
    ),
    key(
        "fragments_held",
        Kind::Integer { min: 1, max: 1_000_000, unit: "fragments" },
        Preset::Value("1024"),
        "Fragments to hold until the first fragment of their datagram arrives: 2 to 9 KiB each, by MTU.",
    ),
    key(
        "unsolicited_syns",
        Kind::Integer { min: 1, max: 1_000_000, unit: "segments" },
        Preset::Value("4096"),
        "Unsolicited SYNs to hold at a time. Further ones are dropped without an answer.",
    ),
    key(
        "held_ports",
        Kind::Integer { min: 0, max: 4_000_000_000, unit: "ports" },
        Preset::Derived {
            rule: "a sixteenth of `tables.mappings`, at least 65536 and at most 500000",
            example: "500000",
        },
        "External ports held down at a time (`pool.reuse_delay`): 8 bytes each. If there are more, the oldest are used \
         early and counted. 0: no hold-down.",
    ),
    key(
        "external_addresses",
        Kind::Integer { min: 1, max: POOL_ADDRESSES_MAX, unit: "addresses" },
        Preset::Derived { rule: "twice the addresses of the pools, and at least 16 more", example: "64" },
        "External addresses of a running instance: those of the pools, those that a reload adds, and removed ones that \
         still drain. 0.85 MiB each. Unused ones take no ordinary memory, but count for hugepages.",
    ),
];

const RELOAD: &[Key] = &[
    key(
        "removed",
        Kind::Choice(&["drain", "end"]),
        Preset::Value("\"drain\""),
        "Mappings on removed external addresses, and on removed or changed forwards. `drain`: they stay \
         while they are used, but a removed forward accepts no new remotes. `end`: they end within some \
         seconds.",
    ),
    key(
        "drain_time",
        timeout(S, 30 * DAY, None),
        Preset::Derived { rule: "none: while they are used", example: "\"1 h\"" },
        "Maximum time for mappings on a draining or removed address, and on ports that a change reserved, \
         removed from the range or forwarded. Then they end, in use or not.",
    ),
];

const ALG: &[Key] = &[key(
    "sessions",
    Kind::Integer { min: 256, max: nat::settings::CONTROL_SESSIONS_CEILING as u64, unit: "sessions per worker" },
    Preset::Value("65536"),
    "Control sessions that all gateways of a worker read at a time, such as one for each phone that is \
     registered. One subscriber may have an eighth. Further ones pass unread, and count as `table_full` in `show \
     algs`. They take about 460 bytes each when they are first used, and up to 8 MiB for all.",
)];

/// The table of a gateway. What it takes from there is written once, and stays.
fn gateway(alg: &'static dyn alg::Alg) -> SectionKeys {
    let ports = format!("{:?}", alg.ports());
    let mut keys = gateway_keys(ports.leak()).to_vec();
    if !alg.commands().is_empty() {
        keys.insert(2, gateway_commands(alg.commands()));
    }
    SectionKeys { name: format!("alg.{}", alg.name()).leak(), repeats: false, about: alg.about(), keys: keys.leak() }
}

fn gateway_commands(commands: &[&str]) -> Key {
    let list = |quote: &str| commands.iter().map(|it| format!("{quote}{it}{quote}")).collect::<Vec<_>>().join(", ");
    key(
        "commands",
        Kind::List(list("`").leak()),
        Preset::Value(format!("[{}]", list("\"")).leak()),
        "Commands whose addresses and ports are rewritten. Others pass unchanged.",
    )
}

/// The keys of all gateways. `ports`: the default.
const fn gateway_keys(ports: &'static str) -> [Key; 5] {
    [
        key(
            "enabled",
            Kind::Boolean,
            Preset::Value("false"),
            "Read new control sessions, except of classes that list their own gateways (`alg`). Sessions that \
             exist are never picked up in the middle.",
        ),
        key("ports", Kind::List("port 1 to 65535"), Preset::Value(ports), "Ports of the servers."),
        key(
            "pools",
            Kind::List("name of a pool"),
            Preset::Derived { rule: "all pools", example: "[\"main\"]" },
            "Only sessions with an external address of these pools.",
        ),
        key(
            "expectations_per_subscriber",
            Kind::Integer { min: 1, max: 10_000, unit: "expectations" },
            Preset::Value("64"),
            "Connections and flows that payloads of one subscriber may announce at a time, over all gateways. \
             One control session may announce 8.",
        ),
        key(
            "timeout",
            timeout(S, 10 * MINUTE, None),
            Preset::Value("\"30 s\""),
            "An announced port that nobody uses is free after this time.",
        ),
    ]
}

const ICMP: &[Key] = &[
    key(
        "errors_to_inside",
        Kind::Boolean,
        Preset::Value("true"),
        "Send errors (time exceeded, too big, unreachable) to subscribers. If false, traceroute and path MTU \
         discovery fail at Natrix.",
    ),
    key(
        "errors_to_outside",
        Kind::Boolean,
        Preset::Value("true"),
        "Send errors to the Internet. If false, path MTU discovery towards subscribers fails.",
    ),
    key(
        "error_rate",
        Kind::Rate { min: 1, max: 10_000_000 },
        Preset::Value("\"1000/s\""),
        "Maximum rate of errors (RFC 1812 §4.3.2.8), divided evenly among the workers. Others are counted.",
    ),
    key(
        "error_rate_per_destination",
        Kind::Rate { min: 1, max: 10_000_000 },
        Preset::Value("\"20/s\""),
        "Maximum rate of errors from one worker to one address. A traceroute needs about 10 a second.",
    ),
    key(
        "no_resources",
        Kind::Choice(&["host-unreachable", "administratively-prohibited", "silent"]),
        Preset::Value("\"host-unreachable\""),
        "Answer if no mapping can be created: type 3 code 1 (RFC 6888 REQ-11b), which programs treat as \
         temporary; code 13 (RFC 5508 REQ-8); or none.",
    ),
    key("answer_echo", Kind::Boolean, Preset::Value("true"), "Answer pings to Natrix's own addresses."),
    key(
        "answer_unsolicited_syn",
        Kind::Boolean,
        Preset::Value("true"),
        "Answer an unsolicited inbound SYN with port unreachable after `timeouts.unsolicited_syn` (RFC 5382 \
         §4.3 REQ-4). If false, it is dropped silently.",
    ),
];

const ROUTING: &[Key] = &[key(
    "kernel",
    Kind::Boolean,
    Preset::Value("false"),
    "Use the routes of the kernel that lead to devices of `[[interface]] kernel`. For the same prefix, \
         connected and static routes are preferred.",
)];

const PORT_CONTROL: &[Key] = &[
    key("pcp", Kind::Boolean, Preset::Value("false"), "Answer PCP (RFC 6888 REQ-9)."),
    key(
        "nat_pmp",
        Kind::Boolean,
        Preset::Value("false"),
        "Answer NAT-PMP, which older clients use. In a pool of single ports each of its mappings takes a port of \
         TCP and one of UDP (RFC 6886 §3.3).",
    ),
    key(
        "lifetime_min",
        Kind::Duration { min_us: S, max_us: DAY, bound: None },
        Preset::Value("\"2 min\""),
        "The shortest lifetime that PCP grants. Shorter ones cost more requests (RFC 6887 §15).",
    ),
    key(
        "lifetime_max",
        Kind::Duration { min_us: S, max_us: 7 * DAY, bound: None },
        Preset::Value("\"24 h\""),
        "The longest lifetime that is granted. The ports of a client that has gone are kept that long.",
    ),
    key(
        "mappings_per_subscriber",
        Kind::Integer { min: 1, max: 4_096, unit: "mappings" },
        Preset::Value("64"),
        "Mappings for which one inside address may ask. They also count against all limits of `[subscriber]`.",
    ),
    key(
        "third_party",
        Kind::List("prefixes of inside addresses"),
        Preset::Value("[]"),
        "Inside addresses that may ask for others (THIRD_PARTY, RFC 6887 §13.1): only hosts of the operator, such as \
         a portal.",
    ),
    key(
        "state",
        Kind::Text("absolute path of a file; `\"\"` for none"),
        Preset::Value("\"\""),
        "File that keeps what was granted over a restart. Without it clients learn by an announcement that they have \
         to ask again.",
    ),
];

const WORKERS: &[Key] = &[
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

const DPDK: &[Key] = &[
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

const CONTROL: &[Key] = &[
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
         that cannot be recorded is refused. The folder of a socket in `/run` is removed when the service stops.",
    ),
];

const HTTP: &[Key] = &[
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

const SNMP: &[Key] = &[
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

const HTTP_TLS: &[Key] = &[
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

const HTTP_USER: &[Key] = &[
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

const LOG: &[Key] = &[
    key(
        "level",
        Kind::Choice(&["error", "warn", "info", "debug"]),
        Preset::Value("\"info\""),
        "The least severe level to write. Packets are never logged.",
    ),
    key(
        "format",
        Kind::Choice(&["auto", "text", "json", "journald"]),
        Preset::Value("\"auto\""),
        "How the log is written. `text`: lines on standard error. `json`: one object a line there, with time, \
         level, object and message. `journald`: fields of systemd's journal (`journalctl -u natrix -o verbose`). \
         `auto`: `journald` if the journal reads standard error, as it does under systemd, and `text` otherwise.",
    ),
    key(
        "events",
        Kind::Text("absolute path of a file, `\"-\"` for standard output, or `\"\"`"),
        Preset::Value("\"\""),
        "File for records of allocations, ends, refusals and thresholds, as lines of JSON and nothing else. \
         If empty, there are no records, and the holder of a port cannot be found later. Destinations are \
         not recorded (RFC 6888 REQ-12) unless a filter has `log`.",
    ),
    key(
        "back_pressure",
        Kind::Choice(&["refuse", "drop"]),
        Preset::Value("\"refuse\""),
        "What happens if records cannot be written fast enough (a full or slow disk). `refuse`: no new \
         mapping or block without its record; new ones are refused (`log_full`), and established traffic \
         continues. `drop`: traffic continues, records are lost, and a `gap` record counts them.",
    ),
    key(
        "queue",
        Kind::Integer { min: 64, max: 1 << 20, unit: "records per worker" },
        Preset::Value("65536"),
        "Records that may wait for the disk, rounded up to a power of two. Each takes 48 bytes.",
    ),
    key(
        "block_mappings",
        Kind::Boolean,
        Preset::Value("false"),
        "In pools with blocks or slices, also record single mappings. Otherwise the block is the record (RFC \
         6888 REQ-14).",
    ),
    key(
        "refusal_interval",
        timeout(0, 60 * MINUTE, None),
        Preset::Value("\"10 s\""),
        "Interval between records of refusals of one subscriber for the same cause. The first refusal is \
         recorded at once.",
    ),
    key(
        "filter_rate",
        Kind::Rate { min: 0, max: 10_000_000 },
        Preset::Value("\"1000/s\""),
        "Maximum rate of records of filters with `log`, for all workers together. A further record counts \
         the others.",
    ),
    key(
        "rotate_size",
        Kind::Size { min: MIB, max: 1 << 40 },
        Preset::Value("\"256 MiB\""),
        "A file that would exceed this size is renamed with the time of its end.",
    ),
    key(
        "rotate_interval",
        timeout(MINUTE, 366 * DAY, None),
        Preset::Value("\"1 d\""),
        "A file of this age is renamed too.",
    ),
    key(
        "keep_files",
        Kind::Integer { min: 0, max: 1_000_000, unit: "files" },
        Preset::Value("0"),
        "Renamed files to keep; older ones are removed. 0 keeps all.",
    ),
    key(
        "sync",
        Kind::Choice(&["never", "on-rotation", "interval", "always"]),
        Preset::Value("\"interval\""),
        "When to write to the disk (fsync). `always` loses nothing in a failure of the machine, and costs an \
         fsync for each write.",
    ),
    key(
        "sync_interval",
        timeout(10 * MS, 60 * MINUTE, None),
        Preset::Value("\"1 s\""),
        "Interval for `sync = \"interval\"`: a failure of the machine may lose the records of this time.",
    ),
];

const LOG_STORE: &[Key] = &[
    key(
        "path",
        Kind::Text("absolute path of a folder, or `\"\"`"),
        Preset::Value("\"\""),
        "Folder of the store; made if it is missing. One process writes it. If empty, there is no store.",
    ),
    key(
        "retention",
        timeout(0, 36_500 * DAY, None),
        Preset::Value("\"0 s\""),
        "How long the log is kept at most. Segments that begin earlier are deleted, and the deletion is recorded. 0 \
         keeps all.",
    ),
    key(
        "sync_interval",
        timeout(10 * MS, 60 * MINUTE, None),
        Preset::Value("\"1 s\""),
        "Interval of writing to the disk (fsync): a power failure may lose the records of this time. A killed \
         process loses none.",
    ),
    key(
        "segment_size",
        Kind::Integer { min: 1_024, max: 1 << 24, unit: "intervals" },
        Preset::Value("1048576"),
        "Ended mappings or leases that become one segment. Each takes about 100 bytes of memory until then.",
    ),
    key(
        "segment_interval",
        timeout(MINUTE, 366 * DAY, None),
        Preset::Value("\"1 h\""),
        "A new segment begins after this time at the latest. Retention deletes whole segments.",
    ),
    key(
        "signing_key",
        Kind::Text("absolute path of a file, or `\"\"`"),
        Preset::Value("\"\""),
        "File of the key (64 hexadecimal digits) that signs the head of the chain; made for a new store. If \
         empty, it is in the store.",
    ),
];

const LOG_SINK: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"collector\""), "Name in `natrix show status` and messages."),
    key("kind", Kind::Choice(&["ipfix", "syslog", "json"]), Preset::Required("\"ipfix\""), "Format of the records."),
    key(
        "address",
        Kind::Text("`\"udp://HOST:PORT\"`, `\"tcp://HOST:PORT\"` or `\"tls://HOST:PORT\"`; IPv6 addresses in brackets"),
        Preset::Required("\"tcp://192.0.2.9:4739\""),
        "The collector. Datagrams that are lost on the way stay lost.",
    ),
    key(
        "certificates",
        Kind::Text("absolute path of a file in PEM, or `\"\"`"),
        Preset::Value("\"\""),
        "Certificates of the authorities that sign the collector's certificate, for TLS only. One that has expired, \
         or is not for the host of `address`, is refused.",
    ),
    key(
        "certificate",
        Kind::Text("absolute path of a file in PEM, or `\"\"`"),
        Preset::Value("\"\""),
        "Natrix's own certificate, for collectors that ask for one; `key` is needed too.",
    ),
    key(
        "key",
        Kind::Text("absolute path of a file in PEM, or `\"\"`"),
        Preset::Value("\"\""),
        "Private key of `certificate`.",
    ),
    key(
        "domain",
        Kind::Integer { min: 0, max: u32::MAX as u64, unit: "" },
        Preset::Value("1"),
        "IPFIX: observation domain and natInstanceID. Different for each instance with the same address.",
    ),
    key(
        "mtu",
        Kind::Integer { min: 576, max: MTU_MAX, unit: "bytes" },
        Preset::Value("1500"),
        "Largest IP packet on the way to the collector. IPFIX datagrams fit into it.",
    ),
    key(
        "template_interval",
        timeout(S, 60 * MINUTE, None),
        Preset::Value("\"1 min\""),
        "IPFIX over UDP: interval of templates. A collector that was restarted understands records after this time.",
    ),
    key(
        "spool",
        Kind::Size { min: MIB, max: 1 << 50 },
        Preset::Value("\"4 GiB\""),
        "Journal that the store keeps while the collector is away, 18 bytes a record. Beyond it the oldest records \
         are not sent: they are counted, and missing in the sequence numbers.",
    ),
];

/// All tables, in the order of the manual: those of the gateways come after `[alg]`.
pub(crate) fn sections() -> &'static [SectionKeys] {
    static ALL: LazyLock<Vec<SectionKeys>> = LazyLock::new(|| {
        let (before, after) = SECTIONS.split_at(SECTIONS.iter().take_while(|known| known.name != "alg").count() + 1);
        let gateways: Vec<_> = alg::ALGS.iter().map(|alg| gateway(*alg)).collect();
        [before, &gateways, after].concat()
    });
    &ALL
}

/// The keys of a table, if it exists.
pub(crate) fn keys_of(section: &str) -> &'static [Key] {
    sections().iter().find(|known| known.name == section).map_or(&[], |known| known.keys)
}

pub(crate) mod live;
mod rules;
#[cfg(test)]
mod tests;
