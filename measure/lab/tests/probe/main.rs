//! The probe is shown right: it classifies Natrix in each of its modes, and toy NATs that are wrong
//! on purpose, so that each finding comes out each way.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod natrix;
mod simulated;
mod toy;
mod toys;

use core::time::Duration;

use lab::edge::Family;
use lab::probe;
use lab::probe::ProbeOptions;
use lab::probe::ProbeReport;
use lab::probe::Site;
use lab::probe::Verdict;
use lab::probe::World;
use lab::probe::timers::TimerLimits;

/// Options for a world whose clock costs nothing.
fn options(timer_max_seconds: u64) -> ProbeOptions {
    ProbeOptions {
        patience: Duration::from_millis(200),
        timers: TimerLimits { max: Duration::from_secs(timer_max_seconds), resolution: Duration::from_millis(100) },
        parts: probe::Part::ALL.to_vec(),
        exhaust_max: 3_000,
        seed: 7,
        family: Family::Nat44,
        arrive_whole: false,
    }
}

fn probed(world: &mut dyn World, site: Site, options: &ProbeOptions) -> ProbeReport {
    let report = probe::probe(world, site, options, &mut |_| {}).expect("the device lets something pass");
    for finding in &report.findings {
        for line in finding.evidence.iter().chain([&finding.value]) {
            let is_debug = ["Some(", "None", "[", "{", "\""].iter().any(|piece| line.contains(piece));
            assert!(!is_debug, "{}: people read {line}", finding.name);
        }
    }
    report
}

/// Checks the value of a finding.
fn expect(report: &ProbeReport, name: &str, value: &str) {
    let finding = report.finding(name).unwrap_or_else(|| panic!("there is a finding {name}"));
    assert_eq!(finding.value, value, "{name}; seen: {:#?}", finding.evidence);
}

/// Checks what a finding says to a requirement.
fn expect_verdict(report: &ProbeReport, name: &str, requirement: &str, verdict: Verdict) {
    let finding = report.finding(name).unwrap_or_else(|| panic!("there is a finding {name}"));
    let judgement = finding.judgements.iter().find(|judgement| judgement.requirement == requirement);
    let judgement = judgement.unwrap_or_else(|| panic!("{name} says something to {requirement}"));
    assert_eq!(judgement.verdict, verdict, "{name}, {requirement}: {}; seen: {:#?}", finding.value, finding.evidence);
}

/// Checks that a time was found, within what the finding itself says of its precision.
fn expect_time(report: &ProbeReport, state: probe::flow_state::FlowState, seconds: f64) {
    let timer = report.timers.iter().find(|timer| timer.state == state).expect("each state has a timer");
    let (alive, gone) = (timer.alive_seconds.unwrap_or(0.0), timer.gone_seconds.unwrap_or(f64::INFINITY));
    assert!(alive <= seconds && seconds <= gone, "{}: {seconds} s is between {alive} and {gone}", state.name());
    assert!(gone - alive <= (gone / 100.0).max(0.1) + 0.001, "{}: {alive} to {gone} is near enough", state.name());
    assert_eq!(timer.contradictions, 0, "{}: the time is always the same", state.name());
}
