//! The calls into the C shim, each wrapped so that the rest of the crate needs no `unsafe` for it.

#![allow(unsafe_code, reason = "calls into C")]

use core::ffi::CStr;
use core::ffi::c_char;
use core::ffi::c_int;
use core::ffi::c_uint;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::ffi::CString;

use super::buffer::DpdkBuffer;
use crate::burst::Burst;

/// A `struct rte_mbuf`; its fields are read by offset, see `buffer.rs`.
#[repr(C)]
pub(super) struct Mbuf {
    _private: [u8; 0],
    _not_send_sync: PhantomData<*mut u8>,
}

/// A `struct rte_mempool`.
#[repr(C)]
pub(super) struct Mempool {
    _private: [u8; 0],
    _not_send_sync: PhantomData<*mut u8>,
}

/// `struct natrix_port_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PortInfo {
    pub(super) rx_queues_max: u16,
    pub(super) tx_queues_max: u16,
    pub(super) mtu_min: u16,
    pub(super) mtu_max: u16,
    pub(super) mac: [u8; 6],
}

/// `struct natrix_port_statistics`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Statistics {
    pub(super) ipackets: u64,
    pub(super) ibytes: u64,
    pub(super) opackets: u64,
    pub(super) obytes: u64,
    pub(super) imissed: u64,
    pub(super) ierrors: u64,
    pub(super) rx_nombuf: u64,
    pub(super) oerrors: u64,
}

unsafe extern "C" {
    fn natrix_keep_messages();
    fn natrix_messages(text: *mut c_char, size: usize);
    fn natrix_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn natrix_error_text(error: c_int) -> *const c_char;
    fn natrix_version() -> *const c_char;
    fn natrix_find_port(device: *const c_char, port: *mut u16) -> c_int;
    fn natrix_port_info(port: u16, info: *mut PortInfo) -> c_int;
    fn natrix_pool_create(buffers: u32, data_room: u16) -> *mut Mempool;
    fn natrix_port_start(port: u16, queues: u16, rx: u16, tx: u16, mtu: u16, pool: *mut Mempool) -> c_int;
    fn natrix_port_receive_groups(port: u16) -> c_int;
    fn natrix_memory_files_keep();
    fn natrix_memory_files_open() -> c_int;
    fn natrix_port_pause(port: u16);
    fn natrix_port_stop(port: u16);
    fn natrix_port_link_up(port: u16) -> c_int;
    fn natrix_port_statistics(port: u16, statistics: *mut Statistics);
    fn natrix_thread_register() -> c_int;
    fn natrix_thread_unregister();
    fn natrix_receive(port: u16, queue: u16, buffers: *mut *mut Mbuf, count: u16) -> u16;
    fn natrix_transmit(port: u16, queue: u16, buffers: *mut *mut Mbuf, count: u16) -> u16;
    fn natrix_receive_shared(port: u16, queue: u16, buffers: *mut *mut Mbuf, count: u16) -> u16;
    fn natrix_transmit_shared(port: u16, queue: u16, buffers: *mut *mut Mbuf, count: u16) -> u16;
    fn natrix_allocate(pool: *mut Mempool) -> *mut Mbuf;
    fn natrix_free(buffer: *mut Mbuf);
    fn natrix_free_all(buffers: *mut *mut Mbuf, count: c_uint);
}

/// The most bytes of messages reported; the shim keeps as many.
const MESSAGES_BYTES: usize = 16 * 1024;

pub(super) fn text(error: c_int) -> String {
    // SAFETY: DPDK returns a static or thread-local string that ends in a zero byte.
    unsafe { CStr::from_ptr(natrix_error_text(error)) }.to_string_lossy().into_owned()
}

/// DPDK's own name and release.
pub(super) fn version() -> String {
    // SAFETY: the function returns a static string.
    unsafe { CStr::from_ptr(natrix_version()) }.to_string_lossy().into_owned()
}

/// What `net_memif` gives back for a client that cannot connect to its server; as an error number,
/// EPERM.
const NO_PEER: c_int = -1;

/// A port that did not start.
pub(super) struct NotStarted {
    /// If the port is a client, it found no server.
    pub(super) has_no_peer: bool,
    /// What DPDK says.
    pub(super) reason: String,
}

fn checked(result: c_int) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(text(result)) }
}

/// Has DPDK's messages kept from here on.
pub(super) fn keep_messages() {
    // SAFETY: no arguments; a second call changes nothing.
    unsafe { natrix_keep_messages() };
}

/// The last messages of DPDK.
pub(super) fn messages() -> String {
    let mut text = vec![0_u8; MESSAGES_BYTES];
    // SAFETY: room for that many bytes, the last of which is made zero.
    unsafe { natrix_messages(text.as_mut_ptr().cast(), text.len()) };
    let length = text.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned()
}

/// Starts the environment layer. The arguments stay allocated: DPDK keeps pointers to them.
pub(super) fn eal_init(arguments: &[CString]) -> Result<(), String> {
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|argument| argument.clone().into_raw()).collect();
    let count = c_int::try_from(pointers.len()).map_err(|_| "too many arguments".to_owned())?;
    pointers.push(core::ptr::null_mut());
    // SAFETY: `count` strings that end in zero bytes and are never freed, and a null pointer behind
    // them.
    checked(unsafe { natrix_eal_init(count, pointers.leak().as_mut_ptr()) })
}

pub(super) fn find_port(device: &CStr) -> Option<u16> {
    let mut port = 0;
    // SAFETY: a string that ends in a zero byte, and a place for the answer.
    let result = unsafe { natrix_find_port(device.as_ptr(), &raw mut port) };
    (result == 0).then_some(port)
}

