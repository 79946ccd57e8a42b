//! Values inside strings: durations, sizes, rates, ports, addresses and prefixes. Pure functions of
//! the text.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::ops::RangeInclusive;

use nat::Duration;
use nat::redirection::Target;
use nat::stand_in::Prefix6;
use nat::types::Prefix;

use crate::model::SinkTransport;

/// Why a text is not such a value. The texts fit after the name of a key: "is not a duration".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not of the form.
    #[error("is not {0}")]
    Form(&'static str),
    /// A unit that is not in this list.
    #[error("has a unit other than {0}")]
    Unit(&'static str),
    /// A number without unit.
    #[error("has no unit")]
    NoUnit,
    /// More than the type holds.
    #[error("is too large")]
    TooLarge,
    /// A range whose end is before its start.
    #[error("is reversed")]
    Reversed,
    /// A prefix with bits set behind its length.
    #[error("has host bits set")]
    HostBits,
    /// A prefix length over this one.
    #[error("has a prefix length over {0}")]
    Length(u8),
    /// An address of an interface without the length of its prefix.
    #[error("has no prefix length")]
    NoLength,
    /// A prefix without its length.
    #[error("has no prefix length")]
    NoPrefixLength,
    /// A share of nothing.
    #[error("has weight 0, so it would get no connections")]
    WeightZero,
    /// Port 0.
    #[error("contains port 0, which no packet may use")]
    PortZero,
}

/// Digits and what follows them.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn number(digits: &str, form: &'static str) -> Result<u64, ValueError> {
    if digits.is_empty() {
        return Err(ValueError::Form(form));
    }
    // Only digits are left: the one way to fail is to be too long.
    digits.parse().map_err(|_| ValueError::TooLarge)
}

/// `300 s`, `2 h 4 min`, `250 ms`: whole numbers, each with one of the units d, h, min, s, ms, us.
///
/// # Errors
/// [`ValueError`] when it is not of that form or over 584 000 years.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    const FORM: &str = "a duration";
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(ValueError::Form(FORM));
    }
    let mut micros: u64 = 0;
    while !rest.is_empty() {
        let (digits, after) = split_number(rest);
        let count = number(digits, FORM)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit_us: u64 = match unit {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            "" if after.is_empty() => return Err(ValueError::NoUnit),
            "" => return Err(ValueError::Form(FORM)),
            _ => return Err(ValueError::Unit("d, h, min, s, ms and us")),
        };
        let part = count.checked_mul(unit_us).ok_or(ValueError::TooLarge)?;
        micros = micros.checked_add(part).ok_or(ValueError::TooLarge)?;
        rest = after.trim_start();
    }
    Ok(Duration::from_micros(micros))
}

/// `512 MiB`: bytes, with one of the units B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
///
/// # Errors
/// [`ValueError`] when it is not of that form or over 2^64 bytes.
pub fn size_bytes(text: &str) -> Result<u64, ValueError> {
    let (digits, unit) = split_number(text.trim());
    let count = number(digits, "a size")?;
    let unit_bytes = match unit.trim() {
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "" => return Err(ValueError::NoUnit),
        _ => return Err(ValueError::Unit("B, kB, MB, GB, TB, KiB, MiB, GiB and TiB")),
    };
    count.checked_mul(unit_bytes).ok_or(ValueError::TooLarge)
}

/// `1000/s`, `5 k/s`: events per second.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn rate_per_second(text: &str) -> Result<u64, ValueError> {
    let (digits, unit) = split_number(text.trim());
    let count = number(digits, "a rate")?;
    let factor = match unit.trim() {
        "/s" | "/ s" => 1,
        "k/s" => 1_000,
        "M/s" => 1_000_000,
        "" => return Err(ValueError::NoUnit),
        _ => return Err(ValueError::Unit("/s, k/s and M/s")),
    };
    count.checked_mul(factor).ok_or(ValueError::TooLarge)
}

/// `1024-65535`, or one port.
///
/// # Errors
/// [`ValueError`] when it is not of that form, reversed, or contains 0.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, ValueError> {
    let port = |text: &str| {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ValueError::Form("a range of ports"));
        }
        text.parse::<u16>().map_err(|_| ValueError::TooLarge)
    };
    let (low, high) = match text.split_once('-') {
        Some((low, high)) => (port(low)?, port(high)?),
        None => (port(text)?, port(text)?),
    };
    if low > high {
        return Err(ValueError::Reversed);
    }
    if low == 0 {
        return Err(ValueError::PortZero);
    }
    Ok(low..=high)
}

