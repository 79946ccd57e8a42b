//! The memory of an engine, told before any of it is taken.
//!
//! All tables are taken when [`Shared`](crate::Shared) and its shards are built, one after the other. Whoever builds them asks
//! here first, so that too little memory is one error about all of it, and not a refusal in the middle.

use mem::Need;

use crate::commons::Commons;
use crate::event::EventLog;
use crate::flow::FlowStore;
use crate::fragments::FragmentTracker;
use crate::held_ports::HeldPorts;
use crate::mapping::MappingStore;
use crate::ports::PortTable;
use crate::redirection::Redirection;
use crate::redirection::Target;
use crate::reserve::guarantees_ports;
use crate::route::RouteTable;
use crate::rules::FilterBook;
use crate::rules::RuleBook;
use crate::session::SessionStore;
use crate::settings::Allocation;
use crate::settings::Settings;
use crate::shared::compile_routes;
use crate::shared_ports::SharedPorts;
use crate::subscriber::SubscriberStore;
use crate::table::BucketTable;
use crate::turned_away::TurnedAway;
use crate::types::Prefix;
use crate::types::RealmId;
use crate::unsolicited_syn::SynStore;

/// What each shard has besides its tables, whatever the limits: rate limits, identifications, room for a packet.
const SHARD_REST_BYTES: u64 = 128 << 10;

/// Places of the port table.
fn places(settings: &Settings) -> usize {
    let addresses: usize = settings.pools.iter().map(|pool| pool.addresses.len()).sum();
    addresses.max(settings.limits.external_addresses_max as usize)
}

/// What [`Shard::new`](crate::Shard::new) is going to take for one of so many workers.
pub fn shard_needs(settings: &Settings, workers: usize) -> Vec<Need> {
    let limits = &settings.limits;
    let mtu_max = settings.interfaces.iter().map(|interface| interface.mtu).max().unwrap_or(0);
    let mut needs = vec![MappingStore::need(limits.mappings_max), BucketTable::need(limits.mappings_max as usize)];
    needs.extend(SessionStore::needs(limits.extra_sessions_max));
    needs.extend(SubscriberStore::needs(limits.subscribers_max));
    needs.extend(HeldPorts::needs(limits.held_ports_max));
    let addresses = places(settings);
    needs.extend(FlowStore::needs(limits.flows_max));
    needs.extend(SharedPorts::needs(limits.flows_max, addresses, workers));
    needs.push(Need::Heap(
        FragmentTracker::bytes_for(limits, usize::from(mtu_max))
            + SynStore::bytes_for(limits.unsolicited_syns_max)
            + EventLog::bytes()
            + TurnedAway::BYTES
            + SHARD_REST_BYTES,
    ));
    needs
}

/// What [`Shared::new`](crate::Shared::new) is going to take for so many workers: external ports and routes.
pub fn shared_needs(settings: &Settings, workers: usize) -> Vec<Need> {
    let addresses = places(settings);
    let mut needs = PortTable::needs(addresses).to_vec();
    let flows_max = settings.limits.flows_max as usize;
    if workers > 1 && flows_max > 0 {
        needs.extend(Commons::needs(addresses, flows_max.saturating_mul(workers)));
    }
    if settings.pools.iter().any(|pool| pool.allocation != Allocation::Ports) {
        needs.push(PortTable::blocks_need(addresses));
    }
    if guarantees_ports(settings) {
        needs.extend(PortTable::guard_needs(addresses));
    }
    for realm in (0..settings.realms()).map(|realm| RealmId(realm as u16)) {
        let pools = settings.pools.iter().filter(|pool| pool.serves(realm));
        let subscribers: Vec<Prefix> = pools.flat_map(|pool| pool.subscribers.iter().copied()).collect();
        needs.extend(RouteTable::needs(&subscribers));
    }
    let routes = compile_routes(settings).0;
    for routes in core::iter::once(routes.outside).chain(routes.inside) {
        let prefixes: Vec<Prefix> = routes.into_iter().map(|(prefix, _)| prefix).collect();
        needs.extend(RouteTable::needs(&prefixes));
    }
    // The filter and the slots of the addresses' own table, the address and the pool of each.
    needs.push(Need::Heap(addresses as u64 * 64));
    needs
}

