//! Every structure against a naive model: what it finds, what it refuses, and the whole workload.

use std::collections::HashMap;
use std::collections::HashSet;

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::bst::Bst;
use super::bucket2::Bucket2;
use super::bucket3::Bucket3;
use super::chain::Chain;
use super::chain_tree::ChainTree;
use super::hashbrown::Hashbrown;
use super::linear::Linear;
use super::natrix::Natrix;
use super::rbtree::RbTree;
use super::structure::BURST;
use super::structure::EXTERNAL;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Nat;
use super::structure::WithArray;
use super::workload::Endpoint;
use super::workload::Flows;
use super::workload::Packet;
use super::*;

/// `count` keys of which many come again, and many fall into the same cell.
fn keys(count: usize) -> Vec<Key> {
    let mut random = SmallRng::seed_from_u64(11);
    (0..count).map(|_| 1 + random.random_range(0..count as u64 / 4) * random.random_range(1..=64)).collect()
}

fn each_key_keeps_the_number_it_was_entered_with<L: Lookup>(load: u32) {
    let keys = keys(4_000);
    let distinct = keys.iter().collect::<HashSet<_>>().len() as u32;
    let mut lookup = L::new(Size::with_load(distinct, load)).unwrap();
    let mut model: HashMap<Key, u32> = HashMap::new();
    for (key, new) in keys.into_iter().zip(0..) {
        let number = *model.entry(key).or_insert(new);
        assert_eq!(lookup.find_or_insert(key, new), Ok(number), "key {key}");
    }
    // Full to the last flow: what is there is found, what is not is refused.
    for (key, number) in &model {
        assert_eq!(lookup.find_or_insert(*key, u32::MAX), Ok(*number));
    }
    assert_eq!(model.len() as u32, distinct);
    assert!(lookup.bytes() > 0);
}

fn it_refuses_what_it_has_no_room_for<L: Lookup>() {
    // In cells of their own the paper's hash tables take more than they promise; in one cell they
    // cannot.
    let mut lookup = L::new(Size { sessions: 6, cells: 1 }).unwrap();
    let taken = (1..=100).take_while(|key| lookup.find_or_insert(*key, *key as u32) == Ok(*key as u32)).count();
    assert!((6..=12).contains(&taken), "{taken}");
    let next = taken as Key + 1;
    assert_eq!(lookup.find_or_insert(next, 0), Err(Full));
    for key in 1..next {
        assert_eq!(lookup.find_or_insert(key, 0), Ok(key as u32), "it keeps what it has");
    }
}

/// Sends the flows out twice and has them answered, in bursts of all lengths, and compares with a
/// map.
fn packets_find_their_flows_both_ways<N: Nat>(load: u32) {
    const COUNT: usize = 5_000;
    // The last thousand flows are known ones.
    let flows: Vec<_> = Flows::new(3).take(COUNT - 1_000).collect();
    let flows: Vec<_> = flows.iter().chain(&flows[..1_000]).copied().collect();
    let mut nat = N::new(Size::with_load(COUNT as u32, load)).unwrap();
    let mut external_of: HashMap<Endpoint, Endpoint> = HashMap::new();
    let mut internal_of: HashMap<Endpoint, Endpoint> = HashMap::new();
    let mut packets: Vec<Packet> = flows.iter().map(|(node, server)| Packet::new(*node, *server)).collect();
    let mut rest = packets.as_mut_slice();
    for length in (1..=BURST).cycle() {
        let (burst, after) = rest.split_at_mut(length.min(rest.len()));
        nat.leave(burst, 1).unwrap();
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    for (packet, (node, server)) in packets.iter().zip(&flows) {
        let external = packet.source();
        assert!(packet.is_valid() && packet.destination() == *server && external.0 >= EXTERNAL);
        assert_eq!(*external_of.entry(*node).or_insert(external), external, "a flow keeps its external endpoint");
        assert_eq!(*internal_of.entry(external).or_insert(*node), *node, "no two flows have the same one");
    }
    for (packet, (node, server)) in packets.iter_mut().zip(&flows) {
        packet.answer();
        nat.enter(core::slice::from_mut(packet), 2);
        assert!(packet.is_valid());
        assert_eq!((packet.source(), packet.destination()), (*server, *node), "the answer finds its flow");
    }
    // What nobody asked for is not translated.
    let free =
        (0..=u16::MAX).map(|port| (EXTERNAL, port)).find(|external| !internal_of.contains_key(external)).unwrap();
    let mut stray =
        [Packet::new((1, 1), free), Packet::new((1, 1), (EXTERNAL - 1, 5)), Packet::new((1, 1), (u32::MAX, 5))];
    let before = stray;
    nat.enter(&mut stray, 3);
    assert_eq!(stray, before);
    assert!(nat.bytes() > COUNT * 16);
}

macro_rules! study {
    ($($module:ident: $structure:ty,)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn each_key_keeps_the_number_it_was_entered_with() {
                for load in [1, 5, 4_096] {
                    super::each_key_keeps_the_number_it_was_entered_with::<$structure>(load);
                }
            }

            #[test]
            fn it_refuses_what_it_has_no_room_for() {
                super::it_refuses_what_it_has_no_room_for::<$structure>();
            }

            #[test]
            fn packets_find_their_flows_both_ways() {
                for load in [1, 5, 4_096] {
                    super::packets_find_their_flows_both_ways::<WithArray<$structure>>(load);
                }
            }
        }
    )*};
}

