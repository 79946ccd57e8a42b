//! Questions of the control server to one worker, answered between two bursts.
//!
//! Each answer is bounded work: a page limits both the records returned and the records examined.
//! The asking thread allocates the memory, which comes back with the answer.

use core::net::IpAddr;
use core::net::Ipv6Addr;
use std::sync::Arc;

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Census;
use nat::Counters;
use nat::Instant;
use nat::Protocol;
use nat::Shared;
use nat::Verdict;
use nat::change::Reshape;
use nat::event::EventCounters;
use nat::types::AddressUse;
use nat::types::Endpoint;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::view::ExpectationView;
use nat::view::Explanation;
use nat::view::Filter;
use nat::view::GatewayNow;
use nat::view::GrantView;
use nat::view::MappingView;
use nat::view::Onward;
use nat::view::Query;
use nat::view::SessionView;
use nat::view::Step;
use nat::view::SubscriberView;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use wire::ipv6::Ipv6;

use crate::adoption::Adoption;
use crate::adoption::Expectation;
use crate::conflict::Conflicts;
use crate::ipv6::own::OwnAddress;
use crate::kernel::end::KernelCounters;
use crate::neighbour::AnyView;
use crate::neighbour::RouterView;
use crate::outlet::InterfaceCounters;
use crate::outlet::LinkCounters;
use crate::rounds::Rounds;
use crate::trace::Tap;
use crate::worker::Worker;

/// Maximum questions that wait for one worker.
const QUESTIONS_MAX: usize = 16;
/// Of these, only for going back after a change that the worker did not answer: to withhold ports,
/// to switch, and to offer ports. Otherwise it would make the change later, alone.
const KEPT_FOR_UNDOING: usize = 3;

/// Maximum records that a worker returns between two bursts.
pub const PAGE_RECORDS: usize = 64;
/// Maximum records that a worker examines between two bursts: some tens of microseconds.
pub const PAGE_SCAN: usize = 1_024;

/// A question for a page of at most `limit` records from `cursor` on.
pub fn page<V>(cursor: u32, limit: usize, filter: Filter) -> Query<V> {
    Query { cursor, limit, scan_max: PAGE_SCAN, filter, records: Vec::with_capacity(limit), next: None }
}

/// A question to a worker, which fills it in and returns it as the answer.
#[derive(Debug)]
pub enum Question {
    /// All numbers of the worker.
    Snapshot(Box<Snapshot>),
    /// Mappings.
    Mappings(Query<MappingView>),
    /// Grants of port control.
    Grants(Query<GrantView>),
    /// Expectations of gateways.
    Expectations(Query<ExpectationView>),
    /// Sessions.
    Sessions(Query<SessionView>),
    /// Subscribers.
    Subscribers(Query<SubscriberView>),
    /// Neighbours of its caches.
    Neighbours(Query<AnyView>),
    /// The mapping with this external endpoint.
    Holder {
        /// The endpoint.
        external: Endpoint,
        /// Its transport.
        protocol: Protocol,
        /// Out: the mapping, if this worker has it.
        mapping: Option<MappingView>,
    },
    /// Explains what would happen to an IP packet.
    Explain {
        /// Interface of the packet.
        from: Facing,
        /// The second half of a hairpin, whose first half is explained.
        onward: Option<Onward>,
        /// The packet.
        packet: Vec<u8>,
        /// Out: the explanation.
        explanation: Option<Box<Explanation>>,
    },
    /// Take the addresses of settings that other workers may use soon.
    Expect(Box<Expectation>),
    /// Take other settings.
    Adopt(Box<Adoption>),
    /// Remove ports of some addresses, or add them.
    Reshape {
        /// The snapshot with these ports.
        shared: Arc<Shared>,
        /// The addresses, few enough for one poll.
        reshapes: Vec<Reshape>,
        /// True to add, false to remove.
        offers: bool,
    },
    /// Counts what a change would do to the records from `cursor` on.
    Census {
        /// The snapshot after the change.
        candidate: Arc<Shared>,
        /// Start of this part; 0 at first. Out: None at the end.
        cursor: Option<u32>,
        /// The counts so far.
        census: Box<Census>,
    },
    /// Start a trace. Returns the tap if there are too many.
    TraceStart(Option<Tap>),
    /// End a trace.
    TraceStop(u64),
}

