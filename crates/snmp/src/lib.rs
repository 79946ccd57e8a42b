//! NATV2-MIB (RFC 7659) of one instance, as a subagent of the system's SNMP agent.
//!
//! ```text
//!   manager ─► snmpd ─► session (AgentX, RFC 2741) ─► agent ─► tables, controls, notifications
//!                                                                ▼
//!   daemon ◄── control socket ────────────────────────────── source: figures, pools, maps
//! ```
//!
//! It is a process of its own, started by `natrix run`, and knows the instance only through the
//! control protocol. Access, communities and users of SNMP belong to the master agent.

#![forbid(unsafe_code)]

mod agent;
mod bytes;
mod clock;
mod controls;
mod figures;
mod maps;
mod notifications;
mod oid;
mod pdu;
mod saved;
mod session;
mod settings;
mod source;
mod tables;
mod value;

pub mod fuzzing;

use std::io;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use confine::NO_LANDLOCK;
use confine::Needs;
use confine::confine;

pub use settings::Master;
pub use settings::Settings;

use crate::agent::Agent;
use crate::session::Session;
use crate::source::Source;

/// Pause between two attempts to reach the master agent.
const RETRIES_AFTER: Duration = Duration::from_secs(5);
/// How often to look whether the process ends.
const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// Serves until standard input ends, which it does when the process that started this one ends.
/// Without a master agent it tries again every five seconds.
///
/// # Errors
/// The system refuses threads, or to be confined.
pub fn serve(settings: Settings) -> io::Result<()> {
    let connects_to = match &settings.agentx {
        Master::Tcp(address) => Some(address.port()),
        Master::Unix(_) => None,
    };
    // Before another thread is started: each inherits what this one may do.
    if !confine(Needs { own_socket: None, connects_to, writes_beside: settings.state.as_deref() })? {
        tracing::warn!(target: "natrix", object = "snmp", "{NO_LANDLOCK}");
    }
    let over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&over);
    let wait = move || {
        // Nothing more is sent: this returns at the end.
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        end.store(true, Ordering::Relaxed);
    };
    thread::Builder::new().name("end".to_owned()).spawn(wait)?;
    let is_over = || over.load(Ordering::Relaxed);
    let description = format!("natrix {} ({})", env!("CARGO_PKG_VERSION"), settings.alias);
    let source = Source::start(&settings)?;
    let master = settings.agentx.clone();
    let mut agent = Agent::new(settings, source);
    let mut reported = String::new();
    while !is_over() {
        let outcome = Session::open(&master, &description).and_then(|mut session| {
            tracing::info!(target: "natrix", object = "snmp", "registered with the master agent");
            reported.clear();
            session.serve(&mut agent, is_over)
        });
        let Err(error) = outcome else { break };
        let text = error.to_string();
        // An agent that is not there is reported once.
        if text != reported {
            tracing::warn!(
                target: "natrix",
                object = "snmp",
                "no session with the master agent ({text}); trying again every five seconds"
            );
            reported = text;
        }
        let begun = Instant::now();
        while !is_over() && begun.elapsed() < RETRIES_AFTER {
            thread::sleep(LOOKS_EVERY);
        }
    }
    Ok(())
}
