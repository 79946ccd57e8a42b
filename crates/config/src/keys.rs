//! Every key of the configuration file, once: the parser takes types, ranges and defaults from here, and
//! `docs/configuration.md` is written from it.

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionKeys {
    /// Its name in the file.
    pub(crate) name: &'static str,
    /// `[[name]]`, any number of times, or `[name]`, once.
    pub(crate) repeats: bool,
    /// What it is for: one paragraph of the manual.
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
    /// What holds without it.
    pub(crate) default: Preset,
    /// What it does, and what a larger or smaller value costs.
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
    /// A string; what may stand in it.
    Text(&'static str),
    /// An array; what its elements are.
    List(&'static str),
    /// Several types; what they are.
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

/// What holds without the key. Values are TOML, read by the same code as the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    /// There is none; the example is shown to who forgot it.
    Required(&'static str),
    /// This value.
    Value(&'static str),
    /// Follows from other keys, as these words say; the example is shown to who wrote something else.
    Derived { rule: &'static str, example: &'static str },
}

impl Preset {
    /// A value that may stand there.
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

/// Largest IP packet an interface may carry: what one slot for fragments and own packets holds.
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
pub(crate) const SECTIONS: &[SectionKeys] = &[
    SectionKeys {
        name: "interface",
        repeats: true,
        about: "A logical interface. One with `driver` is a port of the machine; one with `parent` and `vlan` is an \
                802.1Q sub-interface of the port that the interface named by `parent` is on. At least one faces the \
                inside and one the outside.",
        keys: INTERFACE,
    },
    SectionKeys {
        name: "route",
        repeats: true,
        about: "A static route. Connected prefixes need none. The longest prefix wins; inside and outside have \
                tables of their own.",
        keys: ROUTE,
    },
    SectionKeys {
        name: "pool",
        repeats: true,
        about: "A set of external addresses and how their ports are given out. A subscriber is served by the pool \
                with the longest matching prefix in `subscribers`. At least one pool is needed. An address of a pool \
                may be Natrix's own address on an outside interface, never one of the inside (RFC 3022 §5.1).",
        keys: POOL,
    },
    SectionKeys {
        name: "forward",
        repeats: true,
        about: "A static port forward: external ports that lead to one inside address for ever, whoever sends to them, and that \
                nobody else is ever given. What the inside sends from these internal ports leaves from these external ones. An \
                internal endpoint has one external endpoint (RFC 4787 REQ-1), so none may be forwarded twice. With `targets` they \
                lead to several (load balancing); then each session is a flow of its own, and what a target itself opens from its \
                port to others gets an external port of its pool.",
        keys: rules::FORWARD,
    },
    SectionKeys {
        name: "rule",
        repeats: true,
        about: "What is done with packets from inside that open a mapping or a session. Who asks from outside, by a forward or \
                a mapping, is answered by it, also where a rule redirects what is sent to him or exempts it from translation; \
                `drop` drops answers by UDP, too. The first rule that matches counts, in the \
                order of the file; without one the pool that serves the subscriber translates. How many rules there are costs \
                nothing as long as few of them fit the same packet: those that differ only in port ranges that overlap are looked at \
                one after the other. Other protocols than TCP, UDP and ICMP are dropped unless a rule with `action = \"pass\"` lets them through \
                untranslated, between these prefixes and in both directions.",
        keys: rules::RULE,
    },
    SectionKeys {
        name: "rule_file",
        repeats: true,
        about: "Rules by the thousand: a file with one a line, as a script writes it. They come where this table stands among the \
                `[[rule]]`s, in the order of their lines. The first line names the columns, which are keys of `[[rule]]` in any \
                order, with commas between; each further line has as many fields, and an empty one says what a missing key says. \
                Several `targets` have `;` between. A field may stand in double quotes, also one with a comma. Empty lines, and those that begin \
                with `#`, are left out. At most 4194304 rules, with those of all other files.",
        keys: rules::FILE,
    },
    SectionKeys {
        name: "filter",
        repeats: true,
        about: "Which packets may pass, by their five-tuple as the inside sees it. Stateless: each direction is judged by itself, and \
                by the first filter that matches in the order of the file; without one packets may pass. Packets of sessions that \
                may pass in both directions are not slowed down. Packets to Natrix itself and ICMP errors are not filtered.",
        keys: rules::FILTER,
    },
    SectionKeys {
        name: "filter_file",
        repeats: true,
        about: "Filters by the thousand: as `[[rule_file]]`, with the keys of `[[filter]]`.",
        keys: rules::FILE,
    },
    SectionKeys {
        name: "subscriber",
        repeats: false,
        about: "What each subscriber may use (RFC 6888 REQ-4, REQ-5). What is above a limit is dropped, answered by ICMP as \
                `icmp.no_resources` says, and counted by cause, in all and for the subscriber; nothing that exists is touched.",
        keys: SUBSCRIBER,
    },
    SectionKeys {
        name: "class",
        repeats: true,
        about: "Subscribers with limits of their own. A limit that it does not name is that of `[subscriber]`.",
        keys: CLASS,
    },
    SectionKeys {
        name: "timeouts",
        repeats: false,
        about: "Timers, exact to the microsecond. A value below what an RFC asks for is refused unless \
                `allow_below_rfc` is set.",
        keys: TIMEOUTS,
    },
    SectionKeys {
        name: "port_timeout",
        repeats: true,
        about: "A timer of its own for sessions with certain destination ports. Of several for one port the first holds.",
        keys: PORT_TIMEOUT,
    },
    SectionKeys {
        name: "tables",
        repeats: false,
        about: "How much state there can be, for the whole instance. All memory is taken at start, and nothing is \
                evicted to make room (RFC 6888 REQ-11). With one worker its tables hold exactly these numbers. With \
                more, each has its share and an eighth on top, because subscribers do not spread evenly.",
        keys: TABLES,
    },
    SectionKeys {
        name: "reload",
        repeats: false,
        about: "How `natrix reload` treats what is there when the new configuration has no place for it. The values of the \
                new configuration apply.",
        keys: RELOAD,
    },
    SectionKeys {
        name: "icmp",
        repeats: false,
        about: "ICMP messages that Natrix itself sends. Translation of other hosts' messages is not affected.",
        keys: ICMP,
    },
    SectionKeys {
        name: "workers",
        repeats: false,
        about: "The threads that move packets. One with a CPU of its own polls and takes it whole; one without gives way when nothing comes.",
        keys: WORKERS,
    },
    SectionKeys { name: "dpdk", repeats: false, about: "What DPDK is started with.", keys: DPDK },
    SectionKeys {
        name: "control",
        repeats: false,
        about: "The socket that `natrix show`, `find`, `why`, `trace` and `top` talk to.",
        keys: CONTROL,
    },
    SectionKeys {
        name: "log",
        repeats: false,
        about: "What `natrix run` writes to standard error (`level`), and where it keeps records of who had which external \
                port (all other keys). How much that is and how to read it: [operations.md](operations.md#logs).",
        keys: LOG,
    },
];

const NAME: &str = "1 to 32 letters, digits, `-`, `_` and `.`, starting with a letter or digit; unique";
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
        "Of an inside interface: the set of subscribers it belongs to. Inside addresses of one VRF mean nothing in another, so \
         that they may overlap; the mappings, pairing and limits of a subscriber are those of its VRF. At most 128.",
    ),
    key(
        "driver",
        Kind::Text(
            "PCI address, or one of `net_af_xdp`, `net_af_packet`, `net_tap`, `net_memif`, `net_virtio_user`, \
             `net_ring`, `net_pcap`, `net_null` with an instance number and arguments",
        ),
        Preset::Derived { rule: "none: needed unless `parent` is given", example: "\"net_af_xdp0,iface=eth1\"" },
        "The DPDK device, as `--allow` or `--vdev` takes it. A device serves one port.",
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
        Kind::List("IPv4 address with the length of its connected prefix, 1 to 32, one of them below 32"),
        Preset::Required("[\"10.0.0.1/24\"]"),
        "Natrix's own addresses. Neighbours and next hops are looked for in their prefixes.",
    ),
    key(
        "mtu",
        Kind::Integer { min: 68, max: MTU_MAX, unit: "bytes" },
        Preset::Derived { rule: "1500; of a sub-interface that of its parent", example: "1500" },
        "Largest IP packet sent. Larger ones are fragmented, or answered with ICMP \"too big\" when they must not be. \
         Packet buffers grow with the largest.",
    ),
    key(
        "rx_descriptors",
        Kind::Integer { min: 64, max: 8_192, unit: "packets" },
        Preset::Value("1024"),
        "Receive ring of each queue, a power of two. Larger rings ride out longer bursts and take more buffers and \
         cache.",
    ),
    key(
        "tx_descriptors",
        Kind::Integer { min: 64, max: 8_192, unit: "packets" },
        Preset::Value("1024"),
        "Transmit ring of each queue, a power of two.",
    ),
];

const ROUTE: &[Key] = &[
    key("prefix", Kind::Text(PREFIX), Preset::Required("\"0.0.0.0/0\""), "Destinations it covers."),
    key(
        "via",
        Kind::Text("IPv4 address on a connected prefix"),
        Preset::Required("\"192.0.2.1\""),
        "The router packets are handed to.",
    ),
    key(
        "interface",
        Kind::Text("name of an interface"),
        Preset::Derived { rule: "the one whose connected prefix holds `via`", example: "\"wan\"" },
        "Interface packets leave by. Only a check: `via` already tells.",
    ),
];

const POOL: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"main\""), "Name in commands and counters."),
    key(
        "addresses",
        Kind::List("`\"a\"`, `\"a-b\"` or `\"prefix/length\"`; 65536 addresses in all pools together"),
        Preset::Required("[\"203.0.113.0/28\"]"),
        "External addresses, contiguous or not. Each takes 0.8 MiB. Of a prefix all addresses are used.",
    ),
    key(
        "exclude",
        Kind::List("as `addresses`"),
        Preset::Value("[]"),
        "Taken out of `addresses`. Each element must take something out.",
    ),
    key(
        "ports",
        Kind::Text("`\"low-high\"` within 1-65535"),
        Preset::Value("\"1024-65535\""),
        "External ports given out. Blocks and slices bound ICMP identifiers, too; with single ports these are any from 1 to 65535, \
         as they can hit no service. Internal ports 0-1023 are mapped to external ones below 1024 \
         where the range has some (RFC 4787 REQ-3a).",
    ),
    key(
        "reserved_ports",
        Kind::List("port, or `\"low-high\"`, within 1-65535"),
        Preset::Value("[]"),
        "TCP and UDP ports never given out, for services that live on the address. A port block that has none left is never leased; \
         one that keeps some must keep half of them.",
    ),
    key(
        "subscribers",
        Kind::List(PREFIX),
        Preset::Value("[\"0.0.0.0/0\"]"),
        "Inside addresses served; the longest prefix over all pools wins. Each must be reachable by an inside \
         interface or route.",
    ),
    key(
        "vrfs",
        Kind::List("name of a VRF"),
        Preset::Derived { rule: "all", example: "[\"default\"]" },
        "VRFs whose subscribers the pool serves. Pools of different VRFs may serve the same prefixes; a pool of several \
         shares its addresses among them.",
    ),
    key(
        "draining",
        Kind::Boolean,
        Preset::Value("false"),
        "No new mappings and no new subscribers in this pool; those that are there stay. Its subscribers need another pool: \
         `check` warns where it still serves some, and refuses rules and `penalty_pool` into it.",
    ),
    key(
        "drain",
        Kind::List("as `addresses`"),
        Preset::Value("[]"),
        "The same for these addresses: subscribers get another address of the pool with their next mapping. Each element \
         must have an address of the pool. With all of its addresses the pool drains. `check` warns where what `reserved_ports` \
         of a class guarantees is not there without them.",
    ),
    key(
        "pooling",
        Kind::Choice(&["paired", "arbitrary"]),
        Preset::Value("\"paired\""),
        "`paired`: a subscriber keeps one external address (RFC 6888 REQ-2). `arbitrary` fills pools more evenly, and \
         breaks applications that compare the addresses of their connections.",
    ),
    key(
        "allocation",
        Kind::Choice(&["ports", "blocks", "deterministic"]),
        Preset::Value("\"ports\""),
        "`ports`: each mapping takes any free port, which uses addresses best and logs each mapping. `blocks`: subscribers \
         lease blocks of ports, and only these are logged (RFC 6888 REQ-14). `deterministic`: each subscriber has a slice \
         of one address by a formula, so that nothing but dynamic blocks has to be logged (RFC 7422); `natrix find \
         --config FILE` tells offline whose a port is.",
    ),
    key(
        "block_size",
        Kind::Integer { min: 64, max: 4_096, unit: "ports" },
        Preset::Value("512"),
        "Ports of a block, a power of two; blocks are aligned to it, and `ports` must divide. Larger blocks mean fewer \
         records and fewer subscribers per address.",
    ),
    key(
        "blocks_per_subscriber",
        Kind::Integer { min: 0, max: 1_023, unit: "blocks" },
        Preset::Value("8"),
        "Blocks one subscriber may have at a time. Where all are full, new mappings are refused. In a deterministic pool \
         the dynamic ones besides its slice: 0 for none.",
    ),
    key(
        "block_idle",
        timeout(0, 7 * DAY, None),
        Preset::Value("\"2 min\""),
        "How long a block is kept in which no port is in use. Longer means fewer records, and that a subscriber comes back \
         to the same ports.",
    ),
    key(
        "dynamic_slices",
        Kind::Integer { min: 0, max: 65_535, unit: "slices" },
        Preset::Value("2"),
        "Deterministic pools: so many slices of each address are left for dynamic blocks (RFC 7422: D). Of the ports each \
         subscriber gets one part in subscribers per address plus this number.",
    ),
    key(
        "algorithm",
        Kind::Choice(&["sequential", "spread", "keyed"]),
        Preset::Value("\"sequential\""),
        "Deterministic pools: which subscriber has which slice (RFC 7422 §2). `sequential`: one address after the other (algorithm 0). \
         `spread`: neighbours are on different addresses, so that a busy prefix loads them all. `keyed`: in an order nobody can tell \
         without `algorithm_key`, which is to be kept as long as somebody may ask who had a port.",
    ),
    key(
        "algorithm_key",
        Kind::Text("8 to 64 characters"),
        Preset::Derived { rule: "none", example: "\"winter-sparrow-42\"" },
        "Of `algorithm = \"keyed\"`.",
    ),
    key(
        "selection",
        Kind::Choice(&["least-used", "round-robin", "hash"]),
        Preset::Value("\"least-used\""),
        "Which address a new subscriber is paired with: of two chosen at random the one with clearly fewer ports in \
         use (in blocks: leased), else the one with fewer subscribers, which spreads them evenly; one after the other; or always the same for the same subscriber, as long as the pool's \
         addresses stay the same. One without room is passed over; of those with single ports in all blocks, from before a change, 64 for one packet.",
    ),
    key(
        "filtering",
        Kind::Mixed(
            "`\"endpoint-independent\"`, `\"address-dependent\"`, `\"address-and-port-dependent\"`, or one of these for \
             each of `{ udp, tcp, icmp }`",
        ),
        Preset::Value("\"endpoint-independent\""),
        "Who may send to a mapping: anyone, addresses it has sent to, or address and port pairs it has sent to. \
         Anyone is what peer-to-peer applications need (RFC 4787 REQ-8). A protocol left out of the table keeps the \
         default.",
    ),
    key(
        "parity",
        Kind::Boolean,
        Preset::Value("false"),
        "Even internal ports get even external ones, odd get odd (RFC 4787 REQ-4): old RTP applications want it, and \
         a class of ports is used up sooner.",
    ),
    key(
        "threshold",
        Kind::Integer { min: 1, max: 100, unit: "%" },
        Preset::Derived { rule: "none", example: "90" },
        "An event tells when this share of the ports of a protocol is in use, or leased in blocks.",
    ),
    key(
        "threshold_clear",
        Kind::Integer { min: 0, max: 99, unit: "%" },
        Preset::Derived { rule: "10 less than `threshold`", example: "80" },
        "Another event tells when it has fallen to this share.",
    ),
    key(
        "one_to_one",
        Kind::Boolean,
        Preset::Value("false"),
        "The n-th address belongs to the n-th address of `subscribers`, both ways, with all ports and ICMP; ports stay as they are \
         (RFC 2663 basic NAT). There are as many of both, and the pool serves one VRF. Keys about ports do not apply.",
    ),
    key(
        "reuse_delay",
        timeout(0, DAY, None),
        Preset::Value("\"2 min\""),
        "How long an external port rests when its mapping has ended, before it is given out again (RFC 6888 REQ-8: 2 min), \
         so that what is under way to the old mapping reaches nobody. Resting ports are not free: shorter fills a pool \
         better. How many may rest says `tables.held_ports`. Of ports that flows share each five-tuple rests so, in its record \
         of `tables.flows`, and the port when it carries nothing. A reload that changes it leaves alone the ports of \
         mappings that rest already.",
    ),
    key(
        "reuse_at_once",
        Kind::List("`\"tcp-closed\"`, `\"filtered\"`"),
        Preset::Value("[\"tcp-closed\"]"),
        "Ports that need no rest, as RFC 6888 REQ-8 allows. `tcp-closed`: of TCP, when both sides had closed the last \
         connection and `timeouts.tcp_closing` is over. `filtered`: of protocols whose `filtering` is not \
         endpoint-independent, and what flows share.",
    ),
    key(
        "shared_ports",
        Kind::Integer { min: 1, max: 4_096, unit: "ports" },
        Preset::Value("64"),
        "Endpoint-dependent flows of one worker spread over this many ports of an external address and protocol before two of \
         them share one. More are harder to guess for outsiders (RFC 6056), fewer leave more to others, and to each subscriber of \
         its `ports`. When no port is free any more, workers use each other's.",
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
        "External ports, and query identifiers, one subscriber can have at once; by protocol, one number stands for each of \
         them. The next mapping is refused, what is there stays (RFC 6888 REQ-4). A mapping counts until its port is free \
         again, at most some seconds after it has run out. A port that endpoint-dependent flows share counts for whoever was \
         the first on it, as long as it has a flow there; others share it for nothing, also those who have no port left.",
    ),
    key(
        "sessions",
        Kind::Integer { min: 1, max: 4_000_000_000, unit: "sessions" },
        no_limit("4000"),
        "Sessions of one subscriber at once, of all mappings together (RFC 6888 REQ-5); the first of a mapping counts until the mapping ends. \
         Above it new mappings are refused as well as new remote endpoints of old ones.",
    ),
    key(
        "memory",
        Kind::Size { min: 0, max: 1 << 40 },
        no_limit("\"256 KiB\""),
        "State of one subscriber at once (RFC 6888 REQ-5): 73 bytes for each mapping, 58 for each session beyond its first,
         110 for each endpoint-dependent flow. `check` refuses less than 73.",
    ),
    key(
        "new_mappings",
        Kind::Rate { min: 1, max: 10_000_000 },
        no_limit("\"100/s\""),
        "Mappings one subscriber can make (RFC 6888 REQ-4c): scanners and infected hosts then leave the ports and the CPU to \
         others. The rate is remembered until the burst is whole again, also when all mappings have ended.",
    ),
    key(
        "new_mappings_burst",
        Kind::Integer { min: 1, max: nat::class::BURST_MAX as u64, unit: "mappings" },
        Preset::Derived { rule: "a second's worth of `new_mappings`", example: "200" },
        "After a pause, so many at once: a browser opens dozens.",
    ),
    key(
        "new_sessions",
        Kind::Rate { min: 1, max: 10_000_000 },
        no_limit("\"200/s\""),
        "Further sessions in mappings of one subscriber, opened from either side (RFC 6888 REQ-5b): also what a flood of SYNs \
         from outside to an open port is held to.",
    ),
    key(
        "new_sessions_burst",
        Kind::Integer { min: 1, max: nat::class::BURST_MAX as u64, unit: "sessions" },
        Preset::Derived { rule: "a second's worth of `new_sessions`", example: "400" },
        "After a pause, so many at once.",
    ),
    key(
        "threshold",
        Kind::Integer { min: 1, max: 100, unit: "%" },
        Preset::Derived { rule: "none; in a class as in `[subscriber]`", example: "80" },
        "An event tells when a subscriber uses this share of its `ports` of a protocol or of its `sessions`.",
    ),
    key(
        "threshold_clear",
        Kind::Integer { min: 0, max: 99, unit: "%" },
        Preset::Derived { rule: "10 less than `threshold`", example: "70" },
        "Another event tells when it has fallen to this share.",
    ),
];

