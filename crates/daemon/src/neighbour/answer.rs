//! What an ARP packet means to Natrix: answer it, learn from it, or see that another station uses
//! our address.

use core::net::Ipv4Addr;

use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::types::InterfaceId;
use nat::types::Side;
use wire::arp::Message;
use wire::arp::Operation;
use wire::ethernet::MacAddress;

/// A pair of addresses seen in an ARP packet; workers exchange these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// Interface it was seen on.
    pub interface: InterfaceId,
    /// IPv4 address, in host bit order.
    pub address: u32,
    /// Its link-layer address.
    pub station: MacAddress,
}

/// What to do with an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The packet's verdict.
    pub verdict: Verdict,
    /// Send the packet back as a reply that says the target address is here.
    pub reply: bool,
    /// What it says about its sender, for those that asked.
    pub learnt: Option<Learnt>,
    /// The sender uses an address of ours (RFC 5227 §2.4).
    pub conflict: bool,
}

/// Knows which addresses are ours on which interface.
#[derive(Clone, Debug)]
pub struct Answerer {
    /// Own addresses by interface.
    own: Vec<Vec<u32>>,
    outside: Vec<bool>,
    /// Pool addresses as disjoint ranges in ascending order, both ends included.
    pool_ranges: Vec<(u32, u32)>,
}

impl Answerer {
    /// Takes the addresses from the settings.
    pub fn new(settings: &Settings) -> Answerer {
        Answerer::with(settings, settings.pools.iter().flat_map(|pool| pool.addresses.iter().copied()))
    }

    /// Takes the addresses from a compiled snapshot: also those that are no longer in the settings
    /// and still in use.
    pub fn of(shared: &Shared) -> Answerer {
        Answerer::with(shared.settings(), shared.addresses().map(|(_, slot)| slot.address))
    }

    /// Takes the addresses of two snapshots of which one follows the other.
    pub fn of_both(before: &Shared, next: &Shared) -> Answerer {
        let both = before.addresses().chain(next.addresses());
        Answerer::with(next.settings(), both.map(|(_, slot)| slot.address))
    }

    fn with(settings: &Settings, external: impl Iterator<Item = Ipv4Addr>) -> Answerer {
        let interfaces = &settings.interfaces;
        let own = interfaces.iter().map(|i| i.addresses.iter().map(|own| own.address.to_bits()).collect()).collect();
        let outside = interfaces.iter().map(|interface| interface.side == Side::Outside).collect();
        let mut pool: Vec<u32> = external.map(Ipv4Addr::to_bits).collect();
        pool.sort_unstable();
        let mut pool_ranges: Vec<(u32, u32)> = Vec::new();
        for address in pool {
            match pool_ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(address) || *last == address => *last = address,
                _ => pool_ranges.push((address, address)),
            }
        }
        Answerer { own, outside, pool_ranges }
    }

    /// Whether Natrix answers for `address` on `interface`: its own address there, and outside also
    /// every pool address, so that a pool needs no route where it lies on the connected subnet.
    pub fn is_ours(&self, interface: InterfaceId, address: u32) -> bool {
        let own = self.own.get(interface.index()).is_some_and(|own| own.contains(&address));
        own || (self.outside.get(interface.index()) == Some(&true) && self.is_pool(address))
    }

    /// An own address to ask with, best one on the subnet of `target`.
    pub fn own_address(&self, settings: &Settings, interface: InterfaceId, target: u32) -> Option<u32> {
        let addresses = &settings.interfaces.get(interface.index())?.addresses;
        let on_subnet = addresses.iter().find(|own| {
            let mask = u32::MAX.checked_shl(32 - u32::from(own.prefix_length.min(32))).unwrap_or(0);
            own.address.to_bits() & mask == target & mask
        });
        on_subnet.or(addresses.first()).map(|own| own.address.to_bits())
    }

    /// Judges one ARP packet that came in on `interface`, whose own link-layer address is
    /// `station`.
    pub fn judge(&self, interface: InterfaceId, station: MacAddress, message: &Message) -> Answer {
        let mut answer = Answer { verdict: Verdict::LocalIgnored, reply: false, learnt: None, conflict: false };
        if message.sender_mac == station {
            // Our own packet, come back over a loop in the network or from a capture of both
            // directions.
            return answer;
        }
        if !message.sender_mac.is_unicast() {
            answer.verdict = Verdict::ArpInvalid;
            return answer;
        }
        if message.sender_address != 0 {
            if self.is_ours(interface, message.sender_address) {
                answer.conflict = true;
                return answer;
            }
            answer.learnt = Some(Learnt { interface, address: message.sender_address, station: message.sender_mac });
        }
        if self.is_ours(interface, message.target_address) {
            answer.reply = message.operation == Operation::Request;
            answer.verdict = Verdict::Local;
        }
        answer
    }

    fn is_pool(&self, address: u32) -> bool {
        let after = self.pool_ranges.partition_point(|(first, _)| *first <= address);
        after > 0 && self.pool_ranges.get(after - 1).is_some_and(|(_, last)| address <= *last)
    }
}

#[cfg(test)]
mod tests;
