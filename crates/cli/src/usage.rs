//! Reads the command line and reports its errors.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::num::IntErrorKind;
use std::num::ParseFloatError;
use std::num::ParseIntError;
use std::process;

use clap::CommandFactory;
use clap::Parser;
use clap::error::ContextKind;
use clap::error::ContextValue;
use clap::error::ErrorKind;
use control::Fault;
use control::ParseError;

use crate::EXIT_USAGE;
use crate::arguments::Arguments;
use crate::arguments::Command;

/// The command of this process. Prints help and version; exits with status 2 on a wrong line.
pub fn parse() -> Command {
    let words: Vec<OsString> = std::env::args_os().collect();
    match try_parse_from(words.clone()) {
        Ok(command) => command,
        Err(error) if !error.use_stderr() => {
            // Help and version: a reader that has gone away is not an error.
            let _ = error.print();
            process::exit(0);
        }
        Err(error) => {
            eprintln!("{}", describe(&error, &words));
            process::exit(i32::from(EXIT_USAGE));
        }
    }
}

/// The command of a list of words that begins with the name of the program.
///
/// # Errors
/// The error of clap; help and version are errors too.
pub fn try_parse_from<I, T>(words: I) -> Result<Command, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    Arguments::try_parse_from(words).map(|arguments| arguments.command)
}

fn text(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(all) => all.join(" "),
        other => other.to_string(),
    }
}

/// Of several suggestions, which begin with the least likely.
fn likeliest(suggestions: &ContextValue) -> Option<String> {
    let word = match suggestions {
        ContextValue::Strings(all) => all.last().cloned().unwrap_or_default(),
        other => other.to_string(),
    };
    (!word.is_empty()).then_some(word)
}

/// Where the help of the command in these words is.
fn help_of<W: AsRef<OsStr>>(words: &[W]) -> String {
    let root = Arguments::command();
    let (mut command, mut path) = (&root, "natrix".to_owned());
    for word in words.iter().skip(1) {
        let word: &OsStr = word.as_ref();
        let Some(next) = command.find_subcommand(word) else { break };
        path = format!("{path} {}", next.get_name());
        command = next;
    }
    format!("see `{path} --help`")
}

/// Why a value is refused, and what to write instead if that is known. The library's words about
/// numbers say neither.
fn reason_of(source: &(dyn std::error::Error + 'static), value: &str) -> (String, Option<String>) {
    if let Some(ParseError { what, expected }) = source.downcast_ref() {
        return (format!("is not {what}"), Some(format!("write {expected}")));
    }
    match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => return ("is too large".to_owned(), None),
        Some(_) => return ("is not a whole number".to_owned(), None),
        None => {}
    }
    if source.is::<ParseFloatError>() {
        return ("is not a number".to_owned(), None);
    }
    let text = source.to_string();
    out_of_range(&text, value).unwrap_or((text, None))
}

/// What `0 is not in 1..=64` means.
fn out_of_range(text: &str, value: &str) -> Option<(String, Option<String>)> {
    let (low, high) = text.strip_prefix(value)?.strip_prefix(" is not in ")?.split_once("..")?;
    let last = match high.strip_prefix('=') {
        Some(last) => last.parse::<i128>().ok()?,
        None => high.parse::<i128>().ok()? - 1,
    };
    let (first, value) = (low.parse::<i128>().ok()?, value.parse::<i128>().ok()?);
    let problem = if value < first { "is too small" } else { "is too large" };
    // Without an end, the library names the largest value of the type, which counts only if the
    // value is above it.
    let has_end = value > last
        || ![u8::MAX.into(), u16::MAX.into(), u32::MAX.into(), i64::MAX.into(), u64::MAX.into()]
            .into_iter()
            .any(|largest: i128| (largest - 1..=largest).contains(&last));
    let remedy = if has_end { format!("give {first} to {last}") } else { format!("give {first} or more") };
    Some((problem.to_owned(), Some(remedy)))
}

