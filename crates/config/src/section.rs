//! One table of the file, read by the types and ranges of the key table.

use toml_edit::Item;
use toml_edit::TableLike;
use toml_edit::Value;

use crate::keys::Key;
use crate::keys::Kind;
use crate::keys::Preset;
use crate::keys::SectionKeys;
use crate::keys::keys_of;
use crate::keys::sections;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::values;

/// One table of the file.
pub(crate) struct Section<'a> {
    table: &'a dyn TableLike,
    keys: &'static [Key],
    /// Where it starts.
    pub(crate) place: Place,
}

impl<'a> Section<'a> {
    /// Reads `table` by the keys of `[name]`, and reports the keys there are not.
    pub(crate) fn new(name: &str, table: &'a dyn TableLike, place: Place, report: &mut Report) -> Section<'a> {
        let section = Section { table, keys: keys_of(name), place };
        for (key, _) in table.iter() {
            let inner = |known: &SectionKeys| known.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            let is_table = || sections().iter().any(|known| known.name.strip_prefix(name) == Some(&format!(".{key}")));
            if section.keys.iter().any(|known| known.name == key) || is_table() {
                continue;
            }
            let has_key = |known: &SectionKeys| known.keys.iter().any(|known| known.name == key);
            let with_key = sections().iter().filter(|known| inner(known) && has_key(known));
            let with_key: Vec<String> = with_key.map(named).collect();
            let place = section.place_of(key, report);
            if !with_key.is_empty() {
                report.fault(&place, "is not a key of this table", "", format!("set it in {}", with_key.join(", ")));
                continue;
            }
            let is_written_as_table = table.get(key).is_some_and(|item| item.is_table() || item.is_array_of_tables());
            if is_written_as_table && sections().iter().any(inner) {
                unknown_table(&place, name, key, report);
                continue;
            }
            unknown_key(&place, key, section.keys.iter().map(|known| known.name), report);
        }
        section
    }

    /// Path and line of a key; the line of the table when the key is not there.
    pub(crate) fn place_of(&self, key: &str, report: &Report) -> Place {
        let line =
            self.table.get_key_value(key).and_then(|(key, item)| report.line(key.span().or_else(|| item.span())));
        Place { path: format!("{}.{key}", self.place.path).into(), line: line.or(self.place.line) }
    }

    /// Whether the file has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether the file has any key of it.
    pub(crate) fn has_any(&self) -> bool {
        !self.table.is_empty()
    }

    /// The item of a key, when the file has it.
    pub(crate) fn item(&self, key: &str) -> Option<&'a Item> {
        self.table.get(key)
    }

    fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// What the file says, or the default; none when there is neither, which is a fault for a
    /// required key.
    fn found(&self, name: &str, report: &mut Report) -> Option<(&'static Key, Placed<Value>)> {
        let key = self.key(name)?;
        let place = self.place_of(name, report);
        match self.table.get(name) {
            Some(Item::Value(value)) => Some((key, Placed { value: value.clone(), place, given: true })),
            Some(_) => {
                report.fault(&place, "is a table", "", format!("write {name} = {}", key.default.example()));
                None
            }
            None => match key.default {
                Preset::Required(example) => {
                    // The name of a pool of this file would have to be known here.
                    let remedy = match name {
                        "pool" => "set pool to the name of a [[pool]]".to_owned(),
                        _ => format!("write {name} = {example}"),
                    };
                    report.fault(&place, "is missing", "", remedy);
                    None
                }
                Preset::Value(text) => {
                    let value = text.parse().ok()?;
                    Some((key, Placed { value, place: Place { line: None, ..place }, given: false }))
                }
                Preset::Derived { .. } => None,
            },
        }
    }

    fn wrong_type(&self, key: &Key, found: &Placed<Value>, wanted: &str, report: &mut Report) {
        let remedy = format!("write {} = {}", key.name, key.default.example());
        let seen = if matches!(key.name, "token" | "algorithm_key") { String::new() } else { shown(&found.value) };
        report.fault(&found.place, format!("is not {wanted}"), seen, remedy);
    }

    /// A whole number in its range.
    pub(crate) fn integer(&self, name: &str, report: &mut Report) -> Option<Placed<u64>> {
        let (key, found) = self.found(name, report)?;
        let Kind::Integer { min, max, unit } = key.kind else { return None };
        let Some(number) = found.value.as_integer() else {
            self.wrong_type(key, &found, "a whole number", report);
            return None;
        };
        match u64::try_from(number) {
            Ok(value) if (min..=max).contains(&value) => Some(Placed { value, place: found.place, given: found.given }),
            _ => {
                let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
                let remedy = format!("write a number from {min} to {max}{unit}");
                report.fault(&found.place, "is out of range", number.to_string(), remedy);
                None
            }
        }
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, name: &str, report: &mut Report) -> Option<bool> {
        let (_, found) = self.found(name, report)?;
        let value = found.value.as_bool();
        if value.is_none() {
            let remedy = format!("write {name} = true or {name} = false");
            report.fault(&found.place, "is not true or false", shown(&found.value), remedy);
        }
        value
    }

