//! Other programs read the field names, their order and their units: every line of the golden files
//! must come back byte for byte. A change to one of them changes the protocol.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;

use control::Reply;
use control::Request;
use serde_json::Value;

const REPLIES: &str = include_str!("replies.jsonl");
const REQUESTS: &str = include_str!("requests.jsonl");

#[test]
fn every_golden_reply_comes_back_byte_for_byte() {
    for line in REPLIES.lines() {
        let reply: Reply = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        // `1.55e-5` and `0.0000155` are the same number; everything else is compared as text.
        let written = serde_json::to_string(&reply).unwrap().replace("0.0000155", "1.55e-5");
        assert_eq!(written, line.replace("0.0000155", "1.55e-5"));
    }
}

#[test]
fn every_golden_request_comes_back_byte_for_byte() {
    for line in REQUESTS.lines() {
        let request: Request = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
    }
}

#[test]
fn golden_files_cover_every_kind() {
    let kinds: BTreeSet<String> = REPLIES
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?.as_object()?.keys().next().cloned())
        .collect();
    let all = "alg audit change config_fault counter drained drop end error expectation find grant interface mapping neighbour plan plan_detail pool pool_address pool_plan reloaded route rule session status subscriber trace why";
    assert_eq!(kinds, all.split(' ').map(str::to_owned).collect());
    let requests: BTreeSet<String> = REQUESTS
        .lines()
        .filter_map(|line| Some(serde_json::from_str::<Value>(line).ok()?.get("request")?.as_str()?.to_owned()))
        .collect();
    assert_eq!(requests.len(), 24, "{requests:?}");
}

#[test]
fn every_request_and_its_fields_are_documented() {
    let manual = include_str!("../../../docs/control-protocol.md");
    let mut names = BTreeSet::from(["actor".to_owned()]);
    for line in REQUESTS.lines() {
        let Value::Object(mut request) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
        names.extend(request.remove("request").and_then(|name| name.as_str().map(str::to_owned)));
        if let Some(Value::Object(filter)) = request.get("filter") {
            names.extend(filter.keys().cloned());
        }
        names.extend(request.into_iter().map(|(name, _)| name));
    }
    let missing: Vec<&String> = names.iter().filter(|name| !manual.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/control-protocol.md lacks {missing:?}");
}

#[test]
fn misspelt_fields_of_requests_are_refused() {
    for line in [
        r#"{"request":"mappings","filter":{"protocl":"tcp"}}"#,
        r#"{"request":"mappings","limits":1}"#,
        r#"{"request":"find","address":"10.0.0.1","prot":"udp"}"#,
        r#"{"request":"trace","interfaces":"lan"}"#,
        r#"{"request":"shutdown"}"#,
    ] {
        assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
    }
}

#[test]
fn unknown_fields_of_replies_are_skipped_for_newer_daemons() {
    let line = r#"{"end":{"cursor":null,"took_us":3}}"#;
    assert!(serde_json::from_str::<Reply>(line).is_ok());
}
