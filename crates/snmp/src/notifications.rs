//! The five notifications (RFC 7659 §3.1.2), each with a rate of its own: at most one an interval,
//! with the worst value of the interval.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use control::Pool;

use crate::controls::Control;
use crate::controls::Controls;
use crate::controls::DISABLED;
use crate::controls::Of;
use crate::figures::Figures;
use crate::figures::most_mapped;
use crate::figures::ports_mapped;
use crate::figures::protocol_number;
use crate::figures::usage_percent;
use crate::maps::Maps;
use crate::maps::SubscriberRow;
use crate::oid::Oid;
use crate::source::KnownPools;
use crate::tables::INSTANCE;
use crate::tables::instance;
use crate::tables::name_of;
use crate::tables::pool;
use crate::tables::subscriber;
use crate::tables::subtree;
use crate::value::Value;
use crate::value::VarBind;

/// snmpTrapOID.0.
const TRAP_OID: [u32; 11] = [1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0];

/// Which notification: its number below natv2MIBNotifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    PoolUsageLow = 1,
    PoolUsageHigh = 2,
    InstanceAddressMapEntriesHigh = 3,
    InstancePortMapEntriesHigh = 4,
    SubscriberPortMappingEntriesHigh = 5,
}

/// What one of them knows of the past.
#[derive(Clone, Debug)]
struct Past {
    /// The threshold it looked at, and the value it saw.
    threshold: i32,
    seen: Seen,
    sent: Option<Instant>,
    /// The worst that waits for the end of the interval.
    waiting: Option<(u64, Vec<VarBind>)>,
}

/// A value; the second number changes with each update of the first.
type Seen = (u64, u64);

/// All that may have to be reported.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    past: BTreeMap<(Of, Kind), Past>,
}

/// One value to look at.
struct Watched {
    of: Of,
    kind: Kind,
    threshold: i32,
    interval: u32,
    seen: Seen,
    is_met: bool,
    objects: Vec<VarBind>,
}

impl Notifications {
    /// Looks at the values of now; returns what to send. `maps` is None without a threshold for a
    /// subscriber.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        controls: &Controls,
        figures: &Figures,
        pools: &KnownPools,
        maps: Option<&Maps>,
    ) -> Vec<Vec<VarBind>> {
        let mut watched = Vec::new();
        let mut subscribers = HashMap::new();
        for (of, control) in controls.enabled() {
            match of {
                Of::Instance => watch_instance(control, figures, &mut watched),
                Of::Pool(name) => {
                    let pool = figures.pools.iter().find(|pool| *pool.name == **name);
                    if let (Some(pool), Some(known)) = (pool, pools.get(name)) {
                        watch_pool(of, known.index, control, pool, &mut watched);
                    }
                }
                Of::Subscriber(vrf, address) => {
                    subscribers.insert((&**vrf, *address), (of, control));
                }
            }
        }
        for row in maps.map(|maps| maps.subscribers.as_slice()).unwrap_or_default() {
            if let Some((of, control)) = subscribers.get(&(&*row.vrf, row.address)) {
                watch_subscriber(of, row, control, &mut watched);
            }
        }
        // What is no longer watched begins anew later.
        let kept: BTreeSet<(&Of, Kind)> = watched.iter().map(|one| (&one.of, one.kind)).collect();
        self.past.retain(|(of, kind), _| kept.contains(&(of, *kind)));
        let ready = watched.into_iter().filter_map(|one| self.judge(now, one)).collect::<Vec<_>>();
        let is_high_of_pool =
            |of: &Of| ready.iter().any(|(kind, other, _)| *kind == Kind::PoolUsageHigh && other == of);
        // If both thresholds of a pool are crossed in one interval, only the upper one is reported.
        let wanted = ready.iter().filter(|(kind, of, _)| *kind != Kind::PoolUsageLow || !is_high_of_pool(of));
        wanted.map(|(kind, _, objects)| notification(*kind, objects)).collect()
    }

    /// Reports a value that meets its threshold when it changes, or when the threshold does.
    fn judge(&mut self, now: Instant, one: Watched) -> Option<(Kind, Of, Vec<VarBind>)> {
        let Watched { of, kind, threshold, interval, seen, is_met, objects } = one;
        let key = (of, kind);
        let before = self.past.get(&key);
        let is_news = before.is_none_or(|past| past.threshold != threshold || past.seen != seen);
        let fresh = || Past { threshold, seen, sent: None, waiting: None };
        let past = self.past.entry(key.clone()).or_insert_with(fresh);
        (past.threshold, past.seen) = (threshold, seen);
        if is_met && is_news {
            let is_worse = |waiting: &(u64, Vec<VarBind>)| match kind {
                Kind::PoolUsageLow => seen.0 < waiting.0,
                _ => seen.0 > waiting.0,
            };
            if past.waiting.as_ref().is_none_or(is_worse) {
                past.waiting = Some((seen.0, objects));
            }
        }
        if past.sent.is_some_and(|sent| now.duration_since(sent) < Duration::from_secs(interval.into())) {
            return None;
        }
        let (_, objects) = past.waiting.take()?;
        past.sent = Some(now);
        Some((kind, key.0, objects))
    }
}

