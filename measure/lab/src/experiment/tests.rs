//! Whole tests of RFC 9693 on devices in memory that do one thing wrong.

use super::*;
use crate::result::Settings;
use crate::tester::FullRing;
use crate::tester::tests as tests_of_tester;
use crate::tester::tests::Mischief;
use crate::tester::tests::Toy;

/// A device that only passes on what it is asked about.
struct Fake {
    sessions: Option<u64>,
    empties: Result<(), u64>,
    /// So often it is still there when it is asked.
    lives: u32,
}

impl Device for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn empty(&mut self) -> Result<Duration, DeviceError> {
        let emptied = self.empties.map(|()| Duration::from_millis(1));
        emptied.map_err(|left| DeviceError::NotEmptied { device: "fake", left })
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        Ok(self.sessions)
    }

    fn alive(&mut self) -> Result<(), DeviceError> {
        let lives = self.lives;
        self.lives = lives.saturating_sub(1);
        let (message, log) = ("killed".to_owned(), "natrix.log".into());
        if lives > 0 { Ok(()) } else { Err(DeviceError::Ended { device: "fake", message, log }) }
    }

    fn settings(&self) -> Settings {
        Settings::default()
    }
}

pub(super) fn parameters() -> Parameters {
    Parameters {
        n: 500,
        preparation_rate: 1e4,
        alpha: 0.8,
        protocol: Protocol::Udp,
        tcp_close: false,
        frame_bytes: FrameSizes::Fixed(64),
        trial_seconds: 0.05,
        rate_min: 1000.0,
        rate_max: 2000.0,
        error: 500.0,
        repetitions: 1,
        direction: Direction::Both,
        seed: 3,
    }
}

/// What an experiment with a toy of this mischief and a device says.
fn message_of<T: core::fmt::Debug>(
    mischief: Mischief,
    mut device: Fake,
    parameters: &Parameters,
    experiment: impl Fn(&mut Experiment<'_, Toy>) -> Result<T, ExperimentError>,
) -> String {
    let space = tests_of_tester::space();
    let mut tester = tests_of_tester::tester(mischief);
    let mut this = Experiment::new(&mut tester, &mut device, &space, parameters);
    experiment(&mut this).map_or_else(|error| error.to_string(), |value| format!("{value:?}"))
}

const EMPTY: Fake = Fake { sessions: Some(0), empties: Ok(()), lives: u32::MAX };

#[test]
fn a_device_that_does_not_answer_is_named_with_a_remedy() {
    let deaf = Mischief { deaf: true, ..Mischief::default() };
    let message = message_of(deaf, EMPTY, &parameters(), |this| this.throughput());
    assert!(message.contains("does not answer ARP for 10.255.0.1 (inside); see that it runs"), "{message}");
}

#[test]
fn a_device_that_passes_nothing_is_not_one_that_loses_some() {
    let hole = Mischief { lose_all: true, ..Mischief::default() };
    let message = message_of(hole, EMPTY, &parameters(), |this| this.throughput());
    assert!(message.contains("passes nothing (0 of 500 frames arrived)"), "{message}");
    // Half of what is sent, five times.
    let leak = Mischief { lose_one_in: Some(2), ..Mischief::default() };
    let message = message_of(leak, EMPTY, &parameters(), |this| this.throughput());
    assert!(message.contains("device: made 4") && message.contains(" of 500 connections at"), "{message}");
}

#[test]
fn a_device_without_connections_fails_each_test_with_a_reason() {
    let hole = Mischief { lose_all: true, ..Mischief::default() };
    let router = Mischief { only_route: true, ..Mischief::default() };
    let limits = CapacityLimits { c0: 100, beta: 0.1, gamma: 0.5, error: 10, max: 500 };
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let parameters = Parameters { protocol, ..parameters() };
        let all = |mischief: Mischief| {
            [
                message_of(mischief, EMPTY, &parameters, |this| this.first_packet_latency(1000.0)),
                message_of(mischief, EMPTY, &parameters, |this| this.capacity(&limits)),
                message_of(mischief, EMPTY, &parameters, |this| this.latency(1000.0)),
                message_of(mischief, EMPTY, &parameters, |this| this.loss()),
            ]
        };
        for message in all(hole) {
            assert!(message.contains("passes nothing (0 of "), "{message}");
        }
        for message in all(router) {
            assert!(message.contains("made none of ") && message.contains("see that it translates"), "{message}");
        }
    }
    let leak = Mischief { lose_one_in: Some(2), ..Mischief::default() };
    let message = message_of(leak, EMPTY, &parameters(), |this| this.capacity(&limits));
    assert!(message.contains("50 of 100 are missing at 1000 frames/s") && message.contains("lower --c0"), "{message}");
}

