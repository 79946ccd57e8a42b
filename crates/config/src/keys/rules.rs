//! Keys of `[[forward]]`, `[[rule]]`, `[[filter]]` and the files of rules.

use super::HOSTS;
use super::Key;
use super::Kind;
use super::PREFIX;
use super::Preset;
use super::key;

pub(super) const FORWARD: &[Key] = &[
    key(
        "protocol",
        Kind::Choice(&["tcp", "udp", "tcp+udp"]),
        Preset::Required("\"tcp\""),
        "Transport of the \
                                                                                            ports.",
    ),
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
        "External ports, inside or outside the range of the pool.",
    ),
    key(
        "inside",
        Kind::Text("IPv4 or IPv6 address"),
        Preset::Derived { rule: "`targets` instead", example: "\"10.0.0.80\"" },
        "The inside address, a subscriber of a pool. An IPv6 host sees remote addresses in the prefix of the \
         first `[[nat64]]` of the VRF.",
    ),
    key(
        "b4",
        Kind::Text("IPv6 address"),
        Preset::Derived { rule: "none", example: "\"2001:db8:c:200::1\"" },
        "The B4 that `inside` is behind: the forward leads into its softwire. Then `inside` is an address in \
         `inner` of a `[[softwire]]` of the VRF.",
    ),
    key(
        "inside_port",
        Kind::Integer { min: 1, max: 65_535, unit: "" },
        Preset::Derived { rule: "the first of `ports`", example: "8443" },
        "Internal port of the first external port; the others follow.",
    ),
    key(
        "targets",
        Kind::List("`\"address\"`, `\"address:port\"`, each with ` weight n` or without"),
        Preset::Derived { rule: "`inside` instead", example: "[\"10.0.0.80:8080 weight 2\"]" },
        "Several inside endpoints instead of `inside`: each remote endpoint is assigned to one of them, by \
         weight. The port belongs to the first external port, and the others follow; without it, ports are \
         not changed. A session stays with its target even if the list changes: see \
         [operations](operations.md#several-servers-behind-one-endpoint). Needs `tables.flows`.",
    ),
    key(
        "sticky",
        Kind::Boolean,
        Preset::Value("false"),
        "For `targets`: all sessions of a remote address go to the same target, whatever their ports.",
    ),
    key("vrf", Kind::Text("name of a VRF"), Preset::Value("\"default\""), "VRF of the inside address."),
    key(
        "filtering",
        Kind::Choice(&["anyone", "as-pool"]),
        Preset::Value("\"anyone\""),
        "Remotes that may send to it: `anyone`, or those that the `filtering` of the pool permits.",
    ),
];

pub(super) const RULE: &[Key] = &[
    key(
        "action",
        Kind::Choice(&["pass", "translate", "no-translation", "redirect", "drop"]),
        Preset::Required("\"translate\""),
        "`translate`: translate the source, by `pool`. `no-translation`: packets pass unchanged and without \
         state in both directions, including unsolicited ones (RFC 6888 REQ-6); outside routers must have a \
         route back. `redirect`: send packets to `targets` or `to` instead, and translate the source too. \
         `drop`: drop as `dropped_by_rule`. `pass`: pass another protocol untranslated; needs `protocol` and \
         `inside`.",
    ),
    key("protocol", Kind::Mixed(PROTOCOL), Preset::Derived { rule: "any", example: "\"tcp\"" }, RULE_PROTOCOL),
    key(
        "inside",
        Kind::Text(HOSTS),
        Preset::Derived { rule: "any", example: "\"192.0.2.0/24\"" },
        "Inside addresses. An IPv6 prefix means hosts of NAT64 and all hosts behind B4s with such addresses; any, and \
         0.0.0.0/0, mean them too. For `pass` and `no-translation`: packets leave with these source addresses, so an \
         address may be in only one of the VRFs that such rules match; otherwise answers would be ambiguous.",
    ),
    INSIDE_PORTS,
    key("outside", Kind::Text(PREFIX), Preset::Value("\"0.0.0.0/0\""), "Outside addresses."),
    OUTSIDE_PORTS,
    MATCH_VRF,
    key(
        "pool",
        Kind::Text("the name of a pool"),
        Preset::Derived { rule: "the pool that serves the subscriber", example: "\"default\"" },
        "For `translate`: the pool of new mappings. An existing mapping is used whatever its pool, because \
         it is the same for all destinations (RFC 4787 REQ-1). A paired subscriber has one address in each \
         pool. The pool must serve the VRF of the rule, or all VRFs whose subscribers it may match.",
    ),
    key(
        "mapping",
        Kind::Choice(&["endpoint-independent", "endpoint-dependent"]),
        Preset::Value("\"endpoint-independent\""),
        "For `translate`: with `endpoint-dependent`, one external port serves many remote endpoints. This \
         suits clients of web and DNS servers, and breaks applications that must be reachable.",
    ),
    key(
        "targets",
        Kind::List("`\"address\"`, `\"address:port\"`, each with ` weight n` or without"),
        Preset::Derived { rule: "none", example: "[\"198.51.100.53:53 weight 2\"]" },
        "For `redirect`: the outside hosts that get the packets, by weight; all packets of one subscriber go \
         to the same host. A port needs `protocol` TCP or UDP.",
    ),
    key(
        "to",
        Kind::Text(PREFIX),
        Preset::Derived { rule: "none", example: "\"198.51.100.0/24\"" },
        "For `redirect`: the same host of this prefix gets the packets. The prefix is as long as `outside`. \
         For two networks with the same addresses (twice NAT).",
    ),
];

pub(super) const FILTER: &[Key] = &[
    key(
        "name",
        Kind::Text(super::NAME_PATTERN),
        Preset::Derived { rule: "none", example: "\"smtp\"" },
        "Name in the event log; several filters may have the same.",
    ),
    key(
        "log",
        Kind::Boolean,
        Preset::Value("false"),
        "Record its decisions in the event log (`log.events`): each denied packet and each permitted session \
         once; each permitted packet that has no session (unsolicited UDP to an open port, untranslated \
         packets). The record has five-tuple, verdict, the number of the filter as in `show rules`, and its \
         name; at most `log.filter_rate` a second. RFC 6888 REQ-12 leaves it to the operator to record \
         destinations, and this key is the only way to do so.",
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
        "Packets from inside, from outside, or both.",
    ),
    key("protocol", Kind::Mixed(PROTOCOL), Preset::Derived { rule: "any", example: "\"tcp\"" }, "IP protocol."),
    key(
        "inside",
        Kind::Text(HOSTS),
        Preset::Value("\"0.0.0.0/0\""),
        "Inside addresses before translation: source of packets from inside, destination of packets from \
         outside. An IPv6 prefix as in `[[rule]]`.",
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
    "The file. It is read at start and with each reload.",
)];

/// What may stand for an IP protocol.
const PROTOCOL: &str = "IP protocol number 0 to 255, or `tcp`, `udp`, `icmp`, `igmp`, `ipip`, `egp`, `igp`, `dccp`, `ipv6`, `rsvp`, `gre`, \
                        `esp`, `ah`, `eigrp`, `ospf`, `etherip`, `pim`, `vrrp`, `l2tp`, `sctp`, `udplite`";
const RULE_PROTOCOL: &str = "IP protocol. For `pass`, any but TCP, UDP and ICMP; otherwise one of these \
                             three.";
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
