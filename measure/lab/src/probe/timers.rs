//! How long the NAT keeps a flow of each state, and what refreshes it.
//!
//! A question may refresh what it asks about, so each flow is asked once. Bisection with one flow
//! at a time would take hours; so many are opened at once and each is asked at another time. One
//! pass over the times up to the limit finds for every state the last time at which the flow was
//! there and the first at which it was not; the next pass divides that interval again, until it is
//! short enough.
//!
//! ```text
//!   flow 1  open ──── ask: there
//!   flow 2  open ────────── ask: there      ◄─ between these two
//!   flow 3  open ─────────────── ask: gone  ◄─ is its time
//!   flow 4  open ───────────────────── ask: gone
//! ```

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use serde_json::json;

use super::Progress;
use super::finding::Finding;
use super::finding::Verdict;
use super::flow_state::Flow;
use super::flow_state::FlowState;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;

/// How timers are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimerLimits {
    /// Nothing is waited for longer than this.
    pub max: Duration,
    /// The interval a time is found in is no longer than this, and no shorter than a hundredth of
    /// the time.
    pub resolution: Duration,
}

/// Flows of each state in one pass.
const FLOWS: u32 = 24;
/// Passes at most: each divides the interval by the number of flows.
const PASSES_MAX: u32 = 6;
/// The first question of the first pass: whether the flow is there at all.
const AT_ONCE: Duration = Duration::from_millis(20);

/// What refreshes a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refresher {
    /// A packet of the flow from inside.
    Outbound,
    /// A packet of the flow from outside.
    Inbound,
    /// An ICMP error from outside about the flow (RFC 5508 REQ-6, RFC 4787 REQ-12).
    InboundError,
    /// An ICMP error from inside about a packet of the flow (RFC 7857 §7.1).
    OutboundError,
}

impl Refresher {
    /// All.
    pub const ALL: [Refresher; 4] =
        [Refresher::Outbound, Refresher::Inbound, Refresher::InboundError, Refresher::OutboundError];

    const fn words(self) -> &'static str {
        match self {
            Refresher::Outbound => "outbound packets",
            Refresher::Inbound => "inbound packets",
            Refresher::InboundError => "ICMP errors from outside",
            Refresher::OutboundError => "ICMP errors from inside",
        }
    }
}

/// What was found of one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// The state.
    pub state: FlowState,
    /// Flows were there after this time, seconds; None when none was, even at once.
    pub alive_seconds: Option<f64>,
    /// Flows were gone after this time, seconds; None when they were there at the limit.
    pub gone_seconds: Option<f64>,
    /// Flows opened and asked.
    pub flows: u32,
    /// Flows that were there after others of the same state, asked earlier, were not.
    pub contradictions: u32,
    /// How late a flow was asked at most, seconds: the tester's own fault. The times above are
    /// those at which they were asked indeed.
    pub late_seconds: f64,
    /// What refreshes it, where that was looked at.
    pub refreshed_by: BTreeMap<Refresher, bool>,
    /// Every flow that was asked: all of the above comes of them. First those that nothing was to
    /// refresh, by the times they were asked at.
    pub samples: Vec<Sample>,
}

/// A flow that was asked. Times are counted from the last packet that brought it into its state,
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// When it was asked.
    pub asked_seconds: f64,
    /// Whether it was there.
    pub there: bool,
    /// What was to refresh it before; null where nothing was.
    pub refresher: Option<Refresher>,
    /// When that was planned.
    pub refreshed_seconds: Option<f64>,
}

impl Sample {
    fn of(answer: &Answer) -> Sample {
        Sample {
            asked_seconds: milliseconds(answer.asked.as_secs_f64()),
            there: answer.there,
            refresher: answer.plan.refresh.map(|(_, refresher)| refresher),
            refreshed_seconds: answer.plan.refresh.map(|(after, _)| milliseconds(after.as_secs_f64())),
        }
    }
}

