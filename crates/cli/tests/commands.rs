//! Every command from its command line over a socket to its output.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod mock;

use std::io;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use cli::CliError;
use cli::Command;
use mock::Mock;

struct Outcome {
    out: String,
    notes: String,
    error: Option<String>,
}

fn run_at(socket: &Path, words: &str) -> Outcome {
    let socket = format!("--socket={}", socket.display());
    let words = ["natrix"].into_iter().chain(words.split(' ')).chain([socket.as_str()]);
    let Command::Client(command) = cli::try_parse_from(words).unwrap() else { panic!("not a client command") };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let error = cli::execute(&command, &mut out, &mut notes).err().map(|error| error.to_string());
    Outcome { out: String::from_utf8(out).unwrap(), notes: String::from_utf8(notes).unwrap(), error }
}

fn run(words: &str) -> Outcome {
    let mock = Mock::start();
    run_at(&mock.socket(), words)
}

/// Compares with `tests/expected/<name>.txt`; with `NATRIX_BLESS` set, writes that file instead.
fn check(name: &str, words: &str) {
    let outcome = run(words);
    assert_eq!(outcome.error, None, "{words}");
    let text = format!("$ natrix {words}\n{}{}", outcome.out, outcome.notes);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected").join(format!("{name}.txt"));
    if std::env::var_os("NATRIX_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "run with NATRIX_BLESS=1 to accept");
}

#[test]
fn status_shows_tables_traffic_and_workers() {
    check("status", "show status");
}

#[test]
fn interfaces_show_links_and_traffic() {
    check("interfaces", "show interfaces");
}

#[test]
fn pools_show_how_full_they_are() {
    check("pools", "show pools");
    check("pool_addresses", "show pools --addresses");
    check("pool_addresses_filtered", "show pools --addresses --external 203.0.113.11 --json");
}

#[test]
fn an_unknown_pool_is_an_error() {
    let outcome = run("show pools --pool nope");
    let error = "pool \"nope\": does not exist; use one of: public";
    assert_eq!((outcome.out.as_str(), outcome.error.as_deref()), ("", Some(error)));
    assert_eq!(run("show pools --pool public --json").out.lines().count(), 1);
}

#[test]
fn a_reload_of_the_same_configuration_reports_no_changes() {
    check("reload_again", "reload -c /etc/natrix/natrix.toml");
    check("reload_again_unsaved", "reload -c /etc/natrix/unsaved.toml");
}

#[test]
fn subscribers_show_their_external_address() {
    check("subscribers", "show subscribers");
    check("subscribers_filtered", "show subscribers --internal 10.0.0.3/32 --json");
}

#[test]
fn mappings_show_both_endpoints() {
    check("mappings", "show mappings");
    check("mappings_json", "show mappings --protocol udp --internal 10.0.0.0/24:4000 --worker 1 --json");
}

#[test]
fn sessions_are_filtered_by_every_endpoint() {
    check("sessions", "show sessions");
    check("sessions_remote", "show sessions --remote 198.51.100.7:53 --external 203.0.113.10");
    check("sessions_state", "show sessions --state established --port 443 --json");
}

#[test]
fn a_limit_ends_a_list_with_a_cursor() {
    check("sessions_limit", "show sessions --limit 2");
    check("sessions_cursor", "show sessions --limit 2 --cursor 2");
    let all = run("show sessions --all --json");
    assert_eq!(all.out.lines().count(), 4);
    assert_eq!(all.notes, "");
}

#[test]
fn every_show_takes_a_limit() {
    for what in [
        "interfaces",
        "pools",
        "subscribers",
        "mappings",
        "sessions",
        "routes",
        "neighbours",
        "rules",
        "counters",
        "drops",
    ] {
        let outcome = run(&format!("show {what} --limit 1 --json"));
        assert_eq!((outcome.out.lines().count(), outcome.error), (1, None), "{what}");
    }
    let status = run("show status --limit 1 --json").out;
    assert_eq!(status.matches("\"busy_ratio\"").count(), 1, "{status}");
}

#[test]
fn a_plan_shows_differences_and_their_effects() {
    check("plan", "plan -c /etc/natrix/new.toml");
    check("plan_details", "plan -c /etc/natrix/new.toml --details 5");
    check("plan_json", "plan -c /etc/natrix/new.toml --json");
}

#[test]
fn a_drain_shows_what_is_left() {
    check("drain", "drain");
    check("drain_undo", "drain --undo");
    check("drain_json", "drain --json");
    assert!(cli::try_parse_from(["natrix", "drain", "--undo", "--wait", "3"]).is_err(), "there is nothing to wait for");
}

#[test]
fn a_drain_fails_when_its_wait_times_out() {
    let outcome = run("drain --wait 3");
    let error = "drain: traffic has not left (81,234 packets a second after 3 s); wait longer: established flows still \
                 come by a shorter prefix; without one, check that the neighbours have withdrawn the pools";
    assert_eq!(outcome.error.as_deref(), Some(error));
    assert!(outcome.notes.contains("waiting up to 3 s"), "{}", outcome.notes);
    assert!(outcome.out.contains("left: 81,234 packets a second, 2 subscribers"), "{}", outcome.out);
}

#[test]
fn a_reload_shows_what_changed() {
    check("reload", "reload -c /etc/natrix/new.toml");
    check("reload_rollback", "reload --rollback --json");
}

#[test]
fn all_faults_of_a_new_configuration_are_reported() {
    let outcome = run("plan -c /etc/natrix/faulty.toml");
    let fault = "error: /etc/natrix/new.toml:14: pool \"main\".ports: is no range of ports (\"x\"); write ports = \"1024-65535\"\n";
    assert_eq!(outcome.notes, fault);
    let error = "configuration /etc/natrix/faulty.toml: has faults (1); correct them and try again";
    assert_eq!(outcome.error.as_deref(), Some(error));
    assert!(cli::try_parse_from(["natrix", "reload"]).is_err(), "the new configuration is missing");
    assert!(cli::try_parse_from(["natrix", "reload", "--rollback", "-c", "x"]).is_err(), "only one of them is allowed");
}

#[test]
fn rules_show_what_they_match() {
    check("rules", "show rules");
}

#[test]
fn counters_are_filtered_by_name() {
    check("counters", "show counters");
    check("counters_name", "show counters --name outb --json");
}

#[test]
fn drops_are_most_frequent_first_with_a_sentence() {
    check("drops", "show drops");
    check("drops_all", "show drops --all --json");
}

#[test]
fn find_reports_the_holder_or_that_the_endpoint_is_unused() {
    check("find", "find 203.0.113.10:40001");
    check("find_nobody", "find 203.0.113.11:9");
    check("find_json", "find 203.0.113.10:40001 --protocol udp --json");
}

#[test]
fn why_shows_every_step_and_the_verdict() {
    check("show_grants", "show grants");
    check("show_grants_json", "show grants --json");
    check("show_algs", "show algs");
    check("show_algs_json", "show algs --json");
    check("show_expectations", "show expectations");
    check("show_expectations_json", "show expectations --json");
    check("show_routes", "show routes");
    check("show_routes_json", "show routes --json");
    check("show_neighbours", "show neighbours");
    check("show_neighbours_json", "show neighbours --json");
    check("audit", "audit");
    check("audit_json", "audit --json");
    check("why", "why udp 10.0.0.2:4000 198.51.100.7:53");
    check("why_json", "why udp 10.0.0.2:4000 198.51.100.7:53 --json");
}

#[test]
fn no_name_reaches_the_terminal_as_it_is() {
    let mock = Mock::serve(mock::answer_hostile);
    for words in [
        "why udp 10.0.0.2:4000 198.51.100.7:53",
        "trace --count 2 --steps",
        "plan --config new.toml --details 20",
        "reload --config new.toml",
        "show status",
        "show drops",
    ] {
        let outcome = run_at(&mock.socket(), words);
        assert_eq!(outcome.error, None, "{words}");
        let text = format!("{}{}", outcome.out, outcome.notes);
        assert!(text.contains("\\u{1b}[2J\\u{202e}\\nforged"), "{words}: {text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("\nforged"), "{words}: {text}");
    }
}

#[test]
fn trace_shows_packets_before_and_after() {
    check("trace", "trace --count 2 --steps");
    check("trace_json", "trace --dropped --count 1 --json");
}

#[test]
fn trace_writes_a_capture_file_with_both_frames() {
    let mock = Mock::start();
    let path = mock.directory().join("trace.pcap");
    let outcome = run_at(&mock.socket(), &format!("trace --count 2 --pcap {}", path.display()));
    assert_eq!(outcome.error, None);
    let bytes = std::fs::read(path).unwrap();
    // A header of 24 bytes, then the one record with frames: 16 and 14 bytes for each frame.
    assert_eq!(bytes.len(), 24 + 2 * (16 + 14));
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(u32::from_le_bytes(bytes[20..24].try_into().unwrap()), 1, "Ethernet");
    let word = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
    assert_eq!([word(24), word(28), word(32), word(36)], [1_700_000_000, 123_456, 14, 74]);
    assert_eq!([word(24 + 30 + 8), word(24 + 30 + 12)], [14, 14]);
    assert_eq!(bytes[40..46], [2, 0, 0, 0, 0, 1]);
}

#[test]
fn a_refused_request_shows_the_daemons_reason() {
    let outcome = run("why udp 10.0.0.2:4000 198.51.100.7:53 --interface dmz");
    assert_eq!(outcome.error.unwrap(), "interface: no such interface (dmz); see `natrix show interfaces`");
    let outcome = run("show sessions --cursor nonsense");
    assert_eq!(outcome.error.unwrap(), "cursor: not made by this daemon (nonsense); start from the first page");
}

#[test]
fn a_missing_daemon_is_named_with_its_socket() {
    let outcome = run_at(Path::new("/nonexistent/control.sock"), "show status");
    let expected = "/nonexistent/control.sock: cannot connect (No such file or directory (os error 2)); \
                    start `natrix run`, or run this as a member of the group natrix";
    assert_eq!(outcome.error.unwrap(), expected);
}

#[test]
fn another_protocol_version_is_refused_with_both_versions() {
    let mock = Mock::serve(|mut stream: UnixStream| {
        let _ = stream.write_all(b"{\"natrix_control\":9,\"version\":\"7.0.0\"}\n");
        let mut sink = [0; 100];
        let _ = io::Read::read(&mut stream, &mut sink);
    });
    let expected = format!(
        "{}: protocol mismatch (daemon version 9 of natrix 7.0.0, this command version 1); \
         use the natrix command of the daemon's release",
        mock.socket().display()
    );
    assert_eq!(run_at(&mock.socket(), "show status").error.unwrap(), expected);
}

#[test]
fn a_server_that_is_not_natrix_is_recognised() {
    let mock = Mock::serve(|mut stream: UnixStream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = run_at(&mock.socket(), "show status").error.unwrap();
    assert!(error.contains("daemon sent no hello of natrix"), "{error}");
}

#[test]
fn a_daemon_that_dies_in_the_middle_is_an_error() {
    let mock = Mock::serve(|stream: UnixStream| {
        let mut reader = stream.try_clone().unwrap();
        let mut writer = stream;
        let _ = writer.write_all(b"{\"natrix_control\":1,\"version\":\"0.1.0\"}\n");
        let mut sink = [0; 400];
        // The hello and the request may come in one read or in two.
        let _ = io::Read::read(&mut reader, &mut sink);
        let _ = writer.write_all(b"{\"status\":{\"version\"");
    });
    let error = run_at(&mock.socket(), "show status").error.unwrap();
    assert!(error.contains("lost the daemon"), "{error}");
}

#[test]
fn a_reader_that_goes_away_is_not_a_failure() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mock = Mock::start();
    for words in ["show sessions", "show status --json", "trace --count 1", "find 203.0.113.11:9"] {
        let socket = format!("--socket={}", mock.socket().display());
        let words = ["natrix"].into_iter().chain(words.split(' ')).chain([socket.as_str()]);
        let Command::Client(command) = cli::try_parse_from(words).unwrap() else { panic!("not a client command") };
        let error: CliError = cli::execute(&command, &mut Gone, &mut io::sink()).unwrap_err();
        assert!(error.is_broken_pipe(), "{error}");
    }
}

#[test]
fn every_example_in_the_documentation_is_real() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(tests.join("../../docs/commands.md")).unwrap();
    let expected: Vec<String> = std::fs::read_dir(tests.join("tests/expected"))
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let examples: Vec<&str> = page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 15, "{}", examples.len());
    for example in examples {
        assert!(expected.iter().any(|text| text == example), "no command prints this:\n{example}");
    }
}

#[test]
fn every_lookup_sends_its_case() {
    use std::io::BufRead as _;
    static HELLOS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    // Reads the hello and goes away.
    let mock = Mock::serve(|stream| {
        let (mut reader, mut hello) = (io::BufReader::new(stream), String::new());
        let _ = reader.read_line(&mut hello);
        HELLOS.lock().unwrap().push(hello);
        // The command ends when this is dropped.
        drop(reader);
    });
    let lookups = [
        "show subscribers",
        "show mappings",
        "show sessions",
        "show grants",
        "show expectations",
        "find 203.0.113.7:5000",
        "why udp 10.0.0.2:4000 198.51.100.7:53",
        "trace",
        "plan --config next.toml --details=5",
    ];
    for words in lookups {
        run_at(&mock.socket(), &format!("{words} --case AZ-17"));
    }
    let hellos = HELLOS.lock().unwrap();
    assert_eq!(hellos.len(), lookups.len());
    for (hello, words) in hellos.iter().zip(lookups) {
        assert!(hello.contains("\"case\":\"AZ-17\""), "{words}: {hello}");
    }
}
