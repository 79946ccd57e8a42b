//! `natrix api`, the process of the API, and `natrix token`.

use std::io::Write;
use std::sync::Arc;

use api::EventLog;
use api::NotAnswered;
use api::PastAnswer;
use api::PastFound;
use api::PastQuestion;
use api::PastTime;
use api::Settings;
use api::Token;
use cli::ClientCommand;
use cli::Command;
use cli::TokenArguments;
use control::Fault;
use export::utc_text;
use serde_json::json;

use crate::beside::run_beside;
use crate::failure::Failure;
use crate::find_at;
use crate::find_at::Answered;
use crate::find_page::Scope;
use crate::log;

/// `natrix api`: the process itself.
pub(crate) fn run() -> Result<(), Failure> {
    run_beside("api", |settings: Settings| api::serve(settings.clone(), event_log(&settings)))
}

/// The event log of the instance, asked as the command line does.
fn event_log(settings: &Settings) -> EventLog {
    let socket = Arc::new(settings.control.clone());
    let with_socket = || Arc::clone(&socket);
    let failed = |failure: Failure| log::of_the_log(&failure);
    let of_past = with_socket();
    let (of_stat, of_head, of_verify, of_export) = (with_socket(), with_socket(), with_socket(), with_socket());
    EventLog {
        times: Arc::new(times_of),
        past: Arc::new(move |question, goes_on| find_past(question, &of_past.display().to_string(), goes_on)),
        stat: Arc::new(move || log::stat_of_instance(&of_stat).map_err(failed)),
        head: Arc::new(move || log::head_of_instance(&of_head).map_err(failed)),
        verify: Arc::new(move |head, progress| log::verify_instance(&of_verify, head, progress).map_err(failed)),
        export: Arc::new(move |question| log::prepare_export(&of_export, question)),
    }
}

/// The time in question without words that are relative to now: that of the cursor, if there is
/// one.
fn times_of(question: &control::Find, time: &PastTime) -> Result<PastTime, Fault> {
    let meant = Scope::of(question, None, time, "")?.time;
    let (from, to) = (utc_text(meant.from_us), utc_text(meant.to_us));
    Ok(match time {
        PastTime::At(_) => PastTime::At(meant.at().unwrap_or(from)),
        PastTime::Between { .. } => PastTime::Between { from, to },
    })
}

/// Answers as `natrix find --at`, or `--from` and `--to`, does.
fn find_past(question: &PastQuestion, socket: &str, goes_on: &dyn Fn() -> bool) -> PastAnswer {
    let mut words = vec!["natrix".to_owned(), "find".to_owned(), question.endpoint.clone()];
    words.extend([format!("--socket={socket}"), "--json".to_owned()]);
    words.push(format!("--limit={}", question.limit));
    words.extend(question.cursor.as_ref().map(|cursor| format!("--cursor={cursor}")));
    match &question.time {
        PastTime::At(at) => words.push(format!("--at={at}")),
        PastTime::Between { from, to } => words.extend([format!("--from={from}"), format!("--to={to}")]),
    }
    words.extend(question.protocol.map(|protocol| format!("--protocol={protocol}")));
    words.extend(question.vrf.as_ref().map(|vrf| format!("--vrf={vrf}")));
    words.extend(question.remote.as_ref().map(|remote| format!("--remote={remote}")));
    words.extend(question.case.as_ref().map(|case| format!("--case={case}")));
    let wrong = |error: String| NotAnswered::Log(Fault::new("find", error, "see docs/logging.md"));
    let command = cli::try_parse_from(words).map_err(|error| wrong(error.kind().to_string()))?;
    let Command::Client(ClientCommand::Find(arguments)) = command else { return Err(wrong("not a lookup".to_owned())) };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    // The API has the instance record it before it sends the answer.
    let answered =
        find_at::run(&arguments, Some(goes_on), &mut out, &mut notes).map_err(|failure| wrong(failure.to_string()))?;
    let Answered { outcome, next } = answered;
    let objects: Result<Vec<_>, _> = serde_json::Deserializer::from_slice(&out).into_iter().collect();
    let objects = objects.map_err(|error| wrong(error.to_string()))?;
    let notes = String::from_utf8_lossy(&notes).lines().map(str::to_owned).collect();
    Ok(PastFound { objects, notes, cursor: next, result: outcome.to_string() })
}