/// The error in the form of all errors of Natrix, or the help if there is no command.
pub(crate) fn describe<W: AsRef<OsStr>>(error: &clap::Error, words: &[W]) -> String {
    let context = |kind| error.get(kind).map(text).filter(|text| !text.is_empty());
    let argument = context(ContextKind::InvalidArg);
    let value = context(ContextKind::InvalidValue);
    let suggestion = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(|kind| error.get(kind).and_then(likeliest))
        .map(|word| format!("did you mean `{word}`?"));
    let valid = context(ContextKind::ValidValue).map(|known| format!("use one of: {known}"));
    let reason = std::error::Error::source(error).map(|source| reason_of(source, value.as_deref().unwrap_or_default()));
    let (reason, instead) = reason.map_or((None, None), |(reason, instead)| (Some(reason), instead));
    let remedy = suggestion.or(valid).or(instead).unwrap_or_else(|| help_of(words));
    let object = argument.unwrap_or_else(|| "command line".to_owned());
    let (object, problem, seen) = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            return usage_help(error);
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => match value {
            Some(value) => {
                // Beside the value, its name is of no use.
                let name = object.split_once(" <").map_or(object.as_str(), |(name, _)| name).to_owned();
                (name, reason.unwrap_or_else(|| "is not a valid value".to_owned()), Some(value))
            }
            None => (object, "needs a value".to_owned(), None),
        },
        ErrorKind::UnknownArgument => (object, "no such argument".to_owned(), None),
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand);
            ("command".to_owned(), "no such command".to_owned(), word)
        }
        ErrorKind::MissingRequiredArgument => (object, "is missing".to_owned(), None),
        ErrorKind::ArgumentConflict => {
            let problem = match context(ContextKind::PriorArg) {
                Some(prior) if prior == object => "is given more than once".to_owned(),
                prior => format!("cannot be used with {}", prior.unwrap_or_else(|| "another argument".to_owned())),
            };
            (object, problem, None)
        }
        _ => {
            let first_line = error.to_string().lines().next().unwrap_or_default().to_owned();
            (object, first_line.trim_start_matches("error: ").to_owned(), None)
        }
    };
    let fault = Fault { object, problem, seen, remedy };
    format!("error: {fault}")
}

