//! `find` of an external address without a port: everybody who uses it.
//!
//! Who is paired with it, who has mappings, flows or blocks on it though he is not, as it drains, or a rule sent him there, or the pool
//! pairs nobody; then whose it is by the configuration: one to one, by forwards, by a formula. Mappings and flows know their
//! subscriber, not the other way round, so that each page goes through all of them; it goes on after the last subscriber of the page
//! before, whatever came and went meanwhile.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use control::Fault;
use control::Find;
use control::FindAnswer;
use control::List;
use control::OwnPorts;
use control::Place;
use control::Reply;
use control::Subscriber;
use nat::types::AddressIndex;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::view;

use super::Answered;
use super::convert;
use super::find::sleepers;
use super::lists::Cursor;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::PAGE_RECORDS;
use crate::mailbox::PAGE_SCAN;
use crate::mailbox::Page;
use crate::mailbox::Question;
use crate::offline;

/// In cursors in the place of a VRF: past all subscribers, where the number says how many of the configuration's answers are told.
const CONFIGURED: usize = 1 << 16;

/// What a subscriber has of the address.
#[derive(Default)]
struct User {
    /// It is his own.
    paired: Option<Box<Subscriber>>,
    mappings: u32,
    flows: u32,
    blocks: Vec<OwnPorts>,
}

impl User {
    fn detail(&self, inside: Ipv4Addr, external: Ipv4Addr) -> String {
        if self.paired.is_some() {
            return format!("subscriber {inside} is paired with {external}");
        }
        let counted = |count: u32, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            count => Some(format!("{count} {what}s")),
        };
        let has: Vec<String> =
            [counted(self.mappings, "mapping"), counted(self.flows, "flow")].into_iter().flatten().collect();
        let blocks: Vec<String> =
            self.blocks.iter().map(|block| format!("{}-{}", block.first_port, block.last_port)).collect();
        match (has.is_empty(), blocks.as_slice()) {
            (false, _) => format!("subscriber {inside} has {} on {external}", has.join(" and ")),
            (true, [block]) => format!("subscriber {inside} has the block {block} of {external}"),
            (true, blocks) => format!("subscriber {inside} has the blocks {} of {external}", blocks.join(", ")),
        }
    }
}

/// By VRF and inside address.
type Users = BTreeMap<(u16, Ipv4Addr), User>;

