//! What an operator does about each reason to drop packets.

use nat::Verdict;

/// One sentence about what to do if there are many such packets; empty for verdicts that drop
/// nothing.
pub(super) fn remedy(verdict: Verdict) -> &'static str {
    use Verdict::*;
    match verdict {
        LinkUnknownType => {
            "Normal for LLDP, STP, and IPv6 on an interface without an IPv6 address; otherwise look at what the \
             neighbour sends."
        }
        KernelLimited => "Look for a flood at Natrix's own addresses (natrix trace --dropped); filter it upstream.",
        KernelRingFull => "Look for a flood at Natrix's own addresses, or a machine without CPU time for its kernel.",
        LinkTruncated => "Look for a damaged cable or port at the neighbour.",
        LinkUnknownVlan => "Add an interface with this VLAN, or remove it from the neighbour's trunk.",
        LinkOtherDestination => "Normal for flooded frames; many mean that the switch does not know Natrix's address.",
        ArpInvalid => "Compare the addresses and prefix lengths of both ends of the link.",
        NeighbourUnresolved => "Check that the next hop of the route is up and on this subnet.",
        NeighbourQueueFull => "Check that the next hop answers ARP; a short burst after a start is normal.",
        HandOffRingFull => "Add workers or CPUs, or let the card steer flows to their worker (natrix doctor).",
        TransmitFull => "The link is full: add capacity, or check flow control of the neighbour.",
        NoBuffer => "Raise dpdk.buffers; see the memory that natrix run reports at the start.",
        IpMalformed | TransportMalformed | FragmentMalformed => {
            "Trace the packets (natrix trace --dropped) and stop their sender."
        }
        IpBadChecksum | IcmpBadChecksum => {
            "Switch off checksum offload at the other end of a virtual cable; otherwise look for a damaged link."
        }
        SourceInvalid | DestinationInvalid | SourceRoute | FragmentTiny | FragmentOverlap => {
            "Usually an attack or a broken client: find the sender with natrix trace --dropped."
        }
        SourceSpoofed => "Filter spoofed sources at the access network; check that no route loops back.",
        SourceNotSubscriber => "Add the prefix to pool.subscribers, or stop routing it to Natrix.",
        BoundaryAddress => "Do not assign this address, or list it as a /32 in another pool.",
        DestinationNotPool => "Remove the route that sends this destination to Natrix, or add the address to a pool.",
        NoRoute => "Add a [[route]] to the destination.",
        TtlExpired => "Normal for traceroute; many mean a routing loop.",
        TooBig => "Make the MTU of both sides equal, or let the network pass ICMP errors.",
        NoMapping | Filtered | UnsolicitedSyn => "Normal: scans and late packets from the Internet. Nothing to do.",
        HairpinRefused => "Permit traffic between these VRFs, if it is wanted.",
        TcpNoSession => {
            "Normal after a restart and for connections idle beyond their timer (timeouts.tcp_established)."
        }
        ProtocolUnsupported => "Add a rule with action = \"pass\" if subscribers need the protocol.",
        IcmpTypeUnsupported | IcmpQuoteMalformed | IcmpQuoteNoMapping => "Normal in small numbers. Nothing to do.",
        DroppedByRule => "Intended: natrix show rules names the rule.",
        DeniedByFilter => "Intended: natrix show rules names the filter.",
        PortsExhausted => "Add addresses to the pool, lower subscriber.ports, or shorten timeouts.",
        BlockLimit => "Raise blocks_per_subscriber or block_size, if the subscriber is not infected.",
        AddressDraining => "Wait for the end of draining, or add addresses that do not drain.",
        MappingTableFull => "Raise tables.mappings and restart, or limit ports per subscriber.",
        SessionTableFull | SessionLimit => {
            "Raise tables.extra_sessions or the limit of sessions; look for scanning subscribers."
        }
        FlowTableFull => "Raise tables.flows and restart.",
        SubscriberTableFull => "Raise tables.subscribers and restart.",
        SubscriberPortQuota | SubscriberSessionQuota | SubscriberMemoryQuota | SubscriberRateLimit => {
            "natrix show subscribers names who is refused: look for infected hosts before raising the limit."
        }
        LogFull => "Make the log's disk faster or larger, or set log.back_pressure = \"drop\".",
        FragmentTableFull | FragmentBuffersFull => {
            "Usually an attack; raise tables.fragmented_datagrams and tables.fragments_held if clients need it."
        }
        FragmentTimeout | FragmentRefused => {
            "Look at the first fragments: they are lost or dropped for another reason."
        }
        Quarantined => "Report it with the capture that the log names.",
        AlgReordered => "Normal in small numbers: the sender repeats it.",
        Ipv6Malformed => "Capture at the interface and look for the sender; nothing is to be done here.",
        Ipv6NotForwarded => "Remove the route of IPv6 that leads here: Natrix does not forward IPv6.",
        NeighbourInvalid => "Look for a host on this link that forges neighbour messages.",
        SourceInPrefix => "Find the host that sends from a prefix of NAT64: a loop in the routing, or forged packets.",
        EmbeddedPrivate => "Reach private addresses by a prefix of your own instead of 64:ff9b::/96 (RFC 6052).",
        HostLimit => "Look for a scan from this prefix before raising subscriber.ipv6_hosts.",
        HostTableFull => "Raise tables.ipv6_hosts and restart.",
        SoftwireSubscriber => "Add the prefix to softwire.subscribers if it is a customer's.",
        SoftwireSource => "Add the prefix to softwire.inner if subscribers use it inside.",
        Ipv6Header | IcmpUntranslatable => "Normal in small numbers: nothing in the other family has this meaning.",
        EmbeddedAddress => "Look for a client that builds IPv6 addresses of its own (natrix trace --dropped).",
        ChecksumMissing => "Normal in small numbers: IPv6 has no UDP without a checksum.",
        FragmentIcmp => "Normal for pings above the MTU: they cannot be translated (RFC 7915 section 1.2).",
        SoftwireMalformed => "Find the B4 that sends such packets with natrix trace --dropped.",
        ReassemblyFull => "Usually an attack; give the softwires an MTU that needs no fragments.",
        ReassemblyQuota => "Look at this source: forged fragments, or a softwire whose MTU is too small.",
        AlgAckUnsent => "Look for who forges segments of this connection (natrix trace --dropped).",
        AlgFragment => "Lower the MTU of the host, so that its segments need no fragments.",
        AddressNotUsed => {
            "natrix show interfaces marks the address. Duplicate: give it or the other station another one. Tentative: \
             its link must have been up for a second."
        }
        CallFragment => "Lower the MTU of the PPTP clients, so that calls need no fragments.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use nat::verdict::VerdictKind;

    use super::*;

    #[test]
    fn every_drop_has_a_remedy_and_nothing_else() {
        for verdict in Verdict::ALL {
            let dropped = verdict.kind() == VerdictKind::Dropped;
            assert_eq!(!remedy(*verdict).is_empty(), dropped, "{}", verdict.name());
        }
    }

    #[test]
    fn every_table_to_raise_is_a_key_of_the_configuration() {
        let manual = include_str!("../../../../docs/configuration.md");
        let rules = include_str!("../../../../packaging/monitoring/natrix-alerts.yml");
        let in_rules = rules.split("\"table\", \"").skip(1).filter_map(|rest| rest.split('"').next());
        let in_remedies = Verdict::ALL.iter().flat_map(|verdict| remedy(*verdict).split("tables.").skip(1));
        let in_remedies =
            in_remedies.filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).next());
        let keys: Vec<&str> = in_rules.chain(in_remedies).collect();
        assert!(keys.len() > 8 && keys.contains(&"mappings"), "{keys:?}");
        for key in keys {
            assert!(manual.contains(&format!("\n| `{key}` | number, ")), "tables.{key} is no key");
        }
    }
}
