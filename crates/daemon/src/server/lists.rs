//! Lists that can be long: fetched from one worker after the other, a bounded piece at a time.
//!
//! A cursor is `<worker>.<place in its tables>`; traffic runs between any two pieces.

use control::Candidate;
use control::Fault;
use control::List;
use control::PoolAddress;
use control::Reply;
use control::Rule;
use control::ratio;
use nat::Protocol;
use nat::Shared;
use nat::settings::FilterAction;
use nat::types::AddressIndex;
use nat::types::PoolId;
use nat::view;
use nat::view::SessionView;

use super::Answered;
use super::convert;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::PAGE_RECORDS;
use crate::mailbox::PAGE_SCAN;
use crate::mailbox::Page;
use crate::mailbox::Question;

/// A place in the records of all workers.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    pub(super) worker: usize,
    pub(super) place: u32,
}

impl Cursor {
    pub(super) fn parse(text: Option<&str>) -> Result<Cursor, Fault> {
        let Some(text) = text else { return Ok(Cursor { worker: 0, place: 0 }) };
        let parts = text.split_once('.').and_then(|(worker, place)| Some((worker.parse().ok()?, place.parse().ok()?)));
        let wrong = || Fault::new("cursor", "was not made by this list", "leave it out to start anew").seen(text);
        let (worker, place) = parts.ok_or_else(wrong)?;
        Ok(Cursor { worker, place })
    }

    pub(super) fn text(self) -> String {
        format!("{}.{}", self.worker, self.place)
    }
}

/// Walks the records of all workers that `wanted_worker` allows, until `limit` objects are collected. `keep` turns a
/// record into an object, or None when it is not wanted.
fn walk<V>(
    instance: &Instance,
    list: &List,
    filter: view::Filter,
    question: fn(Page<V>) -> Question,
    answer: fn(Question) -> Option<Page<V>>,
    mut keep: impl FnMut(V) -> Result<Option<Reply>, Fault>,
) -> Result<Answered, Fault> {
    let limit = list.limit_effective() as usize;
    let mut cursor = Cursor::parse(list.cursor.as_deref())?;
    let mut replies = Vec::new();
    while cursor.worker < instance.worker_count() {
        if list.filter.worker.is_some_and(|wanted| usize::from(wanted) != cursor.worker) {
            cursor = Cursor { worker: cursor.worker + 1, place: 0 };
            continue;
        }
        if replies.len() >= limit {
            return Ok(Answered { replies, cursor: Some(cursor.text()) });
        }
        // What `keep` leaves out only makes the page shorter than the piece, never longer than the limit.
        let piece = PAGE_RECORDS.min(limit - replies.len());
        let asked = question(Page::new(cursor.place, piece, PAGE_SCAN, filter));
        let page = answer(instance.ask(cursor.worker, asked)?).ok_or_else(|| mismatch(cursor.worker))?;
        for record in page.records {
            replies.extend(keep(record)?);
        }
        cursor = match page.next {
            Some(place) => Cursor { worker: cursor.worker, place },
            None => Cursor { worker: cursor.worker + 1, place: 0 },
        };
    }
    Ok(Answered { replies, cursor: None })
}

/// What the engine looks at of a filter. A state or a worker that there is none of is a mistake, and not a list without anything.
fn engine_filter(instance: &Instance, list: &List) -> Result<view::Filter, Fault> {
    let workers = instance.worker_count();
    if let Some(worker) = list.filter.worker.filter(|worker| usize::from(*worker) >= workers) {
        let remedy = if workers == 1 {
            "there is worker 0 only".to_owned()
        } else {
            format!("workers are 0 to {}", workers - 1)
        };
        return Err(Fault::new(format!("worker {worker}"), "does not exist", remedy));
    }
    if let Some(state) =
        list.filter.state.as_ref().filter(|state| !convert::session_states().any(|known| known == **state))
    {
        let known: Vec<&str> = convert::session_states().collect();
        let remedy = format!("states are: {}", known.join(", "));
        return Err(Fault::new(format!("state \"{state}\""), "does not exist", remedy));
    }
    convert::engine_filter(&instance.shared(), &list.filter)
}

pub(crate) fn mappings(instance: &Instance, list: &List) -> Result<Answered, Fault> {
    let filter = engine_filter(instance, list)?;
    let answer = |question| if let Question::Mappings(page) = question { Some(page) } else { None };
    walk(instance, list, filter, Question::Mappings, answer, |view| {
        let mapping = convert::mapping(&instance.shared(), &view);
        let wanted = list.filter.matches(&convert::mapping_candidate(&mapping));
        Ok(wanted.then(|| mapping.into()))
    })
}

pub(crate) fn sessions(instance: &Instance, list: &List) -> Result<Answered, Fault> {
    let filter = engine_filter(instance, list)?;
    let answer = |question| if let Question::Sessions(page) = question { Some(page) } else { None };
    walk(instance, list, filter, Question::Sessions, answer, |view| {
        let session = convert::session(&instance.shared(), pool_of(instance, &view), &view);
        let wanted = list.filter.matches(&convert::session_candidate(&session));
        Ok(wanted.then(|| session.into()))
    })
}

