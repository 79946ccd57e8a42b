//! `natrix lab join`: the far end of the tester's loopback over vhost-user, a process of its own.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use std::io;
use std::io::Write;
use std::sync::Arc;
use std::thread;

use cli::LabJoin;
use lab::edge::Family;
use packet_io::PortIndex;

use super::measure::fault;
use super::transport;
use crate::failure::Failure;

/// What it prints once its ports are there.
pub(super) const READY: &str = "joined";

/// Runs until standard input ends.
pub(super) fn run(options: &LabJoin, out: &mut dyn Write) -> Result<(), Failure> {
    let ports = <[String; 2]>::try_from(options.ports.clone())
        .map_err(|ports| fault(format!("lab join: joins two ports ({} given); give two DPDK devices", ports.len())))?;
    // Whatever the tester's packets are, they fit.
    let mut io = transport::start(ports, Family::Dslite)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    thread::spawn(move || {
        // End of input: the process that started this one has gone.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        ends.store(true, Ordering::Relaxed);
    });
    writeln!(out, "{READY}")?;
    out.flush()?;
    lab::join::join(&mut io, [PortIndex(0), PortIndex(1)], &is_over);
    Ok(())
}
