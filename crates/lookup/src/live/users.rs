//! `find` of an external address without a port: all its users.
//!
//! First subscribers that are paired with it or have mappings, flows or blocks on it (it drains, a
//! rule sent them there, or the pool pairs no subscriber). Then configured owners: one-to-one, by
//! forwards, by a formula. Each page reads all mappings and flows, which know their subscriber, not
//! the reverse. It continues after the last subscriber of the previous page, whatever changed
//! meanwhile.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use control::Cursor;
use control::Fault;
use control::FindAnswer;
use control::Host;
use control::Page;
use control::Place;
use control::Subscriber;
use control::SubscriberPorts;
use nat::types::AddressIndex;
use nat::types::HostNumber;
use nat::types::RealmId;

use super::Search;
use super::Use;
use super::named;
use crate::convert;

/// In a cursor, instead of a VRF: subscribers are done, and the number counts answers of the
/// configuration.
const CONFIGURED: usize = 1 << 16;

/// How one subscriber uses the address.
#[derive(Default)]
struct User {
    /// Paired with the address.
    paired: Option<Box<Subscriber>>,
    /// The inside address is this host's number.
    host: Option<Host>,
    mappings: u32,
    flows: u32,
    blocks: Vec<SubscriberPorts>,
}

impl User {
    fn detail(&self, inside: Ipv4Addr, external: Ipv4Addr) -> String {
        let inside = named(inside, self.host.as_ref());
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

impl Search<'_> {
    pub(super) fn users(&self, index: AddressIndex) -> Result<Page<FindAnswer>, Fault> {
        let list = self.list(control::Filter::default());
        let start = if self.is_first_page() { None } else { Some(list.start()?) };
        let limit = list.limit_effective() as usize;
        let users = self.all_users(index)?;
        let pool = convert::pool_name(&self.shared, self.shared.pool_of(index));

        let mut objects: Vec<FindAnswer> = Vec::new();
        let mut last = None;
        let is_earlier = |(realm, inside): &(u16, Ipv4Addr)| {
            start.is_some_and(|start| (start.part, start.place) >= (usize::from(*realm), u128::from(inside.to_bits())))
        };
        for ((realm, inside), user) in users.iter().filter(|(key, _)| !is_earlier(key)) {
            if objects.len() == limit {
                return Ok(Page { objects, cursor: last });
            }
            let paired = user.paired.as_ref();
            objects.push(FindAnswer {
                holder: (!HostNumber::from(*inside).is_ipv6()).then_some(*inside),
                host: user.host,
                realm: Some(*realm),
                vrf: Some(self.vrf(RealmId(*realm))),
                external_address: Some(self.asked.address),
                subscriber_ports: paired.map_or(&user.blocks, |paired| &paired.subscriber_ports).clone(),
                pool: Some(paired.map_or(&pool, |paired| &paired.pool).clone()),
                ..self.asked.nobody(Place::External, user.detail(*inside, self.asked.address))
            });
            last = Some(Cursor { part: usize::from(*realm), place: inside.to_bits().into() }.to_string());
        }
        let configured = self.configured_owners(&users);
        let done = start.filter(|start| start.part == CONFIGURED).map_or(0, |start| start.place as usize);
        let page = limit - objects.len();
        let more = configured.len().saturating_sub(done) > page;
        objects.extend(configured.into_iter().skip(done).take(page));
        let cursor = more.then(|| Cursor { part: CONFIGURED, place: (done + page) as u128 }.to_string());
        Ok(Page { objects, cursor })
    }

    /// In use or not, except those named as users.
    fn configured_owners(&self, users: &Users) -> Vec<FindAnswer> {
        let is_new = |answer: &FindAnswer| match (answer.realm, answer.holder) {
            (Some(realm), Some(holder)) => !users.contains_key(&(realm, holder)),
            _ => true,
        };
        let configured = self.configured();
        let mut answers = self.static_mappings_of_external();
        answers.retain(is_new);
        answers.extend(configured.forwards_from());
        answers.extend(configured.by_formula().unwrap_or_default().into_iter().filter(is_new));
        answers
    }

    /// All subscribers that use the address.
    fn all_users(&self, index: AddressIndex) -> Result<Users, Fault> {
        let mut users = Users::new();
        self.live.uses(self.asked.address, self.asked.protocol, &mut |realm, inside, what| {
            let user = users.entry((realm.0, inside)).or_default();
            match what {
                Use::Paired(subscriber) => {
                    user.host = subscriber.host;
                    user.paired = Some(subscriber);
                }
                Use::Mapping(host) => {
                    user.host = host;
                    user.mappings += 1;
                }
                Use::Flow(host) => {
                    user.host = host;
                    user.flows += 1;
                }
            }
        })?;
        for lease in self.shared.leases_on(index) {
            let user = users.entry((lease.holder.realm.0, Ipv4Addr::from(lease.holder.address))).or_default();
            user.blocks.push(convert::block(&self.shared, &lease));
        }
        for ((_, inside), user) in &mut users {
            if user.host.is_none() {
                user.host = self.prefix_of(*inside)?;
            }
        }
        Ok(users)
    }
}
