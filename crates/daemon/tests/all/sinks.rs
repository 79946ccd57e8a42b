//! Sinks of a whole instance: what its workers record reaches collectors, also across reloads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::io::BufRead;
use std::io::BufReader;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;

use crate::instance::Instance;
use crate::instance::error;

const PATIENCE: Duration = Duration::from_secs(30);

/// A collector of lines of JSON.
struct Collector {
    port: u16,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let lines = Arc::clone(&kept);
                thread::spawn(move || {
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        lines.lock().unwrap().push(serde_json::from_str(&line).unwrap());
                    }
                });
            }
        });
        Collector { port, lines }
    }

    /// Internal ports of mappings that were created.
    fn created(&self) -> BTreeSet<u64> {
        let lines = self.lines.lock().unwrap();
        let created = lines.iter().filter(|line| line["event"] == "mapping_created");
        created.filter_map(|line| line["internal_port"].as_u64()).collect()
    }

    /// Records that a worker adopted another configuration.
    fn adoptions(&self) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line["event"] == "configuration_adopted").count()
    }

    fn wait_for(&self, ports: core::ops::Range<u64>) {
        let (begin, wanted) = (Instant::now(), ports.collect::<BTreeSet<_>>());
        while !self.created().is_superset(&wanted) {
            assert!(begin.elapsed() < PATIENCE, "missing: {:?}", wanted.difference(&self.created()));
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn sink(&self, name: &str) -> String {
        format!("[[log.sink]]\nname = \"{name}\"\nkind = \"json\"\naddress = \"tcp://127.0.0.1:{}\"\n", self.port)
    }
}

#[test]
fn records_reach_collectors_across_reloads_and_the_end() {
    let (first, second, later) = (Collector::start(), Collector::start(), Collector::start());
    let store = "[log.store]\npath = \"HERE/store\"\n";
    let mut one = Instance::start("sinks", &format!("{store}{}", first.sink("a")));
    let without = one.text.replace(&first.sink("a"), "");
    one.traffic(5_000..5_050);
    first.wait_for(5_000..5_050);
    // The sink goes on to another collector, and a second one begins.
    let moved = format!("{without}{}{}", second.sink("a"), later.sink("b"));
    let asked = one.write("moved.toml", &moved);
    assert_eq!(error(&one.reload(asked)), "");
    one.traffic(6_000..6_050);
    second.wait_for(6_000..6_050);
    later.wait_for(6_000..6_050);
    assert!(later.created().iter().all(|port| *port >= 6_000), "it begins with what comes");
    assert!(first.created().iter().all(|port| *port < 6_000), "nothing more");
    // What is recorded of the reload itself is sent before the sink moves, or after that.
    let begin = Instant::now();
    while [&first, &second].iter().map(|collector| collector.adoptions()).sum::<usize>() < 2 {
        assert!(begin.elapsed() < PATIENCE, "each worker records that it adopts the configuration");
        thread::sleep(Duration::from_millis(10));
    }
    // A sink counts what it has sent after its collector may have read it.
    let (begin, mut sinks) = (Instant::now(), Vec::new());
    while sinks.is_empty() || sinks.iter().any(|sink: &control::LogSink| sink.records_sent < 50) {
        assert!(begin.elapsed() < PATIENCE, "{sinks:?}");
        thread::sleep(Duration::from_millis(10));
        sinks = one.status().event_log.expect("a log").sinks;
    }
    let seen: Vec<_> = sinks.iter().map(|sink| (sink.name.as_str(), sink.connected, sink.records_lost)).collect();
    assert_eq!(seen, [("a", true, 0), ("b", true, 0)]);
    // A removed one is forgotten.
    let asked = one.write("fewer.toml", &format!("{without}{}", second.sink("a")));
    assert_eq!(error(&one.reload(asked)), "");
    assert_eq!(one.status().event_log.expect("a log").sinks.len(), 1);
    let cursor = |name: &str| one.directory.join("store").join(format!("cursor-{name}")).exists();
    assert!(cursor("a") && !cursor("b"));
    // What is recorded just before the end is sent, too.
    one.traffic(7_000..7_050);
    one.stop();
    second.wait_for(7_000..7_050);
    let lines = second.lines.lock().unwrap();
    for worker in 0..2_u64 {
        let of_worker = lines.iter().filter(|line| line["worker"].as_u64() == Some(worker));
        let numbers: Vec<u64> = of_worker.filter_map(|line| line["sequence"].as_u64()).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] <= pair[0] + 1), "no number is missing: {numbers:?}");
    }
}
