//! A virtio device with its other half in a second process, as of a virtual switch or machine
//! monitor: this program starts itself a second time, and the second echoes.
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
use packet_io::dpdk::start;

const PORT: PortIndex = PortIndex(0);
const FRAMES: u32 = 500;

/// The half that owns the socket: sends back what comes until it is killed.
fn echo(socket: &str) {
    let device = format!("net_vhost0,iface={socket},queues=1");
    let mut io = start(&support::settings(vec![support::port(&device)], 1)).expect("DPDK starts").remove(0);
    let mut burst = Burst::new();
    let mut echoed = 0;
    support::wait_for("all frames", || {
        io.receive(PORT, &mut burst);
        echoed += burst.len();
        io.transmit(PORT, &mut burst);
        echoed -= burst.len();
        (echoed == FRAMES as usize).then_some(())
    });
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
    let socket = env::temp_dir().join(format!("natrix-vhost-{}.sock", process::id()));
    let name = socket.to_str().expect("a printable path");
    let program = env::current_exe().expect("this program");
    let _echo = Echo(Command::new(program).args(["echo", name]).spawn().expect("it starts once more"));
    support::wait_for("the socket", || socket.exists().then_some(()));

    let device = format!("net_virtio_user0,path={name},queues=1");
    let mut ios = start(&support::settings(vec![support::port(&device)], 1)).expect("DPDK starts");
    support::wait_for("the other process", || ios[0].link_up(PORT).then_some(()));

    let frames: Vec<_> = (0..FRAMES).map(|number| support::frame(number, 60 + number as usize)).collect();
    for part in frames.chunks(50) {
        support::send(&mut ios[0], PORT, part);
        assert_eq!(support::receive(&mut ios, PORT, part.len()), part);
    }
    drop(ios);
    let _ = fs::remove_file(&socket);
    println!("test frames_cross_a_virtio_device_between_two_processes ... ok");
    println!("test result: ok. 1 passed; 0 failed");
}
