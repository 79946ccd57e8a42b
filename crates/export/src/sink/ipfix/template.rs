//! Templates: which fields a record has, in which order. They never change, so that a collector
//! that knows them from an earlier message reads every later one.

use crate::subscriber::Subscriber;

/// Information elements of IANA's registry that Natrix sends, with their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Field {
    Protocol = 4,
    SourcePort = 7,
    SourceAddress = 8,
    DestinationPort = 11,
    DestinationAddress = 12,
    SourceAddress6 = 27,
    SourcePrefixLength6 = 29,
    PostNatSourceAddress = 225,
    PostNatDestinationAddress = 226,
    PostNaptSourcePort = 227,
    PostNaptDestinationPort = 228,
    NatEvent = 230,
    IngressVrf = 234,
    NatPool = 283,
    ObservationTimeMs = 323,
    PortRangeStart = 361,
    PortRangeEnd = 362,
    PortRangePorts = 364,
    NatInstance = 463,
    InternalRealm = 464,
    QuotaExceededEvent = 466,
    ThresholdEvent = 467,
    MaxSessionEntries = 471,
    MaxBibEntries = 472,
    MaxEntriesPerUser = 473,
    MaxSubscribers = 474,
    MaxFragmentsPending = 475,
    AddressPoolHigh = 476,
    AddressPoolLow = 477,
    AddressPortMappingHigh = 478,
    AddressPortMappingLow = 479,
    AddressPortMappingPerUserHigh = 480,
}

/// The length of a field that says its own (RFC 7011 §7).
pub(crate) const VARIABLE: u16 = u16::MAX;

impl Field {
    pub(crate) const fn length(self) -> u16 {
        match self {
            Field::Protocol | Field::NatEvent | Field::SourcePrefixLength6 => 1,
            Field::SourceAddress6 => 16,
            Field::SourcePort
            | Field::DestinationPort
            | Field::PostNaptSourcePort
            | Field::PostNaptDestinationPort
            | Field::PortRangeStart
            | Field::PortRangeEnd
            | Field::PortRangePorts => 2,
            Field::ObservationTimeMs => 8,
            Field::InternalRealm => VARIABLE,
            _ => 4,
        }
    }
}

/// A template: its number is [`Template::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Template {
    Session,
    Bib,
    AddressBinding,
    PortBlock,
    AddressesExhausted,
    PortsExhausted,
    SessionQuota,
    BibQuota,
    UserQuota,
    SubscriberQuota,
    PoolHigh,
    PoolLow,
    UserHigh,
    UserLow,
    // Of IPv6 hosts, and of hosts behind a softwire.
    Session6,
    Bib6,
    AddressBinding6,
    PortBlock6,
    UserQuota6,
    UserHigh6,
    UserLow6,
    SessionSoftwire,
    BibSoftwire,
    AddressBindingSoftwire,
    // Both kinds of hosts.
    FragmentQuota,
    FragmentQuota6,
}

impl Template {
    pub(crate) const ALL: [Template; 26] = [
        Template::Session,
        Template::Bib,
        Template::AddressBinding,
        Template::PortBlock,
        Template::AddressesExhausted,
        Template::PortsExhausted,
        Template::SessionQuota,
        Template::BibQuota,
        Template::UserQuota,
        Template::SubscriberQuota,
        Template::PoolHigh,
        Template::PoolLow,
        Template::UserHigh,
        Template::UserLow,
        Template::Session6,
        Template::Bib6,
        Template::AddressBinding6,
        Template::PortBlock6,
        Template::UserQuota6,
        Template::UserHigh6,
        Template::UserLow6,
        Template::SessionSoftwire,
        Template::BibSoftwire,
        Template::AddressBindingSoftwire,
        Template::FragmentQuota,
        Template::FragmentQuota6,
    ];

    /// The template for the same record about this subscriber. The RFC has no field of its own for
    /// softwires: the address of the B4 comes beside the inner one.
    pub(crate) fn for_subscriber(self, subscriber: &Subscriber) -> Template {
        if subscriber.ipv4().is_some() {
            return self;
        }
        match (self, subscriber.inner().is_some()) {
            (Template::Session, true) => Template::SessionSoftwire,
            (Template::Bib, true) => Template::BibSoftwire,
            (Template::AddressBinding, true) => Template::AddressBindingSoftwire,
            (Template::Session, false) => Template::Session6,
            (Template::Bib, false) => Template::Bib6,
            (Template::AddressBinding, false) => Template::AddressBinding6,
            (Template::PortBlock, _) => Template::PortBlock6,
            (Template::UserQuota, _) => Template::UserQuota6,
            (Template::FragmentQuota, _) => Template::FragmentQuota6,
            (Template::UserHigh, _) => Template::UserHigh6,
            (Template::UserLow, _) => Template::UserLow6,
            (other, _) => other,
        }
    }

    /// Numbers below 256 are of other sets (RFC 7011 §3.4.1).
    pub(crate) const fn id(self) -> u16 {
        256 + self as u16
    }

