//! `find`: who holds an endpoint now.

use control::Fault;
use control::Find;
use control::FindAnswer;
use control::List;
use control::OwnPorts;
use control::Place;
use control::Refused;
use control::Reply;
use core::net::Ipv4Addr;

use nat::Protocol;
use nat::deterministic::Owner;
use nat::types::AddressIndex;
use nat::types::Endpoint;
use nat::types::MappingIndex;
use nat::types::PoolId;
use nat::types::RealmId;
use nat::view::BalancedView;
use nat::view::StaticView;

use super::Answered;
use super::convert;
use super::lists;
use super::users;
use super::whole;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::Question;
use crate::offline;

pub(crate) fn find(instance: &Instance, find: &Find) -> Result<Answered, Fault> {
    let queried = offline::queried(find.address, find.port);
    // Whom a VRF that is none concerns is told so, whatever the address is.
    let _all_known = realms_of(instance, find)?;
    let empty = |place, detail: String| FindAnswer { detail, ..offline::nobody(place, &queried) };
    if let Some(index) = instance.shared().address_index(find.address) {
        let pool = convert::pool_name(&instance.shared(), instance.shared().pool_of(index));
        let mut answered = match find.port {
            Some(port) => holders(instance, find, index, port, &empty)?,
            None => users::users(instance, find, index, &empty)?,
        };
        // A page after the last one is empty, too, and says nothing of those before.
        if let Some(port) = find.port.filter(|_| find.cursor.is_none() || !answered.replies.is_empty()) {
            if answered.replies.is_empty() {
                answered.replies.extend(sleepers(instance, find, &empty).into_iter().map(Into::into));
            } else {
                note_who_waits(instance, &mut answered.replies);
            }
            if answered.replies.is_empty() {
                answered.replies.extend(holder_of_range(instance, index, port, &empty).map(Into::into));
            }
            if answered.replies.is_empty() {
                answered.replies.extend(torn_block(instance, index, port, &empty).map(Into::into));
            }
        }
        if answered.replies.is_empty() && find.cursor.is_none() {
            let mut nobody = empty(Place::External, format!("nobody holds {queried}, of pool \"{pool}\", now"));
            nobody.pool = Some(pool);
            answered.replies.push(nobody.into());
        }
        return Ok(answered);
    }
    if let Some(interface) = convert::own_interface(instance.shared().settings(), find.address) {
        return Ok(whole(vec![empty(
            Place::Interface,
            format!("{} is Natrix's own address on interface \"{interface}\"", find.address),
        )]));
    }
    let served: Vec<(RealmId, PoolId)> = realms_of(instance, find)?
        .filter_map(|realm| instance.shared().pool_for(realm, find.address).map(|pool| (realm, pool)))
        .collect();
    let of_vrf = find.vrf.as_ref().map(|vrf| format!(" of VRF \"{vrf}\"")).unwrap_or_default();
    let nowhere = |because: &str| {
        let nobodys = format!("{} is no pool's external address, no subscriber's{of_vrf}", find.address);
        empty(Place::Nowhere, format!("{nobodys}{because} and not Natrix's own"))
    };
    if served.is_empty() {
        return Ok(whole(vec![nowhere("")]));
    }
    let mut refusals = Vec::new();
    let mut answered = internal(instance, find, &mut refusals, &empty)?;
    if answered.replies.is_empty() && find.cursor.is_none() {
        answered.replies.extend(sleepers_inside(instance, find, &empty)?.into_iter().map(Into::into));
    }
    // Beside what it uses, what it has by a formula in the other VRFs. Once: not on every page.
    if find.cursor.is_none() {
        let has_answer = !answered.replies.is_empty();
        let answers = served.into_iter().map(|(realm, pool)| unused(instance, find, (realm, pool), &empty));
        let was_refused = |answer: &FindAnswer| refusals.iter().any(|(realm, _)| answer.realm == Some(*realm));
        // A pool may serve whatever there is; who can be no subscriber as he can not be reached is told as nobody.
        let is_led = |answer: &FindAnswer| {
            let leads = |realm| instance.shared().leads_inside(RealmId(realm), find.address);
            answer.realm.is_some_and(leads) || answer.holder.is_some() || was_refused(answer)
        };
        let answers = answers.filter(is_led);
        let is_told = |answer: &FindAnswer| {
            (answer.holder.is_some() || was_refused(answer)) && !is_answered(&answered.replies, answer.realm)
        };
        let new = answers.filter(|answer| !has_answer || is_told(answer));
        let new: Vec<Reply> = new.map(Into::into).collect();
        answered.replies.extend(new);
    }
    note_refusals(&refusals, &mut answered.replies);
    if find.port.is_none() && find.cursor.is_none() {
        let realms: Vec<u16> = realms_of(instance, find)?.map(|realm| realm.0).collect();
        let forwards = offline::forwards_to(instance.shared().settings(), find.address, &queried);
        let asked = forwards.into_iter().filter(|answer| answer.realm.is_some_and(|realm| realms.contains(&realm)));
        answered.replies.extend(asked.map(Reply::from));
    }
    if answered.replies.is_empty() && find.cursor.is_none() {
        answered.replies.push(nowhere(", as no inside route leads to it,").into());
    }
    Ok(answered)
}

