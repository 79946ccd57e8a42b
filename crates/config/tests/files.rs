//! Files that a configuration names: rules by the line, and where records of events go.
#![allow(clippy::expect_used, reason = "helpers of tests; a missing file should stop them")]

use std::fs;
use std::path::PathBuf;

use config::Config;
use config::Fault;
use config::Machine;

const TEXT: &str = r#"
[[interface]]
name = "lan"
realm = "inside"
driver = "net_tap0"
addresses = ["10.0.0.1/24"]

[[interface]]
name = "wan"
realm = "outside"
driver = "net_tap1"
addresses = ["192.0.2.2/24"]

[[pool]]
name = "a"
addresses = ["203.0.113.0/28"]
"#;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("natrix-config-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder of our own");
        Folder(folder)
    }

    fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("a file of our own");
        path.display().to_string()
    }

    /// Compiled on a machine whose files are there.
    fn parse(&self, more: &str) -> Result<Config, Vec<Fault>> {
        let file = self.0.join("natrix.toml").display().to_string();
        config::parse_for(&format!("{TEXT}{more}"), &file, &Machine { has_folders: true, ..Machine::default() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("only our own files");
    }
}

#[test]
fn a_rule_file_may_have_a_byte_order_mark_and_quoted_fields() {
    let folder = Folder::new("quotes");
    let lines = "\u{feff}# From a spreadsheet.\r\naction,\"name\",protocol,outside\r\n\
                 \"deny\",\"mail\",\"tcp\",192.0.2.0/25\r\n\
                 \"deny\" , \" web \" ,\"\", \"192.0.2.128/25\" \r\n\
                 deny,plain,udp,\r\n";
    folder.write("filters.csv", lines.as_bytes());
    let config = folder.parse("[[filter_file]]\npath = \"filters.csv\"\n").expect("no fault");
    let names: Vec<&str> = config.nat.filter_names.values().map(String::as_str).collect();
    assert_eq!((config.nat.filters.len(), names), (3, vec!["mail", "web", "plain"]));
    // Without a remark before it, too.
    folder.write("filters.csv", "\u{feff}action,protocol\ndeny,tcp\n".as_bytes());
    assert_eq!(folder.parse("[[filter_file]]\npath = \"filters.csv\"\n").expect("no fault").nat.filters.len(), 1);
}

#[test]
fn a_comma_in_quotes_parts_no_fields() {
    let folder = Folder::new("commas");
    folder.write("filters.csv", b"action,protocol,outside_ports,outside\ndeny,tcp,\"80,443\",\"192.0.2.0/25\"\n");
    let faults = folder.parse("[[filter_file]]\npath = \"filters.csv\"\n").expect_err("ports are one range");
    let reported: Vec<_> = faults.iter().map(|fault| (fault.object.as_str(), fault.seen.as_str())).collect();
    assert_eq!(reported, [("outside_ports", "80,443")], "the field is at fault, and not their number");
}

#[test]
fn quotes_that_are_not_around_a_field_are_told() {
    let folder = Folder::new("torn");
    folder.write("filters.csv", b"action,name,protocol\ndeny,\"web,tcp\ndeny,\"web\"s,tcp\ndeny,web,tcp\n");
    let faults = folder.parse("[[filter_file]]\npath = \"filters.csv\"\n").expect_err("two lines are faulty");
    let reported: Vec<_> =
        faults.iter().map(|fault| (fault.line, fault.problem.as_str(), fault.seen.as_str())).collect();
    let problem = "has a quote that does not end with its field";
    assert_eq!(reported, [(Some(2), problem, "deny,\"web,tcp"), (Some(3), problem, "deny,\"web\"s,tcp")]);
}

#[test]
fn records_go_to_no_file_that_is_something_else() {
    let folder = Folder::new("events");
    let of = |path: &str| folder.parse(&format!("[log]\nevents = \"{path}\"\n"));
    let record = "{\"time\":\"2026-11-21T19:00:00.000000Z\",\"event\":\"started\"}\n";
    for (name, content) in [
        ("empty.json", ""),
        ("blank.json", "\n\n"),
        ("events.json", record),
        ("begun.json", "{\"tim"),
        ("cut.json", &format!("-21T18:59:59.000000Z\"}}\n{record}")),
        ("killed.json", &format!("{record}{{\"time\":\"2026")),
    ] {
        let path = folder.write(name, content.as_bytes());
        assert!(of(&path).is_ok(), "{name}: {:?}", of(&path));
    }
    assert!(of(&folder.0.join("not_there_yet.json").display().to_string()).is_ok());
    let text = folder.write("natrix.toml", TEXT.as_bytes());
    let others = folder.write("others.json", b"{\"name\": \"natrix\"}\n");
    for (path, problem) in [
        (text.as_str(), "is not an event log: none of its lines is a record"),
        (&others, "is not an event log: none of its lines is a record"),
        ("/dev/null", "is not a regular file"),
        ("/dev/full", "is not a regular file"),
    ] {
        let faults = of(path).expect_err("it is refused");
        let reported: Vec<_> = faults.iter().map(|fault| (fault.object.as_str(), fault.problem.as_str())).collect();
        assert_eq!(reported, [("log.events", problem)], "{path}");
        assert_eq!(faults[0].seen, path);
        // What is for another machine is not looked for on this one.
        let elsewhere = config::parse(&format!("{TEXT}[log]\nevents = \"{path}\"\n"), "natrix.toml");
        assert!(elsewhere.is_ok(), "{elsewhere:?}");
    }
}

#[test]
fn a_file_that_is_no_text_is_told_with_its_line() {
    let fault = config::text(b"[workers]\n# K\xf6ln\n".to_vec(), "natrix.toml").expect_err("it is Latin-1");
    let reported =
        "error: natrix.toml:2: is not UTF-8 (byte 0xf6); save the file as UTF-8, or write this line in plain ASCII";
    assert_eq!(fault.to_string(), reported);
    assert_eq!(config::text("# K\u{f6}ln".into(), "natrix.toml").as_deref(), Ok("# K\u{f6}ln"));
}

#[test]
fn too_many_ambiguous_untranslated_rules_give_one_warning() {
    let folder = Folder::new("unreported");
    let lines = |count: u16| {
        let line = |n: u16| {
            // The VRFs use different ports, so that no reply could be for either.
            let (vrf, port) = if n.is_multiple_of(2) { ("default", 10_000 + n) } else { ("blue", 40_000 + n) };
            format!("no-translation,{vrf},tcp,100.64.0.0/10,192.0.2.128/25,{port}\n")
        };
        let lines: String = (0..count).map(line).collect();
        format!("action,vrf,protocol,inside,outside,outside_ports\n{lines}")
    };
    let vrfs = r#"
[[interface]]
name = "lan2"
realm = "inside"
vrf = "blue"
driver = "net_tap2"
addresses = ["10.1.0.1/24"]

[[route]]
prefix = "100.64.0.0/10"
via = "10.0.0.2"

[[route]]
prefix = "100.64.0.0/10"
via = "10.1.0.2"

[[rule_file]]
path = "rules.csv"
"#;
    let reported = |count: u16| -> Vec<String> {
        folder.write("rules.csv", lines(count).as_bytes());
        let config = folder.parse(vrfs).expect("no fault");
        config
            .warnings
            .iter()
            .map(ToString::to_string)
            .filter(|reported| reported.contains("not all were compared"))
            .collect()
    };
    assert_eq!(reported(100), [""; 0]);
    let reported = reported(5_000);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("rule: list: so many rules pass packets of VRFs"), "{reported:?}");
}
