//! The points NATs most often get wrong, S1 to S15. At least one test for each.

mod checksums;
mod errors;
mod fragments;
mod hairpin;
mod headers;
mod ports;
mod quotes;
mod refresh;
mod syns;
mod tcp;
mod workers;

use std::net::Ipv4Addr;

use nat::Settings;
use nat::types::Side;
use testkit::*;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.union(Flags::ACK);

/// A router inside that is no subscriber.
const FAR_ROUTER: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);

/// The same world with one worker and with several, where any of them may receive any packet.
fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

/// What a packet is behind one router: TTL less by one, nothing else changed.
fn behind_a_hop(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let mut view = Ipv4::new_unchecked(packet.as_mut_slice());
    view.set_ttl(view.ttl() - 1);
    view.fill_checksum();
    packet
}

fn word(packet: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([packet[offset], packet[offset + 1]])
}

/// Sends packets in bursts, and gives what came out on the other side to `check`.
fn stream(bed: &mut Bed, side: Side, packets: impl Iterator<Item = Vec<u8>>, mut check: impl FnMut(Vec<u8>)) {
    let mut burst = Vec::new();
    let mut burst_size = 1;
    let mut packets = packets.peekable();
    while let Some(packet) = packets.next() {
        burst.push(packet);
        // The first one goes alone, while the next hop's link-layer address is asked for.
        if burst.len() == burst_size || packets.peek().is_none() {
            burst_size = 64;
            bed.burst(side, &burst);
            let out = if side == Side::Inside { bed.take_outside() } else { bed.take_inside() };
            assert_eq!(out.len(), burst.len(), "{:?}", bed.verdicts());
            out.into_iter().for_each(&mut check);
            burst.clear();
        }
    }
}
