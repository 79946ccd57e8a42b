//! The kernel's view of the time of day (adjtimex(2)).

#![allow(unsafe_code, reason = "the kernel is asked by a system call")]

use std::io;

/// State of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// A time service (NTP, PTP) keeps it.
    pub is_synchronised: bool,
    /// Its error, as the service estimates it, in µs.
    pub estimated_error_us: u64,
    /// Greatest possible error. The kernel lets it grow until the service sets it.
    pub maximum_error_us: u64,
}

/// Changes nothing and needs no privilege.
///
/// # Errors
/// The system refused, such as by a filter of system calls.
pub fn state() -> io::Result<State> {
    // SAFETY: all zeros are a valid value of this structure of integers.
    let mut about: libc::timex = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one structure, for which there is space. Without a mode it only
    // reads.
    let answer = unsafe { libc::adjtimex(&raw mut about) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let error_us = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
    Ok(State {
        is_synchronised: about.status & libc::STA_UNSYNC == 0,
        estimated_error_us: error_us(about.esterror),
        maximum_error_us: error_us(about.maxerror),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // covers: 6302-2
    fn the_kernel_says_whether_the_clock_is_kept() {
        let state = state().unwrap();
        // It counts to 16 s and then calls the clock unsynchronised.
        assert!(state.maximum_error_us <= 16_000_000 || !state.is_synchronised, "{state:?}");
    }
}
