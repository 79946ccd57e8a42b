//! `natrix audit` of an instance that does not run: the records come from its file.

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use cli::Audit;
use cli::CliError;
use cli::ClientCommand;
use control::Fault;
use daemon::audit::Audit as AuditFile;

use crate::data_plane;
use crate::failure::Failure;

/// The configuration of the packaged service.
const CONFIGURATION: &str = "/etc/natrix/natrix.toml";

/// Asks the instance; without one, reads the file.
pub(crate) fn run(
    command: &ClientCommand,
    arguments: &Audit,
    out: &mut (dyn Write + Send),
    notes: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    match cli::execute(command, out, notes) {
        Err(CliError::Client(error)) if error.is_not_running() => {}
        done => return Ok(done?),
    }
    let socket = arguments.output.socket.path();
    let path = file_of(arguments.config.as_deref(), socket)?;
    File::open(&path).map_err(|error| {
        let object = format!("{} {}", control::AUDIT_LOG, path.display());
        let nobody = format!("no instance listens at {}", socket.display());
        CliError::from(match error.kind() {
            io::ErrorKind::NotFound => {
                let remedy = "name the configuration of the instance with --config FILE";
                Fault::new(object, format!("does not exist, and {nobody}"), remedy)
            }
            _ => {
                let remedy = "read it as root, or as the user of the service";
                Fault::new(object, format!("cannot be read, and {nobody}"), remedy).seen(error.to_string())
            }
        })
    })?;
    // A failure to write notes has no reader to report to.
    let _ = writeln!(notes, "note: no instance runs at {}; read {}", socket.display(), path.display());
    let file = AuditFile::of_file(path);
    Ok(cli::print_audit(arguments, |list| Ok(file.page(list)?), out, notes)?)
}

/// The audit log of the instance with this socket: that of the configuration, if it is its own.
fn file_of(named: Option<&Path>, socket: &Path) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        return Ok(data_plane::control_of(named)?.audit);
    }
    // Faults of the file may be why the instance does not run.
    let installed = data_plane::control_of(Path::new(CONFIGURATION)).ok();
    let own = installed.filter(|control| control.socket == socket);
    Ok(own.map_or_else(|| config::audit_beside(socket), |control| control.audit))
}