/// `natrix token`.
pub(crate) fn token(arguments: &TokenArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let TokenArguments { name, role, json } = arguments;
    config::check_name(name)
        .map_err(|(problem, remedy)| cli::CliError::from(Fault::new("token", problem, remedy).seen(name)))?;
    let made = Token::new(name).map_err(|error| cli::CliError::from(Fault::new("token", error, "try again")))?;
    if *json {
        writeln!(out, "{}", json!({ "name": name, "role": role, "token": made.token, "hash": made.hash }))?;
        return Ok(());
    }
    writeln!(out, "token, for the client only:\n\n    {}\n\nlines for the configuration:\n", made.token)?;
    writeln!(out, "[[http.user]]\nname = \"{name}\"\nrole = \"{role}\"\ntoken = \"{}\"", made.hash)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_name_that_the_configuration_takes() {
        for (name, is_taken) in [("noc", true), ("", false), ("a b", false), ("a:b", false), ("a\"\nrole", false)] {
            let arguments = TokenArguments { name: name.to_owned(), role: "view".to_owned(), json: false };
            let mut out = Vec::new();
            assert_eq!(token(&arguments, &mut out).is_ok(), is_taken, "{name:?}");
            assert_eq!(out.is_empty(), !is_taken, "{name:?}");
        }
    }

    #[test]
    fn a_time_is_resolved_once_or_refused_without_an_instance() {
        let (earlier, later) = ("2026-05-03T00:00:00.000000Z", "2026-05-04T00:00:00.000000Z");
        let between = |from: &str, to: &str| PastTime::Between { from: from.to_owned(), to: to.to_owned() };
        let at = |time: &str| PastTime::At(time.to_owned());
        let asked = |cursor: Option<&str>| control::Find {
            address: "203.0.113.7".parse().unwrap(),
            port: None,
            protocol: None,
            vrf: None,
            limit: None,
            cursor: cursor.map(str::to_owned),
        };
        for (time, cursor, problem) in [
            (between(later, earlier), None, "is before from"),
            (between("monday", later), None, "not a time"),
            (at("monday"), None, "not a time"),
            (at("2026-05-03"), None, "a date without a time of day"),
            (at(later), Some("7"), "is not from a list of holders"),
            (at(later), Some("1.2.9.1.1.1.1"), "is from another question"),
        ] {
            assert_eq!(times_of(&asked(cursor), &time).unwrap_err().problem, problem, "{time:?}");
        }
        assert_eq!(times_of(&asked(None), &between("2026-05-03 02:00:00+02:00", later)), Ok(between(earlier, later)));
        // A second stays one.
        let second = at("2026-05-03T00:00:00Z");
        assert_eq!(times_of(&asked(None), &at("2026-05-03 02:00:00+02:00")), Ok(second.clone()));
        assert_eq!(times_of(&asked(None), &second), Ok(second));
        assert_eq!(times_of(&asked(None), &at(earlier)), Ok(at(earlier)));
        // Each page is about the time of the first.
        let first = times_of(&asked(None), &between("1 h ago", "now")).unwrap();
        assert_ne!(first, between("1 h ago", "now"));
        assert_eq!(times_of(&asked(None), &first), Ok(first));
        let question = PastQuestion {
            endpoint: "203.0.113.7".to_owned(),
            time: between(earlier, later),
            protocol: None,
            vrf: None,
            remote: None,
            case: None,
            limit: 100,
            cursor: None,
        };
        let unreachable = find_past(&question, "/nonexistent/control.sock", &|| true);
        assert!(matches!(unreachable, Err(NotAnswered::Log(_))), "{unreachable:?}");
    }
}
