//! RFC 6052, and addresses that are refused.

use translate::Halves;
use translate::Prefix;
use translate::PrefixFault;
use translate::Reason;

use crate::support::*;

fn prefix(text: &str, length: u8) -> Prefix {
    Prefix::new(bits(text), length).expect("a prefix")
}

#[test]
fn the_vectors_of_rfc_6052_hold_both_ways() {
    let address = v4("192.0.2.33").to_bits();
    for (start, length, expected) in [
        ("2001:db8::", 32, "2001:db8:c000:221::"),
        ("2001:db8:100::", 40, "2001:db8:1c0:2:21::"),
        ("2001:db8:122::", 48, "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::", 56, "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::", 64, "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::", 96, "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::", 96, "64:ff9b::192.0.2.33"),
    ] {
        let prefix = prefix(start, length);
        assert_eq!(prefix.embed(address), bits(expected), "/{length}");
        assert_eq!(prefix.destination(bits(expected)), Ok(address), "/{length}");
        assert_eq!(prefix.extract(bits(expected) | if length == 96 { 0 } else { 0xff }), address, "the suffix");
        for address in [0, u32::MAX, 0x8000_0001, 0x0102_0304] {
            assert_eq!(prefix.extract(prefix.embed(address)), address);
            assert_eq!(prefix.embed(address) >> 56 & 0xff, 0, "the u octet");
        }
    }
}

#[test]
fn invalid_prefixes_are_refused() {
    for length in 0..=128 {
        let result = Prefix::new(bits("2001:db8::"), length);
        assert_eq!(result.is_ok(), matches!(length, 32 | 40 | 48 | 56 | 64 | 96), "/{length}");
    }
    assert_eq!(Prefix::new(bits("2001:db8::1"), 96), Err(PrefixFault::HostBits));
    assert_eq!(Prefix::new(bits("2001:db8:1::"), 32), Err(PrefixFault::HostBits));
    assert_eq!(Prefix::new(bits("2001:db8:0:0:100::"), 96), Err(PrefixFault::UOctet));
    for text in ["::", "::ffff:0:0", "ff02::", "fe80::"] {
        assert_eq!(Prefix::new(bits(text), 96), Err(PrefixFault::NotUnicast), "{text}");
    }
    assert!(Prefix::new(bits("64:ff9b:1::"), 48).is_ok(), "RFC 8215");
}

#[test]
fn destinations_that_lead_nowhere_are_named() {
    let own = prefix("2001:db8:64::", 96);
    for (address, through_own, through_well_known) in [
        ("0.0.0.0", Some(Reason::EmbeddedUnspecified), Some(Reason::EmbeddedUnspecified)),
        ("127.0.0.1", Some(Reason::EmbeddedLoopback), Some(Reason::EmbeddedLoopback)),
        ("169.254.1.1", Some(Reason::EmbeddedLinkLocal), Some(Reason::EmbeddedLinkLocal)),
        ("224.0.0.1", Some(Reason::EmbeddedMulticast), Some(Reason::EmbeddedMulticast)),
        ("239.255.255.255", Some(Reason::EmbeddedMulticast), Some(Reason::EmbeddedMulticast)),
        ("240.0.0.1", Some(Reason::EmbeddedReserved), Some(Reason::EmbeddedReserved)),
        ("255.255.255.255", Some(Reason::EmbeddedReserved), Some(Reason::EmbeddedReserved)),
        ("10.0.0.1", None, Some(Reason::EmbeddedPrivate)),
        ("172.31.255.255", None, Some(Reason::EmbeddedPrivate)),
        ("192.168.1.1", None, Some(Reason::EmbeddedPrivate)),
        ("100.64.0.1", None, Some(Reason::EmbeddedPrivate)),
        ("192.0.0.1", None, Some(Reason::EmbeddedPrivate)),
        ("172.32.0.1", None, None),
        ("192.0.2.33", None, None),
    ] {
        let bits = v4(address).to_bits();
        for (prefix, reason) in [(own, through_own), (Prefix::WELL_KNOWN, through_well_known)] {
            let expected = reason.map_or(Ok(bits), Err);
            assert_eq!(prefix.destination(prefix.embed(bits)), expected, "{address}");
        }
    }
    assert_eq!(own.destination(bits("2001:db8:65::1")), Err(Reason::DestinationOutsidePrefix));
    let short = prefix("2001:db8::", 32);
    let with_octet = short.embed(v4("192.0.2.33").to_bits()) | 1 << 56;
    assert_eq!(short.destination(with_octet), Err(Reason::EmbeddedUOctet));
}

