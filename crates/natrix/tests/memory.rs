//! Messages about too little memory and missing hugepages.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;

fn natrix(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_natrix")).args(words.split(' ')).output().unwrap()
}

/// Runs with little address space, so that memory is short on any machine.
fn natrix_in(mebibytes: u32, words: &str) -> Output {
    let script = format!("ulimit -v {}; exec \"$0\" {words}", mebibytes * 1024);
    Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_natrix")]).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The number in front of `words`.
fn number_before(line: &str, words: &str) -> u64 {
    let before = line.split(words).next().unwrap();
    before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// A file of this test.
fn file(name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
    let path = std::env::temp_dir().join(format!("natrix-{}-{name}", std::process::id()));
    fs::write(&path, contents).unwrap();
    path
}

/// A configuration with this number of mappings.
fn configuration(mappings: u64) -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/veth-two-workers.toml");
    let example = fs::read_to_string(example).unwrap();
    assert!(example.contains("mappings = 100000"));
    example.replace("mappings = 100000", &format!("mappings = {mappings}"))
}

#[test]
fn a_benchmark_that_does_not_fit_names_needed_and_free_bytes() {
    for (mode, workers) in [("established", 1), ("new", 2), ("mixed", 1)] {
        let words = format!("bench engine --sessions 10000000 --mode {mode} --workers {workers} --seconds 1 --json");
        let output = natrix_in(1_024, &words);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
        let error = text(&output.stderr);
        assert!(error.starts_with("error: bench engine: ") && error.lines().count() == 1, "{error}");
        let (needed, available) = (number_before(error, " bytes are needed"), number_before(error, " bytes available"));
        // The total, and not only the first table that does not fit: a mapping takes 64 bytes.
        assert!(needed > 10_000_000 * 64 + 10_000_000 * 64, "{error}");
        assert!(available <= 1 << 30 && available < needed, "{error}");
        assert!(error.trim_end().ends_with("; ask for fewer sessions or workers, or add memory"), "{error}");
    }
}

#[test]
fn a_number_of_sessions_beyond_every_table_is_one_clear_error() {
    for sessions in [66_846_720, 4_294_967_296, 4_294_968_296, u64::MAX] {
        let output = natrix(&format!("bench engine --sessions {sessions} --mode established --workers 1 --seconds 1"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let expected = format!(
            "error: bench engine: --sessions is out of range ({sessions}); give at most 66846463 for each worker and \
             700000000 in all\n"
        );
        assert_eq!(text(&output.stderr), expected);
    }
    let output = natrix("bench engine --sessions 18446744073709551616 --mode established");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).starts_with("error: ") && text(&output.stderr).contains("18446744073709551616"));
}

#[test]
fn a_configuration_that_does_not_fit_is_refused_at_once() {
    let path = file("large.toml", configuration(60_000_000));
    let config = path.to_str().unwrap();
    for command in ["check", "run"] {
        let output = natrix_in(1_024, &format!("{command} -c {config}"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = text(&output.stderr);
        let line = error.lines().find(|line| line.contains(" of memory in all")).unwrap();
        assert!(line.starts_with(&format!("error: {config}: needs ")), "{line}");
        let (needed, available) = (number_before(line, " MiB of memory"), number_before(line, " MiB available"));
        // Two workers, each with its half and an eighth more. A mapping takes 64 bytes, 8.5 in the
        // table and more than 1.5 elsewhere.
        assert!(needed > (60_000_000 / 8 * 9 * 74) >> 20 && available <= 1 << 10, "{line}");
        assert!(line.ends_with("; lower [tables], use fewer pool addresses, or add memory"), "{line}");
    }
    // For another machine.
    let output = natrix_in(1_024, &format!("check --any-machine -c {config}"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // A capture of Ethernet frames with none in it.
    let header = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
    let capture = file("nothing.pcap", header);
    let out = std::env::temp_dir().join(format!("natrix-{}-out", std::process::id()));
    let (from, to) = (capture.to_str().unwrap(), out.to_str().unwrap());
    let words = format!("replay -c {config} --inside {from} --outside {from} --out-dir {to}");
    let output = natrix_in(1_024, &words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: memory: ") && error.contains(" bytes are needed in all ("), "{error}");
    fs::remove_file(path).unwrap();
    fs::remove_file(capture).unwrap();
    fs::remove_dir_all(out).unwrap();
}

/// Free hugepages of all sizes.
fn free_hugepages() -> u64 {
    let Ok(sizes) = fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    let free =
        |size: fs::DirEntry| fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse::<u64>().ok();
    sizes.flatten().filter_map(free).sum()
}

/// The machine may have hugepages or not; the message about it must be true and appear once.
fn assert_warned_once_or_served(standard_error: &str, free_before: u64) {
    let warnings: Vec<&str> = standard_error.lines().filter(|line| line.starts_with("warning: ")).collect();
    match warnings.as_slice() {
        [] => assert!(free_before > 0, "no hugepages and no warning: {standard_error}"),
        [warning] => {
            assert!(warning.starts_with("warning: hugepages: "), "{warning}");
            assert!(number_before(warning, " MiB of tables and buffers use ordinary pages") > 0);
            assert!(number_before(warning, " hugepages needed were free") > number_before(warning, " of the "));
            assert!(warning.contains(". Before the next start: echo "), "{warning}");
            assert!(warning.contains(" > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "{warning}");
        }
        more => panic!("one warning for the whole start: {more:#?}"),
    }
}

#[test]
fn a_benchmark_without_hugepages_warns_once_and_works() {
    let free_before = free_hugepages();
    let output = natrix("bench engine --sessions 200000 --mode established --workers 2 --seconds 0.1 --json");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout).lines().count(), 1);
    assert_warned_once_or_served(text(&output.stderr), free_before);
}

/// `natrix run` on devices that need no hardware.
#[cfg(feature = "dpdk")]
#[test]
fn an_instance_without_hugepages_warns_once_and_works() {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::process::Stdio;

    let socket = std::env::temp_dir().join(format!("natrix-{}-memory.sock", std::process::id()));
    let contents = format!(
        r#"
[[interface]]
name = "lan"
realm = "inside"
driver = "net_null0"
addresses = ["10.0.0.1/24"]

[[interface]]
name = "wan"
realm = "outside"
driver = "net_null1"
addresses = ["198.51.100.2/24"]

[[pool]]
name = "public"
addresses = ["203.0.113.1"]
subscribers = ["10.0.0.0/24"]

[tables]
mappings = 100000

[control]
socket = "{}"
"#,
        socket.display()
    );
    let path = file("null.toml", &contents);
    let free_before = free_hugepages();
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    let mut child = command.args(["run", "-c", path.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        said += &format!("{line}\n");
        // The last line of a start.
        if line.contains(" on 2 ports, configuration ") {
            let status = Command::new("kill").arg(child.id().to_string()).status().unwrap();
            assert!(status.success());
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(said.contains("stopped after"), "{said}");
    assert_warned_once_or_served(&said, free_before);
    fs::remove_file(path).unwrap();
}
