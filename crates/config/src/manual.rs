//! `docs/configuration.md`, written from the table of keys.

use std::fmt::Write;

use crate::keys::Key;
use crate::keys::Kind;
use crate::keys::Preset;
use crate::keys::live::Effect;
use crate::keys::sections;
use crate::section::duration_text;
use crate::section::size_text;

const HEAD: &str = "# Configuration

<!-- Written from crates/config/src/keys.rs by `UPDATE=1 cargo test -p config --test manual`. Do not edit. -->

A configuration is one TOML file. `natrix check -c FILE` reports all its faults at once, each with line, path, problem,
value seen and remedy. An unknown key is a fault, and so is a configuration that could not pass traffic.

The smallest useful file has two interfaces and a pool:

```toml
";

const AFTER_SAMPLE: &str = "```

There are more in [examples](../examples).

| type | form | units |
|---|---|---|
| duration | `\"2 h 4 min\"` | `d`, `h`, `min`, `s`, `ms`, `us` |
| size | `\"256 MiB\"` | `B`, `kB`, `MB`, `GB`, `TB`, `KiB`, `MiB`, `GiB`, `TiB` |
| rate | `\"1000/s\"` | `/s`, `k/s`, `M/s` |

Column *change*: `live` keys change with `natrix reload` under traffic, and `natrix plan` shows the effect first.
`natrix reload` refuses a file that changes a `restart` key, and changes nothing.
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
    for section in sections() {
        let title = if section.repeats { format!("[[{}]]", section.name) } else { format!("[{}]", section.name) };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n## `{title}`\n\n{}\n\n| key | type and unit | range | default | change | what it does |\n|---|---|---|---|---|---|\n",
            wrapped(section.about)
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

/// Breaks a paragraph at the width of Markdown in this tree.
fn wrapped(paragraph: &str) -> String {
    const WIDTH: usize = 120;
    let mut text = String::new();
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 {
            let breaks = column + 1 + length > WIDTH;
            text.push(if breaks { '\n' } else { ' ' });
            column = if breaks { 0 } else { column + 1 };
        }
        text.push_str(word);
        column += length;
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
