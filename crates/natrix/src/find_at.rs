//! `natrix find --at`: who had an endpoint at a time, from the records of the event log, and from the formulas of deterministic
//! pools, which have no records.

use core::net::Ipv4Addr;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use cli::CliError;
use cli::Find;
use config::Config;
use config::EventTarget;
use control::Client;
use control::Fault;
use control::Request;
use control::Status;
use daemon::offline::OfflineError;
use export::history;
use export::history::History;
use export::history::Holding;
use export::history::Opened;
use export::history::Query;
use export::history::Until;
use export::parse_utc;
use export::utc_text;
use serde_json::Value;
use serde_json::json;

use crate::failure::Failure;

/// How long the daemon may take to say where its log is.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers from the files named, from the log that the configuration named says, or from that of the running instance; what limits the
/// answer goes to `notes`.
pub(crate) fn run(arguments: &Find, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failure> {
    let at = arguments.at.as_deref().unwrap_or_default();
    let at_us = parse_utc(at).map_err(|_| {
        let fault =
            Fault::new("--at", "is no time", "write it as 2026-11-21T19:30:00Z, or with an offset such as +01:00");
        CliError::from(fault.seen(at.to_owned()))
    })?;
    let config = arguments.config.as_deref().map(crate::data_plane::config_of).transpose()?;
    let by_formula = config.as_ref().map(|config| formula_answers(arguments, config)).transpose()?;
    let (by_formula, formulas) = by_formula.map_or((None, None), |(slices, sum)| (Some(slices), Some(sum)));
    let query = Query {
        address: arguments.endpoint.address,
        port: arguments.endpoint.port,
        protocol: arguments.protocol.map(crate::data_plane::engine_protocol),
        at_us,
        formulas,
    };
    let (found, unread) = match (arguments.log.as_slice(), &config) {
        ([], Some(config)) => match look_up_own(config, &query) {
            Ok(found) => (Some(found), None),
            Err(why) => (None, Some(why)),
        },
        ([], None) => {
            let files = history::files_of(&log_of_instance(&arguments.output.socket.socket)?)?;
            (Some(history::look_up(&files, &query)?), None)
        }
        ([one], _) => (Some(history::look_up(&history::files_of(one)?, &query)?), None),
        (several, _) => (Some(history::look_up(several, &query)?), None),
    };
    let was_read = found.is_some();
    let mut found = found.unwrap_or_default();
    if let Some(vrf) = &arguments.vrf {
        found.holdings.retain(|held| held.realm == *vrf);
    }
    for holding in &found.holdings {
        if arguments.output.json {
            writeln!(out, "{}", object(holding))?;
        } else {
            writeln!(out, "{}", sentence(holding))?;
        }
    }
    let standing = formulas.map(|formulas| Standing::of(formulas, &found));
    // What a formula says that was not in force is no answer.
    let counts = !matches!(standing, Some(Standing::Others { .. }));
    let slices = by_formula.as_deref().filter(|_| counts).unwrap_or_default();
    let is_alone = !matches!(standing, Some(Standing::InForce));
    for slice in slices {
        if arguments.output.json {
            writeln!(out, "{}", slice.object(is_alone))?;
        } else {
            writeln!(out, "{}", slice.sentence(is_alone))?;
        }
    }
    if found.holdings.is_empty() && slices.is_empty() && !arguments.output.json {
        let port = query.port.map(|port| format!(":{port}")).unwrap_or_default();
        let of_vrf = arguments.vrf.as_ref().map(|vrf| format!(" of VRF \"{vrf}\"")).unwrap_or_default();
        let source = if was_read { "the log" } else { "the formulas of that configuration" };
        writeln!(out, "no record of {}{port}{of_vrf} at {}, as far as {source} says", query.address, utc_text(at_us))?;
    }
    if by_formula.is_none() {
        if found.holdings.is_empty() {
            let without = "ports of deterministic pools have no records";
            writeln!(notes, "note: {without}; name the configuration of that time, too: --config FILE")?;
        }
    } else if let Some(why) = unread {
        let missing = "what the formula does not tell, and whether that configuration was in force then";
        writeln!(notes, "note: {why}, so that no log was read; name one for {missing}: --log FILE")?;
    } else if let (Some(standing), Some(file)) = (&standing, &arguments.config) {
        standing.print(&file.display().to_string(), at_us, notes)?;
        let differs = |slice: &Slice| found.holdings.iter().any(|holding| holding.subscriber != slice.subscriber);
        if arguments.endpoint.port.is_some() && slices.iter().any(differs) {
            writeln!(notes, "note: the log counts: who had a mapping before a change keeps its port until it ends")?;
        }
    }
    if was_read {
        print_limits(&found, at_us, notes)?;
    }
    Ok(())
}

/// Whether the formulas of a configuration were in force at the time asked about, as far as the log tells.
enum Standing {
    /// Since when.
    InForce,
    /// Others were.
    Others { since_us: u64, adopted_later_us: Option<u64> },
    /// The log does not tell. When something else was adopted afterwards.
    Unknown { changed_us: Option<u64> },
}

impl Standing {
    fn of(formulas: u32, found: &History) -> Standing {
        let (changed_us, adopted_later_us) = (found.next_change.map(|next| next.at_us), found.adopted_later_us);
        match found.in_force.map(|adoption| (adoption.formulas, adoption.at_us)) {
            Some((Some(those), _)) if those == formulas => Standing::InForce,
            Some((Some(_), since_us)) => Standing::Others { since_us, adopted_later_us },
            Some((None, _)) | None => Standing::Unknown { changed_us },
        }
    }

    fn print(&self, file: &str, at_us: u64, notes: &mut dyn Write) -> io::Result<()> {
        let at = utc_text(at_us);
        match self {
            Standing::InForce => Ok(()),
            Standing::Others { since_us, adopted_later_us } => {
                let since = utc_text(*since_us);
                let later = adopted_later_us.map(|later| format!(", those of {file} since {}", utc_text(later)));
                writeln!(
                    notes,
                    "note: {file} is not the configuration of that time: other formulas were in force since {since}{}; what it says \
                     of {at} is left out, and the log counts",
                    later.unwrap_or_default()
                )
            }
            Standing::Unknown { changed_us } => {
                let changed =
                    changed_us.map(|changed| format!("; one was adopted at {}, after that time", utc_text(changed)));
                writeln!(
                    notes,
                    "note: the log does not tell which configuration was in force at {at}{}; {file} counts only if it was, and \
                     where the log names somebody, the log counts",
                    changed.unwrap_or_default()
                )
            }
        }
    }
}

/// Ports that a subscriber has by the formula of a deterministic pool, as long as the configuration is in force.
struct Slice {
    realm: String,
    subscriber: Ipv4Addr,
    external: Ipv4Addr,
    first_port: u16,
    last_port: u16,
}

impl Slice {
    /// `is_alone`: no log says that the formula was in force.
    fn sentence(&self, is_alone: bool) -> String {
        let Slice { realm, subscriber, external, first_port, last_port } = self;
        let (by, whether) = match is_alone {
            false => ("by the formula", "as long as that configuration is in force"),
            true => ("by the formula alone", "if that configuration was in force then, which no log says"),
        };
        format!("subscriber {subscriber} of realm {realm} has {external}:{first_port}-{last_port} ({by}) {whether}")
    }

    /// With the fields of [`object`].
    fn object(&self, is_alone: bool) -> Value {
        json!({
            "what": "slice",
            "realm": self.realm,
            "subscriber": self.subscriber,
            "protocol": null,
            "internal_port": null,
            "external_address": self.external,
            "first_port": self.first_port,
            "last_port": self.last_port,
            "remote_address": null,
            "remote_port": null,
            "since": null,
            "until": null,
            "ended_by_restart": false,
            "by_formula_alone": is_alone,
        })
    }
}

/// What the formulas of a configuration say about the endpoint, nothing where its pool has none; and their checksum.
fn formula_answers(arguments: &Find, config: &Config) -> Result<(Vec<Slice>, u32), Failure> {
    let settings = &config.nat;
    let answers = match daemon::offline::find(settings, &crate::data_plane::asked(arguments)) {
        Ok(answers) => answers,
        // Of other pools the log knows.
        Err(OfflineError::NotDeterministic { .. }) => Vec::new(),
        Err(error) => return Err(Failure::Offline(error)),
    };
    let slices = answers.into_iter().flat_map(|answer| {
        let (holder, vrf) = (answer.holder, answer.vrf.unwrap_or_default());
        answer.own_ports.into_iter().filter_map(move |own| {
            Some(Slice {
                realm: vrf.clone(),
                subscriber: holder?,
                external: own.external_address,
                first_port: own.first_port,
                last_port: own.last_port,
            })
        })
    });
    Ok((slices.collect(), nat::deterministic::checksum(settings)))
}

/// What the log says that a configuration names.
///
/// # Errors
/// Why it was not read, in words.
fn look_up_own(config: &Config, query: &Query) -> Result<History, String> {
    let path = match config.event_log.as_ref().map(|log| &log.target) {
        Some(EventTarget::File(path)) => path,
        Some(EventTarget::StandardOutput) => return Err("[log] events of that configuration is no file".to_owned()),
        None => return Err("that configuration has no [log] events".to_owned()),
    };
    let found = history::files_of(path).and_then(|files| history::look_up(&files, query));
    found.map_err(|error| format!("log {}, which that configuration names: {}", error.path.display(), error.source))
}

/// Where the running instance writes its records.
fn log_of_instance(socket: &Path) -> Result<PathBuf, Failure> {
    let mut client = Client::connect(socket, env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT).map_err(CliError::from)?;
    let status: Status = client.request_one(&Request::Status).map_err(CliError::from)?;
    let destination = status.event_log.map(|log| log.destination).filter(|destination| destination != "-");
    let missing = || Fault::new("event log", "the running instance keeps no file", "name the files: --log FILE");
    let path = destination.ok_or_else(|| CliError::from(missing()))?;
    Ok(PathBuf::from(path))
}

fn sentence(holding: &Holding) -> String {
    let Holding { what, realm, subscriber, protocol, external, first_port, last_port, .. } = holding;
    let protocol = protocol.map(|protocol| format!("{} ", protocol.name())).unwrap_or_default();
    let ports = if first_port == last_port { first_port.to_string() } else { format!("{first_port}-{last_port}") };
    let internal = holding.internal_port.map(|port| format!(", its port {port}")).unwrap_or_default();
    let remote = holding.remote.map(|(address, port)| format!(", towards {address}:{port}")).unwrap_or_default();
    let until = match holding.until {
        Until::Open => "and still at the end of the log".to_owned(),
        Until::Ended(until) => format!("until {}", utc_text(until)),
        Until::Elsewhere(left) => format!("at least until {}, when records began to go elsewhere", utc_text(left)),
        Until::Restart(restart) => format!("at most until the restart at {}", utc_text(restart)),
    };
    let since = utc_text(holding.since_us);
    format!(
        "subscriber {subscriber} of realm {realm} had {protocol}{external}:{ports} ({}{internal}{remote}) since {since} {until}",
        what.name()
    )
}

fn object(holding: &Holding) -> Value {
    let (until, ended_by_restart) = match holding.until {
        Until::Open | Until::Elsewhere(_) => (None, false),
        Until::Ended(until) => (Some(utc_text(until)), false),
        Until::Restart(until) => (Some(utc_text(until)), true),
    };
    json!({
        "what": holding.what.name(),
        "realm": holding.realm,
        "subscriber": holding.subscriber,
        "protocol": holding.protocol.map(|protocol| protocol.name()),
        "internal_port": holding.internal_port,
        "external_address": holding.external,
        "first_port": holding.first_port,
        "last_port": holding.last_port,
        "remote_address": holding.remote.map(|(address, _)| address),
        "remote_port": holding.remote.map(|(_, port)| port),
        "since": utc_text(holding.since_us),
        "until": until,
        "ended_by_restart": ended_by_restart,
        "by_formula_alone": false,
    })
}

/// Why the answer may not be the whole truth.
fn print_limits(found: &History, at_us: u64, notes: &mut dyn Write) -> io::Result<()> {
    match (found.first_us, found.last_us) {
        (None, _) | (_, None) => writeln!(notes, "note: there is no record in the log")?,
        (Some(first), _) if at_us < first => {
            let earlier = found.opened.as_ref().map(|opened| format!(" of {}", opened.earlier));
            let older = format!("older files{}", earlier.unwrap_or_default());
            writeln!(notes, "note: the log starts at {}, after that time; name {older}", utc_text(first))?;
        }
        (_, Some(last)) if at_us > last => writeln!(notes, "note: the last record is of {}", utc_text(last))?,
        _ => {}
    }
    if let Some(Opened { at_us: opened, earlier }) = &found.untold {
        let opened = utc_text(*opened);
        writeln!(
            notes,
            "note: the log was opened at {opened} and not told yet all that lived then; name {earlier} before it, too"
        )?;
    }
    if let Some(Opened { at_us: back, earlier }) = &found.away {
        writeln!(notes, "note: until {} records went to {earlier}; name that file instead", utc_text(*back))?;
    }
    if found.lost > 0 {
        writeln!(notes, "note: {} records were lost before that time; the answer may be incomplete", found.lost)?;
    }
    if found.unreadable > 0 {
        writeln!(notes, "note: {} lines are no records and were skipped", found.unreadable)?;
    }
    Ok(())
}
