//! `natrix bench rules`: the rule search of Quick NAT (Li Junfeng, 2019, §3.2 and table I),
//! repeated, beside a linear search.
//!
//! ```text
//!   rules like an operator's ─► load ─► look up packets of random rules ─► change a rule, often
//!                                       the same packets, linear search    └─ readers keep the old
//! ```
//!
//! Packets are drawn uniformly over the rules and lie anywhere in their rule, so that each rule's
//! memory is touched at random; they are many more than caches hold. Only the lookups are timed;
//! their keys are written before, like headers. Answers of both searches are compared.

use core::net::Ipv4Addr;
use std::time::Instant;

use mem::Arena;
use mem::tsc;
use nat::rules::BURST_MAX;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::rules::RuleId;
use nat::rules::RuleKey;
use nat::rules::RuleSet;
use nat::rules::RuleSetError;
use nat::types::Prefix;
use nat::types::RealmId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use crate::batches::Batches;
use crate::burst_times::Begun;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rules.
    pub rules: u32,
    /// How long to look up, in seconds; the linear search gets as long.
    pub seconds: f64,
    /// Of the rules, the packets and the changes.
    pub seed: u64,
}

/// Figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Rules.
    pub rules: u32,
    /// A lookup, in bursts of 64, specific rules before general ones as operators write them.
    pub ns_per_lookup: f64,
    /// A linear search for the same packets.
    pub linear_ns_per_lookup: f64,
    /// Memory of everything there is about the rules.
    pub bytes_per_rule: f64,
    /// The same lookup in time-stamp cycles.
    pub tsc_cycles_per_lookup: f64,
    /// A lookup among the same rules in random order, where general rules hide others.
    pub shuffled_ns_per_lookup: f64,
    /// One random cache line of a region as large as the rules' memory, asked for in bursts: what
    /// memory alone allows.
    pub memory_ns_per_line: f64,
    /// Lookups timed.
    pub lookups: u64,
    /// Linear searches timed.
    pub linear_lookups: u64,
    /// Hash tables the rules lie in.
    pub tables: usize,
    /// From the list to the set that can be used.
    pub load_seconds: f64,
    /// One rule added, taken out or changed, on a copy, while the set before it stays in use:
    /// median.
    pub change_ms_p50: f64,
    /// The longest of them.
    pub change_ms_max: f64,
    /// Changes timed.
    pub changes: usize,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The set could not be made.
    #[error("bench rules: {0}")]
    Set(#[from] RuleSetError),
    /// Both searches disagree; the figures would mean nothing.
    #[error(
        "bench rules: the rule found is not the first that matches (packet {packet}); this is a fault of Natrix, please report it"
    )]
    Wrong {
        /// Its place among those looked up.
        packet: usize,
    },
    /// A number makes no sense.
    #[error("bench rules: --seconds is out of range ({0}); give 0.01 to 600")]
    Seconds(f64),
    /// Too many rules.
    #[error("bench rules: --rules is out of range ({0}); give 6 to 10000000")]
    Rules(u32),
}

/// Keys looked up in turn: more than the caches hold of keys and rules together.
const KEYS_MIN: usize = 1 << 18;
/// Changes of each kind.
const CHANGES: usize = 40;
/// Bursts timed together.
const BATCH: usize = 32;

/// Measures.
///
/// # Errors
/// [`RulesError`].
pub fn run(options: &Options) -> Result<Report, RulesError> {
    if !(0.01..=600.0).contains(&options.seconds) {
        return Err(RulesError::Seconds(options.seconds));
    }
    if !(6..=10_000_000).contains(&options.rules) {
        return Err(RulesError::Rules(options.rules));
    }
    let hz = tsc::frequency_hz(100);
    let mut random = SmallRng::seed_from_u64(options.seed);
    let mut rules = operators_rules(options.rules, &mut random);
    let keys = keys_of(&rules, &mut random);

    let before = Instant::now();
    let set = RuleSet::new(&rules)?;
    let load_seconds = before.elapsed().as_secs_f64();
    let (cycles, lookups) = time_lookups(&set, &keys, options.seconds, hz);
    let (linear_ns, linear_lookups) = time_linear(&set, &rules, &keys, options.seconds)?;
    let line_cycles = time_lines(set.bytes(), options.seconds / 4.0, hz, &mut random)?;
    let bytes_per_rule = set.bytes() as f64 / rules.len() as f64;
    let tables = set.table_count();
    let changes = time_changes(set, &keys, hz, &mut random)?;

    rules.shuffle(&mut random);
    let shuffled = RuleSet::new(&rules)?;
    let (shuffled_cycles, _) = time_lookups(&shuffled, &keys, options.seconds, hz);
    compare(&shuffled, &rules, &keys, 200)?;
    Ok(Report {
        rules: options.rules,
        ns_per_lookup: cycles / hz * 1e9,
        linear_ns_per_lookup: linear_ns,
        bytes_per_rule,
        tsc_cycles_per_lookup: cycles,
        shuffled_ns_per_lookup: shuffled_cycles / hz * 1e9,
        memory_ns_per_line: line_cycles / hz * 1e9,
        lookups,
        linear_lookups,
        tables,
        load_seconds,
        change_ms_p50: changes[changes.len() / 2],
        change_ms_max: changes[changes.len() - 1],
        changes: changes.len(),
    })
}

