//! The short ways of softwires do what the long ways do.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::sync::Arc;

use proptest::prelude::*;
use wire::build;
use wire::build6;
use wire::tcp::Flags;

use super::ROOM;
use super::arrive::Incoming;
use super::arrive::Places;
use super::depart::Ready;
use super::usual::write_pending;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::replace_address;
use crate::settings::Address6;
use crate::settings::Limits;
use crate::settings::Settings;
use crate::settings::Softwire;
use crate::settings::Transition;
use crate::shard::Shard;
use crate::snapshot::shared::Shared;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::time::Instant;
use crate::types::InterfaceId;
use crate::types::Prefix;
use crate::types::RealmId;
use crate::types::WorkerId;

const B4: u128 = 0x2001_0db8_000c_0100_0000_0000_0000_00b4;
const AFTR: u128 = 0x2001_0db8_0001_0000_0000_0000_0000_aaaa;
const HOME: [u8; 4] = [192, 168, 1, 2];

/// Nothing else may leave.
struct Nowhere;

impl Sink for Nowhere {
    fn transmit(&mut self, _: super::Egress, parts: &[&[u8]]) -> bool {
        panic!("an own packet left: {parts:02x?}")
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        panic!("one worker hands nothing off")
    }
}

fn shard() -> Shard {
    let mut settings: Settings = crate::shard::tests::settings();
    let own = Address6 { interface: InterfaceId(0), address: (AFTR ^ 1).into(), prefix_length: 64 };
    settings.ipv6.addresses = vec![own];
    settings.transition = Transition {
        softwires: vec![Softwire {
            aftr: AFTR.into(),
            realm: RealmId::default(),
            inner: vec![Prefix::new(Ipv4Addr::new(192, 168, 0, 0), 16).expect("a prefix")],
            subscribers: Vec::new(),
        }],
        hosts_max: 100,
        ..Transition::default()
    };
    settings.pools[0].subscribers.push(Transition::HOSTS);
    settings.limits = Limits { mappings_max: 8, extra_sessions_max: 8, subscribers_max: 8, ..settings.limits };
    settings.limits.held_ports_max = 8;
    settings.limits.fragments_held_max = 2;
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices")
}

/// Not so short that it takes the long way.
fn inner() -> impl Strategy<Value = Vec<u8>> {
    let ends = (any::<u16>(), any::<[u8; 4]>(), any::<u16>());
    let header = (any::<u8>(), 1..=255_u8, any::<u16>(), 0..4_u8);
    let kinds = (any::<bool>(), any::<u8>(), proptest::collection::vec(any::<u8>(), 12..600));
    (ends, header, kinds).prop_map(|((from, to, port), (ds_field, ttl, identification, flags), kind)| {
        let (source, destination) = (SocketAddrV4::new(HOME.into(), from), SocketAddrV4::new(to.into(), port));
        let builder = match kind.0 {
            true => build::tcp(source, destination, Flags(kind.1)),
            false => build::udp(source, destination),
        };
        let builder = builder.ds_field(ds_field).ttl(ttl).identification(identification).payload(&kind.2);
        let builder = if flags & 1 == 0 { builder } else { builder.dont_fragment() };
        let builder = if flags & 2 == 0 || kind.0 { builder } else { builder.without_checksum() };
        builder.build()
    })
}

proptest! {
    #[test]
    fn packets_leave_a_softwire_the_same_by_both_ways(
        packet in inner(),
        class in any::<u8>(),
        is_copied in any::<bool>(),
    ) {
        let class = if is_copied { packet[1] } else { class };
        let mut shard = shard();
        let now = Instant::from_micros(1_000_000);
        let mut outer = build6::raw(B4.into(), AFTR.into(), 4, &packet);
        (outer[0], outer[1]) = (0x60 | class >> 4, class << 4);
        let frame = [&[0; ROOM], outer.as_slice(), &[0xa5; 7]].concat();
        let mut frames = [frame.clone(), frame];
        let [short, long] = &mut frames;
        let mut short = Packet::in_frame(short, ROOM as u16, PacketMeta::default());
        let mut long = Packet::in_frame(long, ROOM as u16, PacketMeta::default());
        let path = &mut shard.path;
        // A host without a record always takes the long way.
        let key = HostKey { address: B4, inner: u32::from_be_bytes(HOME), way: Way::Softwire(0) };
        let hosts = &mut path.ledger.state.subscribers.hosts;
        prop_assert!(hosts.enter(now, hosts.hash_of(&key), &key, RealmId::default()).is_ok());
        let mut places = Places::default();
        if !path.look_at_plain(&short, RealmId::default(), 0, &mut shard.scratch, &mut places) {
            // The long way takes over another class.
            let has_same_class = (class ^ packet[1]) & 0xfc == 0 && (class & 1 == 0 || class == packet[1]);
            let is_usual = has_same_class && parse(&packet).is_ok_and(|parsed| parsed.destination != AFTR_INSIDE);
            prop_assert!(!is_usual, "the short way leaves a usual packet to the long one");
            return Ok(());
        };
        if parse(&packet).is_err() {
            // The engine refuses it later.
            return Ok(());
        }
        let looked = path.look_at_edge(&mut long).unwrap_or(Incoming::Other);
        let Incoming::Softwire { offset, key, hash: same } = looked else {
            return Err(TestCaseError::fail(format!("the long way sees {looked:?}")));
        };
        prop_assert_eq!(shard.scratch.hosts.plain[0].hash, same);
        prop_assert_eq!((places.nat64, places.softwire), (0, 1));
        shard.scratch.hosts.candidates[0] = path.ledger.state.subscribers.hosts.aim(same);
        shard.scratch.hosts.pending = 1;
        prop_assert!(path.enter_plain_from_softwire(now, &mut short, 0, &mut shard.scratch));
        if shard.scratch.hosts.is_pending(0) {
            write_pending(&mut shard.scratch.hosts, &mut short, 0);
        }
        prop_assert!(path.enter_from_softwire(now, &mut long, offset, (key, same), &mut Nowhere).is_ok());
        let length = packet.len();
        prop_assert_eq!(&short.bytes()[..length], &long.bytes()[..length]);
        prop_assert_eq!((short.start(), short.meta), (long.start(), long.meta));
    }

    #[test]
    fn packets_enter_a_softwire_the_same_by_both_ways(packet in inner(), is_back in any::<bool>()) {
        let mut shard = shard();
        let key = HostKey { address: B4, inner: u32::from_be_bytes(HOME), way: Way::Softwire(0) };
        let hosts = &mut shard.path.ledger.state.subscribers.hosts;
        let number = hosts.enter(Instant::from_micros(1), hosts.hash_of(&key), &key, RealmId::default());
        let number = number.expect("there is room");
        let host = *hosts.get(number).expect("the host is known");
        let mut packet = packet;
        if let Some(header) = packet.first_chunk_mut().filter(|_| is_back) {
            replace_address(header, End::Destination, number.0);
            replace_address(header, End::Source, 0xc633_6401);
        }
        let frame = [&[0; ROOM], packet.as_slice()].concat();
        let (mut short, mut long) = (frame.clone(), frame);
        let place = (ROOM, packet.len());
        let ready = shard.path.prepare_plain(&mut short, place, &host).expect("every packet is usual");
        let other = shard.path.wrap_in_softwire(&mut long, place.0, place.1, (number, &host), 0);
        let Ok(Ready { start, length, split: None }) = other else {
            return Err(TestCaseError::fail("the long way refuses or splits it"));
        };
        prop_assert_eq!((ready.start, ready.length), (start, length));
        prop_assert_eq!(short, long);
    }
}
