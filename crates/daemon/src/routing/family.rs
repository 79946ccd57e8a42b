//! What routes of IPv4 and of IPv6 do not share.

use core::fmt::Debug;
use core::fmt::Display;
use core::hash::Hash;
use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::BTreeSet;
use std::sync::Mutex;

use nat::Settings;
use nat::routes::live::Full;
use nat::routes::live::Target;
use nat::routes::live::Writer;
use nat::settings::Interface;
use nat::stand_in::Prefix6;
use nat::types::InterfaceId;
use nat::types::Prefix;
use wire::ipv6;

use crate::routing::fib::Fib;
use crate::routing::fib::Half;
use crate::routing::rib::Hop;
use crate::routing::rib::RibOf;
use crate::routing::rib::Source;
use crate::routing::rib::Table;
use crate::routing::shared::Routing;

/// A next hop for the tables of the workers: interface, router, MTU and weight.
pub type LiveHop<A> = (InterfaceId, A, u16, u16);

/// A prefix of one of the two families, and with it its routes.
pub trait Family: Copy + Ord + Hash + Debug + Display + Send + Sync + 'static {
    /// An address in host bit order. The default, 0, is no router.
    type Address: Copy + Default + Ord + Hash + Debug + Send + Sync;

    /// Length of the prefix of one address.
    const LENGTH_MAX: u8;
    /// A prefix that leads inside is excluded outside (RFC 6598 §4). IPv6 packets are never sent on
    /// from inside to outside.
    const EXCLUDES_INSIDE: bool;

    /// The kernel reports the next hops of a route that go one by one.
    const HOPS_GO_SINGLY: bool;

    /// Clears host bits. None if the length is over [`Family::LENGTH_MAX`].
    fn of(address: Self::Address, length: u8) -> Option<Self>;
    /// The first address.
    fn first(self) -> Self::Address;
    /// The length.
    fn bits(self) -> u8;
    /// Link-local addresses, which each link has for itself and no route leads to.
    fn is_of_link(self) -> bool;
    /// The address in these bytes, which are as many as it has.
    fn read(bytes: &[u8]) -> Self::Address;
    /// The address as a number.
    fn number(address: Self::Address) -> u128;
    /// The reverse of [`Family::number`]; a number that is no address becomes the highest one.
    fn address_of(number: u128) -> Self::Address;
    /// The address for people.
    fn ip(address: Self::Address) -> IpAddr;
    /// Connected and static routes.
    fn fixed(settings: &Settings) -> Vec<(Table, Self, Source, Hop<Self::Address>)>;
    /// Prefixes of subscribers, which lead inside even while no route does.
    fn subscribers(settings: &Settings) -> BTreeSet<Self>;
    /// All routes of this family.
    fn rib(routing: &Routing) -> &Mutex<RibOf<Self>>;
    /// What is in the workers' tables of this family.
    fn half(fib: &mut Fib) -> (&mut Writer, &mut Half<Self>);
    /// The same to read.
    fn half_of(fib: &Fib) -> &Half<Self>;
    /// See [`Writer::target`].
    ///
    /// # Errors
    /// [`Full`]; nothing has changed then.
    fn target(writer: &mut Writer, hops: &[LiveHop<Self::Address>]) -> Result<Target, Full>;
    /// See [`Writer::set`].
    ///
    /// # Errors
    /// [`Full`]; nothing has changed then.
    fn set(self, writer: &mut Writer, table: usize, target: Target) -> Result<(), Full>;
    /// See [`Writer::remove`].
    fn remove(self, writer: &mut Writer, table: usize, cover: Option<(u8, Target)>);
}

fn table_of(settings: &Settings, id: InterfaceId) -> Option<Table> {
    settings.interfaces.get(id.index()).map(Interface::facing).map(Table::of)
}

impl Family for Prefix {
    fn subscribers(settings: &Settings) -> BTreeSet<Prefix> {
        // Without routes of the kernel, each has a route of the configuration.
        let pools = settings.pools.iter().filter(|_| settings.live_routes);
        let all = pools.flat_map(|pool| &pool.subscribers).copied();
        // Those that stand for IPv6 hosts are no addresses.
        all.filter(|prefix| *prefix != Prefix::ALL && !Prefix::HOSTS.contains(prefix.address())).collect()
    }

    type Address = u32;

    const LENGTH_MAX: u8 = 32;
    const EXCLUDES_INSIDE: bool = true;
    const HOPS_GO_SINGLY: bool = false;

    fn of(address: u32, length: u8) -> Option<Prefix> {
        Prefix::new(Ipv4Addr::from_bits(address), length)
    }

    fn first(self) -> u32 {
        self.address().to_bits()
    }

