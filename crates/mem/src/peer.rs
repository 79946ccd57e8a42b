//! The peer of a Unix socket, where no safe crate asks the kernel.

#![allow(unsafe_code, reason = "getsockopt with a list of unknown length")]

use core::mem::size_of;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;

/// Groups that fit without a second call.
const GROUPS_USUAL: usize = 64;

/// The peer's supplementary groups when it connected (Linux 4.13). Asks neither the user database
/// nor the network.
///
/// # Errors
/// The kernel lacks `SO_PEERGROUPS`, or this is no connected Unix socket.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut groups = vec![0_u32; GROUPS_USUAL];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, which the list has, and the length.
        let result = unsafe {
            libc::getsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The list was too short, and the kernel says how long it has to be.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_a_peer_are_those_of_its_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut groups = peer_groups(&one).unwrap();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut own: Vec<u32> = own.split_whitespace().map(|group| group.parse().unwrap()).collect();
        groups.sort_unstable();
        own.sort_unstable();
        assert_eq!(groups, own);
        assert!(peer_groups(TcpListener::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