const SUBSCRIBER: &[Key] = &[
    key(
        "sessions_per_mapping",
        Kind::Integer { min: 1, max: 65_535, unit: "sessions" },
        Preset::Value("4096"),
        "Remote endpoints one mapping can talk to at once; the next gets no session and its packets are dropped. Keeps one \
         subscriber from filling the table (RFC 6888 REQ-5).",
    ),
    key(
        "hairpin_between_vrfs",
        Kind::Boolean,
        Preset::Value("true"),
        "Subscribers of different VRFs reach each other's external endpoints (RFC 4787 REQ-9), as they would over the \
         Internet. Without, such packets are dropped as `hairpin_refused`.",
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
        Kind::List(PREFIX),
        Preset::Required("[\"100.64.0.0/16\"]"),
        "Inside addresses that are in it; the longest prefix over all classes wins.",
    ),
    key(
        "vrfs",
        Kind::List("name of a VRF"),
        Preset::Derived { rule: "all", example: "[\"default\"]" },
        "VRFs it is about.",
    ),
    key(
        "reserved_ports",
        Kind::Mixed("number 0 to 10000000, or one for some of `{ udp, tcp, icmp }`"),
        Preset::Derived { rule: "none", example: "100" },
        "External ports each of these subscribers can always have, however full its pool is: they are set aside for it, used or \
         not, so that name small prefixes. Needs a pool with single ports (from 1024 on) and paired pooling; `check` refuses \
         more than there is on addresses that do not drain, without the ports of forwards, and more than `ports`, `sessions` or `memory` \
         of the class allow, with a session and 73 bytes for each port of any protocol, and more than `tables.mappings` has room \
         for. Ports that others have when a reload sets or raises it stay theirs; \
         others get none until what is missing has come free, and `natrix plan` tells how much that is. What a rule sends to another pool is \
         guaranteed nothing there. Ports that rest count among the others'; where none of those is left a guaranteed port is free at \
         once. Other modes need no such key: in a deterministic pool each slice is guaranteed, and `check` compares (after a reload from port blocks each is whole when the blocks of others in it have gone back, of which `natrix plan` warns); in a pool \
         with blocks who has a block has all of its ports.",
    ),
    key(
        "penalty_pool",
        Kind::Text("name of a pool"),
        Preset::Derived { rule: "none", example: "\"penalty\"" },
        "Offenders get new mappings from this pool instead of their own: subscribers with `penalty_refusals` packets \
         refused because of their limits. What they have stays; with their next mapping they are paired with an address \
         of this pool, so that scanners and infected hosts harm the good name, and use up the ports, of none but its \
         addresses. The pool may have `subscribers = []`.",
    ),
    key(
        "penalty_refusals",
        Kind::Integer { min: 1, max: 1_000_000_000, unit: "packets" },
        Preset::Value("1000"),
        "So many packets from inside refused within `penalty_window`, because of any limit of the subscriber, make an offender. \
         What others send to it does not count, and neither does a pool that has run out.",
    ),
    key(
        "penalty_window",
        timeout(S, DAY, None),
        Preset::Value("\"1 min\""),
        "The time within which they are counted, from the first one on, whatever the subscriber has meanwhile.",
    ),
    key(
        "penalty_release",
        timeout(S, 30 * DAY, None),
        Preset::Value("\"10 min\""),
        "Over after this time without such a refusal: the next mapping comes from the subscriber's own pool again.",
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
        "`udp`; or `tcp`, whose established sessions it is about.",
    ),
    key(
        "ports",
        Kind::Text("port, or `\"low-high\"`, within 1-65535"),
        Preset::Required("\"53\""),
        "Destination ports, as the inside sees them.",
    ),
    key(
        "idle",
        timeout(100 * MS, 30 * DAY, None),
        Preset::Required("\"10 s\""),
        "Idle time of sessions with these ports, answered or not. Of UDP it may be below 2 min for ports up to 1023 only (RFC \
         4787 §4.3 REQ-5a): a query to a DNS or NTP server is over with its answer, and its port is free at once for the next.",
    ),
];

