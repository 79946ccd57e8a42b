//! The answer for a time: from the event log, and by the formulas of the configuration of that
//! time, whose ports have no records. Each answer is a sentence or a JSON object, and notes say
//! what makes the whole uncertain.

use core::net::Ipv4Addr;
use std::io;
use std::io::Write;
use std::path::Path;

use export::utc_text;
use nat::Settings;
use serde_json::Value;
use serde_json::json;

use crate::Asked;
use crate::formula;
use crate::formula::NoAnswer;
use crate::log::History;
use crate::log::Holding;
use crate::log::Opened;
use crate::log::Query;
use crate::log::Until;

/// The answers of the formulas of a configuration.
#[derive(Debug)]
pub struct Formulas<'a> {
    /// The file of the configuration.
    file: &'a Path,
    slices: Vec<Slice>,
    checksum: u32,
}

impl<'a> Formulas<'a> {
    /// The answers of the configuration in `file`; none if the pool of the address has no formula,
    /// because the log has its ports.
    ///
    /// # Errors
    /// The configuration has no such VRF, or a formula is impossible.
    pub fn of(settings: &Settings, file: &'a Path, asked: &Asked<'_>) -> Result<Formulas<'a>, NoAnswer> {
        let answers = match formula::find(settings, asked) {
            Err(NoAnswer::NotDeterministic { .. }) => Vec::new(),
            answers => answers?,
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
        Ok(Formulas { file, slices: slices.collect(), checksum: nat::deterministic::checksum(settings) })
    }

    /// Prints the answers of formulas that were in use.
    ///
    /// # Errors
    /// Writing failed.
    pub fn print(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        for slice in &self.slices {
            if json {
                writeln!(out, "{}", slice.object(false))?;
            } else {
                writeln!(out, "{}", slice.sentence(false))?;
            }
        }
        Ok(())
    }

    /// Checksum of the formulas, as in the log.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }
}

/// Ports of a subscriber by the formula of a deterministic pool, while the configuration is in use.
#[derive(Debug)]
struct Slice {
    realm: String,
    subscriber: Ipv4Addr,
    external: Ipv4Addr,
    first_port: u16,
    last_port: u16,
}