study! {
    linear: Linear,
    bst: Bst,
    rbtree: RbTree,
    chain: Chain,
    chain_tree: ChainTree,
    bucket2: Bucket2,
    bucket3: Bucket3,
    hashbrown: Hashbrown,
}

#[test]
fn packets_find_their_flows_both_ways_in_natrix() {
    packets_find_their_flows_both_ways::<Natrix>(1);
}

#[cfg(feature = "dpdk")]
#[test]
fn packets_find_their_flows_both_ways_in_dpdk_hash() {
    packet_io::dpdk::hash::start_without_ports(64 << 20).unwrap();
    packets_find_their_flows_both_ways::<dpdk_hash::DpdkTable>(1);
}

#[test]
fn packets_without_a_table_come_back_in_order() {
    let rows = run(&options(&[Kind::None], &[1_000]), |_| (), |_| ()).unwrap();
    assert_eq!(rows.len(), 1, "the workload was checked: each answer came to its node");
    let mut nat = none::NoTable::new(Size::with_load(1, 1)).unwrap();
    let mut packets = [Packet::new((1, 1), (2, 2)), Packet::new((3, 3), (4, 4))];
    assert_eq!(nat.leave(&mut packets, 1), Err(Full));
}

fn options(structures: &[Kind], sessions: &[u32]) -> Options {
    Options { structures: structures.to_vec(), sessions: sessions.to_vec(), threads: 1, load: 1, seconds: 0.0, seed: 1 }
}

#[test]
fn sizes_too_large_for_a_slow_structure_are_cut_down_and_said() {
    let limit = Kind::Linear.sessions_max();
    let mut notices = Vec::new();
    let mut size = |kind, asked| size_of(kind, asked, &mut |notice| notices.push(notice.to_string()));
    assert_eq!((size(Kind::Linear, limit), size(Kind::Natrix, 10_000_000)), (limit, 10_000_000));
    assert_eq!(size(Kind::Linear, 10_000_000), limit);
    assert_eq!(
        notices,
        ["linear: measured at 100000 sessions instead of 10000000; its time grows with the square of them"]
    );
}

#[test]
fn senseless_options_are_refused_with_what_to_do() {
    let none = |_: &Row| ();
    let refused = |options: &Options| run(options, |_| (), none).unwrap_err().to_string();
    let mut few = options(&[Kind::Bst], &[63]);
    assert_eq!(
        refused(&few),
        "bench tables: --sessions is out of range (63); give 64 for each thread to 67108863 in all"
    );
    few.sessions = vec![64];
    few.threads = 0;
    assert_eq!(refused(&few), "bench tables: --threads is out of range (0); give 1 up to the number of CPUs");
    few.threads = 1;
    few.load = 0;
    assert_eq!(refused(&few), "bench tables: --load is out of range (0); give 1 to 1024");
    few.load = 1;
    few.seconds = f64::NAN;
    assert_eq!(refused(&few), "bench tables: --seconds is out of range (NaN); give 0 to 600");
}

#[test]
fn names_of_structures_are_read_as_they_are_written() {
    for kind in Kind::STUDY.into_iter().chain([Kind::None]) {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
    }
    assert_eq!("bucket4".parse::<Kind>(), Err(UnknownKind("bucket4".to_owned())));
}

#[test]
fn csv_has_a_line_of_names_and_one_for_each_row() {
    let rows = run(&options(&[Kind::Bst, Kind::Natrix], &[64]), |_| (), |_| ()).unwrap();
    let mut csv = Vec::new();
    write_csv(&rows, &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("structure,sessions,threads,tsc_cycles_per_packet,mpps,bytes_per_session"));
    assert!(lines[1].starts_with("bst,64,1,") && lines[2].starts_with("natrix,64,1,"));
    assert!(lines.iter().all(|line| line.split(',').count() == 8));
}
