//! Keys of `[[forward]]`, `[[rule]]`, `[[filter]]` and the files of rules.

use super::Key;
use super::Kind;
use super::PREFIX;
use super::Preset;
use super::key;

pub(super) const FORWARD: &[Key] = &[
    key("protocol", Kind::Choice(&["tcp", "udp", "tcp+udp"]), Preset::Required("\"tcp\""), "What is forwarded."),
    key(
        "external",
        Kind::Text("IPv4 address of a pool"),
        Preset::Required("\"203.0.113.1\""),
        "The external address. Its pool must not be one-to-one.",
    ),
    key(
        "ports",
        Kind::Mixed("port, or `\"low-high\"`, within 1-65535"),
        Preset::Required("443"),
        "External ports, inside the pool's range or not.",
    ),
    key(
        "inside",
        Kind::Text("IPv4 address"),
        Preset::Derived { rule: "`targets` instead", example: "\"10.0.0.80\"" },
        "Where they lead: a subscriber of some pool.",
    ),
    key(
        "inside_port",
        Kind::Integer { min: 1, max: 65_535, unit: "" },
        Preset::Derived { rule: "the first of `ports`", example: "8443" },
        "Internal port of the first external one; the others follow.",
    ),
    key(
        "targets",
        Kind::List("`\"address\"`, `\"address:port\"`, each with ` weight n` or without"),
        Preset::Derived { rule: "`inside` instead", example: "[\"10.0.0.80:8080 weight 2\"]" },
        "Several subscribers to lead to, instead of `inside`: each remote endpoint to one of them, by weight. A port is that of the \
         first external one, and the others follow; without one it is the external port itself. A session stays with its target \
         whatever becomes of the list: see [operations](operations.md#several-servers-behind-one-endpoint). Needs `tables.flows`.",
    ),
    key(
        "sticky",
        Kind::Boolean,
        Preset::Value("false"),
        "Of `targets`: all sessions of a remote address go to the same target, whatever their ports.",
    ),
    key("vrf", Kind::Text("name of a VRF"), Preset::Value("\"default\""), "VRF of the inside address."),
    key(
        "filtering",
        Kind::Choice(&["anyone", "as-pool"]),
        Preset::Value("\"anyone\""),
        "Who may send to it: `anyone`, or whom the `filtering` of the pool lets in.",
    ),
];

pub(super) const RULE: &[Key] = &[
    key(
        "action",
        Kind::Choice(&["pass", "translate", "no-translation", "redirect", "drop"]),
        Preset::Required("\"translate\""),
        "`translate`: the source is translated, by `pool`. `no-translation`: packets leave and return as they are, without state, \
         also those that nobody inside asked for (RFC 6888 REQ-6); routers outside must know the way back. `redirect`: what is sent there goes to `targets` or `to` instead, source translated \
         too. `drop`: dropped as \
         `dropped_by_rule`. `pass`: another protocol is let through untranslated; needs `protocol` and `inside`.",
    ),
    key("protocol", Kind::Mixed(PROTOCOL), Preset::Derived { rule: "any", example: "\"tcp\"" }, RULE_PROTOCOL),
    key(
        "inside",
        Kind::Text(PREFIX),
        Preset::Derived { rule: "any", example: "\"192.0.2.0/24\"" },
        "Inside addresses. Of `pass` and `no-translation`: packets leave with these very source addresses; none of them may be \
         inside in more than one of the VRFs that are let through so, as an answer could be for either.",
    ),
    INSIDE_PORTS,
    key("outside", Kind::Text(PREFIX), Preset::Value("\"0.0.0.0/0\""), "Outside addresses."),
    OUTSIDE_PORTS,
    MATCH_VRF,
    key(
        "pool",
        Kind::Text("the name of a pool"),
        Preset::Derived { rule: "the pool that serves the subscriber", example: "\"default\"" },
        "Of `translate`: the pool new mappings get their ports from. A mapping that exists is used whatever its pool: it is the \
         same for all destinations (RFC 4787 REQ-1). Who is paired has one address in each pool. \
         It must serve the rule's VRF, or each one whose subscribers it may match.",
    ),
    key(
        "mapping",
        Kind::Choice(&["endpoint-independent", "endpoint-dependent"]),
        Preset::Value("\"endpoint-independent\""),
        "Of `translate`: with `endpoint-dependent` one external port serves many remote endpoints, which suits clients of web and DNS \
         servers and breaks whoever wants to be reached.",
    ),
    key(
        "targets",
        Kind::List("`\"address\"`, `\"address:port\"`, each with ` weight n` or without"),
        Preset::Derived { rule: "none", example: "[\"198.51.100.53:53 weight 2\"]" },
        "Of `redirect`: the hosts outside that get the packets, by weight; all packets of one subscriber go to the same. A port needs \
         `protocol` TCP or UDP.",
    ),
    key(
        "to",
        Kind::Text(PREFIX),
        Preset::Derived { rule: "none", example: "\"198.51.100.0/24\"" },
        "Of `redirect`: the same host of this prefix, which is as long as `outside`, gets the packets: for two networks with the same \
         addresses (twice NAT).",
    ),
];

