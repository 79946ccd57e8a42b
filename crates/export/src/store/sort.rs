//! The order of rows: those of single ports before ranges, each by external endpoint and start.
//!
//! A window has millions of rows of 48 bytes, and of few external addresses. The rows stay where
//! they are: a key of 16 bytes for each goes to the others of its address, in one pass, and only
//! these are compared, by one number. Reading the rows in order follows the keys, and requests each
//! row from memory before its turn.

use super::row::Row;

/// Fewer rows are one group, whatever their addresses.
const ROWS_LEAST: usize = 1 << 12;
/// Addresses, or groups of neighbouring ones, at most.
const GROUPS_MAX: u32 = 1 << 16;
/// How many rows ahead of the current one are requested.
const AHEAD: usize = 16;

/// Rows in their order.
#[derive(Debug)]
pub(crate) struct Sorted<'a> {
    rows: &'a [Row],
    /// In the lowest bits the place of a row.
    keys: Vec<u128>,
    place_bits: u32,
    /// How many rows are of single ports.
    singles: usize,
}

impl<'a> Sorted<'a> {
    /// Sorts by [`Row::order`], ranges after single ports. Takes 16 bytes for each row.
    ///
    /// # Panics
    ///
    /// There are 2^32 rows or more, which would be 200 GB.
    pub(crate) fn of(rows: &'a [Row]) -> Sorted<'a> {
        assert!(u32::try_from(rows.len()).is_ok(), "a place has 32 bits");
        let singles = rows.iter().filter(|row| row.is_single()).count();
        let mut sorted = Sorted { rows, keys: Vec::new(), place_bits: 0, singles };
        if rows.len() < ROWS_LEAST {
            sorted.sort_as_one_group();
        } else {
            sorted.sort_by_address();
        }
        sorted
    }

    /// The rows of single ports.
    pub(crate) fn singles(&self) -> impl Iterator<Item = &'a Row> {
        self.rows_of(self.keys.get(..self.singles).unwrap_or_default())
    }

    /// The rows of ranges.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = &'a Row> {
        self.rows_of(self.keys.get(self.singles..).unwrap_or_default())
    }

    fn rows_of(&self, keys: &[u128]) -> impl Iterator<Item = &'a Row> {
        let (rows, mask) = (self.rows, (1 << self.place_bits) - 1);
        keys.iter().enumerate().map(move |(index, key)| {
            if let Some(later) = keys.get(index + AHEAD) {
                mem::prefetch(row_of(rows, later & mask));
            }
            row_of(rows, key & mask)
        })
    }

    fn sort_as_one_group(&mut self) {
        self.place_bits = ROWS_LEAST.ilog2();
        let keys = self.rows.iter().zip(0_u128..).map(|(row, place)| {
            let endpoint = u128::from(!row.is_single()) << 48 | u128::from(row.endpoint());
            (endpoint << u64::BITS | u128::from(row.start)) << self.place_bits | place
        });
        self.keys.extend(keys);
        sort_keys(&mut self.keys, self.rows, self.place_bits);
    }

    fn sort_by_address(&mut self) {
        self.place_bits = u32::BITS;
        let rows = self.rows;
        let (lowest, highest) =
            rows.iter().fold((u32::MAX, 0), |(low, high), row| (low.min(row.external), high.max(row.external)));
        let shift = (0..u32::BITS).find(|shift| (highest - lowest) >> shift < GROUPS_MAX).unwrap_or(0);
        let groups = ((highest - lowest) >> shift) as usize + 1;
        let group = |row: &Row| ((row.external - lowest) >> shift) as usize + if row.is_single() { 0 } else { groups };
        // Where the next key of each group goes; in the end, where the group ends.
        let mut next = vec![0_usize; 2 * groups + 1];
        for row in rows {
            next[group(row) + 1] += 1;
        }
        for place in 0..2 * groups {
            next[place + 1] += next[place];
        }
        let of_group = (1_u32 << shift) - 1;
        self.keys.resize(rows.len(), 0);
        for (row, place) in rows.iter().zip(0_u128..) {
            // 16 bits each of the address and the port, 64 of the start, and 32 of the place.
            let address = u128::from((row.external - lowest) & of_group);
            let endpoint = address << u16::BITS | u128::from(row.first_port);
            let target = &mut next[group(row)];
            self.keys[*target] = (endpoint << u64::BITS | u128::from(row.start)) << u32::BITS | place;
            *target += 1;
        }
        let mut begin = 0;
        for end in next.into_iter().take(2 * groups) {
            sort_keys(&mut self.keys[begin..end], rows, u32::BITS);
            begin = end;
        }
    }
}

/// Sorts the keys of a group. The rest of the rows decides where endpoint and start are equal.
fn sort_keys(keys: &mut [u128], rows: &[Row], place_bits: u32) {
    let mask = (1 << place_bits) - 1;
    keys.sort_unstable();
    for same in keys.chunk_by_mut(|one, other| one >> place_bits == other >> place_bits) {
        if same.len() > 1 {
            same.sort_unstable_by_key(|key| row_of(rows, key & mask).order());
        }
    }
}

fn row_of(rows: &[Row], place: u128) -> &Row {
    &rows[place as usize]
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
        for (count, lowest, addresses, latest) in [
            (0, 0, 1, 1),
            (1, 0, 1, 1),
            (500, 9, 4, 3),
            (5_000, 0, 1, 9),
            (20_000, 0xc000_0200, 300, 1 << 40),
            (20_000, 0, u32::MAX, 5),
            (20_000, 1 << 31, 1 << 20, 4),
            (9_000, 1, 7, u64::MAX),
        ] {
            let mut rows: Vec<Row> = (0..count)
                .map(|_| {
                    let first_port = random.random_range(0..500);
                    Row {
                        external: lowest + random.random_range(0..addresses),
                        first_port,
                        last_port: first_port + u16::from(random.random_bool(0.2)),
                        start: random.random_range(0..latest),
                        subscriber: random.random_range(0..3),
                        internal_port: random.random(),
                        ..Row::EMPTY
                    }
                })
                .collect();
            let sorted = Sorted::of(&rows);
            let found: Vec<Row> = sorted.singles().chain(sorted.ranges()).copied().collect();
            rows.sort_by_key(|row| (!row.is_single(), row.order()));
            assert_eq!(found, rows);
        }
    }
}
