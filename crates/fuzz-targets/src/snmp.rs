//! Claims about PDUs of AgentX and about the file of thresholds.

/// No bytes make the reader fail, and what it reads survives being written.
pub fn pdu(bytes: &[u8]) {
    let _is_pdu = ::snmp::fuzzing::pdu(bytes);
}

/// A file of thresholds is read whole or not at all.
pub fn saved(bytes: &[u8]) {
    let _is_saved = ::snmp::fuzzing::saved(bytes);
}