pub(super) const FILTER: &[Key] = &[
    key(
        "name",
        Kind::Text(super::NAME),
        Preset::Derived { rule: "none", example: "\"smtp\"" },
        "Name in the event log. Two may have the same.",
    ),
    key(
        "log",
        Kind::Boolean,
        Preset::Value("false"),
        "What it decides is told in the event log (`log.events`): each packet it denies, and each session that it lets be opened, \
         once; of permitted packets that get no session (unsolicited UDP to an open port, packets that are not translated) each. \
         Five-tuple, verdict and the filter's number, as `show rules` has it, and name; at most `log.filter_rate`. This is the one way to have \
         destinations in the log: RFC 6888 REQ-12 asks for a decision of the operator, and this is it.",
    ),
    key(
        "action",
        Kind::Choice(&["permit", "deny"]),
        Preset::Required("\"deny\""),
        "`permit`: packets pass. `deny`: they are dropped as `denied_by_filter`.",
    ),
    key(
        "direction",
        Kind::Choice(&["out", "in", "both"]),
        Preset::Value("\"both\""),
        "Which packets it is about: from inside, from outside, or both.",
    ),
    key("protocol", Kind::Mixed(PROTOCOL), Preset::Derived { rule: "any", example: "\"tcp\"" }, "IP protocol."),
    key(
        "inside",
        Kind::Text(PREFIX),
        Preset::Value("\"0.0.0.0/0\""),
        "Inside addresses, before translation: source of what leaves, destination of what enters.",
    ),
    INSIDE_PORTS,
    key("outside", Kind::Text(PREFIX), Preset::Value("\"0.0.0.0/0\""), "Outside addresses."),
    OUTSIDE_PORTS,
    MATCH_VRF,
];

/// Of `[[rule_file]]` and `[[filter_file]]`.
pub(super) const FILE: &[Key] = &[key(
    "path",
    Kind::Text("a path; a relative one starts at the folder of this file"),
    Preset::Required("\"rules.csv\""),
    "The file. Read at start, and again with each reload.",
)];

/// What may stand for an IP protocol.
const PROTOCOL: &str = "IP protocol number 0 to 255, or `tcp`, `udp`, `icmp`, `igmp`, `ipip`, `egp`, `igp`, `dccp`, `ipv6`, `rsvp`, `gre`, \
                        `esp`, `ah`, `eigrp`, `ospf`, `etherip`, `pim`, `vrrp`, `l2tp`, `sctp`, `udplite`";
const RULE_PROTOCOL: &str = "IP protocol. Of `pass` never TCP, UDP or ICMP; of all others one of these three.";
const INSIDE_PORTS: Key = key(
    "inside_ports",
    Kind::Mixed("a port or a range: `443` or `\"1024-65535\"`"),
    Preset::Derived { rule: "any", example: "\"1024-65535\"" },
    "Inside ports. Needs `protocol` TCP or UDP.",
);
const OUTSIDE_PORTS: Key = key(
    "outside_ports",
    Kind::Mixed("a port or a range: `443` or `\"1024-65535\"`"),
    Preset::Derived { rule: "any", example: "443" },
    "Outside ports. Needs `protocol` TCP or UDP.",
);
const MATCH_VRF: Key = key(
    "vrf",
    Kind::Text("the name of a VRF"),
    Preset::Derived { rule: "any", example: "\"red\"" },
    "VRF of the inside interface.",
);