/// A kind of record that workers list.
pub trait Listed: Sized {
    /// Asks for a page.
    fn question(query: Query<Self>) -> Question;

    /// The page in an answer.
    fn page(answer: Question) -> Option<Query<Self>>;
}

macro_rules! listed {
    ($( $variant:ident($view:ident) ),+) => {
        $(
            impl Listed for $view {
                fn question(query: Query<$view>) -> Question {
                    Question::$variant(query)
                }

                fn page(answer: Question) -> Option<Query<$view>> {
                    if let Question::$variant(page) = answer { Some(page) } else { None }
                }
            }
        )+
    };
}

listed!(
    Expectations(ExpectationView),
    Grants(GrantView),
    Mappings(MappingView),
    Neighbours(AnyView),
    Sessions(SessionView),
    Subscribers(SubscriberView)
);

/// The numbers of one worker at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time of the snapshot.
    pub now: Instant,
    /// Verdicts and events.
    pub counters: Counters,
    /// Current mappings.
    pub mappings: u64,
    /// Current sessions.
    pub sessions: u64,
    /// Current subscribers with at least one mapping.
    pub subscribers: u64,
    /// What gateways have, by [`alg::AlgId`].
    pub gateways: [GatewayNow; alg::ALGS.len()],
    /// The current idle times.
    pub timeouts: nat::settings::Timeouts,
    /// Counters of its events.
    pub events: EventCounters,
    /// Counters of the links.
    pub links: LinkCounters,
    /// Frames to and from the kernel.
    pub kernel: KernelCounters,
    /// By logical interface.
    pub interfaces: Vec<InterfaceCounters>,
    /// By port, for all workers together.
    pub ports: Vec<PortStatistics>,
    /// By port.
    pub ports_up: Vec<bool>,
    /// Busy time of this worker.
    pub busy_us: u64,
    /// Its rounds by time.
    pub rounds: Rounds,
    /// Neighbours in its cache.
    pub neighbours: u64,
    /// Those without an answer.
    pub neighbours_unresolved: u64,
    /// Packets for it in the rings of other workers.
    pub hand_off_waiting: u64,
    /// Claims of other stations to addresses of Natrix.
    pub conflicts: Conflicts,
    /// Routers that were found silent or answering last.
    pub routers: Vec<RouterView<IpAddr>>,
}

/// The worker's end.
#[derive(Debug)]
pub struct Mailbox {
    questions: Consumer<(u64, Question)>,
    answers: Producer<(u64, Question)>,
    current: u64,
}

/// The asker's end, for one thread at a time.
#[derive(Debug)]
pub struct Asker {
    questions: Producer<(u64, Question)>,
    answers: Consumer<(u64, Question)>,
    last: u64,
}

/// The two ends of a mailbox.
pub fn mailbox() -> (Asker, Mailbox) {
    let (questions, questions_consumer) = ring::channel(QUESTIONS_MAX);
    // The capacity for answers equals that for questions, so that a worker never waits.
    let (answers_producer, answers) = ring::channel(QUESTIONS_MAX * 2);
    let asker = Asker { questions, answers, last: 0 };
    (asker, Mailbox { questions: questions_consumer, answers: answers_producer, current: 0 })
}

impl Mailbox {
    pub(crate) fn next_question(&mut self) -> Option<Question> {
        let (number, question) = self.questions.try_pop()?;
        self.current = number;
        Some(question)
    }

    pub(crate) fn answer(&mut self, answer: Question) {
        // Full only if the asker has given up on that many; then it does not want this one either.
        let _ = self.answers.try_push((self.current, answer));
    }
}

impl Asker {
    /// Posts a question.
    ///
    /// # Errors
    /// Returns the question if the worker has not answered earlier ones.
    pub fn ask(&mut self, question: Question) -> Result<(), Question> {
        if self.questions.room(KEPT_FOR_UNDOING + 1) > KEPT_FOR_UNDOING {
            self.ask_to_undo(question)
        } else {
            Err(question)
        }
    }

