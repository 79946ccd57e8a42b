//! Values of objects.

use crate::oid::Oid;

/// A value with its type on the wire (RFC 2741 §5.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// INTEGER, Integer32.
    Integer(i32),
    /// OCTET STRING.
    Octets(Vec<u8>),
    /// Null.
    Null,
    /// OBJECT IDENTIFIER.
    Oid(Oid),
    /// IpAddress.
    IpAddress(Vec<u8>),
    /// Counter32.
    Counter32(u32),
    /// Gauge32, Unsigned32.
    Gauge32(u32),
    /// TimeTicks, TimeStamp.
    TimeTicks(u32),
    /// Opaque.
    Opaque(Vec<u8>),
    /// Counter64.
    Counter64(u64),
    /// There is no such object.
    NoSuchObject,
    /// The object has no such instance.
    NoSuchInstance,
    /// There is nothing after this object.
    EndOfMibView,
}

impl Value {
    /// Unsigned32; a larger number is given as the largest.
    pub(crate) fn unsigned(number: u64) -> Value {
        Value::Gauge32(u32::try_from(number).unwrap_or(u32::MAX))
    }
}

/// The name and value of an instance of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VarBind {
    /// Its name.
    pub(crate) name: Oid,
    /// Its value.
    pub(crate) value: Value,
}