/// What rules, filters and redirections take, about, with the settings they are in.
pub fn rule_need(settings: &Settings, workers: usize) -> Need {
    let rules = settings.rules.len() + settings.pass_rules.len();
    let targets = |redirection: &Redirection| match redirection {
        Redirection::Targets(targets) => targets.len() as u64 * size_of::<Target>() as u64,
        Redirection::Prefix(_) => 0,
    };
    let redirections: u64 = settings.redirections.iter().map(|it| targets(it) + size_of::<Redirection>() as u64).sum();
    Need::Heap(RuleBook::bytes_for(rules, workers) + FilterBook::bytes_for(&settings.filters, workers) + redirections)
}

/// What an instance with so many workers is going to take.
pub fn needs(settings: &Settings, workers: usize) -> Vec<Need> {
    let shard = shard_needs(settings, workers);
    let mut needs = shared_needs(settings, workers);
    needs.push(rule_need(settings, workers));
    for _ in 0..workers {
        needs.extend_from_slice(&shard);
    }
    needs
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Shard;
    use crate::Shared;
    use crate::settings::Interface;
    use crate::settings::InterfaceAddress;
    use crate::settings::Limits;
    use crate::settings::Pool;
    use crate::types::Side;
    use crate::types::WorkerId;

    fn tables(needs: &[Need]) -> u64 {
        needs.iter().filter(|need| matches!(need, Need::Table(_))).map(|need| need.bytes()).sum()
    }

    /// What is taken is what was told, rounded up to pages: of 2 MiB where there are any reserved, which an eighth may waste.
    fn assert_taken(told: u64, taken: usize) {
        let taken = taken as u64;
        assert!(taken >= told && taken <= told + told / 8 + (2 << 20), "{told} told, {taken} taken");
    }

    #[test]
    fn the_tables_told_beforehand_are_those_taken() {
        let prefix = |third: u32| Prefix::new(core::net::Ipv4Addr::from_bits(0x0a00_0000 | third << 8), 24);
        let settings = Settings {
            interfaces: vec![Interface {
                name: "inside".to_owned(),
                side: Side::Inside,
                realm: RealmId::default(),
                addresses: vec![InterfaceAddress { address: [10, 0, 0, 1].into(), prefix_length: 24 }],
                mtu: 1_500,
            }],
            pools: vec![Pool {
                name: "a".to_owned(),
                addresses: (0..20).map(|last| [203, 0, 113, last].into()).collect(),
                // More than are scanned.
                subscribers: (0..100).filter_map(prefix).collect(),
                ..Pool::default()
            }],
            limits: Limits {
                mappings_max: 1_000_000,
                extra_sessions_max: 500_000,
                subscribers_max: 200_000,
                flows_max: 300_000,
                ..Limits::default()
            },
            ..Settings::default()
        };
        let shared = Arc::new(Shared::new(settings.clone(), 2).unwrap());
        let routes: u64 = RouteTable::needs(&settings.pools[0].subscribers).iter().map(|need| need.bytes()).sum();
        assert!(routes > 100 * 1_024 / 256, "the tree of the prefixes is counted");
        assert_taken(tables(&shared_needs(&settings, 2)) - routes, shared.bytes());
        let shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).unwrap();
        assert_taken(tables(&shard_needs(&settings, 2)), shard.bytes());
        let all = tables(&needs(&settings, 3));
        assert_eq!(all, tables(&shared_needs(&settings, 3)) + 3 * tables(&shard_needs(&settings, 3)));
    }
}