/// RFC 6890, RFC 6052 §3.1: by ranges, and in each of them its first and last address.
#[test]
fn no_other_destinations_are_refused() {
    let refused = |ranges: &[(&str, &str)], address: u32| {
        ranges.iter().any(|(first, last)| (v4(first).to_bits()..=v4(last).to_bits()).contains(&address))
    };
    let unreachable = [
        ("0.0.0.0", "0.255.255.255"),
        ("127.0.0.0", "127.255.255.255"),
        ("169.254.0.0", "169.254.255.255"),
        ("224.0.0.0", "255.255.255.255"),
    ];
    let private = [
        ("10.0.0.0", "10.255.255.255"),
        ("100.64.0.0", "100.127.255.255"),
        ("172.16.0.0", "172.31.255.255"),
        ("192.0.0.0", "192.0.0.255"),
        ("192.168.0.0", "192.168.255.255"),
    ];
    let (own, short) = (prefix("2001:db8:64::", 96), prefix("2001:db8::", 40));
    for network in 0..1 << 16 {
        for address in [network << 16, network << 16 | 0xff, network << 16 | 0x100, network << 16 | 0xffff] {
            let is_unreachable = refused(&unreachable, address);
            let is_private = refused(&private, address);
            let well_known = Prefix::WELL_KNOWN;
            for (prefix, is_refused) in
                [(own, is_unreachable), (short, is_unreachable), (well_known, is_unreachable || is_private)]
            {
                let destination = prefix.destination(prefix.embed(address)).ok();
                assert_eq!(destination, (!is_refused).then_some(address), "{address:#010x}");
                let within = |address| prefix.destination_within(Halves::of(address));
                assert_eq!(within(prefix.embed(address)), destination, "{address:#010x}");
                let with_octet = prefix.embed(address) | 1 << 56;
                // Of a long prefix it is a part.
                assert_eq!(prefix.contains(with_octet), prefix.length() != 96);
                assert!(prefix.length() == 96 || within(with_octet).is_none(), "the u octet");
                assert_eq!(prefix.embed_octets(address.to_be_bytes()), Halves::of(prefix.embed(address)));
            }
        }
    }
}

#[test]
fn invalid_sources_are_named() {
    for (source, reason) in [
        ("::", Reason::SourceUnspecified),
        ("::1", Reason::SourceLoopback),
        ("::192.0.2.1", Reason::SourceMapped),
        ("::ffff:192.0.2.1", Reason::SourceMapped),
        ("ff02::1", Reason::SourceMulticast),
        ("fe80::1", Reason::SourceLinkLocal),
        ("64:ff9b::203.0.113.1", Reason::SourceInPrefix),
    ] {
        assert_eq!(translate::check_source6(bits(source), Prefix::WELL_KNOWN), Err(reason), "{source}");
    }
    assert_eq!(translate::check_source6(bits("2001:db8::1"), Prefix::WELL_KNOWN), Ok(()));
    assert_eq!(translate::check_source6(bits("fd00::1"), Prefix::WELL_KNOWN), Ok(()));
    for source in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "169.254.0.1"] {
        assert_eq!(translate::check_source4(v4(source).to_bits()), Err(Reason::Source4Illegal), "{source}");
    }
    assert_eq!(translate::check_source4(v4("10.0.0.1").to_bits()), Ok(()));
}
