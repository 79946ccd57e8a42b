//! What memory alone allows: random read-modify-writes of two cache lines a packet, prefetched in
//! bursts.

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use mem::tsc;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// Packets in a burst, as in the benchmark that is compared.
const BURST: usize = 64;

/// One cache line.
#[derive(zerocopy::FromZeros)]
#[repr(C, align(64))]
struct Line {
    words: [u64; 8],
}

/// A region to touch at random.
pub struct MemoryBound {
    region: Arena<Line>,
    random: SmallRng,
}

fn lines(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<Line>()).max(2)
}

impl MemoryBound {
    /// The memory a region of `bytes` takes.
    pub(crate) fn need(bytes: u64) -> Need {
        Arena::<Line>::need(lines(bytes as usize))
    }

    /// A region of `bytes`, on the same kind of pages as the engine's tables.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(bytes: usize) -> Result<MemoryBound, ArenaError> {
        let mut region = Arena::<Line>::zeroed(lines(bytes))?;
        // Touch every page once: a page not yet backed would be measured as a page fault.
        for line in region.iter_mut().step_by(64) {
            line.words[0] = 1;
        }
        Ok(MemoryBound { region, random: SmallRng::seed_from_u64(11) })
    }

    /// TSC cycles for two lines, measured for so many seconds.
    pub fn cycles_per_packet(&mut self, seconds: f64) -> f64 {
        let clock = std::time::Instant::now();
        let (mut cycles, mut packets) = (0u64, 0u64);
        while clock.elapsed().as_secs_f64() < seconds {
            for _ in 0..64 {
                cycles += self.burst();
                packets += BURST as u64;
            }
        }
        cycles as f64 / packets as f64
    }

    fn burst(&mut self) -> u64 {
        let length = self.region.len();
        let mut lines = [0usize; BURST * 2];
        for line in &mut lines {
            *line = self.random.random_range(0..length);
        }
        let begin = tsc::read();
        for line in lines {
            self.region.prefetch_write(line);
        }
        for line in lines {
            let words = &mut self.region[line].words;
            words[0] = words[0].wrapping_add(words[3]).wrapping_add(1);
        }
        tsc::read() - begin
    }
}
