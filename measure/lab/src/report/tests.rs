//! Reading folders, and what the page says of what is there.

use serde_json::json;

use super::*;
use crate::result::Machine;
use crate::study::Paper;
use crate::study::RunRecord;
use crate::study::Summary;
use crate::study::TableRecord;
use chart::Axis;
use chart::Chart;
use chart::Point;
use chart::Series;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-report-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn study(name: &str) -> StudyRecord {
    let axis = |label: &str| Axis { label: label.to_owned(), logarithmic: false, names: Vec::new() };
    let run = |file: &str, failure: Option<&str>| RunRecord {
        series: "natrix".to_owned(),
        command: "natrix lab throughput --dut natrix --json".to_owned(),
        file: file.to_owned(),
        took_seconds: 3.0,
        failure: failure.map(str::to_owned),
        ceiling: Some(1_234_000.0),
        cores: vec!["CPU 0: tester".to_owned()],
        kept_unix: failure.is_none().then_some(1_794_000_000),
        measured_unix: failure.is_none().then_some(1_794_000_000),
        summary: failure.is_none().then(|| Summary {
            test: "throughput".to_owned(),
            found: "200 k frames/s (100 k to 300 k)".to_owned(),
            experiments: 10,
            sessions: 4711,
            source_ports: "1024-65535 of 16 addresses".to_owned(),
            destination_ports: "80-80 of 1 address".to_owned(),
            frames: "64".to_owned(),
            error: Some(1000.0),
            device: vec![("nf_conntrack_max".to_owned(), "65536".to_owned())],
        }),
    };
    StudyRecord {
        schema: 1,
        study: name.to_owned(),
        question: "Is <this> escaped?".to_owned(),
        paper: Paper { name: "A paper".to_owned(), machine: "a machine".to_owned() },
        method: "the method".to_owned(),
        limits: "the limits".to_owned(),
        quick: true,
        interrupted: false,
        runs: vec![run("kept.json", None), run("none.json", Some("tester: too slow (5); lower --rate-max"))],
        charts: vec![Chart {
            title: "A chart".to_owned(),
            x: axis("bytes"),
            y: axis("Mpps"),
            series: vec![Series {
                name: "natrix".to_owned(),
                points: vec![Point { x: 64.0, y: 1.0, low: 1.0, high: 1.0 }],
            }],
        }],
        tables: vec![TableRecord {
            title: "Beside the paper".to_owned(),
            columns: vec!["what".to_owned()],
            rows: vec![vec!["8.6 times".to_owned()]],
        }],
        machine: Machine::this(),
        version: "0.1.0".to_owned(),
        versions: vec![("nft".to_owned(), "nftables v1.0.6".to_owned())],
        seed: 42,
        command: "natrix lab study x".to_owned(),
        started_unix: 1_795_000_000,
        took_seconds: 7.0,
    }
}

