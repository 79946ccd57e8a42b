use std::collections::HashSet;

use wire::ethernet::MacAddress;

use super::*;
use crate::frame::TrialKey;

const STATIONS: Stations = Stations { own: MacAddress([2, 0, 0, 0, 0, 1]), device: MacAddress([2, 0, 0, 0, 0, 2]) };
const FROM: Endpoint = Endpoint { address: 0x0a00_0002, port: 40_000 };
const TO: Endpoint = Endpoint { address: 0xc613_0001, port: 80 };
const CONNECTIONS: u64 = 1_000_000;
const TUPLE: u32 = 777_777;
const FRAMES: [u64; 2] = [1000, 1000];
const NUMBERS: Numbers = Numbers { sequence: 0xffff_fff0, acknowledgement: 17 };

fn key() -> TrialKey {
    TrialKey::new(1, 2)
}

fn opening(kind: Kind) -> Vec<u8> {
    let mut frame = vec![0xff; kind.frame_bytes()];
    key().segments().write(&mut frame, STATIONS, FROM, TO, (kind, TUPLE));
    frame
}

fn data(length: usize) -> Vec<u8> {
    let mut frame = vec![0xff; length - CHECK_SEQUENCE];
    key().segments().write_data(&mut frame, STATIONS, FROM, TO, (Way::Inbound, 999, NUMBERS));
    frame
}

/// Changes four bytes as a device does that corrects the checksum.
fn renumbered(frame: &[u8], at: usize) -> Vec<u8> {
    let mut changed = frame.to_vec();
    changed[at + 3] ^= 1;
    changed[TCP + 16..TCP + 18].fill(0);
    let end = IP + usize::from(u16::from_be_bytes([changed[IP + 2], changed[IP + 3]]));
    let pseudo = checksum::pseudo_header(FROM.address, TO.address, PROTOCOL_TCP, (end - TCP) as u16);
    let sum = pseudo.add_bytes(&changed[TCP..end]).checksum();
    changed[TCP + 16..TCP + 18].copy_from_slice(&sum.to_be_bytes());
    changed
}

#[test]
fn every_segment_of_a_connection_is_read_as_what_was_written() {
    for kind in Kind::ALL {
        let seen = key().segments().read(&opening(kind), CONNECTIONS).unwrap();
        assert_eq!((seen.kind, seen.tuple, seen.is_misnumbered), (kind, TUPLE, false));
        assert_eq!((seen.segment.source, seen.segment.destination, seen.segment.ttl), (FROM, TO, TTL));
    }
}

#[test]
fn the_numbers_are_those_of_rfc_9293() {
    let key = key();
    let at = |kind| key.segments().read(&opening(kind), CONNECTIONS).unwrap().segment.numbers;
    let (syn, answer) = (at(Kind::Syn), at(Kind::SynAck));
    assert_eq!(syn.acknowledgement, 0);
    let (client, server) = (syn.sequence, answer.sequence);
    let numbers = |sequence: u32, acknowledgement: u32| Numbers { sequence, acknowledgement };
    assert_eq!(answer, numbers(server, client.wrapping_add(1)));
    assert_eq!(at(Kind::Ack), numbers(client.wrapping_add(1), server.wrapping_add(1)));
    assert_eq!(at(Kind::Fin), numbers(client.wrapping_add(1), server.wrapping_add(1)));
    assert_eq!(at(Kind::FinAcked), numbers(server.wrapping_add(1), client.wrapping_add(2)));
    assert_eq!(at(Kind::FinBack), numbers(server.wrapping_add(1), client.wrapping_add(2)));
    assert_eq!(at(Kind::LastAck), numbers(client.wrapping_add(2), server.wrapping_add(2)));
}

#[test]
fn each_connection_has_initial_numbers_of_its_own_that_name_it() {
    let key = key();
    for way in Way::BOTH {
        let drawn: HashSet<u32> = (0..10_000).map(|tuple| key.segments().initial(way, tuple)).collect();
        assert_eq!(drawn.len(), 10_000);
        assert!((0..10_000).all(|tuple| key.segments().tuple_of(way, key.segments().initial(way, tuple)) == tuple));
        let in_upper_half = drawn.iter().filter(|number| **number >= 1 << 31).count();
        assert!((4700..5300).contains(&in_upper_half), "{in_upper_half} of 10000 are in the upper half");
    }
}

#[test]
fn data_of_every_size_is_read_as_what_was_written() {
    for length in [64, 65, 128, 777, 1518] {
        let frame = data(length);
        let seen = key().segments().read_data(&frame, Way::Inbound, FRAMES).unwrap();
        assert_eq!((seen.way, seen.sequence, seen.is_misnumbered), (Way::Inbound, 999, false));
        assert_eq!((seen.segment.numbers, seen.segment.data_bytes()), (NUMBERS, (length - 58) as u32));
        // At the end it was sent from it is known, too.
        assert_eq!(key().segments().read_data(&frame, Way::Outbound, FRAMES).unwrap().way, Way::Inbound);
        assert_eq!(key().segments().read_data(&frame, Way::Inbound, [0, 999]), Err(Stranger::Forged));
    }
}

#[test]
fn a_changed_sequence_number_is_forged_an_acknowledgement_named() {
    let key = key();
    let (sequence, acknowledgement) = (TCP + tcp::SEQUENCE_OFFSET, TCP + tcp::ACKNOWLEDGMENT_OFFSET);
    for kind in Kind::ALL {
        let frame = opening(kind);
        assert_eq!(key.segments().read(&renumbered(&frame, sequence), CONNECTIONS), Err(Stranger::Forged), "{kind:?}");
        let changed = key.segments().read(&renumbered(&frame, acknowledgement), CONNECTIONS).unwrap();
        assert!(changed.is_misnumbered && changed.tuple == TUPLE, "{kind:?}");
    }
    for at in [sequence, acknowledgement] {
        let changed = key.segments().read_data(&renumbered(&data(64), at), Way::Inbound, FRAMES).unwrap();
        assert!(changed.is_misnumbered && changed.sequence == 999);
    }
}

#[test]
fn every_changed_bit_of_a_segment_is_noticed() {
    for frame in Kind::ALL.map(opening) {
        let end = IP + usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
        for bit in IP * 8..end * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(key().segments().read(&changed, CONNECTIONS).is_err(), "bit {bit} may be changed unseen");
        }
    }
    let frame = data(80);
    for bit in IP * 8..frame.len() * 8 {
        let mut changed = frame.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let seen = key().segments().read_data(&changed, Way::Inbound, FRAMES);
        assert!(seen.is_err(), "bit {bit} of data may be changed unseen");
    }
}

#[test]
fn segments_of_another_trial_are_strangers() {
    let other = TrialKey::new(1, 3);
    for kind in Kind::ALL {
        assert_eq!(other.segments().read(&opening(kind), CONNECTIONS), Err(Stranger::Forged), "{kind:?}");
    }
    assert_eq!(other.segments().read_data(&data(64), Way::Inbound, FRAMES), Err(Stranger::Forged));
}

#[test]
fn no_length_of_a_segment_is_a_panic() {
    for length in 0..data(128).len() {
        assert!(key().segments().read_data(&data(128)[..length], Way::Inbound, FRAMES).is_err());
    }
    for length in 0..DATA {
        assert!(key().segments().read(&opening(Kind::Syn)[..length], CONNECTIONS).is_err());
    }
}