#[test]
fn a_device_that_ended_is_no_device_that_loses_all() {
    let stops = Mischief { lose_from: Some(501), ..Mischief::default() };
    let ended = || Fake { lives: 0, ..EMPTY };
    for message in [
        message_of(stops, ended(), &parameters(), |this| this.loss()),
        message_of(stops, ended(), &parameters(), |this| this.throughput()),
    ] {
        assert!(
            message.contains("device fake: ended while it was measured (killed), so there is no result"),
            "{message}"
        );
    }
    // One that somebody else started, and that does not answer any more.
    let deaf = Mischief { deaf_from: Some(501), ..stops };
    let message = message_of(deaf, EMPTY, &parameters(), |this| this.loss());
    assert!(message.contains("does not answer ARP for 10.255.0.1"), "{message}");
}

#[test]
fn a_device_or_link_that_goes_down_in_a_trial_is_named() {
    // After the 500 frames of the preparation, and some of the trial.
    let stops = Mischief { lose_from: Some(501), ..Mischief::default() };
    let message = message_of(stops, EMPTY, &parameters(), |this| this.latency(1000.0));
    assert!(message.contains("passes nothing outbound (0 of 25 frames arrived)"), "{message}");
    for unplugged in [500, 510] {
        let unplugged = Mischief { unplug_from: Some(unplugged), ..Mischief::default() };
        let message = message_of(unplugged, EMPTY, &parameters(), |this| this.latency(1000.0));
        assert!(message.contains("its outside link is down; see that it runs"), "{message}");
    }
    // Somebody else can see more than the driver.
    let message = message_of(stops, EMPTY, &parameters(), |this| {
        this.link_down = Box::new(|| Some("inside"));
        this.latency(1000.0)
    });
    assert!(message.contains("its inside link is down"), "{message}");
}

#[test]
fn what_a_preparation_lost_is_sent_again_and_the_trials_say_so() {
    // Of UDP the seventh datagram; of TCP the seventh SYN, the last acknowledgement, and one of
    // what is between.
    for (protocol, lost) in [(Protocol::Udp, 7), (Protocol::Tcp, 7), (Protocol::Tcp, 700), (Protocol::Tcp, 1500)] {
        prepared_again(&Parameters { protocol, ..parameters() }, lost);
    }
}

fn prepared_again(parameters: &Parameters, lost: u64) {
    let space = tests_of_tester::space();
    let once = Mischief { lose: Some(lost), ..Mischief::default() };
    let mut tester = tests_of_tester::tester(once);
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, parameters);
    let prepared = this.prepare();
    assert_eq!(prepared.unwrap().len(), parameters.n);
    let rounds: Vec<(u64, u64)> = this.trials().iter().map(|trial| (trial.sent, trial.lost)).collect();
    assert_eq!(rounds, [(500, 1), (1, 0)]);
    assert_eq!(this.trials()[1].rate, parameters.preparation_rate / 2.0);
}

#[test]
fn a_tester_late_in_a_preparation_completes_it_and_goes_on() {
    let space = tests_of_tester::space();
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let parameters = Parameters { protocol, ..parameters() };
        // Longer than any frame may wait, in the middle of the preparation.
        let stalls = Mischief { stall: Some((200, Duration::from_millis(80))), ..Mischief::default() };
        let mut tester = tests_of_tester::tester(stalls);
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        assert_eq!(this.prepare().unwrap().len(), parameters.n, "{protocol:?}");
        let all = this.trials();
        assert!(all.len() >= 2 && all[0].void, "{all:?}");
        assert!(all.iter().all(|trial| trial.phase == "preparation"), "{all:?}");
        // It had sent a part, which is not sent again.
        assert!(all.iter().all(|trial| trial.sent < parameters.n), "{all:?}");
    }
}