    /// As [`Asker::ask`], to undo a change: also uses the places that are kept for that.
    ///
    /// # Errors
    /// As [`Asker::ask`].
    pub fn ask_to_undo(&mut self, question: Question) -> Result<(), Question> {
        self.last += 1;
        self.questions.try_push((self.last, question)).map_err(|(_, question)| question)
    }

    /// The answer to the last question, if it is there. Drops answers to earlier questions.
    pub fn answer(&mut self) -> Option<Question> {
        while let Some((number, answer)) = self.answers.try_pop() {
            if number == self.last {
                return Some(answer);
            }
        }
        None
    }

    /// Drops answers to earlier questions. True if there were any: the worker works, if slowly.
    pub fn has_answered_late(&mut self) -> bool {
        let mut count = 0;
        while self.answers.try_pop().is_some() {
            count += 1;
        }
        count > 0
    }

    /// True if the worker is gone.
    pub fn is_abandoned(&self) -> bool {
        self.questions.is_abandoned()
    }
}

impl<I: Io> Worker<I> {
    /// Fills in one question.
    pub(crate) fn answer(&mut self, now: Instant, question: Question) -> Question {
        match question {
            Question::Snapshot(mut snapshot) => {
                self.fill_snapshot(now, &mut snapshot);
                Question::Snapshot(snapshot)
            }
            Question::Mappings(mut page) => {
                self.shard.view().mappings_page(now, &mut page);
                Question::Mappings(page)
            }
            Question::Grants(mut page) => {
                self.shard.view().grants_page(now, &mut page);
                Question::Grants(page)
            }
            Question::Expectations(mut page) => {
                self.shard.view().expectations_page(now, &mut page);
                Question::Expectations(page)
            }
            Question::Sessions(mut page) => {
                self.shard.view().sessions_page(now, &mut page);
                Question::Sessions(page)
            }
            Question::Subscribers(mut page) => {
                self.shard.view().subscribers_page(now, &mut page);
                Question::Subscribers(page)
            }
            Question::Neighbours(mut page) => {
                self.outlet.neighbours_page(&mut page);
                Question::Neighbours(page)
            }
            Question::Holder { external, protocol, .. } => {
                let mapping = self.shard.view().mapping_by_external(now, external, protocol);
                Question::Holder { external, protocol, mapping }
            }
            Question::Explain { from, onward, packet, .. } => {
                let explanation = match onward {
                    None => {
                        self.explain_as_host(from, &packet).unwrap_or_else(|| self.shard.explain(now, from, &packet))
                    }
                    Some(onward) => self.shard.explain_onward(now, onward, &packet),
                };
                Question::Explain { from, onward, packet, explanation: Some(Box::new(explanation)) }
            }
            Question::Expect(mut expectation) => {
                self.expect(&mut expectation);
                Question::Expect(expectation)
            }
            Question::Adopt(mut adoption) => {
                self.adopt(now, &mut adoption);
                Question::Adopt(adoption)
            }
            Question::Reshape { shared, reshapes, offers } => {
                for reshape in &reshapes {
                    if offers {
                        shared.offer(reshape);
                    } else {
                        shared.withhold(reshape);
                    }
                }
                Question::Reshape { shared, reshapes, offers }
            }
            Question::Census { candidate, cursor, mut census } => {
                let from = cursor.unwrap_or(0);
                let cursor = self.shard.view().census_page(now, &candidate, from, PAGE_SCAN, &mut census);
                Question::Census { candidate, cursor, census }
            }
            Question::TraceStart(tap) => Question::TraceStart(tap.and_then(|tap| self.tracer.start(tap).err())),
            Question::TraceStop(id) => {
                self.tracer.stop(id);
                Question::TraceStop(id)
            }
        }
    }

