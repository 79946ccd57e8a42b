//! Names and words of the engine in those of the control protocol.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use control::Fault;
use control::PerProtocol;
use control::SubscriberPorts;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::blocks::Lease;
use nat::types::PoolId;
use nat::types::RealmId;
use nat::view;

/// For the control protocol.
pub fn protocol(protocol: Protocol) -> control::Protocol {
    match protocol {
        Protocol::Udp => control::Protocol::Udp,
        Protocol::Tcp => control::Protocol::Tcp,
        Protocol::Icmp => control::Protocol::Icmp,
    }
}

/// For the engine.
pub fn engine_protocol(protocol: control::Protocol) -> Protocol {
    match protocol {
        control::Protocol::Udp => Protocol::Udp,
        control::Protocol::Tcp => Protocol::Tcp,
        control::Protocol::Icmp => Protocol::Icmp,
    }
}

/// Empty if there is no such pool.
pub fn pool_name(shared: &Shared, pool: PoolId) -> String {
    shared.pool(pool).map(|pool| pool.name.clone()).unwrap_or_default()
}

/// Empty if there is no such realm.
pub fn vrf_name(settings: &Settings, realm: RealmId) -> String {
    settings.realm_names.get(realm.index()).cloned().unwrap_or_default()
}

/// The inside realm with this name.
///
/// # Errors
/// There is no such VRF.
pub fn realm_named(settings: &Settings, vrf: &str) -> Result<RealmId, Fault> {
    let names = &settings.realm_names;
    let position = names.iter().position(|name| name == vrf).ok_or_else(|| {
        Fault::new(format!("VRF \"{vrf}\""), "does not exist", format!("use one of: {}", names.join(", ")))
    })?;
    Ok(RealmId(position as u16))
}

/// The interface with this address.
pub fn own_interface(settings: &Settings, address: Ipv4Addr) -> Option<&str> {
    let owner = settings.interfaces.iter().find(|i| i.addresses.iter().any(|own| own.address == address));
    owner.map(|interface| interface.name.as_str())
}

/// What an IPv6 address that no host has is to Natrix.
pub fn own_address6(settings: &Settings, address: Ipv6Addr) -> Option<String> {
    let name = |realm: RealmId| match realm {
        RealmId(0) => String::new(),
        realm => format!(" of VRF \"{}\"", vrf_name(settings, realm)),
    };
    if let Some(own) = settings.ipv6.addresses.iter().find(|own| own.address == address) {
        let interface = settings.interfaces.get(own.interface.index()).map_or("", |interface| &interface.name);
        return Some(format!("{address} is Natrix's own address on interface \"{interface}\""));
    }
    if let Some(end) = settings.transition.softwires.iter().find(|end| end.aftr == address) {
        return Some(format!("{address} is the AFTR{}, where softwires end", name(end.realm)));
    }
    let nat64 = settings.transition.nat64.iter().find(|one| one.prefix.contains(address.to_bits()));
    if let Some(one) = nat64 {
        let ipv4 = Ipv4Addr::from_bits(one.prefix.extract(address.to_bits()));
        return Some(format!(
            "{address} stands for {ipv4} in a prefix of [[nat64]]{}, and is no host",
            name(one.realm)
        ));
    }
    address.is_unicast_link_local().then(|| format!("{address} is link-local: no host uses such an address for IPv4"))
}

/// A block or slice of a subscriber.
pub fn subscriber_ports(ports: &view::SubscriberPorts) -> SubscriberPorts {
    SubscriberPorts {
        kind: if ports.leased_s.is_some() { "block" } else { "slice" }.to_owned(),
        external_address: ports.address,
        first_port: ports.first,
        last_port: ports.last,
        ports_used: Some(per_protocol(ports.used.map(u64::from))),
    }
}

/// One number for each transport.
pub fn per_protocol(numbers: [u64; Protocol::COUNT]) -> PerProtocol {
    let of = |protocol: Protocol| numbers.get(protocol.index()).copied().unwrap_or(0);
    PerProtocol { udp: of(Protocol::Udp), tcp: of(Protocol::Tcp), icmp: of(Protocol::Icmp) }
}

pub(crate) fn block(shared: &Shared, lease: &Lease) -> SubscriberPorts {
    subscriber_ports(&shared.own_lease(lease))
}
