//! Files that a configuration names: rules by the line, and where records of events go.
#![allow(clippy::expect_used, reason = "helpers of tests; a missing file should stop them")]

use std::fs;
use std::path::PathBuf;

use config::Config;
use config::Fault;
use config::Machine;
use nat::Settings;
use proptest::prelude::*;

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
fn columns_that_commas_do_not_separate_are_one_fault() {
    let folder = Folder::new("separators");
    for (lines, wanted) in [
        ("action;protocol;inside\ndrop;tcp;10.0.0.0/25\n", "columns: has semicolons between the columns"),
        ("action\tprotocol\ndrop\ttcp\n", "columns: has tabs between the columns"),
        ("action,protocol\rdrop,tcp\r", "rule: has a line that ends in CR alone"),
    ] {
        folder.write("rules.csv", lines.as_bytes());
        let faults = folder.parse("[[rule_file]]\npath = \"rules.csv\"\n").expect_err("a fault");
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(texts.len() == 1 && texts[0].contains(wanted), "{lines:?}: {texts:?}");
    }
}

#[test]
fn line_ends_of_cr_alone_are_the_fault() {
    for start in ["# A remark.\n", "", "\n[log]\nlevel = \"info\"\n"] {
        let text = format!("{start}{TEXT}").replace('\n', "\r");
        let faults = config::parse(&text, "natrix.toml").expect_err("it is not TOML");
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let wanted =
            "error: natrix.toml:1: has a line that ends in CR alone; save the file with the line ends of Unix (LF)";
        assert_eq!(texts, [wanted], "{start:?}");
        assert!(config::parse(&text.replace('\r', "\r\n"), "natrix.toml").is_ok(), "{start:?}");
    }
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
fn misplaced_quotes_are_reported() {
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
fn bytes_that_are_not_text_are_reported_with_their_line() {
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

/// Lines of each kind, and faulty ones.
fn rule_line(kind: u8, number: u8) -> String {
    match kind {
        0..=3 => format!("drop,tcp,10.0.0.{number}/32,,{number},"),
        4 | 5 => format!("translate,udp,10.0.0.{number}/32,,,a"),
        6 => format!("no-translation,tcp,10.0.0.{number}/32,198.51.100.0/24,,"),
        7 => format!("pass,gre,10.0.0.{number}/32,198.51.100.{number}/32,,"),
        8 => format!("redirect,tcp,10.0.0.{number}/32,198.51.100.0/24,80,"),
        9 => format!("# {number}"),
        10 => String::new(),
        11 => format!("drop,tcp,\"10.0.0.{number}/32\",,,"),
        12 => format!("drop,tcp,2001:db8:{number}::/48,,,"),
        // In the prefix of the line before, perhaps: then both have other blocks.
        13 => format!("drop,udp,2001:db8:{}:{:02}00::/56,,,", number - 1, number % 100),
        _ => format!("drop,tcp,10.0.0.{number}/24,,,"),
    }
}

fn rule_file(lines: &[(u8, u8)], columns_differ: bool) -> String {
    let columns = "action,protocol,inside,outside,outside_ports,pool";
    let columns = if columns_differ { columns.replace("inside,outside", "outside,inside") } else { columns.to_owned() };
    let mut text = format!("{columns},targets\n");
    for (kind, number) in lines {
        let line = rule_line(*kind, *number);
        let targets = if *kind == 8 { "198.51.100.7" } else { "" };
        let is_rule = !line.is_empty() && !line.starts_with('#');
        text += &if is_rule { format!("{line},{targets}\n") } else { format!("{line}\n") };
    }
    text
}

/// What compares equal although it may differ.
fn origins(settings: &Settings) -> String {
    format!("{:?}", settings.origins)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Lines that stayed are taken from the configuration before, which nobody can see.
    #[test]
    fn a_changed_rule_file_is_read_as_if_for_the_first_time(
        before in proptest::collection::vec(0_u8..14, 0..40),
        edits in proptest::collection::vec((0_usize..40, 0_u8..3, prop_oneof![20 => 0_u8..14, 1 => Just(14)]), 0..5),
        columns_differ in proptest::bool::weighted(0.1),
        more in prop_oneof![9 => Just(""), 1 => Just("[[pool]]\nname = \"b\"\naddresses = [\"203.0.113.16/28\"]\n")],
    ) {
        let folder = Folder::new("following");
        let hosts = "[[interface]]\nname = \"lan6\"\nrealm = \"inside\"\ndriver = \"net_tap6\"\naddresses = [\"10.6.0.1/24\", \"2001:db8:ffff::1/64\"]\n[[nat64]]\npool = \"a\"\n";
        let names = "[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"192.0.2.1\"\n[tables]\nflows = 1000\n[[rule_file]]\npath = \"first.csv\"\n[[rule_file]]\npath = \"second.csv\"\n";
        // No two rules for one host.
        let before: Vec<(u8, u8)> = before.into_iter().zip(1..).collect();
        let (first, second) = before.split_at(before.len() / 2);
        folder.write("first.csv", rule_file(first, false).as_bytes());
        folder.write("second.csv", rule_file(second, false).as_bytes());
        let names = &format!("{hosts}{names}");
        let running = folder.parse(names).expect("no fault");
        let mut after = second.to_vec();
        for ((at, edit, kind), number) in edits.into_iter().zip(100..) {
            let at = at.min(after.len());
            match edit {
                0 => after.insert(at, (kind, number)),
                1 if at < after.len() => after[at] = (kind, number),
                2 if at < after.len() => { after.remove(at); }
                _ => {}
            }
        }
        folder.write("second.csv", rule_file(&after, columns_differ).as_bytes());
        let text = format!("{names}{more}");
        let file = folder.0.join("natrix.toml").display().to_string();
        let machine = Machine { has_folders: true, ..Machine::default() };
        let following = config::parse_following(&format!("{TEXT}{text}"), &file, &machine, &running);
        match (folder.parse(&text), following) {
            (Ok(anew), Ok(following)) => {
                prop_assert_eq!(&anew.nat, &following.nat);
                prop_assert_eq!(origins(&anew.nat), origins(&following.nat));
            }
            (anew, following) => {
                prop_assert_eq!(anew.err(), following.err());
            }
        }
    }
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let folder = Folder::new("fifo");
    let fifo = folder.0.join("rules.csv");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let (sender, receiver) = std::sync::mpsc::channel();
    let (text, file) = (format!("{TEXT}[[rule_file]]\npath = \"rules.csv\"\n"), folder.0.join("natrix.toml"));
    std::thread::spawn(move || drop(sender.send(config::parse(&text, &file.display().to_string()))));
    let read = receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("nothing waits for a writer");
    let faults = read.expect_err("it is refused");
    let reported: Vec<_> = faults.iter().map(|fault| (fault.problem.as_str(), fault.seen.as_str())).collect();
    let seen = format!("{}: not a regular file", fifo.display());
    assert_eq!(reported, [("cannot be read", seen.as_str())]);
    assert_eq!(config::open_regular(&fifo).expect_err("no file").to_string(), "not a regular file");
}

#[test]
fn files_of_tls_have_to_be_there() {
    let folder = Folder::new("tls");
    let certificate = include_str!("tls/certificate.pem");
    let chain = folder.write("chain.pem", format!("a remark\n{certificate}{certificate}").as_bytes());
    let secret = folder.write("key.pem", include_bytes!("tls/key.pem"));
    let no_certificate =
        folder.write("no-certificate.pem", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n");
    let others = folder.write("other-key.pem", include_bytes!("tls/other-key.pem"));
    let of_no_use = folder.write("ed448-key.pem", include_bytes!("tls/ed448-key.pem"));
    let empty = folder.write("empty.pem", b"");
    let broken = folder.write(
        "broken.pem",
        b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----\n",
    );
    let missing = folder.0.join("missing.pem").display().to_string();
    let http = |certificate: &str, key: &str, authorities: &str| {
        format!(
            "[http]\nlisten = \"127.0.0.1:8080\"\n[http.tls]\ncertificate = \"{certificate}\"\n\
             key = \"{key}\"\nclient_authorities = \"{authorities}\"\n"
        )
    };
    let sink = |authorities: &str, certificate: &str, key: &str| {
        format!(
            "[log.store]\npath = \"{}/log\"\n[[log.sink]]\nname = \"c\"\nkind = \"syslog\"\naddress = \"tls://c.example.net:6514\"\n\
             certificates = \"{authorities}\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n",
            folder.0.display()
        )
    };
    for (text, keys) in [
        (
            &http as &dyn Fn(&str, &str, &str) -> String,
            ["http.tls.certificate", "http.tls.key", "http.tls.client_authorities"],
        ),
        (&sink, ["log.sink \"c\".certificates", "log.sink \"c\".certificate", "log.sink \"c\".key"]),
    ] {
        // The key is the second or the third.
        let right = keys.map(|key| if key.ends_with("key") { &secret } else { &chain });
        assert_eq!(folder.parse(&text(right[0], right[1], right[2])).err(), None);
        // TLS would refuse these pairs, and the API or the sink never start.
        for (certificate, secret, ends) in [
            (
                &chain,
                &others,
                format!(".key: is not the key of the certificate ({others}); name the key that {chain} was made for"),
            ),
            (&chain, &of_no_use, "and a certificate".to_owned()),
            (&no_certificate, &secret, "name a file with X.509 certificates".to_owned()),
        ] {
            let files = keys.map(|key| {
                if key.ends_with("key") {
                    secret
                } else if key.ends_with("certificate") {
                    certificate
                } else {
                    &chain
                }
            });
            let faults = folder.parse(&text(files[0], files[1], files[2])).expect_err("a pair is wrong");
            let reported: Vec<String> = faults.iter().map(ToString::to_string).collect();
            assert!(reported.len() == 1 && reported[0].ends_with(&ends), "{reported:?}");
        }
        for (at, key) in keys.iter().enumerate() {
            let (other, what, label) = match key.ends_with("key") {
                true => (&chain, "private key", "PRIVATE KEY"),
                false => (&secret, "certificate", "CERTIFICATE"),
            };
            let section = format!("name a file with a section that begins with -----BEGIN {label}-----");
            for (wrong, problem) in [
                (&missing, format!("is not a file ({missing}); name a file in PEM that is there")),
                (&empty, format!("has no {what} in PEM ({empty}); {section}")),
                (other, format!("has no {what} in PEM ({other}); {section}")),
                (&broken, format!("has a broken {what} in PEM ({broken}); {section}")),
                (
                    &no_certificate,
                    match key.ends_with("key") {
                        true => format!("has no {what} in PEM ({no_certificate}); {section}"),
                        // Those of authorities too.
                        false => {
                            let remedy = "name a file with X.509 certificates";
                            format!("has a certificate that is not one of X.509 ({no_certificate}); {remedy}")
                        }
                    },
                ),
            ] {
                let mut files = right;
                files[at] = wrong;
                let text = text(files[0], files[1], files[2]);
                let faults = folder.parse(&text).expect_err("a file is wrong");
                let reported: Vec<String> = faults.iter().map(ToString::to_string).collect();
                assert!(reported.len() == 1 && reported[0].ends_with(&format!("{key}: {problem}")), "{reported:?}");
                // Elsewhere the files may be others.
                assert!(config::parse(&format!("{TEXT}{text}"), "elsewhere.toml").is_ok());
            }
        }
    }
}

#[test]
fn an_inside_with_ipv6_hosts_alone_needs_no_ipv4_address() {
    let text = |outside: &str, subscribers: &str| {
        format!(
            "[[interface]]\nname = \"lan\"\nrealm = \"inside\"\ndriver = \"net_tap0\"\naddresses = [\"2001:db8:1::1/64\"]\n\
             [[interface]]\nname = \"wan\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\naddresses = [\"{outside}\"]\n\
             [[pool]]\nname = \"public\"\naddresses = [\"203.0.113.0/28\"]\n{subscribers}\
             [[nat64]]\npool = \"public\"\n"
        )
    };
    let config = config::parse(&text("192.0.2.2/24", ""), "a.toml").unwrap();
    assert!(config.nat.interfaces[0].addresses.is_empty());
    let faults =
        |text: &str| config::parse(text, "a.toml").unwrap_err().iter().map(ToString::to_string).collect::<String>();
    let written = faults(&text("192.0.2.2/24", "subscribers = [\"100.64.0.0/10\"]\n"));
    assert!(written.contains("cannot be reached by any inside interface or route (100.64.0.0/10)"), "{written}");
    let outside = faults(&text("2001:db8:2::2/64", ""));
    assert!(outside.contains("\"wan\".addresses: have no IPv4 address"), "{outside}");
}
