//! From a running instance: the current holders.

mod external;
mod hosts;
mod internal;
mod users;

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::sync::Arc;

use control::Fault;
use control::Find;
use control::FindAddress;
use control::FindAnswer;
use control::Host;
use control::List;
use control::Mapping;
use control::Page;
use control::Place;
use control::Refused;
use control::Session;
use control::Subscriber;
use nat::Protocol;
use nat::Shared;
use nat::types::Endpoint;
use nat::types::HostNumber;
use nat::types::RealmId;
use nat::types::WorkerId;
use nat::view::BalancedView;
use nat::view::StaticView;

use crate::Asked;
use crate::asked::holder_of;
use crate::asked::targets_of;
use crate::convert;
use crate::formula::Configured;

/// A running instance.
pub trait Live {
    /// The snapshot of the workers.
    fn shared(&self) -> Arc<Shared>;

    /// The mapping with this external endpoint, if `worker` has it.
    ///
    /// # Errors
    /// The worker does not answer.
    fn holder(&self, worker: WorkerId, external: Endpoint, protocol: Protocol) -> Result<Option<Mapping>, Fault>;

    /// A page of mappings.
    ///
    /// # Errors
    /// The cursor is not from such a list, or a worker does not answer.
    fn mappings(&self, list: &List) -> Result<Page<Mapping>, Fault>;

    /// A page of sessions.
    ///
    /// # Errors
    /// As [`Live::mappings`].
    fn sessions(&self, list: &List) -> Result<Page<Session>, Fault>;

    /// A page of subscribers.
    ///
    /// # Errors
    /// As [`Live::mappings`].
    fn subscribers(&self, list: &List) -> Result<Page<Subscriber>, Fault>;

    /// Calls `each` with VRF and internal address for every use of an external address; mappings
    /// and flows only of `protocol`. Reads all mappings and flows.
    ///
    /// # Errors
    /// A worker does not answer.
    fn uses(
        &self,
        external: Ipv4Addr,
        protocol: Option<Protocol>,
        each: &mut dyn FnMut(RealmId, Ipv4Addr, Use),
    ) -> Result<(), Fault>;
}

/// How a subscriber uses an external address.
pub enum Use {
    /// Paired with it.
    Paired(Box<Subscriber>),
    /// A mapping, of this host if IPv6.
    Mapping(Option<Host>),
    /// A session that shares its external port, of this host if IPv6.
    Flow(Option<Host>),
}

/// As people know it.
fn named(inside: Ipv4Addr, host: Option<&Host>) -> String {
    host.map_or_else(|| inside.to_string(), Host::to_string)
}

/// As people know it.
fn endpoint_named(inside: SocketAddrV4, host: Option<&Host>) -> String {
    host.map_or_else(|| inside.to_string(), |host| host.endpoint(inside.port()))
}

/// The end of a sentence about a subscriber.
fn refusals_of(refused: &Refused) -> String {
    let causes: Vec<String> = refused.causes().map(|(cause, count)| format!("{cause} {count}")).collect();
    if causes.is_empty() { String::new() } else { format!("; refused packets: {}", causes.join(", ")) }
}

/// A page of the holders of an endpoint, or of the users of an address. The first page has an
/// answer even if an endpoint has no holder.
///
/// # Errors
/// No such VRF, the cursor is not from this list, or a worker does not answer.
pub fn find(live: &dyn Live, find: &Find) -> Result<Page<FindAnswer>, Fault> {
    let address = match find.address {
        FindAddress::Ipv4(address) => address,
        FindAddress::Ipv6(wanted) => return hosts::find(live, find, wanted),
    };
    let search = Search::new(live, find, address)?;
    let mut page = search.all()?;
    let had_some = !page.objects.is_empty();
    search.asked.retain_vrf(&mut page.objects);
    if let Some(vrf) = &find.vrf {
        let is_whole = find.cursor.is_none() && page.cursor.is_none();
        if had_some && page.objects.is_empty() && is_whole {
            let detail = format!("no subscriber of VRF \"{vrf}\" holds {} now", search.asked.queried());
            page.objects.push(search.asked.nobody(Place::External, detail));
        }
    }
    Ok(page)
}

/// All, or the one with this name.
fn realms_of(shared: &Shared, vrf: Option<&str>) -> Result<Vec<RealmId>, Fault> {
    let Some(vrf) = vrf else {
        return Ok((0..shared.settings().realm_names.len()).map(|realm| RealmId(realm as u16)).collect());
    };
    Ok(vec![convert::realm_named(shared.settings(), vrf)?])
}

/// The AFTR inside its softwires.
const AFTR_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);

/// One question to one snapshot.
struct Search<'a> {
    live: &'a dyn Live,
    shared: Arc<Shared>,
    find: &'a Find,
    asked: Asked<'a>,
    /// VRFs in question.
    realms: Vec<RealmId>,
}

