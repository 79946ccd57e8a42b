//! Runs the commands for a running instance.

use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::time::Duration;

use control::Actor;
use control::Client;

use crate::arguments::ClientCommand;
use crate::arguments::Socket;
use crate::ask;
use crate::change;
use crate::drain;
use crate::error::CliError;
use crate::show;
use crate::top;
use crate::trace;

/// Time limit of one reply of the daemon.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs one command. Its output goes to `out`, other remarks to `notes`.
///
/// # Errors
/// The error, to print after `error: `. If [`CliError::is_broken_pipe`], exit without a message.
pub fn execute(
    command: &ClientCommand,
    out: &mut (dyn Write + Send),
    notes: &mut (dyn Write + Send),
) -> Result<(), CliError> {
    match command {
        ClientCommand::Trace(arguments) => trace::run(arguments, out, notes),
        ClientCommand::Top(arguments) => top::run(arguments),
        ClientCommand::Show(arguments) => buffered(out, |out| show::run(arguments, out, notes)),
        ClientCommand::Find(arguments) => buffered(out, |out| ask::find(arguments, out, notes)),
        ClientCommand::Plan(arguments) => buffered(out, |out| change::plan(arguments, out, notes)),
        ClientCommand::Reload(arguments) => buffered(out, |out| change::reload(arguments, out, notes)),
        ClientCommand::Drain(arguments) => drain::drain(arguments, out, notes),
        ClientCommand::Audit(arguments) => buffered(out, |out| ask::audit(arguments, out, notes)),
        ClientCommand::Why(arguments) => buffered(out, |out| ask::why(arguments, out)),
    }
}

/// Writes long lists in large pieces. Output before an error still appears.
fn buffered(out: &mut dyn Write, command: impl FnOnce(&mut dyn Write) -> Result<(), CliError>) -> Result<(), CliError> {
    let mut out = BufWriter::new(out);
    let outcome = command(&mut out);
    let flushed: io::Result<()> = out.flush();
    outcome?;
    Ok(flushed?)
}

/// Connects for a lookup that belongs to a case. The daemon itself knows the user.
pub(crate) fn connect_for(socket: &Socket, case: Option<String>) -> Result<Client, CliError> {
    let actor = case.map(|case| Actor { case: Some(case), ..Actor::default() });
    Ok(Client::connect_for(socket.path(), env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT, actor)?)
}

/// Connects to the running instance.
pub(crate) fn connect(socket: &Socket) -> Result<Client, CliError> {
    Ok(Client::connect(socket.path(), env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT)?)
}
