//! Long lists, fetched from one worker after the other in parts of limited size.
//!
//! A cursor has the worker and a place in its tables; traffic continues between the parts.

use core::ops::Range;
use std::time::Duration;
use std::time::Instant;

use control::AddressState;
use control::Alg;
use control::AlgRefused;
use control::Candidate;
use control::Cursor;
use control::Expectation;
use control::Fault;
use control::Grant;
use control::List;
use control::Mapping;
use control::Page;
use control::PoolAddress;
use control::Prefix6;
use control::Rule;
use control::Session;
use control::Subscriber;
use control::ratio;
use lookup::convert::per_protocol;
use lookup::convert::pool_name;
use lookup::convert::protocol;
use nat::Protocol;
use nat::Shared;
use nat::settings::FilterAction;
use nat::types::AddressIndex;
use nat::types::PoolId;
use nat::verdict::GatewayRefusal;
use nat::view;
use nat::view::ExpectationView;
use nat::view::GrantView;
use nat::view::MappingView;
use nat::view::SessionView;
use nat::view::SubscriberView;

use super::convert;
use crate::instance::Instance;
use crate::mailbox::Listed;
use crate::mailbox::PAGE_RECORDS;
use crate::mailbox::PAGE_SCAN;
use crate::mailbox::Snapshot;
use crate::mailbox::page;

/// The cursors of all records of a worker.
pub(super) const ALL: Range<u32> = 0..u32::MAX;

/// How long the search for the objects of a page may take. If few of millions of records match a
/// filter, its list has several pages, some of them empty: no client waits longer for one.
pub(super) const PAGE_WITHIN: Duration = Duration::from_secs(1);

/// Walks the records of all workers that the filter allows, until the limit of `list` is reached or
/// `within` is over; some records are looked at in any case. `object` converts a record, and its
/// object gets into the list if `is_wanted`. The part of a cursor is the worker.
fn walk<V: Listed, T>(
    instance: &Instance,
    list: &List,
    within: Duration,
    object: impl Fn(&Shared, &V) -> T,
    is_wanted: impl Fn(&T) -> bool,
) -> Result<Page<T>, Fault> {
    let begun = Instant::now();
    let filter = engine_filter(instance, list)?;
    let limit = list.limit_effective() as usize;
    let mut cursor = list.start()?;
    let mut objects = Vec::new();
    let mut is_late = false;
    while cursor.part < instance.worker_count() {
        if list.filter.worker.is_some_and(|wanted| usize::from(wanted) != cursor.part) {
            cursor = Cursor { part: cursor.part + 1, place: 0 };
            continue;
        }
        if objects.len() >= limit || is_late {
            return Ok(Page { objects, cursor: Some(cursor.to_string()) });
        }
        // Some may not be wanted, but there are never more than the limit.
        let piece = PAGE_RECORDS.min(limit - objects.len());
        let page =
            instance.page::<V>(cursor.part, page(u32::try_from(cursor.place).unwrap_or(u32::MAX), piece, filter))?;
        let shared = instance.shared();
        let found = page.records.iter().map(|record| object(&shared, record));
        objects.extend(found.filter(&is_wanted));
        cursor = match page.next {
            Some(place) => Cursor { place: place.into(), ..cursor },
            None => Cursor { part: cursor.part + 1, place: 0 },
        };
        is_late = begun.elapsed() >= within;
    }
    Ok(Page { objects, cursor: None })
}

/// Calls `each` for all records of a worker that match `filter` and whose cursors are in `cursors`.
pub(super) fn for_each<V: Listed>(
    instance: &Instance,
    worker: usize,
    cursors: Range<u32>,
    filter: view::Filter,
    mut each: impl FnMut(V),
) -> Result<(), Fault> {
    let mut place = Some(cursors.start);
    while let Some(cursor) = place.filter(|place| cursors.contains(place)) {
        let page = instance.page(worker, page(cursor, PAGE_RECORDS, filter))?;
        page.records.into_iter().for_each(&mut each);
        place = page.next;
    }
    Ok(())
}