/// Rules as a provider's tools would write them, specific ones first: services at servers, services
/// of subscribers, subscribers, subscribers' prefixes with and without ports, prefixes of the
/// Internet.
fn operators_rules(count: u32, random: &mut SmallRng) -> Vec<Match> {
    let share = |percent: u32| (u64::from(count) * u64::from(percent) / 100) as u32;
    let prefix = |address: u32, length: u8| Prefix::new(Ipv4Addr::from_bits(address), length).unwrap_or(Prefix::ALL);
    // Each subscriber once: an odd factor is a permutation of the 24 bits below 10.0.0.0/8.
    let subscriber = |i: u32| 10 << 24 | i.wrapping_mul(0x9e_3779) & 0xff_ffff;
    let (servers, services, prefixes, ports, remote) = (share(5), share(10), share(10), share(10), share(5));
    let singles = count - servers - services - prefixes - ports - remote;
    let mut rules = Vec::with_capacity(count as usize);
    for i in 0..servers {
        rules.push(Match {
            protocol: Some(6),
            destination: prefix(0x5db8_0000 + i / 4, 32),
            destination_ports: PortRange::one([25, 80, 443, 8080][i as usize % 4]),
            ..Match::ALL
        });
    }
    for i in 0..services {
        rules.push(Match {
            protocol: Some(17),
            source: prefix(subscriber(i * 7), 32),
            destination_ports: PortRange::one(53),
            ..Match::ALL
        });
    }
    rules.extend((0..singles).map(|i| Match { source: prefix(subscriber(i), 32), ..Match::ALL }));
    for i in 0..ports {
        let first = random.random_range(1024..60_000);
        rules.push(Match {
            protocol: Some(if i % 2 == 0 { 6 } else { 17 }),
            source: prefix(0x6440_0000 + i * 8, 29),
            destination_ports: PortRange { first, last: first + random.random_range(1..2000) },
            ..Match::ALL
        });
    }
    rules.extend((0..prefixes).map(|i| Match { source: prefix(0x6480_0000 + i * 16, 28), ..Match::ALL }));
    rules.extend(
        (0..remote)
            .map(|_| Match { destination: prefix(random.random_range(0x8000_0000..0xdf00_0000), 24), ..Match::ALL }),
    );
    rules
}

/// Packets of rules drawn at random.
fn keys_of(rules: &[Match], random: &mut SmallRng) -> Vec<RuleKey> {
    let count = KEYS_MIN.max(rules.len()).next_multiple_of(BATCH * BURST_MAX);
    (0..count).map(|_| key_of(&rules[random.random_range(0..rules.len())], random)).collect()
}

fn key_of(rule: &Match, random: &mut SmallRng) -> RuleKey {
    let mut within = |prefix: Prefix| prefix.address().to_bits() | random.random::<u32>() & !prefix.mask();
    let (source, destination) = (within(rule.source), within(rule.destination));
    let mut port = |range: PortRange| random.random_range(range.first..=range.last);
    let (source_port, destination_port) = (port(rule.source_ports), port(rule.destination_ports));
    let protocol = rule.protocol.unwrap_or(if random.random() { 6 } else { 17 });
    RuleKey::new(RealmId(0), protocol, source, source_port, destination, destination_port)
}

/// Cycles a lookup, and how many were made: the median of batches, so that those in which the
/// machine did something else do not count.
fn time_lookups(set: &RuleSet, keys: &[RuleKey], seconds: f64, hz: f64) -> (f64, u64) {
    let mut found = [None; BURST_MAX];
    // To warm up: all keys once.
    for burst in keys.chunks_exact(BURST_MAX) {
        set.lookup_burst(burst, &mut found);
    }
    let mut bursts = keys.chunks_exact(BATCH * BURST_MAX).cycle();
    let mut fresh = vec![RuleKey::default(); BATCH * BURST_MAX];
    let mut batches = Batches::new(seconds, hz);
    while !batches.is_done() {
        // Keys come from headers that are in the caches already.
        fresh.copy_from_slice(bursts.next().unwrap_or(keys));
        batches.time(|| {
            for burst in fresh.chunks_exact(BURST_MAX) {
                set.lookup_burst(burst, &mut found);
                core::hint::black_box(&found);
            }
        });
    }
    (batches.median(BATCH * BURST_MAX), batches.len() as u64 * (BATCH * BURST_MAX) as u64)
}

