//! What the kernel's connections take: its memory by slabs, before and with them.

use std::collections::BTreeMap;
use std::fs;

const PATH: &str = "/proc/slabinfo";
const PAGE_BYTES: f64 = 4096.0;
/// The objects of connections themselves.
const CONNECTIONS: &str = "nf_conntrack";
/// What hangs on them is taken by size.
const BY_SIZE: &str = "kmalloc-";
/// Sizes that connections do not take: charged to a group, or given back under pressure.
const OTHERS: [&str; 2] = ["kmalloc-cg-", "kmalloc-rcl-"];
/// Of fewer connections nothing is to be said: slabs have more or less by others, too.
const LEAST: u64 = 1000;
/// A size counts as theirs that has so many more objects a connection.
const THEIRS: f64 = 0.5;

/// Objects in use, and the bytes each takes, of every slab that connections may be in.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Slabs(BTreeMap<String, (f64, f64)>);

impl Slabs {
    /// Now; None where the kernel does not say.
    pub(super) fn now() -> Option<Slabs> {
        Slabs::read(&fs::read_to_string(PATH).ok()?)
    }

    fn read(text: &str) -> Option<Slabs> {
        let slab = |line: &str| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let is_size = name.starts_with(BY_SIZE) && !OTHERS.iter().any(|other| name.starts_with(other));
            if name != CONNECTIONS && !is_size {
                return None;
            }
            // Objects in use, all of them, bytes, objects of a slab, pages of a slab.
            let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
            let [used, _, _, objects, pages, ..] = numbers[..] else { return None };
            Some((name.to_owned(), (used, pages * PAGE_BYTES / objects.max(1.0))))
        };
        let all: BTreeMap<_, _> = text.lines().filter_map(slab).collect();
        all.contains_key(CONNECTIONS).then_some(Slabs(all))
    }

    /// Bytes that each of so many connections takes, which there were none of `before`. None where
    /// they are too few, or their objects not so many more.
    pub(super) fn bytes_each(&self, before: &Slabs, connections: u64) -> Option<f64> {
        if connections < LEAST {
            return None;
        }
        let (mut has_objects, mut bytes_each) = (false, 0.0);
        for (name, (used, bytes)) in &self.0 {
            let each = (used - before.0.get(name).map_or(0.0, |slab| slab.0)) / connections as f64;
            if each >= THEIRS {
                has_objects |= name == CONNECTIONS;
                bytes_each += each * bytes;
            }
        }
        has_objects.then_some(bytes_each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "slabinfo - version: 2.1\n# name <active_objs>\n\
        nf_conntrack 176 240 256 16 1 : tunables 0 0 0 : slabdata 15 15 0\n\
        kmalloc-cg-128 10 10 128 32 1 : tunables 0 0 0 : slabdata 1 1 0\n\
        kmalloc-128 1000 1000 128 32 1 : tunables 0 0 0 : slabdata 1 1 0\n\
        kmalloc-192 500 500 192 21 1 : tunables 0 0 0 : slabdata 1 1 0\n";

    #[test]
    fn a_connection_takes_what_the_growing_slabs_gained() {
        let with = NONE.replace("conntrack 176", "conntrack 8176").replace("-128 1000", "-128 9000");
        // Others grow, too, but not by one for each.
        let with = with.replace("-192 500", "-192 900").replace("cg-128 10", "cg-128 9010");
        let (none, with) = (Slabs::read(NONE).unwrap(), Slabs::read(&with).unwrap());
        assert_eq!(with.bytes_each(&none, 8000), Some(256.0 + 128.0));
        assert_eq!([none.bytes_each(&none, 8000), with.bytes_each(&none, 100)], [None, None]);
        assert_eq!(Slabs::read("kmalloc-128 1 1 128 32 1 : tunables"), None, "no connections: nothing is known");
    }
}
