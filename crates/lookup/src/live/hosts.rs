//! The holdings of IPv6 hosts: mappings, then sessions that share an external port, then blocks and
//! refusals, which the hosts of a prefix share.

use control::Cursor;
use control::Fault;
use control::Filter;
use control::Find;
use control::FindAddress;
use control::FindAnswer;
use control::List;
use control::Page;
use control::Place;
use control::Prefix6;
use nat::Shared;
use nat::settings::Forward;

use super::Live;
use super::endpoint_named;
use super::realms_of;
use super::refusals_of;
use crate::asked::holder_of;
use crate::asked::nobody;
use crate::convert;
use crate::formula::ports_text;
use crate::formula::range;

/// In a cursor: mappings are done; the rest is the sessions' worker.
const SESSIONS: usize = 1 << 16;
/// Sessions are done, too; the rest is the subscribers' worker.
const BLOCKS: usize = 2 << 16;

/// A page for the hosts in `wanted`. A first page always has an answer.
pub(super) fn find(live: &dyn Live, find: &Find, wanted: Prefix6) -> Result<Page<FindAnswer>, Fault> {
    let shared = live.shared();
    realms_of(&shared, find.vrf.as_deref())?;
    let start = List { cursor: find.cursor.clone(), ..List::default() }.start()?;
    let filter = Filter {
        host: Some(wanted),
        internal_port: find.port,
        protocol: find.protocol,
        vrf: find.vrf.clone(),
        ..Filter::default()
    };
    let page_from = |cursor: Cursor| List {
        filter: filter.clone(),
        limit: find.limit,
        cursor: (cursor != Cursor::default()).then(|| cursor.to_string()),
    };
    if start.part >= BLOCKS {
        return blocks(live, find, wanted, Cursor { part: start.part - BLOCKS, ..start });
    }
    if start.part >= SESSIONS {
        return sessions(live, find, wanted, &page_from(Cursor { part: start.part - SESSIONS, ..start }));
    }
    let found = live.mappings(&page_from(start))?;
    let mut objects: Vec<FindAnswer> = found.objects.into_iter().map(|mapping| of_mapping(find, mapping)).collect();
    if find.cursor.is_none() {
        objects.extend(forwards(&shared, find, wanted));
    }
    if found.cursor.is_some() || !objects.is_empty() {
        let sessions_next = Cursor { part: SESSIONS, place: 0 }.to_string();
        return Ok(Page { objects, cursor: found.cursor.or(Some(sessions_next)) });
    }
    // No mapping on this page: the sessions are on it.
    let mut page = sessions(live, find, wanted, &page_from(Cursor::default()))?;
    if page.objects.is_empty() && page.cursor.is_none() && find.cursor.is_none() {
        page.objects.push(nothing(&shared, find));
    }
    Ok(page)
}

fn sessions(live: &dyn Live, find: &Find, wanted: Prefix6, list: &List) -> Result<Page<FindAnswer>, Fault> {
    let found = live.sessions(list)?;
    let objects = found.objects.into_iter().filter(|session| session.shared).map(|session| {
        let who = endpoint_named(session.internal, session.host.as_ref());
        let remote = session.target.unwrap_or(session.remote);
        let detail = format!("{who} has {} {} towards {remote}, and shares it", session.protocol, session.external);
        FindAnswer {
            host: session.host,
            realm: Some(session.realm),
            vrf: Some(session.vrf),
            external_address: Some(*session.external.ip()),
            pool: Some(session.pool),
            ..answer(find, Place::Internal, detail)
        }
    });
    let objects: Vec<FindAnswer> = objects.collect();
    match found.cursor {
        Some(text) => Ok(Page { objects, cursor: Some(moved(text, SESSIONS)?) }),
        // A block has no single port.
        None if find.port.is_some() => Ok(Page::whole(objects)),
        None if objects.is_empty() => blocks(live, find, wanted, Cursor::default()),
        None => Ok(Page { objects, cursor: Some(Cursor { part: BLOCKS, place: 0 }.to_string()) }),
    }
}

/// The cursor of a list as one of ours.
fn moved(text: String, by: usize) -> Result<String, Fault> {
    let cursor = List { cursor: Some(text), ..List::default() }.start()?;
    Ok(Cursor { part: cursor.part + by, ..cursor }.to_string())
}

