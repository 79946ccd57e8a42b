//! Many processes start DPDK at once, with hugepages for some of them.

#![cfg(feature = "dpdk")]
#![allow(clippy::expect_used, reason = "helpers of a test")]

mod support;

use std::env;
use std::fs;
use std::io::Read as _;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

use packet_io::dpdk::Hugepages;
use packet_io::dpdk::start;

const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
/// 64 MiB, the least DPDK is started with.
const PAGES: u64 = 32;
/// Set for the processes that this test starts.
const STARTS: &str = "NATRIX_TEST_STARTS_DPDK";

/// A process that does not outlive the test.
struct Starting(Child);

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counting pages and taking them is two steps, between which another process may take them.
#[test]
fn every_process_starts_where_pages_suffice_for_some() {
    if env::var_os(STARTS).is_some() {
        let mut settings = support::settings(vec![support::port("net_null0")], 1);
        settings.hugepages = Hugepages::Auto;
        settings.memory_bytes = 64 << 20;
        let _ios = start(&settings).expect("it starts on some kind of pages");
        // Keeps its pages until all have started.
        println!("started");
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let free: u64 = fs::read_to_string(FREE).map_or(0, |pages| pages.trim().parse().expect("a number"));
    let processes = (free / PAGES).min(28) + 4;
    let program = env::current_exe().expect("this program");
    let mut all: Vec<Starting> = Vec::new();
    for number in 0..processes {
        // Every other one has a network namespace of its own, as `ip netns exec` makes it.
        let mut command = if number % 2 == 0 { Command::new(&program) } else { Command::new("unshare") };
        if number % 2 == 1 {
            let line = "mount -t sysfs sysfs /sys && exec \"$@\"";
            command.args(["--net", "--mount", "sh", "-c", line, "sh"]).arg(&program);
        }
        let command =
            command.args(["--nocapture", "every_process_starts_where_pages_suffice_for_some"]).env(STARTS, "");
        all.push(Starting(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts once more")));
    }
    for Starting(process) in &mut all {
        let mut said = Vec::new();
        let output = process.stdout.as_mut().expect("a pipe");
        while !said.ends_with(b"started\n") {
            let mut byte = [0];
            assert_eq!(output.read(&mut byte).expect("a pipe can be read"), 1, "{}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
    }
}
