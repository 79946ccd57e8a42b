//! The binary itself: exit status, standard error, and a reader that goes away.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::Read;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;

fn natrix(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    command.args(words).env_remove("NATRIX_SOCKET").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let output = natrix(&["show", "sesions"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "error: command: no such command (sesions); did you mean `sessions`?\n");
    assert_eq!(text(&output.stdout), "");
    assert_eq!(natrix(&[]).status.code(), Some(2));
}

#[test]
fn help_and_version_exit_with_0() {
    let output = natrix(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for command in ["check", "run", "show", "find", "why", "trace", "top", "replay", "bench", "completions"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
    assert_eq!(text(&natrix(&["--version"]).stdout), concat!("natrix ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_missing_daemon_exits_with_1_and_names_the_socket() {
    let output = natrix(&["show", "status", "--socket", "/nonexistent/control.sock"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.starts_with("error: /nonexistent/control.sock: cannot connect ("), "{error}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    let output = command.args(["show", "status"]).env("NATRIX_SOCKET", "/nonexistent/env.sock").output().unwrap();
    assert!(text(&output.stderr).starts_with("error: /nonexistent/env.sock: "), "{output:?}");
}

#[test]
fn the_dashboard_wants_a_terminal() {
    let output = natrix(&["top"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: top: standard output is not a terminal; use `natrix show status --json` for programs\n"
    );
}

#[test]
fn completions_name_the_commands_of_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = natrix(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("subscribers"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = std::env::temp_dir().join(format!("natrix-{}-manual", std::process::id()));
    let output = natrix(&["manual", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for page in ["natrix", "natrix-check", "natrix-show-status", "natrix-log-verify", "natrix-doctor"] {
        let text = std::fs::read_to_string(folder.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".TH") && text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!folder.join("natrix-api.1").exists(), "hidden commands have no page");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    command.args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn the_benchmark_prints_the_fixed_fields() {
    let words = "bench engine --sessions 1000 --mode established --workers 1 --seconds 0.2 --json";
    let output = natrix(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut fields = "mode sessions workers packets mpps mpps_per_worker tsc_cycles_per_packet new_sessions_per_second \
                      ended_sessions_per_second bytes_per_session resident_bytes memory_bound_mpps fraction_of_memory_bound p50_ns p99_ns p999_ns max_ns allocation filters family gateways"
        .split_whitespace();
    assert!(fields.all(|field| report.contains_key(field)), "{report:?}");
    assert_eq!(report.len(), 21);
    assert_eq!(report["family"], "nat44");
}

#[test]
fn the_benchmark_measures_each_family_of_subscribers() {
    for family in ["nat44", "nat64", "dslite", "mixed"] {
        let words = format!("bench engine --family {family} --sessions 1000 --seconds 0.05");
        let words: Vec<_> = words.split(' ').collect();
        let output = natrix(&[&words[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["family"], family);
        assert!(report["tsc_cycles_per_packet"].as_f64().unwrap() > 0.0, "{report:?}");
        let output = natrix(&words);
        assert!(text(&output.stdout).starts_with(&format!("established, {family}: 1000 sessions ")), "{output:?}");
    }
}

#[test]
fn the_benchmark_of_new_sessions_shows_the_rate_of_each_tenth() {
    let words = "bench engine --sessions 1000 --mode new --workers 1 --seconds 0.05";
    let words: Vec<_> = words.split(' ').collect();
    let output = natrix(&[&words[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.len(), 22);
    assert_eq!(report["sessions"], 1_000);
    let fill = report["fill"].as_object().unwrap();
    assert_eq!(fill["tenths_per_second"].as_array().unwrap().len(), 10);
    assert_eq!(fill["pool_ports"], 2 * (500 + 1 + 64));
    for field in ["slowest_tenth_to_average", "slowest_hundredth_to_average", "last_percent_of_pool_to_average"] {
        assert!(fill[field].as_f64().unwrap() > 0.0, "{fill:?}");
    }
    assert!(fill["last_percent_of_pool_sessions"].as_u64().unwrap() > 0, "{fill:?}");
    assert!(fill["last_percent_of_pool_per_second"].as_f64().unwrap() > 0.0, "{fill:?}");
    assert_eq!(fill.len(), 7);
    let output = natrix(&words);
    assert!(text(&output.stdout).contains("last per cent of 1130 ports "), "{output:?}");
}

#[test]
fn a_benchmark_of_few_new_sessions_has_every_figure() {
    let output = natrix(&["bench", "engine", "--sessions", "64", "--mode", "new", "--seconds", "0.05", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!text(&output.stdout).contains("null"), "{output:?}");
}

#[test]
fn more_workers_than_cpus_are_refused() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let workers = (cpus + 1).to_string();
    let words = ["bench", "engine", "--sessions", "100000", "--mode", "established", "--workers", &workers];
    let output = natrix(&words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let remedy =
        if cpus < 64 { format!("give each a CPU of its own: it may run on {cpus}") } else { "give 1 to 64".to_owned() };
    assert_eq!(text(&output.stderr), format!("error: bench engine: --workers is out of range ({workers}); {remedy}\n"));
}

#[test]
fn the_scaling_benchmark_prints_an_object_for_each_arrival() {
    let words = "bench scaling --sessions 1000 --seconds 0.1";
    let words: Vec<_> = words.split(' ').collect();
    let output = natrix(&[&words[..], &["--json"]].concat());
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert_eq!(
            text(&output.stderr),
            "error: bench scaling: --workers is out of range (2); give each a CPU of its own: it may run on 1\n"
        );
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, arrival) in lines.iter().zip(["steered", "handoff"]) {
        let report: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let mut fields = "arrival sessions workers rounds one_worker_mpps mpps ratio ratio_min ratio_max \
                          one_worker_cycles_per_packet cycles_per_packet one_worker_wall_mpps wall_mpps handed_off_share"
            .split_whitespace();
        assert!(fields.all(|field| report.contains_key(field)), "{report:?}");
        assert_eq!(report.len(), 14);
        assert_eq!(report["arrival"], arrival);
        let share = report["handed_off_share"].as_f64().unwrap();
        assert_eq!(share > 0.0, arrival == "handoff", "{report:?}");
    }
    let output = natrix(&[&words[..], &["--arrival", "steered"]].concat());
    assert!(text(&output.stdout).starts_with("steered: 1000 sessions, 2 workers: "), "{output:?}");
}

#[test]
fn the_benchmark_of_stalls_prints_an_object_for_each_event() {
    let words = "bench stalls --sessions 1000 --ending 2000 --seconds 0.05";
    let words: Vec<_> = words.split(' ').collect();
    let output = natrix(&[&words[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (line, event) in lines.iter().zip(["reload", "dump", "pool_full", "expiry"]) {
        let report: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let mut fields = "event sessions records refused event_seconds tsc_hz undisturbed disturbed machine \
                          machine_disturbed undisturbed_p999_to_p50 machine_p999_to_p50 p50_ratio p99_ratio p999_ratio \
                          all_p999_ratio"
            .split_whitespace();
        assert!(fields.all(|field| report.contains_key(field)), "{report:?}");
        assert_eq!(report.len(), 16);
        assert_eq!(report["event"], event);
        for phase in ["undisturbed", "disturbed", "machine", "machine_disturbed"] {
            let times = report[phase].as_object().unwrap();
            let mut fields =
                "bursts p50_cycles p99_cycles p999_cycles max_cycles interrupted_bursts all_p999_cycles all_max_cycles"
                    .split_whitespace();
            assert!(fields.all(|field| times.contains_key(field)), "{times:?}");
            assert_eq!(times.len(), 8);
        }
    }
    let output = natrix(&[&words[..], &["--event", "expiry"]].concat());
    let printed = text(&output.stdout);
    assert!(printed.starts_with("expiry: 2000 sessions ended, traffic of 1000, "), "{printed}");
    assert_eq!(printed.lines().count(), 6, "{printed}");
}

#[test]
#[cfg(not(feature = "dpdk"))]
fn the_forwarding_benchmark_needs_dpdk() {
    let output = natrix(&["bench", "forward"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: bench forward: this build has no DPDK; build it with: cargo build --release --package natrix --features dpdk\n"
    );
}

#[test]
#[cfg(feature = "dpdk")]
fn the_forwarding_benchmark_prints_an_object_for_each_driver() {
    let words = "bench forward --driver net_ring,net_null --sessions 500 --seconds 0.1 --no-testpmd";
    let words: Vec<_> = words.split(' ').collect();
    let output = natrix(&[&words[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, driver) in lines.iter().zip(["net_ring", "net_null"]) {
        let report: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let mut fields = "driver sessions seconds rounds cpu_share natrix_mpps plain_mpps testpmd_mpps testpmd_reason natrix_to_plain \
                          natrix_to_testpmd natrix_cycles_per_packet plain_cycles_per_packet natrix_p50_cycles_per_packet \
                          plain_p50_cycles_per_packet natrix_wall_mpps plain_wall_mpps natrix_packets plain_packets \
                          natrix_dropped plain_dropped frames_checked"
            .split_whitespace();
        assert!(fields.all(|field| report.contains_key(field)), "{report:?}");
        assert_eq!(report.len(), 22);
        assert_eq!(report["driver"], driver);
        assert_eq!(report["testpmd_reason"], "not asked for");
        assert_eq!(report["natrix_dropped"], 0);
        assert!(report["frames_checked"].as_u64().unwrap() >= 1_000, "{report:?}");
    }

    let output = natrix(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = text(&output.stdout);
    assert!(report.contains("net_ring: 500 sessions, 0.1 s each in 5 turns, "), "{report}");
    assert!(report.contains("  dpdk-testpmd      not run: not asked for\n"), "{report}");
}

#[test]
#[cfg(feature = "dpdk")]
fn the_far_ends_of_memif_may_have_a_cpu_of_their_own() {
    let words = "bench forward --driver net_memif --sessions 500 --seconds 0.1 --no-testpmd --apart --json";
    let words: Vec<_> = words.split(' ').collect();
    let output = natrix(&words);
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1) {
        assert!(text(&output.stderr).contains("--apart is out of range (one CPU); leave the option out"), "{output:?}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["driver"], &report["natrix_dropped"]), (&"net_memif".into(), &0.into()));
    assert!(report["natrix_packets"].as_u64().unwrap() >= 5 * 128, "{report:?}");
    assert!(report["frames_checked"].as_u64().unwrap() >= 1_000, "{report:?}");
}

/// A folder of this test, removed at its end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("natrix-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_table_benchmark_prints_fixed_fields_csv_and_plots() {
    let folder = Folder::new("tables");
    let csv = folder.0.join("plots/tables.csv");
    let words = "bench tables --sessions 500,200000,300000 --structures linear,bst,natrix --seconds 0 --json --out-dir";
    let mut words: Vec<&str> = words.split(' ').collect();
    let out_dir = folder.0.join("plots");
    words.push(out_dir.to_str().unwrap());
    let output = natrix(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows: Vec<serde_json::Map<String, serde_json::Value>> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let measured: Vec<_> =
        rows.iter().map(|row| (row["structure"].as_str().unwrap(), row["sessions"].as_u64().unwrap())).collect();
    let expected = [
        ("linear", 500),
        ("bst", 500),
        ("natrix", 500),
        ("linear", 100_000),
        ("bst", 200_000),
        ("natrix", 200_000),
        ("bst", 300_000),
        ("natrix", 300_000),
    ];
    assert_eq!(measured, expected);
    let fields = ["structure", "sessions", "tsc_cycles_per_packet", "mpps", "bytes_per_session", "threads"];
    assert!(rows.iter().all(|row| fields.iter().all(|field| row.contains_key(*field))), "{rows:?}");
    let notice = |asked: u32| {
        format!(
            "note: linear: measured at 100000 sessions instead of {asked}; its time grows with the square of them\n"
        )
    };
    assert_eq!(text(&output.stderr), notice(200_000) + &notice(300_000));
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), rows.len() + 1);
    for figure in ["figure-2.1-linear-cycles.svg", "figure-3.2-trees-mpps.svg", "figure-7.1-today-cycles.svg"] {
        assert!(std::fs::read_to_string(out_dir.join(figure)).unwrap().starts_with("<svg"), "{figure}");
    }
}

#[test]
fn the_table_benchmark_names_a_file_that_it_cannot_write() {
    let output = natrix(&["bench", "tables", "--sessions", "500", "--structures", "bucket3", "--seconds", "0"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.starts_with("structure") && table.contains("\nbucket3 "), "{table}");
    let output =
        natrix(&["bench", "tables", "--sessions", "500", "--structures", "bst", "--csv", "/nonexistent/rows.csv"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: /nonexistent/rows.csv: cannot be written (No such file or directory"), "{error}");
}
