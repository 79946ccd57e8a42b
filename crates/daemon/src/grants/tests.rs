use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use nat::Protocol;
use nat::grant::Kind;
use nat::grant::Origin;
use nat::grant::Remote;
use nat::grant::Remotes;
use nat::grant::Requester;
use nat::types::Endpoint;
use nat::types::RealmId;

use super::*;

fn delta(port: u16) -> GrantDelta {
    let mut remotes = Remotes::one(Remote::new(Ipv4Addr::new(198, 51, 100, 0), 24, 80));
    remotes.add(Remote::new(Ipv4Addr::new(192, 0, 2, 9), 32, 0));
    let internal = Endpoint::new(Ipv4Addr::new(100, 64, 0, 10), port);
    GrantDelta {
        change: Change::Lives,
        realm: RealmId(3),
        protocol: Protocol::Tcp,
        internal,
        host: None,
        external: Endpoint::new(Ipv4Addr::new(203, 0, 113, 1), 40_000 + port),
        origin: Origin::Pcp,
        kind: Kind::Map,
        remotes,
        requester: Requester::new(*b"twelve bytes", internal).in_set(port, 4),
        left: Duration::from_secs(600),
        epoch_s: 1_000,
    }
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("natrix-grants-{}-{name}", std::process::id()))
}

fn kept(path: &Path) -> (Kept, Vec<GrantDelta>) {
    let kept = read(path).expect("a file");
    let grants = kept.grants();
    (kept, grants)
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let stored =
        Stored { delta: GrantDelta { left: Duration::ZERO, epoch_s: 0, ..delta(7) }, expires_ms: 5, epoch_began_s: 6 };
    let mut record = encode(&stored);
    assert_eq!(decode(&record), Some(stored));
    record[30] ^= 1;
    assert_eq!(decode(&record), None);
}

/// Of a host of NAT64, and of one behind a softwire: their ports and IPv4 addresses are equal.
fn of_hosts() -> [GrantDelta; 2] {
    [None, Some(Ipv4Addr::new(192, 168, 1, 2))].map(|inner| {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0x100, 0, 0, 0, 6);
        let host = DeltaHost { address, inner, towards: Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0) };
        let nobody = Endpoint::new(Ipv4Addr::UNSPECIFIED, 7);
        GrantDelta { internal: nobody, host: Some(host), requester: Requester::new([7; 12], nobody), ..delta(7) }
    })
}

