//! Counts, in tests only, the bytes that gateways look at or copy. Parsers look at a payload by the
//! readers of [`crate::text`] alone, and streams copy by their own few functions, so that nothing
//! goes uncounted.

#[cfg(test)]
thread_local! {
    static DONE: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// So many bytes were looked at or copied.
#[inline(always)]
pub(crate) fn count(bytes: usize) {
    #[cfg(test)]
    DONE.set(DONE.get() + bytes as u64);
    #[cfg(not(test))]
    let _ = bytes;
}

/// What was counted since the last call.
#[cfg(test)]
pub(crate) fn take() -> u64 {
    DONE.replace(0)
}

#[cfg(test)]
mod tests;
