//! `natrix find --at`: which log and which configuration to ask about a time.

use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use api::PastTime;
use cli::CliError;
use cli::Find;
use cli::Remote;
use config::Config;
use config::EventTarget;
use control::Fault;
use export::store::Bounds;
use export::store::Found;
use export::store::Holder;
use export::store::Store;
use export::store::StoreError;
use export::store::lookups;
use export::store::lookups::Lookup;
use lookup::Asked;
use lookup::log as lines;
use lookup::log::History;
use lookup::log::Query;
use lookup::past::Answer;
use lookup::past::Formulas;
use lookup::past::Slice;
use lookup::stored::Outcome;

use crate::data_plane;
use crate::failure::Failure;
use crate::find_page::Cut;
use crate::find_page::Scope;
use crate::find_print;
use crate::instance_log;
use crate::progress;
use crate::times::Time;

/// Holders in an answer for the API, whose process has little memory: an address of that many needs
/// a port or a shorter time.
const HOLDERS_OF_API_MAX: usize = 100_000;

/// Whose log is asked, and by which program: it decides where the lookup is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// That of the running instance, by the API.
    Api,
    /// That of the running instance, from the command line.
    Instance,
    /// Files.
    Files,
}

/// The user that asks, the time in question, and whether the answer is still wanted.
#[derive(Clone, Copy)]
struct Asker<'a> {
    origin: Origin,
    scope: Scope,
    goes_on: &'a dyn Fn() -> bool,
}

impl<'a> Asker<'a> {
    fn bounds(&self) -> Bounds<'a> {
        let holders_max = if self.origin == Origin::Api { HOLDERS_OF_API_MAX } else { usize::MAX };
        Bounds { holders_max, goes_on: self.goes_on }
    }

    /// How the user has written an argument: as an option, or as a parameter of the API.
    fn argument(&self, name: &str) -> String {
        if self.origin == Origin::Api { name.to_owned() } else { format!("--{name}") }
    }
}

/// What came of a lookup.
#[derive(Debug)]
pub(crate) struct Answered {
    /// Of all holders, also those of other pages.
    pub(crate) outcome: Outcome,
    /// The cursor of the next page; None: this is the last one.
    pub(crate) next: Option<String>,
}