/// Where packets are redirected to: `192.0.2.53`, `192.0.2.53:5353`, `192.0.2.53:5353 weight 3`.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn target(text: &str) -> Result<Target, ValueError> {
    const FORM: ValueError = ValueError::Form("a target");
    let (place, weight) = match text.trim().split_once(" weight ") {
        Some((place, weight)) => (place.trim(), weight.trim()),
        None => (text.trim(), "1"),
    };
    let weight = match split_number(weight) {
        (digits, "") => u32::try_from(number(digits, "a target")?).map_err(|_| ValueError::TooLarge)?,
        _ => return Err(FORM),
    };
    if weight == 0 {
        return Err(ValueError::WeightZero);
    }
    let (host, port) = match place.split_once(':') {
        Some((host, port)) => {
            let range = ports(port)?;
            if range.start() != range.end() {
                return Err(FORM);
            }
            (host, Some(*range.start()))
        }
        None => (place, None),
    };
    let host: Ipv4Addr = host.parse().map_err(|_| FORM)?;
    Ok(Target { address: host.to_bits(), port, weight })
}

/// `tcp://collector.example:4739`: the way to a collector, its name or address, and its port.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn collector(text: &str) -> Result<(SinkTransport, String, u16), ValueError> {
    const FORM: ValueError = ValueError::Form("the address of a collector");
    let (scheme, place) = text.trim().split_once("://").ok_or(FORM)?;
    let transport = match scheme {
        "udp" => SinkTransport::Udp,
        "tcp" => SinkTransport::Tcp,
        "tls" => SinkTransport::Tls,
        _ => return Err(FORM),
    };
    let (host, port) = place.rsplit_once(':').ok_or(FORM)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => {
            let address = rest.strip_suffix(']').ok_or(FORM)?;
            address.parse::<Ipv6Addr>().map_err(|_| FORM)?;
            address
        }
        None => host,
    };
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
    if host.is_empty() || host.len() > 253 || !host.chars().all(is_allowed) {
        return Err(FORM);
    }
    let range = ports(port).map_err(|_| FORM)?;
    if range.start() == range.end() { Ok((transport, host.to_owned(), *range.start())) } else { Err(FORM) }
}

/// One IPv4 address.
///
/// # Errors
/// [`ValueError::Form`].
pub fn address(text: &str) -> Result<Ipv4Addr, ValueError> {
    text.trim().parse().map_err(|_| ValueError::Form("an IPv4 address"))
}

/// `10.0.0.1/24`: an address and the length of its prefix; host bits may be set.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn address_in_prefix(text: &str) -> Result<(Ipv4Addr, u8), ValueError> {
    let Some((before, after)) = text.split_once('/') else {
        address(text)?;
        return Err(ValueError::NoLength);
    };
    let (digits, rest) = split_number(after.trim());
    if digits.is_empty() || !rest.is_empty() {
        return Err(ValueError::Form("an IPv4 prefix"));
    }
    let address = before.trim().parse().map_err(|_| ValueError::Form("an IPv4 prefix"))?;
    match digits.parse::<u8>() {
        Ok(length @ 0..=32) => Ok((address, length)),
        _ => Err(ValueError::Length(32)),
    }
}

/// `2001:db8::1/64`: an IPv6 address with the length of its prefix.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn address6_in_prefix(text: &str) -> Result<(Ipv6Addr, u8), ValueError> {
    const FORM: ValueError = ValueError::Form(ADDRESS_IN_PREFIX6);
    let Some((before, after)) = text.split_once('/') else {
        address6(text).map_err(|_| FORM)?;
        return Err(ValueError::NoLength);
    };
    let (digits, rest) = split_number(after.trim());
    if digits.is_empty() || !rest.is_empty() {
        return Err(FORM);
    }
    let address = before.trim().parse().map_err(|_| FORM)?;
    match digits.parse::<u8>() {
        Ok(length @ 0..=128) => Ok((address, length)),
        _ => Err(ValueError::Length(128)),
    }
}

/// `2001:db8::1`.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn address6(text: &str) -> Result<Ipv6Addr, ValueError> {
    text.trim().parse().map_err(|_| ValueError::Form(ADDRESS6))
}

/// How values of IPv6 are called in messages.
const ADDRESS6: &str = "an IPv6 address";
const PREFIX6: &str = "an IPv6 prefix";
const ADDRESS_IN_PREFIX6: &str = "an IPv6 address with a prefix length";

