//! Enhanced GRE, which carries PPTP (RFC 2637 §4.1).
//!
//! ```text
//!  |C|R|K|S|s|Recur|A| Flags | Ver |        Protocol Type          |
//!  |      Key (HW) Payload Length  |      Key (LW) Call ID         |
//! ```
//!
//! The call identifier is the receiver's.

pub(crate) const PROTOCOL: u8 = 47;
pub(crate) const CALL: usize = 6;
const PPP: u16 = 0x880b;

/// The call identifier of a PPTP packet: version 1 with a key, without checksum and routing.
pub(crate) fn call(transport: &[u8]) -> Option<u16> {
    let header = transport.first_chunk::<8>()?;
    let is_keyed = header[0] & 0xe0 == 0x20;
    let is_version_1 = header[1] & 7 == 1;
    let is_ppp = u16::from_be_bytes([header[2], header[3]]) == PPP;
    (is_keyed && is_version_1 && is_ppp).then(|| u16::from_be_bytes([header[CALL], header[CALL + 1]]))
}

#[cfg(test)]
mod tests {
    use super::call;

    #[test]
    fn only_packets_of_pptp_have_a_call_identifier() {
        let packet = [0x30, 0x81, 0x88, 0x0b, 0, 5, 0x12, 0x34, 0, 0, 0, 1];
        assert_eq!(call(&packet), Some(0x1234));
        // Without payload there is no sequence number.
        assert_eq!(call(&[0x20, 0x81, 0x88, 0x0b, 0, 0, 0, 9]), Some(9));
        for (at, byte) in [(0, 0xb0), (0, 0x70), (0, 0x10), (1, 0x80), (1, 0x82), (2, 0x08), (3, 0)] {
            let mut other = packet;
            other[at] = byte;
            assert_eq!(call(&other), None, "byte {at} is {byte:#x}");
        }
        assert_eq!(call(&packet[..7]), None);
    }
}