fn usage_help(error: &clap::Error) -> String {
    let help = error.to_string();
    if help.is_empty() { Arguments::command().render_help().to_string() } else { help }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_have_the_form_of_all_errors() {
        for (words, message) in [
            ("shwo", "error: command: no such command (shwo); did you mean `show`?"),
            ("show sesions", "error: command: no such command (sesions); did you mean `sessions`?"),
            ("check", "error: --config <FILE>: is missing; see `natrix check --help`"),
            ("check -c a -c b", "error: --config <FILE>: is given more than once; see `natrix check --help`"),
            ("check -c", "error: --config <FILE>: needs a value; see `natrix check --help`"),
            ("show status --jsn", "error: --jsn: no such argument; did you mean `--json`?"),
            ("show mappings --limit 0", "error: --limit: is too small (0); give 1 or more"),
            (
                "show interfaces --limit x",
                "error: --limit: is not a whole number (x); see `natrix show interfaces --help`",
            ),
            ("show mappings --protocol gre", "error: --protocol: is not known (gre); write udp, tcp or icmp"),
            (
                "show mappings --internal 10.0.0.256",
                "error: --internal: is not an IPv4 address, prefix or port (10.0.0.256); write 10.0.0.2, 10.0.0.0/8, 10.0.0.2:4000 or :4000 (--host for IPv6)",
            ),
            (
                "show mappings --all --limit 5",
                "error: --all: cannot be used with --limit <N>; see `natrix show mappings --help`",
            ),
            (
                "bench engine --mode quick",
                "error: --mode: is not a valid value (quick); use one of: established new mixed",
            ),
            (
                "bench forward --driver net_ring,net_rings",
                "error: --driver: is not a valid value (net_rings); did you mean `net_ring`?",
            ),
            (
                "bench tables --structures btree",
                "error: --structures: is not a valid value (btree); did you mean `rbtree`?",
            ),
            (
                "bench stalls --event dump,pool_fall",
                "error: --event: is not a valid value (pool_fall); did you mean `pool_full`?",
            ),
            (
                "lab probe --transport memif",
                "error: --transport: is not a valid value (memif); use one of: af-xdp af-packet",
            ),
            (
                "lab sharing --transport vhost-user",
                "error: --transport: is not a valid value (vhost-user); use one of: af-xdp af-packet",
            ),
            ("trace --port 99999", "error: --port: is too large (99999); give 0 to 65535"),
            ("why --length 70000 udp 10.0.0.1:1 1.1.1.1:53", "error: --length: is too large (70000); give 0 to 65535"),
            ("bench scaling --workers 1", "error: --workers: is too small (1); give 2 to 64"),
            ("bench engine --sessions 0", "error: --sessions: is too small (0); give 1 or more"),
            ("bench scaling --workers 65", "error: --workers: is too large (65); give 2 to 64"),
            (
                "find 1.2.3",
                "error: <ADDRESS[:PORT]>: is not an address (1.2.3); write 203.0.113.10, 203.0.113.10:40001, 2001:db8::7, [2001:db8::7]:40001 or 2001:db8::/56",
            ),
            (
                "why udp 10.0.0.1 1.1.1.1:53",
                "error: <SRC:PORT>: is not an address with a port (10.0.0.1); write 10.0.0.2:4000 or [2001:db8::2]:4000",
            ),
        ] {
            let line: Vec<&str> = ["natrix"].into_iter().chain(words.split(' ')).collect();
            let error = try_parse_from(line.clone()).unwrap_err();
            assert_eq!(describe(&error, &line), message, "{words}");
            assert!(error.use_stderr());
        }
    }

    #[test]
    fn a_drain_until_something_waits() {
        let parsed = |words: &str| try_parse_from(["natrix", "drain"].into_iter().chain(words.split_whitespace()));
        for words in ["", "--wait 9", "--wait 9 --until quiet", "--until empty --wait 9", "--undo"] {
            assert!(parsed(words).is_ok(), "{words}");
        }
        assert!(parsed("--undo --until quiet").is_err());
        for words in ["--wait 0 --until quiet", "--wait 2"] {
            let text = describe(&parsed(words).unwrap_err(), &["natrix", "drain"]);
            assert!(text.contains("give 3 or more"), "{words}: {text}");
        }
        for words in ["--until quiet", "--until empty"] {
            let text = describe(&parsed(words).unwrap_err(), &["natrix", "drain"]);
            assert!(text.contains("--wait <SECONDS>"), "{words}: {text}");
        }
    }

    #[test]
    fn a_case_is_one_line_of_plain_text() {
        let line = |case: &'static str| ["natrix", "find", "203.0.113.7:41233", "--case", case];
        assert!(try_parse_from(line("AZ 17/2026, Müller")).is_ok());
        for case in ["a\nb", "a\u{1b}[2J", "a\u{202e}b"] {
            let error = try_parse_from(line(case)).unwrap_err();
            let text = describe(&error, &line(case));
            assert!(text.contains("control characters"), "{text:?}");
        }
        let long = "x".repeat(control::CASE_BYTES_MAX + 1);
        assert!(try_parse_from(["natrix", "find", "203.0.113.7:41233", "--case", &long]).is_err());
        let show = ["natrix", "show", "subscribers", "--case", "a\nb"];
        assert!(try_parse_from(show).is_err());
    }

    #[test]
    fn a_cursor_may_begin_with_a_hyphen() {
        assert!(try_parse_from(["natrix", "audit", "--cursor", "-20261001:109"]).is_ok());
    }

    #[test]
    fn a_command_line_without_a_command_shows_help() {
        let error = try_parse_from(["natrix"]).unwrap_err();
        assert!(describe(&error, &["natrix"]).contains("Usage: natrix <COMMAND>"));
        assert!(
            describe(&error, &["natrix"]).starts_with("A carrier-grade NAT in software"),
            "the program, not its crate"
        );
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}