#[test]
fn a_tester_too_slow_for_a_preparation_makes_it_at_a_lower_rate() {
    let space = tests_of_tester::space();
    let fast = Parameters { n: 20_000, preparation_rate: 1e8, ..parameters() };
    // Late for sure, and far from the rate.
    let stalls = Mischief { stall: Some((200, Duration::from_millis(80))), ..Mischief::default() };
    let mut tester = tests_of_tester::tester(stalls);
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &fast);
    assert_eq!(this.prepare().unwrap().len(), fast.n);
    let rates: Vec<f64> = this.trials().iter().map(|trial| trial.rate).collect();
    assert!(rates.len() >= 2 && rates[0] == 1e8 && rates.is_sorted_by(|one, next| one >= next), "{rates:?}");
}

#[test]
fn a_table_that_was_not_emptied_gives_no_result() {
    let full = Fake { empties: Err(17), ..EMPTY };
    let message = message_of(Mischief::default(), full, &parameters(), |this| this.throughput());
    assert!(message.contains("its table was not emptied (17 entries left)"), "{message}");
    // The toy keeps its table whatever is done: before the first trial, too, entries are found by
    // their frames, as a run before may have left some.
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let once = Parameters { protocol, repetitions: 1, ..parameters() };
        let mute = || Fake { sessions: None, ..EMPTY };
        let first = message_of(Mischief::default(), mute(), &once, |this| this.first_packet_latency(1000.0));
        let teardown = message_of(Mischief::default(), mute(), &once, |this| this.teardown());
        for message in [first, teardown] {
            assert!(message.contains("its table was not emptied ("), "{message}");
        }
    }
}

#[test]
fn tests_of_tcp_open_connections_by_handshakes_and_send_data() {
    let space = tests_of_tester::space();
    for tcp_close in [false, true] {
        let parameters = Parameters { protocol: Protocol::Tcp, tcp_close, ..parameters() };
        let mut tester = tests_of_tester::tester(Mischief::default());
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let rate = 1e4;
        assert_eq!(this.trial_of_connections(500, rate).unwrap(), (0, Faults::default()));
        let kept: Vec<_> = this.trials().iter().filter(|trial| !trial.void).collect();
        let opening = kept.iter().rfind(|trial| trial.phase == "phase1").unwrap();
        assert_eq!(opening.sent, 500);
        assert_eq!(opening.answers, 500 * (u64::from(parameters.frames_per_connection()) - 1));
        assert_eq!(kept.iter().any(|trial| trial.phase == "validation"), !tcp_close);
    }
    let parameters = Parameters { protocol: Protocol::Tcp, ..parameters() };
    let delays = message_of(Mischief::default(), EMPTY, &parameters, |this| this.latency(1000.0));
    assert!(delays.contains("lost: 0") && delays.contains("outbound") && delays.contains("inbound"), "{delays}");
    let delays = message_of(Mischief::default(), EMPTY, &parameters, |this| this.first_packet_latency(1000.0));
    assert!(delays.contains("lost: 0") && delays.contains("frames: 500"), "{delays}");
    let leak = Mischief { misnumber: Some(1400), ..Mischief::default() };
    let message = message_of(leak, EMPTY, &parameters, |this| this.throughput());
    assert!(
        message.contains(" of 500 connections at") && message.contains("(1 with another number in the header of TCP)"),
        "{message}"
    );
}

#[test]
fn a_tester_slower_than_the_device_is_an_error_and_no_result() {
    let fast = Parameters { rate_max: 1e12, error: 1e11, ..parameters() };
    let space = tests_of_tester::space();
    let mut tester = tests_of_tester::tester(Mischief::default());
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &fast);
    let message = this.throughput().unwrap_err().to_string();
    assert!(
        message.contains("tester: slower than the device")
            && message.contains("the device does at least what passed")
            && message.contains("a CPU of its own"),
        "{message}"
    );
    assert!(this.trials().iter().any(|trial| trial.void), "void trials are kept as what they are");
    // The first step of the search is beyond any tester: nothing passed, or what did is said.
    let passed = this.trials().iter().filter(|trial| trial.phase == "phase2" && !trial.void && trial.lost == 0);
    assert_eq!(this.at_least(), passed.map(|trial| trial.rate).reduce(f64::max));
}

