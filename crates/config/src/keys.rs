//! Every key of the configuration file, once: the parser takes types, ranges and defaults from
//! here, and `docs/configuration.md` is written from it.

mod gateways;
pub(crate) mod live;
mod log;
mod machine;
mod network;
mod pool;
mod rules;
mod state;
mod subscriber;

use std::sync::LazyLock;

use self::gateways::gateway;

pub(crate) use self::subscriber::SUBSCRIBER_PORTS_MAX;

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
        keys: network::INTERFACE,
    },
    SectionKeys {
        name: "route",
        repeats: true,
        about: "A static route. Connected prefixes need no route. The longest prefix wins. Inside and \
                outside have separate tables.",
        keys: network::ROUTE,
    },
    SectionKeys {
        name: "pool",
        repeats: true,
        about: "A set of external addresses and the allocation of their ports. A subscriber is served by the \
                pool with the longest matching prefix in `subscribers`. At least one pool is needed. A pool \
                address may be Natrix's own address on an outside interface, but not on an inside one (RFC \
                3022 §5.1).",
        keys: pool::POOL,
    },
    SectionKeys {
        name: "nat64",
        repeats: true,
        about: "A prefix of stateful NAT64 (RFC 6146): IPv6 hosts inside reach the IPv4 address inside each \
                address of the prefix (RFC 6052), as subscribers of a pool. 464XLAT needs nothing else (RFC \
                6877). IPv4 subscribers of the same VRF are not affected. See docs/ipv6.md.",
        keys: network::NAT64,
    },
    SectionKeys {
        name: "softwire",
        repeats: true,
        about: "An AFTR of DS-Lite (RFC 6333): IPv4 packets of subscribers come inside IPv6 packets to this \
                address. A host is the IPv6 address of the subscriber's router and an IPv4 address behind \
                it. See docs/ipv6.md.",
        keys: network::SOFTWIRE,
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
                directions. ICMP errors about these packets pass too.",
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
                may have 4,194,304 rules.",
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
        keys: subscriber::SUBSCRIBER,
    },
    SectionKeys {
        name: "class",
        repeats: true,
        about: "Subscribers with other limits. Limits that a class does not set are those of `[subscriber]`.",
        keys: subscriber::CLASS,
    },
    SectionKeys {
        name: "timeouts",
        repeats: false,
        about: "Timers, exact to the microsecond. A value below the bound of an RFC is refused unless \
                `allow_below_rfc` is set.",
        keys: state::TIMEOUTS,
    },
    SectionKeys {
        name: "port_timeout",
        repeats: true,
        about: "A separate timer for sessions with certain destination ports. If several match, the first \
                applies.",
        keys: state::PORT_TIMEOUT,
    },
    SectionKeys {
        name: "tables",
        repeats: false,
        about: "Table sizes of the whole instance. All memory is reserved at start, and no entry is ever \
                evicted (RFC 6888 REQ-11). With one worker the tables have exactly these sizes. With more, \
                each worker has its share and an eighth more, because subscribers are not spread evenly.",
        keys: state::TABLES,
    },
    SectionKeys {
        name: "reload",
        repeats: false,
        about: "How `natrix reload` treats existing state that has no place in the new configuration. The \
                values of the new configuration apply.",
        keys: state::RELOAD,
    },
    SectionKeys {
        name: "icmp",
        repeats: false,
        about: "ICMP messages of Natrix itself. Messages of other hosts are translated in any case.",
        keys: state::ICMP,
    },
    SectionKeys {
        name: "port_control",
        repeats: false,
        about: "External ports on request of subscribers, by PCP (RFC 6887, RFC 7753) and NAT-PMP (RFC 6886), on \
                UDP port 5351 of Natrix's inside addresses: [port-control.md](port-control.md).",
        keys: gateways::PORT_CONTROL,
    },
    SectionKeys {
        name: "routing",
        repeats: false,
        about: "Routes that come from the kernel, where a routing daemon such as FRR or BIRD puts them: \
                [routing.md](routing.md).",
        keys: network::ROUTING,
    },
    SectionKeys {
        name: "alg",
        repeats: false,
        about: "Application-level gateways: what they rewrite and when to leave them off is in \
                [alg.md](alg.md). Each has a table of its own and is off by default (RFC 4787 REQ-10, RFC \
                5382 REQ-6).",
        keys: gateways::ALG,
    },
    SectionKeys {
        name: "workers",
        repeats: false,
        about: "The threads that process packets. A worker with its own CPU polls and uses it fully; a \
                worker without one sleeps when idle.",
        keys: machine::WORKERS,
    },
    SectionKeys { name: "dpdk", repeats: false, about: "Options for DPDK.", keys: machine::DPDK },
    SectionKeys {
        name: "control",
        repeats: false,
        about: "The control socket for `natrix show`, `find`, `why`, `plan`, `reload`, `trace` and `top`.",
        keys: machine::CONTROL,
    },
    SectionKeys {
        name: "http",
        repeats: false,
        about: "The REST API, metrics and page, in a process of their own: [api.md](api.md). Off without `listen`. \
                A change needs a restart.",
        keys: machine::HTTP,
    },
    SectionKeys {
        name: "http.tls",
        repeats: false,
        about: "TLS for the API, needed unless it listens on loopback or a Unix socket. Renewed files are used \
                within 10 s.",
        keys: machine::HTTP_TLS,
    },
    SectionKeys {
        name: "http.user",
        repeats: true,
        about: "A user of the API. Without any user, clients on loopback may see (`view`) but neither change nor \
                look up. On a Unix socket, a client has the roles of the users whose `group` it is a member of, \
                or logs in with a token; root may do everything.",
        keys: machine::HTTP_USER,
    },
    SectionKeys {
        name: "snmp",
        repeats: false,
        about: "NATV2-MIB (RFC 7659) through the SNMP agent of the system, by a process of its own: \
                [snmp.md](snmp.md). Off without `agentx`. A change needs a restart.",
        keys: machine::SNMP,
    },
    SectionKeys {
        name: "log",
        repeats: false,
        about: "The log of the daemon (`level`, `format`), and the event log that records who had which external \
                port (all other keys). Its volume and format: [operations.md](operations.md#logs).",
        keys: log::LOG,
    },
    SectionKeys {
        name: "log.store",
        repeats: false,
        about: "The store of the event log: compressed, signed, and searched by `natrix find --at`. Alone or \
                besides `log.events`. Formats and guarantees: [logging.md](logging.md).",
        keys: log::LOG_STORE,
    },
    SectionKeys {
        name: "log.sink",
        repeats: true,
        about: "A collector that gets the records of the store, as IPFIX (RFC 7011, RFC 8158), syslog (RFC 5424) or \
                lines of JSON. By TCP and TLS it gets everything, in order, also after an outage: what may not have \
                been read is sent again, with the same sequence numbers. Formats: [logging.md](logging.md#sinks).",
        keys: log::LOG_SINK,
    },
];

const NAME: &str = "1 to 32 letters, digits, `-`, `_` and `.`, starting with a letter or digit; unique";
const NAME_PATTERN: &str = "1 to 32 letters, digits, `-`, `_` and `.`, starting with a letter or digit";
const HOSTS: &str = "IPv4 prefix `\"a.b.c.d/length\"` or IPv6 prefix, host bits zero";
const PREFIX: &str = "IPv4 prefix `\"a.b.c.d/length\"`, host bits zero";

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

#[cfg(test)]
mod tests;