/// Subscribers with blocks, which their hosts use, or with refusals.
fn blocks(live: &dyn Live, find: &Find, wanted: Prefix6, at: Cursor) -> Result<Page<FindAnswer>, Fault> {
    // The row of a subscriber has the first address of its prefix.
    let length = live.shared().settings().transition.prefix_length.min(wanted.length());
    let filter = Filter { host: Prefix6::new(wanted.address(), length), vrf: find.vrf.clone(), ..Filter::default() };
    let cursor = (at != Cursor::default()).then(|| at.to_string());
    let found = live.subscribers(&List { filter, limit: find.limit, cursor })?;
    let mut objects = Vec::new();
    for subscriber in found.objects {
        let Some(host) = subscriber.host else { continue };
        let first = subscriber.subscriber_ports.first().map(|own| own.external_address);
        if first.is_none() && subscriber.refused.total() == 0 {
            continue;
        }
        let own = subscriber.subscriber_ports.iter();
        let own = own.map(|own| format!("{}-{} of {}", own.first_port, own.last_port, own.external_address));
        let own = own.collect::<Vec<_>>().join(", ");
        let has = match (first, subscriber.mappings.total()) {
            (Some(_), _) => format!("ports {own}"),
            (None, 0) => "no mapping now".to_owned(),
            (None, mappings) => control::counted(mappings, "mapping"),
        };
        objects.push(FindAnswer {
            host: Some(host),
            realm: Some(subscriber.realm),
            vrf: Some(subscriber.vrf),
            external_address: subscriber.external_address.or(first),
            pool: Some(subscriber.pool),
            subscriber_ports: subscriber.subscriber_ports,
            ..answer(find, Place::Internal, format!("{host} has {has}{}", refusals_of(&subscriber.refused)))
        });
    }
    Ok(Page { objects, cursor: found.cursor.map(|text| moved(text, BLOCKS)).transpose()? })
}

fn of_mapping(find: &Find, mapping: control::Mapping) -> FindAnswer {
    let who = endpoint_named(mapping.internal, mapping.host.as_ref());
    let detail = format!("{} {who} has external endpoint {}", mapping.protocol, mapping.external);
    FindAnswer {
        host: mapping.host,
        realm: Some(mapping.realm),
        vrf: Some(mapping.vrf.clone()),
        external_address: Some(*mapping.external.ip()),
        pool: Some(mapping.pool.clone()),
        mapping: Some(mapping),
        ..answer(find, Place::Internal, detail)
    }
}

/// In use or not.
fn forwards(shared: &Shared, find: &Find, wanted: Prefix6) -> Vec<FindAnswer> {
    let settings = shared.settings();
    let forwards = settings.forwards.iter().filter_map(|forward| {
        forward.inside.ipv6().filter(|address| wanted.contains(*address))?;
        let (first, last) = forward.ports;
        let ports = forward.inside_port..=forward.inside_port + (last - first);
        let vrf = settings.realm_names.get(forward.realm.index());
        let is_asked = find.port.is_none_or(|port| ports.contains(&port))
            && find.protocol.is_none_or(|protocol| convert::engine_protocol(protocol) == forward.protocol)
            && find.vrf.as_ref().is_none_or(|asked| Some(asked) == vrf);
        is_asked.then_some((forward, vrf))
    });
    let answers = forwards.map(|(forward, vrf)| {
        let Forward { protocol, external, ports, inside, inside_port, .. } = forward;
        let to = inside.with_port(range(*inside_port, *ports));
        let detail = format!("{protocol} {external}:{} is statically forwarded to {to}", ports_text(*ports));
        let pool = settings.pools.iter().find(|pool| pool.addresses.contains(external));
        let (_, host) = holder_of(inside);
        FindAnswer {
            host,
            realm: Some(forward.realm.0),
            vrf: vrf.cloned(),
            external_address: Some(*external),
            pool: pool.map(|pool| pool.name.clone()),
            ..answer(find, Place::Internal, detail)
        }
    });
    answers.collect()
}

fn nothing(shared: &Shared, find: &Find) -> FindAnswer {
    let of_vrf = find.vrf.as_ref().map(|vrf| format!(" in VRF \"{vrf}\"")).unwrap_or_default();
    let asked = find.address.with_port(find.port);
    if let FindAddress::Ipv6(wanted) = find.address
        && wanted.length() == 128
        && let Some(detail) = convert::own_address6(shared.settings(), wanted.address())
    {
        return answer(find, Place::Interface, detail);
    }
    if shared.settings().transition.is_off() {
        let detail = format!("{asked} has nothing: Natrix serves no IPv6 hosts");
        return answer(find, Place::Nowhere, detail);
    }
    answer(find, Place::Internal, format!("{asked} has no mapping{of_vrf} now"))
}