#[test]
fn a_device_that_empties_its_rings_slowly_has_a_result() {
    const TAKES: f64 = 20_000.0;
    let space = tests_of_tester::space();
    let slow = Mischief { takes_a_second: Some(TAKES), ..Mischief::default() };
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let parameters = Parameters {
            protocol,
            preparation_rate: 1000.0,
            n: 100,
            trial_seconds: 0.2,
            rate_max: 200_000.0,
            error: 10_000.0,
            direction: Direction::Outbound,
            ..parameters()
        };
        let mut tester = tests_of_tester::tester(slow);
        tester.full_ring_means(FullRing::Device);
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let best = this.throughput().unwrap().median;
        let trials = this.trials();
        // The rings, and what waits in front of them, hold a few frames besides.
        assert!((0.5 * TAKES..1.2 * TAKES).contains(&best), "{best}");
        assert!(trials.iter().any(|trial| trial.not_taken > 0), "{trials:?}");
        assert!(trials.iter().all(|trial| trial.not_taken <= trial.lost && !trial.void), "{trials:?}");
    }
}

#[test]
fn the_lowest_rate_is_tried_with_few_connections_first() {
    let space = tests_of_tester::space();
    // All of them would take 100 s at the lowest rate.
    let parameters = Parameters { n: 1000, rate_min: 10.0, rate_max: 1e5, error: 500.0, ..parameters() };
    // Too slow for the first trial.
    let slow = Mischief { takes_a_second: Some(2e4), ..Mischief::default() };
    let mut tester = tests_of_tester::tester(slow);
    tester.full_ring_means(FullRing::Device);
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    assert!(this.cps().unwrap().median > 1e4);
    let at_lowest = this.trials().iter().filter(|trial| trial.rate == 10.0 && trial.phase == "phase1");
    assert_eq!(at_lowest.map(|trial| trial.sent).collect::<Vec<_>>(), [20]);
}

#[test]
fn a_lowest_rate_that_passes_at_a_glance_has_to_pass_as_a_whole() {
    let space = tests_of_tester::space();
    let search = |passes: fn(f64, Extent) -> bool| {
        let mut tester = tests_of_tester::tester(Mischief::default());
        let (mut device, parameters) = (EMPTY, Parameters { rate_max: 9000.0, ..parameters() });
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let mut made = Vec::new();
        let found = this.search("connections", [1000.0, 9000.0], true, |_, rate, extent| {
            made.push((rate, extent));
            Ok((u64::from(!passes(rate, extent)), Faults::default()))
        });
        (found.map(|found| found.best), made)
    };
    let (found, made) = search(|rate, _| rate <= 5000.0);
    assert_eq!(found.unwrap(), 5000.0);
    assert_eq!(made[..2], [(9000.0, Extent::Whole), (1000.0, Extent::Glance)]);
    assert!(made[2..].iter().all(|(_, extent)| *extent == Extent::Whole), "{made:?}");
    let (found, made) = search(|rate, _| rate <= 1000.0);
    assert_eq!((found.unwrap(), made.last()), (1000.0, Some(&(1000.0, Extent::Whole))));
    let (found, _) = search(|rate, extent| rate <= 1000.0 && extent == Extent::Glance);
    assert!(matches!(found, Err(ExperimentError::NothingPasses { rate: 1000.0, .. })), "{found:?}");
    let (found, made) = search(|_, _| false);
    assert!(found.is_err() && made.len() == 2, "{made:?}");
}

