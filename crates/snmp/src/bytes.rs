//! The pieces of a payload (RFC 2741 §5): words, object identifiers, strings and values.

use crate::oid::Oid;
use crate::oid::SUBIDS_MAX;
use crate::value::Value;
use crate::value::VarBind;

/// Why bytes are not a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

const TRUNCATED: Malformed = Malformed("truncated");

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The order of the network.
    Big,
    /// The other one.
    Little,
}

/// `internet`, which a short object identifier leaves out.
const INTERNET: [u32; 4] = [1, 3, 6, 1];

/// Reads from the front of bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], order: Order) -> Reader<'a> {
        Reader { rest: bytes, order }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn skip_rest(&mut self) {
        self.rest = &[];
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (found, rest) = self.rest.split_first_chunk().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(*found)
    }

    pub(crate) fn four(&mut self) -> Result<[u8; 4], Malformed> {
        self.array()
    }

    /// A byte and three without a meaning.
    pub(crate) fn u8_and_padding(&mut self) -> Result<u8, Malformed> {
        self.four().map(|[first, ..]| first)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.array()?;
        Ok(if self.order == Order::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.array()?;
        Ok(if self.order == Order::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.array()?;
        Ok(if self.order == Order::Big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    /// An object identifier, and its flag `include`.
    pub(crate) fn oid(&mut self) -> Result<(Oid, bool), Malformed> {
        let [count, prefix, include, _] = self.four()?;
        let mut subids = Vec::new();
        if prefix != 0 {
            subids.extend(INTERNET);
            subids.push(u32::from(prefix));
        }
        if usize::from(count) + subids.len() > SUBIDS_MAX {
            return Err(Malformed("object identifier too long"));
        }
        for _ in 0..count {
            subids.push(self.u32()?);
        }
        Ok((Oid::new(&subids), include != 0))
    }

    pub(crate) fn octets(&mut self) -> Result<Vec<u8>, Malformed> {
        let length = self.u32()? as usize;
        let (octets, rest) = self.rest.split_at_checked(length).ok_or(TRUNCATED)?;
        let padding = length.next_multiple_of(4) - length;
        self.rest = rest.get(padding..).ok_or(TRUNCATED)?;
        Ok(octets.to_vec())
    }

    pub(crate) fn var_bind(&mut self) -> Result<VarBind, Malformed> {
        let kind = self.u16()?;
        self.u16()?;
        let (name, _) = self.oid()?;
        let value = match kind {
            2 => Value::Integer(self.u32()?.cast_signed()),
            4 => Value::Octets(self.octets()?),
            5 => Value::Null,
            6 => Value::Oid(self.oid()?.0),
            64 => Value::IpAddress(self.octets()?),
            65 => Value::Counter32(self.u32()?),
            66 => Value::Gauge32(self.u32()?),
            67 => Value::TimeTicks(self.u32()?),
            68 => Value::Opaque(self.octets()?),
            70 => Value::Counter64(self.u64()?),
            128 => Value::NoSuchObject,
            129 => Value::NoSuchInstance,
            130 => Value::EndOfMibView,
            _ => return Err(Malformed("unknown type of a value")),
        };
        Ok(VarBind { name, value })
    }
}

/// Appends to bytes.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    order: Order,
}

impl Writer {
    pub(crate) fn new(order: Order) -> Writer {
        Writer { bytes: Vec::new(), order }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn four(&mut self, bytes: [u8; 4]) {
        self.bytes.extend(bytes);
    }

    pub(crate) fn u16(&mut self, number: u16) {
        let big = self.order == Order::Big;
        self.bytes.extend(if big { number.to_be_bytes() } else { number.to_le_bytes() });
    }

    pub(crate) fn u32(&mut self, number: u32) {
        let big = self.order == Order::Big;
        self.bytes.extend(if big { number.to_be_bytes() } else { number.to_le_bytes() });
    }

    fn u64(&mut self, number: u64) {
        let big = self.order == Order::Big;
        self.bytes.extend(if big { number.to_be_bytes() } else { number.to_le_bytes() });
    }

    pub(crate) fn oid(&mut self, oid: &Oid, include: bool) {
        let (prefix, rest) = match oid.subids() {
            [1, 3, 6, 1, prefix @ 1..=255, rest @ ..] => (*prefix as u8, rest),
            all => (0, all),
        };
        // An identifier has at most 128 sub-identifiers.
        self.four([rest.len() as u8, prefix, u8::from(include), 0]);
        rest.iter().for_each(|subid| self.u32(*subid));
    }

    pub(crate) fn octets(&mut self, octets: &[u8]) {
        self.u32(octets.len() as u32);
        self.bytes.extend(octets);
        let whole = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(whole, 0);
    }

    pub(crate) fn var_bind(&mut self, var_bind: &VarBind) {
        let kind = match &var_bind.value {
            Value::Integer(_) => 2,
            Value::Octets(_) => 4,
            Value::Null => 5,
            Value::Oid(_) => 6,
            Value::IpAddress(_) => 64,
            Value::Counter32(_) => 65,
            Value::Gauge32(_) => 66,
            Value::TimeTicks(_) => 67,
            Value::Opaque(_) => 68,
            Value::Counter64(_) => 70,
            Value::NoSuchObject => 128,
            Value::NoSuchInstance => 129,
            Value::EndOfMibView => 130,
        };
        self.u16(kind);
        self.u16(0);
        self.oid(&var_bind.name, false);
        match &var_bind.value {
            Value::Integer(number) => self.u32(number.cast_unsigned()),
            Value::Octets(octets) | Value::IpAddress(octets) | Value::Opaque(octets) => self.octets(octets),
            Value::Oid(oid) => self.oid(oid, false),
            Value::Counter32(number) | Value::Gauge32(number) | Value::TimeTicks(number) => self.u32(*number),
            Value::Counter64(number) => self.u64(*number),
            Value::Null | Value::NoSuchObject | Value::NoSuchInstance | Value::EndOfMibView => {}
        }
    }
}
