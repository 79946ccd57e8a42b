//! Reads and writes big-endian numbers at byte offsets.
//!
//! A read past the end gives 0, and a write past the end has no effect. Callers check lengths first
//! and never rely on this; it only keeps a mistake from becoming a panic on the packet path. Each
//! access is one length test, which the compiler removes if it knows the length.

/// The byte at `offset`.
#[inline(always)]
pub const fn u8_at(bytes: &[u8], offset: usize) -> u8 {
    if offset < bytes.len() { bytes[offset] } else { 0 }
}

/// The 16-bit number at `offset`.
#[inline(always)]
pub fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    match bytes.get(offset..).and_then(<[u8]>::first_chunk) {
        Some(chunk) => u16::from_be_bytes(*chunk),
        None => 0,
    }
}

/// The 32-bit number at `offset`.
#[inline(always)]
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    match bytes.get(offset..).and_then(<[u8]>::first_chunk) {
        Some(chunk) => u32::from_be_bytes(*chunk),
        None => 0,
    }
}

/// The 128-bit number at `offset`.
#[inline(always)]
pub fn u128_at(bytes: &[u8], offset: usize) -> u128 {
    match bytes.get(offset..).and_then(<[u8]>::first_chunk) {
        Some(chunk) => u128::from_be_bytes(*chunk),
        None => 0,
    }
}

/// Writes the byte at `offset`.
#[inline(always)]
pub const fn set_u8(bytes: &mut [u8], offset: usize, value: u8) {
    if offset < bytes.len() {
        bytes[offset] = value;
    }
}

/// Writes the 16-bit number at `offset`.
#[inline(always)]
pub fn set_u16(bytes: &mut [u8], offset: usize, value: u16) {
    if let Some(chunk) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *chunk = value.to_be_bytes();
    }
}

/// Writes the 32-bit number at `offset`.
#[inline(always)]
pub fn set_u32(bytes: &mut [u8], offset: usize, value: u32) {
    if let Some(chunk) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *chunk = value.to_be_bytes();
    }
}

/// Writes the 128-bit number at `offset`.
#[inline(always)]
pub fn set_u128(bytes: &mut [u8], offset: usize, value: u128) {
    if let Some(chunk) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *chunk = value.to_be_bytes();
    }
}

/// `bytes[start..end]`, cut to the available bytes.
#[inline]
pub(crate) fn clamped(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    let end = end.min(bytes.len());
    bytes.get(start.min(end)..end).unwrap_or(&[])
}

/// `bytes[start..end]`, cut to the available bytes.
#[inline]
pub(crate) fn clamped_mut(bytes: &mut [u8], start: usize, end: usize) -> &mut [u8] {
    let end = end.min(bytes.len());
    bytes.get_mut(start.min(end)..end).unwrap_or(&mut [])
}
