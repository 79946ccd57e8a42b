//! Claims about configuration files.

use std::collections::HashSet;

use config::values;
use nat::types::MappingIndex;
use nat::types::WorkerId;

/// Any file compiles within the bounds of the engine and the workers, or has faults, each on one
/// line and with its place.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines = text.split('\n').count();
    match config::parse(text, "input.toml") {
        Err(faults) => {
            assert!(!faults.is_empty(), "a file is refused without a word");
            for fault in faults {
                let message = fault.to_string();
                assert!(!message.contains('\n'), "{message:?}");
                assert!(fault.line.is_none_or(|line| line >= 1 && line as usize <= lines), "{message}");
                assert!(!fault.problem.is_empty() && !fault.remedy.is_empty(), "{message}");
            }
        }
        Ok(config) => check(&config),
    }
}

fn check(config: &config::Config) {
    assert!((1..=WorkerId::COUNT_MAX).contains(&config.workers.count));
    let nat = &config.nat;
    assert_eq!(nat.interfaces.len(), config.interfaces.len());
    assert!(config.interfaces.iter().all(|link| link.port < config.ports.len()));
    assert!(nat.interfaces.iter().all(|interface| interface.mtu >= 68));
    assert!((1..=MappingIndex::COUNT_MAX as u64).contains(&u64::from(nat.limits.mappings_max)));
    assert!(nat.routes.iter().all(|route| route.interface.index() < nat.interfaces.len()));
    let mut external = HashSet::new();
    for pool in &nat.pools {
        assert!(pool.port_min >= 1 && pool.port_min <= pool.port_max);
        assert!(pool.addresses.iter().all(|address| external.insert(*address)), "an external address is given twice");
    }
    assert!(nat.pass_rules.iter().all(|rule| !matches!(rule.protocol, 1 | 6 | 17)));
    assert!(config.memory_needed().total_bytes() > 0);
}

/// A value is never less than its first number: none wraps around.
pub fn value(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let text = text.trim();
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let number = digits.parse::<u128>().unwrap_or(u128::MAX);
    let sizes =
        [values::duration(text).map(|read| read.as_micros()), values::size_bytes(text), values::rate_per_second(text)];
    for size in sizes.into_iter().flatten() {
        assert!(u128::from(size) >= number, "{text:?} is read as {size}");
    }
    if let Ok(ports) = values::ports(text) {
        assert!(u128::from(*ports.start()) == number && ports.start() <= ports.end() && number > 0, "{text:?}");
    }
    if let Ok(address) = values::address(text) {
        assert_eq!(address.to_string(), text);
        assert_eq!(values::addresses(text), Ok(address.to_bits()..=address.to_bits()));
    }
    if let Ok(range) = values::addresses(text) {
        assert!(range.start() <= range.end(), "{text:?}");
    }
    if let Ok(prefix) = values::prefix(text) {
        assert_eq!(values::prefix(&prefix.to_string()), Ok(prefix));
    }
}