fn pool_of(instance: &Instance, view: &SessionView) -> PoolId {
    let address = instance.shared().address_index(view.external.address);
    address.map(|address| instance.shared().pool_of(address)).unwrap_or_default()
}

pub(crate) fn subscribers(instance: &Instance, list: &List) -> Result<Answered, Fault> {
    let filter = engine_filter(instance, list)?;
    let answer = |question| if let Question::Subscribers(page) = question { Some(page) } else { None };
    walk(instance, list, filter, Question::Subscribers, answer, |view| {
        let subscriber = convert::subscriber(&instance.shared(), &view);
        let wanted = list.filter.matches(&convert::subscriber_candidate(&subscriber));
        Ok(wanted.then(|| subscriber.into()))
    })
}

/// Counts the subscribers of a pool, a bounded piece at a time.
pub(crate) fn count_subscribers(instance: &Instance, pool: PoolId) -> Result<u64, Fault> {
    let filter = view::Filter { pool: Some(pool), ..view::Filter::default() };
    let mut count = 0;
    for worker in 0..instance.worker_count() {
        let mut place = Some(0);
        while let Some(cursor) = place {
            let asked = Question::Subscribers(Page::new(cursor, PAGE_SCAN, PAGE_SCAN, filter));
            let Question::Subscribers(page) = instance.ask(worker, asked)? else { return Err(mismatch(worker)) };
            count += page.records.iter().filter(|view| !view.is_turned_away).count() as u64;
            place = page.next;
        }
    }
    Ok(count)
}

/// A page of things that are all at hand, with the position as cursor.
fn page_of<T: Into<Reply>>(list: &List, objects: impl Iterator<Item = T>) -> Result<Answered, Fault> {
    let start = Cursor::parse(list.cursor.as_deref())?.place as usize;
    let limit = list.limit_effective() as usize;
    let mut rest = objects.skip(start);
    let replies: Vec<Reply> = rest.by_ref().take(limit).map(Into::into).collect();
    let more = rest.next().is_some();
    let cursor = more.then(|| Cursor { worker: 0, place: (start + replies.len()) as u32 }.text());
    Ok(Answered { replies, cursor })
}

pub(crate) fn pool_addresses(instance: &Instance, list: &List) -> Result<Answered, Fault> {
    let shared = instance.shared();
    let _known = engine_filter(instance, list)?;
    let addresses = shared.addresses().map(|(index, _)| pool_address(&shared, index));
    page_of(
        list,
        addresses.filter(|object| {
            let candidate =
                Candidate { external: Some(object.address), pool: Some(&object.pool), ..Candidate::default() };
            list.filter.matches(&candidate)
        }),
    )
}

fn pool_address(shared: &Shared, index: AddressIndex) -> PoolAddress {
    let pool = shared.pool_of(index);
    let numbers = |of: &dyn Fn(Protocol) -> u32| Protocol::ALL.map(|protocol| u64::from(of(protocol)));
    let used = numbers(&|protocol| shared.ports_used(index, protocol));
    let total = numbers(&|protocol| shared.ports_there(index, protocol));
    let paired = shared.pool(pool).is_some_and(|pool| pool.pooling == nat::settings::Pooling::Paired);
    let ports_leased = u64::from(shared.ports_leased(index));
    let ports_unleasable = u64::from(shared.ports_unleasable(index));
    PoolAddress {
        pool: convert::pool_name(shared, pool),
        address: shared.address(index),
        subscribers: paired.then(|| u64::from(shared.paired_subscribers(index))),
        ports_leased,
        ports_unleasable,
        ports_used: convert::per_protocol(used),
        ports_resting: convert::per_protocol(numbers(&|protocol| shared.ports_resting(index, protocol))),
        ports_total: convert::per_protocol(total),
        utilisation_ratio: fullest(used, total, ports_leased + ports_unleasable),
    }
}

/// Part of the ports of the fullest transport that nobody else can have: in use, or in blocks that are not to be had.
pub(crate) fn fullest(used: [u64; Protocol::COUNT], total: [u64; Protocol::COUNT], in_blocks: u64) -> f64 {
    // Blocks hold as many identifiers as ports, of which some may be reserved.
    let of_blocks = ratio(in_blocks, total[Protocol::Icmp.index()]);
    Protocol::ALL
        .map(|protocol| ratio(used[protocol.index()], total[protocol.index()]))
        .into_iter()
        .fold(of_blocks, f64::max)
        // Blocks from before a change may begin or end where no block of now does.
        .min(1.0)
}

/// Rules, then filters, then what is passed, then static forwards, those to several, and one-to-one pools. Any place is reached at once: there may be a million.
pub(crate) fn rules(instance: &Instance, list: &List) -> Result<Answered, Fault> {
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
    let start = Cursor::parse(list.cursor.as_deref())?.place as usize;
    let end = all.min(start.saturating_add(list.limit_effective() as usize));
    let replies: Vec<Reply> = (start..end).filter_map(at).map(Into::into).collect();
    let cursor = (end < all).then(|| Cursor { worker: 0, place: end as u32 }.text());
    Ok(Answered { replies, cursor })
}
