//! Rings and records that are lost or damaged.

use std::fs;
use std::path::PathBuf;

use export::store::Store;
use export::store::verify;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;

use super::Place;
use super::at;
use super::later;
use super::mapping;
use super::moment;
use super::question;
use super::two_rings;

#[test]
fn a_lost_or_damaged_ring_is_never_a_confident_answer() {
    let changes: [fn(&PathBuf, &mut Vec<u8>); 7] = [
        |path, _| fs::remove_file(path).unwrap(),
        |path, bytes| fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        // The machine's boot, the kind of the record, the position of the producer.
        |path, bytes| {
            bytes[24 + 20] ^= 1;
            fs::write(path, bytes).unwrap();
        },
        |path, bytes| {
            bytes[4_096 + 44] = 0xff;
            fs::write(path, bytes).unwrap();
        },
        |path, bytes| {
            bytes[1_024 + 128 + 3] = 0xff;
            fs::write(path, bytes).unwrap();
        },
        // Which numbers the journal must have: more than the ring ever had, or unknown (format 1).
        |path, bytes| {
            bytes[1_024 + 8] = 0xff;
            fs::write(path, bytes).unwrap();
        },
        |path, bytes| {
            bytes[8] = 1;
            fs::write(path, bytes).unwrap();
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for ring in 0..2 {
            let place = Place::new(&format!("damage-{number}-{ring}"));
            two_rings(&place);
            let path = place.rings()[ring].clone();
            change(&path, &mut fs::read(&path).unwrap());
            drop(later(&place, 3_600));
            let store = Store::open(&place.store()).unwrap();
            for port in [1_000, 1_001, 1_002] {
                let found = store.look_up(&question(port, 30)).unwrap();
                assert!(!found.is_complete, "change {number} of ring {ring}: {found:?}");
                let wrong = |holder: &&export::store::Holder| holder.internal_port != Some(port);
                assert_eq!(found.holders.iter().find(wrong), None);
            }
            assert_eq!(place.faults(), Vec::<String>::new());
            assert_eq!(place.in_memory(), Vec::<PathBuf>::new());
            // No number is missing, but what was in the ring is.
            assert_eq!(store.stat().unwrap().lost_ends, 1, "change {number} of ring {ring}");
            let verified = verify(&place.store(), None, |_, _| {}).unwrap();
            assert_eq!(verified.lost_ends, 1, "change {number} of ring {ring}");
        }
    }
}

#[test]
fn a_damaged_number_of_a_ring_hides_nothing_that_it_has() {
    // The number is above all that the ring has, and below all.
    for number in [9_u64, 1] {
        let place = Place::new(&format!("number-{number}"));
        let writer = later(&place, 0);
        let (mut producer, consumer) = writer.create_rings(1, 64).unwrap().remove(0);
        for sequence in 3..6 {
            let event = mapping(sequence, EventKind::MappingCreated, 1_000 + sequence as u16, at(sequence));
            producer.try_push(event.into()).unwrap();
        }
        producer.mark(at(60).as_micros());
        drop((writer, producer, consumer));
        let path = place.rings().remove(0);
        let mut bytes = fs::read(&path).unwrap();
        bytes[1_024 + 8..1_024 + 16].copy_from_slice(&number.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        drop(later(&place, 3_600));
        let stat = Store::open(&place.store()).unwrap().stat().unwrap();
        assert_eq!((stat.records, stat.lost), (3, 2), "{number}");
        assert_eq!(place.faults(), Vec::<String>::new(), "{number}");
    }
}

#[test]
fn what_a_worker_lost_before_a_kill_is_a_gap() {
    let gap = |cause: Cause| Event { amount: 3, sequence: 5, ..Event::new(EventKind::Gap, at(9)) }.because(cause);
    let created = |port: u16, second| mapping(u64::from(port) - 999, EventKind::MappingCreated, port, at(second));
    for (number, last) in [gap(Cause::None), gap(Cause::NoAllocation), created(1_006, 9)].into_iter().enumerate() {
        let place = Place::new(&format!("unreported-{number}"));
        let mut writer = later(&place, 0);
        let (mut producer, consumer) = writer.create_rings(1, 4).unwrap().remove(0);
        for port in 1_000..1_004 {
            producer.try_push(created(port, 5).into()).unwrap();
        }
        producer.mark(at(6).as_micros());
        writer.note_clock(moment(60, 0));
        // There is no room for three more, nor for the record that says so.
        producer.stage(created(1_004, 7).into()).unwrap_err();
        producer.stage(last.into()).unwrap_err();
        drop((writer, producer, consumer));
        let writer = later(&place, 3_600);
        let said = writer.damage().join("\n");
        let (is_minor, notices) = (number == 1, writer.notices().join("\n"));
        assert_eq!(said.contains("lost its last 3 records"), !is_minor, "{said}");
        assert_eq!(notices.contains("lost 3 records at its end"), is_minor, "{notices}");
        assert!(!writer.is_last_end_lost());
        drop(writer);
        let store = Store::open(&place.store()).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!((stat.records, stat.gaps, stat.lost, stat.cuts), (4, 1, 3, 0), "{number}");
        assert_eq!(place.faults(), Vec::<String>::new(), "{number}");
        for (port, second) in [(1_000, 6), (1_000, 8), (1_005, 8), (1_005, 9)] {
            let found = store.look_up(&question(port, second)).unwrap();
            assert!(second == 6 || !found.is_complete, "{number} {port}: {found:?}");
            assert!(second == 6 || found.holders.iter().all(|holder| !holder.is_certain), "{number}: {found:?}");
        }
    }
}
