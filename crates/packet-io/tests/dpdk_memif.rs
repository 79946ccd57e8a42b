//! Two processes joined by shared memory: this program starts itself a second time, and the second
//! echoes.
//!
//! It has a `main` of its own because the second process must not be a test.

#![allow(clippy::expect_used, reason = "a test, though it has a main of its own")]

mod support;

use std::env;
use std::fs;
use std::io::BufRead as _;
use std::io::BufReader;
use std::process;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;
use packet_io::dpdk::Hugepages;
use packet_io::dpdk::start;
use packet_io::dpdk::start_patiently;

const PORT: PortIndex = PortIndex(0);
const FRAMES: u32 = 500;

fn device(number: usize, role: &str, socket: &str) -> String {
    format!("net_memif{number},role={role},id=0,socket={socket},socket-abstract=no,bsize=2048")
}

/// Hugepages where there are enough: the other side maps the client's buffers of either kind.
fn settings(ports: Vec<DpdkPort>) -> DpdkSettings {
    DpdkSettings { hugepages: Hugepages::Auto, ..support::settings(ports, 1) }
}

/// Sends back what comes, until the other process ends it.
fn echo(socket: &str) {
    let settings = settings(vec![support::port(&device(0, "client", socket))]);
    let ios = start_patiently(&settings, &mut |waiting| {
        if waiting.looks == 0 {
            println!("{waiting}");
        }
        true
    });
    let mut io = ios.expect("DPDK starts").remove(0);
    let mut burst = Burst::new();
    let mut echoed = 0;
    support::wait_for("all frames", || {
        io.receive(PORT, &mut burst);
        echoed += burst.len();
        io.transmit(PORT, &mut burst);
        echoed -= burst.len();
        (echoed == FRAMES as usize).then_some(())
    });
    // The frames are in the other's memory only while the link is up.
    support::wait_for("the other to end", || (!io.link_up(PORT)).then_some(()));
}

/// A process that does not outlive the test.
struct Echo(Child);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() == Some("echo") {
        echo(&arguments.next().expect("the socket"));
        return;
    }
    let sockets = ["early", "late"].map(|name| env::temp_dir().join(format!("natrix-memif-{name}-{}", process::id())));
    let names = sockets.each_ref().map(|socket| socket.to_str().expect("a printable path"));
    let program = env::current_exe().expect("this program");
    let echo = |name: &str| {
        let mut command = Command::new(&program);
        Echo(command.args(["echo", name]).stdout(Stdio::piped()).spawn().expect("it starts once more"))
    };

    // One client is there before its server.
    let mut early = echo(names[0]);
    let mut line = String::new();
    let mut printed = BufReader::new(early.0.stdout.take().expect("a pipe"));
    printed.read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), format!("port net_memif0: waiting for the memif server on {}", names[0]));

    let ports = [0, 1].map(|number| support::port(&device(number, "server", names[number])));
    let mut ios = start(&settings(ports.into())).expect("DPDK starts");
    assert!(!ios[0].link_up(PortIndex(1)), "nobody is there yet");
    let _late = echo(names[1]);
    for port in [PortIndex(0), PortIndex(1)] {
        support::wait_for("the other process", || ios[0].link_up(port).then_some(()));
        let frames: Vec<_> = (0..FRAMES).map(|number| support::frame(number, 60 + number as usize)).collect();
        for part in frames.chunks(50) {
            support::send(&mut ios[0], port, part);
            assert_eq!(support::receive(&mut ios, port, part.len()), part);
        }
    }
    drop(ios);
    for socket in sockets {
        let _ = fs::remove_file(socket);
    }
    println!("test frames_cross_shared_memory_between_two_processes ... ok");
    println!("test a_memif_client_waits_for_its_server_and_says_so_once ... ok");
    println!("test result: ok. 2 passed; 0 failed");
}
