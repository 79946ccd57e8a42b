//! Which keys a running instance takes over with `natrix reload`, and which need a restart. A test of `change` holds this against
//! what a plan says of each key.

/// Tables of which every key needs a restart.
const RESTART_SECTIONS: [&str; 4] = ["interface", "tables", "workers", "dpdk"];
/// And keys of other tables.
const RESTART_KEYS: [(&str, &str); 4] =
    [("control", "socket"), ("control", "mode"), ("log", "level"), ("log", "queue")];

/// When a new value of a key comes into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// With a reload, while traffic flows.
    Live,
    /// When the instance starts anew; a reload with another value is refused.
    Restart,
    /// Another value with a reload; that there is one, or none any more, when the instance starts anew.
    RestartToBeginOrEnd,
}

impl Effect {
    /// Of this key of this table.
    pub(crate) fn of(section: &str, key: &str) -> Effect {
        if (section, key) == ("log", "events") {
            Effect::RestartToBeginOrEnd
        } else if RESTART_SECTIONS.contains(&section) || RESTART_KEYS.contains(&(section, key)) {
            Effect::Restart
        } else {
            Effect::Live
        }
    }

    /// As the manual says it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Effect::Live => "live",
            Effect::Restart => "restart",
            Effect::RestartToBeginOrEnd => "live; restart to begin or end",
        }
    }
}