    /// Any string.
    pub(crate) fn text(&self, name: &str, report: &mut Report) -> Option<Placed<String>> {
        let (key, found) = self.found(name, report)?;
        match found.value.as_str() {
            Some(text) => Some(Placed { value: text.to_owned(), place: found.place, given: found.given }),
            None => {
                self.wrong_type(key, &found, "a string", report);
                None
            }
        }
    }

    /// A string read by one of the functions of [`values`].
    pub(crate) fn parsed<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, values::ValueError>,
        report: &mut Report,
    ) -> Option<Placed<T>> {
        let text = self.text(name, report)?;
        let example = self.key(name)?.default.example();
        let value = parse_text(&text, parse, &format!("write {name} = {example}"), report)?;
        Some(Placed { value, place: text.place, given: text.given })
    }

    /// One of the strings of the key table.
    pub(crate) fn choice(&self, name: &str, report: &mut Report) -> Option<&'static str> {
        let Kind::Choice(words) = self.key(name)?.kind else { return None };
        let text = self.text(name, report)?;
        choose(&text, words, report)
    }

    /// A duration in its range.
    pub(crate) fn duration(&self, name: &str, report: &mut Report) -> Option<Placed<nat::Duration>> {
        let found = self.parsed(name, values::duration, report)?;
        let Kind::Duration { min_us, max_us, .. } = self.key(name)?.kind else { return None };
        if (min_us..=max_us).contains(&found.value.as_micros()) {
            return Some(found);
        }
        let remedy = format!("write a duration from {} to {}", duration_text(min_us), duration_text(max_us));
        report.fault(&found.place, "is out of range", duration_text(found.value.as_micros()), remedy);
        None
    }

    /// A size in its range, bytes.
    pub(crate) fn size(&self, name: &str, report: &mut Report) -> Option<Placed<u64>> {
        let found = self.parsed(name, values::size_bytes, report)?;
        let Kind::Size { min, max } = self.key(name)?.kind else { return None };
        if (min..=max).contains(&found.value) {
            return Some(found);
        }
        let remedy = format!("write a size from {} to {}", size_text(min), size_text(max));
        report.fault(&found.place, "is out of range", size_text(found.value), remedy);
        None
    }

    /// A rate in its range, events per second.
    pub(crate) fn rate(&self, name: &str, report: &mut Report) -> Option<u64> {
        let found = self.parsed(name, values::rate_per_second, report)?;
        let Kind::Rate { min, max } = self.key(name)?.kind else { return None };
        if (min..=max).contains(&found.value) {
            return Some(found.value);
        }
        report.fault(
            &found.place,
            "is out of range",
            format!("{}/s", found.value),
            format!("write a rate from {min}/s to {max}/s"),
        );
        None
    }

    /// The elements of an array.
    pub(crate) fn list(&self, name: &str, report: &mut Report) -> Vec<Placed<Value>> {
        let Some((key, found)) = self.found(name, report) else { return Vec::new() };
        let Some(array) = found.value.as_array() else {
            let remedy = match found.value.as_str() {
                Some(text) => format!("write {name} = [\"{}\"]", text.escape_default()),
                None => format!("write {name} = {}", key.default.example()),
            };
            report.fault(&found.place, "is not an array", shown(&found.value), remedy);
            return Vec::new();
        };
        let place = |index: usize, value: &Value| Place {
            path: format!("{}[{index}]", found.place.path).into(),
            line: if found.given { report.line(value.span()).or(found.place.line) } else { None },
        };
        let element = |(index, value): (usize, &Value)| Placed {
            value: value.clone(),
            place: place(index, value),
            given: found.given,
        };
        array.iter().enumerate().map(element).collect()
    }

    /// The elements of an array of strings, each read by one of the functions of [`values`]; faulty
    /// ones are left out.
    pub(crate) fn parsed_list<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, values::ValueError>,
        example: &str,
        report: &mut Report,
    ) -> Vec<Placed<T>> {
        let mut parsed = Vec::new();
        for element in self.list(name, report) {
            let Some(text) = element.value.as_str() else {
                report.fault(&element.place, "is not a string", shown(&element.value), format!("write {example}"));
                continue;
            };
            let text = Placed { value: text.to_owned(), place: element.place, given: element.given };
            if let Some(value) = parse_text(&text, &parse, &format!("write {example}"), report) {
                parsed.push(Placed { value, place: text.place, given: text.given });
            }
        }
        parsed
    }
}

/// A table as the file has it.
fn named(known: &SectionKeys) -> String {
    if known.repeats { format!("[[{}]]", known.name) } else { format!("[{}]", known.name) }
}

/// Reports a key or table that does not exist.
pub(crate) fn unknown_key<'k>(
    place: &Place,
    wrong: &str,
    known: impl Iterator<Item = &'k str> + Clone,
    report: &mut Report,
) {
    let remedy = match nearest(wrong, known.clone()) {
        Some(meant) => format!("did you mean \"{meant}\"?"),
        None => format!("remove it, or write {}", one_of(known)),
    };
    report.fault(place, "is not a known key", "", remedy);
}

