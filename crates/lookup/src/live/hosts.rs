//! The holdings of IPv6 hosts: their mappings, then the sessions that share an external port.

use control::Cursor;
use control::Fault;
use control::Filter;
use control::Find;
use control::FindAnswer;
use control::List;
use control::Page;
use control::Place;
use control::Prefix6;
use nat::Shared;

use super::Live;
use super::endpoint_named;
use super::realms_of;

/// In a cursor: all mappings are done. The rest of the part is the worker of the sessions.
const SESSIONS: usize = 1 << 16;

/// A page of what the hosts in `wanted` have. The first page has one answer too if it is nothing.
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
    if start.part >= SESSIONS {
        return sessions(live, find, &page_from(Cursor { part: start.part - SESSIONS, ..start }));
    }
    let found = live.mappings(&page_from(start))?;
    let mut objects: Vec<FindAnswer> = found.objects.into_iter().map(|mapping| of_mapping(find, mapping)).collect();
    if found.cursor.is_some() || !objects.is_empty() {
        let sessions_next = Cursor { part: SESSIONS, place: 0 }.to_string();
        return Ok(Page { objects, cursor: found.cursor.or(Some(sessions_next)) });
    }
    // No mapping on this page: the sessions are on it.
    let page = sessions(live, find, &page_from(Cursor::default()))?;
    objects.extend(page.objects);
    if objects.is_empty() && page.cursor.is_none() && find.cursor.is_none() {
        objects.push(nothing(&shared, find));
    }
    Ok(Page { objects, cursor: page.cursor })
}

fn sessions(live: &dyn Live, find: &Find, list: &List) -> Result<Page<FindAnswer>, Fault> {
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
    let objects = objects.collect();
    let next = |text: String| List { cursor: Some(text), ..List::default() }.start();
    let cursor = found.cursor.map(next).transpose()?;
    let cursor = cursor.map(|cursor| Cursor { part: cursor.part + SESSIONS, ..cursor }.to_string());
    Ok(Page { objects, cursor })
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

fn nothing(shared: &Shared, find: &Find) -> FindAnswer {
    let of_vrf = find.vrf.as_ref().map(|vrf| format!(" in VRF \"{vrf}\"")).unwrap_or_default();
    let asked = find.address.with_port(find.port);
    if shared.settings().transition.is_off() {
        let detail = format!("{asked} has nothing: Natrix serves no IPv6 hosts");
        return answer(find, Place::Nowhere, detail);
    }
    answer(find, Place::Internal, format!("{asked} has no mapping{of_vrf} now"))
}

fn answer(find: &Find, place: Place, detail: String) -> FindAnswer {
    FindAnswer {
        queried: find.address.with_port(find.port),
        place,
        holder: None,
        host: None,
        realm: None,
        vrf: None,
        external_address: None,
        pool: None,
        own_ports: Vec::new(),
        mapping: None,
        detail,
    }
}
