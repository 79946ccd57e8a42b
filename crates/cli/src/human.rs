//! Formats numbers for display.

pub(crate) use control::count_text as count;
pub(crate) use control::counted;
pub(crate) use control::duration_text as duration;
pub(crate) use control::scaled_text as scaled;
pub(crate) use control::with_unit;

/// A time that may be unknown.
pub(crate) fn duration_or_dash(micros: Option<u64>) -> String {
    micros.map_or_else(|| "-".to_owned(), duration)
}

/// A value that may be absent.
pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
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
pub(crate) fn subscriber_ports(all: &[control::SubscriberPorts], paired: Option<std::net::Ipv4Addr>) -> String {
    const SHOWN: usize = 3;
    let one = |ports: &control::SubscriberPorts| {
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
    fn percentages_do_not_round_to_nothing_or_all() {
        for (ratio, text) in
            [(0.0, "0.0 %"), (0.00001, "<0.1 %"), (0.425, "42.5 %"), (0.99999, ">99.9 %"), (1.0, "100.0 %")]
        {
            assert_eq!(percent(ratio), text);
        }
    }
}
