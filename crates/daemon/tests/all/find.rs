//! `find` on a whole instance names every user of an address or endpoint, whatever its origin.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use crate::instance::Instance;
use crate::instance::PATIENCE;
use crate::instance::ask;
use crate::instance::error;
use control::Find;
use control::FindAddress;
use control::FindAnswer;
use control::Reply;
use control::Request;

/// Packets to port 443 leave from a pool of their own, and packets to port 80 share ports.
const MORE: &str = r#"
[[pool]]
name = "w"
addresses = ["203.0.113.21"]
subscribers = []

[[rule]]
action = "translate"
protocol = "udp"
outside_ports = 443
pool = "w"

[[rule]]
action = "translate"
protocol = "udp"
outside_ports = 80
mapping = "endpoint-dependent"

[[forward]]
protocol = "tcp+udp"
external = "203.0.113.1"
ports = "80-82"
inside = "10.0.0.80"
inside_port = 8080

[[forward]]
protocol = "tcp"
external = "203.0.113.1"
ports = 443
targets = ["10.0.0.90:8443", "10.0.0.91:8443"]
"#;

const OF_FORWARDS: [&str; 3] = [
    "tcp 203.0.113.1:80-82 is statically forwarded to 10.0.0.80:8080-8082",
    "udp 203.0.113.1:80-82 is statically forwarded to 10.0.0.80:8080-8082",
    "tcp 203.0.113.1:443 leads to one of 10.0.0.90:8443 weight 1, 10.0.0.91:8443 weight 1",
];

fn start(name: &str) -> Instance {
    Instance::start_with(name, MORE, |text| {
        let text = text.replace("203.0.113.0/28\"]\n", "203.0.113.1\", \"203.0.113.2\"]\ndrain = [\"203.0.113.2\"]\n");
        text.replace("mappings = 1000\n", "mappings = 1000\nflows = 1000\n")
    })
}

fn of(host: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), port)
}

fn endpoint(address: Ipv4Addr, port: Option<u16>) -> Find {
    let address = FindAddress::Ipv4(address);
    Find { address, port, protocol: None, vrf: None, limit: None, cursor: None }
}

fn on(last: u8) -> Find {
    endpoint(Ipv4Addr::new(203, 0, 113, last), None)
}

/// All answers and the number of pages.
fn found(one: &mut Instance, find: &Find) -> (Vec<FindAnswer>, usize) {
    let mut answers = Vec::new();
    let mut cursor = None;
    for pages in 1.. {
        let replies = ask(&mut one.client, &Request::Find(Find { cursor, ..find.clone() }));
        assert_eq!(error(&replies), "");
        cursor = None;
        for reply in replies {
            match reply {
                Reply::Find(answer) => answers.push(answer),
                Reply::End(end) => cursor = end.cursor,
                other => panic!("{other:?}"),
            }
        }
        if cursor.is_none() {
            return (answers, pages);
        }
        assert!(pages < 1_000, "the list ends");
    }
    unreachable!("pages are counted without end")
}

fn details(one: &mut Instance, find: &Find) -> Vec<String> {
    found(one, find).0.into_iter().map(|answer| answer.detail).collect()
}

/// Waits until there are this many sessions.
fn wait_for(one: &mut Instance, sessions: u64) {
    let begin = Instant::now();
    while one.status().sessions < sessions {
        assert!(begin.elapsed() < PATIENCE, "every packet opens something");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_external_address_has_all_its_users() {
    let mut one = start("find-users");
    assert_eq!(details(&mut one, &on(1)), OF_FORWARDS);
    assert_eq!(details(&mut one, &on(2)), ["no subscriber holds 203.0.113.2 of pool \"a\" now"]);
    // Three are paired with .1, a rule also sends one of them elsewhere, and one only shares a
    // port.
    for (host, to) in [(10, 53), (11, 53), (12, 53), (13, 80)] {
        one.push_to(of(host, 4_000), to);
    }
    wait_for(&mut one, 4);
    // Only once it is paired there: other ports use another queue.
    one.push_to(of(11, 4_001), 443);
    wait_for(&mut one, 5);
    let paired = |host: u8, last: u8| format!("subscriber 10.0.0.{host} is paired with 203.0.113.{last}");
    let first = details(&mut one, &on(1));
    assert_eq!(first[..3], [paired(10, 1), paired(11, 1), paired(12, 1)]);
    assert!(first[3].starts_with("subscriber 10.0.0.13 "), "{first:?}");
    assert_eq!(first[4..], OF_FORWARDS);
    assert_eq!(details(&mut one, &on(21)), ["subscriber 10.0.0.11 has 1 mapping on 203.0.113.21"]);
    let (answers, _) = found(&mut one, &on(21));
    assert_eq!((answers[0].holder, answers[0].pool.as_deref()), (Some(*of(11, 0).ip()), Some("w")));

    // Pages of any size have the same answers.
    for limit in [1, 2, 5, 7] {
        let (answers, pages) = found(&mut one, &Find { limit: Some(limit), ..on(1) });
        assert_eq!(answers.into_iter().map(|answer| answer.detail).collect::<Vec<_>>(), first);
        assert_eq!(pages, first.len().div_ceil(limit as usize));
    }
    // One transport only.
    let tcp = details(&mut one, &Find { protocol: Some(control::Protocol::Tcp), ..on(1) });
    assert_eq!(tcp[tcp.len() - 2..], [OF_FORWARDS[0], OF_FORWARDS[2]]);

    // .1 drains: its mappings stay, and a subscriber with a new mapping is paired with .2.
    let text = one.text.replace("drain = [\"203.0.113.2\"]", "drain = [\"203.0.113.1\"]");
    let asked = one.write("drains.toml", &text);
    assert_eq!(error(&one.reload(asked)), "");
    for (host, port) in [(10, 4_002), (10, 4_003), (12, 4_002)] {
        one.push(of(host, port));
    }
    wait_for(&mut one, 8);
    assert_eq!(details(&mut one, &on(2)), [paired(10, 2), paired(12, 2)]);
    let on_first = details(&mut one, &on(1));
    assert_eq!(on_first[0], "subscriber 10.0.0.10 has 1 mapping on 203.0.113.1");
    assert_eq!(on_first[1], paired(11, 1));
    assert_eq!(on_first[2], "subscriber 10.0.0.12 has 1 mapping on 203.0.113.1");
    assert_eq!(on_first[4..], OF_FORWARDS);
    one.stop();
}

#[test]
fn an_internal_endpoint_has_its_mapping_and_its_flows() {
    let mut one = start("find-flows");
    // In this order, because an existing mapping is used for all destinations.
    one.push_to(of(10, 4_000), 80);
    wait_for(&mut one, 1);
    one.push_to(of(10, 4_000), 53);
    wait_for(&mut one, 2);
    for limit in [None, Some(1)] {
        let find = Find { limit, ..endpoint(*of(10, 0).ip(), Some(4_000)) };
        let answers = details(&mut one, &find);
        assert_eq!(answers.len(), 2, "{answers:?}");
        assert!(answers[0].starts_with("udp 10.0.0.10:4000 has external endpoint 203.0.113.1:"), "{answers:?}");
        assert!(answers[1].starts_with("10.0.0.10:4000 has udp 203.0.113.1:"), "{answers:?}");
        assert!(answers[1].ends_with(" towards 192.0.2.77:80, and shares it"), "{answers:?}");
    }
    one.stop();
}
