//! A TAP device: a port of this machine's kernel, whose frames a process reads and writes.

#![allow(unsafe_code, reason = "ioctl, and descriptors of the service manager")]

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// Requests of `linux/if_tun.h` and `linux/sockios.h` that libc lacks.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETCARRIER: libc::c_ulong = 0x4004_54e2;
const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
const SIOCSIFHWADDR: libc::c_ulong = 0x8924;
/// Family of an Ethernet address.
const ARPHRD_ETHER: libc::sa_family_t = 1;

/// An open TAP device. It exists while a descriptor of it is open.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Makes the device.
    ///
    /// # Errors
    /// There is a device of this name ([`io::ErrorKind::ResourceBusy`]), the name is too long, the
    /// module is missing, or the rights are (CAP_NET_ADMIN).
    pub fn open(name: &str) -> io::Result<Tap> {
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
        let mut request = request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which lives through the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Tap { file }) }
    }

    /// A device that an earlier process opened and left to the service manager, which hands its
    /// descriptors over open for all that this process starts (sd_listen_fds(3)). From here on no
    /// program that this process starts gets it: the device would live on with that program.
    pub fn of_descriptor(descriptor: OwnedFd) -> Tap {
        // SAFETY: F_SETFD takes an int by value, and the descriptor is open and ours. It cannot
        // fail on an open descriptor.
        unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Tap { file: File::from(descriptor) }
    }

    /// Sets its Ethernet address, which needs the device to be down on older kernels.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_address(&self, name: &str, address: [u8; 6]) -> io::Result<()> {
        let mut request = request(name)?;
        let mut data = [0; 14];
        for (place, byte) in data.iter_mut().zip(address) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: ARPHRD_ETHER, sa_data: data };
        // SAFETY: SIOCSIFHWADDR reads one ifreq, which lives through the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), SIOCSIFHWADDR as _, &raw const request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Says whether the port has link.
    ///
    /// # Errors
    /// The kernel is older than 5.0, or the device is gone.
    pub fn set_carrier(&self, is_up: bool) -> io::Result<()> {
        let carrier = libc::c_int::from(is_up);
        // SAFETY: TUNSETCARRIER reads one int, which lives through the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER as _, &raw const carrier) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads one frame; None if none waits.
    ///
    /// # Errors
    /// The device is gone or down.
    pub fn read(&self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(frame) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives a frame to the kernel.
    ///
    /// # Errors
    /// The device is gone or down, or the frame is no frame.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(|_| ())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || !name.is_ascii() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name for a device"));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

/// A device that the service manager kept from an earlier process (`FileDescriptorStoreMax=`).
#[derive(Debug)]
pub struct Kept {
    /// The name that the earlier process gave to the descriptor.
    pub stored_as: String,
    /// Its device.
    pub tap: Tap,
    /// Name of the device now. None: it was deleted.
    pub device: Option<String>,
}

impl Tap {
    /// The devices that the service manager kept from an earlier process; the first call gets them.
    pub fn inherited() -> Vec<Kept> {
        use std::os::fd::FromRawFd;
        use std::sync::atomic::AtomicBool;
        use std::sync::atomic::Ordering;

        static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
        let number = |variable: &str| std::env::var(variable).ok()?.parse::<u32>().ok();
        let is_for_this = number("LISTEN_PID") == Some(std::process::id());
        if !is_for_this || ARE_TAKEN.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let count = number("LISTEN_FDS").unwrap_or(0) as usize;
        let kept = |(name, descriptor): (&str, libc::c_int)| {
            let device = device_of(descriptor);
            // Neither a device nor one that was deleted: another kind of descriptor.
            if matches!(&device, Err(error) if error.raw_os_error() != Some(libc::EBADFD)) {
                return None;
            }
            // SAFETY: the service manager opened descriptors 3 to 3 + LISTEN_FDS for this process,
            // and each is taken once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            let tap = Tap::of_descriptor(descriptor);
            Some(Kept { stored_as: name.to_owned(), tap, device: device.ok() })
        };
        names.split(':').take(count).zip(3..).filter_map(kept).collect()
    }
}

/// Name of the device that a descriptor belongs to. EBADFD: it was deleted.
fn device_of(descriptor: libc::c_int) -> io::Result<String> {
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    // SAFETY: TUNGETIFF writes one ifreq, which lives through the call; another kind of descriptor
    // refuses it.
    let result = unsafe { libc::ioctl(descriptor, TUNGETIFF as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_handed_over_is_closed_in_children() {
        let file = File::open("/dev/null").unwrap();
        let flags = |descriptor: libc::c_int| {
            // SAFETY: F_GETFD takes no argument.
            unsafe { libc::fcntl(descriptor, libc::F_GETFD) }
        };
        // SAFETY: dup makes a descriptor of its own, without the flag, as the service manager does.
        let handed_over = unsafe {
            use std::os::fd::FromRawFd;
            OwnedFd::from_raw_fd(libc::dup(file.as_raw_fd()))
        };
        assert_eq!(flags(handed_over.as_raw_fd()) & libc::FD_CLOEXEC, 0);
        let tap = Tap::of_descriptor(handed_over);
        assert_eq!(flags(tap.as_fd().as_raw_fd()) & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}
