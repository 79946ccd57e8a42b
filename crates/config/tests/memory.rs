//! The engine takes as much memory as is reported in advance.

use std::sync::Arc;

use mem::Stock;
use nat::Shard;
use nat::Shared;
use nat::types::WorkerId;

/// Difference that a page of each table makes up for.
const SLACK_BYTES: u64 = 4 << 20;

#[test]
fn the_reported_memory_is_what_the_engine_allocates() {
    let text = include_str!("every_key.toml").replace("mappings = 10_000", "mappings = 2000000");
    let text = text
        .replace("extra_sessions = 1001", "extra_sessions = 1000000")
        .replace("subscribers = 1002", "subscribers = 500000");
    let config = config::parse(&text, "natrix.toml").expect("a valid file");
    let needed = config.memory_needed();

    let shared = Arc::new(Shared::new(config.nat.clone(), config.workers.count).expect("memory"));
    // Entries of query identifiers get their pages when they are used.
    let identifiers = shared.address_count() as u64 * 65_536 * size_of::<u32>() as u64;
    let pools = shared.bytes() as u64 + identifiers;
    assert!(
        needed.pools_bytes.abs_diff(pools) < pools / 20 + SLACK_BYTES,
        "{} reported, {pools} taken",
        needed.pools_bytes
    );

    // The tables of fragments and SYNs, on the heap, are not in the sum of the shard.
    let heaps: u64 = nat::memory::shard_needs(&config.nat, config.workers.count)
        .into_iter()
        .filter(|need| matches!(need, mem::Need::Heap(_)))
        .map(mem::Need::bytes)
        .sum();
    let shards = (0..config.workers.count)
        .map(|worker| Shard::new(Arc::clone(&shared), WorkerId(worker as u8), [1, 2, 3, 4]).expect("memory"));
    let tables: u64 = shards.map(|shard| shard.bytes() as u64 + heaps).sum();
    assert!(
        needed.tables_bytes.abs_diff(tables) < tables / 20 + SLACK_BYTES,
        "{} reported, {tables} taken",
        needed.tables_bytes
    );
}

/// A reload may not have more control sessions than the memory of the machine, however small the
/// steps are in which they become more: memory comes only as they are used.
#[test]
fn control_sessions_must_fit_as_a_whole() {
    let with = |sessions: u32| {
        let text = include_str!("every_key.toml").replace("sessions = 5000", &format!("sessions = {sessions}"));
        config::parse(&text, "natrix.toml").expect("a valid file")
    };
    let (few, many) = (with(100_000), with(110_000));
    let whole = nat::memory::control_sessions_need(&many.nat).bytes() * many.workers.count as u64;
    let after = |before: &config::Config, bytes: u64| many.check_memory_after(before, || Stock::ordinary(bytes));
    let refused = after(&few, whole - 1).expect_err("it does not fit");
    assert_eq!((refused.needed_bytes, refused.available_bytes), (whole, whole - 1));
    assert!(after(&few, whole).is_ok());
    // As many as before, or fewer, need nothing more.
    assert!(after(&many, 0).is_ok() && few.check_memory_after(&many, || Stock::ordinary(0)).is_ok());
}

/// The sizes are in MiB, and the key that takes most of it is named.
#[test]
fn buffers_larger_than_the_machine_name_their_key() {
    let text = include_str!("every_key.toml");
    let machine = config::Machine { memory: Some(Stock::ordinary(4 << 30)), ..config::Machine::default() };
    let refused = |memory: &str| {
        let text = text.replace("memory = \"1 GiB\"", memory);
        let faults = config::parse_for(&text, "natrix.toml", &machine).expect_err("it does not fit");
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let faults = refused("memory = \"1 TiB\"");
    assert!(faults.len() == 1 && faults[0].contains(": dpdk.memory: needs "), "{faults:?}");
    assert!(faults[0].contains("packets 1048576 MiB) (4096 MiB available); lower dpdk.memory, or"), "{faults:?}");
}
