//! `find`: who holds an endpoint now.

use control::Fault;
use control::Find;
use control::FindAnswer;
use control::List;
use control::Place;
use control::Reply;
use nat::Protocol;
use nat::types::AddressIndex;
use nat::types::Endpoint;
use nat::types::RealmId;

use super::Answered;
use super::convert;
use super::lists;
use super::whole;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::Question;

pub(crate) fn find(instance: &Instance, find: &Find) -> Result<Answered, Fault> {
    let queried = match find.port {
        Some(port) => format!("{}:{port}", find.address),
        None => find.address.to_string(),
    };
    let empty = |place, detail: String| FindAnswer {
        queried: queried.clone(),
        place,
        holder: None,
        realm: None,
        vrf: None,
        external_address: None,
        pool: None,
        mapping: None,
        detail,
    };
    if let Some(index) = instance.shared.address_index(find.address) {
        let pool = convert::pool_name(instance.settings(), instance.shared.pool_of(index));
        let mut answered = match find.port {
            Some(port) => holders(instance, find, index, port, &empty)?,
            None => users(instance, find, &empty)?,
        };
        if answered.replies.is_empty() {
            let mut nobody = empty(Place::External, format!("nobody holds {queried}, of pool \"{pool}\", now"));
            nobody.pool = Some(pool);
            answered.replies.push(nobody.into());
        }
        return Ok(answered);
    }
    if let Some(interface) = convert::own_interface(instance.settings(), find.address) {
        return Ok(whole(vec![empty(
            Place::Interface,
            format!("{} is Natrix's own address on interface \"{interface}\"", find.address),
        )]));
    }
    let mut realms = (0..instance.settings().realm_names.len()).map(|realm| RealmId(realm as u16));
    if let Some(pool) = realms.find_map(|realm| instance.shared.pool_for(realm, find.address)) {
        let mut answered = internal(instance, find, &empty)?;
        if answered.replies.is_empty() {
            let name = convert::pool_name(instance.settings(), pool);
            let mut idle = empty(Place::Internal, format!("{queried} may use pool \"{name}\" and has no mapping now"));
            idle.pool = Some(name);
            answered.replies.push(idle.into());
        }
        return Ok(answered);
    }
    Ok(whole(vec![empty(
        Place::Nowhere,
        format!("{} is no pool's external address, no subscriber's and not Natrix's own", find.address),
    )]))
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
    for protocol in Protocol::ALL {
        if find.protocol.is_some_and(|wanted| convert::engine_protocol(wanted) != protocol) {
            continue;
        }
        let Some((worker, _)) = instance.shared.owner(index, protocol, port) else { continue };
        let external = Endpoint::new(find.address, port);
        let question = Question::Holder { external, protocol, mapping: None };
        let Question::Holder { mapping, .. } = instance.ask(worker.index(), question)? else {
            return Err(mismatch(worker.index()));
        };
        let Some(view) = mapping else { continue };
        let mapping = convert::mapping(instance.settings(), &view);
        let detail =
            format!("{} of subscriber {} has {} {external}", view.internal, view.internal.address, protocol.name());
        let mut answer = empty(Place::External, detail);
        answer.holder = Some(view.internal.address);
        answer.realm = Some(mapping.realm);
        answer.vrf = Some(mapping.vrf.clone());
        answer.external_address = Some(find.address);
        answer.pool = Some(mapping.pool.clone());
        answer.mapping = Some(mapping);
        answers.push(answer);
    }
    Ok(whole(answers))
}

/// Turns the replies of a list into answers.
fn answers_from(answered: Answered, mut make: impl FnMut(Reply) -> Option<FindAnswer>) -> Answered {
    let replies = answered.replies.into_iter().filter_map(|reply| make(reply).map(Into::into));
    Answered { replies: replies.collect(), cursor: answered.cursor }
}

/// The subscribers that have an external address of their own: this one.
fn users(instance: &Instance, find: &Find, empty: &dyn Fn(Place, String) -> FindAnswer) -> Result<Answered, Fault> {
    let filter = control::Filter { external: Some(control::Prefix::host(find.address)), ..control::Filter::default() };
    let list = List { filter, limit: find.limit, cursor: find.cursor.clone() };
    let answered = lists::subscribers(instance, &list)?;
    Ok(answers_from(answered, |reply| {
        let Reply::Subscriber(subscriber) = reply else { return None };
        // With arbitrary pooling nobody has an address of his own.
        let external = subscriber.external_address?;
        let detail = format!("subscriber {} is paired with {external}", subscriber.address);
        let mut answer = empty(Place::External, detail);
        answer.holder = Some(subscriber.address);
        answer.realm = Some(subscriber.realm);
        answer.vrf = Some(subscriber.vrf.clone());
        answer.external_address = Some(external);
        answer.pool = Some(subscriber.pool);
        Some(answer)
    }))
}

/// What an internal address, or one of its ports, has.
fn internal(instance: &Instance, find: &Find, empty: &dyn Fn(Place, String) -> FindAnswer) -> Result<Answered, Fault> {
    let owner = instance.shared.worker_of_subscriber(find.address.to_bits());
    let filter = control::Filter {
        internal: Some(control::Prefix::host(find.address)),
        internal_port: find.port,
        protocol: find.protocol,
        worker: Some(owner.0),
        ..control::Filter::default()
    };
    let list = List { filter, limit: find.limit, cursor: find.cursor.clone() };
    let answered = match find.port {
        Some(_) => lists::mappings(instance, &list)?,
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
        Reply::Subscriber(subscriber) => {
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
            answer.pool = Some(subscriber.pool);
            Some(answer)
        }
        _ => None,
    }))
}
