//! The border of what a pool can guarantee is exact: so many ports or addresses are accepted, one
//! less is not.
#![allow(clippy::panic, reason = "helpers of tests; faults not expected should stop them")]

/// Whether a guarantee of so many UDP ports for two hosts is accepted, in a pool with 100 ports an
/// address.
fn is_held(reserved: u32, pool: &str, forwards: &str) -> bool {
    let text = format!(
        r#"
        interface = [
            {{ name = "lan", realm = "inside", driver = "net_tap0", addresses = ["10.0.0.1/24"] }},
            {{ name = "wan", realm = "outside", driver = "net_tap1", addresses = ["192.0.2.2/24"] }},
        ]
        [[pool]]
        name = "main"
        ports = "2000-2099"
        subscribers = ["10.0.0.0/24"]
        {pool}
        [[class]]
        name = "guaranteed"
        subscribers = ["10.0.0.8/31"]
        reserved_ports = {{ udp = {reserved} }}
        {forwards}
        "#
    );
    match config::parse(&text, "test") {
        // A guarantee that fails only while addresses drain is a warning, not a fault.
        Ok(config) => !config.warnings.iter().any(|warning| warning.to_string().contains("reserved_ports")),
        Err(faults) => {
            assert!(faults.iter().all(|fault| fault.object == "class \"guaranteed\".reserved_ports"), "{faults:?}");
            false
        }
    }
}

const FORWARD: &str = r#"
    [[forward]]
    protocol = "udp"
    external = "203.0.113.0"
    ports = "2090-2110"
    inside = "10.0.0.20"
"#;

#[test]
fn a_guarantee_has_the_ports_of_open_addresses_and_no_others() {
    let two = r#"addresses = ["203.0.113.0/31"]"#;
    assert!(is_held(100, two, "") && !is_held(101, two, ""));
    let one_drains = r#"addresses = ["203.0.113.0/31"]
        drain = ["203.0.113.0"]"#;
    assert!(is_held(50, one_drains, "") && !is_held(51, one_drains, ""));
    let one_of_three_drains = r#"addresses = ["203.0.113.0-203.0.113.2"]
        drain = ["203.0.113.0"]"#;
    assert!(is_held(100, one_of_three_drains, "") && !is_held(101, one_of_three_drains, ""));
}

#[test]
fn a_guarantee_has_no_ports_of_forwards() {
    let two = r#"addresses = ["203.0.113.0/31"]"#;
    assert!(is_held(90, two, FORWARD) && !is_held(91, two, FORWARD));
    // The two others are enough, one for each.
    let three = r#"addresses = ["203.0.113.0-203.0.113.2"]"#;
    assert!(is_held(100, three, FORWARD));
    // A forward on an address that drains takes nothing.
    let drains = r#"addresses = ["203.0.113.0-203.0.113.2"]
        drain = ["203.0.113.0"]"#;
    assert!(is_held(100, drains, FORWARD));
    // Of another protocol.
    assert!(is_held(100, two, &FORWARD.replace("udp", "tcp")));
    // What is reserved anyway is taken once.
    let reserved = r#"addresses = ["203.0.113.0/31"]
        reserved_ports = ["2095-2099"]"#;
    assert!(is_held(90, reserved, FORWARD) && !is_held(91, reserved, FORWARD));
}

/// Whether a guarantee of this many UDP ports to four hosts is accepted with tables of these sizes.
fn tables_hold(reserved: u32, tables: &str) -> Result<(), Vec<String>> {
    let text = format!(
        r#"
        interface = [
            {{ name = "lan", realm = "inside", driver = "net_tap0", addresses = ["10.0.0.1/24"] }},
            {{ name = "wan", realm = "outside", driver = "net_tap1", addresses = ["192.0.2.2/24"] }},
        ]
        [tables]
        {tables}
        [[pool]]
        name = "main"
        addresses = ["203.0.113.0/28"]
        [[class]]
        name = "guaranteed"
        subscribers = ["10.0.0.8/30"]
        reserved_ports = {{ tcp = 20, udp = {reserved} }}
        "#
    );
    match config::parse(&text, "test") {
        Ok(_) => Ok(()),
        Err(faults) => Err(faults.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn guarantees_need_room_in_the_tables() {
    // Four times 20 and 230 are 1000.
    assert_eq!(tables_hold(230, "mappings = 1000"), Ok(()));
    let reported = tables_hold(231, "mappings = 1000").expect_err("four mappings are missing");
    assert_eq!(reported.len(), 1);
    assert!(reported[0].contains("guarantees 4 subscribers 1004 ports together"), "{reported:?}");
    assert!(
        reported[0].contains("tables.mappings = 1000") && reported[0].contains("write tables.mappings = 1004"),
        "{reported:?}"
    );
    // The remedy works.
    assert_eq!(tables_hold(231, "mappings = 1004"), Ok(()));
    assert_eq!(tables_hold(230, "subscribers = 4"), Ok(()));
    let reported = tables_hold(230, "subscribers = 3").expect_err("a subscriber is missing");
    assert!(reported[0].contains("write tables.subscribers = 4"), "{reported:?}");
}