/// Says of subscribers what was refused to them.
fn note_refusals(refusals: &[(u16, Refused)], replies: &mut [Reply]) {
    for reply in replies {
        let Reply::Find(answer) = reply else { continue };
        let Some((_, refused)) = refusals.iter().find(|(realm, _)| answer.realm == Some(*realm)) else { continue };
        let causes: Vec<String> = refused.causes().map(|(cause, count)| format!("{cause} {count}")).collect();
        answer.detail += &format!("; refused packets: {}", causes.join(", "));
    }
}

/// Says of mappings whose port is somebody else's by the configuration that he waits for it.
fn note_who_waits(instance: &Instance, replies: &mut [Reply]) {
    for reply in replies {
        let Reply::Find(answer) = reply else { continue };
        let Some(mapping) = &answer.mapping else { continue };
        let external = Endpoint::new(*mapping.external.ip(), mapping.external.port());
        let internal = Endpoint::new(*mapping.internal.ip(), mapping.internal.port());
        let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.name() == mapping.protocol.name());
        let Some(found) = protocol.and_then(|protocol| instance.shared().static_of_external(external, protocol)) else {
            continue;
        };
        if (found.internal, found.realm.0) != (internal, mapping.realm) {
            let what = if found.one_to_one { "the address is that of" } else { "the port is forwarded to" };
            // Two VRFs may have the same address.
            let vrf = match found.realm.0 == mapping.realm {
                true => String::new(),
                false => format!("{}/", convert::vrf_name(instance.shared().settings(), found.realm)),
            };
            answer.detail += &format!("; {what} {vrf}{}, which waits until this mapping ends", found.internal);
        }
    }
}

/// The VRFs that are asked about.
fn realms_of(instance: &Instance, find: &Find) -> Result<impl Iterator<Item = RealmId> + use<>, Fault> {
    let shared = instance.shared();
    let names = &shared.settings().realm_names;
    let wanted = match &find.vrf {
        None => None,
        Some(vrf) => Some(names.iter().position(|name| name == vrf).ok_or_else(|| {
            Fault::new("vrf", "is none of this instance", format!("name one of: {}", names.join(", ")))
                .seen(vrf.clone())
        })?),
    };
    let all = 0..names.len();
    Ok(all.filter(move |realm| wanted.is_none_or(|wanted| wanted == *realm)).map(|realm| RealmId(realm as u16)))
}

fn is_answered(replies: &[Reply], realm: Option<u16>) -> bool {
    replies.iter().any(|reply| matches!(reply, Reply::Find(answer) if answer.realm == realm))
}

