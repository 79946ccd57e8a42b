//! Decisions read from the bytes of an input, so that the fuzzer makes them and an input always makes the same.

/// Reads decisions off the front of an input; zeros once it is used up.
pub(crate) struct Dice<'a> {
    bytes: &'a [u8],
}

impl<'a> Dice<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Dice<'a> {
        Dice { bytes }
    }

    /// Whether the input is used up.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Up to this many of the following bytes as they are.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// One of `from`, which is not empty, by one byte.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// One of those that are there, by one byte.
    pub(crate) fn pick_some<'b, T>(&mut self, from: &'b [T]) -> Option<&'b T> {
        let choice = usize::from(self.byte());
        from.get(choice % from.len().max(1))
    }
}