#[test]
fn a_search_goes_on_near_a_rate_that_was_refused() {
    const HIGHEST: f64 = 7e6;
    const PASSES: f64 = 2.8e6;
    // A million connections would take 1000 s at the lowest rate.
    let parameters = Parameters { n: 1_000_000, rate_max: HIGHEST, error: HIGHEST / 1000.0, ..parameters() };
    let space = tests_of_tester::space();
    let seconds_of = |first: fn(&mut Experiment<'_, Toy>, f64) -> Result<u64, ExperimentError>| {
        let mut tester = tests_of_tester::tester(Mischief::default());
        let mut device = EMPTY;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let mut seconds = 0.0;
        let found = this.search("connections", [1000.0, HIGHEST], true, |this, rate, extent| {
            seconds += match extent {
                Extent::Glance => GLANCE_SECONDS,
                Extent::Whole => parameters.n as f64 / rate,
            };
            let lost = if rate >= HIGHEST { first(this, rate)? } else { u64::from(rate > PASSES) };
            Ok((lost, Faults::default()))
        });
        let best = found.unwrap().best;
        assert!((PASSES - parameters.error..=PASSES).contains(&best), "{best}");
        seconds
    };
    // Refused by the device; not sent by the tester; lost while a CPU was away.
    let refused = seconds_of(|_, _| Ok(400_000));
    let late = seconds_of(|_, rate| {
        let sent = Box::default();
        Err(TesterError::TooSlow { asked: rate, reached: rate / 2.0, late_ms: 3.0, sent }.into())
    });
    let disturbed = seconds_of(|this, _| {
        this.hitch_seconds = 2.0 * HITCH_SECONDS;
        Ok(1)
    });
    for seconds in [refused, late, disturbed] {
        assert!(seconds < 10.0, "{refused} s, {late} s, {disturbed} s");
    }
}

#[test]
fn a_figure_that_a_calm_trial_decided_is_not_disturbed() {
    let space = tests_of_tester::space();
    let disturbed_of = |disturbed_rate: f64| {
        let mut tester = tests_of_tester::tester(Mischief::default());
        let (mut device, parameters) = (EMPTY, Parameters { rate_max: 8000.0, ..parameters() });
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        this.repetition = 2;
        let found = this.search("frames", [1000.0, 8000.0], false, |this, rate, _| {
            this.hitch_seconds = if rate == disturbed_rate { 2.0 * HITCH_SECONDS } else { 0.0 };
            Ok((u64::from(rate > 1500.0), Faults::default()))
        });
        assert!(found.unwrap().best < 1500.0);
        (this.disturbed(), this.disturbed_repetitions().to_vec())
    };
    assert_eq!(disturbed_of(8000.0), (0, vec![]), "lower rates failed, too");
    // The last that failed: 8000, 4500, 2750, 1875.
    assert_eq!(disturbed_of(1875.0), (1, vec![2]));
}

#[test]
fn a_loss_while_a_cpu_was_away_is_tried_again_and_then_counts() {
    let space = tests_of_tester::space();
    let with_cpus_away = |mischief: Mischief| {
        let mut tester = tests_of_tester::tester(mischief);
        let mut device = EMPTY;
        let parameters = parameters();
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        this.away = Box::new(|| 2.0 * HITCH_SECONDS);
        let steps = this.loss().unwrap().steps;
        (steps, this.trials().to_vec())
    };
    // One frame of the first step, after 500 of the preparation.
    let once = Mischief { lose: Some(520), ..Mischief::default() };
    let (steps, trials) = with_cpus_away(once);
    assert!(steps.iter().all(|step| step.lost == 0), "{steps:?}");
    let void: Vec<_> = trials.iter().filter(|trial| trial.void && trial.lost > 0).collect();
    assert_eq!(void.len(), 1, "{trials:?}");
    assert!(void[0].away_ms > HITCH_SECONDS * 1e3, "{void:?}");
    // In a search, the rate that decides is the lowest that does not pass. If it was disturbed, the
    // result says so.
    let disturbed = |away_seconds: f64| {
        let mut tester = tests_of_tester::tester(Mischief::default());
        let (mut device, parameters) = (EMPTY, parameters());
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        this.away = Box::new(move || away_seconds);
        let range = [parameters.rate_min, parameters.rate_max];
        let found = this.search("frames", range, false, |this, _, _| {
            this.hitch_seconds = (this.away)();
            Ok((1, Faults::default()))
        });
        assert!(found.is_err(), "nothing passes");
        this.disturbed()
    };
    assert_eq!([disturbed(2.0 * HITCH_SECONDS), disturbed(0.0)], [1, 0]);
    // A device that loses all the time is not let off, and one that is clean is not tried twice.
    let mut tester = tests_of_tester::tester(Mischief::default());
    let (mut device, parameters) = (EMPTY, parameters());
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    let rate = 1e5;
    let mut tries = |away_seconds: f64, lost: u64| {
        let mut made = 0;
        let trial = |this: &mut Experiment<'_, Toy>| {
            (made, this.hitch_seconds) = (made + 1, away_seconds);
            Ok(lost)
        };
        let may_come_of_it = |lost: &u64, most| (1..=most).contains(lost);
        assert_eq!(this.without_hitch(rate, HITCHES, trial, may_come_of_it).unwrap(), lost);
        (made, this.is_disturbed)
    };
    let (short, long) = (HITCH_SECONDS / 2.0, HITCH_SECONDS * 2.0);
    let (often, once) = ((HITCHES + 1, true), (1, false));
    assert_eq!([tries(long, 7), tries(long, 0), tries(short, 7)], [often, once, once]);
    // More than were sent in all that time: that was the device.
    let most = (rate * long * HITCHES_A_SECOND) as u64;
    assert_eq!([tries(long, most), tries(long, most + 1)], [often, once]);
}

