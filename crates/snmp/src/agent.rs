//! Answers to the requests of the master agent.

use std::sync::Arc;
use std::time::Instant;

use crate::clock::MasterClock;
use crate::controls::Controls;
use crate::controls::Field;
use crate::controls::Of;
use crate::controls::Refusal;
use crate::notifications::Notifications;
use crate::pdu::Body;
use crate::pdu::ErrorStatus;
use crate::pdu::PAYLOAD_BYTES_MAX;
use crate::pdu::Pdu;
use crate::pdu::SearchRange;
use crate::saved::Saved;
use crate::settings::Settings;
use crate::source::Source;
use crate::source::Unavailable;
use crate::tables;
use crate::tables::Settable;
use crate::tables::View;
use crate::value::Value;
use crate::value::VarBind;

/// Most bytes of an object in a response, and so the most objects: object identifiers have at most
/// 128 sub-identifiers, values at most 64 octets.
const OBJECT_BYTES_MAX: usize = 4 + 4 + 4 * 128 + 4 + 64;
const OBJECTS_MAX: usize = PAYLOAD_BYTES_MAX / OBJECT_BYTES_MAX;

/// What the agent knows.
pub(crate) struct Agent {
    settings: Settings,
    source: Source,
    controls: Arc<Controls>,
    saved: Saved,
    notifications: Notifications,
    /// Values that were tested and not yet committed or forgotten.
    tested: Option<Tested>,
}

struct Tested {
    transaction: u32,
    after: Controls,
    before: Arc<Controls>,
}

/// An error and the number of the object, from 1.
type Failure = (ErrorStatus, u16);

fn failure(status: ErrorStatus, place: usize) -> Failure {
    (status, u16::try_from(place + 1).unwrap_or(u16::MAX))
}

impl Agent {
    pub(crate) fn new(settings: Settings, source: Source) -> Agent {
        let saved = Saved::new(settings.state.clone());
        let controls = Arc::new(saved.read());
        Agent { settings, source, controls, saved, notifications: Notifications::default(), tested: None }
    }

    /// The answer to a request; None for a PDU that gets none.
    pub(crate) fn answer(&mut self, pdu: &Pdu, clock: MasterClock) -> Option<Pdu> {
        let outcome = match &pdu.body {
            _ if pdu.context.is_some() => Err((ErrorStatus::UnsupportedContext, 0)),
            Body::Get(ranges) => self.each(ranges, clock, |view, range| {
                let value = tables::get(view, &range.start)?;
                Ok(VarBind { name: range.start.clone(), value })
            }),
            Body::GetNext(ranges) => self.each(ranges, clock, tables::next),
            Body::GetBulk { non_repeaters, max_repetitions, ranges } => {
                self.bulk(usize::from(*non_repeaters), usize::from(*max_repetitions), ranges, clock)
            }
            Body::TestSet(values) => self.test(pdu.transaction, values, clock),
            Body::CommitSet => self.commit(pdu.transaction),
            Body::UndoSet => self.undo(pdu.transaction),
            Body::CleanupSet => {
                self.tested = None;
                // It has no answer.
                return None;
            }
            _ => return None,
        };
        let (error, index, values) = match outcome {
            Ok(values) => (ErrorStatus::NoError, 0, values),
            Err((error, index)) => (error, index, Vec::new()),
        };
        let body = Body::Response { uptime: 0, error, index, values };
        let Pdu { session, transaction, packet, order, .. } = *pdu;
        Some(Pdu { session, transaction, packet, order, context: None, body })
    }