/// A value of IPv6, if this error is about the form of one.
pub(crate) fn example6(error: &ValueError) -> Option<&'static str> {
    match error {
        ValueError::Form(ADDRESS6) => Some("2001:db8::1"),
        ValueError::Form(PREFIX6) => Some("2001:db8::/56"),
        ValueError::Form(ADDRESS_IN_PREFIX6) => Some("2001:db8::1/64"),
        _ => None,
    }
}

/// The error of a value that may be of either family: what does not look like one of them is
/// neither.
fn of_either(text: &str, error: ValueError) -> ValueError {
    let looks_like_ipv4 = text.contains('.') && !text.contains(|c: char| c.is_alphabetic());
    match error {
        ValueError::Form("an IPv4 address") if !looks_like_ipv4 => ValueError::Form("an IPv4 or IPv6 address"),
        ValueError::Form("an IPv4 prefix") if !looks_like_ipv4 => ValueError::Form("an IPv4 or IPv6 prefix"),
        other => other,
    }
}

/// A value of one of the families. IPv6 has a colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// IPv4.
    V4(A),
    /// IPv6.
    V6(B),
}

/// An address and the length of its prefix.
pub type AnyInPrefix = Either<(Ipv4Addr, u8), (Ipv6Addr, u8)>;

/// An address of either family with the length of its prefix.
///
/// # Errors
/// Those of [`address_in_prefix`] or [`address6_in_prefix`].
pub fn any_address_in_prefix(text: &str) -> Result<AnyInPrefix, ValueError> {
    if text.contains(':') {
        return address6_in_prefix(text).map(Either::V6);
    }
    address_in_prefix(text).map(Either::V4).map_err(|error| of_either(text, error))
}

/// The prefix of inside hosts: of IPv4 or, behind NAT64 and softwires, of IPv6.
///
/// # Errors
/// Those of [`any_prefix`].
pub fn hosts(text: &str) -> Result<Either<Prefix, Prefix6>, ValueError> {
    Ok(match any_prefix(text)? {
        Either::V4(prefix) => Either::V4(prefix),
        Either::V6((address, length)) => {
            Either::V6(Prefix6::new(address.to_bits(), length).ok_or(ValueError::Length(128))?)
        }
    })
}

/// A prefix of either family, without host bits.
///
/// # Errors
/// Those of [`prefix`], or [`ValueError`] when it is no IPv6 prefix.
pub fn any_prefix(text: &str) -> Result<Either<Prefix, (Ipv6Addr, u8)>, ValueError> {
    if !text.contains(':') {
        return prefix(text).map(Either::V4).map_err(|error| of_either(text, error));
    }
    let (address, length) = address6_in_prefix(text).map_err(|error| match error {
        ValueError::Form(_) => ValueError::Form(PREFIX6),
        ValueError::NoLength => ValueError::NoPrefixLength,
        other => other,
    })?;
    if address.to_bits().checked_shl(length.into()).unwrap_or(0) != 0 {
        return Err(ValueError::HostBits);
    }
    Ok(Either::V6((address, length)))
}

/// An address of either family.
///
/// # Errors
/// Those of [`address`] or [`address6`].
pub fn any_address(text: &str) -> Result<Either<Ipv4Addr, Ipv6Addr>, ValueError> {
    if text.contains(':') {
        return address6(text).map(Either::V6);
    }
    address(text).map(Either::V4).map_err(|error| of_either(text, error))
}

/// `10.0.0.0/24`: a prefix without host bits.
///
/// # Errors
/// [`ValueError`] when it is not of that form.
pub fn prefix(text: &str) -> Result<Prefix, ValueError> {
    let (address, length) = address_in_prefix(text).map_err(|error| match error {
        ValueError::NoLength => ValueError::NoPrefixLength,
        other => other,
    })?;
    let prefix = Prefix::new(address, length).ok_or(ValueError::Length(32))?;
    if prefix.address() == address { Ok(prefix) } else { Err(ValueError::HostBits) }
}

/// `a`, `a-b` or `prefix/length`: the first and the last address.
///
/// # Errors
/// [`ValueError`] when it is not of that form or reversed.
pub fn addresses(text: &str) -> Result<RangeInclusive<u32>, ValueError> {
    if text.contains('/') {
        let prefix = prefix(text)?;
        return Ok(prefix.address().to_bits()..=prefix.last().to_bits());
    }
    let form = |_| ValueError::Form("an IPv4 address, range or prefix");
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (address(first).map_err(form)?, address(last).map_err(form)?),
        None => (address(text).map_err(form)?, address(text).map_err(form)?),
    };
    if first > last { Err(ValueError::Reversed) } else { Ok(first.to_bits()..=last.to_bits()) }
}

#[cfg(test)]
mod tests;
