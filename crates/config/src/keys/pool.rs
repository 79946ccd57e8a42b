//! Keys of `[[pool]]`.

use super::DAY;
use super::Key;
use super::Kind;
use super::NAME;
use super::PREFIX;
use super::Preset;
use super::key;
use super::timeout;

pub(super) const POOL: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"main\""), "Name in commands and counters."),
    key(
        "addresses",
        Kind::List("`\"a\"`, `\"a-b\"` or `\"prefix/length\"`; 65,536 addresses in all pools together"),
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
         or route must reach each, unless routes of the kernel may (`[routing] kernel`).",
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