const TIMEOUTS: &[Key] = &[
    key(
        "udp",
        timeout(100 * MS, 7 * DAY, bound("RFC 4787 §4.3 REQ-5", 2 * MINUTE)),
        Preset::Value("\"5 min\""),
        "Idle UDP mapping and session. Shorter frees ports sooner and breaks games and calls in a lull.",
    ),
    key(
        "udp_unanswered",
        timeout(100 * MS, 7 * DAY, bound("RFC 4787 §4.3 REQ-5", 2 * MINUTE)),
        Preset::Derived { rule: "as long as `udp`", example: "\"2 min\"" },
        "Idle UDP session to which nothing has come back yet. Shorter than `udp`: what nobody answers, scans above all, holds \
         its port for less time. Packets of such sessions take a longer way through Natrix until the first answer.",
    ),
    key(
        "tcp_opening",
        timeout(100 * MS, 7 * DAY, None),
        Preset::Value("\"4 min\""),
        "TCP session whose handshake is not complete. May be set lower (RFC 7857 §2.1): scans and SYN floods then hold \
         ports for less time.",
    ),
    key(
        "tcp_established",
        timeout(100 * MS, 30 * DAY, bound("RFC 5382 §5 REQ-5", 124 * MINUTE)),
        Preset::Value("\"2 h 4 min\""),
        "Idle TCP session. Shorter breaks connections that send nothing but keep-alives every two hours.",
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
        "How long an unsolicited inbound SYN is held for a simultaneous open before it is answered.",
    ),
    key(
        "fragment",
        timeout(100 * MS, MINUTE, bound("RFC 6146 §3.4", 2 * S)),
        Preset::Value("\"2 s\""),
        "How long an incomplete fragmented datagram is kept.",
    ),
    key(
        "adapt_above",
        Kind::Integer { min: 1, max: 99, unit: "%" },
        Preset::Derived { rule: "never", example: "80" },
        "From this share of the fullest pool's ports of a protocol on, idle times of UDP, ICMP, opening and established TCP are \
         shortened, evenly down to the RFCs' bounds when no port is left. Those below the bounds, and those of `[[port_timeout]]`, \
         stay. A session gets the time in force with each packet; one that is silent already ends when that time has passed since \
         timers became shorter, if it would last for longer. \
         `natrix show status` tells what is in force.",
    ),
    key(
        "inbound_refresh",
        Kind::Boolean,
        Preset::Value("false"),
        "Inbound UDP and ICMP packets refresh the timer too (RFC 4787 §4.3 REQ-6). An outsider can then keep a mapping \
         alive. TCP always does.",
    ),
    key(
        "allow_below_rfc",
        Kind::Boolean,
        Preset::Value("false"),
        "Accepts timers below the RFCs' bounds: for tests, and for who knows what breaks.",
    ),
];

