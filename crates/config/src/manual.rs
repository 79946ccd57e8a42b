//! `docs/configuration.md`, written from the table of keys.

use std::fmt::Write;

use crate::keys::Key;
use crate::keys::Kind;
use crate::keys::Preset;
use crate::keys::SECTIONS;
use crate::keys::live::Effect;
use crate::section::duration_text;
use crate::section::size_text;

const HEAD: &str = "# Configuration

<!-- Written from crates/config/src/keys.rs by `UPDATE=1 cargo test -p config --test manual`. Do not edit. -->

A configuration is one TOML file. `natrix check -c FILE` reports every fault of it at once, each with its line, its path, what is
wrong, the value seen and what to do. An unknown key is a fault. A configuration that could not pass traffic is one too.

The smallest useful file is two interfaces and a pool:

```toml
";

const AFTER_SAMPLE: &str = "```

More in [examples](../examples).

Durations are strings of whole numbers and units, `\"2 h 4 min\"`: `d`, `h`, `min`, `s`, `ms`, `us`. Sizes are `\"256 MiB\"`: `B`,
`kB`, `MB`, `GB`, `TB`, `KiB`, `MiB`, `GiB`, `TiB`. Rates are `\"1000/s\"`: `/s`, `k/s`, `M/s`.

Change: `live` keys change with `natrix reload` while traffic flows; what `natrix plan` says will become of what is there. A file that
changes a `restart` key is refused by `natrix reload`, and nothing is changed.
";

/// The smallest useful file.
pub(crate) const SMALLEST: &str = r#"[[interface]]
name = "lan"
realm = "inside"
driver = "net_af_xdp0,iface=eth1"
addresses = ["100.64.0.1/24"]

[[interface]]
name = "wan"
realm = "outside"
driver = "net_af_xdp1,iface=eth2"
addresses = ["192.0.2.2/24"]

[[pool]]
name = "main"
addresses = ["203.0.113.0/28"]
"#;

/// The manual of the configuration, Markdown.
pub fn manual() -> String {
    let mut text = format!("{HEAD}{SMALLEST}{AFTER_SAMPLE}");
    for section in SECTIONS {
        let title = if section.repeats { format!("[[{}]]", section.name) } else { format!("[{}]", section.name) };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n## `{title}`\n\n{}\n\n| key | type and unit | range | default | change | what it does |\n|---|---|---|---|---|---|\n",
            section.about
        );
        for key in section.keys {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} |",
                key.name,
                type_and_unit(key.kind),
                range(key),
                default(key.default),
                Effect::of(section.name, key.name).text(),
                key.consequence
            );
        }
    }
    text
}

fn type_and_unit(kind: Kind) -> String {
    match kind {
        Kind::Integer { unit: "", .. } => "number".to_owned(),
        Kind::Integer { unit, .. } => format!("number, {unit}"),
        Kind::Duration { .. } => "duration".to_owned(),
        Kind::Size { .. } => "size".to_owned(),
        Kind::Rate { .. } => "rate".to_owned(),
        Kind::Boolean => "boolean".to_owned(),
        Kind::Choice(_) | Kind::Text(_) => "string".to_owned(),
        Kind::List(_) => "array".to_owned(),
        Kind::Mixed(_) => "several".to_owned(),
    }
}

fn range(key: &Key) -> String {
    match key.kind {
        Kind::Integer { min, max, .. } => format!("{min} to {max}"),
        Kind::Duration { min_us, max_us, bound } => {
            let range = format!("{} to {}", duration_text(min_us), duration_text(max_us));
            match bound {
                Some(bound) => {
                    format!("{range}; below {} only if allowed ({})", duration_text(bound.min_us), bound.requirement)
                }
                None => range,
            }
        }
        Kind::Size { min, max } => format!("{} to {}", size_text(min), size_text(max)),
        Kind::Rate { min, max } => format!("{min}/s to {max}/s"),
        Kind::Boolean => "`true`, `false`".to_owned(),
        Kind::Choice(words) => words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<String>>().join(", "),
        Kind::Text(what) | Kind::List(what) | Kind::Mixed(what) => what.to_owned(),
    }
}

fn default(preset: Preset) -> String {
    match preset {
        Preset::Required(_) => "required".to_owned(),
        Preset::Value(text) => format!("`{text}`"),
        Preset::Derived { rule, .. } => rule.to_owned(),
    }
}
