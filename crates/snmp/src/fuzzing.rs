//! PDUs and saved thresholds from any bytes, for the fuzzer.

use crate::pdu::HEADER_BYTES;
use crate::pdu::Header;
use crate::pdu::Pdu;
use crate::saved::parsed;
use crate::saved::written;

/// Reads the bytes as a PDU. True if they are one.
///
/// # Panics
/// What was read is not what its own bytes say.
pub fn pdu(bytes: &[u8]) -> bool {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return false };
    let Ok(header) = Header::read(head) else { return false };
    let Some(payload) = payload.get(..header.payload_bytes) else { return false };
    let Ok(pdu) = Pdu::read(&header, payload) else { return false };
    let again = pdu.to_bytes();
    assert!(again.len().is_multiple_of(4), "a PDU of whole words");
    let (head, payload) = again.split_first_chunk::<HEADER_BYTES>().unwrap_or((&[0; HEADER_BYTES], &[]));
    let read = Header::read(head).and_then(|header| Pdu::read(&header, payload));
    assert_eq!(read.as_ref(), Ok(&pdu), "a PDU survives being written and read");
    true
}

/// Reads the bytes as saved thresholds. True if they are some.
///
/// # Panics
/// What was read is not what its own text says.
pub fn saved(bytes: &[u8]) -> bool {
    let Ok(controls) = parsed(bytes) else { return false };
    let again = written(&controls).ok().and_then(|text| parsed(&text).ok());
    assert!(again.is_some_and(|again| again.all().eq(controls.all())), "saved values survive being written and read");
    true
}
