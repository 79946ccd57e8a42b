//! Which subscriber is bound to which external address (RFC 8158 events 14 and 15), from the events
//! about its ports and blocks: bound with the first one, released with the last one.
//!
//! Exact from the start of an instance on, when nothing is open. After lost events it is not known
//! who is bound, and nothing is said until the next start.

use std::collections::HashMap;

use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;

use super::record::NatEvent;

/// Realm, subscriber and external address.
type Pair = (u16, u32, u32);

#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// What each pair holds. As many entries as subscribers with state, each with few addresses.
    held: HashMap<Pair, u32>,
    is_known: bool,
}

impl Bindings {
    /// An instance starts: nothing is bound.
    pub(crate) fn begin(&mut self) {
        self.held.clear();
        self.is_known = true;
    }

    /// Events are missing.
    pub(crate) fn forget(&mut self) {
        self.held = HashMap::new();
        self.is_known = false;
    }

    /// What the event means for the binding.
    pub(crate) fn apply(&mut self, event: &Event) -> Option<NatEvent> {
        if event.kind == EventKind::Gap {
            self.forget();
        }
        let is_report = event.cause == Cause::LogOpened;
        if !self.is_known || !event.kind.is_allocation() || is_report {
            return None;
        }
        let pair = (event.realm.0, event.subscriber.to_bits(), event.external.to_bits());
        let is_begin = matches!(
            event.kind,
            EventKind::MappingCreated | EventKind::StaticCreated | EventKind::FlowCreated | EventKind::BlockLeased
        );
        if is_begin {
            let held = self.held.entry(pair).or_insert(0);
            *held += 1;
            return (*held == 1).then_some(NatEvent::AddressBound);
        }
        let held = self.held.get_mut(&pair)?;
        *held -= 1;
        if *held > 0 {
            return None;
        }
        self.held.remove(&pair);
        Some(NatEvent::AddressReleased)
    }
}
