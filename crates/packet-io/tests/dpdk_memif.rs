//! Two processes joined by shared memory: this program starts itself a second time, and the second echoes.
//!
//! It has a `main` of its own because the second process must not be a test.

#![allow(clippy::expect_used, reason = "a test, though it has a main of its own")]

mod support;

use std::env;
use std::fs;
use std::process;
use std::process::Child;
use std::process::Command;

use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::start;

const PORT: PortIndex = PortIndex(0);
const FRAMES: u32 = 500;

fn open(role: &str, socket: &str) -> Vec<DpdkIo> {
    let device = format!("net_memif0,role={role},id=0,socket={socket},socket-abstract=no,bsize=2048");
    start(&support::settings(vec![support::port(&device)], 1)).expect("DPDK starts")
}

/// Sends back what comes, until the other process ends it.
fn echo(socket: &str) {
    let mut io = open("client", socket).remove(0);
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
    let socket = env::temp_dir().join(format!("natrix-memif-{}.sock", process::id()));
    let name = socket.to_str().expect("a printable path");
    let mut ios = open("server", name);
    assert!(!ios[0].link_up(PORT), "nobody is there yet");
    let program = env::current_exe().expect("this program");
    let _echo = Echo(Command::new(program).args(["echo", name]).spawn().expect("it starts once more"));
    support::wait_for("the other process", || ios[0].link_up(PORT).then_some(()));

    let frames: Vec<_> = (0..FRAMES).map(|number| support::frame(number, 60 + number as usize)).collect();
    for part in frames.chunks(50) {
        support::send(&mut ios[0], PORT, part);
        assert_eq!(support::receive(&mut ios, PORT, part.len()), part);
    }
    drop(ios);
    let _ = fs::remove_file(&socket);
    println!("test frames_cross_shared_memory_between_two_processes ... ok");
    println!("test result: ok. 1 passed; 0 failed");
}
