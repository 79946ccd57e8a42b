//! How a `[[pool]]` gives its ports out.

use nat::blocks::BlockSize;
use nat::settings::Algorithm;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Selection;
use toml_edit::Item;

use crate::keys::keys_of;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::shown;

/// The keys of a pool that say how ports are given out.
pub(crate) struct AllocationDraft {
    /// What they say; None when one of them is faulty.
    pub(crate) value: Option<Allocation>,
    pub(crate) place: Place,
    pub(crate) block_size: Place,
    pub(crate) algorithm: Algorithm,
    pub(crate) selection: Selection,
}

/// Keys that say something of blocks only.
const OF_BLOCKS: [&str; 3] = ["block_size", "blocks_per_subscriber", "block_idle"];

/// Keys that say something of deterministic pools only.
const OF_SLICES: [&str; 3] = ["dynamic_slices", "algorithm", "algorithm_key"];

impl AllocationDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> AllocationDraft {
        let mode = section.choice("allocation", report);
        let size = block_size(section, report);
        let count = section.integer("blocks_per_subscriber", report);
        let idle = section.duration("block_idle", report);
        let slices = section.integer("dynamic_slices", report);
        if let Some(mode) = mode {
            let without = match mode {
                "ports" => OF_BLOCKS.iter().chain(&OF_SLICES),
                "blocks" => [].iter().chain(&OF_SLICES),
                _ => [].iter().chain(&[]),
            };
            // A default may stand there, as the manual has them all.
            for key in without.filter(|key| says_something(section, key)) {
                let mode = format!("allocation = \"{mode}\"");
                let remedy = format!("remove {key}, or choose another allocation");
                report.fault(&section.place_of(key, report), "has no effect with this allocation", mode, remedy);
            }
        }
        if let (Some("blocks"), Some(none)) = (mode, count.as_ref().filter(|count| count.value == 0)) {
            let remedy = "write at least 1: subscribers of this pool get ports only in blocks";
            report.fault(&none.place, "leaves subscribers without a port", "0", remedy);
        }
        let blocks = || {
            Some(Blocks {
                size: size?,
                per_subscriber_max: u16::try_from(count.as_ref()?.value).ok()?,
                idle: idle.as_ref()?.value,
            })
        };
        let value = match mode {
            Some("ports") => Some(Allocation::Ports),
            Some("blocks") => blocks().map(Allocation::Blocks),
            Some(_) => blocks().zip(slices.as_ref()).and_then(|(overflow, slices)| {
                Some(Allocation::Deterministic { dynamic_slices: u16::try_from(slices.value).ok()?, overflow })
            }),
            None => None,
        };
        AllocationDraft {
            value,
            place: section.place_of("allocation", report),
            block_size: section.place_of("block_size", report),
            algorithm: algorithm(section, report),
            selection: match section.choice("selection", report) {
                Some("round-robin") => Selection::RoundRobin,
                Some("hash") => Selection::Hash,
                _ => Selection::LeastUsed,
            },
        }
    }
}

/// The order of subscribers.
fn algorithm(section: &Section, report: &mut Report) -> Algorithm {
    let word = section.choice("algorithm", report);
    let key = if section.has("algorithm_key") { section.text("algorithm_key", report) } else { None };
    if let Some(key) = key.as_ref().filter(|key| !(8..=64).contains(&key.value.chars().count())) {
        let seen = format!("{} characters", key.value.chars().count());
        report.fault(&key.place, "is too short or too long", seen, "write 8 to 64 characters");
    }
    match (word, key) {
        (Some("keyed"), Some(key)) => Algorithm::Keyed(number_of(&key.value)),
        (Some("keyed"), None) if !section.has("algorithm_key") => {
            let remedy = "write algorithm_key = \"...\", and keep it for as long as anyone may ask who had a port";
            report.fault(&section.place_of("algorithm", report), "needs a key", "\"keyed\"", remedy);
            Algorithm::default()
        }
        (Some("spread"), None) => Algorithm::Spread,
        (Some(word), Some(key)) => {
            let remedy = "remove it, or write algorithm = \"keyed\"";
            report.fault(&key.place, "has no effect without algorithm = \"keyed\"", format!("\"{word}\""), remedy);
            Algorithm::default()
        }
        _ => Algorithm::default(),
    }
}

/// A number that follows from a text: FNV-1a. It never changes, as the order of subscribers must
/// not.
fn number_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether the file has this key, with another value than its default.
pub(crate) fn says_something(section: &Section, key: &str) -> bool {
    let default = keys_of("pool").iter().find(|known| known.name == key).map_or("", |known| known.default.example());
    section.item(key).and_then(Item::as_value).is_some_and(|value| shown(value) != default)
}

fn block_size(section: &Section, report: &mut Report) -> Option<BlockSize> {
    let Placed { value, place, .. } = section.integer("block_size", report)?;
    let size = u32::try_from(value).ok().and_then(BlockSize::of_ports);
    if size.is_none() {
        let below = 1 << value.max(1).ilog2();
        let remedy = format!("write {below} or {}", below * 2);
        report.fault(&place, "is not a power of two, so blocks do not fill an address", value.to_string(), remedy);
    }
    size
}
