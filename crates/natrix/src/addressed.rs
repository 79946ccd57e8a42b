//! Which instance `natrix plan`, `natrix reload` and `natrix audit` address.

use std::io;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use cli::ClientCommand;
use cli::Command;

use crate::data_plane;

/// Puts the control socket that the new configuration names into `plan` and `reload`, unless the
/// command names one. Without an instance there, the default one stays: the new file may be what
/// changes the socket, which needs a restart. For the same reason no instance takes a file that is
/// for another one.
///
/// `audit` is about the instance of the file that it names: if it does not run, its records are
/// read.
pub(crate) fn choose_socket(command: &mut Command, notes: &mut dyn Write) {
    let target = match command {
        Command::Client(ClientCommand::Plan(arguments)) => &mut arguments.target,
        Command::Client(ClientCommand::Reload(arguments)) => arguments,
        Command::Client(ClientCommand::Audit(arguments)) => {
            if let (None, Some(file)) = (&arguments.output.socket.socket, &arguments.config)
                && let Ok(control) = data_plane::control_of(file)
            {
                arguments.output.socket.socket = Some(control.socket);
            }
            return;
        }
        _ => return,
    };
    let (None, Some(file)) = (&target.output.socket.socket, &target.config) else { return };
    // The instance reports what is wrong with the file, also that it is none: to open a pipe would
    // wait for its writer.
    if !file.is_file() {
        return;
    }
    let Ok(control) = data_plane::control_of(file) else { return };
    if control.socket == target.output.socket.path() {
        return;
    }
    if is_listened_at(&control.socket) {
        target.output.socket.socket = Some(control.socket);
        return;
    }
    let default = target.output.socket.path().display();
    // A failure to write notes has no reader to report to.
    let _ = writeln!(
        notes,
        "note: no instance runs at {}, the control socket in {}; asking the one at {default}",
        control.socket.display(),
        file.display()
    );
}

/// Whether a process listens there, also one that does not let this user in.
fn is_listened_at(socket: &Path) -> bool {
    let gone = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    UnixStream::connect(socket).map_or_else(|error| !gone.contains(&error.kind()), |_| true)
}