impl<'a> Search<'a> {
    fn new(live: &'a dyn Live, find: &'a Find, address: Ipv4Addr) -> Result<Search<'a>, Fault> {
        let shared = live.shared();
        let asked = Asked {
            address,
            host: None,
            port: find.port,
            protocol: find.protocol.map(convert::engine_protocol),
            vrf: find.vrf.as_deref(),
        };
        // An unknown VRF is an error for any address.
        let realms = realms_of(&shared, asked.vrf)?;
        Ok(Search { live, shared, find, asked, realms })
    }

    /// In all VRFs.
    fn all(&self) -> Result<Page<FindAnswer>, Fault> {
        if let Some(index) = self.shared.address_index(self.asked.address) {
            return self.external(index);
        }
        if let Some(interface) = convert::own_interface(self.shared.settings(), self.asked.address) {
            let detail = format!("{} is Natrix's own address on interface \"{interface}\"", self.asked.address);
            return Ok(Page::whole(vec![self.asked.nobody(Place::Interface, detail)]));
        }
        if self.asked.address == AFTR_INSIDE && !self.shared.settings().transition.softwires.is_empty() {
            let detail = format!("{AFTR_INSIDE} is Natrix's own address inside softwires (RFC 6333 section 5.7)");
            return Ok(Page::whole(vec![self.asked.nobody(Place::Interface, detail)]));
        }
        self.internal()
    }

    fn is_first_page(&self) -> bool {
        self.find.cursor.is_none()
    }

    /// From the cursor in question.
    fn list(&self, filter: control::Filter) -> List {
        List { filter, limit: self.find.limit, cursor: self.find.cursor.clone() }
    }

    /// Asks the current configuration alone.
    fn configured(&self) -> Configured<'_> {
        Configured { settings: self.shared.settings(), asked: self.asked }
    }

    fn pool_with(&self, external: Ipv4Addr) -> Option<String> {
        let index = self.shared.address_index(external)?;
        Some(convert::pool_name(&self.shared, self.shared.pool_of(index)))
    }

    /// The IPv6 prefix of a host number; `None` for an IPv4 address.
    fn prefix_of(&self, number: Ipv4Addr) -> Result<Option<Host>, Fault> {
        if !HostNumber::from(number).is_ipv6() {
            return Ok(None);
        }
        let filter = control::Filter { internal: Some(control::Prefix::host(number)), ..control::Filter::default() };
        let found = self.live.subscribers(&List { filter, limit: Some(1), cursor: None })?;
        Ok(found.objects.first().and_then(|subscriber| subscriber.host))
    }

    fn vrf(&self, realm: RealmId) -> String {
        convert::vrf_name(self.shared.settings(), realm)
    }

    fn by_mapping(&self, place: Place, mapping: Mapping, detail: String) -> FindAnswer {
        FindAnswer {
            holder: mapping.host.is_none().then_some(*mapping.internal.ip()),
            host: mapping.host,
            realm: Some(mapping.realm),
            vrf: Some(mapping.vrf.clone()),
            external_address: Some(*mapping.external.ip()),
            pool: Some(mapping.pool.clone()),
            mapping: Some(mapping),
            ..self.asked.nobody(place, detail)
        }
    }

    fn by_flow(&self, place: Place, session: Session) -> FindAnswer {
        let remote = session.target.unwrap_or(session.remote);
        let Session { protocol, internal, external, host, .. } = session;
        let who = endpoint_named(internal, host.as_ref());
        let detail = format!("{who} has {protocol} {external} towards {remote}, and shares it");
        FindAnswer {
            holder: host.is_none().then_some(*internal.ip()),
            host,
            realm: Some(session.realm),
            vrf: Some(session.vrf),
            external_address: Some(*external.ip()),
            pool: Some(session.pool),
            ..self.asked.nobody(place, detail)
        }
    }

    fn by_targets(&self, place: Place, found: &BalancedView) -> FindAnswer {
        FindAnswer {
            realm: Some(found.realm.0),
            vrf: self.shared.settings().realm_names.get(found.realm.index()).cloned(),
            external_address: Some(found.external.address),
            pool: self.pool_with(found.external.address),
            ..self.asked.nobody(place, targets_of(found))
        }
    }

    /// Not in use. Without a port: of the whole address.
    fn by_static(&self, place: Place, found: &StaticView) -> FindAnswer {
        let (external, protocol) = (found.external, found.protocol);
        let internal = found.host.with_port(found.internal_port);
        let detail = match self.asked.port {
            None => format!("{} is mapped one-to-one to {}", external.address, found.host),
            Some(_) if found.one_to_one => {
                format!("{protocol} {external} is mapped one-to-one to {internal}; no mapping now")
            }
            Some(_) => format!("{protocol} {external} is statically forwarded to {internal}; no mapping now"),
        };
        let (holder, host) = holder_of(&found.host);
        FindAnswer {
            holder,
            host,
            realm: Some(found.realm.0),
            vrf: self.shared.settings().realm_names.get(found.realm.index()).cloned(),
            external_address: Some(external.address),
            pool: self.pool_with(external.address),
            ..self.asked.nobody(place, detail)
        }
    }
}
