//! Questions of the control server to one worker, answered between two bursts.
//!
//! Each answer is bounded work: a page of at most so many records, found by looking at no more than so many. What it
//! needs is allocated by who asks and comes back with the answer.

use std::sync::Arc;

use mem::ring;
use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Census;
use nat::Counters;
use nat::Instant;
use nat::Protocol;
use nat::Shared;
use nat::change::Reshape;
use nat::event::EventCounters;
use nat::types::Endpoint;
use nat::types::Facing;
use nat::view::Explanation;
use nat::view::Filter;
use nat::view::MappingView;
use nat::view::Onward;
use nat::view::SessionView;
use nat::view::SubscriberView;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::PortStatistics;

use crate::adoption::Adoption;
use crate::adoption::Expectation;
use crate::neighbour::Learnt;
use crate::outlet::InterfaceCounters;
use crate::outlet::LinkCounters;
use crate::trace::Tap;
use crate::worker::Worker;

/// Questions that may wait for one worker.
const QUESTIONS_MAX: usize = 16;

/// Records a worker returns between two bursts at most.
pub const PAGE_RECORDS: usize = 64;
/// Records a worker looks at between two bursts at most: some tens of microseconds.
pub const PAGE_SCAN: usize = 1_024;

/// A page of records.
#[derive(Debug)]
pub struct Page<V> {
    /// Where to start; 0 at first, then what the page before ended with.
    pub cursor: u32,
    /// Records wanted at most.
    pub limit: usize,
    /// Records looked at most.
    pub scan_max: usize,
    /// Which records.
    pub filter: Filter,
    /// Where they go; has room for `limit`.
    pub records: Vec<V>,
    /// Out: where to go on; None at the end.
    pub next: Option<u32>,
}

impl<V> Page<V> {
    /// An empty page.
    pub fn new(cursor: u32, limit: usize, scan_max: usize, filter: Filter) -> Page<V> {
        Page { cursor, limit, scan_max, filter, records: Vec::with_capacity(limit), next: None }
    }
}

/// What a worker can be asked. It comes back, filled in, as the answer.
#[derive(Debug)]
pub enum Question {
    /// All numbers of the worker.
    Snapshot(Box<Snapshot>),
    /// Mappings.
    Mappings(Page<MappingView>),
    /// Sessions.
    Sessions(Page<SessionView>),
    /// Subscribers.
    Subscribers(Page<SubscriberView>),
    /// The mapping with this external endpoint.
    Holder {
        /// The endpoint.
        external: Endpoint,
        /// Its transport.
        protocol: Protocol,
        /// Out: the mapping, when this worker has it.
        mapping: Option<MappingView>,
    },
    /// What would happen to this IP packet.
    Explain {
        /// Where it would come from.
        from: Facing,
        /// Its second half, if it is hairpinned and the first one is explained.
        onward: Option<Onward>,
        /// The packet.
        packet: Vec<u8>,
        /// Out: the explanation.
        explanation: Option<Explanation>,
    },
    /// Know the addresses of settings that others may go by soon.
    Expect(Box<Expectation>),
    /// Go on under other settings.
    Adopt(Box<Adoption>),
    /// Take ports of some addresses out, or put them in.
    Reshape {
        /// The snapshot that says how.
        shared: Arc<Shared>,
        /// The addresses, few enough for one poll.
        reshapes: Vec<Reshape>,
        /// Put in; false: take out.
        offers: bool,
    },
    /// What a change would do to the records from `cursor` on.
    Census {
        /// The snapshot it would lead to.
        candidate: Arc<Shared>,
        /// Where to go on; 0 at first. Out: None at the end.
        cursor: Option<u32>,
        /// What was counted so far.
        census: Box<Census>,
    },
    /// Start a trace. The tap comes back when there are too many.
    TraceStart(Option<Tap>),
    /// End a trace.
    TraceStop(u64),
}