const TABLES: &[Key] = &[
    key(
        "mappings",
        Kind::Integer { min: 1, max: 4_000_000_000, unit: "mappings" },
        Preset::Value("1000000"),
        "73 bytes each. When all are in use, new mappings are refused.",
    ),
    key(
        "extra_sessions",
        Kind::Integer { min: 1, max: 4_000_000_000, unit: "sessions" },
        Preset::Value("500000"),
        "Sessions beyond the first of their mapping: 58 bytes each. When all are in use, further sessions are refused.",
    ),
    key(
        "flows",
        Kind::Integer { min: 0, max: 4_000_000_000, unit: "flows" },
        Preset::Value("0"),
        "Endpoint-dependent flows, which share external ports: 110 bytes each, with several workers 135. Rules that make flows \
         need some. When all are in use, further flows are refused.",
    ),
    key(
        "subscribers",
        Kind::Integer { min: 1, max: 100_000_000, unit: "subscribers" },
        Preset::Value("100000"),
        "Subscribers with a mapping at the same time: 181 bytes each. Those above are refused. Of one whose mappings have ended \
         the record remembers rates and offences while they count, as long as nobody else needs it: the one that has waited \
         longest goes first.",
    ),
    key(
        "fragmented_datagrams",
        Kind::Integer { min: 1, max: 1_000_000, unit: "datagrams" },
        Preset::Value("4096"),
        "Fragmented datagrams tracked at once. Those above are dropped.",
    ),
    key(
        "fragments_held",
        Kind::Integer { min: 1, max: 1_000_000, unit: "fragments" },
        Preset::Value("1024"),
        "Fragments held until the first one of their datagram arrives: 2 to 9 KiB each, by MTU.",
    ),
    key(
        "unsolicited_syns",
        Kind::Integer { min: 1, max: 1_000_000, unit: "segments" },
        Preset::Value("4096"),
        "Unsolicited SYNs held at once. Those above are dropped without an answer.",
    ),
    key(
        "held_ports",
        Kind::Integer { min: 0, max: 4_000_000_000, unit: "ports" },
        Preset::Derived {
            rule: "a sixteenth of `tables.mappings`, at least 65536 and at most 500000",
            example: "500000",
        },
        "External ports that rest at once (`pool.reuse_delay`): 8 bytes each. When more would, those that have rested longest \
         are given out early and counted. 0: none rests.",
    ),
    key(
        "external_addresses",
        Kind::Integer { min: 1, max: POOL_ADDRESSES_MAX, unit: "addresses" },
        Preset::Derived { rule: "twice those of the pools, and 16 more than these at least", example: "64" },
        "External addresses there can be while it runs: those of the pools, those a reload adds, and removed ones that still \
         drain. 0.85 MiB each; what is not used is not touched, but counts where hugepages are taken.",
    ),
];

