//! The memory an engine needs, computed before any is allocated: too little is one error about the
//! total.

use mem::Need;

use crate::event::EventLog;
use crate::external::between_workers::BetweenWorkers;
use crate::external::guaranteed_ports::guarantees_ports;
use crate::external::ports::PortTable;
use crate::policy::redirection::Redirection;
use crate::policy::redirection::Target;
use crate::policy::refused::RefusedSubscribers;
use crate::policy::rules::FilterBook;
use crate::policy::rules::RuleBook;
use crate::routes::RouteTable;
use crate::settings::Allocation;
use crate::settings::Settings;
use crate::snapshot::shared::compile_routes;
use crate::state::alg::AlgStore;
use crate::state::flow::FlowStore;
use crate::state::fragments::FragmentTracker;
use crate::state::grant::GrantStore;
use crate::state::held_ports::HeldPorts;
use crate::state::held_syn::SynStore;
use crate::state::host::HostStore;
use crate::state::mapping::MappingStore;
use crate::state::session::SessionStore;
use crate::state::shared_ports::SharedPorts;
use crate::state::subscriber::SubscriberStore;
use crate::state::table::BucketTable;
use crate::types::Prefix;
use crate::types::RealmId;

/// Memory of a shard besides its tables.
const SHARD_REST_BYTES: u64 = 128 << 10;

fn places(settings: &Settings) -> usize {
    let addresses: usize = settings.pools.iter().map(|pool| pool.addresses.len()).sum();
    addresses.max(settings.limits.external_addresses_max as usize)
}

/// Memory that [`Shard::new`](crate::Shard::new) takes.
pub fn shard_needs(settings: &Settings, workers: usize) -> Vec<Need> {
    let limits = &settings.limits;
    let mtu_max = settings.interfaces.iter().map(|interface| interface.mtu).max().unwrap_or(0);
    let mut needs = MappingStore::needs(limits.mappings_max).to_vec();
    needs.push(BucketTable::need(limits.mappings_max as usize));
    needs.extend(SessionStore::needs(limits.extra_sessions_max));
    needs.extend(SubscriberStore::needs(limits.subscribers_max));
    if !settings.transition.is_off() {
        needs.extend(HostStore::needs(settings.transition.hosts_max));
    }
    needs.extend(HeldPorts::needs(limits.held_ports_max));
    needs.extend(GrantStore::needs(limits.grants_max()));
    needs.push(control_sessions_need(settings));
    let addresses = places(settings);
    needs.extend(FlowStore::needs(limits.flows_max));
    needs.extend(SharedPorts::needs(limits.flows_max, addresses, workers));
    needs.push(Need::Heap(
        FragmentTracker::bytes_for(limits, usize::from(mtu_max))
            + SynStore::bytes_for(limits.unsolicited_syns_max)
            + EventLog::bytes()
            + RefusedSubscribers::BYTES
            + SHARD_REST_BYTES,
    ));
    needs
}

/// Memory of gateways in one worker. A reload can change it: it is allocated on first use.
pub fn control_sessions_need(settings: &Settings) -> Need {
    let is_off = settings.gateways.is_empty();
    Need::Heap(if is_off { 0 } else { AlgStore::bytes_for(settings.control_sessions_max) })
}

/// Memory that [`Shared::new`](crate::Shared::new) takes.
pub fn shared_needs(settings: &Settings, workers: usize) -> Vec<Need> {
    let addresses = places(settings);
    let mut needs = PortTable::needs(addresses).to_vec();
    let flows_max = settings.limits.flows_max as usize;
    if workers > 1 && flows_max > 0 {
        needs.extend(BetweenWorkers::needs(addresses, flows_max.saturating_mul(workers)));
    }
    if settings.pools.iter().any(|pool| pool.allocation != Allocation::Ports) {
        needs.push(PortTable::blocks_need(addresses));
    }
    if guarantees_ports(settings) {
        needs.extend(PortTable::guarantee_needs(addresses));
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
    // Address table; address and pool of each place.
    needs.push(Need::Heap(addresses as u64 * 64));
    needs
}

/// Approximate memory of rules, filters and redirections.
pub fn rule_need(settings: &Settings, workers: usize) -> Need {
    let rules = settings.rules.len() + settings.pass_rules.len();
    let targets = |redirection: &Redirection| match redirection {
        Redirection::Targets(targets) => targets.len() as u64 * size_of::<Target>() as u64,
        Redirection::Prefix(_) => 0,
    };
    let redirections: u64 = settings.redirections.iter().map(|it| targets(it) + size_of::<Redirection>() as u64).sum();
    Need::Heap(RuleBook::bytes_for(rules, workers) + FilterBook::bytes_for(&settings.filters, workers) + redirections)
}

/// Memory of an instance.
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

    /// Rounded up to pages. With reserved 2 MiB pages an eighth may be wasted.
    fn assert_taken(computed: u64, taken: usize) {
        let taken = taken as u64;
        assert!(
            taken >= computed && taken <= computed + computed / 8 + (2 << 20),
            "{computed} computed, {taken} taken"
        );
    }

    #[test]
    fn gateways_count_once_a_worker() {
        let bytes = |needs: Vec<Need>| needs.iter().map(|need| need.bytes()).sum::<u64>();
        let off = Settings::default();
        let gateway = crate::settings::Gateway::new(alg::AlgId(0));
        let on = Settings { gateways: vec![gateway.clone(), gateway], ..off.clone() };
        let added = bytes(needs(&on, 3)) - bytes(needs(&off, 3));
        let (few, many) = (AlgStore::bytes_for(1_024), AlgStore::bytes_for(65_536));
        assert_eq!(added, 3 * many);
        // As the manual says.
        let each = (many - few) / (65_536 - 1_024);
        assert!((450..480).contains(&each) && few - 1_024 * each < 8 << 20, "{each} bytes each of {few} and {many}");
    }

    #[test]
    fn the_computed_tables_are_those_allocated() {
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
