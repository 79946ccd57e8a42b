//! A ring in a file in memory (tmpfs), which outlives a killed process.
//!
//! ```text
//!   file := magic, format, bytes of an item, capacity, tag, … positions, refused … (4 KiB), item…
//! ```
//!
//! The process maps the file and uses it like any ring. After its death [`read`] returns the
//! unreleased items, staged ones included: each was written before the packet that it is about was
//! sent. It also returns the last item that found no room, if none did after it: then something is
//! missing at the end. Only the owner can open the file, and no process writes it while it is read.

use core::mem::align_of;
use core::mem::offset_of;
use core::mem::size_of;
use core::ptr::NonNull;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use zerocopy::FromBytes;

use super::Consumer;
use super::Positions;
use super::Producer;
use super::Progress;
use super::Refused;
use super::Released;
use super::Shared;
use super::ends;

const MAGIC: [u8; 8] = *b"NATXRING";
/// Format 1 has no note of what was released.
const FORMAT: u32 = 2;
/// Before the first item; a page on most machines.
const HEADER: usize = 4_096;
/// Place of the positions in the header.
const POSITIONS: usize = 1_024;
/// Place of the items that found no room. Files of earlier versions have zeros there, and in their
/// number.
const REFUSED: usize = 2_048;
const TAG: usize = 24;
/// Bytes that say whose ring it is.
pub const TAG_BYTES: usize = 64;
/// Largest ring: a longer file is damaged.
const CAPACITY_MAX: usize = 1 << 21;

const _: () =
    assert!(POSITIONS + size_of::<Positions>() <= REFUSED && POSITIONS.is_multiple_of(align_of::<Positions>()));

/// Contents of a ring's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left<T> {
    /// Given to [`create`].
    pub tag: [u8; TAG_BYTES],
    /// The number left by [`Producer::mark`].
    pub mark: u64,
    /// The number left by [`Consumer::release_at`], 0 before the first; None in an older format.
    pub note: Option<u64>,
    /// Items that were not released, in order.
    pub items: Vec<T>,
    /// The last item that found no room, if none did after it.
    pub refused: Option<T>,
}

/// Makes the file with a ring; `capacity` is rounded up to a power of two.
///
/// # Errors
/// The file exists, or memory is short.
pub fn create<T: FromBytes + Copy + Send>(
    path: &Path,
    capacity: usize,
    tag: &[u8; TAG_BYTES],
) -> io::Result<(Producer<T>, Consumer<T>)> {
    const { assert!(align_of::<T>() <= HEADER && size_of::<T>() > 0, "items follow the header") };
    const { assert!(REFUSED + 2 * size_of::<Refused<T>>() <= HEADER && align_of::<T>() <= REFUSED) };
    let capacity = capacity.clamp(1, CAPACITY_MAX).next_power_of_two();
    let bytes = HEADER + capacity * size_of::<T>();
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    let made = map(&file, bytes).and_then(|start| {
        // The mapping outlives the descriptor.
        let mut header = Vec::with_capacity(TAG + TAG_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&FORMAT.to_le_bytes());
        header.extend_from_slice(&(size_of::<T>() as u32).to_le_bytes());
        header.extend_from_slice(&(capacity as u64).to_le_bytes());
        header.extend_from_slice(tag);
        file.write_all_at(&header, 0).map(|()| start)
    });
    let start = made.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    // SAFETY: both places are inside the mapping and aligned by the assertions; a new file has
    // zeros, which are valid positions.
    let (positions, slots) = unsafe { (start.add(POSITIONS).cast(), start.add(HEADER).cast()) };
    // SAFETY: as above.
    let refused = Some(unsafe { start.add(REFUSED).cast() });
    Ok(ends(Shared { positions, slots, capacity, mapped: Some((start, bytes)), refused }))
}

/// Takes all memory of the file first, so that no access can fail later.
fn map(file: &File, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: calls with a descriptor that is open, and lengths only.
    let refused = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
}

/// Reads the ring of a process that has ended.
///
/// # Errors
/// It cannot be read, belongs to another user, or is no whole ring of such items
/// ([`io::ErrorKind::InvalidData`]).
pub fn read<T: FromBytes>(path: &Path) -> io::Result<Left<T>> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    // SAFETY: the call has no arguments and cannot fail.
    let own = unsafe { libc::geteuid() };
    if !metadata.is_file() || metadata.uid() != own {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a file of this user"));
    }
    let bytes_max = (HEADER + CAPACITY_MAX * size_of::<T>()) as u64;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not a whole ring"))
}

fn parse<T: FromBytes>(bytes: &[u8]) -> Option<Left<T>> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (format, item) = (number(8)? as u32, (number(8)? >> 32) as usize);
    let capacity = usize::try_from(number(16)?).ok()?;
    let is_ring = bytes.get(..8)? == MAGIC && (1..=FORMAT).contains(&format) && item == size_of::<T>();
    let is_size = capacity.is_power_of_two() && capacity <= CAPACITY_MAX;
    if !is_ring || !is_size || bytes.len() != HEADER + capacity * item {
        return None;
    }
    let progress = POSITIONS + offset_of!(Positions, progress);
    let position = |at: usize| Some(number(at)? as usize);
    let released = POSITIONS + offset_of!(Positions, released);
    let head = position(released + offset_of!(Released, head))?;
    let tail = position(POSITIONS + offset_of!(Positions, tail))?;
    let staged = position(progress + offset_of!(Progress, staged))?;
    // Items are staged before they are published.
    let count = staged.wrapping_sub(head);
    if count > capacity || tail.wrapping_sub(head) > count {
        return None;
    }
    let mut items = Vec::with_capacity(count);
    for place in 0..count {
        let at = HEADER + (head.wrapping_add(place) & (capacity - 1)) * item;
        items.push(T::read_from_bytes(bytes.get(at..at + item)?).ok()?);
    }
    let tag = bytes.get(TAG..TAG + TAG_BYTES)?.try_into().ok()?;
    let note = number(released + offset_of!(Released, note))?;
    let note = (format > 1).then_some(note);
    let mut refused = None;
    if let Some(last) = number(progress + offset_of!(Progress, refused))?.checked_sub(1) {
        let at = REFUSED + (last & 1) as usize * size_of::<Refused<T>>();
        // Items that were staged since say themselves what is missing.
        if position(at + offset_of!(Refused<T>, position))? == staged {
            let at = at + offset_of!(Refused<T>, item);
            refused = Some(T::read_from_bytes(bytes.get(at..at + item)?).ok()?);
        }
    }
    Some(Left { tag, mark: number(progress + offset_of!(Progress, mark))?, note, items, refused })
}

#[cfg(test)]
mod tests;
