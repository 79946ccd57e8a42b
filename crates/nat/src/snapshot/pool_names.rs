//! Numbers of pool names, which never change while the instance runs. Data read later (a queued
//! event, a suppressed refusal, an offender's pool) has them, because a reload may give a
//! [`PoolId`] to another pool.

use std::collections::HashMap;
use std::sync::Arc;

use crate::settings::Pool;
use crate::types::PoolId;
use crate::types::PoolName;

#[derive(Clone, Debug, Default)]
pub(crate) struct PoolNames {
    names: Vec<Arc<str>>,
    /// Removed pools come last.
    of_pools: Vec<PoolName>,
}

impl PoolNames {
    pub(crate) fn new<'a>(pools: impl Iterator<Item = &'a Pool>, before: Option<&PoolNames>) -> PoolNames {
        let names = before.map_or_else(Vec::new, |before| before.names.clone());
        // Pools with the same name, which only tests have, keep their order.
        let mut known: HashMap<Arc<str>, Vec<u16>> = HashMap::new();
        for (number, name) in (0..PoolName::COUNT_MAX).zip(&names).rev() {
            known.entry(Arc::clone(name)).or_default().push(number);
        }
        let pools: Vec<(&Pool, Option<u16>)> =
            pools.map(|pool| (pool, known.get_mut(pool.name.as_str()).and_then(Vec::pop))).collect();
        let mut next = PoolNames { names, of_pools: Vec::with_capacity(pools.len()) };
        // When numbers run out, those of unused names are reused, oldest first.
        let mut free = known.into_values().flatten().collect::<Vec<u16>>();
        free.sort_unstable_by(|one, other| other.cmp(one));
        for (pool, number) in pools {
            let number = number.unwrap_or_else(|| next.enter(&pool.name, &mut free));
            next.of_pools.push(PoolName(number));
        }
        next
    }

    fn enter(&mut self, name: &str, free: &mut Vec<u16>) -> u16 {
        if let Some(number) = u16::try_from(self.names.len()).ok().filter(|number| *number < PoolName::COUNT_MAX) {
            self.names.push(name.into());
            return number;
        }
        // There are fewer pools than numbers.
        let number = free.pop().unwrap_or_default();
        if let Some(known) = self.names.get_mut(usize::from(number)) {
            *known = name.into();
        }
        number
    }

    #[inline]
    pub(crate) fn of(&self, pool: PoolId) -> PoolName {
        self.of_pools.get(pool.index()).copied().unwrap_or(PoolName::NONE)
    }

    pub(crate) fn name(&self, number: PoolName) -> Option<&str> {
        self.names.get(usize::from(number.0)).map(AsRef::as_ref)
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(names: &[&str]) -> Vec<Pool> {
        names.iter().map(|name| Pool { name: (*name).to_owned(), ..Pool::default() }).collect()
    }

    fn of(known: &PoolNames) -> Vec<Option<&str>> {
        (0..known.of_pools.len() as u16).map(|pool| known.name(known.of(PoolId(pool)))).collect()
    }

    #[test]
    fn a_name_keeps_its_number_across_reloads() {
        let first = PoolNames::new(pools(&["a", "b", "b"]).iter(), None);
        assert_eq!(first.of_pools, [0, 1, 2].map(PoolName), "at the start numbers are positions");
        let second = PoolNames::new(pools(&["c", "b", "a"]).iter(), Some(&first));
        assert_eq!(second.of_pools, [3, 1, 0].map(PoolName));
        let third = PoolNames::new(pools(&["d", "b", "b", "b"]).iter(), Some(&second));
        assert_eq!(third.of_pools, [4, 1, 2, 5].map(PoolName));
        assert_eq!((third.name(PoolName(0)), third.name(PoolName(3))), (Some("a"), Some("c")), "gone, and known still");
        assert_eq!((third.of(PoolId(4)), third.name(PoolName::NONE)), (PoolName::NONE, None));
        assert_eq!(third.all().collect::<Vec<_>>(), ["a", "b", "b", "c", "d", "b"]);
    }

    #[test]
    fn numbers_of_unused_names_are_reused_when_all_are_taken() {
        let mut known = PoolNames::new(pools(&["stays"]).iter(), None);
        let names = |round: usize| (0..1_000).map(|n| format!("{round}-{n}")).collect::<Vec<String>>();
        for round in 0..70 {
            let names = names(round);
            let all: Vec<&str> = names.iter().map(String::as_str).chain(["stays"]).collect();
            known = PoolNames::new(pools(&all).iter(), Some(&known));
            assert_eq!(of(&known), all.iter().map(|name| Some(*name)).collect::<Vec<_>>());
            assert_eq!(known.of(PoolId(1_000)), PoolName(0));
        }
        assert_eq!(known.names.len(), usize::from(PoolName::COUNT_MAX));
    }
}
