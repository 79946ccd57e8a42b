//! Calls the crate of each command.

mod addressed;
mod api;
#[cfg(feature = "dpdk")]
mod api_process;
mod audit;
mod beside;
mod data_plane;
mod doctor;
mod failure;
mod find_at;
mod find_page;
mod find_print;
mod init;
mod instance_log;
mod link;
mod log;
mod machine;
mod netlink;
mod offloads;
mod progress;
mod reader;
mod service_user;
mod snmp;
#[cfg(feature = "dpdk")]
mod snmp_process;
mod times;
#[cfg(feature = "dpdk")]
mod watched;

use std::io;
use std::io::Write;
use std::process::ExitCode;

use cli::ClientCommand;
use cli::Command;
use cli::Find;

use crate::failure::Failure;

fn main() -> ExitCode {
    let mut command = cli::parse();
    reader::end_with(&command);
    addressed::choose_socket(&mut command, &mut io::stderr());
    match run(&command, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_broken_pipe() => reader::status_without(&command),
        Err(failure) => {
            // A failure to write errors has no reader to report to.
            let _ = report(&failure, &mut io::stderr());
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    // Before they read a secret. What they start inherits it.
    if matches!(command, Command::Run(_) | Command::Api | Command::Snmp | Command::Token(_)) {
        confine::leave_no_core()?;
    }
    match command {
        Command::Client(ClientCommand::Find(arguments)) if arguments.at.is_some() || arguments.from.is_some() => {
            find_at::run(arguments, None, out, &mut io::stderr()).map(drop)
        }
        Command::Client(ClientCommand::Find(arguments @ Find { config: Some(file), .. })) => {
            data_plane::find(arguments, file, out)
        }
        Command::Client(command @ ClientCommand::Audit(arguments)) => {
            audit::run(command, arguments, out, &mut io::stderr())
        }
        Command::Client(command) => Ok(cli::execute(command, out, &mut io::stderr())?),
        Command::Init(arguments) => init::run(arguments, out),
        Command::Doctor(arguments) => doctor::run(arguments, out),
        Command::Manual(arguments) => Ok(cli::manual(&arguments.dir)?),
        Command::Completions { shell } => Ok(cli::completions(*shell, out)?),
        Command::Bench(command) => Ok(measure::bench(command, out)?),
        Command::Lab(command) => Ok(measure::lab(command, out)?),
        Command::Log(command) => log::run(command, out),
        Command::Check(arguments) => data_plane::check(arguments, out),
        Command::Token(arguments) => api::token(arguments, out),
        Command::Api => api::run(),
        Command::Snmp => snmp::run(),
        Command::Run(arguments) => data_plane::run(arguments),
        Command::Replay(arguments) => data_plane::replay(arguments, out),
    }
}

/// Prints each fault on a line of its own.
fn report(failure: &Failure, to: &mut impl Write) -> io::Result<()> {
    match failure {
        Failure::Reported => Ok(()),
        Failure::Configuration(faults) => faults.iter().try_for_each(|fault| writeln!(to, "{fault}")),
        // The daemon's reason may quote names.
        failure => {
            let text = failure.to_string();
            text.lines()
                .zip(core::iter::once("error: ").chain(core::iter::repeat("")))
                .try_for_each(|(line, start)| writeln!(to, "{start}{}", control::escaped(line)))
        }
    }
}
