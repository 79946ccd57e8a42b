//! Which objects a filter passes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use control::Candidate;
use control::Filter;
use control::Prefix;
use control::Protocol;
use proptest::prelude::*;

fn session() -> Candidate<'static> {
    Candidate {
        protocol: Some(Protocol::Tcp),
        internal: Some(Ipv4Addr::new(10, 0, 0, 2)),
        host: None,
        internal_port: Some(4_000),
        external: Some(Ipv4Addr::new(203, 0, 113, 10)),
        external_port: Some(40_001),
        remote: Some(SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 443)),
        state: Some("established"),
        pool: Some("public"),
        vrf: None,
        worker: Some(1),
        alg: None,
    }
}

#[test]
fn each_condition_holds_and_fails_by_itself() {
    for (json, expected) in [
        (r#"{}"#, true),
        (r#"{"protocol":"tcp"}"#, true),
        (r#"{"protocol":"udp"}"#, false),
        (r#"{"internal":"10.0.0.0/24"}"#, true),
        (r#"{"internal":"10.0.0.3"}"#, false),
        (r#"{"internal_port":4000}"#, true),
        (r#"{"internal_port":4001}"#, false),
        (r#"{"external":"203.0.113.10"}"#, true),
        (r#"{"external":"203.0.113.11/32"}"#, false),
        (r#"{"external_port":40001}"#, true),
        (r#"{"external_port":4000}"#, false),
        (r#"{"remote":"0.0.0.0/0"}"#, true),
        (r#"{"remote":"198.51.101.0/24"}"#, false),
        (r#"{"remote_port":443}"#, true),
        (r#"{"remote_port":80}"#, false),
        (r#"{"port":443}"#, true),
        (r#"{"port":4000}"#, true),
        (r#"{"port":40001}"#, true),
        (r#"{"port":80}"#, false),
        (r#"{"state":"established"}"#, true),
        (r#"{"state":"closing"}"#, false),
        (r#"{"pool":"public"}"#, true),
        (r#"{"pool":"other"}"#, false),
        (r#"{"worker":1}"#, true),
        (r#"{"worker":0}"#, false),
        (r#"{"worker":1,"port":80}"#, false),
    ] {
        let filter: Filter = serde_json::from_str(json).unwrap();
        assert_eq!(filter.matches(&session()), expected, "{json}");
    }
}

#[test]
fn conditions_on_what_an_object_does_not_have_are_not_looked_at() {
    let filter: Filter = serde_json::from_str(r#"{"state":"established","port":5,"remote":"192.0.2.0/24"}"#).unwrap();
    assert!(filter.matches(&Candidate::default()));
}

proptest! {
    #[test]
    fn prefixes_come_back_from_their_text_and_contain_their_ends(address in any::<u32>(), length in 0_u8..=32) {
        let prefix = Prefix::new(Ipv4Addr::from_bits(address), length).unwrap();
        prop_assert_eq!(prefix.to_string().parse::<Prefix>().unwrap(), prefix);
        prop_assert!(prefix.contains(Ipv4Addr::from_bits(address)));
        prop_assert!(prefix.contains(prefix.address()));
    }
}

#[test]
fn texts_that_are_no_prefix_are_refused() {
    for text in ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "10.0.0.0/-1", "::1", "10.0.0.0/8/8"] {
        assert!(text.parse::<Prefix>().is_err(), "{text}");
    }
}
