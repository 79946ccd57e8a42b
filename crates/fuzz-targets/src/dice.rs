//! Reads decisions from the bytes of an input, so that the fuzzer makes them and an input always
//! makes the same ones.

/// Reads decisions from the front of an input; zeros at its end.
pub(crate) struct Dice<'a> {
    bytes: &'a [u8],
}

impl<'a> Dice<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Dice<'a> {
        Dice { bytes }
    }

    /// True at the end of the input.
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

    /// Up to this many of the following bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// One of `from`, which is not empty, by one byte.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// One of the elements, by one byte.
    pub(crate) fn pick_some<'b, T>(&mut self, from: &'b [T]) -> Option<&'b T> {
        let choice = usize::from(self.byte());
        from.get(choice % from.len().max(1))
    }
}