    /// An IPv6 packet to Natrix as a host, which the shard does not see. `None` for another packet.
    fn explain_as_host(&self, from: Facing, packet: &[u8]) -> Option<Explanation> {
        let address = Ipv6Addr::from_bits(Ipv6::new_checked(packet).ok()?.destination());
        let (shared, node) = (self.shard.shared(), &self.outlet.node);
        let faces = (0..).map(InterfaceId).zip(&shared.settings().interfaces).filter(|(_, one)| one.facing() == from);
        let mut taken = faces.filter(|(id, _)| !shared.takes_ipv6(*id, packet));
        let (interface, verdict) = taken.find_map(|(id, _)| Some((id, node.preview(id, packet)?)))?;
        let mut steps = vec![Step::OwnAddress6(address)];
        if verdict == Verdict::AddressNotUsed {
            let mut all = node.own_addresses().all().iter().filter(|own| own.address == address.to_bits());
            let now = all.find(|own| own.now() != AddressUse::Preferred).map(OwnAddress::now);
            steps.extend(now.map(|now| Step::AddressNotUsed { address, now }));
        }
        let is_for_kernel = self.outlet.has_kernel(interface) && node.is_for_kernel(interface, address.to_bits());
        let verdict = if is_for_kernel { Verdict::LocalKernel } else { verdict };
        Some(Explanation { steps, verdict, source_after: None, destination_after: None, onward: None })
    }

    /// Copies all numbers.
    pub fn fill_snapshot(&mut self, now: Instant, snapshot: &mut Snapshot) {
        snapshot.now = now;
        snapshot.counters.clone_from(self.shard.counters());
        snapshot.mappings = u64::from(self.shard.view().mappings_len());
        snapshot.sessions = self.shard.sessions_len();
        snapshot.subscribers = self.shard.view().subscribers_len() as u64;
        snapshot.gateways = self.shard.view().gateways_now();
        snapshot.events = self.shard.event_counters();
        snapshot.timeouts = self.shard.timeouts();
        snapshot.links = self.outlet.counters;
        snapshot.kernel = self.outlet.kernel.as_ref().map_or_else(KernelCounters::default, |kernel| kernel.counters);
        snapshot.interfaces.clear();
        snapshot.interfaces.extend_from_slice(&self.outlet.interfaces);
        snapshot.ports.clear();
        snapshot.ports_up.clear();
        for port in 0..self.outlet.links.port_count() {
            let port = PortIndex(port as u16);
            snapshot.ports.push(self.outlet.io.statistics(port));
            snapshot.ports_up.push(self.outlet.io.link_up(port));
        }
        snapshot.busy_us = self.busy_us;
        snapshot.rounds = self.rounds;
        (snapshot.neighbours, snapshot.neighbours_unresolved) = self.outlet.neighbours_len();
        snapshot.hand_off_waiting = self.outlet.crossings.waiting() as u64;
        snapshot.conflicts = *self.conflicts();
        snapshot.routers.clear();
        snapshot.routers.extend(self.outlet.routers());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_room_to_undo_a_change() {
        let (mut asker, mut inbox) = mailbox();
        let mut asked = 0;
        while asker.ask(Question::TraceStop(asked)).is_ok() {
            asked += 1;
        }
        for number in asked..asked + KEPT_FOR_UNDOING as u64 {
            asker.ask_to_undo(Question::TraceStop(number)).unwrap();
        }
        assert!(asker.ask_to_undo(Question::TraceStop(0)).is_err());
        for number in 0..asked + KEPT_FOR_UNDOING as u64 {
            let question = inbox.next_question();
            assert!(matches!(question, Some(Question::TraceStop(next)) if next == number), "{question:?}");
        }
    }

    #[test]
    fn a_late_answer_shows_that_a_worker_works() {
        let (mut asker, mut inbox) = mailbox();
        assert!(!asker.has_answered_late());
        asker.ask(Question::TraceStop(1)).unwrap();
        assert!(!asker.has_answered_late(), "nothing yet");
        let question = inbox.next_question().unwrap();
        inbox.answer(question);
        assert!(asker.has_answered_late());
        assert!(!asker.has_answered_late(), "it is dropped");
        asker.ask(Question::TraceStop(2)).unwrap();
        let question = inbox.next_question().unwrap();
        inbox.answer(question);
        assert!(matches!(asker.answer(), Some(Question::TraceStop(2))), "the next one comes");
    }
}