impl Slice {
    /// `is_alone`: no log shows that the formula was in use.
    fn sentence(&self, is_alone: bool) -> String {
        let Slice { realm, subscriber, external, first_port, last_port } = self;
        let (by, whether) = match is_alone {
            false => ("by the formula", "while that configuration is in use"),
            true => ("by the formula alone", "if that configuration was in use, which no log shows"),
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

/// Whether the formulas of a configuration were in use at the time, by the log.
enum Standing {
    /// They were.
    InUse,
    /// Other formulas were.
    Others { since_us: u64, adopted_later_us: Option<u64> },
    /// The log does not say. Has the time of the first later change.
    Unknown { changed_us: Option<u64> },
}

impl Standing {
    fn of(formulas: &Formulas<'_>, found: &History) -> Standing {
        let (changed_us, adopted_later_us) = (found.next_change.map(|next| next.at_us), found.adopted_later_us);
        match found.in_use.map(|adoption| (adoption.formulas, adoption.at_us)) {
            Some((Some(those), _)) if those == formulas.checksum => Standing::InUse,
            Some((Some(_), since_us)) => Standing::Others { since_us, adopted_later_us },
            Some((None, _)) | None => Standing::Unknown { changed_us },
        }
    }

    fn print(&self, file: &Path, at_us: u64, notes: &mut dyn Write) -> io::Result<()> {
        let (file, at) = (file.display(), utc_text(at_us));
        match self {
            Standing::InUse => Ok(()),
            Standing::Others { since_us, adopted_later_us } => {
                let since = utc_text(*since_us);
                let later = adopted_later_us.map(|later| format!(", those of {file} since {}", utc_text(later)));
                writeln!(
                    notes,
                    "note: {file} is not the configuration of that time: other formulas were in use since {since}{}; its \
                     answer for {at} is left out",
                    later.unwrap_or_default()
                )
            }
            Standing::Unknown { changed_us } => {
                let changed =
                    changed_us.map(|changed| format!(" (one was adopted at {}, after that time)", utc_text(changed)));
                writeln!(
                    notes,
                    "note: the log does not say which configuration was in use at {at}{}; the answer of {file} is right only if \
                     it was, and a holder in the log takes precedence",
                    changed.unwrap_or_default()
                )
            }
        }
    }
}

/// The answer.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The question.
    pub query: Query<'a>,
    /// What the log has, or why no log was read.
    pub history: Result<History, String>,
    /// What the formulas of a configuration say, if one was given.
    pub formulas: Option<Formulas<'a>>,
}

impl Answer<'_> {
    /// Prints the holders to `out`, as JSON objects or sentences, and the limits of the answer to
    /// `notes`.
    ///
    /// # Errors
    /// Writing failed.
    pub fn print(&self, json: bool, out: &mut dyn Write, notes: &mut dyn Write) -> io::Result<()> {
        let holdings = self.history.as_ref().map_or(&[][..], |found| &found.holdings);
        for holding in holdings {
            if json {
                writeln!(out, "{}", object(holding))?;
            } else {
                writeln!(out, "{}", sentence(holding))?;
            }
        }
        let standing = self.formulas.as_ref().map(|formulas| match &self.history {
            Ok(found) => Standing::of(formulas, found),
            Err(_) => Standing::Unknown { changed_us: None },
        });
        // A formula that was not in use at the time is not an answer.
        let counts = !matches!(standing, Some(Standing::Others { .. }));
        let slices = self.formulas.as_ref().filter(|_| counts).map_or(&[][..], |formulas| &formulas.slices);
        let is_alone = !matches!(standing, Some(Standing::InUse));
        for slice in slices {
            if json {
                writeln!(out, "{}", slice.object(is_alone))?;
            } else {
                writeln!(out, "{}", slice.sentence(is_alone))?;
            }
        }
        let Query { asked, at_us, .. } = self.query;
        let has_holder = !holdings.is_empty();
        if !has_holder && slices.is_empty() && !json {
            let source = if self.history.is_ok() { "the log" } else { "the formulas of that configuration" };
            let (queried, of_vrf) = (asked.queried(), asked.of_vrf());
            writeln!(out, "no record of {queried}{of_vrf} at {} in {source}", utc_text(at_us))?;
        }
        match (&self.formulas, &self.history) {
            (None, _) if has_holder => {}
            (None, _) => {
                let without = "ports of deterministic pools have no records";
                writeln!(notes, "note: {without}; also give the configuration of that time: --config FILE")?;
            }
            (Some(_), Err(why)) => {
                let missing = "dynamic ports, and to check that this configuration was in use";
                writeln!(notes, "note: {why}, so no log was read; for {missing}, use --log FILE")?;
            }
            (Some(formulas), Ok(_)) => {
                if let Some(standing) = &standing {
                    standing.print(formulas.file, at_us, notes)?;
                }
                let differs = |slice: &Slice| holdings.iter().any(|holding| holding.subscriber != slice.subscriber);
                if asked.port.is_some() && slices.iter().any(differs) {
                    writeln!(
                        notes,
                        "note: the log decides: a mapping older than a change keeps its port until it ends"
                    )?;
                }
            }
        }
        self.history.as_ref().map_or(Ok(()), |found| print_limits(found, at_us, notes))
    }
}

fn sentence(holding: &Holding) -> String {
    let Holding { what, realm, subscriber, protocol, external, first_port, last_port, .. } = holding;
    let protocol = protocol.map(|protocol| format!("{} ", protocol.name())).unwrap_or_default();
    let ports = if first_port == last_port { first_port.to_string() } else { format!("{first_port}-{last_port}") };
    let internal = holding.internal_port.map(|port| format!(", internal port {port}")).unwrap_or_default();
    let remote = holding.remote.map(|(address, port)| format!(", towards {address}:{port}")).unwrap_or_default();
    let until = match holding.until {
        Until::Open => "until after the end of the log".to_owned(),
        Until::Ended(until) => format!("until {}", utc_text(until)),
        Until::Elsewhere(left) => format!("at least until {}, when records began to go to another log", utc_text(left)),
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

/// Why the answer may be incomplete.
fn print_limits(found: &History, at_us: u64, notes: &mut dyn Write) -> io::Result<()> {
    match (found.first_us, found.last_us) {
        (None, _) | (_, None) => writeln!(notes, "note: the log has no record")?,
        (Some(first), _) if at_us < first => {
            let earlier = found.opened.as_ref().map(|opened| format!(" of {}", opened.earlier));
            let older = format!("older files{}", earlier.unwrap_or_default());
            writeln!(notes, "note: the log starts at {}, after that time; give {older}", utc_text(first))?;
        }
        (_, Some(last)) if at_us > last => writeln!(notes, "note: the last record is from {}", utc_text(last))?,
        _ => {}
    }
    if let Some(Opened { at_us: opened, earlier }) = &found.incomplete {
        let opened = utc_text(*opened);
        writeln!(
            notes,
            "note: the log was opened at {opened} and its snapshot of existing state is incomplete; also give {earlier}"
        )?;
    }
    if let Some(Opened { at_us: back, earlier }) = &found.away {
        writeln!(notes, "note: until {} records went to {earlier}; give that file instead", utc_text(*back))?;
    }
    if found.lost > 0 {
        writeln!(notes, "note: {} records were lost before that time; the answer may be incomplete", found.lost)?;
    }
    if found.unreadable > 0 {
        writeln!(notes, "note: {} lines are not records and were skipped", found.unreadable)?;
    }
    Ok(())
}
