//! Which neighbours the kernel asks for, so that their answers pass beside a flood.
//!
//! To the rate of a class, an answer that the kernel waits for is like what others send. So each
//! question lets one answer pass without it: of a flood of answers, as many pass as the kernel asks
//! for.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use packet_io::PortIndex;
use wire::arp;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV6;
use wire::ethernet::LinkHeader;

/// Questions that are remembered: the newest ones. One that a later one displaces is answered at
/// the rate of its class.
const PLACES: usize = 4_096;
const ICMP6: u8 = 58;
/// Bytes of the header of IPv6, and where a message of Neighbor Discovery has its target.
const IPV6_HEADER: usize = 40;
const TARGET: usize = IPV6_HEADER + 8;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The questions of the kernel. Its thread notes them, and workers find their answers.
#[derive(Debug)]
pub(crate) struct Questions {
    places: Box<[AtomicU64]>,
    secret: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Question(u128),
    Answer(u128),
}

impl Questions {
    /// None. `secret` keeps others from choosing addresses that displace each other.
    pub(crate) fn new(secret: u64) -> Questions {
        Questions { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), secret: secret | 1 }
    }

    /// The kernel sends a frame by a port.
    pub(crate) fn note(&self, port: PortIndex, frame: &[u8]) {
        if let Some((vlan, Message::Question(address))) = read(frame) {
            let (place, key) = self.place(port, vlan, address);
            if let Some(place) = place {
                place.store(key, Ordering::Relaxed);
            }
        }
    }

    /// Whether a frame is the answer to a question that has had none.
    pub(crate) fn answers(&self, port: PortIndex, frame: &[u8]) -> bool {
        let Some((vlan, Message::Answer(address))) = read(frame) else { return false };
        let (place, key) = self.place(port, vlan, address);
        place.is_some_and(|place| place.compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }

    fn place(&self, port: PortIndex, vlan: u16, address: u128) -> (Option<&AtomicU64>, u64) {
        let link = (port.index() as u64) << 16 | u64::from(vlan);
        let mix = |word: u64| {
            let mixed = (word ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(self.secret)
        };
        let key = mix(mix(mix((address >> 64) as u64) ^ address as u64) ^ link) | 1;
        (self.places.get((key >> 52) as usize % PLACES), key)
    }
}

/// The VLAN of a message, and the address that it is about.
fn read(frame: &[u8]) -> Option<(u16, Message)> {
    let header = LinkHeader::parse(frame).ok()?;
    let packet = frame.get(header.payload_offset()..)?;
    let message = match header.ether_type {
        ETHER_TYPE_ARP => {
            let message = arp::Message::parse(packet).ok()?;
            match message.operation {
                arp::Operation::Request => Message::Question(message.target_address.into()),
                arp::Operation::Reply => Message::Answer(message.sender_address.into()),
            }
        }
        // From farther away the kernel would not take it (RFC 4861 §7.1).
        ETHER_TYPE_IPV6 if packet.get(6..8) == Some(&[ICMP6, 255]) => {
            let target = u128::from_be_bytes(*packet.get(TARGET..)?.first_chunk()?);
            match packet.get(IPV6_HEADER) {
                Some(&SOLICITATION) => Message::Question(target),
                Some(&ADVERTISEMENT) => Message::Answer(target),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some((header.vlan.map_or(0, |tag| tag.id), message))
}

#[cfg(test)]
mod tests {
    use wire::build;
    use wire::ethernet::MacAddress;

    use super::*;

    const PORT: PortIndex = PortIndex(1);
    const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn frame(ether_type: u16, payload: &[u8]) -> Vec<u8> {
        build::frame(STATION, STATION, ether_type, payload)
    }

    fn discovery(kind: u8, target: u128) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 24, ICMP6, 255];
        packet.resize(IPV6_HEADER, 0);
        packet.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend(target.to_be_bytes());
        frame(ETHER_TYPE_IPV6, &packet)
    }

    fn arp(operation: arp::Operation, address: u32) -> Vec<u8> {
        let request = arp::Message::request(STATION, address, address);
        frame(ETHER_TYPE_ARP, &arp::Message { operation, ..request }.to_bytes())
    }

    #[test]
    fn each_question_lets_one_answer_pass() {
        let questions = Questions::new(7);
        let messages = [
            (arp(arp::Operation::Request, 9), arp(arp::Operation::Reply, 9), arp(arp::Operation::Reply, 8)),
            (discovery(135, 1 << 100 | 9), discovery(136, 1 << 100 | 9), discovery(136, 2 << 100 | 9)),
        ];
        for (question, answer, other) in messages {
            assert!(!questions.answers(PORT, &answer), "nobody has asked");
            questions.note(PORT, &question);
            assert!(!questions.answers(PORT, &other), "another address");
            if answer[12..14] == ETHER_TYPE_IPV6.to_be_bytes() {
                let mut far = answer.clone();
                far[14 + 7] = 254;
                assert!(!questions.answers(PORT, &far), "it has passed a router");
            }
            assert!(!questions.answers(PORT, &question), "no answer");
            assert!(!questions.answers(PortIndex(0), &answer), "another port");
            assert!(questions.answers(PORT, &answer));
            assert!(!questions.answers(PORT, &answer), "once");
            questions.note(PORT, &answer);
            assert!(!questions.answers(PORT, &answer), "the kernel's own answer is no question");
        }
    }

    #[test]
    fn what_is_cut_off_is_no_answer() {
        let questions = Questions::new(7);
        for whole in [arp(arp::Operation::Reply, 9), discovery(136, 9)] {
            for length in 0..whole.len() {
                assert!(!questions.answers(PORT, &whole[..length]));
                questions.note(PORT, &whole[..length]);
            }
        }
    }
}