/// An inside address of which nothing is in use: what it may use, or has by a formula.
fn unused(
    instance: &Instance,
    find: &Find,
    (realm, pool): (RealmId, PoolId),
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> FindAnswer {
    let shared = instance.shared();
    let name = convert::pool_name(&shared, pool);
    let vrf = convert::vrf_name(shared.settings(), realm);
    // Two VRFs may have the same address.
    let who = if realm == RealmId::default() { find.address.to_string() } else { format!("{vrf}/{}", find.address) };
    let mut idle = empty(Place::Internal, format!("{who} may use pool \"{name}\" and has no mapping now"));
    idle.pool = Some(name);
    idle.realm = Some(realm.0);
    idle.vrf = Some(vrf);
    if shared.is_nobody_by_formula(pool, find.address) {
        idle.place = Place::Nowhere;
        idle.detail = format!("{who} is the network or broadcast address of its prefix, and no subscriber");
        return idle;
    }
    // In a deterministic pool it has ports all the same.
    let own = shared.own_ports(pool, realm, find.address, None);
    if let Some(slice) = own.first().filter(|own| own.leased_s.is_none()) {
        idle.detail =
            format!("{who} has ports {}-{} of {}, and no mapping now", slice.first, slice.last, slice.address);
        idle.holder = Some(find.address);
        idle.external_address = Some(slice.address);
        idle.own_ports = own.iter().map(convert::own_ports).collect();
    }
    idle
}

/// Who holds an external port, for each transport asked about.
fn holders(
    instance: &Instance,
    find: &Find,
    index: AddressIndex,
    port: u16,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Result<Answered, Fault> {
    let mut answers = Vec::new();
    let mut cursor = None;
    for protocol in Protocol::ALL {
        if find.protocol.is_some_and(|wanted| convert::engine_protocol(wanted) != protocol) {
            continue;
        }
        let balanced_here = instance.shared().balanced(Endpoint::new(find.address, port), protocol);
        let is_balanced = balanced_here.is_some();
        if let Some(found) = balanced_here {
            if find.cursor.is_none() {
                answers.push(balanced(instance, Place::External, &found, empty).into());
            }
            let sessions = sharers(instance, find, (protocol, port), empty)?;
            answers.extend(sessions.replies);
            cursor = cursor.or(sessions.cursor);
        }
        let Some((worker, entry)) = instance.shared().owner(index, protocol, port) else { continue };
        if entry == MappingIndex::SHARED {
            // Flows of any worker; where the endpoint has targets, they are told already.
            if is_balanced {
                continue;
            }
            let shared = sharers(instance, find, (protocol, port), empty)?;
            answers.extend(shared.replies);
            cursor = cursor.or(shared.cursor);
            continue;
        }
        let external = Endpoint::new(find.address, port);
        let question = Question::Holder { external, protocol, mapping: None };
        let Question::Holder { mapping, .. } = instance.ask(worker.index(), question)? else {
            return Err(mismatch(worker.index()));
        };
        let Some(view) = mapping else { continue };
        let mapping = convert::mapping(&instance.shared(), &view);
        let detail =
            format!("{} of subscriber {} has {} {external}", view.internal, view.internal.address, protocol.name());
        let mut answer = empty(Place::External, detail);
        answer.holder = Some(view.internal.address);
        answer.realm = Some(mapping.realm);
        answer.vrf = Some(mapping.vrf.clone());
        answer.external_address = Some(find.address);
        answer.pool = Some(mapping.pool.clone());
        answer.own_ports = range_of(instance, index, port).iter().map(|(_, range)| range.clone()).collect();
        answer.mapping = Some(mapping);
        answers.push(answer.into());
    }
    // A list goes on where it ended only if it is the only one.
    Ok(Answered { replies: answers, cursor: cursor.filter(|_| find.protocol.is_some()) })
}

/// Who uses an external endpoint that flows share, each towards a remote endpoint of his own.
fn sharers(
    instance: &Instance,
    find: &Find,
    (protocol, port): (Protocol, u16),
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Result<Answered, Fault> {
    let filter = control::Filter {
        external: Some(control::Prefix::host(find.address)),
        external_port: Some(port),
        protocol: Some(convert::protocol(protocol)),
        ..control::Filter::default()
    };
    let list = List { filter, limit: find.limit, cursor: find.cursor.clone() };
    let answered = lists::sessions(instance, &list)?;
    Ok(answers_from(answered, |reply| by_flow(Place::External, reply, empty)))
}

/// An answer about a flow.
fn by_flow(place: Place, reply: Reply, empty: &dyn Fn(Place, String) -> FindAnswer) -> Option<FindAnswer> {
    let Reply::Session(session) = reply else { return None };
    let remote = session.target.unwrap_or(session.remote);
    let (protocol, internal, external) = (session.protocol, session.internal, session.external);
    let detail = format!("{internal} has {protocol} {external} towards {remote}, and shares it");
    let mut answer = empty(place, detail);
    answer.holder = Some(*session.internal.ip());
    answer.realm = Some(session.realm);
    answer.vrf = Some(session.vrf);
    answer.external_address = Some(*session.external.ip());
    answer.pool = Some(session.pool);
    Some(answer)
}

/// Who has the block or slice that an external port is in, and the range.
fn range_of(instance: &Instance, index: AddressIndex, port: u16) -> Option<((RealmId, Ipv4Addr), OwnPorts)> {
    let (shared, external_address) = (&instance.shared(), instance.shared().address(index));
    if let Some(lease) = shared.lease_of(index, port) {
        let range = OwnPorts {
            kind: "block".to_owned(),
            external_address,
            first_port: lease.block.first_port(),
            last_port: lease.block.last_port(),
        };
        return Some(((lease.holder.realm, Ipv4Addr::from_bits(lease.holder.address)), range));
    }
    let Some(Owner::Subscriber(inside)) = shared.slice_owner(index, port) else { return None };
    let pool = shared.pool_of(index);
    // A deterministic pool serves one VRF.
    let shared = instance.shared();
    let realms = shared.settings().pools.get(pool.index()).and_then(|pool| pool.realms.first());
    let realm = realms.copied().unwrap_or_default();
    // Who is served by another pool, by a longer prefix, has no slice here though the formula counts him.
    if shared.pool_for(realm, inside) != Some(pool) {
        return None;
    }
    let slice = *shared.own_ports(pool, realm, inside, None).first()?;
    Some(((realm, inside), convert::own_ports(&slice)))
}

/// Who holds an external port that no mapping has, because it is in a block or slice.
fn holder_of_range(
    instance: &Instance,
    index: AddressIndex,
    port: u16,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Option<FindAnswer> {
    let ((realm, inside), range) = range_of(instance, index, port)?;
    let OwnPorts { kind, external_address, first_port, last_port } = &range;
    let detail = format!(
        "subscriber {inside} has the {kind} {first_port}-{last_port} of {external_address}; no mapping uses port {port} now"
    );
    let mut answer = empty(Place::External, detail);
    answer.holder = Some(inside);
    answer.realm = Some(realm.0);
    answer.vrf = Some(convert::vrf_name(instance.shared().settings(), realm));
    answer.external_address = Some(*external_address);
    answer.pool = Some(convert::pool_name(&instance.shared(), instance.shared().pool_of(index)));
    answer.own_ports = vec![range];
    Some(answer)
}

/// What an external port is kept for that nobody has, where it is in a block that nobody can lease.
fn torn_block(
    instance: &Instance,
    index: AddressIndex,
    port: u16,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Option<FindAnswer> {
    let shared = &instance.shared();
    let block = shared.torn_block(index, port)?;
    let (first, last, address) = (block.first, block.last, shared.address(index));
    let why = match (block.shared, block.others) {
        (count, 0) => format!("is kept for flows that share ports, {count} of them now"),
        (0, count) => format!("can not be leased while {count} of its ports are in use singly or at rest"),
        (count, others) => {
            format!("is kept for flows that share ports, {count} of them now, beside {others} in use singly or at rest")
        }
    };
    let detail =
        format!("no subscriber has the block {first}-{last} of {address}, which {why}; nobody uses port {port}");
    let mut answer = empty(Place::External, detail);
    answer.external_address = Some(address);
    answer.pool = Some(convert::pool_name(shared, shared.pool_of(index)));
    Some(answer)
}

/// Transports that are asked about.
fn protocols_of(find: &Find) -> impl Iterator<Item = Protocol> {
    let wanted = find.protocol.map(convert::engine_protocol);
    Protocol::ALL.into_iter().filter(move |protocol| wanted.is_none_or(|wanted| wanted == *protocol))
}

/// Whose an external endpoint is by the configuration, though nobody uses it now. Without port: whose the whole address is.
pub(super) fn sleepers(
    instance: &Instance,
    find: &Find,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Vec<FindAnswer> {
    let external = Endpoint::new(find.address, find.port.unwrap_or(0));
    let known = protocols_of(find).filter_map(|protocol| instance.shared().static_of_external(external, protocol));
    let mut known = known.filter(|found| find.port.is_some() || found.one_to_one);
    match find.port {
        Some(_) => known.map(|found| sleeper(instance, Place::External, find.port, &found, empty)).collect(),
        None => known.next().map(|found| sleeper(instance, Place::External, None, &found, empty)).into_iter().collect(),
    }
}

/// The external endpoint that an internal one has by the configuration, though it uses it not now.
fn sleepers_inside(
    instance: &Instance,
    find: &Find,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Result<Vec<FindAnswer>, Fault> {
    let internal = Endpoint::new(find.address, find.port.unwrap_or(0));
    let mut answers = Vec::new();
    for realm in realms_of(instance, find)? {
        for protocol in protocols_of(find) {
            if find.port.is_some() {
                for found in instance.shared().balanced_to(realm, internal, protocol) {
                    let mut answer = balanced(instance, Place::Internal, &found, empty);
                    answer.holder = Some(internal.address);
                    answers.push(answer);
                }
            }
            let found = instance.shared().static_of_internal(realm, internal, protocol);
            let Some(found) = found.filter(|found| find.port.is_some() || found.one_to_one) else { continue };
            answers.push(sleeper(instance, Place::Internal, find.port, &found, empty));
            if find.port.is_none() {
                break;
            }
        }
    }
    Ok(answers)
}

/// Where an endpoint leads that leads to several.
fn balanced(
    instance: &Instance,
    place: Place,
    found: &BalancedView,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> FindAnswer {
    let (external, realm) = (found.external, found.realm);
    let mut answer = empty(place, offline::targets_of(found));
    answer.realm = Some(realm.0);
    answer.vrf = instance.shared().settings().realm_names.get(realm.index()).cloned();
    answer.external_address = Some(external.address);
    let pool = instance.shared().address_index(external.address).map(|index| instance.shared().pool_of(index));
    answer.pool = pool.map(|pool| convert::pool_name(&instance.shared(), pool));
    answer
}

fn sleeper(
    instance: &Instance,
    place: Place,
    port: Option<u16>,
    found: &StaticView,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> FindAnswer {
    let (internal, external, protocol) = (found.internal, found.external, found.protocol);
    let detail = match port {
        None => format!("{} is that of {} for ever, one to one", external.address, internal.address),
        Some(_) if found.one_to_one => {
            format!("{protocol} {external} is that of {internal} for ever, one to one; no mapping now")
        }
        Some(_) => format!("{protocol} {external} is forwarded to {internal} for ever; no mapping now"),
    };
    let pool = instance.shared().address_index(external.address).map(|index| instance.shared().pool_of(index));
    let mut answer = empty(place, detail);
    answer.holder = Some(internal.address);
    answer.realm = Some(found.realm.0);
    answer.vrf = instance.shared().settings().realm_names.get(found.realm.index()).cloned();
    answer.external_address = Some(external.address);
    answer.pool = pool.map(|pool| convert::pool_name(&instance.shared(), pool));
    answer
}

/// Turns the replies of a list into answers.
fn answers_from(answered: Answered, mut make: impl FnMut(Reply) -> Option<FindAnswer>) -> Answered {
    let replies = answered.replies.into_iter().filter_map(|reply| make(reply).map(Into::into));
    Answered { replies: replies.collect(), cursor: answered.cursor }
}

/// The mappings of an internal endpoint, few by their nature, on the first page; then its flows, which may be many.
fn mappings_and_flows(instance: &Instance, list: &List) -> Result<Answered, Fault> {
    let mut replies = Vec::new();
    if list.cursor.is_none() {
        let mut cursor = None;
        loop {
            let page = lists::mappings(instance, &List { cursor, limit: None, ..list.clone() })?;
            replies.extend(page.replies);
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
    }
    let flows = lists::sessions(instance, list)?;
    replies
        .extend(flows.replies.into_iter().filter(|reply| matches!(reply, Reply::Session(session) if session.shared)));
    Ok(Answered { replies, cursor: flows.cursor })
}

/// What an internal address, or one of its ports, has. `refusals`: what was refused to it, by realm.
fn internal(
    instance: &Instance,
    find: &Find,
    refusals: &mut Vec<(u16, Refused)>,
    empty: &dyn Fn(Place, String) -> FindAnswer,
) -> Result<Answered, Fault> {
    let owner = instance.shared().worker_of_subscriber(find.address.to_bits());
    let filter = control::Filter {
        internal: Some(control::Prefix::host(find.address)),
        internal_port: find.port,
        protocol: find.protocol,
        vrf: find.vrf.clone(),
        worker: Some(owner.0),
        ..control::Filter::default()
    };
    let list = List { filter, limit: find.limit, cursor: find.cursor.clone() };
    let answered = match find.port {
        Some(_) => mappings_and_flows(instance, &list)?,
        None => lists::subscribers(instance, &list)?,
    };
    Ok(answers_from(answered, |reply| match reply {
        Reply::Mapping(mapping) => {
            let detail =
                format!("{} {} has external endpoint {}", mapping.protocol, mapping.internal, mapping.external);
            let mut answer = empty(Place::Internal, detail);
            answer.holder = Some(find.address);
            answer.realm = Some(mapping.realm);
            answer.vrf = Some(mapping.vrf.clone());
            answer.external_address = Some(*mapping.external.ip());
            answer.pool = Some(mapping.pool.clone());
            answer.mapping = Some(mapping);
            Some(answer)
        }
        session @ Reply::Session(_) => by_flow(Place::Internal, session, empty),
        Reply::Subscriber(subscriber) => {
            if subscriber.refused.total() > 0 {
                refusals.push((subscriber.realm, subscriber.refused));
            }
            if subscriber.refused_only {
                return None;
            }
            let mappings = subscriber.mappings.total();
            let detail = match subscriber.external_address {
                Some(external) => format!("{} is paired with {external} and has {mappings} mappings", find.address),
                None => format!("{} has {mappings} mappings", find.address),
            };
            let mut answer = empty(Place::Internal, detail);
            answer.holder = Some(find.address);
            answer.realm = Some(subscriber.realm);
            answer.vrf = Some(subscriber.vrf.clone());
            answer.external_address = subscriber.external_address;
            answer.own_ports = subscriber.own_ports;
            answer.pool = Some(subscriber.pool);
            Some(answer)
        }
        _ => None,
    }))
}
