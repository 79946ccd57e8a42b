//! Formats numbers for display.

pub(crate) use control::count_text as count;

/// A count and a noun: `1 session`, `1,234 sessions`, `2 addresses`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    let ending = if what.ends_with('s') { "es" } else { "s" };
    format!("{} {what}{}", count(number), if number == 1 { "" } else { ending })
}

/// A length of time in two units at most: `250us`, `1.5s`, `4m58s`, `2h04m`, `3d04h`.
pub(crate) fn duration(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match micros {
        0 => "0s".to_owned(),
        1..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{}ms", micros / 1_000),
        1_000_000..60_000_000 => format!("{seconds}.{}s", micros / 100_000 % 10),
        _ if hours == 0 => format!("{minutes}m{:02}s", seconds % 60),
        _ if days == 0 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// A time that may be unknown.
pub(crate) fn duration_or_dash(micros: Option<u64>) -> String {
    micros.map_or_else(|| "-".to_owned(), duration)
}

/// A value that may be absent.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Three digits and a decimal prefix: `612.3 M`, `81.2 k`, `950`.
pub(crate) fn scaled(number: f64) -> String {
    let number = if number.is_finite() { number.max(0.0) } else { 0.0 };
    let (scale, prefix) = match number {
        n if n >= 999_950_000_000.0 => (1e12, " T"),
        n if n >= 999_950_000.0 => (1e9, " G"),
        n if n >= 999_950.0 => (1e6, " M"),
        n if n >= 9_999.5 => (1e3, " k"),
        n => return format!("{n:.0}"),
    };
    format!("{:.1}{prefix}", number / scale)
}

/// A scaled number and its unit: `612.3 Mbit/s`, `950 bit/s`, `950/s`.
pub(crate) fn with_unit(number: f64, unit: &str) -> String {
    let number = scaled(number);
    let joins = unit.starts_with('/') || number.contains(' ');
    format!("{number}{}{unit}", if joins { "" } else { " " })
}

/// A part of a whole: `42.5 %`. Never rounds to 0 % or 100 %.
pub(crate) fn percent(ratio: f64) -> String {
    let percent = if ratio.is_finite() { ratio.max(0.0) * 100.0 } else { 0.0 };
    if percent > 0.0 && percent < 0.1 {
        "<0.1 %".to_owned()
    } else if percent < 100.0 && percent > 99.9 {
        ">99.9 %".to_owned()
    } else {
        format!("{percent:.1} %")
    }
}

/// The time of day of a moment since 1970, in UTC: `22:13:20.123456`.
pub(crate) fn time_of_day(unix_micros: u64) -> String {
    let seconds = unix_micros / 1_000_000;
    let micros = unix_micros % 1_000_000;
    format!("{:02}:{:02}:{:02}.{micros:06}", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Blocks and slices of a subscriber, each with the ports of its fullest transport in use:
/// `5120-5631 (17), 8192-8703 (0)`, with the address if it is not the paired one. Shows at most
/// three.
pub(crate) fn own_ports(all: &[control::OwnPorts], paired: Option<std::net::Ipv4Addr>) -> String {
    const SHOWN: usize = 3;
    let one = |ports: &control::OwnPorts| {
        let range = format!("{}-{}", ports.first_port, ports.last_port);
        let used = ports.ports_used.map_or_else(String::new, |used| format!(" ({})", count(used.largest())));
        let address =
            if paired == Some(ports.external_address) { String::new() } else { format!("{}:", ports.external_address) };
        format!("{address}{range}{used}")
    };
    let mut parts: Vec<String> = all.iter().take(SHOWN).map(one).collect();
    if let Some(more) = all.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        parts.push(format!("and {more} more"));
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// An inside address or endpoint, with its VRF unless that is the default: `blue/10.0.0.1`.
pub(crate) fn in_vrf<T: ToString>(vrf: &str, inside: T) -> String {
    if vrf == "default" { inside.to_string() } else { format!("{vrf}/{}", inside.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_show_two_units_at_most() {
        let second = 1_000_000;
        for (micros, text) in [
            (0, "0s"),
            (250, "250us"),
            (999_999, "999ms"),
            (1_500_000, "1.5s"),
            (59_999_999, "59.9s"),
            (298 * second, "4m58s"),
            (3_599 * second, "59m59s"),
            (7_440 * second, "2h04m"),
            (93_784 * second, "1d02h"),
        ] {
            assert_eq!(duration(micros), text);
        }
    }

    #[test]
    fn scaled_numbers_never_show_a_thousand_of_a_unit() {
        for (number, text) in [
            (0.0, "0"),
            (9_999.0, "9999"),
            (81_234.0, "81.2 k"),
            (999_949.0, "999.9 k"),
            (999_999.0, "1.0 M"),
            (612_345_678.0, "612.3 M"),
            (40e9, "40.0 G"),
            (f64::NAN, "0"),
        ] {
            assert_eq!(scaled(number), text);
        }
    }

    #[test]
    fn percentages_do_not_round_to_nothing_or_all() {
        for (ratio, text) in
            [(0.0, "0.0 %"), (0.00001, "<0.1 %"), (0.425, "42.5 %"), (0.99999, ">99.9 %"), (1.0, "100.0 %")]
        {
            assert_eq!(percent(ratio), text);
        }
    }
}
