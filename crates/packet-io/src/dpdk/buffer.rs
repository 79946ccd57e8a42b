//! A DPDK packet buffer. Its fields are read by offsets that the C shim holds against DPDK's
//! headers.

#![allow(unsafe_code, reason = "reads and writes a C structure and the packet behind it")]

use core::ptr;
use core::ptr::NonNull;
use core::slice;

use mem::prefetch::prefetch_address;

use super::HEADROOM;
use super::ffi;
use super::ffi::Mbuf;
use crate::burst::Drain;
use crate::io::Buffer;
use crate::io::TransportChecksum;

const BUF_ADDR: usize = 0;
const DATA_OFF: usize = 16;
const NB_SEGS: usize = 20;
const OL_FLAGS: usize = 24;
const PKT_LEN: usize = 36;
const DATA_LEN: usize = 40;
const BUF_LEN: usize = 54;
/// Bytes of an mbuf; its buffer follows it.
const MBUF_BYTES: usize = 128;

const CHECKSUM_BAD: u64 = 1 << 3;
const CHECKSUM_GOOD: u64 = 1 << 8;

/// An owned `rte_mbuf` of one segment.
#[repr(transparent)]
pub struct DpdkBuffer(NonNull<Mbuf>);

// SAFETY: the value is the only owner of its mbuf, and DPDK's pool takes buffers back on any
// thread.
unsafe impl Send for DpdkBuffer {}

impl DpdkBuffer {
    /// Takes over an mbuf that has no other owner.
    pub(super) fn own(mbuf: NonNull<Mbuf>) -> DpdkBuffer {
        DpdkBuffer(mbuf)
    }

    #[inline]
    fn get<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: `offset` is that of a field of type `T` in a live mbuf.
        unsafe { self.0.as_ptr().cast::<u8>().add(offset).cast::<T>().read() }
    }

    #[inline]
    fn set<T: Copy>(&mut self, offset: usize, value: T) {
        // SAFETY: `offset` is that of a field of type `T` in a live mbuf that only this value may
        // change.
        unsafe { self.0.as_ptr().cast::<u8>().add(offset).cast::<T>().write(value) };
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        let base: *mut u8 = self.get(BUF_ADDR);
        // SAFETY: the data offset lies inside the buffer.
        unsafe { base.add(usize::from(self.get::<u16>(DATA_OFF))) }
    }

    #[inline]
    fn set_len(&mut self, len: u16) {
        self.set(DATA_LEN, len);
        self.set(PKT_LEN, u32::from(len));
    }

    /// Whether the whole frame is in this one buffer. What shares memory with another program may
    /// say anything.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        let end = u32::from(self.get::<u16>(DATA_OFF)) + u32::from(self.get::<u16>(DATA_LEN));
        (self.get::<u16>(NB_SEGS) == 1) & (end <= u32::from(self.get::<u16>(BUF_LEN)))
    }

    /// Asks for the first line of the frame.
    #[inline]
    pub(super) fn prefetch_frame(&self) {
        prefetch_address(self.start());
    }
}

impl Buffer for DpdkBuffer {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `data_len` bytes from the data offset on are initialised and belong to this
        // buffer.
        unsafe { slice::from_raw_parts(self.start(), usize::from(self.get::<u16>(DATA_LEN))) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the buffer is owned by `self` alone.
        unsafe { slice::from_raw_parts_mut(self.start(), usize::from(self.get::<u16>(DATA_LEN))) }
    }

    #[inline]
    fn len(&self) -> usize {
        usize::from(self.get::<u16>(DATA_LEN))
    }

    #[inline(always)]
    fn frame_mut(&mut self) -> (&mut [u8], u16) {
        let start: u16 = self.get(DATA_OFF);
        let end = usize::from(start) + usize::from(self.get::<u16>(DATA_LEN));
        // SAFETY: the frame ends inside the buffer, whose bytes are initialised and belong to
        // `self` alone.
        (unsafe { slice::from_raw_parts_mut(self.get::<*mut u8>(BUF_ADDR), end) }, start)
    }

    #[inline(always)]
    fn set_frame(&mut self, start: u16, len: u16) -> Option<&mut [u8]> {
        if u32::from(start) + u32::from(len) > u32::from(self.get::<u16>(BUF_LEN)) {
            return None;
        }
        self.set(DATA_OFF, start);
        self.set_len(len);
        Some(self.bytes_mut())
    }

    #[inline(always)]
    fn prefetch(&self) {
        let mbuf = self.0.as_ptr().cast::<u8>().cast_const();
        // Neither line is read to find the other one: where a driver puts a fresh frame is known,
        // unless it shifts it.
        prefetch_address(mbuf);
        prefetch_address(mbuf.wrapping_add(MBUF_BYTES + HEADROOM as usize));
    }

    fn fill(&mut self, parts: &[&[u8]]) -> bool {
        let room = self.get::<u16>(BUF_LEN).saturating_sub(HEADROOM);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > usize::from(room) {
            return false;
        }
        self.set(DATA_OFF, HEADROOM);
        self.set_len(len as u16);
        let mut at = self.start();
        for part in parts {
            // SAFETY: all parts together fit behind the head room, which was just checked.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
        }
        true
    }

    #[inline]
    fn transport_checksum(&self) -> TransportChecksum {
        match self.get::<u64>(OL_FLAGS) & (CHECKSUM_BAD | CHECKSUM_GOOD) {
            CHECKSUM_BAD => TransportChecksum::Bad,
            CHECKSUM_GOOD => TransportChecksum::Good,
            0 => TransportChecksum::Unknown,
            _ => TransportChecksum::Unfinished,
        }
    }

    fn free_all(mut buffers: Drain<'_, DpdkBuffer>) {
        ffi::free_all(buffers.as_slice());
        buffers.forget();
    }
}

impl Drop for DpdkBuffer {
    #[inline]
    fn drop(&mut self) {
        ffi::free(self.0);
    }
}

const _: () = assert!(size_of::<DpdkBuffer>() == size_of::<*mut u8>());