fn answer(find: &Find, place: Place, detail: String) -> FindAnswer {
    nobody(find.address.with_port(find.port), place, detail)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use std::sync::Arc;

    use control::FindAddress;
    use control::Mapping;
    use control::Reply;
    use control::Session;
    use control::Subscriber;
    use nat::Protocol;
    use nat::Settings;
    use nat::types::Endpoint;
    use nat::types::RealmId;
    use nat::types::WorkerId;

    use super::*;
    use crate::live::Use;

    /// 2001:db8:c:100::/56 has two blocks and no mapping.
    struct OnlyBlocks(Arc<Shared>, Subscriber);

    impl OnlyBlocks {
        fn new() -> OnlyBlocks {
            let mut settings = Settings::default();
            settings.transition.prefix_length = 56;
            OnlyBlocks(Arc::new(Shared::new(settings, 1).unwrap()), subscriber())
        }
    }

    fn subscriber() -> Subscriber {
        let lines = include_str!("../../../control/tests/replies.jsonl").lines();
        let line = lines.into_iter().find(|line| line.starts_with("{\"subscriber\"")).unwrap();
        let Reply::Subscriber(subscriber) = serde_json::from_str(line).unwrap() else { unreachable!() };
        let block = |first_port, last_port| control::SubscriberPorts {
            kind: "block".to_owned(),
            external_address: Ipv4Addr::new(203, 0, 113, 7),
            first_port,
            last_port,
            ports_used: None,
        };
        Subscriber {
            host: Some(control::Host { address: "2001:db8:c:100::".parse().unwrap(), prefix_length: 56, inner: None }),
            external_address: Some(Ipv4Addr::new(203, 0, 113, 7)),
            subscriber_ports: vec![block(1024, 1535), block(4096, 4607)],
            refused: control::Refused::default(),
            ..subscriber
        }
    }

    impl Live for OnlyBlocks {
        fn shared(&self) -> Arc<Shared> {
            Arc::clone(&self.0)
        }

        fn holder(&self, _: WorkerId, _: Endpoint, _: Protocol) -> Result<Option<Mapping>, Fault> {
            Ok(None)
        }

        fn mappings(&self, _: &List) -> Result<Page<Mapping>, Fault> {
            Ok(Page::whole(Vec::new()))
        }

        fn sessions(&self, _: &List) -> Result<Page<Session>, Fault> {
            Ok(Page::whole(Vec::new()))
        }

        fn subscribers(&self, list: &List) -> Result<Page<Subscriber>, Fault> {
            let one = self.1.clone();
            let is_wanted = list.filter.host.unwrap().contains(one.host.unwrap().address);
            Ok(Page::whole(if is_wanted { vec![one] } else { Vec::new() }))
        }

        fn uses(
            &self,
            _: Ipv4Addr,
            _: Option<Protocol>,
            _: &mut dyn FnMut(RealmId, Ipv4Addr, Use),
        ) -> Result<(), Fault> {
            Ok(())
        }
    }

    fn found(address: &str, port: Option<u16>) -> Vec<FindAnswer> {
        found_in(&OnlyBlocks::new(), address, port)
    }

    fn found_in(live: &OnlyBlocks, address: &str, port: Option<u16>) -> Vec<FindAnswer> {
        let wanted: Prefix6 = address.parse().unwrap();
        let find =
            Find { address: FindAddress::Ipv6(wanted), port, protocol: None, vrf: None, limit: None, cursor: None };
        let page = super::find(live, &find, wanted).unwrap();
        assert_eq!(page.cursor, None);
        page.objects
    }

    #[test]
    fn a_host_has_the_blocks_of_its_prefix() {
        // The host, its prefix, and all of the network's prefixes.
        for asked in ["2001:db8:c:100::10", "2001:db8:c:100::/56", "2001:db8::/32"] {
            let [one] = &found(asked, None)[..] else { panic!("{asked}") };
            assert_eq!(one.subscriber_ports, subscriber().subscriber_ports);
            assert_eq!((one.host, one.pool.as_deref()), (subscriber().host, Some("public")));
            let said = "2001:db8:c:100::/56 has ports 1024-1535 of 203.0.113.7, 4096-4607 of 203.0.113.7";
            assert_eq!(one.detail, said);
        }
        for (asked, port) in [("2001:db8:c:200::10", None), ("2001:db8:c:100::10", Some(5000))] {
            let [one] = &found(asked, port)[..] else { panic!("{asked}") };
            assert!(one.subscriber_ports.is_empty() && one.host.is_none(), "{one:?}");
        }
    }

    #[test]
    fn refusals_of_a_prefix_are_among_what_its_hosts_have() {
        let refused = control::Refused { port_quota: 3, rate_limit: 1, ..control::Refused::default() };
        let said = "; refused packets: port_quota 3, rate_limit 1";
        let none = control::PerProtocol::default();
        for (subscriber_ports, mappings, has) in [
            (subscriber().subscriber_ports, none, "ports 1024-1535 of 203.0.113.7, 4096-4607 of 203.0.113.7"),
            (Vec::new(), control::PerProtocol { udp: 7, ..none }, "7 mappings"),
            (Vec::new(), control::PerProtocol { udp: 1, ..none }, "1 mapping"),
            (Vec::new(), none, "no mapping now"),
        ] {
            let mut live = OnlyBlocks::new();
            live.1 = Subscriber { refused, subscriber_ports, mappings, ..live.1 };
            for asked in ["2001:db8:c:100::10", "2001:db8:c:100::/56"] {
                let [one] = &found_in(&live, asked, None)[..] else { panic!("{asked}") };
                assert_eq!(one.detail, format!("2001:db8:c:100::/56 has {has}{said}"));
                assert_eq!((one.host, one.vrf.as_deref()), (live.1.host, Some("default")));
            }
            let [one] = &found_in(&live, "2001:db8:c:100::10", Some(5000))[..] else { panic!("with a port") };
            assert!(!one.detail.contains("refused"), "they are not of a port");
        }
    }

    #[test]
    fn an_address_inside_homes_is_to_be_asked_for_by_b4() {
        let mut settings = Settings { realm_names: vec!["default".to_owned()], ..Settings::default() };
        settings.transition.softwires = vec![nat::settings::Softwire {
            aftr: "2001:db8:1::aaaa".parse().unwrap(),
            realm: RealmId::default(),
            inner: vec![nat::types::Prefix::new(Ipv4Addr::new(192, 168, 0, 0), 16).unwrap()],
            subscribers: Vec::new(),
        }];
        let live = OnlyBlocks(Arc::new(Shared::new(settings, 1).unwrap()), subscriber());
        for (address, is_inside) in [([192, 168, 1, 2], true), ([10, 0, 0, 1], false)] {
            let address = FindAddress::Ipv4(address.into());
            let find = Find { address, port: None, protocol: None, vrf: None, limit: None, cursor: None };
            let page = crate::live::find(&live, &find).unwrap();
            let said = page.objects[0]
                .detail
                .ends_with("; hosts behind B4s may have this address: ask for the address of a B4");
            assert_eq!((page.objects.len(), said), (1, is_inside), "{:?}", page.objects);
        }
    }

    #[test]
    fn addresses_of_natrix_are_no_hosts() {
        let mut settings = Settings::default();
        let (own, aftr) = ("2001:db8:1::1".parse().unwrap(), "2001:db8:1::aaaa".parse().unwrap());
        settings.ipv6.addresses =
            vec![nat::settings::Address6 { interface: nat::types::InterfaceId(0), address: own, prefix_length: 64 }];
        settings.transition.softwires = vec![nat::settings::Softwire {
            aftr,
            realm: RealmId::default(),
            inner: Vec::new(),
            subscribers: Vec::new(),
        }];
        for (address, said) in [
            (own, Some("2001:db8:1::1 is Natrix's own address on interface \"\"")),
            (aftr, Some("2001:db8:1::aaaa is the AFTR, where softwires end")),
            ("fe80::1".parse().unwrap(), Some("fe80::1 is link-local: no host uses such an address for IPv4")),
            ("2001:db8:1::2".parse().unwrap(), None),
        ] {
            assert_eq!(convert::own_address6(&settings, address).as_deref(), said);
        }
    }
}
