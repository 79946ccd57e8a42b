use super::*;
use crate::external::ports::AddressSpec;

const ADDRESS: AddressIndex = AddressIndex(0);
const HOME: WorkerId = WorkerId(3);

fn shared() -> PortTable {
    let table = PortTable::new(&[AddressSpec::default()]).unwrap();
    assert!(table.claim(ADDRESS, Protocol::Tcp, 2_000));
    table.publish(ADDRESS, Protocol::Tcp, 2_000, HOME, MappingIndex::SHARED);
    table
}

#[test]
fn a_shared_port_counts_the_workers_with_flows() {
    let table = shared();
    assert_eq!(table.join(ADDRESS, Protocol::Tcp, 2_000), Some(true));
    assert_eq!(table.join(ADDRESS, Protocol::Tcp, 2_000), Some(false));
    assert_eq!(table.users(ADDRESS, Protocol::Tcp, 2_000), 2);
    assert_eq!(table.lookup(ADDRESS, Protocol::Tcp, 2_000), Some((HOME, MappingIndex::SHARED)));
    assert_eq!(table.unshare(ADDRESS, Protocol::Tcp, 2_000, HOME), Unshared::InUse);
    table.leave(ADDRESS, Protocol::Tcp, 2_000, HOME);
    assert_eq!(table.unshare(ADDRESS, Protocol::Tcp, 2_000, HOME), Unshared::InUse);
    table.leave(ADDRESS, Protocol::Tcp, 2_000, WorkerId(1));
    assert_eq!(table.lookup(ADDRESS, Protocol::Tcp, 2_000), Some((HOME, MappingIndex::SHARED)));
    assert_eq!(table.unshare(ADDRESS, Protocol::Tcp, 2_000, HOME), Unshared::WasInUse, "once");
    assert_eq!(table.unshare(ADDRESS, Protocol::Tcp, 2_000, HOME), Unshared::Vacant);
    assert_eq!(table.lookup(ADDRESS, Protocol::Tcp, 2_000), None);
    assert_eq!(table.join(ADDRESS, Protocol::Tcp, 2_000), None, "it is no shared port any more");
}

#[test]
fn all_workers_at_once_fit_an_entry() {
    let table = shared();
    for n in 0..WorkerId::COUNT_MAX {
        assert_eq!(table.join(ADDRESS, Protocol::Tcp, 2_000), Some(n == 0));
    }
    for n in 0..WorkerId::COUNT_MAX {
        assert_eq!(table.lookup(ADDRESS, Protocol::Tcp, 2_000), Some((HOME, MappingIndex::SHARED)));
        table.leave(ADDRESS, Protocol::Tcp, 2_000, WorkerId(n as u8));
    }
    assert_eq!(table.users(ADDRESS, Protocol::Tcp, 2_000), 0);
}

#[test]
fn the_port_of_a_mapping_cannot_be_joined() {
    let table = shared();
    table.publish(ADDRESS, Protocol::Tcp, 2_000, HOME, MappingIndex(MappingIndex::COUNT_MAX as u32));
    assert_eq!(table.join(ADDRESS, Protocol::Tcp, 2_000), None);
    assert_eq!(table.users(ADDRESS, Protocol::Tcp, 2_000), 0);
}

/// The port stays shared while a worker has joined, whatever the home tries.
#[test]
fn a_port_stays_shared_while_a_worker_uses_it() {
    let table = shared();
    let is_over = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (table, is_over) = (&table, &is_over);
            scope.spawn(move || {
                for _ in 0..100_000 {
                    if table.join(ADDRESS, Protocol::Tcp, 2_000).is_some() {
                        assert!(!is_over.load(Ordering::SeqCst), "joined what is vacant");
                        let owner = table.lookup(ADDRESS, Protocol::Tcp, 2_000);
                        assert_eq!(owner, Some((HOME, MappingIndex::SHARED)));
                        table.leave(ADDRESS, Protocol::Tcp, 2_000, WorkerId(worker));
                    }
                }
            });
        }
        let (table, is_over) = (&table, &is_over);
        scope.spawn(move || {
            while table.unshare(ADDRESS, Protocol::Tcp, 2_000, HOME) != Unshared::Vacant {
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
        });
    });
    assert_eq!(table.lookup(ADDRESS, Protocol::Tcp, 2_000), None);
}