/// A cache line.
#[derive(zerocopy::FromZeros)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Cycles for one line of a region as large as the set, chosen at random and asked for in bursts:
/// what memory alone allows.
fn time_lines(bytes: usize, seconds: f64, hz: f64, random: &mut SmallRng) -> Result<f64, RulesError> {
    let region = Arena::<Line>::zeroed((bytes / size_of::<Line>()).max(1)).map_err(RuleSetError::from)?;
    let mut places = vec![0_usize; BATCH * BURST_MAX];
    let mut batches = Batches::new(seconds, hz);
    while !batches.is_done() {
        places.fill_with(|| random.random_range(0..region.len()));
        batches.time(|| {
            for burst in places.chunks_exact(BURST_MAX) {
                burst.iter().for_each(|place| region.prefetch(*place));
                core::hint::black_box(burst.iter().map(|place| region[*place].0[0]).sum::<u64>());
            }
        });
    }
    Ok(batches.median(BATCH * BURST_MAX))
}

/// Mean time of a linear search, and how many were made. Each answer must be that of the set.
fn time_linear(set: &RuleSet, rules: &[Match], keys: &[RuleKey], seconds: f64) -> Result<(f64, u64), RulesError> {
    let (mut spent, mut lookups) = (0.0, 0);
    while spent < seconds {
        // The keys before were looked up last by the set; the searches share none of their memory
        // but the keys.
        let packet = lookups as usize % keys.len();
        let before = Instant::now();
        let first = core::hint::black_box(linear(rules, &keys[packet]));
        spent += before.elapsed().as_secs_f64();
        lookups += 1;
        if set.lookup(&keys[packet]).and_then(|id| set.position(id)) != first {
            return Err(RulesError::Wrong { packet });
        }
    }
    Ok((spent / lookups as f64 * 1e9, lookups))
}

fn linear(rules: &[Match], key: &RuleKey) -> Option<usize> {
    rules.iter().position(|rule| rule.matches(key))
}

fn compare(set: &RuleSet, rules: &[Match], keys: &[RuleKey], count: usize) -> Result<(), RulesError> {
    for (packet, key) in keys.iter().take(count).enumerate() {
        if set.lookup(key).and_then(|id| set.position(id)) != linear(rules, key) {
            return Err(RulesError::Wrong { packet });
        }
    }
    Ok(())
}

/// Milliseconds of single changes, sorted. Each makes a new set beside the one in use, which is
/// given up only afterwards; that is part of the time. What it was off its core for is not.
fn time_changes(set: RuleSet, keys: &[RuleKey], hz: f64, random: &mut SmallRng) -> Result<Vec<f64>, RulesError> {
    let mut times = Vec::new();
    let mut used = set;
    let mut timed = |used: &mut RuleSet, change: &dyn Fn(&mut RuleSet) -> Result<Option<RuleId>, RuleSetError>| {
        let begun = Begun::now();
        let mut next = used.clone();
        change(&mut next)?;
        *used = next;
        times.push(begun.own_cycles(hz) / hz * 1e3);
        Ok::<_, RulesError>(())
    };
    for (turn, key) in keys.iter().take(CHANGES).enumerate() {
        let at = random.random_range(0..used.len());
        let rule = Match {
            source: Prefix::host(key.source()),
            protocol: Some(17),
            destination_ports: PortRange::one(random.random_range(1..=u16::MAX)),
            ..Match::ALL
        };
        timed(&mut used, &|set| set.insert(at, &rule).map(Some))?;
        if used.lookup(&rule.first()).and_then(|id| used.position(id)).is_none_or(|found| found > at) {
            return Err(RulesError::Wrong { packet: turn });
        }
        let elsewhere = random.random_range(0..used.len());
        timed(&mut used, &|set| set.replace(elsewhere, &rule))?;
        let elsewhere = random.random_range(0..used.len());
        timed(&mut used, &|set| set.remove(elsewhere))?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_hit_the_rule_they_were_drawn_from_or_one_before() {
        let mut random = SmallRng::seed_from_u64(1);
        let rules = operators_rules(3_000, &mut random);
        assert_eq!(rules.len(), 3_000);
        let set = RuleSet::new(&rules).unwrap();
        let keys = keys_of(&rules, &mut random);
        compare(&set, &rules, &keys, 5_000).unwrap();
        assert!(keys[..5_000].iter().all(|key| set.lookup(key).is_some()));
        // Nearly all rules are reached by their own packets: a set in which few rules hide the
        // others would measure nothing.
        let reached =
            (0..rules.len()).filter(|at| set.lookup(&rules[*at].first()).and_then(|id| set.position(id)) == Some(*at));
        assert!(reached.count() > 2_800);
    }

    #[test]
    fn a_report_has_all_figures() {
        let report = run(&Options { rules: 500, seconds: 0.02, seed: 1 }).unwrap();
        assert!(report.ns_per_lookup > 0.0 && report.linear_ns_per_lookup > report.ns_per_lookup);
        assert_eq!(report.changes, 3 * CHANGES);
        assert!(report.bytes_per_rule >= 64.0 && report.tables > 0 && report.load_seconds > 0.0);
        assert!(matches!(run(&Options { rules: 1, seconds: 1.0, seed: 1 }), Err(RulesError::Rules(1))));
        assert!(matches!(run(&Options { rules: 100, seconds: 0.0, seed: 1 }), Err(RulesError::Seconds(_))));
    }
}