/// Everybody who uses an external address; a page of them.
pub(super) fn users(
    instance: &Instance,
    find: &Find,
    index: AddressIndex,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Result<Answered, Fault> {
    let list = List { limit: find.limit, cursor: find.cursor.clone(), ..List::default() };
    let start = list.cursor.as_deref().map(|cursor| Cursor::parse(Some(cursor))).transpose()?;
    let limit = list.limit_effective() as usize;
    let users = all_users(instance, find, index)?;
    let pool = convert::pool_name(&instance.shared(), instance.shared().pool_of(index));

    let mut replies: Vec<Reply> = Vec::new();
    let mut last = None;
    let is_told = |(realm, inside): &(u16, Ipv4Addr)| {
        start.is_some_and(|start| (start.worker, start.place) >= (usize::from(*realm), inside.to_bits()))
    };
    for ((realm, inside), user) in users.iter().filter(|(key, _)| !is_told(key)) {
        if replies.len() == limit {
            return Ok(Answered { replies, cursor: last.map(Cursor::text) });
        }
        let mut answer = empty(Place::External, user.detail(*inside, find.address));
        answer.holder = Some(*inside);
        answer.realm = Some(*realm);
        answer.vrf = Some(convert::vrf_name(instance.shared().settings(), RealmId(*realm)));
        answer.external_address = Some(find.address);
        answer.own_ports = user.paired.as_ref().map_or_else(|| user.blocks.clone(), |paired| paired.own_ports.clone());
        answer.pool = Some(user.paired.as_ref().map_or_else(|| pool.clone(), |paired| paired.pool.clone()));
        replies.push(answer.into());
        last = Some(Cursor { worker: usize::from(*realm), place: inside.to_bits() });
    }
    let configured = configured(instance, find, &users, empty);
    let told = start.filter(|start| start.worker == CONFIGURED).map_or(0, |start| start.place as usize);
    let page = limit - replies.len();
    let more = configured.len().saturating_sub(told) > page;
    replies.extend(configured.into_iter().skip(told).take(page).map(Reply::from));
    let cursor = more.then(|| Cursor { worker: CONFIGURED, place: (told + page) as u32 }.text());
    Ok(Answered { replies, cursor })
}

/// What the configuration says of the address, whether anybody uses it now or not, but for who is named as a user.
fn configured(
    instance: &Instance,
    find: &Find,
    users: &Users,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Vec<FindAnswer> {
    let shared = instance.shared();
    let settings = shared.settings();
    let is_new = |answer: &FindAnswer| match (answer.realm, answer.holder) {
        (Some(realm), Some(holder)) => !users.contains_key(&(realm, holder)),
        _ => true,
    };
    let mut answers: Vec<FindAnswer> = sleepers(instance, find, empty).into_iter().filter(is_new).collect();
    let protocol = find.protocol.map(convert::engine_protocol);
    answers.extend(offline::forwards_from(settings, find.address, protocol, &find.address.to_string()));
    answers.extend(offline::by_formula(settings, find.address).unwrap_or_default().into_iter().filter(is_new));
    answers
}

/// All subscribers who have something of the address.
fn all_users(instance: &Instance, find: &Find, index: AddressIndex) -> Result<Users, Fault> {
    let external = Prefix::host(find.address);
    let filter = view::Filter {
        external: Some(external),
        protocol: find.protocol.map(convert::engine_protocol),
        ..view::Filter::default()
    };
    let mut users = Users::new();
    for worker in 0..instance.worker_count() {
        let mut place = Some(0);
        while let Some(cursor) = place {
            let asked = Question::Subscribers(Page::new(cursor, PAGE_RECORDS, PAGE_SCAN, filter));
            let Question::Subscribers(page) = instance.ask(worker, asked)? else { return Err(mismatch(worker)) };
            for view in page.records {
                let subscriber = convert::subscriber(&instance.shared(), &view);
                users.entry((view.realm.0, view.address)).or_default().paired = Some(Box::new(subscriber));
            }
            place = page.next;
        }
        let mut place = Some(0);
        while let Some(cursor) = place {
            let asked = Question::Mappings(Page::new(cursor, PAGE_RECORDS, PAGE_SCAN, filter));
            let Question::Mappings(page) = instance.ask(worker, asked)? else { return Err(mismatch(worker)) };
            for view in page.records {
                users.entry((view.realm.0, view.internal.address)).or_default().mappings += 1;
            }
            place = page.next;
        }
        let mut place = Some(view::FLOW_CURSORS.start);
        while let Some(cursor) = place.filter(|place| view::FLOW_CURSORS.contains(place)) {
            let asked = Question::Sessions(Page::new(cursor, PAGE_RECORDS, PAGE_SCAN, filter));
            let Question::Sessions(page) = instance.ask(worker, asked)? else { return Err(mismatch(worker)) };
            // Sessions of mappings follow the last flow.
            for view in page.records.iter().filter(|view| view.shared) {
                users.entry((view.realm.0, view.internal.address)).or_default().flows += 1;
            }
            place = page.next;
        }
    }
    for lease in instance.shared().leases_on(index) {
        let user = users.entry((lease.holder.realm.0, Ipv4Addr::from_bits(lease.holder.address))).or_default();
        user.blocks.push(OwnPorts {
            kind: "block".to_owned(),
            external_address: find.address,
            first_port: lease.block.first_port(),
            last_port: lease.block.last_port(),
        });
    }
    Ok(users)
}
