use std::collections::HashMap;

use super::*;

const FIRST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
const REMOTE: (u32, u16) = (0xc612_0001, 53);
const NOW: Instant = Instant::from_micros(1_000_000);

fn tables(mappings_max: u32) -> Tables {
    Tables::new(mappings_max, FIRST, [1, 2, 3, 4], Duration::from_secs(300)).unwrap()
}

#[test]
fn each_internal_endpoint_has_one_external_endpoint() {
    let mut tables = tables(100_000);
    let mut random = Random::new([5, 6, 7, 8]);
    let mut model = HashMap::new();
    for _ in 0..100_000 {
        let number = random.next_u64();
        let internal = (0x0a00_0000 | (number as u32 & 0xff), (number >> 32) as u16 % 500);
        let mut look = tables.look_ahead(internal.0, internal.1);
        tables.look_closer(&mut look);
        tables.look_for_port(&mut look, internal.0);
        let external = tables.find_or_map(NOW, internal.0, internal.1, REMOTE, &look).unwrap();
        assert_eq!(*model.entry(internal).or_insert(external), external);
    }
    assert_eq!(tables.len(), model.len());
    for (internal, external) in model {
        let place = tables.look_ahead_inbound(external.0, external.1).unwrap();
        let index = tables.look_closer_inbound(place).unwrap();
        assert_eq!(tables.internal(NOW, index), Some(internal));
        assert_eq!(tables.internal(NOW + Duration::from_secs(301), index), None, "it has run out");
    }
}

#[test]
fn a_full_table_refuses_and_keeps_what_it_has() {
    let mut tables = tables(3);
    let mut ask = |address: u32| {
        let look = tables.look_ahead(address, 1);
        tables.find_or_map(NOW, address, 1, REMOTE, &look)
    };
    let first = ask(1);
    assert!(first.is_some() && ask(2).is_some() && ask(3).is_some());
    assert_eq!(ask(4), None);
    assert_eq!(ask(1), first);
}

#[test]
fn an_endpoint_without_a_mapping_has_no_record() {
    let tables = tables(10);
    let place = tables.look_ahead_inbound(FIRST.to_bits(), 4_000).unwrap();
    assert_eq!(tables.look_closer_inbound(place), None);
    assert_eq!(tables.look_ahead_inbound(FIRST.to_bits() + 1_000, 4_000), None, "not one of the addresses");
    assert!(tables.is_empty());
}
