//! Reports of a decision's steps, for `natrix why` and traces; nothing on the packet path.

use alg::AlgId;

use crate::steps::step::Step;

pub(crate) trait Report {
    /// False if steps are dropped; then nothing is computed for them.
    const LISTENS: bool;

    /// The closure is only called if [`Report::LISTENS`].
    fn step(&mut self, step: impl FnOnce() -> Step);

    /// Whether the packet could begin a session of a client with this gateway's servers. Ask only
    /// if [`Report::LISTENS`].
    fn asks(&self, alg: AlgId) -> bool;
}

/// Compiles to nothing.
impl Report for () {
    const LISTENS: bool = false;

    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}

    fn asks(&self, _: AlgId) -> bool {
        false
    }
}