    fn bits(self) -> u8 {
        self.length()
    }

    fn is_of_link(self) -> bool {
        false
    }

    fn read(bytes: &[u8]) -> u32 {
        bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    fn number(address: u32) -> u128 {
        address.into()
    }

    fn address_of(number: u128) -> u32 {
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    fn ip(address: u32) -> IpAddr {
        Ipv4Addr::from_bits(address).into()
    }

    fn fixed(settings: &Settings) -> Vec<(Table, Prefix, Source, Hop)> {
        let routes = settings.routes.iter().filter_map(|route| {
            let hop = Hop { interface: route.interface, gateway: route.next_hop.to_bits(), weight: 1 };
            Some((table_of(settings, route.interface)?, route.prefix, Source::Static, hop))
        });
        let connected = (0..).map(InterfaceId).zip(&settings.interfaces).flat_map(|(id, interface)| {
            interface.addresses.iter().filter_map(move |own| {
                let prefix = Prefix::new(own.address, own.prefix_length)?;
                let hop = Hop { interface: id, gateway: 0, weight: 1 };
                Some((Table::of(interface.facing()), prefix, Source::Connected, hop))
            })
        });
        routes.chain(connected).collect()
    }

    fn rib(routing: &Routing) -> &Mutex<RibOf<Prefix>> {
        &routing.rib
    }

    fn half(fib: &mut Fib) -> (&mut Writer, &mut Half<Prefix>) {
        (&mut fib.writer, &mut fib.half4)
    }

    fn half_of(fib: &Fib) -> &Half<Prefix> {
        &fib.half4
    }

    fn target(writer: &mut Writer, hops: &[LiveHop<u32>]) -> Result<Target, Full> {
        writer.target(hops)
    }

    fn set(self, writer: &mut Writer, table: usize, target: Target) -> Result<(), Full> {
        writer.set(table, self, target)
    }

    fn remove(self, writer: &mut Writer, table: usize, cover: Option<(u8, Target)>) {
        writer.remove(table, self, cover);
    }
}

impl Family for Prefix6 {
    fn subscribers(_: &Settings) -> BTreeSet<Prefix6> {
        BTreeSet::new()
    }

    type Address = u128;

    const LENGTH_MAX: u8 = 128;
    const EXCLUDES_INSIDE: bool = false;
    const HOPS_GO_SINGLY: bool = true;

    fn of(address: u128, length: u8) -> Option<Prefix6> {
        Prefix6::new(address, length)
    }

    fn first(self) -> u128 {
        self.address()
    }

    fn bits(self) -> u8 {
        self.length()
    }

    fn is_of_link(self) -> bool {
        self.length() >= 10 && ipv6::is_link_local(self.address())
    }

    fn read(bytes: &[u8]) -> u128 {
        bytes.first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes))
    }

    fn number(address: u128) -> u128 {
        address
    }

    fn address_of(number: u128) -> u128 {
        number
    }

    fn ip(address: u128) -> IpAddr {
        Ipv6Addr::from_bits(address).into()
    }

    fn fixed(settings: &Settings) -> Vec<(Table, Prefix6, Source, Hop<u128>)> {
        let routes = settings.ipv6.routes.iter().filter_map(|route| {
            let hop = Hop { interface: route.interface, gateway: route.next_hop.to_bits(), weight: 1 };
            let prefix = Prefix6::new(route.prefix.to_bits(), route.prefix_length)?;
            Some((table_of(settings, route.interface)?, prefix, Source::Static, hop))
        });
        let connected = settings.ipv6.addresses.iter().filter_map(|own| {
            let prefix = Prefix6::new(own.address.to_bits(), own.prefix_length)?;
            let hop = Hop { interface: own.interface, gateway: 0, weight: 1 };
            Some((table_of(settings, own.interface)?, prefix, Source::Connected, hop))
        });
        routes.chain(connected).collect()
    }

    fn rib(routing: &Routing) -> &Mutex<RibOf<Prefix6>> {
        &routing.rib6
    }

    fn half(fib: &mut Fib) -> (&mut Writer, &mut Half<Prefix6>) {
        (&mut fib.writer, &mut fib.half6)
    }

    fn half_of(fib: &Fib) -> &Half<Prefix6> {
        &fib.half6
    }

    fn target(writer: &mut Writer, hops: &[LiveHop<u128>]) -> Result<Target, Full> {
        writer.target6(hops)
    }

    fn set(self, writer: &mut Writer, table: usize, target: Target) -> Result<(), Full> {
        writer.set6(table, self, target)
    }

    fn remove(self, writer: &mut Writer, table: usize, cover: Option<(u8, Target)>) {
        writer.remove6(table, self, cover);
    }
}
