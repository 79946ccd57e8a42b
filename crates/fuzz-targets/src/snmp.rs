//! Claims about PDUs of AgentX.

/// No bytes make the reader fail, and what it reads survives being written.
pub fn pdu(bytes: &[u8]) {
    let _is_pdu = ::snmp::fuzzing::pdu(bytes);
}