/// The numbers of one worker at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was taken.
    pub now: Instant,
    /// Verdicts and events.
    pub counters: Counters,
    /// Mappings now.
    pub mappings: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Subscribers with at least one mapping now.
    pub subscribers: u64,
    /// The idle times in force.
    pub timeouts: nat::settings::Timeouts,
    /// What became of its events.
    pub events: EventCounters,
    /// What happened on the links.
    pub links: LinkCounters,
    /// By logical interface.
    pub interfaces: Vec<InterfaceCounters>,
    /// By port; over all workers, not this one's share.
    pub ports: Vec<PortStatistics>,
    /// By port.
    pub ports_up: Vec<bool>,
    /// Time this worker had something to do.
    pub busy_us: u64,
    /// Somebody else claimed an address of ours since the last snapshot.
    pub conflict: Option<Learnt>,
}

/// The worker's end.
#[derive(Debug)]
pub struct Mailbox {
    questions: Consumer<(u64, Question)>,
    answers: Producer<(u64, Question)>,
    current: u64,
}

/// The asker's end. One at a time may use it.
#[derive(Debug)]
pub struct Asker {
    questions: Producer<(u64, Question)>,
    answers: Consumer<(u64, Question)>,
    last: u64,
}

/// The two ends of a mailbox.
pub fn mailbox() -> (Asker, Mailbox) {
    let (questions, questions_consumer) = ring::channel(QUESTIONS_MAX);
    // As many answers as questions can be on their way, so that a worker never waits.
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
        // Full only when the asker has given up on so many; then it does not want this one either.
        let _ = self.answers.try_push((self.current, answer));
    }
}

impl Asker {
    /// Leaves a question.
    ///
    /// # Errors
    /// The question, when the worker has not got round to earlier ones.
    pub fn ask(&mut self, question: Question) -> Result<(), Question> {
        self.last += 1;
        self.questions.try_push((self.last, question)).map_err(|(_, question)| question)
    }

    /// The answer to the last question, if it is there. Answers to earlier ones, which nobody waited for, are dropped.
    pub fn answer(&mut self) -> Option<Question> {
        while let Some((number, answer)) = self.answers.try_pop() {
            if number == self.last {
                return Some(answer);
            }
        }
        None
    }

    /// Whether the worker is gone.
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
                page.next = self.shard.mappings_page(
                    now,
                    page.cursor,
                    page.limit,
                    page.scan_max,
                    &page.filter,
                    &mut page.records,
                );
                Question::Mappings(page)
            }
            Question::Sessions(mut page) => {
                page.next = self.shard.sessions_page(
                    now,
                    page.cursor,
                    page.limit,
                    page.scan_max,
                    &page.filter,
                    &mut page.records,
                );
                Question::Sessions(page)
            }
            Question::Subscribers(mut page) => {
                page.next = self.shard.subscribers_page(
                    now,
                    page.cursor,
                    page.limit,
                    page.scan_max,
                    &page.filter,
                    &mut page.records,
                );
                Question::Subscribers(page)
            }
            Question::Holder { external, protocol, .. } => {
                let mapping = self.shard.mapping_by_external(now, external, protocol);
                Question::Holder { external, protocol, mapping }
            }
            Question::Explain { from, onward, packet, .. } => {
                let explanation = Some(match onward {
                    None => self.shard.explain(now, from, &packet),
                    Some(onward) => self.shard.explain_onward(now, onward, &packet),
                });
                Question::Explain { from, onward, packet, explanation }
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
                let cursor = self.shard.census_page(now, &candidate, from, PAGE_SCAN, &mut census);
                Question::Census { candidate, cursor, census }
            }
            Question::TraceStart(tap) => Question::TraceStart(tap.and_then(|tap| self.tracer.start(tap).err())),
            Question::TraceStop(id) => {
                self.tracer.stop(id);
                Question::TraceStop(id)
            }
        }
    }

    /// Copies all numbers.
    pub fn fill_snapshot(&mut self, now: Instant, snapshot: &mut Snapshot) {
        snapshot.now = now;
        snapshot.counters.clone_from(self.shard.counters());
        snapshot.mappings = u64::from(self.shard.mappings_len());
        snapshot.sessions = self.shard.sessions_len();
        snapshot.subscribers = self.shard.subscribers_len() as u64;
        snapshot.events = self.shard.event_counters();
        snapshot.timeouts = self.shard.timeouts();
        snapshot.links = self.outlet.counters;
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
        snapshot.conflict = self.take_conflict();
    }
}
