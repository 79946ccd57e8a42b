//! What was used up when a packet was dropped: metrics, SNMP and RESTCONF all count by it.

use control::Resource;
use nat::Verdict;

/// The resource that a packet with this verdict found used up. Every verdict is listed, so that a
/// new one does not compile until it has its place here.
pub(super) const fn resource(verdict: Verdict) -> Option<Resource> {
    use Verdict::*;
    Some(match verdict {
        AddressDraining => Resource::Addresses,
        PortsExhausted => Resource::Ports,
        BlockLimit | SubscriberPortQuota => Resource::SubscriberPorts,
        MappingTableFull => Resource::Mappings,
        SubscriberTableFull => Resource::Subscribers,
        FragmentTableFull | FragmentBuffersFull | ReassemblyFull | ReassemblyQuota => Resource::Fragments,
        SessionTableFull | FlowTableFull | HostTableFull | LogFull | NoBuffer | ProtocolUnsupported => Resource::Other,
        SessionLimit | SubscriberSessionQuota | SubscriberMemoryQuota | SubscriberRateLimit | HostLimit => {
            Resource::SubscriberOther
        }
        // What the machine does not keep up with: queues of packets, which are not for translation.
        NeighbourQueueFull | HandOffRingFull | TransmitFull | KernelLimited | KernelRingFull => return None,
        Outbound | Inbound | Hairpin | Passed | Local | LocalIgnored | LinkUnknownType | LinkTruncated
        | LinkUnknownVlan | LinkOtherDestination | ArpInvalid | NeighbourUnresolved | IpMalformed | IpBadChecksum
        | TransportMalformed | SourceInvalid | SourceSpoofed | SourceNotSubscriber | BoundaryAddress
        | DestinationInvalid | DestinationNotPool | SourceRoute | NoRoute | TtlExpired | TooBig | NoMapping
        | Filtered | HairpinRefused | UnsolicitedSyn | TcpNoSession | IcmpTypeUnsupported | IcmpBadChecksum
        | IcmpQuoteMalformed | IcmpQuoteNoMapping | DroppedByRule | DeniedByFilter | FragmentTiny | FragmentOverlap
        | FragmentMalformed | FragmentTimeout | FragmentRefused | Quarantined | AlgReordered | Ipv6Malformed
        | Ipv6NotForwarded | NeighbourInvalid | CallFragment | Ipv6Header | SourceInPrefix | EmbeddedAddress
        | EmbeddedPrivate | IcmpUntranslatable | ChecksumMissing | FragmentIcmp | SoftwireSource
        | SoftwireMalformed | Reassembled | LocalKernel | SoftwireSubscriber | AlgAckUnsent | AlgFragment
        | AddressNotUsed => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use nat::verdict::VerdictKind;

    use super::*;

    #[test]
    fn only_drops_have_a_resource_and_each_resource_a_drop() {
        for verdict in Verdict::ALL {
            assert!(resource(*verdict).is_none() || verdict.kind() == VerdictKind::Dropped, "{}", verdict.name());
        }
        for wanted in Resource::ALL {
            assert!(Verdict::ALL.iter().any(|verdict| resource(*verdict) == Some(*wanted)), "{wanted}");
        }
    }

    #[test]
    fn the_manual_of_snmp_names_the_drops_of_each_counter() {
        let manual = include_str!("../../../../docs/snmp.md");
        for (object, wanted) in [
            ("natv2InstancePortMapEntryLimitDrops", &[Resource::Mappings][..]),
            ("natv2InstanceSubscriberActiveLimitDrops", &[Resource::Subscribers]),
            ("natv2InstanceAddressMapFailureDrops", &[Resource::Addresses]),
            ("natv2InstancePortMapFailureDrops", &[Resource::Ports, Resource::SubscriberPorts]),
            ("natv2InstanceFragmentDrops", &[Resource::Fragments]),
            ("natv2InstanceOtherResourceFailureDrops", &[Resource::Other, Resource::SubscriberOther]),
        ] {
            let row = manual.lines().find(|line| line.starts_with(&format!("| {object} |"))).expect(object);
            let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
            for verdict in Verdict::ALL {
                let counts = resource(*verdict).is_some_and(|resource| wanted.contains(&resource));
                assert_eq!(named.contains(&verdict.name()), counts, "{object}: {}", verdict.name());
            }
        }
    }
}
