//! The audit log of an instance that does not run.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-audit-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn record(number: usize) -> String {
    let time = format!("2026-11-01T00:00:0{number}Z");
    format!(
        "{{\"time\":\"{time}\",\"who\":\"uid 0\",\"from\":\"control\",\"action\":\"find\",\"subject\":\"{number}\",\"result\":\"none\"}}\n"
    )
}

/// Whether it succeeds, its output and its remarks.
fn audit(socket: &Path, words: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    let output = command.args(["audit", "--socket"]).arg(socket).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn without_an_instance_the_file_is_read() {
    let folder = Folder::new("file");
    let socket = folder.0.join("control.sock");
    let (succeeds, out, notes) = audit(&socket, &[]);
    assert!(!succeeds && out.is_empty(), "{out}");
    let nobody = format!("control.audit.jsonl: does not exist, and no instance listens at {}; ", socket.display());
    assert!(notes.contains(&nobody) && notes.ends_with("with --config FILE\n"), "{notes}");

    folder.write("control.audit.jsonl-20261001", &record(0));
    let path = folder.write("control.audit.jsonl", &format!("{}{}", record(1), record(2)));
    let (succeeds, out, notes) = audit(&socket, &["--json"]);
    assert!(succeeds, "{notes}");
    let subjects: Vec<_> = out.lines().map(|line| line.split("\"subject\":").nth(1).unwrap()[..3].to_owned()).collect();
    assert_eq!(subjects, ["\"2\"", "\"1\"", "\"0\""], "{out}");
    let said = format!("no instance runs at {}; read {}", socket.display(), path.display());
    assert!(notes.contains(&said), "{notes}");

    let (_, out, notes) = audit(&socket, &["--limit", "2"]);
    assert_eq!(out.lines().count(), 3, "{out}");
    let cursor = notes.split("--cursor ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let (_, out, _) = audit(&socket, &["--limit", "2", &format!("--cursor={cursor}"), "--json"]);
    assert!(out.contains("\"subject\":\"0\"") && out.lines().count() == 1, "{out}");
    // Only its beginning was recorded, and nothing goes on.
    let begun = record(3).replace("\"none\"", "\"started\",\"id\":\"7\"");
    folder.write("control.audit.jsonl", &begun);
    let (_, out, _) = audit(&socket, &["--limit", "1"]);
    assert!(out.contains("not known: no end was recorded"), "{out}");
}

#[test]
fn a_configuration_names_the_file() {
    let folder = Folder::new("config");
    let elsewhere = folder.write("elsewhere.jsonl", &record(5));
    let text = format!(
        "[[interface]]\nname = \"lan\"\nrealm = \"inside\"\ndriver = \"net_tap0\"\naddresses = [\"10.0.0.1/24\"]\n\
         [[interface]]\nname = \"wan\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\naddresses = [\"192.0.2.2/24\"]\n\
         [[pool]]\nname = \"public\"\naddresses = [\"203.0.113.0/28\"]\n[control]\naudit = \"{}\"\n",
        elsewhere.display()
    );
    let config = folder.write("natrix.toml", &text).display().to_string();
    let socket = folder.0.join("control.sock");
    let (succeeds, out, notes) = audit(&socket, &["--config", &config, "--json"]);
    assert!(succeeds && out.contains("\"subject\":\"5\""), "{out}{notes}");

    // Faults elsewhere do not hide it, whether the text is TOML or not; those of [control] do.
    for (name, broken) in [("faulty", "addresses = [\"203.0.113.0/99\"]"), ("unreadable", "addresses = [203.0.113.0")] {
        let text = text.replace("addresses = [\"203.0.113.0/28\"]", broken);
        let config = folder.write(&format!("{name}.toml"), &text).display().to_string();
        let (succeeds, out, notes) = audit(&socket, &["--config", &config, "--json"]);
        assert!(succeeds && out.contains("\"subject\":\"5\""), "{name}: {out}{notes}");
    }
    let config = folder.write("wrong.toml", "[control]\naudit = \"here.jsonl\"\n").display().to_string();
    let (succeeds, _, notes) = audit(&socket, &["--config", &config]);
    assert!(!succeeds && notes.contains("wrong.toml:2: control.audit: is not the absolute path"), "{notes}");
}
