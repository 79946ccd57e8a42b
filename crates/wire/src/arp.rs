//! ARP for IPv4 over Ethernet (RFC 826).

use core::fmt;

use crate::ethernet::ETHER_TYPE_IPV4;
use crate::ethernet::MacAddress;
use crate::field;

const HARDWARE_TYPE_OFFSET: usize = 0;
const PROTOCOL_TYPE_OFFSET: usize = 2;
const HARDWARE_LENGTH_OFFSET: usize = 4;
const PROTOCOL_LENGTH_OFFSET: usize = 5;
const OPERATION_OFFSET: usize = 6;
const SENDER_MAC_OFFSET: usize = 8;
const SENDER_ADDRESS_OFFSET: usize = 14;
const TARGET_MAC_OFFSET: usize = 18;
const TARGET_ADDRESS_OFFSET: usize = 24;

/// Length of an ARP message for IPv4 over Ethernet.
pub const LENGTH: usize = 28;

const HARDWARE_TYPE_ETHERNET: u16 = 1;
const OPERATION_REQUEST: u16 = 1;
const OPERATION_REPLY: u16 = 2;

/// Why bytes are not an ARP message that this crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Shorter than a message.
    Truncated,
    /// Not for IPv4 over Ethernet.
    OtherFamily,
    /// Neither a request nor a reply.
    Operation,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Truncated => "ARP message is shorter than 28 bytes",
            Fault::OtherFamily => "ARP message is not for IPv4 over Ethernet",
            Fault::Operation => "ARP message is neither a request nor a reply",
        })
    }
}

impl core::error::Error for Fault {}

/// Operation of an ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks for the link-layer address of the target.
    Request,
    /// Reports the link-layer address of the sender.
    Reply,
}

/// An ARP message for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Request or reply.
    pub operation: Operation,
    /// Link-layer address of the sender.
    pub sender_mac: MacAddress,
    /// IPv4 address of the sender; 0 in a probe (RFC 5227 §1.1).
    pub sender_address: u32,
    /// Link-layer address of the target; zero in a request.
    pub target_mac: MacAddress,
    /// IPv4 address of the target.
    pub target_address: u32,
}

impl Message {
    /// Reads a message and ignores padding behind it.
    ///
    /// # Errors
    /// Names the fault of a message that is not a request or reply for IPv4 over Ethernet.
    pub fn parse(bytes: &[u8]) -> Result<Message, Fault> {
        if bytes.len() < LENGTH {
            return Err(Fault::Truncated);
        }
        if field::u16_at(bytes, HARDWARE_TYPE_OFFSET) != HARDWARE_TYPE_ETHERNET
            || field::u16_at(bytes, PROTOCOL_TYPE_OFFSET) != ETHER_TYPE_IPV4
            || field::u8_at(bytes, HARDWARE_LENGTH_OFFSET) != 6
            || field::u8_at(bytes, PROTOCOL_LENGTH_OFFSET) != 4
        {
            return Err(Fault::OtherFamily);
        }
        let operation = match field::u16_at(bytes, OPERATION_OFFSET) {
            OPERATION_REQUEST => Operation::Request,
            OPERATION_REPLY => Operation::Reply,
            _ => return Err(Fault::Operation),
        };
        Ok(Message {
            operation,
            sender_mac: MacAddress::at(bytes, SENDER_MAC_OFFSET),
            sender_address: field::u32_at(bytes, SENDER_ADDRESS_OFFSET),
            target_mac: MacAddress::at(bytes, TARGET_MAC_OFFSET),
            target_address: field::u32_at(bytes, TARGET_ADDRESS_OFFSET),
        })
    }

    /// Writes the message as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        field::set_u16(&mut bytes, HARDWARE_TYPE_OFFSET, HARDWARE_TYPE_ETHERNET);
        field::set_u16(&mut bytes, PROTOCOL_TYPE_OFFSET, ETHER_TYPE_IPV4);
        field::set_u8(&mut bytes, HARDWARE_LENGTH_OFFSET, 6);
        field::set_u8(&mut bytes, PROTOCOL_LENGTH_OFFSET, 4);
        let operation = match self.operation {
            Operation::Request => OPERATION_REQUEST,
            Operation::Reply => OPERATION_REPLY,
        };
        field::set_u16(&mut bytes, OPERATION_OFFSET, operation);
        self.sender_mac.write(&mut bytes, SENDER_MAC_OFFSET);
        field::set_u32(&mut bytes, SENDER_ADDRESS_OFFSET, self.sender_address);
        self.target_mac.write(&mut bytes, TARGET_MAC_OFFSET);
        field::set_u32(&mut bytes, TARGET_ADDRESS_OFFSET, self.target_address);
        bytes
    }

    /// A request for the link-layer address of `target_address`.
    #[must_use]
    pub const fn request(sender_mac: MacAddress, sender_address: u32, target_address: u32) -> Message {
        Message {
            operation: Operation::Request,
            sender_mac,
            sender_address,
            target_mac: MacAddress::ZERO,
            target_address,
        }
    }

    /// The reply that gives `mac` for the requested address.
    #[must_use]
    pub const fn reply(&self, mac: MacAddress) -> Message {
        Message {
            operation: Operation::Reply,
            sender_mac: mac,
            sender_address: self.target_address,
            target_mac: self.sender_mac,
            target_address: self.sender_address,
        }
    }

    /// Whether sender and target address are the same: an announcement (RFC 5227 §3).
    #[must_use]
    pub const fn is_gratuitous(&self) -> bool {
        self.sender_address == self.target_address
    }
}
