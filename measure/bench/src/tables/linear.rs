//! `linear`: keys in the order in which they came, looked through from the first one on (figure 2
//! of the paper).
//!
//! A new flow is compared with all keys there are, so n flows cost n² / 2 comparisons. Keys lie
//! close together, apart from their numbers, and are compared sixteen at a time, which the compiler
//! turns into vector instructions: the best a linear search can be.

use mem::Arena;

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

/// Keys compared at a time.
const STEP: usize = 16;

/// Two arrays side by side.
pub(super) struct Linear {
    /// A multiple of [`STEP`]; 0 where there is no key yet.
    keys: Arena<Key>,
    numbers: Arena<u32>,
    len: usize,
}

impl Linear {
    #[inline]
    fn position(&self, key: Key) -> Option<usize> {
        let (steps, _) = self.keys[..self.len.next_multiple_of(STEP)].as_chunks::<STEP>();
        let step = steps.iter().position(|step| step.iter().fold(false, |found, other| found | (*other == key)))?;
        let within = steps[step].iter().position(|other| *other == key)?;
        Some(step * STEP + within)
    }
}

impl Lookup for Linear {
    fn new(size: Size) -> Result<Linear, BuildError> {
        let room = size.sessions as usize;
        Ok(Linear { keys: Arena::zeroed(room.next_multiple_of(STEP))?, numbers: Arena::zeroed(room)?, len: 0 })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        if let Some(position) = self.position(key) {
            return Ok(self.numbers[position]);
        }
        let number = self.numbers.get_mut(self.len).ok_or(Full)?;
        *number = new;
        self.keys[self.len] = key;
        self.len += 1;
        Ok(new)
    }

    fn bytes(&self) -> usize {
        self.keys.bytes() + self.numbers.bytes()
    }
}
