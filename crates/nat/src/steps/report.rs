//! Collects steps for `natrix why` and traces; nothing on the packet path.

use crate::steps::step::Step;

pub(crate) trait Report {
    /// Nothing is computed for dropped steps.
    const LISTENS: bool;

    /// Calls the closure only if [`Report::LISTENS`].
    fn step(&mut self, step: impl FnOnce() -> Step);
}

impl Report for () {
    const LISTENS: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}
}