/// Answers from the given files or store, from those that the given configuration names, or from
/// those of the running instance. Limits of the answer go to `notes`. What the instance has is
/// printed once the lookup is in its audit log; for the API, the caller sees to that. `of_api` says
/// whether the API still wants the answer; None: the command line asks.
pub(crate) fn run(
    arguments: &Find,
    of_api: Option<&dyn Fn() -> bool>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Answered, Failure> {
    let config = arguments.config.as_deref().map(data_plane::config_of).transpose()?;
    let is_of_instance = arguments.log.is_empty() && arguments.dir.is_none() && config.is_none();
    let origin = match (of_api, is_of_instance) {
        (Some(_), _) => Origin::Api,
        (None, true) => Origin::Instance,
        (None, false) => Origin::Files,
    };
    let question = control::Find { cursor: arguments.paging.cursor.clone(), ..arguments.question() };
    let prefix = if origin == Origin::Api { "" } else { "--" };
    let scope = Scope::of(&question, arguments.remote, &time_of(arguments), prefix).map_err(CliError::from)?;
    let asker = Asker { origin, scope, goes_on: of_api.unwrap_or(&|| true) };
    if origin != Origin::Instance {
        return answer(arguments, config, asker, out, notes);
    }
    // Times are those meant, not "2 min ago".
    let subject = format!("{} {}", subject_of(arguments), scope.time.when());
    let (mut text, mut limits) = (Vec::new(), Vec::new());
    let answered = answer(arguments, config, asker, &mut text, &mut limits);
    let result = match &answered {
        Ok(answered) => answered.outcome.to_string(),
        Err(failure) => format!("failed: {failure}"),
    };
    let recorded =
        instance_log::record(arguments.output.socket.path(), ("find", subject), arguments.case.clone(), result, None);
    // Without an answer, why there is none comes first.
    let answered = answered?;
    recorded?;
    out.write_all(&text)?;
    notes.write_all(&limits)?;
    Ok(answered)
}

/// Answers. A lookup in files is recorded first.
fn answer(
    arguments: &Find,
    config: Option<Config>,
    asker: Asker<'_>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Answered, Failure> {
    if arguments.log.is_empty() {
        let of_config = config.as_ref().and_then(|config| config.event_log.as_ref()?.store.as_ref());
        let folder = match (&arguments.dir, &config) {
            (Some(folder), _) => Some(folder.clone()),
            (None, Some(_)) => of_config.map(|store| store.path.clone()),
            (None, None) => {
                let log = instance_log::of(arguments.output.socket.path())?;
                log.and_then(|log| log.store).map(|store| PathBuf::from(store.path))
            }
        };
        if let Some(folder) = folder {
            return in_store(arguments, config.as_ref(), (&folder, asker), out, notes);
        }
    }
    if asker.origin == Origin::Files {
        instance_log::refuse_case(arguments.case.as_ref(), "lookups in a file of lines")?;
    }
    in_lines(arguments, config, asker, out, notes)
}

/// What is looked up: `203.0.113.7:41233 udp towards 198.51.100.7:443`.
fn subject_of(arguments: &Find) -> String {
    let towards = arguments.remote.map(|remote| format!(" towards {remote}")).unwrap_or_default();
    arguments.question().subject() + &towards
}

/// The time in question, as it was written.
fn time_of(arguments: &Find) -> PastTime {
    match (&arguments.from, &arguments.to) {
        (Some(from), Some(to)) => PastTime::Between { from: from.clone(), to: to.clone() },
        _ => PastTime::At(arguments.at.clone().unwrap_or_default()),
    }
}

/// Answers from lines.
fn in_lines(
    arguments: &Find,
    config: Option<Config>,
    asker: Asker<'_>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Answered, Failure> {
    if arguments.at.is_none() {
        let remedy = if asker.origin == Origin::Api { "use at" } else { "use --at TIME, or --dir DIR" };
        let fault = Fault::new(asker.argument("from"), "only a store answers for a range of time", remedy);
        return Err(CliError::from(fault).into());
    }
    let asked = data_plane::asked(arguments);
    let Time { from_us, to_us } = asker.scope.time;
    let formulas = match (&arguments.config, &config) {
        (Some(file), Some(config)) => Some(Formulas::of(&config.nat, file, &asked)?),
        _ => None,
    };
    let query = Query { asked, from_us, to_us, formulas: formulas.as_ref().map(Formulas::checksum) };
    let history = match (arguments.log.as_slice(), &config) {
        ([], Some(config)) => look_up_own(config, &query, asker.bounds()),
        ([], None) => Ok(look_up_in(&log_of_instance(arguments.output.socket.path())?, &query, asker.bounds())?),
        ([one], _) => Ok(look_up_in(one, &query, asker.bounds())?),
        (several, _) => Ok(look_up_with_progress(several, &query, asker.bounds())?),
    };
    let (mut found, slices) = Answer { query, history, formulas }.join();
    if slices.is_empty() {
        note_inner(&asked, config.as_ref(), &mut found);
    }
    let sifted = arguments.remote.map(|remote| only_towards(remote, &mut found, slices.len())).unwrap_or_default();
    print_page(arguments, asker, (found, slices, sifted), out, notes)
}

/// Answers from a store.
fn in_store(
    arguments: &Find,
    config: Option<&Config>,
    (folder, asker): (&Path, Asker<'_>),
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Answered, Failure> {
    let asked = data_plane::asked(arguments);
    let Time { from_us, to_us } = asker.scope.time;
    let question = asked.question(from_us, to_us);
    let formulas = match (&arguments.config, config) {
        (Some(file), Some(config)) => Some(Formulas::of(&config.nat, file, &asked)?),
        _ => None,
    };
    // A merge may remove a segment between the catalogue and the lookup: then read both again.
    let mut store = Store::open(folder)?;
    let bounds = asker.bounds();
    let mut answer = store.look_up_within(&question, bounds);
    if matches!(&answer, Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound) {
        store = Store::open(folder)?;
        answer = store.look_up_within(&question, bounds);
    }
    let mut found = answer?;
    if question.host.is_some() {
        // Deterministic pools serve no IPv6 hosts.
        found.formulas.clear();
    }
    let checksum = formulas.as_ref().map(Formulas::checksum);
    let mut formulas = in_use(formulas, &mut found);
    if let Some(formulas) = &mut formulas {
        formulas.yield_to(&question, &mut found);
    }
    if let Some(vrf) = asked.vrf {
        only_vrf(&store, (asker.argument("vrf"), vrf), &mut found)?;
    }
    let slices = formulas.map_or_else(Vec::new, |formulas| formulas.into_slices(false));
    if slices.is_empty() {
        note_inner(&asked, config, &mut found);
    }
    let sifted = arguments.remote.map(|remote| only_towards(remote, &mut found, slices.len())).unwrap_or_default();
    let remote = arguments.remote.map(|remote| remote.to_string());
    let lookup = Lookup {
        question: &question,
        vrf: asked.vrf,
        remote: remote.as_deref(),
        formulas: checksum,
        holders: found.holders.len() + slices.len(),
        is_complete: found.is_complete,
    };
    let now_us = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
    let recorded = || lookups::record(folder, &lookup, arguments.case.as_deref(), now_us);
    match asker.origin {
        Origin::Files => recorded().map_err(unrecorded)?,
        Origin::Instance => {
            if let Err(error) = recorded() {
                writeln!(
                    notes,
                    "note: this lookup is in the audit log, but could not be recorded in the store: {error}"
                )?;
            }
        }
        // The process of the API may not write to the store.
        Origin::Api => {}
    }
    print_page(arguments, asker, (found, slices, sifted), out, notes)
}

/// Holders that the remote endpoint in question decides about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sifted {
    /// Flows towards others, which are left out.
    pub(crate) others: usize,
    /// Holders without a recorded destination, which are not.
    pub(crate) unrecorded: usize,
}

/// Leaves out flows that are towards other remote endpoints. Holders without a recorded destination
/// stay, because it is unknown whether it was this one.
fn only_towards(remote: Remote, found: &mut Found, slices: usize) -> Sifted {
    let has_remote = |holder: &Holder| holder.remote.filter(|(address, _)| !address.is_unspecified());
    let before = found.holders.len();
    found.holders.retain(|holder| {
        // A server that logs ICMP has no port.
        let has_ports = holder.protocol.is_none_or(|protocol| protocol.name() != "icmp");
        has_remote(holder).is_none_or(|(address, port)| {
            address == remote.address && remote.port.is_none_or(|wanted| wanted == port || !has_ports)
        })
    });
    let unrecorded = found.holders.iter().filter(|holder| has_remote(holder).is_none()).count() + slices;
    let sifted = Sifted { others: before - found.holders.len(), unrecorded };
    if sifted.others > 0 {
        let count = sifted.others;
        found.notes.push(format!("flows towards other remote endpoints than {remote} are not listed: {count}"));
    }
    if unrecorded > 0 {
        found.notes.push(format!(
            "holdings without a recorded destination (TOWARDS -, remote_address null): {unrecorded}; the log does not say \
             whether these were towards {remote}"
        ));
    }
    sifted
}

/// Prints the holders that are to be shown.
fn print_page(
    arguments: &Find,
    asker: Asker<'_>,
    (mut found, mut slices, sifted): (Found, Vec<Slice>, Sifted),
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Answered, Failure> {
    let outcome = Outcome { holders: found.holders.len() + slices.len(), is_complete: found.is_complete };
    if arguments.at.is_some() {
        found.notes.extend(notes_of_parts(&found.holders, asker.scope.time));
    }
    let next = show_page(arguments, asker, &mut found);
    if !asker.scope.is_first() {
        // They are on the first page.
        slices.clear();
    }
    let (what, remote) = (subject_of(arguments), arguments.remote);
    let asked = find_print::Asked { what, remote, sifted, time: asker.scope.time };
    let page = find_print::Page { slices: &slices, found: &found, count: outcome.holders, has_more: next.is_some() };
    find_print::print(&asked, &page, arguments.output.json, out, notes)?;
    Ok(Answered { outcome, next })
}

/// Notes which holders of a second, or of another short time, had it during a part of it only: a
/// user that asks about a moment in it must not take each of them for the one. Flows that share a
/// port have it at the same time.
fn notes_of_parts(holders: &[Holder], time: Time) -> Vec<String> {
    let Time { from_us, to_us } = time;
    let SamePort { in_turn, by_remote } = SamePort::of(holders);
    let mut notes = Vec::new();
    if by_remote {
        let note = "several holders shared a port: the remote endpoint of a packet (TOWARDS, remote_address) decides \
                    whose it was; ask with --remote ADDRESS:PORT";
        notes.push(note.to_owned());
    }
    let parts = holders.iter().filter(|holder| holder.is_in_part(from_us, to_us)).count();
    // The log itself says what a millisecond leaves open of a moment.
    if from_us < to_us && parts > 0 {
        let remedy = "compare the times since and until, or ask for a moment with six digits of a second";
        let what = if to_us - from_us == 999_999 { "second" } else { "time" };
        notes.push(if in_turn {
            format!("a port had several holders in that {what}, each for a part of it only; {remedy}")
        } else {
            format!("{parts} of {} held it for a part of that {what} only; {remedy}", holders.len())
        });
    }
    notes
}

/// How holders that are not the same subscriber have the same port.
#[derive(Clone, Copy, Debug, Default)]
struct SamePort {
    /// One after the other.
    in_turn: bool,
    /// At the same time, each towards other remote endpoints.
    by_remote: bool,
}

impl SamePort {
    fn of(holders: &[Holder]) -> SamePort {
        let mut sorted: Vec<&Holder> = holders.iter().collect();
        sorted.sort_unstable_by_key(|holder| (holder.external, holder.first_port));
        let mut same = SamePort::default();
        for (place, one) in sorted.iter().enumerate() {
            let later = sorted.iter().skip(place + 1);
            let overlapping =
                later.take_while(|other| other.external == one.external && other.first_port <= one.last_port);
            for other in overlapping.filter(|other| one.has_port_of(other)) {
                let by_remote = one.is_apart_by_remote(other);
                same.by_remote |= by_remote;
                same.in_turn |= !by_remote;
                if same.by_remote && same.in_turn {
                    return same;
                }
            }
        }
        same
    }
}

/// Keeps the holders that are to be shown. A note says if there are others. Returns the cursor of
/// the next page.
fn show_page(arguments: &Find, asker: Asker<'_>, found: &mut Found) -> Option<String> {
    let paging = &arguments.paging;
    let limit = if paging.all { usize::MAX } else { usize::try_from(paging.limit).unwrap_or(usize::MAX) };
    let Cut { begin, end, count, next } = asker.scope.cut(limit, &mut found.holders);
    if asker.origin != Origin::Api && found.holders.len() < count {
        let shown = match found.holders.len() {
            0 => format!("none of {count} holders is shown"),
            _ => format!("holders {} to {end} of {count} are shown", begin + 1),
        };
        let rest = next.as_ref().map(|next| format!("; for the others use --cursor {next}, --limit N or --all"));
        found.notes.push(shown + &rest.unwrap_or_default());
    }
    next
}

/// A lookup in a store that the store has no record of.
pub(crate) fn unrecorded(error: StoreError) -> Failure {
    let remedy = "let this user write to the store, or search a copy which it may write to";
    let fault = Fault::new("lookup", "cannot be recorded, so it is not answered", remedy);
    CliError::from(fault.seen(error.to_string())).into()
}

/// Notes that no record of a block has the address of a host behind a B4.
fn note_inner(asked: &Asked<'_>, config: Option<&Config>, found: &mut Found) {
    let has_softwires = config.is_none_or(|config| !config.nat.transition.softwires.is_empty());
    if found.holders.is_empty() && asked.host.is_none() && asked.address.is_private() && has_softwires {
        found.notes.push(format!(
            "if {} was behind a B4 (DS-Lite) and had a port of a block, the records name only the B4: ask for its address",
            asked.address
        ));
    }
}

/// Removes holders in other VRFs. One without a name may be in any.
fn only_vrf(store: &Store, (argument, vrf): (String, &str), found: &mut Found) -> Result<(), Failure> {
    let known = store.vrfs();
    if !known.contains(&vrf) {
        let remedy = match known.is_empty() {
            true => "leave it out: the store has no names of VRFs".to_owned(),
            false => format!("use one of: {}; they are the names of that time", known.join(", ")),
        };
        let fault = Fault::new(argument, "no such VRF in the store", remedy);
        return Err(CliError::from(fault.seen(vrf.to_owned())).into());
    }
    found.holders.retain(|holder| holder.vrf.as_deref().is_none_or(|has| has == vrf));
    Ok(())
}

/// The formulas, if they were in use all the time. Notes what cannot be known without them.
fn in_use<'a>(formulas: Option<Formulas<'a>>, found: &mut Found) -> Option<Formulas<'a>> {
    if found.formulas.is_empty() {
        return None;
    }
    let why = match formulas {
        Some(formulas) if found.formulas == [formulas.checksum()] => return Some(formulas),
        Some(formulas) if found.formulas.contains(&formulas.checksum()) => {
            "the formulas of deterministic pools changed then, to or from those of the configuration; ask for an earlier \
             or later time"
        }
        Some(_) => "the configuration is not the one of that time: its deterministic pools have other formulas",
        None => "ports of deterministic pools have no records; also give the configuration of that time: --config FILE",
    };
    found.is_complete = false;
    found.notes.push(why.to_owned());
    None
}

/// Looks up a log with its rotated files.
fn look_up_in(path: &Path, query: &Query<'_>, bounds: Bounds<'_>) -> Result<History, lines::HistoryError> {
    look_up_with_progress(&lines::files_of(path)?, query, bounds)
}

/// Looks up files, with a bar that has the time left.
fn look_up_with_progress(
    files: &[PathBuf],
    query: &Query<'_>,
    bounds: Bounds<'_>,
) -> Result<History, lines::HistoryError> {
    let bar = progress::bar(0);
    let found = lines::look_up_within(files, query, bounds.holders_max, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        (bounds.goes_on)()
    });
    bar.finish_and_clear();
    found
}