#[test]
fn the_page_has_all_that_the_folder_has() {
    let folder = Folder::new("whole");
    folder.put("sizes.study.json", &serde_json::to_string(&study("sizes")).unwrap());
    folder.put("sessions.study.json", &serde_json::to_string(&study("sessions")).unwrap());
    folder.put("kept.json", r#"{"output": {"test": "throughput"}}"#);
    let single = json!({"test": "cps", "dut": "netfilter", "transport": "net_af_xdp", "command": "natrix lab cps",
        "unit": "connections/s", "result": {"samples": {"median": 120000.0, "p1": 110000.0, "p99": 130000.0}},
        "ceiling": {"frames_per_second": 900000.0}, "interrupted": true});
    folder.put("cps.json", &single.to_string());
    folder.put("broken.json", "{");
    folder.put("other.json", "{}");
    let results = Results::read(&folder.0).unwrap();
    let order: Vec<&str> = results.studies.iter().map(|study| study.study.as_str()).collect();
    assert_eq!(order, ["sessions", "sizes"]);
    assert_eq!((results.single.len(), results.unread.len()), (1, 2));
    let page = results.html().unwrap();
    for words in [
        "Is &lt;this&gt; escaped?",
        "<svg",
        "A chart",
        "8.6 times",
        "tester: too slow (5); lower --rate-max",
        "120 k connections/s (110 k to 130 k)",
        "900 k frames/s",
        "interrupted",
        "the limits",
        "CPU 0: tester",
        "1.23 M",
        "200 k frames/s (100 k to 300 k)",
        "4711",
        "nftables v1.0.6",
        "seed 42",
        "1024-65535 of 16 addresses",
        "nf_conntrack_max = 65536",
        "1 of 2 results were there already, measured from 2026-11-06 21:20 UTC to",
        "broken.json",
        "other.json",
        "natrix lab throughput --dut natrix --json",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // One file, and nothing that has to be fetched.
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("<link"), "{page}");
}

#[test]
fn a_folder_without_results_is_reported() {
    let folder = Folder::new("empty");
    let error = Results::read(&folder.0).unwrap_err().to_string();
    assert!(error.contains("holds no result (0 files); measure first"), "{error}");
    let error = Results::read(&folder.0.join("missing")).unwrap_err().to_string();
    assert!(error.contains("name the folder with --results"), "{error}");
}

#[test]
fn times_are_in_utc() {
    assert_eq!(Utc(0).to_string(), "1970-01-01 00:00 UTC");
    assert_eq!(Utc(1_795_000_000).to_string(), "2026-11-18 11:06 UTC");
}

#[test]
fn limits_are_those_of_the_transport() {
    for (transport, is_shared) in [("net_memif", true), ("net_af_xdp", false)] {
        let folder = Folder::new(transport);
        let single = json!({"test": "latency", "dut": "natrix", "transport": transport, "command": "natrix lab latency",
            "unit": "us", "cores": {"0": ["tester"]}, "result": {}});
        folder.put("latency.json", &single.to_string());
        let page = Results::read(&folder.0).unwrap().html().unwrap();
        assert_eq!(page.contains("no kernel in the path"), is_shared, "{transport}");
        assert_eq!(page.contains("taking its frames in"), !is_shared, "{transport}");
    }
}

#[test]
fn a_single_result_shows_its_measurement_and_how_to_repeat_it() {
    let folder = Folder::new("single");
    let tuples =
        |addresses: u32, start: u16, end: u16| json!({"addresses": addresses, "ports": {"start": start, "end": end}});
    let share = json!({"values": [0.0, 0.4], "median": 0.2, "p1": 0.0, "p99": 0.4});
    let common = json!({
        "dut": "netfilter", "transport": "net_af_xdp", "unit": "frames/s", "started_unix": 1_700_000_000, "took_seconds": 9.0, "seed": 4711,
        "machine": {"cpu": "An Old CPU", "cpus": 2, "memory_mib": 512, "kernel": "6.1", "system": "Debian"},
        "versions": {"dpdk": "DPDK 22.11"}, "device": {"nf_conntrack_max": "65536"}, "cores": [{"cpu": 0, "runs": ["tester"]}],
        "parameters": {"N": 200, "repetitions": 2, "error": 2000.0, "frame_bytes": 64, "inside": tuples(4, 1024, 65_535), "remote": tuples(1, 80, 80), "priority": "nice -19"},
        "ceiling": {"frames_per_second": 9e5, "loopback": "one pair", "share": null},
    });
    let with = |more: Value| {
        let mut whole = common.clone();
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        whole.to_string()
    };
    let loss = json!({"test": "loss", "command": "natrix lab loss --described 'my box'", "result": {
        "steps": [{"rate": 2e6, "sent": 200, "lost": 40, "lost_share": share, "beyond_ceiling": true}, {"rate": 1e6, "sent": 200, "lost": 40, "lost_share": share, "beyond_ceiling": false}],
        "not_sent": [{"rate": 3e6, "reached": 2.5e6, "repetitions": 2}],
    }});
    let throughput = json!({"test": "throughput", "command": "natrix lab throughput", "result": {"samples": {"values": [1e5, 2e5], "median": 1.5e5, "p1": 1e5, "p99": 2e5}}});
    let delays = json!({"way": "inbound", "typical_us": 2.0, "worst_case_us": 3.0, "histogram_ns": [[1000, 50], [2000, 49], [3000, 1]]});
    let latency = json!({"test": "latency", "command": "natrix lab latency", "result": {"repetitions": [{"lost": 0, "delays": [delays]}]}});
    let probe = json!({"test": "probe", "command": "natrix lab probe", "parameters": {"seed": 1}, "findings": [
        {"name": "mapping.udp", "value": "endpoint-independent", "requirement": "RFC 4787 REQ-1", "verdict": "met"},
    ]});
    for (name, more) in [("a.json", loss), ("b.json", throughput), ("c.json", latency), ("d.json", probe)] {
        folder.put(name, &with(more));
    }
    let page = Results::read(&folder.0).unwrap().html().unwrap();
    for words in [
        "Newest measurement: 2023-11-14 22:13 UTC",
        "An Old CPU, 2 CPUs, 512 MiB, Linux 6.1, Debian",
        "dpdk = DPDK 22.11",
        "nf_conntrack_max = 65536",
        "<dt>Seed</dt><dd>4711</dd>",
        "<dt>Repetitions</dt><dd>2 of 2</dd>",
        "<dt>Error of the search</dt><dd>2000</dd>",
        "1024-65535 of 4 addresses",
        "CPU 0: tester",
        "900 k frames/s over one pair",
        "at 3 M no result (tester too slow); at 2 M 20 % lost (worst 40 %) (more than the tester alone passes)",
        "beyond what the tester alone passes",
        "RFC 8219 §7.4",
        "natrix lab loss --described 'my box'",
        "1 findings: 1 as the RFCs ask",
        "mapping.udp",
        "endpoint-independent",
        "Delays: frames that took no longer",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(page.matches("<svg").count(), 3, "loss, throughput, delays");
    let machines = page.split("id=\"machines\"").nth(1).unwrap();
    assert!(machines.contains("An Old CPU"), "{machines}");
}

#[test]
fn a_study_put_together_of_old_results_is_as_old_as_they_are() {
    let folder = Folder::new("kept");
    let mut record = study("sizes");
    record.runs.truncate(1);
    folder.put("sizes.study.json", &serde_json::to_string(&record).unwrap());
    let page = Results::read(&folder.0).unwrap().html().unwrap();
    let then = "2026-11-06 21:20 UTC";
    assert!(page.contains(&format!("Newest measurement: {then}")), "{page}");
    assert!(
        page.contains(&format!("{then}, all of it before 2026-11-18 11:06 UTC, when it was put together")),
        "{page}"
    );
    // A record that says it only of what was kept, with a run that was made then.
    let mut of_before = study("sizes");
    of_before.runs.iter_mut().for_each(|run| run.measured_unix = None);
    assert_eq!(of_before.measured_unix(), (1_794_000_000, 1_795_000_000));
}

#[test]
fn a_disturbed_figure_has_its_footnote_on_the_page() {
    let note = "<p class=\"footnote\">* measured while a CPU was taken away";
    let page = |cell: &str, disturbed: u32| {
        let mut study = study("sizes");
        study.tables[0].rows = vec![vec![cell.to_owned()]];
        let single = json!({
            "test": "cps", "dut": "natrix", "unit": "connections/s",
            "result": {"samples": {"values": [5.0, 7.0], "median": 6.0, "p1": 5.0, "p99": 7.0}, "disturbed": disturbed,
                "disturbed_repetitions": if disturbed > 0 { vec![1] } else { vec![] }},
        });
        let results =
            Results { studies: vec![study], single: vec![("cps.json".to_owned(), single)], unread: Vec::new() };
        results.html().unwrap()
    };
    let calm = page("8.6 times", 0);
    assert!(!calm.contains("footnote\">") && calm.contains("Found: 6 connections/s (5 to 7)"), "{calm}");
    let busy = page("8.6* times", 1);
    // Below the table, below what was found, and below the chart of the repetitions.
    assert_eq!(busy.matches(note).count(), 3, "{busy}");
    assert!(busy.contains("Found: 6* connections/s (5* to 7*)") && busy.contains("cps, disturbed*"), "{busy}");
}