    /// The fields after those that every template begins with.
    pub(crate) const fn fields(self) -> &'static [Field] {
        use Field::*;
        match self {
            Template::Session => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress,
                PostNatSourceAddress,
                Protocol,
                SourcePort,
                PostNaptSourcePort,
                DestinationAddress,
                DestinationPort,
            ],
            Template::Bib => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress,
                PostNatSourceAddress,
                Protocol,
                SourcePort,
                PostNaptSourcePort,
            ],
            Template::AddressBinding => &[IngressVrf, InternalRealm, NatPool, SourceAddress, PostNatSourceAddress],
            Template::PortBlock => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress,
                PostNatSourceAddress,
                PortRangeStart,
                PortRangeEnd,
                PortRangePorts,
            ],
            Template::AddressesExhausted => &[NatPool],
            Template::PortsExhausted => &[NatPool, PostNatSourceAddress, Protocol],
            Template::SessionQuota => &[QuotaExceededEvent, MaxSessionEntries],
            Template::BibQuota => &[QuotaExceededEvent, MaxBibEntries],
            Template::UserQuota => &[IngressVrf, InternalRealm, SourceAddress, QuotaExceededEvent, MaxEntriesPerUser],
            Template::SubscriberQuota => &[QuotaExceededEvent, MaxSubscribers],
            Template::FragmentQuota => {
                &[IngressVrf, InternalRealm, SourceAddress, QuotaExceededEvent, MaxFragmentsPending]
            }
            Template::FragmentQuota6 => {
                &[IngressVrf, InternalRealm, SourceAddress6, QuotaExceededEvent, MaxFragmentsPending]
            }
            Template::PoolHigh => &[NatPool, ThresholdEvent, AddressPoolHigh],
            Template::PoolLow => &[NatPool, ThresholdEvent, AddressPoolLow],
            Template::UserHigh => &[
                IngressVrf,
                InternalRealm,
                SourceAddress,
                ThresholdEvent,
                AddressPortMappingHigh,
                AddressPortMappingPerUserHigh,
            ],
            Template::Session6 => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress6,
                PostNatSourceAddress,
                Protocol,
                SourcePort,
                PostNaptSourcePort,
                PostNatDestinationAddress,
                PostNaptDestinationPort,
            ],
            Template::Bib6 => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress6,
                PostNatSourceAddress,
                Protocol,
                SourcePort,
                PostNaptSourcePort,
            ],
            Template::AddressBinding6 => &[IngressVrf, InternalRealm, NatPool, SourceAddress6, PostNatSourceAddress],
            Template::PortBlock6 => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress6,
                SourcePrefixLength6,
                PostNatSourceAddress,
                PortRangeStart,
                PortRangeEnd,
                PortRangePorts,
            ],
            Template::UserQuota6 => {
                &[IngressVrf, InternalRealm, SourceAddress6, SourcePrefixLength6, QuotaExceededEvent, MaxEntriesPerUser]
            }
            Template::UserHigh6 => &[
                IngressVrf,
                InternalRealm,
                SourceAddress6,
                SourcePrefixLength6,
                ThresholdEvent,
                AddressPortMappingHigh,
                AddressPortMappingPerUserHigh,
            ],
            Template::UserLow6 => {
                &[IngressVrf, InternalRealm, SourceAddress6, SourcePrefixLength6, ThresholdEvent, AddressPortMappingLow]
            }
            Template::SessionSoftwire => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress6,
                SourceAddress,
                PostNatSourceAddress,
                Protocol,
                SourcePort,
                PostNaptSourcePort,
                DestinationAddress,
                DestinationPort,
            ],
            Template::BibSoftwire => &[
                IngressVrf,
                InternalRealm,
                NatPool,
                SourceAddress6,
                SourceAddress,
                PostNatSourceAddress,
                Protocol,
                SourcePort,
                PostNaptSourcePort,
            ],
            Template::AddressBindingSoftwire => {
                &[IngressVrf, InternalRealm, NatPool, SourceAddress6, SourceAddress, PostNatSourceAddress]
            }
            Template::UserLow => &[IngressVrf, InternalRealm, SourceAddress, ThresholdEvent, AddressPortMappingLow],
        }
    }

    /// All fields, in order.
    pub(crate) fn all_fields(self) -> impl Iterator<Item = Field> {
        [Field::ObservationTimeMs, Field::NatEvent, Field::NatInstance].into_iter().chain(self.fields().iter().copied())
    }
}

/// Appends a set of the first of these templates (RFC 7011 §3.4.1), as many as a message of
/// `message_max` bytes has room for, and at least one. Returns the others.
pub(crate) fn put_templates<'a>(templates: &'a [Template], message_max: usize, out: &mut Vec<u8>) -> &'a [Template] {
    let start = out.len();
    out.extend_from_slice(&2_u16.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    let mut left = templates;
    while let Some((template, others)) = left.split_first() {
        let bytes = 4 + 4 * template.all_fields().count();
        if left.len() < templates.len() && out.len() + bytes > message_max {
            break;
        }
        left = others;
        out.extend_from_slice(&template.id().to_be_bytes());
        out.extend_from_slice(&(template.all_fields().count() as u16).to_be_bytes());
        for field in template.all_fields() {
            out.extend_from_slice(&(field as u16).to_be_bytes());
            out.extend_from_slice(&field.length().to_be_bytes());
        }
    }
    let length = (out.len() - start) as u16;
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
    left
}
