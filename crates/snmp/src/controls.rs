//! What a manager may set: thresholds and intervals of notifications. The limits of the engine
//! belong to the configuration.

use core::fmt;
use core::net::IpAddr;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde::Serialize;

use crate::value::Value;

/// Subscribers and pools with values of their own; a manager that sets more is refused.
const OWN_MAX: usize = 10_000;

/// Thresholds of a disabled notification.
pub(crate) const DISABLED: i32 = -1;

/// What a manager set for one instance, pool or subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Control {
    /// Of the instance: address maps. Of a pool: low usage.
    pub(crate) first: i32,
    /// Of the instance and of a subscriber: port maps. Of a pool: high usage.
    pub(crate) second: i32,
    /// Seconds between two notifications.
    pub(crate) interval: u32,
}

/// Whose values. By names, which a new process finds again; indices may be others then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Of {
    /// The instance.
    Instance,
    /// The pool with this name.
    Pool(Arc<str>),
    /// The subscriber with this address in a VRF.
    Subscriber(Arc<str>, IpAddr),
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Of::Instance => write!(f, "instance"),
            Of::Pool(name) => write!(f, "pool \"{name}\""),
            Of::Subscriber(vrf, address) => write!(f, "subscriber {address} in VRF {vrf}"),
        }
    }
}

/// Which value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    First,
    Second,
    Interval,
}

/// Why a value cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    WrongType,
    WrongValue,
    TooMany,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controls {
    set: BTreeMap<Of, Control>,
}

impl Controls {
    fn usual(of: &Of) -> Control {
        let interval = match of {
            Of::Instance => 10,
            Of::Pool(_) => 20,
            Of::Subscriber(..) => 60,
        };
        Control { first: DISABLED, second: DISABLED, interval }
    }

    /// The values in use.
    pub(crate) fn of(&self, of: &Of) -> Control {
        self.set.get(of).copied().unwrap_or(Controls::usual(of))
    }

    /// Those with a threshold.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = (&Of, &Control)> {
        let has_threshold = |control: &Control| control.first != DISABLED || control.second != DISABLED;
        self.set.iter().filter(move |(_, control)| has_threshold(control))
    }

    /// All that differ from the usual values.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Of, &Control)> {
        self.set.iter()
    }

    /// What differs from `before`, for the audit log: `pool "a": thresholds 10 and 90, every 20 s`.
    pub(crate) fn differences(&self, before: &Controls) -> String {
        let concerned: BTreeSet<&Of> = self.set.keys().chain(before.set.keys()).collect();
        let changed = concerned.into_iter().filter(|of| self.of(of) != before.of(of));
        let told = changed.map(|of| {
            let Control { first, second, interval } = self.of(of);
            format!("{of}: thresholds {first} and {second}, every {interval} s")
        });
        told.collect::<Vec<_>>().join("; ")
    }

    /// Sets all values of one, as they were saved.
    pub(crate) fn restore(&mut self, of: &Of, control: Control) -> Result<(), Refusal> {
        self.set(of, Field::First, &Value::Integer(control.first))?;
        self.set(of, Field::Second, &Value::Integer(control.second))?;
        self.set(of, Field::Interval, &Value::Gauge32(control.interval))
    }

    /// Sets one value.
    pub(crate) fn set(&mut self, of: &Of, field: Field, value: &Value) -> Result<(), Refusal> {
        let mut control = self.of(of);
        match (field, value) {
            (Field::Interval, Value::Gauge32(seconds)) => {
                if !(1..=3600).contains(seconds) {
                    return Err(Refusal::WrongValue);
                }
                control.interval = *seconds;
            }
            (Field::First | Field::Second, Value::Integer(threshold)) => {
                let most = if matches!(of, Of::Pool(_)) { 100 } else { i32::MAX };
                if !(DISABLED..=most).contains(threshold) {
                    return Err(Refusal::WrongValue);
                }
                match field {
                    Field::First => control.first = *threshold,
                    _ => control.second = *threshold,
                }
            }
            _ => return Err(Refusal::WrongType),
        }
        if control == Controls::usual(of) {
            self.set.remove(of);
        } else if self.set.contains_key(of) || self.set.len() < OWN_MAX {
            self.set.insert(of.clone(), control);
        } else {
            return Err(Refusal::TooMany);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_what_a_manager_set_and_reset() {
        let (pool, mut before) = (Of::Pool("a".into()), Controls::default());
        before.set(&Of::Instance, Field::Second, &Value::Integer(7)).unwrap();
        let mut after = before.clone();
        assert_eq!(after.differences(&before), "");
        after.set(&pool, Field::Second, &Value::Integer(90)).unwrap();
        after.set(&Of::Instance, Field::Second, &Value::Integer(DISABLED)).unwrap();
        let told = "instance: thresholds -1 and -1, every 10 s; pool \"a\": thresholds -1 and 90, every 20 s";
        assert_eq!(after.differences(&before), told);
    }
}
