//! Messages of PCP: what is parsed comes back, whatever the bytes.

use pcp::Body;
use pcp::Code;
use pcp::Map;
use pcp::Options;
use pcp::Refused;
use pcp::Reply;
use proptest::prelude::any;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;

fn map_request(lifetime: u32, map: &Map, options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 1, 0, 0];
    bytes.extend(lifetime.to_be_bytes());
    bytes.extend(pcp::mapped(0x6440_000a));
    bytes.extend(map.nonce);
    bytes.extend([map.protocol, 0, 0, 0]);
    bytes.extend(map.internal_port.to_be_bytes());
    bytes.extend(map.external_port.to_be_bytes());
    bytes.extend(map.external_address);
    bytes.extend(options);
    bytes
}

#[test]
fn an_address_is_mapped_and_unmapped() {
    assert_eq!(pcp::unmapped(&pcp::mapped(0xcb00_7101)), Some(0xcb00_7101));
    assert_eq!(pcp::unmapped(&[0; 16]), Some(0));
    assert_eq!(pcp::unmapped(&[0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), None);
}

#[test]
fn options_out_of_place_are_malformed() {
    let announce = [2, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(pcp::mapped(1)).chain([2, 0, 0, 0]).collect::<Vec<_>>();
    let request = pcp::parse(&announce).expect("an announcement");
    assert_eq!(pcp::parse_options(&request), Err(Code::MalformedOption));
}

proptest! {
    #[test]
    fn a_request_is_parsed_as_it_was_written(
        nonce in any::<[u8; 12]>(),
        (protocol, lifetime) in any::<(u8, u32)>(),
        (internal_port, external_port) in any::<(u16, u16)>(),
        external_address in any::<[u8; 16]>(),
    ) {
        let map = Map { nonce, protocol, internal_port, external_port, external_address };
        let bytes = map_request(lifetime, &map, &[2, 0, 0, 0]);
        let request = pcp::parse(&bytes).expect("a request");
        prop_assert_eq!((request.body, request.lifetime), (Body::Map(map), lifetime));
        let options = pcp::parse_options(&request).expect("sound options");
        prop_assert!(options.prefer_failure && options.filters().is_empty());
        let reply = Reply::success(&request, 9, 8, Some((7, 6)), &options, None).expect("it fits");
        prop_assert_eq!(&reply.as_bytes()[..12], &[2, 0x81, 0, 0, 0, 0, 0, 9, 0, 0, 0, 8]);
        prop_assert_eq!(&reply.as_bytes()[24..42], &bytes[24..42]);
        prop_assert_eq!(reply.as_bytes().len(), bytes.len());
    }

    #[test]
    fn any_bytes_are_answered_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..1_300)) {
        match pcp::parse(&bytes) {
            Ok(request) => {
                let _ = pcp::parse_options(&request);
            }
            Err(Refused::Error(code)) => {
                let reply = pcp::error(&bytes, code, code.lifetime(), 1);
                let length = reply.as_bytes().len();
                prop_assert!(length <= bytes.len().clamp(60, pcp::MESSAGE_MAX), "{} to {}", length, bytes.len());
                prop_assert!(length >= 24 && length.is_multiple_of(4));
                prop_assert_eq!(reply.as_bytes()[3], code as u8);
            }
            Err(Refused::Ignored) => {}
        }
        let _ = pcp::nat_pmp::parse(&bytes);
    }
}

#[test]
fn an_update_is_a_reply_of_its_own() {
    let map =
        Map { nonce: [5; 12], protocol: 6, internal_port: 80, external_port: 8_080, external_address: pcp::mapped(7) };
    let update = pcp::map_update(600, 3, &map, &Options::default()).expect("it fits");
    let bytes = update.as_bytes();
    assert_eq!((bytes.len(), &bytes[..12]), (60, [2, 0x81, 0, 0, 0, 0, 2, 88, 0, 0, 0, 3].as_slice()));
    assert_eq!(&map_request(0, &map, &[])[24..], &bytes[24..]);
}