impl Timer {
    /// As it stands in a result. `refresh` is `outbound`, `inbound`, `both` or `none`; null where
    /// that was not looked at.
    pub fn record(&self) -> Value {
        let by = |refresher| self.refreshed_by.get(&refresher).copied();
        let refresh = match (by(Refresher::Outbound), by(Refresher::Inbound)) {
            (Some(true), Some(true)) => Some("both"),
            (Some(true), _) => Some("outbound"),
            (_, Some(true)) => Some("inbound"),
            (Some(false), _) => Some("none"),
            _ => None,
        };
        let name = self.state.name();
        json!({
            "protocol": protocol_of(self.state).name(),
            "state": name.split_once('.').map_or(name, |(_, state)| state),
            "reached_by": self.state.how(),
            "seconds_low": self.alive_seconds.map(milliseconds),
            "seconds_high": self.gone_seconds.map(milliseconds),
            "beyond": self.alive_seconds.is_some() && self.gone_seconds.is_none(),
            "refresh": refresh,
            "errors_refresh": by(Refresher::InboundError).or(by(Refresher::OutboundError)).map(|_| {
                by(Refresher::InboundError) == Some(true) || by(Refresher::OutboundError) == Some(true)
            }),
            "flows": self.flows,
            "contradictions": self.contradictions,
            "late_seconds": milliseconds(self.late_seconds),
            "samples": self.samples,
        })
    }

    /// In words: `4.0 s`, `> 300 s`, `gone at once`.
    pub fn words(&self) -> String {
        match (self.alive_seconds, self.gone_seconds) {
            (None, None) => "not asked".to_owned(),
            (None, _) => "gone at once".to_owned(),
            (Some(alive), None) => format!("> {:.0} s", alive.floor()),
            (Some(alive), Some(gone)) => {
                let resolution = gone - alive;
                let places = usize::from(resolution < 0.95);
                format!("{:.places$} s (±{:.places$})", f64::midpoint(alive, gone), (resolution / 2.0).max(0.1))
            }
        }
    }

    /// Whether flows live at least so long. A time within the interval counts as long enough: the
    /// interval is what the time is known to, and a timer that is set to the very bound would never
    /// be known to reach it.
    pub fn at_least(&self, seconds: f64) -> Verdict {
        match (self.alive_seconds, self.gone_seconds) {
            (Some(alive), _) if alive >= seconds => Verdict::Met,
            (Some(_), None) => Verdict::Undecided,
            (Some(_), Some(gone)) => Verdict::of(gone >= seconds),
            (None, None) => Verdict::Undecided,
            (None, _) => Verdict::NotMet,
        }
    }
}

/// Seconds to the millisecond: more is nowhere in them.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// What is to be done with a flow, and when, counted from its last packet.
#[derive(Clone, Copy, Debug)]
struct Plan {
    state: FlowState,
    refresh: Option<(Duration, Refresher)>,
    ask: Duration,
}

/// What came of a plan.
#[derive(Clone, Copy, Debug)]
struct Answer {
    plan: Plan,
    /// When it was asked indeed, counted from its last packet.
    asked: Duration,
    /// The same by the clock of the world.
    asked_at: Duration,
    there: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Talk,
    Refresh,
    Ask,
}

/// Carries out all plans at the same time. When it is interrupted, `answers` has those of the flows
/// that were asked until then.
fn run(prober: &mut Prober<'_>, plans: Vec<Plan>, answers: &mut Vec<Answer>) -> Result<(), ProbeError> {
    let done = carry_out(prober, plans, answers);
    if done.is_err() {
        // The answer of those asked last may have been on its way.
        let last = answers.iter().map(|answer| answer.asked_at).max().unwrap_or_default();
        answers.retain(|answer| answer.there || answer.asked_at + prober.patience() < last);
    }
    done
}

fn carry_out(prober: &mut Prober<'_>, mut plans: Vec<Plan>, answers: &mut Vec<Answer>) -> Result<(), ProbeError> {
    // Those that wait longest first: while the others are opened nobody is late.
    plans.sort_by_key(|plan| Reverse(plan.ask + plan.state.preparation()));
    let mut flows: Vec<(Flow, Plan, Duration)> = Vec::new();
    let mut due = BinaryHeap::new();
    let mut by_endpoint = HashMap::new();
    let mut asked = HashMap::new();
    for plan in plans {
        let Some(flow) = Flow::open(prober, plan.state)? else { continue };
        let begun = prober.now();
        let index = flows.len();
        let steps = [Some((plan.ask, Step::Ask)), plan.refresh.map(|(after, _)| (after, Step::Refresh))];
        for (after, step) in steps.into_iter().flatten() {
            due.push(Reverse((begun + plan.state.preparation() + after, step, index)));
        }
        for after in plan.state.talks() {
            due.push(Reverse((begun + *after, Step::Talk, index)));
        }
        by_endpoint.insert((protocol_of(plan.state), flow.connection.internal), index);
        flows.push((flow, plan, begun + plan.state.preparation()));
    }
    let note = |asked: &mut HashMap<usize, (Seen, usize)>, answers: &mut [Answer], side: Side, seen: &Seen| {
        let Some(protocol) = seen.protocol.filter(|_| side == Side::Inside) else { return };
        let Some(index) = by_endpoint.get(&(protocol, seen.destination)) else { return };
        if let Some((question, answer)) = asked.get(index)
            && seen.is(question)
        {
            answers[*answer].there = true;
        }
    };
    while let Some(Reverse((when, step, index))) = due.pop() {
        while let Some((side, _, seen)) = prober.next(when)? {
            note(&mut asked, answers, side, &seen);
        }
        let (flow, plan, begun) = &mut flows[index];
        match step {
            Step::Talk => {
                flow.talk(prober)?;
                *begun = prober.now();
            }
            Step::Refresh => {
                let Some((_, refresher)) = plan.refresh else { continue };
                for (side, packet) in refreshing(prober, flow, refresher) {
                    prober.send(side, &packet)?;
                }
            }
            Step::Ask => {
                let question = flow.question(prober);
                let Some(seen) = Seen::read(&question) else { continue };
                asked.insert(index, (seen, answers.len()));
                let asked_at = prober.now();
                answers.push(Answer { plan: *plan, asked: asked_at - *begun, asked_at, there: false });
                prober.send(Side::Outside, &question)?;
            }
        }
    }
    let until = prober.now() + prober.patience();
    while let Some((side, _, seen)) = prober.next(until)? {
        note(&mut asked, answers, side, &seen);
    }
    Ok(())
}

