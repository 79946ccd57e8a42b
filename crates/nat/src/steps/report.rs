//! Reports of the steps of a decision: nothing on the packet path, a collector for `natrix why` and
//! traces.

use crate::show::view::Step;

pub(crate) trait Report {
    /// False if steps are dropped; then nothing is computed for them alone.
    const LISTENS: bool;

    /// Reports one more step. The closure is only called if [`Report::LISTENS`].
    fn step(&mut self, step: impl FnOnce() -> Step);
}

/// No report: compiles to nothing.
impl Report for () {
    const LISTENS: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}
}