    fn view(&mut self, clock: MasterClock) -> View<'_> {
        View { source: &mut self.source, controls: Arc::clone(&self.controls), settings: &self.settings, clock }
    }

    fn each(
        &mut self,
        ranges: &[SearchRange],
        clock: MasterClock,
        find: fn(&mut View, &SearchRange) -> Result<VarBind, Unavailable>,
    ) -> Result<Vec<VarBind>, Failure> {
        let mut view = self.view(clock);
        let mut found = Vec::new();
        for (place, range) in ranges.iter().enumerate() {
            if found.len() == OBJECTS_MAX {
                return Err(failure(ErrorStatus::GenErr, place));
            }
            found.push(find(&mut view, range).map_err(|Unavailable| failure(ErrorStatus::GenErr, place))?);
        }
        Ok(found)
    }

    /// A GetBulk may be answered with fewer objects than it asks for (RFC 2741 §7.2.3.3).
    fn bulk(
        &mut self,
        non_repeaters: usize,
        max_repetitions: usize,
        ranges: &[SearchRange],
        clock: MasterClock,
    ) -> Result<Vec<VarBind>, Failure> {
        let (once, repeated) = ranges.split_at(non_repeaters.min(ranges.len()));
        let mut found = self.each(once, clock, tables::next)?;
        let mut ranges = repeated.to_vec();
        for _ in 0..max_repetitions {
            if ranges.is_empty() || found.len() + ranges.len() > OBJECTS_MAX {
                break;
            }
            let next = self.each(&ranges, clock, tables::next)?;
            let is_end = next.iter().all(|one| one.value == Value::EndOfMibView);
            for (range, one) in ranges.iter_mut().zip(&next) {
                (range.start, range.include) = (one.name.clone(), false);
            }
            found.extend(next);
            if is_end {
                break;
            }
        }
        Ok(found)
    }

    /// Sets the values on a copy.
    fn test(&mut self, transaction: u32, values: &[VarBind], clock: MasterClock) -> Result<Vec<VarBind>, Failure> {
        self.tested = None;
        let mut after = Controls::clone(&self.controls);
        let mut view = self.view(clock);
        for (place, VarBind { name, value }) in values.iter().enumerate() {
            let refused = |status| failure(status, place);
            let settable = tables::settable(&mut view, name).map_err(|Unavailable| refused(ErrorStatus::GenErr))?;
            let (of, field): (Of, Field) = match settable {
                Settable::Yes(of, field) => (of, field),
                Settable::ReadOnly => return Err(refused(ErrorStatus::NotWritable)),
                Settable::NoInstance => return Err(refused(ErrorStatus::NoCreation)),
            };
            after.set(&of, field, value).map_err(|refusal| {
                refused(match refusal {
                    Refusal::WrongType => ErrorStatus::WrongType,
                    Refusal::WrongValue => ErrorStatus::WrongValue,
                    Refusal::TooMany => ErrorStatus::ResourceUnavailable,
                })
            })?;
        }
        self.tested = Some(Tested { transaction, after, before: Arc::clone(&self.controls) });
        Ok(Vec::new())
    }

    /// Recorded before it is done: a set that cannot be is refused.
    fn commit(&mut self, transaction: u32) -> Result<Vec<VarBind>, Failure> {
        let tested = self.tested.as_ref().filter(|tested| tested.transaction == transaction);
        let tested = tested.ok_or((ErrorStatus::CommitFailed, 0))?;
        let subject = tested.after.differences(&tested.before);
        self.source.record("snmp set", subject).map_err(|Unavailable| failure(ErrorStatus::CommitFailed, 0))?;
        // What the manager sees as set is still set after a power failure.
        self.saved.write(&tested.after).map_err(|_| failure(ErrorStatus::CommitFailed, 0))?;
        self.controls = Arc::new(tested.after.clone());
        Ok(Vec::new())
    }

    fn undo(&mut self, transaction: u32) -> Result<Vec<VarBind>, Failure> {
        if let Some(tested) = self.tested.take().filter(|tested| tested.transaction == transaction) {
            // After a commit that failed, nothing is to be undone.
            if !Arc::ptr_eq(&self.controls, &tested.before) {
                self.saved.write(&tested.before).map_err(|_| failure(ErrorStatus::UndoFailed, 0))?;
                self.controls = tested.before;
            }
        }
        Ok(Vec::new())
    }

    /// What is to be reported now.
    pub(crate) fn notifications(&mut self) -> Vec<Vec<VarBind>> {
        if self.controls.enabled().next().is_none() {
            self.notifications = Notifications::default();
            return Vec::new();
        }
        let watches_subscribers = self.controls.enabled().any(|(of, _)| matches!(of, Of::Subscriber(..)));
        let maps = watches_subscribers.then(|| self.source.maps()).transpose();
        let (Ok(figures), Ok(pools), Ok(maps)) = (self.source.figures(), self.source.pools(), maps) else {
            // It is looked at again a second later.
            return Vec::new();
        };
        self.notifications.look(Instant::now(), &self.controls, &figures, &pools, maps.as_deref())
    }
}