fn protocol_of(state: FlowState) -> Protocol {
    match state {
        FlowState::UdpUnanswered | FlowState::UdpAnswered | FlowState::UdpStream => Protocol::Udp,
        FlowState::IcmpQuery => Protocol::Icmp,
        _ => Protocol::Tcp,
    }
}

/// The packets that may refresh.
fn refreshing(prober: &mut Prober<'_>, flow: &Flow, refresher: Refresher) -> Vec<(Side, Vec<u8>)> {
    let transit = prober.site().transit;
    let internal = flow.connection.internal;
    match refresher {
        Refresher::Outbound => vec![(Side::Inside, flow.refresh(prober, Side::Inside))],
        Refresher::Inbound => vec![(Side::Outside, flow.refresh(prober, Side::Outside))],
        Refresher::InboundError => {
            // It quotes a packet of the client as it looks outside.
            let mut outside = *flow;
            outside.connection.internal = flow.connection.external;
            let quote = outside.refresh(prober, Side::Inside);
            vec![(
                Side::Outside,
                wire::build::icmp_error(transit, *flow.connection.external.ip(), 3, 3, &quote).build(),
            )]
        }
        Refresher::OutboundError => {
            let mut inside = *flow;
            inside.connection.external = internal;
            let quote = inside.refresh(prober, Side::Outside);
            vec![(
                Side::Inside,
                wire::build::icmp_error(*internal.ip(), *flow.connection.remote.ip(), 3, 3, &quote).build(),
            )]
        }
    }
}

/// Finds the times of these states, and what refreshes them. `timers` has what is known after each
/// pass, also when it is interrupted.
///
/// # Errors
/// When packets cannot be sent, or it is interrupted.
pub fn measure(
    prober: &mut Prober<'_>,
    states: &[FlowState],
    limits: &TimerLimits,
    timers: &mut Vec<Timer>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), ProbeError> {
    let mut found: BTreeMap<FlowState, Vec<Answer>> = states.iter().map(|state| (*state, Vec::new())).collect();
    for pass in 0..PASSES_MAX {
        let mut plans = Vec::new();
        for (state, answers) in &found {
            let times = match bracket(answers) {
                _ if pass == 0 => first_times(limits),
                (_, None) | (None, _) => continue,
                (Some(alive), Some(gone)) if gone.saturating_sub(alive) <= resolution(limits, gone) => continue,
                (Some(alive), Some(gone)) => {
                    let step = (gone - alive) / (FLOWS + 1);
                    let count = FLOWS.min((gone - alive).div_duration_f64(resolution(limits, gone)).ceil() as u32 * 2);
                    let step = step * (FLOWS + 1) / (count + 1);
                    (1..=count).map(|number| alive + step * number).collect()
                }
            };
            plans.extend(times.into_iter().map(|ask| Plan { state: *state, refresh: None, ask }));
        }
        if plans.is_empty() {
            break;
        }
        let longest = plans.iter().map(|plan| plan.ask + plan.state.preparation()).max().unwrap_or_default();
        progress(Progress::Waiting { what: "timers", flows: plans.len(), at_most: longest });
        let mut answers = Vec::new();
        let done = run(prober, plans, &mut answers);
        for answer in answers {
            found.entry(answer.plan.state).or_default().push(answer);
        }
        *timers = found.iter().map(|(state, answers)| timer_of(*state, answers)).collect();
        done?;
    }
    find_refreshers(prober, timers, progress)
}

