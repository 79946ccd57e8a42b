//! DPDK's own forwarder, `dpdk-testpmd`, on the same driver and CPU; it runs in its turns only.
//!
//! It takes commands on its standard input, and counts for itself: `show port stats all` prints
//! the rate since it was last asked.

use core::time::Duration;
use std::env;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::path::PathBuf;
use std::process::Child;
use std::process::ChildStdin;
use std::process::Command;
use std::process::Stdio;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use super::Driver;
use super::bed;
use super::cpu_time;

/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);
const PORTS: usize = 2;
/// Bursts that each port sends first, to have something to forward.
const FIRST_BURSTS: u32 = 4;
/// How often it is started anew when nothing circulates: links may have come up late.
const ATTEMPTS: usize = 5;

/// The running program, forwarding nothing.
pub(super) struct Testpmd {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    socket: PathBuf,
    has_packets: bool,
}

impl Testpmd {
    /// Starts it on two ports of the driver and on one CPU. Otherwise a sentence that says why not,
    /// and what to do.
    pub(super) fn start(program: &str, driver: Driver, cpu: usize) -> Result<Testpmd, String> {
        let socket = bed::socket("testpmd");
        let memory = bed::MEMORY_MIB.to_string();
        let path = find(program).ok_or_else(|| format!("{program} is not installed; apt-get install dpdk-dev"))?;
        // Into a pipe it would write only when four kilobytes have come together.
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(path);
        command.args(["--no-huge", "--no-shconf", "--no-telemetry", "--no-pci", "--log-level", "error", "-m", &memory]);
        // Two of its threads on one CPU: the first waits for commands, the second forwards.
        command.args(["--lcores", &format!("0@{cpu},1@{cpu}")]);
        for device in driver.devices(&socket.display().to_string(), false) {
            command.args(["--vdev", &device]);
        }
        command.args(["--", "-i", "--nb-cores=1", "--burst=64", "--forward-mode=mac", "--no-flush-rx"]);
        command.args(["--total-num-mbufs=8191", &format!("--txpkts={}", super::frame::FRAME_BYTES)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|error| format!("{program} does not start ({error}); try it by hand"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{program} does not start (no pipes)"));
        };
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut testpmd = Testpmd { child, input, lines, socket, has_packets: false };
        // It answers when its ports are up.
        testpmd.rate()?;
        Ok(testpmd)
    }

    /// Packets that it forwards in a second of CPU time, over so many seconds.
    pub(super) fn packets_per_second(&mut self, seconds: f64) -> Result<f64, String> {
        let settle = Duration::from_millis(20);
        for _ in 0..ATTEMPTS {
            self.say(&if self.has_packets { "start".to_owned() } else { format!("start tx_first {FIRST_BURSTS}") })?;
            thread::sleep(settle);
            self.rate()?;
            let (begin, running) = (Instant::now(), cpu_time::of_process(self.child.id()));
            thread::sleep(Duration::from_secs_f64(seconds));
            let rate = self.rate()?;
            let now_running = cpu_time::of_process(self.child.id());
            let rate = rate / cpu_time::share(running, now_running, begin.elapsed().as_nanos() as f64);
            self.say("stop")?;
            // Its thread is done with the CPU when it says so.
            self.wait_for("Accumulated forward statistics")?;
            self.wait_for("Done.")?;
            if rate > 0.0 {
                self.has_packets = true;
                return Ok(rate);
            }
            thread::sleep(settle * 10);
        }
        Err("testpmd forwards nothing (0 packets a second); try it by hand".to_owned())
    }

    /// What all ports together sent a second since the last time this was asked.
    fn rate(&mut self) -> Result<f64, String> {
        self.say("show port stats all")?;
        let mut sum = 0.0;
        for _ in 0..PORTS {
            let line = self.wait_for("Tx-pps:")?;
            sum += sent_a_second(&line).ok_or_else(|| format!("testpmd says what is not understood ({line})"))?;
        }
        Ok(sum)
    }

    fn say(&mut self, words: &str) -> Result<(), String> {
        let said = writeln!(self.input, "{words}").and_then(|()| self.input.flush());
        said.map_err(|error| format!("testpmd has ended ({error}); try it by hand"))
    }

    fn wait_for(&mut self, words: &str) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(words) {
                return Ok(line);
            }
        }
        Err(format!("testpmd does not answer (waited for `{words}`); try it by hand"))
    }
}

/// A program on the path.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The number of packets in testpmd's line of what was sent.
fn sent_a_second(line: &str) -> Option<f64> {
    line.split_once("Tx-pps:")?.1.split_whitespace().next()?.parse().ok()
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let asked = self.say("quit");
        let until = Instant::now() + Duration::from_secs(5);
        while asked.is_ok() && Instant::now() < until {
            if let Ok(Some(_)) = self.child.try_wait() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // A process that is gone already cannot be ended again, and that is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transmit_rate_of_testpmd_is_read() {
        assert_eq!(sent_a_second("  Tx-pps:     33936633          Tx-bps:            0"), Some(33_936_633.0));
        assert_eq!(sent_a_second("  Rx-pps:     33936633          Rx-bps:            0"), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_the_remedy() {
        let reason = Testpmd::start("dpdk-testpmd-of-nowhere", Driver::Null, 0).err();
        assert_eq!(reason.as_deref(), Some("dpdk-testpmd-of-nowhere is not installed; apt-get install dpdk-dev"));
    }
}
