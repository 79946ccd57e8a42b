//! Keys of subscribers: `[limits]`, `[[subscriber]]` and `[[class]]`.

use super::DAY;
use super::HOSTS;
use super::Key;
use super::Kind;
use super::NAME;
use super::Preset;
use super::S;
use super::key;
use super::timeout;

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

pub(super) const SUBSCRIBER: &[Key] = &[
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
        "Remote endpoints of one mapping that have sessions at a time, so that a single subscriber cannot fill the \
         table (RFC 6888 REQ-5). UDP packets of further ones pass without a session, unless the pool filters; TCP \
         and ICMP of further ones are dropped.",
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

pub(super) const CLASS: &[Key] = &[
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
