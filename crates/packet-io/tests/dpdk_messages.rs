//! What DPDK says on the terminal: nothing while all goes well, everything when it does not start.
//!
//! The test starts itself once more for each case, because DPDK starts once per process.

#![cfg(feature = "dpdk")]
#![allow(clippy::expect_used, reason = "also in what the tests share")]

mod support;

use std::env;
use std::fs;
use std::process;
use std::process::Command;
use std::process::Output;

use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::DpdkError;
use packet_io::dpdk::start;
use packet_io::dpdk::start_patiently;

/// Devices for the second process, one behind the other.
const DEVICES: &str = "NATRIX_TEST_DEVICES";

/// The second process: starts the devices and ends. Does nothing where none are named.
#[test]
fn devices_of_the_environment_start() {
    let Ok(devices) = env::var(DEVICES) else { return };
    if devices.contains("iface=ours") {
        support::own_network();
        support::veth("ours", "theirs", 1);
    }
    let ports = devices.split(' ').map(support::port).collect();
    let ios = start(&support::settings(ports, 1)).expect("DPDK starts");
    // Ends of a shared memory that find each other while they are closed are another matter.
    support::wait_for("all links", || {
        (0..ios[0].port_count()).all(|port| ios[0].link_up(PortIndex(port as u16))).then_some(())
    });
}

/// The second process: gives up a device whose server is not there.
#[test]
fn a_device_of_the_environment_is_given_up() {
    let Ok(device) = env::var(DEVICES) else { return };
    let mut looks = 0;
    let result = start_patiently(&support::settings(vec![support::port(&device)], 1), &mut |_| {
        looks += 1;
        looks < 3
    });
    assert!(matches!(result, Err(DpdkError::NoServer { .. })));
}

fn with_devices(devices: &str) -> Output {
    second_process("devices_of_the_environment_start", devices)
}

fn second_process(test: &str, devices: &str) -> Output {
    let program = env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(DEVICES, devices);
    command.output().expect("it starts once more")
}

#[test]
fn a_run_that_goes_well_leaves_the_terminal_clean() {
    let socket = env::temp_dir().join(format!("natrix-messages-{}.sock", process::id()));
    let memif = |number: u8, role: &str| {
        format!("net_memif{number},role={role},id=0,socket={},socket-abstract=no,bsize=2048", socket.display())
    };
    // These say "Failed to register mp action callback" when they start and "Invalid memory" when
    // they end.
    let output = with_devices(&format!("{} {} net_ring0 net_null0", memif(0, "server"), memif(1, "client")));
    let _ = fs::remove_file(&socket);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn an_xdp_socket_leaves_the_terminal_clean() {
    // libbpf and libxdp say "skipping unrecognized data section" and "No bpffs found".
    let output = with_devices("net_af_xdp0,iface=ours");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn an_xdp_socket_that_does_not_open_shows_why() {
    let no_program = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = with_devices(&format!("net_af_xdp0,iface=ours,xdp_prog={no_program}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("libbpf: elf: ") && said.contains("not a proper ELF object"), "{said}");
}

#[test]
fn a_start_that_is_given_up_leaves_the_terminal_clean() {
    let socket = env::temp_dir().join(format!("natrix-no-server-{}.sock", process::id()));
    let device = format!("net_memif0,role=client,id=0,socket={},socket-abstract=no,bsize=2048", socket.display());
    let output = second_process("a_device_of_the_environment_is_given_up", &device);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
}

#[test]
fn a_start_that_fails_shows_what_dpdk_says() {
    let output = with_devices("net_pcap0,rx_pcap=/nowhere/at/all.pcap");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("/nowhere/at/all.pcap"), "the driver's own reason: {said}");
    assert!(said.contains("EAL"), "{said}");
}
