//! A small disk that a test fills.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::path::PathBuf;
use std::process::Child;
use std::process::ChildStdout;
use std::process::Command;
use std::process::Stdio;

/// A disk of 8 MiB in memory, in the mount namespace of a process that only holds it until the end
/// of the test.
pub(crate) struct Disk {
    keeper: Child,
    answers: BufReader<ChildStdout>,
    pub(crate) path: PathBuf,
}

impl Disk {
    pub(crate) fn new() -> Disk {
        let script = "mount -t tmpfs -o size=8m tmpfs /mnt && echo ready && \
                      while read mode; do mount -o remount,$mode /mnt; echo $?; done";
        // Only other users than root need a user namespace.
        let ways: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];
        for way in ways {
            let mut command = Command::new("unshare");
            command.args(way).args(["sh", "-c", script]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut keeper = command.spawn().expect("unshare is part of util-linux");
            let mut line = String::new();
            let mut answers = BufReader::new(keeper.stdout.take().expect("it was asked for"));
            if answers.read_line(&mut line).is_ok() && line == "ready\n" {
                let path = PathBuf::from(format!("/proc/{}/root/mnt", keeper.id()));
                return Disk { keeper, answers, path };
            }
            let _ = keeper.wait();
        }
        panic!("no namespace for a small disk: run as root, or allow user namespaces");
    }

    /// Makes the disk read-only (`ro`) or writable (`rw`); no file may be open for writing.
    #[allow(dead_code, reason = "not every test that has a disk does it")]
    pub(crate) fn remount(&mut self, mode: &str) {
        let input = self.keeper.stdin.as_mut().expect("it is kept open");
        writeln!(input, "{mode}").expect("the keeper reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the keeper answers");
        assert_eq!(answer, "0\n", "mount -o remount,{mode}");
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) {
        let mut file = fs::File::create(self.path.join("filler")).expect("a file");
        let (page, mut written) = ([0; 4_096], 0_u64);
        while file.write_all(&page).is_ok() {
            written += 1;
            assert!(written < 1 << 16, "the disk is small");
        }
    }

    /// Frees the space again.
    pub(crate) fn make_room(&self) {
        fs::remove_file(self.path.join("filler")).expect("our own file");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