fn resolution(limits: &TimerLimits, time: Duration) -> Duration {
    limits.resolution.max(time / 100)
}

/// Times of the first pass: at once, then in equal ratios up to the limit.
fn first_times(limits: &TimerLimits) -> Vec<Duration> {
    let first = limits.resolution.min(limits.max / 2).as_secs_f64();
    let ratio = (limits.max.as_secs_f64() / first).powf(1.0 / f64::from(FLOWS - 2));
    let times = (0..FLOWS - 1).map(|number| Duration::from_secs_f64(first * ratio.powi(number as i32)));
    [AT_ONCE].into_iter().chain(times).collect()
}

/// The last time a flow was there, and the first after it at which one was not.
fn bracket(answers: &[Answer]) -> (Option<Duration>, Option<Duration>) {
    let alive = answers.iter().filter(|answer| answer.there).map(|answer| answer.asked).max();
    let gone = answers.iter().filter(|answer| !answer.there && Some(answer.asked) > alive).map(|answer| answer.asked);
    (alive, gone.min())
}

fn timer_of(state: FlowState, answers: &[Answer]) -> Timer {
    let (alive, gone) = bracket(answers);
    let first_gone = answers.iter().filter(|answer| !answer.there).map(|answer| answer.asked).min();
    let contradictions =
        answers.iter().filter(|answer| answer.there && first_gone.is_some_and(|gone| answer.asked > gone));
    let late = answers.iter().map(|answer| answer.asked.saturating_sub(answer.plan.ask));
    let mut samples: Vec<Sample> = answers.iter().map(Sample::of).collect();
    samples.sort_by(|a, b| a.asked_seconds.total_cmp(&b.asked_seconds));
    Timer {
        state,
        alive_seconds: alive.map(|alive| alive.as_secs_f64()),
        gone_seconds: gone.map(|gone| gone.as_secs_f64()),
        flows: answers.len() as u32,
        contradictions: contradictions.count() as u32,
        late_seconds: late.max().unwrap_or_default().as_secs_f64(),
        refreshed_by: BTreeMap::new(),
        samples,
    }
}

/// Refreshes flows at three fifths of their time, and asks when they would be gone without.
fn find_refreshers(
    prober: &mut Prober<'_>,
    timers: &mut [Timer],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), ProbeError> {
    const REFRESHED: [FlowState; 4] =
        [FlowState::UdpUnanswered, FlowState::UdpAnswered, FlowState::TcpEstablished, FlowState::IcmpQuery];
    let mut plans = Vec::new();
    for timer in timers.iter().filter(|timer| REFRESHED.contains(&timer.state)) {
        let (Some(alive), Some(gone)) = (timer.alive_seconds, timer.gone_seconds) else { continue };
        let ask = Duration::from_secs_f64(gone + alive * 0.3);
        let refresh = Duration::from_secs_f64(alive * 0.6);
        // What comes in answers a flow that is unanswered: it has another state then, and another
        // time.
        let is_answer = |refresher| timer.state == FlowState::UdpUnanswered && refresher == Refresher::Inbound;
        let refreshers = Refresher::ALL.into_iter().filter(|refresher| !is_answer(*refresher));
        plans.extend(refreshers.map(|refresher| Plan { state: timer.state, refresh: Some((refresh, refresher)), ask }));
    }
    if plans.is_empty() {
        return Ok(());
    }
    let longest = plans.iter().map(|plan| plan.ask + plan.state.preparation()).max().unwrap_or_default();
    progress(Progress::Waiting { what: "what refreshes", flows: plans.len(), at_most: longest });
    let mut answers = Vec::new();
    let done = run(prober, plans, &mut answers);
    for answer in answers {
        let Some((_, refresher)) = answer.plan.refresh else { continue };
        let timer = timers.iter_mut().find(|timer| timer.state == answer.plan.state);
        if let Some(timer) = timer {
            timer.refreshed_by.insert(refresher, answer.there);
            timer.samples.push(Sample::of(&answer));
        }
    }
    done
}