const RELOAD: &[Key] = &[
    key(
        "removed",
        Kind::Choice(&["drain", "end"]),
        Preset::Value("\"drain\""),
        "What becomes of mappings on external addresses that are removed, and on forwards that are removed or moved: they stay as \
         long as they are used, but admit nobody new by a forward that is gone; or they end within some seconds.",
    ),
    key(
        "drain_time",
        timeout(S, 30 * DAY, None),
        Preset::Derived { rule: "none: as long as they are used", example: "\"1 h\"" },
        "How long mappings of a draining or removed address may stay, and those on ports that a change reserved, took out of the \
         range or gave to a forward. Those that are left then end, whoever uses them.",
    ),
];

const ICMP: &[Key] = &[
    key(
        "errors_to_inside",
        Kind::Boolean,
        Preset::Value("true"),
        "Send errors (time exceeded, too big, unreachable) to subscribers. Without, traceroute and path MTU discovery \
         fail at Natrix.",
    ),
    key(
        "errors_to_outside",
        Kind::Boolean,
        Preset::Value("true"),
        "Send errors to the Internet. Without, path MTU discovery towards subscribers fails.",
    ),
    key(
        "error_rate",
        Kind::Rate { min: 1, max: 10_000_000 },
        Preset::Value("\"1000/s\""),
        "Errors sent in all (RFC 1812 §4.3.2.8), shared evenly by the workers. The rest is counted.",
    ),
    key(
        "error_rate_per_destination",
        Kind::Rate { min: 1, max: 10_000_000 },
        Preset::Value("\"20/s\""),
        "Errors one worker sends to one address. One traceroute wants about 10 a second.",
    ),
    key(
        "no_resources",
        Kind::Choice(&["host-unreachable", "administratively-prohibited", "silent"]),
        Preset::Value("\"host-unreachable\""),
        "Answer when no mapping can be made: type 3 code 1 (RFC 6888 REQ-11b), which programs take as passing; code 13 \
         (RFC 5508 REQ-8); or none.",
    ),
    key("answer_echo", Kind::Boolean, Preset::Value("true"), "Answer pings to Natrix's own addresses."),
    key(
        "answer_unsolicited_syn",
        Kind::Boolean,
        Preset::Value("true"),
        "Answer an unsolicited inbound SYN with port unreachable after `timeouts.unsolicited_syn` (RFC 5382 §4.3 \
         REQ-4). Without, it is dropped silently.",
    ),
];

