//! Claims about the readers of the store's files, for any bytes. Checksums, which random bytes
//! would never pass, are left out or added.

use super::builder::Builder;
use super::catalogue::Catalogue;
use super::catalogue::Entry;
use super::catalogue::Head;
use super::codec::Cursor;
use super::codec::put_bytes;
use super::columns::BLOCK_ROWS;
use super::columns::Decoder;
use super::columns::Encoder;
use super::generate::Generated;
use super::generate::Generator;
use super::journal::Frame;
use super::journal::FrameRead;
use super::journal::HEADER;
use super::row::End;
use super::row::Row;
use super::segment::Footer;

/// Rows of a block come back from a new block.
fn check_rows(rows: &mut [Row]) {
    rows.sort_unstable_by_key(Row::order);
    let (Ok(mut encoder), Ok(mut decoder)) = (Encoder::new(), Decoder::new()) else { return };
    for rows in rows.chunks(BLOCK_ROWS) {
        let (mut bytes, mut back) = (Vec::new(), Vec::new());
        encoder.encode(rows, &mut bytes);
        assert!(decoder.decode(&bytes, rows.len(), &mut back).is_some(), "an encoded block is not readable");
        let same = |one: &Row, other: &Row| {
            let is_open = one.until == End::Open;
            one.order() == other.order() && one.until == other.until && (is_open || one.end == other.end)
        };
        assert!(rows.iter().zip(&back).all(|(one, other)| same(one, other)), "a row changed in a block");
    }
}

/// A block of as many rows as the first two bytes say.
pub fn block(bytes: &[u8]) {
    let Some((count, content)) = bytes.split_first_chunk::<2>() else { return };
    let count = usize::from(u16::from_le_bytes(*count));
    let mut rows = Vec::new();
    let Ok(mut decoder) = Decoder::new() else { return };
    if decoder.decode(content, count, &mut rows).is_some() {
        assert_eq!(rows.len(), count);
        check_rows(&mut rows);
    }
    assert!(rows.len() <= BLOCK_ROWS, "a block has more rows than a block may have");
}

/// The sections of a frame, taken by a builder.
pub fn journal(bytes: &[u8]) {
    let mut whole = vec![0; HEADER];
    whole.extend_from_slice(bytes);
    let length = whole.len() as u32;
    whole[..4].copy_from_slice(&length.to_le_bytes());
    let crc = crc32fast::hash(&whole[8..]);
    whole[4..8].copy_from_slice(&crc.to_le_bytes());
    assert!(FrameRead::parse(bytes).is_none_or(|frame| frame.length <= bytes.len()));
    let Some(frame) = FrameRead::parse(&whole) else { return };
    let mut builder = Builder::new(1_000, None);
    let mut taken = 0;
    let is_whole = frame.events(|worker, event| {
        taken += u64::from(builder.apply(worker, event));
    });
    builder.cover(frame.covered_us);
    let mut window = builder.cut();
    let coverage = &window.coverage;
    let in_gaps = coverage.gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.count));
    let numbers = coverage
        .workers
        .iter()
        .fold(0_u64, |sum, (_, first, last)| sum.saturating_add(last.saturating_add(1).saturating_sub(*first)));
    // Every number is there once or in a gap; a gap's own record counts once more.
    let bound = taken.saturating_add(in_gaps);
    assert!(is_whole.is_none() || numbers <= bound, "{numbers} numbers, {taken} taken, {in_gaps} lost");
    assert!(window.rows.iter().all(|row| row.until == End::Open || row.end > row.start), "an interval without time");
    if window.rows.iter().all(|row| row.end < 1 << 53 && row.start < 1 << 53) {
        let mut rows = core::mem::take(&mut window.rows);
        rows.retain(|row| row.first_port <= row.last_port);
        check_rows(&mut rows);
    }
}

/// A footer without its checksum.
pub fn footer(bytes: &[u8]) {
    let _ = Footer::parse(bytes);
    let mut whole = bytes.to_vec();
    whole.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    let Some(footer) = Footer::parse(&whole) else { return };
    let mut back = Vec::new();
    footer.put(&mut back);
    assert_eq!(Footer::parse(&back), Some(footer), "a footer changed");
}

/// Entries of a catalogue, each with its length, without the chain.
pub fn catalogue(bytes: &[u8]) {
    let mut input = Cursor::new(bytes);
    let mut catalogue = Catalogue::default();
    while let Some(entry) = input.bytes().and_then(Entry::parse) {
        let mut content = Vec::new();
        entry.put(&mut content);
        assert_eq!(Entry::parse(&content).as_ref(), Some(&entry), "an entry changed");
        if catalogue.add(entry, [0; 32]).is_none() {
            break;
        }
        let segments: Vec<_> = catalogue.segments.values().collect();
        assert!(segments.windows(2).all(|two| two[0].frames.1 <= two[1].frames.0), "segments overlap");
        assert!(segments.iter().all(|segment| (segment.boot as usize) < catalogue.boots.len()), "no such boot");
    }
}

/// A signed head.
pub fn head(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let Some((head, _)) = Head::parse(text) else { return };
    assert!((4..=5).contains(&head.signed_text().lines().count()), "a head has four lines, and one of lookups");
}

/// Seeds: the name of the target's function, and its input.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut events = Vec::new();
    Generator::new(Generated::Mappings(60), 1).fill(40, &mut events);
    Generator::new(Generated::Leases(60), 1).fill(20, &mut events);
    let mut builder = Builder::new(0, None);
    let mut frame = Frame::default();
    for (place, event) in events.iter().enumerate() {
        frame.push((place % 2) as u8, event);
        builder.apply(0, event);
    }
    let mut whole = Vec::new();
    frame.seal(&[0; 32], 1, 0, 1_000, &mut whole);
    let mut rows = builder.cut().rows;
    rows.sort_unstable_by_key(Row::order);
    let mut block = (rows.len() as u16).to_le_bytes().to_vec();
    if let Ok(mut encoder) = Encoder::new() {
        encoder.encode(&rows, &mut block);
    }
    let mut footer = Vec::new();
    Footer { others: vec![(16, 100, 200)], frames: (116, 2), ..Footer::default() }.put(&mut footer);
    footer.truncate(footer.len() - 4);
    let mut catalogue = Vec::new();
    for entry in Entry::examples() {
        let mut content = Vec::new();
        entry.put(&mut content);
        put_bytes(&mut catalogue, &content);
    }
    let hash = "00".repeat(32);
    let head = format!(
        "natrix log head\nstore {}\nentries 3 {hash}\nframes 2 {hash}\nkey {hash}\nsignature {hash}{hash}\n",
        "00".repeat(16)
    );
    vec![
        ("block", block),
        ("journal", whole.split_off(HEADER)),
        ("footer", footer),
        ("catalogue", catalogue),
        ("head", head.into_bytes()),
    ]
}
