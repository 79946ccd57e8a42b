//! Keys of timeouts, tables, reloads and ICMP.

use super::DAY;
use super::Key;
use super::Kind;
use super::MINUTE;
use super::MS;
use super::POOL_ADDRESSES_MAX;
use super::Preset;
use super::S;
use super::bound;
use super::key;
use super::timeout;

pub(super) const PORT_TIMEOUT: &[Key] = &[
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

pub(super) const TIMEOUTS: &[Key] = &[
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

pub(super) const TABLES: &[Key] = &[
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
        "IPv6 hosts and their prefixes, of NAT64 and softwires, with mappings at a time: 45 bytes each. Reserved only \
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
            rule: "a sixteenth of `tables.mappings`, at least 65,536 and at most 500,000",
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
         still drain. 0.6 MiB each, and 0.25 MiB of ordinary memory once their query identifiers are used. Unused ones \
         take no ordinary memory, but count for hugepages.",
    ),
];

pub(super) const RELOAD: &[Key] = &[
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

pub(super) const ICMP: &[Key] = &[
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
    key(
        "answer_echo",
        Kind::Boolean,
        Preset::Value("true"),
        "Answer pings to Natrix's own addresses, but not those that come in fragments.",
    ),
    key(
        "answer_unsolicited_syn",
        Kind::Boolean,
        Preset::Value("true"),
        "Answer an unsolicited inbound SYN with port unreachable after `timeouts.unsolicited_syn` (RFC 5382 \
         §4.3 REQ-4). If false, it is dropped silently.",
    ),
];