const WORKERS: &[Key] = &[
    key(
        "count",
        Kind::Integer { min: 1, max: 64, unit: "threads" },
        Preset::Derived { rule: "as many as `cpus` names, else 1", example: "2" },
        "Not more than the machine has CPUs: two workers on one CPU wait for each other.",
    ),
    key(
        "cpus",
        Kind::List("CPU number, each once"),
        Preset::Value("[]"),
        "CPU of each worker, in order. Empty: the kernel places them, and may move them.",
    ),
];

const DPDK: &[Key] = &[
    key(
        "hugepages",
        Kind::Choice(&["auto", "off", "required"]),
        Preset::Value("\"auto\""),
        "`auto` takes hugepages where enough are free, else ordinary pages. `off` for demos and tests. PCI devices want \
         them.",
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
        "Packet buffers shared by all ports and workers: 2.4 KiB each with an MTU of 1500. With too few, receive rings \
         stay empty and packets are lost.",
    ),
];

const CONTROL: &[Key] = &[
    key(
        "socket",
        Kind::Text("absolute path of at most 107 bytes"),
        Preset::Value("\"/run/natrix/control.sock\""),
        "Where the socket is.",
    ),
    key(
        "mode",
        Kind::Text("octal permissions, `\"0600\"` to `\"0777\"`, readable and writable for the owner"),
        Preset::Value("\"0660\""),
        "Who may connect. Whoever may can see all subscribers.",
    ),
];