/// The conditions of a filter for the engine. An unknown state or worker is an error and not an
/// empty list.
pub(super) fn engine_filter(instance: &Instance, list: &List) -> Result<view::Filter, Fault> {
    let workers = instance.worker_count();
    if let Some(worker) = list.filter.worker.filter(|worker| usize::from(*worker) >= workers) {
        let remedy =
            if workers == 1 { "the only worker is 0".to_owned() } else { format!("workers are 0 to {}", workers - 1) };
        return Err(Fault::new(format!("worker {worker}"), "does not exist", remedy));
    }
    if let Some(state) =
        list.filter.state.as_ref().filter(|state| !convert::session_states().any(|known| known == **state))
    {
        let known: Vec<&str> = convert::session_states().collect();
        let remedy = format!("use one of: {}", known.join(", "));
        return Err(Fault::new(format!("state \"{state}\""), "does not exist", remedy));
    }
    convert::engine_filter(&instance.shared(), &list.filter)
}

pub(crate) fn mappings(instance: &Instance, list: &List, within: Duration) -> Result<Page<Mapping>, Fault> {
    walk::<MappingView, _>(instance, list, within, convert::mapping, |mapping| {
        list.filter.matches(&convert::mapping_candidate(mapping))
    })
}

pub(crate) fn grants(instance: &Instance, list: &List) -> Result<Page<Grant>, Fault> {
    walk::<GrantView, _>(instance, list, PAGE_WITHIN, convert::grant, |grant| {
        list.filter.matches(&convert::grant_candidate(grant))
    })
}

pub(crate) fn expectations(instance: &Instance, list: &List) -> Result<Page<Expectation>, Fault> {
    known_gateway(list)?;
    walk::<ExpectationView, _>(instance, list, PAGE_WITHIN, convert::expectation, |expectation| {
        list.filter.matches(&convert::expectation_candidate(expectation))
    })
}

/// An unknown gateway is an error and not an empty list.
fn known_gateway(list: &List) -> Result<(), Fault> {
    let Some(name) = list.filter.alg.as_deref().filter(|name| alg::AlgId::named(name).is_none()) else {
        return Ok(());
    };
    let known: Vec<&str> = alg::ALGS.iter().map(|gateway| gateway.name()).collect();
    Err(Fault::new(format!("gateway \"{name}\""), "does not exist", format!("use one of: {}", known.join(", "))))
}

pub(crate) fn algs(instance: &Instance, list: &List) -> Result<Page<Alg>, Fault> {
    known_gateway(list)?;
    let _known = engine_filter(instance, list)?;
    let snapshots = instance.snapshots()?;
    let shared = instance.shared();
    let settings = shared.settings();
    let wanted = |worker: usize| list.filter.worker.is_none_or(|wanted| usize::from(wanted) == worker);
    let counted: Vec<_> = snapshots.iter().enumerate().filter(|(worker, _)| wanted(*worker)).collect();
    let by_class = |wanted: bool, id| {
        let listed = settings
            .classes
            .iter()
            .filter(|class| class.gateways.as_ref().is_some_and(|own| own.contains(&id) == wanted));
        listed.map(|class| class.name.clone()).collect()
    };
    let all = alg::ALGS.iter().enumerate().map(|(place, gateway)| {
        let id = alg::AlgId(place as u8);
        let found = settings.gateways.iter().find(|gateway| gateway.alg == id);
        let usual = nat::settings::Gateway::new(id);
        let configured = found.unwrap_or(&usual);
        let sum = |of: &dyn Fn(&Snapshot) -> u64| counted.iter().map(|(_, snapshot)| of(snapshot)).sum::<u64>();
        let refused = |why: GatewayRefusal| sum(&|snapshot| snapshot.counters.gateways[place].refused[why as usize]);
        let commands = gateway.commands().iter().enumerate();
        Alg {
            name: gateway.name().to_owned(),
            enabled: found.is_some_and(|gateway| gateway.serves_everyone),
            transports: gateway.transports().iter().map(|one| protocol(Protocol::from(*one))).collect(),
            ports: configured.ports.clone(),
            commands: commands
                .filter(|(bit, _)| configured.disabled & 1 << bit == 0)
                .map(|(_, command)| (*command).to_owned())
                .collect(),
            pools: configured.pools.clone(),
            classes: by_class(true, id),
            classes_without: by_class(false, id),
            sessions: sum(&|snapshot| snapshot.gateways[place].sessions.into()),
            sessions_total: sum(&|snapshot| snapshot.counters.control_sessions[place]),
            messages_changed: sum(&|snapshot| snapshot.counters.messages_changed[place]),
            expectations: sum(&|snapshot| snapshot.gateways[place].expectations.into()),
            expectations_total: sum(&|snapshot| snapshot.counters.gateways[place].expected),
            refused: AlgRefused {
                unreadable: refused(GatewayRefusal::Unreadable),
                table_full: refused(GatewayRefusal::TableFull),
                message_limit: refused(GatewayRefusal::MessageLimit),
                session_limit: refused(GatewayRefusal::SessionLimit),
                subscriber_limit: refused(GatewayRefusal::SubscriberLimit),
                no_port: refused(GatewayRefusal::NoPort),
            },
        }
    });
    page_of(list, all.filter(|object| list.filter.alg.as_ref().is_none_or(|name| *name == object.name)))
}

