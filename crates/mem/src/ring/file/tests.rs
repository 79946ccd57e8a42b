use std::fs;
use std::path::PathBuf;

use super::*;

struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Path {
        let path = std::env::temp_dir().join(format!("natrix-ring-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        Path(path)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const TAG_OF_TEST: [u8; TAG_BYTES] = [7; TAG_BYTES];

#[test]
fn what_was_not_released_is_in_the_file_and_staged_items_too() {
    let path = Path::new("left");
    let (mut producer, mut consumer) = create::<u64>(&path.0, 8, &TAG_OF_TEST).unwrap();
    assert!(create::<u64>(&path.0, 8, &TAG_OF_TEST).is_err(), "the file is there");
    for round in 0..5_u64 {
        for item in 0..6 {
            producer.try_push(round * 10 + item).unwrap();
        }
        producer.mark(round);
        let mut taken = Vec::new();
        assert_eq!(consumer.hold_burst(4, |item| taken.push(item)), 4);
        assert_eq!((consumer.held(), consumer.len(), consumer.mark()), (4, 2, round));
        let left = read::<u64>(&path.0).unwrap();
        assert_eq!(left.items, (0..6).map(|item| round * 10 + item).collect::<Vec<_>>());
        assert_eq!((left.mark, left.tag), (round, TAG_OF_TEST));
        assert_eq!(producer.room(8), 2, "held items take room");
        consumer.release_at(7 + round);
        let left = read::<u64>(&path.0).unwrap();
        assert_eq!((left.items, left.note), (vec![round * 10 + 4, round * 10 + 5], Some(7 + round)));
        consumer.release_at(99);
        assert_eq!(read::<u64>(&path.0).unwrap().note, Some(7 + round), "nothing new was released");
        consumer.pop_burst(8, |_| {});
        assert_eq!(producer.room(8), 8);
    }
    producer.stage(100).unwrap();
    producer.stage(101).unwrap();
    assert_eq!(consumer.try_pop(), None);
    assert_eq!(read::<u64>(&path.0).unwrap().items, [100, 101]);
    producer.unstage();
    assert_eq!(read::<u64>(&path.0).unwrap().items, [100]);
    drop((producer, consumer));
    assert_eq!(read::<u64>(&path.0).unwrap().items, [100]);
}

#[test]
fn the_last_item_without_room_is_in_the_file_until_one_has() {
    let path = Path::new("refused");
    let (mut producer, mut consumer) = create::<u64>(&path.0, 4, &TAG_OF_TEST).unwrap();
    let refused = || read::<u64>(&path.0).unwrap().refused;
    for item in 0..4 {
        producer.try_push(item).unwrap();
    }
    assert_eq!(refused(), None);
    for item in 4..7 {
        assert_eq!(producer.stage(item), Err(item));
        assert_eq!(refused(), Some(item));
    }
    consumer.pop_burst(1, |_| {});
    assert_eq!(refused(), Some(6), "room alone closes no gap");
    producer.stage(7).unwrap();
    assert_eq!(refused(), None);
    assert_eq!(producer.stage(8), Err(8));
    drop((producer, consumer));
    assert_eq!(refused(), Some(8));
}

#[test]
fn a_file_of_the_first_format_has_its_items_and_no_note() {
    let path = Path::new("format");
    let (mut producer, mut consumer) = create::<u64>(&path.0, 4, &TAG_OF_TEST).unwrap();
    for item in [5, 6] {
        producer.try_push(item).unwrap();
    }
    consumer.hold_burst(1, |_| {});
    consumer.release_at(6);
    let mut bytes = fs::read(&path.0).unwrap();
    assert_eq!(parse::<u64>(&bytes).unwrap().note, Some(6));
    for (format, expected) in [(0, None), (1, Some(None)), (FORMAT as u8 + 1, None)] {
        bytes[8] = format;
        let left = parse::<u64>(&bytes);
        assert_eq!(left.as_ref().map(|left| left.note), expected, "format {format}");
        assert!(left.is_none_or(|left| left.items == [6]));
    }
}

#[test]
fn a_damaged_file_is_an_error_or_a_ring() {
    let path = Path::new("damaged");
    let (mut producer, _consumer) = create::<u64>(&path.0, 4, &TAG_OF_TEST).unwrap();
    producer.try_push(5).unwrap();
    let whole = fs::read(&path.0).unwrap();
    assert!(parse::<u64>(&whole).is_some());
    assert!(parse::<u32>(&whole).is_none());
    for place in 0..whole.len() {
        assert!(parse::<u64>(&whole[..place]).is_none());
        for bit in [1, 0x80] {
            let mut changed = whole.clone();
            changed[place] ^= bit;
            // Never more than the ring can hold.
            assert!(parse::<u64>(&changed).is_none_or(|left| left.items.len() <= 4));
        }
    }
    for place in [0, 8, 12, 16, POSITIONS, POSITIONS + offset_of!(Positions, tail)] {
        let mut changed = whole.clone();
        changed[place] ^= 0x80;
        assert!(parse::<u64>(&changed).is_none(), "byte {place}");
    }
    let _ = fs::remove_file(&path.0);
    std::os::unix::fs::symlink("/proc/version", &path.0).unwrap();
    assert!(read::<u64>(&path.0).is_err(), "a link is not followed");
    assert!(create::<u64>(&path.0, 4, &TAG_OF_TEST).is_err());
}
