//! The subscriber of a packet: class, penalty, and room for one more mapping or session.
//!
//! A lowered limit refuses only what is new (RFC 6888 REQ-4a, REQ-11d).

use zerocopy::FromZeros;

use crate::event::Cause;
use crate::state::mapping::InternalKey;
use crate::state::subscriber::Subscriber;
use crate::steps::expired::Expired;
use crate::steps::opening::Ask;
use crate::steps::opening::Owner;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

impl View<'_> {
    pub(crate) fn owner(&self, ask: &Ask<'_>) -> Owner {
        let (subscribers, key, previewed) = (&self.state.subscribers, ask.key, ask.hints.subscriber);
        let known = if previewed != 0 && subscribers.is(previewed, key.realm, key.address) {
            Some(previewed)
        } else {
            subscribers.find(key.realm, key.address)
        };
        match known.filter(|slot| !self.ends_with(*slot, &ask.expired)) {
            Some(slot) => self.owner_in(ask.now, slot),
            None => Owner {
                slot: None,
                past: known.or_else(|| subscribers.find_lapsed(key.realm, key.address)),
                class: self.class_of(key.realm, key.address),
                penalty: None,
                released: None,
            },
        }
    }

    #[inline]
    pub(crate) fn owner_in(&self, now: Instant, slot: u32) -> Owner {
        let (penalty, released) = self.penalty_now(now, slot);
        Owner { slot: Some(slot), past: Some(slot), class: self.class_now(slot), penalty, released }
    }

    /// True if it has nothing but expired mappings.
    pub(super) fn ends_with(&self, slot: u32, expired: &Expired) -> bool {
        let record = self.state.subscribers.get(slot);
        let has_else = record.flows > 0 || record.latest_block().is_some() || record.is_offender();
        let ends = self.expired_of(slot, expired).count();
        ends > 0 && !has_else && record.mappings_total() as usize <= ends
    }

    #[inline]
    pub(crate) fn penalty_now(&self, now: Instant, slot: u32) -> (Option<PoolId>, Option<Cause>) {
        if self.state.subscribers.get(slot).is_offender() { self.penalty_of(now, slot) } else { (None, None) }
    }

    #[cold]
    fn penalty_of(&self, now: Instant, slot: u32) -> (Option<PoolId>, Option<Cause>) {
        match self.snapshot.classes.compiled(self.class_now(slot)).penalty {
            Some(penalty) if !self.state.subscribers.account(slot).is_quiet(now, penalty.release) => {
                (Some(penalty.pool), None)
            }
            Some(_) => (None, Some(Cause::Idle)),
            None => (None, Some(Cause::Configuration)),
        }
    }

    #[inline]
    pub(crate) fn is_settled(&self, owner: &Owner, slot: u32) -> bool {
        owner.released.is_none() && self.state.subscribers.get(slot).generation == self.snapshot.short_generation()
    }

    pub(crate) fn admit_mapping(&self, ask: &Ask<'_>, owner: &Owner) -> Result<(), Verdict> {
        let compiled = self.snapshot.classes.compiled(owner.class);
        let protocol = ask.key.protocol;
        let Some(past) = owner.past.filter(|_| compiled.counts_mappings()) else {
            return compiled.admits_mapping(&Subscriber::new_zeroed(), 0, protocol, ask.now);
        };
        if !ask.expired.is_any() {
            return self.admit_known(ask.now, past, owner.class, protocol);
        }
        let record = self.record_without_expired(ask, past);
        let shared = owner.slot.map_or(0, |slot| self.state.subscribers.shared_ports(slot)[protocol.index()]);
        compiled.admits_mapping(&record, shared, protocol, ask.now)
    }

    /// A copy in which expired mappings do not count.
    pub(super) fn record_without_expired(&self, ask: &Ask<'_>, slot: u32) -> Subscriber {
        let mut record = *self.state.subscribers.get(slot);
        for mapping in self.expired_of(slot, &ask.expired) {
            let count = &mut record.mappings[mapping.protocol().index()];
            *count = count.saturating_sub(1);
            record.extra_sessions = record.extra_sessions.saturating_sub(u32::from(mapping.extra_count()));
        }
        record
    }

    /// Checks the limits of a known subscriber, whose record may have lapsed.
    #[inline(always)]
    pub(crate) fn admit_known(&self, now: Instant, slot: u32, class: u16, protocol: Protocol) -> Result<(), Verdict> {
        let compiled = self.snapshot.classes.compiled(class);
        if !compiled.counts_mappings() {
            return Ok(());
        }
        let shared = self.state.subscribers.shared_ports(slot)[protocol.index()];
        compiled.admits_mapping(self.state.subscribers.get(slot), shared, protocol, now)
    }

    /// `takes_record`: it cannot reuse the inline slot.
    pub(crate) fn admit_session(&self, now: Instant, index: u32, takes_record: bool) -> Result<(), Verdict> {
        self.admit_session_beside(now, index, takes_record, 0)
    }

    /// `change`: so many further sessions of the mapping come, or end, first.
    #[inline]
    pub(crate) fn admit_session_beside(
        &self,
        now: Instant,
        index: u32,
        takes_record: bool,
        change: i32,
    ) -> Result<(), Verdict> {
        let slot = self.state.mappings.get(index).subscriber;
        let compiled = self.snapshot.classes.compiled(self.class_now(slot));
        let subscribers = &self.state.subscribers;
        let account = subscribers.account(slot);
        if change == 0 {
            return compiled.admits_session((subscribers.get(slot), account), takes_record, now);
        }
        let (mut record, mut account) = (*subscribers.get(slot), *account);
        record.extra_sessions = record.extra_sessions.saturating_add_signed(change);
        if change > 0 {
            account.session_bucket = compiled.charge_session(account.session_bucket, now);
        }
        compiled.admits_session((&record, &account), takes_record, now)
    }

    pub(crate) fn admit_flow(&self, now: Instant, realm: RealmId, host: HostNumber) -> Result<(), Verdict> {
        let nobody = Subscriber::new_zeroed();
        let subscribers = &self.state.subscribers;
        let (class, record) = match subscribers.find(realm, host) {
            Some(slot) => (self.class_now(slot), subscribers.get(slot)),
            None => {
                let before = subscribers.find_lapsed(realm, host);
                (self.class_of(realm, host), before.map_or(&nobody, |slot| subscribers.get(slot)))
            }
        };
        self.snapshot.classes.compiled(class).admits_flow(record, now)
    }

    /// `less` ports are about to be uncharged.
    pub(crate) fn admits_port(&self, key: &InternalKey, less: u32) -> bool {
        let nobody = Subscriber::new_zeroed();
        let (subscribers, protocol): (_, Protocol) = (&self.state.subscribers, key.protocol);
        let (class, record, shared) = match subscribers.find(key.realm, key.address) {
            Some(slot) => {
                (self.class_now(slot), subscribers.get(slot), subscribers.shared_ports(slot)[protocol.index()])
            }
            None => (self.class_of(key.realm, key.address), &nobody, 0),
        };
        self.snapshot.classes.compiled(class).admits_port(record, shared.saturating_sub(less), protocol)
    }
}
