//! The order of rows: external endpoint, then start.
//!
//! A window has millions of rows of few external addresses. So the rows go to the place of their
//! address first, in one pass, and only those of one address are compared, by one number each: half
//! the time of comparing them all.

use super::row::Row;

/// Fewer rows are compared at once.
const ROWS_LEAST: usize = 1 << 12;
/// Addresses, or groups of neighbouring ones, at most.
const GROUPS_MAX: u32 = 1 << 16;

/// Sorts rows by [`Row::order`]. Takes memory for the rows of one group of addresses.
pub(crate) fn sort(rows: &mut [Row]) {
    if rows.len() < ROWS_LEAST {
        return compare(rows);
    }
    let (lowest, highest) =
        rows.iter().fold((u32::MAX, 0), |(low, high), row| (low.min(row.external), high.max(row.external)));
    let shift = (0..u32::BITS).find(|shift| (highest - lowest) >> shift < GROUPS_MAX).unwrap_or(0);
    let group = |row: &Row| ((row.external - lowest) >> shift) as usize;
    let groups = ((highest - lowest) >> shift) as usize + 1;
    // Where each group begins, and where its next row goes.
    let mut begins = vec![0_usize; groups + 1];
    for row in rows.iter() {
        begins[group(row) + 1] += 1;
    }
    for place in 0..groups {
        begins[place + 1] += begins[place];
    }
    let mut next = begins.clone();
    for current in 0..groups {
        let end = begins[current + 1];
        while next[current] < end {
            let place = next[current];
            let target = group(&rows[place]);
            if target == current {
                next[current] += 1;
                continue;
            }
            rows.swap(place, next[target]);
            next[target] += 1;
        }
    }
    let mut keyed = Keyed::default();
    for pair in begins.windows(2) {
        let rows = &mut rows[pair[0]..pair[1]];
        if shift == 0 {
            keyed.sort(rows);
        } else {
            compare(rows);
        }
    }
}

/// Sorts rows by comparing them.
fn compare(rows: &mut [Row]) {
    // The endpoint decides nearly always; it is compared as one number.
    rows.sort_unstable_by(|one, other| {
        (one.endpoint(), one.start).cmp(&(other.endpoint(), other.start)).then_with(|| one.order().cmp(&other.order()))
    });
}

/// Sorts rows of one external address.
#[derive(Default)]
struct Keyed {
    /// First port and start, and the place of the row.
    keys: Vec<(u64, u32)>,
    sorted: Vec<Row>,
}

impl Keyed {
    fn sort(&mut self, rows: &mut [Row]) {
        let Some(base) = rows.iter().map(|row| row.start).min() else { return };
        let latest = rows.iter().map(|row| row.start).max().unwrap_or(base);
        if latest - base >= 1 << 48 || u32::try_from(rows.len()).is_err() {
            return compare(rows);
        }
        self.keys.clear();
        let key = |row: &Row| u64::from(row.first_port) << 48 | (row.start - base);
        self.keys.extend(rows.iter().zip(0..).map(|(row, place)| (key(row), place)));
        self.keys.sort_unstable();
        self.sorted.clear();
        self.sorted.extend(self.keys.iter().map(|(_, place)| rows[*place as usize]));
        rows.copy_from_slice(&self.sorted);
        for (run, rows) in runs(&self.keys, rows) {
            if run > 1 {
                compare(rows);
            }
        }
    }
}

/// The rows of each run of equal keys, with their number.
fn runs<'a>(keys: &'a [(u64, u32)], mut rows: &'a mut [Row]) -> impl Iterator<Item = (usize, &'a mut [Row])> {
    keys.chunk_by(|one, other| one.0 == other.0).map_while(move |run| {
        let (now, later) = core::mem::take(&mut rows).split_at_mut_checked(run.len())?;
        rows = later;
        Some((run.len(), now))
    })
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[test]
    fn rows_are_in_order_whatever_their_addresses_and_times() {
        let mut random = SmallRng::seed_from_u64(5);
        for (count, addresses, latest) in
            [(0, 1, 1), (1, 1, 1), (5_000, 1, 9), (20_000, 300, 1 << 40), (20_000, u32::MAX, 5), (9_000, 7, u64::MAX)]
        {
            let mut rows: Vec<Row> = (0..count)
                .map(|_| Row {
                    external: random.random_range(0..addresses),
                    first_port: random.random_range(0..500),
                    start: random.random_range(0..latest),
                    subscriber: random.random_range(0..3),
                    internal_port: random.random(),
                    ..Row::EMPTY
                })
                .collect();
            let mut expected = rows.clone();
            expected.sort_by_key(Row::order);
            sort(&mut rows);
            assert_eq!(rows, expected);
        }
    }
}
