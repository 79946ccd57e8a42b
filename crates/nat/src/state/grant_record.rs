//! A grant's change as bytes, for a ring and a file that outlive the process.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use crate::state::delta::Change;
use crate::state::delta::DeltaHost;
use crate::state::delta::GrantDelta;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remotes;
use crate::state::grant::Requester;
use crate::time::Duration;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;

/// Bytes that [`GrantRecord::delta`] checks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct GrantRecord {
    left_us: u64,
    requester: Requester,
    remotes: Remotes,
    /// Behind a softwire, the inner address.
    internal: u32,
    external: u32,
    epoch_s: u32,
    internal_port: u16,
    external_port: u16,
    realm: u16,
    lives: u8,
    protocol: u8,
    origin: u8,
    kind: u8,
    /// [`IPV4`], [`NAT64`] or [`SOFTWIRE`].
    family: u8,
    unused: [u8; 5],
    host: [u8; 16],
    towards: [u8; 16],
}

const IPV4: u8 = 0;
const NAT64: u8 = 1;
const SOFTWIRE: u8 = 2;

impl GrantRecord {
    /// Size of a record.
    pub const BYTES: usize = size_of::<GrantRecord>();

    /// In this machine's byte order.
    pub fn to_bytes(self) -> [u8; GrantRecord::BYTES] {
        zerocopy::transmute!(self)
    }

    /// Size of older records, without IPv6 hosts.
    pub const BYTES_WITHOUT_HOST: usize = GrantRecord::BYTES - 32;

    /// Accepts any bytes.
    pub fn from_bytes(bytes: [u8; GrantRecord::BYTES]) -> GrantRecord {
        zerocopy::transmute!(bytes)
    }

    /// `None` if damaged.
    pub fn delta(&self) -> Option<GrantDelta> {
        let host = |inner| DeltaHost { address: self.host.into(), inner, towards: self.towards.into() };
        let host = match self.family {
            IPV4 => None,
            NAT64 => Some(host(None)),
            SOFTWIRE => Some(host(Some(self.internal.into()))),
            _ => return None,
        };
        let internal = if host.is_some() { 0 } else { self.internal };
        Some(GrantDelta {
            change: if self.lives == 1 { Change::Lives } else { Change::Ended },
            realm: RealmId(self.realm),
            protocol: Protocol::from_index(usize::from(self.protocol))?,
            internal: Endpoint::new(internal.into(), self.internal_port),
            host,
            external: Endpoint::new(self.external.into(), self.external_port),
            origin: Origin::from_number(self.origin)?,
            kind: Kind::from_number(self.kind)?,
            remotes: self.remotes,
            requester: self.requester,
            left: Duration::from_micros(self.left_us),
            epoch_s: self.epoch_s,
        })
    }
}

impl From<&GrantDelta> for GrantRecord {
    fn from(delta: &GrantDelta) -> GrantRecord {
        let (family, internal) = match delta.host.map(|host| host.inner) {
            None => (IPV4, delta.internal.address.to_bits()),
            Some(None) => (NAT64, 0),
            Some(Some(inner)) => (SOFTWIRE, inner.to_bits()),
        };
        let (host, towards) =
            delta.host.map_or_else(Default::default, |host| (host.address.octets(), host.towards.octets()));
        GrantRecord {
            left_us: delta.left.as_micros(),
            requester: delta.requester,
            remotes: delta.remotes,
            internal,
            external: delta.external.address.to_bits(),
            epoch_s: delta.epoch_s,
            internal_port: delta.internal.port,
            external_port: delta.external.port,
            realm: delta.realm.0,
            lives: u8::from(delta.change == Change::Lives),
            protocol: delta.protocol as u8,
            origin: delta.origin.number(),
            kind: delta.kind as u8,
            family,
            unused: [0; 5],
            host,
            towards,
        }
    }
}