const LOG: &[Key] = &[
    key(
        "level",
        Kind::Choice(&["error", "warn", "info", "debug"]),
        Preset::Value("\"info\""),
        "The least severe level written. Packets are never logged.",
    ),
    key(
        "events",
        Kind::Text("absolute path of a file, `\"-\"` for standard output, or `\"\"`"),
        Preset::Value("\"\""),
        "Where records of allocations, ends, refusals and thresholds go, as lines of JSON. Nothing else may be in the file. Empty: \
         there are none, and nobody can tell later who had a port. Whom a subscriber talked to is in no record (RFC 6888 REQ-12), \
         unless a filter has `log`.",
    ),
    key(
        "back_pressure",
        Kind::Choice(&["refuse", "drop"]),
        Preset::Value("\"refuse\""),
        "What happens when records can not be written as fast as they come (a full or slow disk). `refuse`: no new mapping or \
         block without its record, new ones are refused (`log_full`) and established traffic goes on. `drop`: traffic goes \
         on, records are lost, and a record tells how many.",
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
        "In pools that give out blocks of ports or whole ranges, record single mappings, too. Without it the block is the \
         record (RFC 6888 REQ-14).",
    ),
    key(
        "refusal_interval",
        timeout(0, 60 * MINUTE, None),
        Preset::Value("\"10 s\""),
        "Refusals of one subscriber for one cause are told at once, and then together once in so long.",
    ),
    key(
        "filter_rate",
        Kind::Rate { min: 0, max: 10_000_000 },
        Preset::Value("\"1000/s\""),
        "Decisions of filters with `log`, of all workers together; of more than that a record tells only how many they were.",
    ),
    key(
        "rotate_size",
        Kind::Size { min: MIB, max: 1 << 40 },
        Preset::Value("\"256 MiB\""),
        "A file that would grow beyond this is put aside under a name with the time.",
    ),
    key(
        "rotate_interval",
        timeout(MINUTE, 366 * DAY, None),
        Preset::Value("\"1 d\""),
        "A file that was begun so long ago is put aside, too.",
    ),
    key(
        "keep_files",
        Kind::Integer { min: 0, max: 1_000_000, unit: "files" },
        Preset::Value("0"),
        "Files put aside that are kept; the oldest beyond them are removed. 0 keeps all.",
    ),
    key(
        "sync",
        Kind::Choice(&["never", "on-rotation", "interval", "always"]),
        Preset::Value("\"interval\""),
        "When what was written has to be on the disk (fsync). `always` loses nothing when the machine fails, and costs an \
         fsync for each piece that is written.",
    ),
    key(
        "sync_interval",
        timeout(10 * MS, 60 * MINUTE, None),
        Preset::Value("\"1 s\""),
        "How often, with `sync = \"interval\"`: records of so long a time may be lost when the machine fails.",
    ),
];

/// The keys of a table; none when there is no such table.
pub(crate) fn keys_of(section: &str) -> &'static [Key] {
    SECTIONS.iter().find(|known| known.name == section).map_or(&[], |known| known.keys)
}

pub(crate) mod live;
mod rules;
#[cfg(test)]
mod tests;
