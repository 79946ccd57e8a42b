//! RFC 5508, behaviour for ICMP. One test per requirement or more.

mod other_messages;
mod own_errors;
mod passing_errors;
mod queries;

use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use nat::Protocol;
use nat::Settings;
use nat::settings::IcmpPolicy;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

/// A router inside that has no mapping and is no subscriber.
const FAR_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// The same world with one worker and with several, where any of them may receive any packet.
fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

fn with_icmp(change: impl FnOnce(&mut IcmpPolicy)) -> Settings {
    let mut settings = settings();
    change(&mut settings.icmp);
    settings
}

/// What a packet is behind one router: TTL less by one, nothing else changed.
pub(crate) fn behind_a_hop(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let mut view = Ipv4::new_unchecked(packet.as_mut_slice());
    view.set_ttl(view.ttl() - 1);
    view.fill_checksum();
    packet
}

/// One packet of each transport from I1 to E1, all with Don't Fragment: such a packet keeps its
/// identification, so that a quote of it can be restored to the last bit.
fn outbound_packets() -> [(Protocol, Vec<u8>); 3] {
    [
        (Protocol::Udp, build::udp(at(I1, 5000), at(E1, 1000)).payload_length(80).dont_fragment().build()),
        (Protocol::Tcp, build::tcp(at(I1, 5000), at(E1, 1000), Flags::SYN).mss(1460).dont_fragment().build()),
        (Protocol::Icmp, build::echo_request(I1, E1, 5000).payload_length(80).dont_fragment().build()),
    ]
}

/// One packet of each transport from E1 to the mapping that the packet from I1 made.
fn inbound_packet(protocol: Protocol, external: SocketAddrV4) -> Vec<u8> {
    let packet = match protocol {
        Protocol::Udp => build::udp(at(E1, 1000), external).payload_length(80),
        Protocol::Tcp => build::tcp(at(E1, 1000), external, Flags::SYN.union(Flags::ACK)).acknowledgment(1),
        Protocol::Icmp => build::echo_reply(E1, *external.ip(), external.port()).payload_length(80),
    };
    packet.dont_fragment().build()
}

/// All types and codes of errors that pass.
fn errors() -> impl Iterator<Item = (u8, u8)> {
    (0..16).map(|code| (3, code)).chain([(11, 0), (11, 1), (12, 0), (12, 1), (12, 2)])
}
