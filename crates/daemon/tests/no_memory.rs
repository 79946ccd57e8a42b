//! A reload that does not fit into memory is refused and changes nothing. This is the only test of
//! its process, because it limits the memory of the process.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "common/instance.rs"]
mod instance;

use std::fs;
use std::process::Command;

use control::Request;
use instance::Instance;
use instance::ask;
use instance::error;

/// Remaining memory: enough for a request and its answer, but not for the tables of the new
/// configuration.
const SPARE_BYTES: u64 = 1 << 20;
/// Number of subscriber prefixes, each of which takes 1 KiB of the route table.
const PREFIXES: u32 = 8_000;

/// Address space in use, bytes.
fn in_use() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux says it");
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number first");
    pages * 4_096
}

fn limit(bytes: &str) {
    let own = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &own, &format!("--as={bytes}:")]).status();
    assert!(limited.expect("prlimit is part of util-linux").success());
}

#[test]
fn a_reload_without_memory_is_refused_and_changes_nothing() {
    let mut one = Instance::start("no-memory", "");
    one.traffic(5_000..5_040);
    let prefixes: Vec<String> = (0..PREFIXES).map(|n| format!("\"10.{}.{}.128/25\"", 1 + n / 256, n % 256)).collect();
    let routes = "[[route]]\nprefix = \"10.0.0.0/8\"\nvia = \"10.0.0.254\"\n";
    let text = one.text.replace("203.0.113.0/28\"]", "203.0.113.0/28\"]\nsubscribers = [\"10.0.0.0/24\", MANY]");
    let text = text.replace("MANY", &prefixes.join(", ")) + routes;
    let asked = one.write("next.toml", &text);
    // The file is valid, and there is memory for it now. The process keeps the memory that reading
    // it takes.
    assert_eq!(error(&ask(&mut one.client, &Request::Plan(asked.clone()))), "");
    let before = one.state();
    limit(&(in_use() + SPARE_BYTES).to_string());
    let told = one.reload(asked.clone());
    let after = one.state();
    limit("unlimited");
    assert!(error(&told).contains("memory"), "{}", error(&told));
    assert_eq!(after, before, "nothing was changed");
    one.traffic(6_000..6_040);
    assert_eq!(error(&one.reload(asked)), "", "with memory it is done");
    one.traffic(7_000..7_040);
    more_control_sessions(&mut one, &text);
    one.stop();
}

/// A reload does not take their memory: it comes as they are used.
fn more_control_sessions(one: &mut Instance, text: &str) {
    let with = |sessions: u32| format!("{text}[alg]\nsessions = {sessions}\n[alg.sip]\nenabled = true\n");
    let few = one.write("few.toml", &with(1_024));
    assert_eq!(error(&one.reload(few)), "");
    let many = one.write("many.toml", &with(262_144));
    let before = one.state();
    // 64 MiB of it are for other things. Two workers need 220 MB.
    limit(&(in_use() + (164 << 20)).to_string());
    let refused =
        [Request::Plan(many.clone()), Request::Reload(many.clone())].map(|it| error(&ask(&mut one.client, &it)));
    let after = one.state();
    limit("unlimited");
    for error in refused {
        assert!(error.contains("alg.sessions: needs 2") && error.contains("bytes available"), "{error}");
    }
    assert_eq!(after, before, "nothing was changed");
    assert_eq!(error(&one.reload(many)), "", "with memory it is done");
    one.traffic(8_000..8_040);
}