fn notification(kind: Kind, objects: &[VarBind]) -> Vec<VarBind> {
    let identity = VarBind { name: Oid::new(&TRAP_OID), value: Value::Oid(subtree().with(&[0, kind as u32])) };
    core::iter::once(identity).chain(objects.iter().cloned()).collect()
}

fn is_reached(threshold: i32, value: u64) -> bool {
    u64::try_from(threshold).is_ok_and(|threshold| value >= threshold)
}

fn watch_instance(control: &Control, figures: &Figures, watched: &mut Vec<Watched>) {
    let object = |column, value| VarBind { name: name_of(instance::ENTRY, column, &[INSTANCE]), value };
    let addresses = (figures.address_maps(), figures.sum(&["addresses_paired"]));
    let ports = (figures.status.mappings, figures.status.mappings_created);
    for (kind, threshold, seen, entries, creations) in [
        (
            Kind::InstanceAddressMapEntriesHigh,
            control.first,
            addresses,
            instance::ADDRESS_MAP_ENTRIES,
            instance::ADDRESS_MAP_CREATIONS,
        ),
        (
            Kind::InstancePortMapEntriesHigh,
            control.second,
            ports,
            instance::PORT_MAP_ENTRIES,
            instance::PORT_MAP_CREATIONS,
        ),
    ] {
        let objects = vec![object(entries, Value::unsigned(seen.0)), object(creations, Value::Counter64(seen.1))];
        let is_met = is_reached(threshold, seen.0);
        watched.push(Watched { of: Of::Instance, kind, threshold, interval: control.interval, seen, is_met, objects });
    }
}

fn watch_pool(of: &Of, index: u32, control: &Control, pool: &Pool, watched: &mut Vec<Watched>) {
    let object = |column, value| VarBind { name: name_of(pool::ENTRY, column, &[INSTANCE, index]), value };
    let protocol = most_mapped(pool);
    let (entries, usage) = (ports_mapped(pool, protocol), usage_percent(pool));
    let is_low = control.first != DISABLED && i32::try_from(usage).is_ok_and(|usage| usage <= control.first);
    let is_high = is_reached(control.second, usage);
    for (kind, threshold, is_met) in
        [(Kind::PoolUsageLow, control.first, is_low), (Kind::PoolUsageHigh, control.second, is_high)]
    {
        let objects = vec![
            object(pool::NOTIFIED_ENTRIES, Value::unsigned(entries)),
            object(pool::NOTIFIED_PROTOCOL, Value::Gauge32(protocol_number(protocol))),
        ];
        let seen = (entries, u64::from(protocol_number(protocol)));
        watched.push(Watched { of: of.clone(), kind, threshold, interval: control.interval, seen, is_met, objects });
    }
}

fn watch_subscriber(of: &Of, row: &SubscriberRow, control: &Control, watched: &mut Vec<Watched>) {
    let object = |column, value| VarBind { name: name_of(subscriber::ENTRY, column, &[row.index]), value };
    let SubscriberRow { port_maps, port_creations, .. } = *row;
    watched.push(Watched {
        of: of.clone(),
        kind: Kind::SubscriberPortMappingEntriesHigh,
        threshold: control.second,
        interval: control.interval,
        seen: (port_maps, port_creations),
        is_met: is_reached(control.second, port_maps),
        objects: vec![
            object(subscriber::PORT_MAP_ENTRIES, Value::unsigned(port_maps)),
            object(subscriber::PORT_MAP_CREATIONS, Value::Counter64(port_creations)),
        ],
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(value: u64, threshold: i32) -> Watched {
        let objects = vec![VarBind { name: Oid::new(&[1]), value: Value::unsigned(value) }];
        let kind = Kind::InstancePortMapEntriesHigh;
        let is_met = is_reached(threshold, value);
        Watched { of: Of::Instance, kind, threshold, interval: 10, seen: (value, value), is_met, objects }
    }

    /// What is sent at a second, as the reported value.
    fn judge(
        notifications: &mut Notifications,
        second: u64,
        begun: Instant,
        value: u64,
        threshold: i32,
    ) -> Option<u64> {
        let sent = notifications.judge(begun + Duration::from_secs(second), at(value, threshold));
        sent.map(|(_, _, objects)| match objects[0].value {
            Value::Gauge32(value) => u64::from(value),
            _ => panic!("another type"),
        })
    }

    #[test]
    fn one_notification_an_interval_has_the_worst_value() {
        let (mut notifications, begun) = (Notifications::default(), Instant::now());
        for (second, value, sent) in [
            (0, 4, None),
            (1, 5, Some(5)),
            (2, 7, None),
            (3, 9, None),
            (4, 6, None),
            (11, 6, Some(9)),
            // Nothing changes.
            (21, 6, None),
            (40, 6, None),
            (41, 7, Some(7)),
            (60, 3, None),
        ] {
            assert_eq!(judge(&mut notifications, second, begun, value, 5), sent, "second {second}");
        }
    }

    #[test]
    fn a_threshold_below_the_value_is_reported_when_set() {
        let (mut notifications, begun) = (Notifications::default(), Instant::now());
        assert_eq!(judge(&mut notifications, 0, begun, 8, 9), None);
        assert_eq!(judge(&mut notifications, 1, begun, 8, 7), Some(8));
        assert_eq!(judge(&mut notifications, 2, begun, 8, -1), None, "disabled");
    }
}
