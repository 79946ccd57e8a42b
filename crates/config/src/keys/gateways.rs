//! Keys of application-level gateways and of port control.

use super::DAY;
use super::Key;
use super::Kind;
use super::MINUTE;
use super::Preset;
use super::S;
use super::SectionKeys;
use super::key;
use super::timeout;

pub(super) const ALG: &[Key] = &[key(
    "sessions",
    Kind::Integer { min: 256, max: nat::settings::CONTROL_SESSIONS_CEILING as u64, unit: "sessions per worker" },
    Preset::Value("65536"),
    "Control sessions that all gateways of a worker read at a time, such as one for each phone that is \
     registered. One subscriber may have an eighth. Further ones pass unread, and count as `table_full` in `show \
     algs`. They take about 460 bytes each when they are first used, and up to 8 MiB for all.",
)];

/// The table of a gateway. What it takes from there is written once, and stays.
pub(super) fn gateway(alg: &'static dyn alg::Alg) -> SectionKeys {
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

pub(super) const PORT_CONTROL: &[Key] = &[
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
