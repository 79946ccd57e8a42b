//! Which keys change with `natrix reload`, and which need a restart. A test of `change` compares
//! this with the plan of each key.

/// Tables of which every key needs a restart, apart from [`LIVE_KEYS`].
const RESTART_SECTIONS: [&str; 11] =
    ["interface", "routing", "nat64", "softwire", "tables", "workers", "dpdk", "http", "http.tls", "http.user", "snmp"];
/// Keys of other tables that need a restart.
const RESTART_KEYS: [(&str, &str); 11] = [
    ("subscriber", "ipv6_prefix_length"),
    ("subscriber", "ipv6_hosts"),
    ("control", "socket"),
    ("control", "mode"),
    ("control", "audit"),
    ("log", "level"),
    ("log", "format"),
    ("log", "queue"),
    ("log.store", "path"),
    ("log.store", "signing_key"),
    ("port_control", "state"),
];
/// Keys of the tables above that change with a reload.
const LIVE_KEYS: [(&str, &str); 2] = [("nat64", "lowest_ipv6_mtu"), ("softwire", "subscribers")];

/// When a new value of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// With a reload, under traffic.
    Live,
    /// With a restart; a reload with another value is refused.
    Restart,
    /// Another value with a reload, but the first value or its removal with a restart.
    RestartToBeginOrEnd,
}

impl Effect {
    /// The effect of a key of a table.
    pub(crate) fn of(section: &str, key: &str) -> Effect {
        if (section, key) == ("log", "events") {
            Effect::RestartToBeginOrEnd
        } else if LIVE_KEYS.contains(&(section, key)) {
            Effect::Live
        } else if RESTART_SECTIONS.contains(&section) || RESTART_KEYS.contains(&(section, key)) {
            Effect::Restart
        } else {
            Effect::Live
        }
    }

    /// Text for the manual.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Effect::Live => "live",
            Effect::Restart => "restart",
            Effect::RestartToBeginOrEnd => "live; restart to begin or end",
        }
    }
}