pub(crate) fn sessions(instance: &Instance, list: &List, within: Duration) -> Result<Page<Session>, Fault> {
    walk::<SessionView, _>(instance, list, within, convert::session, |session| {
        list.filter.matches(&convert::session_candidate(session))
    })
}

/// A host means its subscriber, whose row has a whole prefix.
pub(crate) fn subscribers(instance: &Instance, list: &List, within: Duration) -> Result<Page<Subscriber>, Fault> {
    let mut list = list.clone();
    if let Some(host) = list.filter.host {
        let length = host.length().min(instance.shared().settings().transition.prefix_length);
        list.filter.host = Prefix6::new(host.address(), length);
    }
    let list = &list;
    walk::<SubscriberView, _>(instance, list, within, convert::subscriber, |subscriber| {
        list.filter.matches(&convert::subscriber_candidate(subscriber))
    })
}

/// Counts the subscribers of a pool, in parts of limited size.
pub(crate) fn count_subscribers(instance: &Instance, pool: PoolId) -> Result<u64, Fault> {
    let filter = view::Filter { pool: Some(pool), ..view::Filter::default() };
    let mut count = 0;
    for worker in 0..instance.worker_count() {
        let mut place = Some(0);
        while let Some(cursor) = place {
            let page = instance.page::<SubscriberView>(worker, page(cursor, PAGE_SCAN, filter))?;
            count += page.records.iter().filter(|view| !view.is_refused_only).count() as u64;
            place = page.next;
        }
    }
    Ok(count)
}

/// A page of a complete list, with the position as cursor.
pub(super) fn page_of<T>(list: &List, all: impl Iterator<Item = T>) -> Result<Page<T>, Fault> {
    let start = list.start()?.place as usize;
    let limit = list.limit_effective() as usize;
    let mut rest = all.skip(start);
    let objects: Vec<T> = rest.by_ref().take(limit).collect();
    let more = rest.next().is_some();
    let cursor = more.then(|| Cursor { part: 0, place: (start + objects.len()) as u128 }.to_string());
    Ok(Page { objects, cursor })
}

pub(crate) fn pool_addresses(instance: &Instance, list: &List) -> Result<Page<PoolAddress>, Fault> {
    let shared = instance.shared();
    let _known = engine_filter(instance, list)?;
    let now = instance.clock.now();
    let announcing = instance.routing().filter(|routing| routing.announces()).map(|routing| routing.pools());
    let addresses = shared.addresses().map(|(index, slot)| PoolAddress {
        announced: announcing.as_ref().map(|pools| pools.announces(slot.address)),
        ..pool_address(&shared, index, now)
    });
    page_of(
        list,
        addresses.filter(|object| {
            let candidate =
                Candidate { external: Some(object.address), pool: Some(&object.pool), ..Candidate::default() };
            list.filter.matches(&candidate)
        }),
    )
}