#[test]
fn forged_damaged_and_returned_frames_are_in_their_trial() {
    let space = tests_of_tester::space();
    // Three frames of the first step of a loss curve, after the 500 of the preparation.
    let mischief = Mischief { forge: Some(510), damage: Some(520), send_back: Some(530), ..Mischief::default() };
    let mut tester = tests_of_tester::tester(mischief);
    let (mut device, parameters) = (EMPTY, parameters());
    let lines = core::cell::RefCell::new(Vec::new());
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    this.on_trial = Box::new(|progress| lines.borrow_mut().push(progress.line.clone()));
    let curve = this.loss();
    let trials = this.trials().to_vec();
    drop(this);
    let of = |trial: &Trial| [trial.lost, trial.faults, trial.forged, trial.damaged, trial.returned];
    assert_eq!(of(&trials[0]), [0; 5], "of the preparation");
    assert_eq!(of(&trials[1]), [3, 0, 1, 1, 1]);
    assert!(trials[2..].iter().all(|trial| of(trial) == [0; 5]), "{trials:?}");
    assert_eq!(curve.unwrap().steps[0].lost, 3);
    let message = &lines.borrow()[1];
    assert_eq!(message, "phase2 at 2000/s: 3 of 100 lost, 1 forged, 1 damaged, 1 returned");
}

#[test]
fn a_known_loss_is_exact_in_every_repetition_and_summarised() {
    let space = tests_of_tester::space();
    let parameters = Parameters { repetitions: 3, ..parameters() };
    let leak = Mischief { lose_one_in: Some(20), ..Mischief::default() };
    let mut tester = tests_of_tester::tester(leak);
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    let LossCurve { steps, .. } = this.loss().unwrap();
    assert_eq!(steps.len(), 10);
    let of = |repetition| this.trials().iter().filter(move |trial| trial.repetition == repetition);
    assert!((0..3).all(|repetition| of(repetition).any(|trial| trial.phase == "phase2")));
    for (step, tenth) in steps.iter().zip((1..=10_u32).rev()) {
        let kept = step.lost_share.values.len() as u64;
        let sent = u64::from(tenth) * 10;
        assert_eq!((step.rate, step.sent), (f64::from(tenth) * 200.0, sent * kept));
        let (known, frame) = (1.0 / 20.0, 1.0 / sent as f64);
        let seen = step.lost_share.values.iter();
        assert!(seen.clone().all(|share| (share - known).abs() < frame), "{step:?}");
        let lost = seen.map(|share| share / frame).sum::<f64>();
        assert!((lost - step.lost as f64).abs() < 1e-6, "{step:?}");
        let Samples { median, p1, p99, .. } = step.lost_share;
        assert!(p1 <= median && median <= p99, "{step:?}");
    }
}