/// Reports a table inside another, which has inner tables, but not this one.
fn unknown_table(place: &Place, outer: &str, wrong: &str, report: &mut Report) {
    let inner = |known: &'static SectionKeys| {
        let name = known.name.strip_prefix(outer)?.strip_prefix('.').filter(|name| !name.contains('.'))?;
        Some((name, known))
    };
    let tables: Vec<(&str, &SectionKeys)> = sections().iter().filter_map(inner).collect();
    let meant = nearest(wrong, tables.iter().map(|(name, _)| *name));
    let remedy = match tables.iter().find(|(name, _)| meant == Some(name)) {
        Some((_, meant)) => format!("did you mean {}?", named(meant)),
        None => {
            let all: Vec<String> = tables.iter().map(|(_, known)| named(known)).collect();
            let all = match all.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                _ => all.concat(),
            };
            format!("remove it, or write {all}")
        }
    };
    report.fault(place, "is not a known table", "", remedy);
}

/// One of `words`.
pub(crate) fn choose(text: &Placed<String>, words: &[&'static str], report: &mut Report) -> Option<&'static str> {
    let chosen = words.iter().find(|word| **word == text.value).copied();
    if chosen.is_none() {
        let remedy = match nearest(&text.value, words.iter().copied()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write {}", one_of(words.iter().copied())),
        };
        report.fault(&text.place, "is not one of the known values", quoted(&text.value), remedy);
    }
    chosen
}

/// Reads a text and reports what is wrong with it; faults that name their cure override `remedy`.
pub(crate) fn parse_text<T>(
    text: &Placed<String>,
    parse: impl Fn(&str) -> Result<T, values::ValueError>,
    remedy: &str,
    report: &mut Report,
) -> Option<T> {
    use values::ValueError;
    let error = match parse(&text.value) {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let remedy = match &error {
        ValueError::Reversed => "write the lower end first".to_owned(),
        ValueError::PortZero => "start at 1 or above".to_owned(),
        ValueError::WeightZero => "write a weight of 1 or more, or leave the target out".to_owned(),
        ValueError::Length(most) => format!("write a length of at most {most}"),
        ValueError::NoLength => {
            let length = if text.value.contains(':') { 64 } else { 24 };
            format!("write \"{}/{length}\" with the length of the prefix", text.value.trim())
        }
        ValueError::NoPrefixLength => whole_length(text.value.trim(), remedy),
        ValueError::HostBits => match values::address_in_prefix(&text.value) {
            Ok((address, length)) => nat::types::Prefix::new(address, length)
                .map_or(remedy.to_owned(), |prefix| format!("write \"{prefix}\"")),
            Err(_) => match values::address6_in_prefix(&text.value) {
                Ok((address, length)) => {
                    let host_bits = u128::MAX.checked_shr(length.into()).unwrap_or(0);
                    format!("write \"{}/{length}\"", core::net::Ipv6Addr::from_bits(address.to_bits() & !host_bits))
                }
                Err(_) => remedy.to_owned(),
            },
        },
        // A key for both families has an example of IPv4.
        ValueError::Form(form) => match values::example6(&error) {
            Some(example) if !remedy.contains(':') => format!("write {form}, such as \"{example}\""),
            _ => remedy.to_owned(),
        },
        ValueError::Unit(_) | ValueError::NoUnit | ValueError::TooLarge => remedy.to_owned(),
    };
    report.fault(&text.place, error.to_string(), quoted(&text.value), remedy);
    None
}

/// The remedy for a prefix without its length. One address is always a prefix; of any other length,
/// only the author knows whether it has host bits.
fn whole_length(address: &str, remedy: &str) -> String {
    use core::net::IpAddr;
    match address.parse() {
        Ok::<IpAddr, _>(address) if address.is_unspecified() => format!("write \"{address}/0\" for all addresses"),
        // A NAT64 prefix has one of a few lengths, which its example shows.
        Ok(IpAddr::V6(_)) if remedy.contains("/96") => remedy.to_owned(),
        Ok(IpAddr::V4(address)) => format!("write \"{address}/32\" for this address alone"),
        Ok(IpAddr::V6(address)) => format!("write \"{address}/128\" for this address alone"),
        Err(_) => remedy.to_owned(),
    }
}

/// A value as it stands in the file.
pub(crate) fn shown(value: &Value) -> String {
    let mut bare = value.clone();
    bare.decor_mut().clear();
    bare.to_string()
}

/// A string in quotes, control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_debug())
}

/// A duration as the file would say it: `2 h 4 min`.
pub(crate) fn duration_text(micros: u64) -> String {
    const UNITS: [(u64, &str); 6] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];
    let mut rest = micros;
    let mut parts = Vec::new();
    for (unit_us, unit) in UNITS {
        if rest >= unit_us {
            parts.push(format!("{} {unit}", rest / unit_us));
            rest %= unit_us;
        }
    }
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

/// A size for people, rounded up to whole MiB.
pub(crate) fn rounded_size(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// A size as the file would say it, in the largest binary unit that loses nothing.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let exact = UNITS.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    exact.map_or_else(|| format!("{bytes} B"), |(unit, name)| format!("{} {name}", bytes / unit))
}