pub(super) fn port_info(port: u16) -> Result<PortInfo, String> {
    let mut info = PortInfo::default();
    // SAFETY: a place for the answer, of the same layout on both sides.
    checked(unsafe { natrix_port_info(port, &raw mut info) })?;
    Ok(info)
}

pub(super) fn pool_create(buffers: u32, data_room: u16) -> Result<NonNull<Mempool>, String> {
    // SAFETY: plain values.
    NonNull::new(unsafe { natrix_pool_create(buffers, data_room) }).ok_or_else(|| "out of memory".to_owned())
}

pub(super) fn port_start(
    port: u16,
    queues: u16,
    rx_descriptors: u16,
    tx_descriptors: u16,
    mtu: u16,
    pool: NonNull<Mempool>,
) -> Result<(), NotStarted> {
    // SAFETY: the pool comes from `pool_create` and is never freed.
    let result = unsafe { natrix_port_start(port, queues, rx_descriptors, tx_descriptors, mtu, pool.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(NotStarted { has_no_peer: result == NO_PEER, reason: text(result) }) }
}

/// Lets a started port receive frames to all groups, else all frames.
pub(super) fn port_receive_groups(port: u16) -> Result<(), String> {
    // SAFETY: plain value.
    checked(unsafe { natrix_port_receive_groups(port) })
}

/// Notes the files that packet memory is in, once all of it is there.
pub(super) fn memory_files_keep() {
    // SAFETY: no arguments; called once, by the thread that starts DPDK.
    unsafe { natrix_memory_files_keep() };
}

/// Opens the files of packet memory again that `net_memif` has closed: it closes them with each
/// connection, though they belong to DPDK. False while another file has the number of one.
pub(super) fn memory_files_open() -> bool {
    // SAFETY: no arguments; as [`memory_files_keep`].
    unsafe { natrix_memory_files_open() != 0 }
}

/// Stops a port that may be started again.
pub(super) fn port_pause(port: u16) {
    // SAFETY: as [`port_info`].
    unsafe { natrix_port_pause(port) };
}

pub(super) fn port_stop(port: u16) {
    // SAFETY: plain value; no thread polls the port any more, for all views of it are gone.
    unsafe { natrix_port_stop(port) };
}

pub(super) fn port_link_up(port: u16) -> bool {
    // SAFETY: plain value.
    unsafe { natrix_port_link_up(port) != 0 }
}

pub(super) fn port_statistics(port: u16) -> Statistics {
    let mut statistics = Statistics::default();
    // SAFETY: a place for the answer, of the same layout on both sides.
    unsafe { natrix_port_statistics(port, &raw mut statistics) };
    statistics
}

/// Makes this thread known to DPDK; false when it is already, or there are too many.
pub(super) fn thread_register() -> bool {
    // SAFETY: no arguments; a second call on the same thread is refused and harmless.
    unsafe { natrix_thread_register() == 0 }
}

/// Undoes [`thread_register`]; the thread's cache of buffers goes back to the pool.
pub(super) fn thread_unregister() {
    // SAFETY: no arguments; the thread was registered and does nothing with DPDK from here on that
    // needs it to be.
    unsafe { natrix_thread_unregister() };
}

/// Receives into `spare`; returns how many buffers were written to its front.
///
/// `is_shared`: the port is one of `net_memif`, whose peer may take its memory away at any time.
#[inline]
pub(super) fn receive(port: u16, is_shared: bool, queue: u16, spare: &mut [MaybeUninit<DpdkBuffer>]) -> usize {
    // `DpdkBuffer` is a transparent pointer to an mbuf; a burst has at most 64 of them.
    let (buffers, count) = (spare.as_mut_ptr().cast(), spare.len() as u16);
    // SAFETY: room for `count` pointers.
    usize::from(unsafe {
        if is_shared {
            natrix_receive_shared(port, queue, buffers, count)
        } else {
            natrix_receive(port, queue, buffers, count)
        }
    })
}

/// Sends from the front of the burst; returns how many buffers now belong to the driver.
/// `is_shared` as for [`receive`].
#[inline]
pub(super) fn transmit(port: u16, is_shared: bool, queue: u16, burst: &mut Burst<DpdkBuffer>) -> usize {
    let (buffers, count) = (burst.as_mut_ptr().cast(), burst.len() as u16);
    // SAFETY: `count` pointers to mbufs owned by the burst; the caller forgets those that were
    // taken.
    usize::from(unsafe {
        if is_shared {
            natrix_transmit_shared(port, queue, buffers, count)
        } else {
            natrix_transmit(port, queue, buffers, count)
        }
    })
}

pub(super) fn allocate(pool: NonNull<Mempool>) -> Option<DpdkBuffer> {
    // SAFETY: the pool comes from `pool_create` and is never freed.
    NonNull::new(unsafe { natrix_allocate(pool.as_ptr()) }).map(DpdkBuffer::own)
}

#[inline]
pub(super) fn free(buffer: NonNull<Mbuf>) {
    // SAFETY: called once, by the owner's destructor.
    unsafe { natrix_free(buffer.as_ptr()) };
}

/// Frees all buffers of the slice; the caller forgets them.
#[inline]
pub(super) fn free_all(buffers: &[DpdkBuffer]) {
    // SAFETY: pointers to mbufs owned by the caller, which gives them up. DPDK does not write to
    // the array.
    unsafe { natrix_free_all(buffers.as_ptr().cast_mut().cast(), buffers.len() as c_uint) };
}