/// A finding for each timer, and one for what refreshes each state.
pub fn findings(timers: &[Timer]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for timer in timers {
        let state = timer.state;
        let mut finding = Finding::new(format!("timer.{}", state.name()), timer.words());
        let seconds = |value: Option<f64>| value.map_or("never".to_owned(), |value| format!("{value:.2} s"));
        finding = finding.seen(format!(
            "{}: there after {}, gone after {}; {} flows, each asked once by its server",
            state.how(),
            seconds(timer.alive_seconds),
            seconds(timer.gone_seconds),
            timer.flows,
        ));
        if timer.contradictions > 0 {
            finding = finding.seen(format!(
                "{} flows were there though others asked earlier were not: packets were lost, or the time is not always the same",
                timer.contradictions
            ));
        }
        for (requirement, asks, least) in bounds(state) {
            finding = finding.judged(requirement, asks, timer.at_least(*least));
        }
        findings.push(finding);
        if !timer.refreshed_by.is_empty() {
            findings.push(refresh_finding(timer));
        }
    }
    findings
}

/// Says of these findings that the lab had set the timers: what the RFCs ask of their length is not
/// judged by them.
pub fn mark_as_set_by_the_lab(findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|finding| finding.name.starts_with("timer.")) {
        finding.value.push_str(" (with the timers the lab set)");
        for judgement in &mut finding.judgements {
            judgement.verdict = Verdict::NotApplicable;
        }
    }
}

fn refresh_finding(timer: &Timer) -> Finding {
    let by = |refresher| timer.refreshed_by.get(&refresher).copied();
    let refreshers: Vec<&str> = timer
        .refreshed_by
        .iter()
        .filter(|(_, refreshes)| **refreshes)
        .map(|(refresher, _)| refresher.words())
        .collect();
    let value = if refreshers.is_empty() { "nothing".to_owned() } else { refreshers.join(", ") };
    let mut finding = Finding::new(format!("refresh.{}", timer.state.name()), value);
    for (refresher, refreshes) in &timer.refreshed_by {
        let words = if *refreshes { "still there" } else { "gone" };
        finding = finding.seen(format!(
            "{} after three fifths of its time: {words} when it would be gone without",
            refresher.words()
        ));
    }
    let verdict = |refresher, wanted: bool| by(refresher).map_or(Verdict::Undecided, |is| Verdict::of(is == wanted));
    match protocol_of(timer.state) {
        Protocol::Udp => finding
            .judged("RFC 4787 REQ-6", "outbound packets refresh", verdict(Refresher::Outbound, true))
            .judged("RFC 4787 REQ-6a", "inbound packets may refresh", Verdict::NotApplicable)
            .judged("RFC 7857 §7.1", "errors from inside do not refresh", verdict(Refresher::OutboundError, false)),
        Protocol::Icmp => {
            finding.judged("RFC 5508 REQ-6", "errors do not refresh", verdict(Refresher::InboundError, false))
        }
        Protocol::Tcp => finding,
    }
}

/// What the RFCs ask of the time of a state: number, words, seconds.
fn bounds(state: FlowState) -> &'static [(&'static str, &'static str, f64)] {
    match state {
        FlowState::UdpUnanswered | FlowState::UdpAnswered | FlowState::UdpStream => {
            &[("RFC 4787 REQ-5", "at least 120 s", 120.0), ("RFC 4787 REQ-5c", "300 s or more recommended", 300.0)]
        }
        FlowState::TcpSynSent | FlowState::TcpSynReceived => &[("RFC 5382 REQ-5", "at least 240 s", 240.0)],
        FlowState::TcpEstablished => &[("RFC 5382 REQ-5", "at least 7440 s", 7_440.0)],
        // One side may go on sending for as long as in an established connection (RFC 7857 §2).
        FlowState::TcpClientClosed | FlowState::TcpServerClosed => {
            &[("RFC 7857 §2", "as established: at least 7440 s", 7_440.0)]
        }
        FlowState::TcpClosed => &[("RFC 5382 REQ-5", "at least 240 s", 240.0)],
        FlowState::TcpClientReset | FlowState::TcpServerReset => &[("RFC 7857 §2.2", "kept for 240 s", 240.0)],
        FlowState::IcmpQuery => &[("RFC 5508 REQ-2", "at least 60 s", 60.0)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_the_lab_set_is_not_judged_and_what_renews_it_is() {
        let finding =
            |name: &str| Finding::new(name, "5 s").judged("RFC 4787 REQ-5", "at least 120 s", Verdict::NotMet);
        let mut findings = [finding("timer.udp-answered"), finding("refresh.udp-answered")];
        mark_as_set_by_the_lab(&mut findings);
        assert_eq!(findings[0].value, "5 s (with the timers the lab set)");
        assert_eq!(findings[0].verdict(), Verdict::NotApplicable);
        assert_eq!((findings[1].value.as_str(), findings[1].verdict()), ("5 s", Verdict::NotMet));
    }
}