fn pool_address(shared: &Shared, index: AddressIndex, now: nat::Instant) -> PoolAddress {
    let pool = shared.pool_of(index);
    let closed = shared.closed(index);
    let numbers = |of: &dyn Fn(Protocol) -> u32| Protocol::ALL.map(|protocol| u64::from(of(protocol)));
    let used = numbers(&|protocol| shared.ports_used(index, protocol));
    let total = numbers(&|protocol| shared.ports_there(index, protocol));
    let paired = shared.pool(pool).is_some_and(|pool| pool.pooling == nat::settings::Pooling::Paired);
    let ports_leased = u64::from(shared.ports_leased(index));
    let ports_unleasable = u64::from(shared.ports_unleasable(index));
    PoolAddress {
        pool: pool_name(shared, pool),
        address: shared.address(index),
        state: match closed {
            None => AddressState::Active,
            Some(closed) if closed.removed => AddressState::Removed,
            Some(_) => AddressState::Draining,
        },
        ends_in_us: closed.and_then(|closed| closed.ends).map(|ends| ends.saturating_since(now).as_micros()),
        announced: None,
        subscribers: paired.then(|| u64::from(shared.paired_subscribers(index))),
        ports_leased,
        ports_unleasable,
        ports_used: per_protocol(used),
        ports_held: per_protocol(numbers(&|protocol| shared.ports_held_down(index, protocol))),
        ports_total: per_protocol(total),
        utilisation_ratio: fullest(used, total, ports_leased + ports_unleasable),
    }
}

/// Share of the ports of the fullest transport that are not available: in use, or in blocks that
/// cannot be leased.
pub(crate) fn fullest(used: [u64; Protocol::COUNT], total: [u64; Protocol::COUNT], in_blocks: u64) -> f64 {
    // Blocks contain as many identifiers as ports, some of which may be reserved.
    let of_blocks = ratio(in_blocks, total[Protocol::Icmp.index()]);
    Protocol::ALL
        .map(|protocol| ratio(used[protocol.index()], total[protocol.index()]))
        .into_iter()
        .fold(of_blocks, f64::max)
        // Blocks of an earlier configuration may have other bounds than current ones.
        .min(1.0)
}

/// Rules, filters, passed protocols, static forwards, forwards to several targets, and one-to-one
/// pools. Any position is reached directly, because there may be a million rules.
pub(crate) fn rules(instance: &Instance, list: &List) -> Result<Page<Rule>, Fault> {
    let shared = instance.shared();
    let (rules, filters, settings) = (shared.rules(), shared.filters(), shared.settings());
    let (passed, origins) = (shared.passes(), &settings.origins);
    let ends = [rules.set().len(), rules.set().len() + filters.len()];
    let passed_end = ends[1] + passed.set().len();
    let forwards_end = passed_end + settings.forwards.len();
    let balanced_end = forwards_end + settings.balanced_forwards.len();
    let all = passed_end + shared.static_count() + settings.balanced_forwards.len();
    let at = |place: usize| match place {
        _ if place < ends[0] => {
            let (matches, action, hits) = rules.at(place)?;
            let (word, pool, mapping) = convert::rule_action(&shared, action);
            let rule = convert::rule("rule", place, word, matches, settings);
            let targets = convert::targets(settings, action);
            let place = origins.place(&origins.rules, place);
            Some(Rule { place, pool, mapping, targets, hits: Some(hits), ..rule })
        }
        _ if place < ends[1] => {
            let (filter, hits) = filters.at(place - ends[0])?;
            let word = if filter.action == FilterAction::Permit { "permit" } else { "deny" };
            let rule = convert::rule("filter", place - ends[0], word, &filter.matches, settings);
            let direction = match (filter.out, filter.back) {
                (true, true) => "both",
                (true, false) => "out",
                (false, _) => "in",
            };
            let place = origins.place(&origins.filters, place - ends[0]);
            Some(Rule { place, direction: Some(direction.to_owned()), hits: Some(hits), ..rule })
        }
        _ if place < passed_end => {
            let (matches, _, hits) = passed.at(place - ends[1])?;
            let position = place - ends[1];
            let place = origins.place(&origins.pass_rules, position);
            Some(Rule { place, hits: Some(hits), ..convert::rule("pass", position, "pass", matches, settings) })
        }
        _ if (forwards_end..balanced_end).contains(&place) => {
            let position = place - forwards_end;
            convert::balanced(position, shared.balanced_hits(position), settings)
        }
        _ => {
            let past = if place < forwards_end { 0 } else { settings.balanced_forwards.len() };
            let number = place - passed_end - past;
            let (paired, hits) = shared.static_at(number)?;
            Some(Rule { hits: Some(hits), ..convert::paired(number, paired, settings) })
        }
    };
    let start = list.start()?.place as usize;
    let end = all.min(start.saturating_add(list.limit_effective() as usize));
    let objects = (start..end).filter_map(at).collect();
    let cursor = (end < all).then(|| Cursor { part: 0, place: end as u128 }.to_string());
    Ok(Page { objects, cursor })
}
