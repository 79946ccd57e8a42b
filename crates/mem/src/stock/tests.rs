use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn stock(ordinary_bytes: u64, free_2m: u64, free_1g: u64) -> Stock {
    let huge = |free| Hugepages { reserved: Some(free + 3), free };
    Stock { ordinary_bytes, huge_2m: huge(free_2m), huge_1g: huge(free_1g), process_bytes: u64::MAX }
}

#[test]
fn the_sum_of_all_tables_is_compared_with_the_stock() {
    let tables = [Need::Table(600), Need::Table(600), Need::Table(600)];
    assert!(Stock::ordinary(1_800).plan(tables).is_ok());
    let error = Stock::ordinary(1_799).plan(tables).unwrap_err();
    assert_eq!((error.needed_bytes, error.available_bytes), (1_800, 1_799));
    let text = error.to_string();
    assert!(text.starts_with("1800 bytes are needed in all (1799 bytes available: 1799 on ordinary pages"), "{text}");
}

#[test]
fn reserved_hugepages_count_for_what_suits_them() {
    // One table gets hugepages, the other ordinary pages.
    let tables = [Need::Table(10 * MIB), Need::Table(10 * MIB)];
    let plan = stock(10 * MIB, 5, 0).plan(tables).unwrap();
    assert_eq!((plan.needed_bytes, plan.missed_bytes), (20 * MIB, 10 * MIB));
    // Too few pages are left for the second table.
    let error = stock(10 * MIB - 1, 9, 0).plan(tables).unwrap_err();
    assert_eq!((error.needed_bytes, error.available_bytes), (20 * MIB, 20 * MIB - 1));
    // Heaps are never on hugepages.
    assert!(stock(0, 100, 0).plan([Need::Heap(MIB)]).is_err());
    assert!(stock(0, 1, 0).plan([Need::Table(MIB)]).is_ok());
}

#[test]
fn what_is_available_is_always_less_than_what_does_not_fit() {
    for ordinary in [0, 5 * MIB, 70 * MIB] {
        for (small, large) in [(0, 0), (3, 0), (0, 9), (7, 2)] {
            let needs = [Need::Packets(64 * MIB), Need::Table(3 * MIB / 2), Need::Table(80 * MIB), Need::Heap(9)];
            if let Err(error) = stock(ordinary, small, large).plan(needs) {
                assert!(error.available_bytes < error.needed_bytes, "{error}");
            }
        }
    }
}

#[test]
fn a_limit_of_the_process_holds_for_pages_of_every_kind() {
    let limited = Stock { process_bytes: 50 * MIB, ..stock(GIB, 100, 1) };
    assert!(limited.plan([Need::Table(50 * MIB)]).is_ok());
    let error = limited.plan([Need::Table(50 * MIB), Need::Table(1)]).unwrap_err();
    assert_eq!((error.needed_bytes, error.available_bytes), (50 * MIB + 1, 50 * MIB));
}

#[test]
fn numbers_without_end_do_not_fit_and_do_not_overflow() {
    let error = stock(GIB, 1, 1).plan([Need::Table(u64::MAX), Need::Heap(u64::MAX), Need::Packets(u64::MAX)]);
    assert_eq!(error.unwrap_err().needed_bytes, u64::MAX);
}

#[test]
fn the_warning_names_the_commands_that_make_it_unnecessary() {
    let needs = [Need::Packets(100 * MIB), Need::Table(2 * GIB), Need::Table(300 * MIB), Need::Heap(7)];
    let few = Stock { huge_1g: Hugepages { reserved: None, free: 0 }, ..stock(4 * GIB, 50, 0) };
    let plan = few.plan(needs).unwrap();
    assert_eq!(plan.missed_bytes, 2 * GIB + 300 * MIB);
    assert_eq!(plan.warning(0), None);
    let warning = plan.warning(plan.missed_bytes).unwrap();
    // Others use three of the 53 reserved pages.
    let remedy = "echo 1227 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let seen = "hugepages: 2348 MiB of tables and buffers use ordinary pages, which costs speed: 50 of the 1224 hugepages \
                needed were free. ";
    assert!(warning.starts_with(seen), "{warning}");
    assert!(warning.ends_with(&format!("transparent hugepages. Before the next start: {remedy}")), "{warning}");
    // After the remedy nothing is missed.
    assert_eq!(stock(4 * GIB, 1_224, 0).plan(needs).unwrap().missed_bytes, 0);

    // With larger pages the warning also names the other remedy.
    let warning = stock(4 * GIB, 50, 0).plan(needs).unwrap().warning(1).unwrap();
    let remedy = "or with pages of 1 GiB, faster still: echo 5 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages \
                  && echo 203 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert!(warning.ends_with(remedy), "{warning}");
    assert_eq!(stock(MIB, 200, 2).plan(needs).unwrap().missed_bytes, 0);
}

#[test]
fn a_table_that_has_large_pages_needs_no_small_ones() {
    let plan = stock(4 * GIB, 0, 2).plan([Need::Table(2 * GIB), Need::Table(300 * MIB)]).unwrap();
    assert_eq!((plan.missed_bytes, plan.pages_2m), (300 * MIB, 150));
}

#[test]
fn this_machine_has_some_memory() {
    let stock = Stock::of_this_machine();
    assert!(stock.plan([Need::Table(4_096)]).is_ok(), "{stock:?}");
}
