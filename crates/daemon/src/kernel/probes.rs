//! Datagrams by which the kernel resolves a neighbour, or checks that it is still there.
//!
//! To ask for a neighbour by netlink (`NTF_USE`) makes an ordinary entry of one that an operator
//! has set permanently (since Linux 5.16), whether or not Natrix knows by then that it is one. A
//! datagram leaves such an entry alone. It goes to the discard port, and no farther than the TAP.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;
use core::net::SocketAddrV6;
use std::io;
use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::libc::in_addr;
use nix::libc::in_pktinfo;
use nix::libc::in6_addr;
use nix::libc::in6_pktinfo;
use nix::sys::socket::ControlMessage;
use nix::sys::socket::MsgFlags;
use nix::sys::socket::SockaddrIn;
use nix::sys::socket::SockaddrIn6;
use nix::sys::socket::SockaddrLike;
use nix::sys::socket::sendmsg;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::DontRoute;
use nix::sys::socket::sockopt::SndBufForce;

const DISCARD: u16 = 9;
const MARK_BYTES: usize = 16;
/// Longest frame of a datagram: Ethernet with two tags, IPv6, UDP and the mark.
const FRAME_MAX: usize = 14 + 8 + 40 + 8 + MARK_BYTES;
/// Datagrams wait in the kernel until their neighbour has answered, each with 1 KiB or less.
const WAITING_BYTES: usize = 4 << 20;

/// The sockets. None of a family that the kernel does not have.
#[derive(Debug)]
pub(super) struct Probes {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    mark: [u8; MARK_BYTES],
}

impl Probes {
    /// Frames are recognised by `secret`, which no other program knows.
    pub(super) fn new(secret: u64) -> Probes {
        let mut mark = [0; MARK_BYTES];
        let (name, number) = mark.split_at_mut(MARK_BYTES / 2);
        name.copy_from_slice(b"natrix: ");
        number.copy_from_slice(&secret.to_be_bytes());
        let socket = |address: IpAddr| {
            let socket = UdpSocket::bind((address, 0)).ok()?;
            socket.set_nonblocking(true).ok()?;
            // With the default, 270 datagrams may wait.
            let _ = setsockopt(&socket, SndBufForce, &WAITING_BYTES);
            Some(socket)
        };
        let v4 = socket(Ipv4Addr::UNSPECIFIED.into()).inspect(|socket| {
            // The neighbour itself is meant, even if the kernel has only a route by a router to it.
            let _ = setsockopt(socket, DontRoute, &true);
        });
        Probes { v4, v6: socket(Ipv6Addr::UNSPECIFIED.into()), mark }
    }

    /// Sends a datagram to a neighbour on a device.
    ///
    /// # Errors
    /// The kernel refuses it: a firewall, or it has no route for IPv6 to the device.
    pub(super) fn send(&self, device: u32, address: IpAddr) -> io::Result<()> {
        match address {
            IpAddr::V4(address) => {
                let any = in_addr { s_addr: 0 };
                let by = in_pktinfo { ipi_ifindex: device as i32, ipi_spec_dst: any, ipi_addr: any };
                let to = SockaddrIn::from(SocketAddrV4::new(address, DISCARD));
                self.send_by(self.v4.as_ref(), &ControlMessage::Ipv4PacketInfo(&by), &to)
            }
            IpAddr::V6(address) => {
                let by = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: [0; 16] }, ipi6_ifindex: device };
                let to = SockaddrIn6::from(SocketAddrV6::new(address, DISCARD, 0, device));
                self.send_by(self.v6.as_ref(), &ControlMessage::Ipv6PacketInfo(&by), &to)
            }
        }
    }

    fn send_by(&self, socket: Option<&UdpSocket>, by: &ControlMessage<'_>, to: &impl SockaddrLike) -> io::Result<()> {
        let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
        sendmsg(socket.as_raw_fd(), &[IoSlice::new(&self.mark)], &[*by], MsgFlags::empty(), Some(to))?;
        Ok(())
    }

    /// Whether a frame that the kernel sends is one of these.
    pub(super) fn is_own(&self, frame: &[u8]) -> bool {
        frame.len() <= FRAME_MAX && frame.ends_with(&self.mark)
    }
}

#[cfg(test)]
mod tests {
    use wire::build;

    use super::*;

    #[test]
    fn its_own_datagrams_are_recognised() {
        let (probes, other) = (Probes::new(7), Probes::new(8));
        // The index of `lo`, in every network namespace.
        let (lo, here) = (1, Ipv4Addr::LOCALHOST);
        let address = SocketAddrV4::new(here, DISCARD);
        let datagram = |mark: &[u8]| build::udp(address, address).payload(mark).build();
        assert!(probes.is_own(&datagram(&probes.mark)));
        assert!(!probes.is_own(&datagram(&other.mark)));
        assert!(!probes.is_own(&datagram(b"natrix: ")));
        let mut long = vec![0; FRAME_MAX];
        long.extend(probes.mark);
        assert!(!probes.is_own(&long), "it is longer than all of these");
        probes.send(lo, here.into()).unwrap();
        // Where the machine has IPv6.
        if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            probes.send(lo, Ipv6Addr::LOCALHOST.into()).unwrap();
        }
    }
}