#[test]
fn grants_of_ipv6_hosts_are_kept_by_their_addresses() {
    let path = path("hosts");
    let mut book = Book::begin(path.clone(), 1, HashMap::new()).expect("a file");
    book.append(&of_hosts()).expect("room");
    book.append(&[delta(7)]).expect("room");
    let at_once = |found: &GrantDelta| GrantDelta { left: delta(7).left, epoch_s: 1_000, ..*found };
    let found: Vec<GrantDelta> = kept(&path).1.iter().map(at_once).collect();
    assert_eq!(found.len(), 3);
    assert!(of_hosts().iter().chain([&delta(7)]).all(|grant| found.contains(grant)), "{found:?}");
    book.append(&[GrantDelta { change: Change::Ended, ..of_hosts()[0] }]).expect("room");
    let found: Vec<GrantDelta> = kept(&path).1.iter().map(at_once).collect();
    assert_eq!(found.len(), 2);
    assert!(!found.contains(&of_hosts()[0]));
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn a_file_of_the_format_without_hosts_is_read() {
    let path = path("before");
    let mut bytes = header(unix_ms() / 1_000);
    bytes[8..12].copy_from_slice(&VERSION_IPV4.to_le_bytes());
    let check = crc32fast::hash(&bytes[..20]);
    bytes[20..].copy_from_slice(&check.to_le_bytes());
    let stored = Stored::at(&delta(7), unix_ms());
    let mut record = [0; RECORD_IPV4];
    let grant = GrantRecord::from(&delta(7)).to_bytes();
    let (known, rest) = record.split_at_mut(GrantRecord::BYTES_WITHOUT_HOST);
    known.copy_from_slice(&grant[..known.len()]);
    rest[..8].copy_from_slice(&stored.expires_ms.to_ne_bytes());
    rest[8..16].copy_from_slice(&stored.epoch_began_s.to_ne_bytes());
    let check = crc32fast::hash(&record[..RECORD_IPV4 - 4]);
    record[RECORD_IPV4 - 4..].copy_from_slice(&check.to_le_bytes());
    fs::write(&path, [&bytes[..], &record, &CLOSED].concat()).expect("room");
    let (found, grants) = kept(&path);
    assert!(found.epoch_s().is_some() && !found.is_torn);
    assert_eq!(
        grants.iter().map(|grant| (grant.internal, grant.host)).collect::<Vec<_>>(),
        [(delta(7).internal, None)]
    );
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn what_was_appended_is_there_after_a_crash() {
    let path = path("crash");
    let mut book = Book::begin(path.clone(), unix_ms() / 1_000 - 5_000, HashMap::new()).expect("a file");
    book.append(&[delta(1), delta(2), delta(3)]).expect("room");
    book.append(&[GrantDelta { change: Change::Ended, ..delta(2) }]).expect("room");
    // Nothing is closed, and the rings of the killed process are there.
    let rings = make_rings(&path, 1, Clock::start(), &Log::silent());
    let (found, grants) = kept(&path);
    assert_eq!(grants.iter().map(|grant| grant.internal.port).collect::<Vec<_>>(), [1, 3]);
    let first = grants[0];
    assert!(first.left > Duration::from_secs(598) && first.epoch_s.abs_diff(1_000) <= 1);
    assert_eq!(GrantDelta { left: delta(1).left, epoch_s: 1_000, ..first }, delta(1));
    assert!(found.epoch_s().expect("it goes on").abs_diff(5_000) <= 1 && !found.is_torn);
    drop(rings);
    remove_ring(&path, 0);
    let (found, grants) = kept(&path);
    assert_eq!((found.epoch_s(), grants.len()), (None, 2), "after a power failure nobody knows what is missing");
    assert!(found.is_incomplete && grants.iter().all(|grant| grant.epoch_s <= 1));
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn a_torn_end_costs_only_the_last_record() {
    let path = path("torn");
    let mut book = Book::begin(path.clone(), 1, HashMap::new()).expect("a file");
    book.append(&[delta(1), delta(2)]).expect("room");
    let bytes = fs::read(&path).expect("a file");
    fs::write(&path, &bytes[..bytes.len() - 3]).expect("room");
    let (found, grants) = kept(&path);
    assert!(found.is_torn && found.damage.is_none() && grants.len() == 1);
    assert_eq!(found.epoch_s(), None, "one is lost");
    // After a kill, the ring has what was being written; nothing makes up for a damaged record.
    let rings = make_rings(&path, 1, Clock::start(), &Log::silent());
    assert!(read(&path).expect("a file").epoch_s().is_some());
    let damaged: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == HEADER + 9)).collect();
    fs::write(&path, damaged).expect("room");
    let (found, grants) = kept(&path);
    assert_eq!((found.epoch_s(), grants.len(), found.is_torn), (None, 0, false));
    let damage = found.damage.expect("what is wrong");
    assert!(damage.starts_with("is damaged at byte 24 of 328; 2 changes from there on are lost"), "{damage}");
    drop(rings);
    remove_ring(&path, 0);
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn no_grants_are_kept_from_another_file_or_a_missing_one() {
    let path = path("other");
    let none = read(&path).expect("none");
    assert!(none.epoch_s().is_none() && none.damage.is_none());
    fs::write(&path, b"something else altogether, and longer than a header").expect("room");
    let (found, grants) = kept(&path);
    assert!(found.epoch_s().is_none() && grants.is_empty());
    let damage = found.damage.expect("what is wrong");
    assert_eq!(damage, "is no file of grants of this version (51 bytes); none is restored");
    fs::remove_file(&path).expect("it is there");
}

#[test]
fn a_damaged_file_gets_a_name_that_no_file_has() {
    let path = path("aside");
    let place = |number: u32| PathBuf::from(format!("{}.damaged-{number}", path.display()));
    for number in 1..=3 {
        fs::write(&path, format!("damage {number}")).expect("room");
        assert_eq!(put_aside(&path).expect("it is renamed"), place(number));
        fs::remove_file(&path).expect("it keeps its name until a new one is there");
    }
    for number in 1..=3 {
        assert_eq!(fs::read_to_string(place(number)).expect("it is kept"), format!("damage {number}"));
        fs::remove_file(place(number)).expect("it is there");
    }
    put_aside(&path).unwrap_err();
}

#[test]
fn a_file_of_outdated_records_is_written_anew() {
    let path = path("anew");
    let mut book = Book::begin(path.clone(), 1, HashMap::new()).expect("a file");
    for _ in 0..=OUTDATED_MAX / 100 + 1 {
        book.append(&[delta(1); 100]).expect("room");
    }
    book.append(&[delta(2)]).expect("room");
    assert!(fs::metadata(&path).expect("a file").len() < 200 * RECORD as u64);
    assert_eq!(kept(&path).1.len(), 2);
    fs::remove_file(&path).expect("it is there");
}

/// A change that no thread has taken out of its ring.
#[test]
fn what_a_killed_process_left_in_its_rings_is_read() {
    let path = path("rings");
    Book::begin(path.clone(), unix_ms() / 1_000, HashMap::new()).expect("a file").append(&[delta(1)]).expect("room");
    let clock = Clock::start();
    let (mut producers, consumers) = make_rings(&path, 2, clock, &Log::silent());
    for (worker, change) in [
        (0, GrantDelta { change: Change::Ended, ..delta(1) }),
        (1, delta(2)),
        (0, GrantDelta { left: Duration::ZERO, ..delta(3) }),
    ] {
        producers[worker].try_push(GrantRecord::from(&change)).expect("room");
        producers[worker].mark(clock.now().as_micros());
    }
    let (_, grants) = kept(&path);
    assert_eq!(grants.len(), 1);
    assert_eq!(GrantDelta { left: delta(2).left, epoch_s: 1_000, ..grants[0] }, delta(2));
    assert!(grants[0].left.as_micros().abs_diff(delta(2).left.as_micros()) < 5_000_000, "{:?}", grants[0].left);
    drop((producers, consumers));
    // The next start takes them into the file, and they are gone.
    let log = Log::silent();
    let (keeper, _) = GrantKeeper::start(&path, read(&path).expect("a file"), (1, clock), log).expect("it starts");
    drop(keeper);
    assert!(!ring_path(&path, 0).exists() && !ring_path(&path, 1).exists());
    let (found, grants) = kept(&path);
    assert_eq!(grants.len(), 1);
    assert!(found.epoch_s().is_some() && !found.is_incomplete, "a clean stop");
    fs::remove_file(&path).expect("it is there");
}

/// Written by an earlier version.
#[test]
fn what_a_gateway_expected_is_not_restored() {
    let path = path("gateway");
    let mut book = Book::begin(path.clone(), 1, HashMap::new()).expect("a file");
    book.append(&[GrantDelta { origin: Origin::Alg(alg::AlgId(0)), kind: Kind::Once, ..delta(1) }, delta(2)])
        .expect("room");
    assert_eq!(kept(&path).1.iter().map(|grant| grant.internal.port).collect::<Vec<_>>(), [2]);
    fs::remove_file(&path).expect("it is there");
}