#[test]
fn a_trial_the_tester_did_not_keep_says_what_it_sent_until_then() {
    let space = tests_of_tester::space();
    let leak = Mischief { lose_one_in: Some(20), ..Mischief::default() };
    let parameters = Parameters { rate_max: 1e12, ..parameters() };
    let mut tester = tests_of_tester::tester(leak);
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    // More than any tester can.
    let table = this.prepare().unwrap();
    assert!(this.phase2(&table, 1e9, None).is_err());
    let trial = this.trials().last().filter(|trial| trial.phase == "phase2").unwrap();
    assert!(trial.void && trial.sent > 1_000 && trial.seconds > 0.0, "{trial:?}");
    assert!((trial.reached - trial.sent as f64 / trial.seconds).abs() < 1.0, "{trial:?}");
    let share = trial.lost as f64 / trial.sent as f64;
    assert!((0.04..0.06).contains(&share), "what was never sent is not lost: {trial:?}");
}

#[test]
fn repetitions_before_a_failed_one_are_kept_with_the_reason() {
    let space = tests_of_tester::space();
    let parameters = Parameters { repetitions: 3, ..parameters() };
    let mut tester = tests_of_tester::tester(Mischief::default());
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    let late = || ExperimentError::RangeTooLow { what: "frames", rate: 1.0 };
    let two = |this: &mut Experiment<'_, Toy>| if this.repetition < 2 { Ok(this.repetition) } else { Err(late()) };
    assert_eq!(this.repeated_and_kept(two).unwrap(), [0, 1]);
    assert_eq!(this.ended_by().unwrap().to_string(), late().to_string());
    // A search would keep the lower ones only.
    assert!(this.repeated(two).is_err() && this.ended_by().is_none());
    assert!(this.repeated_and_kept(|_| Err::<(), _>(late())).is_err(), "nothing was made");
    let interrupted = |_: &mut Experiment<'_, Toy>| Err::<(), _>(DeviceError::Interrupted.into());
    assert!(this.repeated(interrupted).unwrap().is_empty() && this.was_interrupted());
}

#[test]
fn how_long_a_trial_takes_is_said_before_it_begins() {
    let space = tests_of_tester::space();
    let parameters = parameters();
    let begun = core::cell::RefCell::new(Vec::new());
    let mut tester = tests_of_tester::tester(Mischief::default());
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    this.on_begin = Box::new(|phase, time| begun.borrow_mut().push((phase, time)));
    let _ = this.prepare();
    drop(this);
    // 500 connections at 10 000 a second.
    assert_eq!(begun.borrow()[0], ("preparation", Duration::from_millis(50)));
}

#[test]
fn a_validation_that_was_a_little_late_is_made_again() {
    let space = tests_of_tester::space();
    let mut tester = tests_of_tester::tester(Mischief::default());
    let (mut device, parameters) = (EMPTY, parameters());
    let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
    let mut tries = |asked: f64, reached: f64| {
        let mut made = 0;
        let trial = |_: &mut Experiment<'_, Toy>| -> Result<(), _> {
            made += 1;
            let sent = Box::default();
            Err(TesterError::TooSlow { asked, reached, late_ms: 3.0, sent }.into())
        };
        assert!(this.without_hitch(1000.0, HITCHES, trial, |(), _| false).is_err());
        made
    };
    // At α = 0.8; a tenth less than asked for is no hitch any more.
    assert_eq!([tries(800.0, 760.0), tries(800.0, 719.0)], [HITCHES + 1, 1]);
}

#[test]
fn every_trial_is_kept_with_its_repetition() {
    let space = tests_of_tester::space();
    let twice = Parameters { repetitions: 2, rate_max: 1000.0, ..parameters() };
    let mut tester = tests_of_tester::tester(Mischief::default());
    let mut device = EMPTY;
    let mut this = Experiment::new(&mut tester, &mut device, &space, &twice);
    let _ = this.latency(1000.0);
    let of = |repetition| this.trials().iter().filter(|trial| trial.repetition == repetition).count();
    assert!(of(0) >= 1 && this.trials()[0].phase == "preparation");
    assert!(!this.was_interrupted());
}