/// Looks up the log that a configuration names.
///
/// # Errors
/// Why the log was not read.
fn look_up_own(config: &Config, query: &Query<'_>, bounds: Bounds<'_>) -> Result<History, String> {
    let path = match config.event_log.as_ref().and_then(|log| log.target.as_ref()) {
        Some(EventTarget::File(path)) => path,
        Some(EventTarget::StandardOutput) => return Err("[log] events of that configuration is not a file".to_owned()),
        None => return Err("that configuration has no [log] events".to_owned()),
    };
    let found = look_up_in(path, query, bounds);
    found.map_err(|error| format!("log {} of that configuration: {}", error.path.display(), error.source))
}

/// The log of the running instance.
fn log_of_instance(socket: &Path) -> Result<PathBuf, Failure> {
    let fault = match instance_log::of(socket)?.map(|log| log.destination) {
        Some(path) if path != "-" && !path.is_empty() => return Ok(PathBuf::from(path)),
        Some(_) => {
            let problem = "the running instance writes lines to standard output, and has no store ([log.store])";
            Fault::new("event log", problem, "give the files that have the lines: --log FILE")
        }
        None => {
            let remedy =
                "set [log.store] path to record it from now on; for earlier records give --dir DIR or --log FILE";
            Fault::new("event log", "the running instance has none, so who had an address was not recorded", remedy)
        }
    };
    Err(CliError::from(fault).into())
}
