//! The short way of IPv6 hosts decides like the general way, also beside IPv4 hosts.

use core::net::Ipv4Addr;

use translate::Limits as HopLimits;
use translate::Prefix as Prefix6;
use translate::Tuple6;
use wire::build6;
use wire::ipv6::Ipv6;

use super::*;
use crate::settings::Address6;
use crate::settings::Nat64;
use crate::settings::Softwire;
use crate::settings::Transition;

const ROOM: usize = 64;
const HOST: u128 = 0x2001_0db8_0064_0000 << 64;
const B4: u128 = 0x2001_0db8_00b4_0000 << 64;
const AFTR: u128 = 0xfd00 << 112 | 0xaf;
const OWN: u128 = 0xfd00 << 112 | 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Ipv4,
    Nat64,
    Softwire,
}

const fn family_of(flow: u8) -> Family {
    match flow {
        0 | 3 => Family::Nat64,
        1 => Family::Softwire,
        _ => Family::Ipv4,
    }
}

fn with_hosts() -> Settings {
    let mut settings = settings();
    let realm = RealmId::default();
    let own = Address6 { interface: InterfaceId(0), address: OWN.into(), prefix_length: 64 };
    settings.ipv6.addresses = vec![own];
    settings.transition = Transition {
        nat64: vec![Nat64 { prefix: Prefix6::WELL_KNOWN, realm, lowest_mtu6: 1_280 }],
        softwires: vec![Softwire {
            aftr: AFTR.into(),
            realm,
            inner: vec![Prefix::new(Ipv4Addr::new(100, 64, 0, 0), 16).expect("a prefix")],
            subscribers: Vec::new(),
        }],
        hosts_max: 100,
        ..Transition::default()
    };
    settings.pools[0].subscribers.push(Transition::HOSTS);
    settings
}

/// As its host sends it, after `ROOM` bytes. `class` marks the outer header.
fn from_host(flow: u8, class: u8, packet: Vec<u8>) -> Option<Vec<u8>> {
    let mut frame = vec![0; ROOM];
    let start = match family_of(flow) {
        Family::Ipv4 => {
            frame.extend(packet);
            return Some(frame);
        }
        Family::Softwire => {
            frame.extend(build6::raw(B4.into(), AFTR.into(), 4, &packet));
            ROOM
        }
        Family::Nat64 => {
            frame.extend(&packet);
            let headers = translate::read4(&packet).ok()?;
            let destination = Prefix6::WELL_KNOWN.embed(headers.destination);
            let new = Tuple6 { source: HOST | u128::from(flow), destination, ports: None };
            let limits = HopLimits { is_hop: false, ..HopLimits::default() };
            let written = translate::to_ipv6(&mut frame, ROOM, &headers, &new, None, &limits).ok()?;
            written.start
        }
    };
    Ipv6::new_unchecked(&mut frame[start..]).set_class_and_label(class, 0);
    let mut padded = vec![0; ROOM - start];
    padded.append(&mut frame);
    Some(padded)
}

#[derive(Debug, PartialEq)]
struct Left {
    /// Without its identification.
    packet: Vec<u8>,
    outcome: Outcome,
    verdict: Option<Verdict>,
}

fn process(side: &mut Side2, now: Instant, packets: &[(PacketMeta, Vec<u8>)]) -> (Vec<Left>, Vec<[u8; 2]>) {
    let mut buffers: Vec<Vec<u8>> = packets.iter().map(|(_, bytes)| bytes.clone()).collect();
    let mut burst: Vec<Packet<'_>> =
        buffers.iter_mut().zip(packets).map(|(bytes, (meta, _))| Packet::in_frame(bytes, ROOM as u16, *meta)).collect();
    side.shard.process(now, &mut burst, &mut side.caught);
    side.shard.maintain(now, &mut side.caught);
    let ends: Vec<_> = burst.iter().map(|packet| (packet.outcome, packet.verdict)).collect();
    drop(burst);
    let mut identifications = Vec::new();
    let left = buffers.into_iter().zip(ends).map(|(bytes, (outcome, verdict))| {
        let Outcome::Transmit { start, length, .. } = outcome else {
            return Left { packet: Vec::new(), outcome, verdict };
        };
        let mut packet = bytes[usize::from(start)..usize::from(start) + usize::from(length)].to_vec();
        if packet[0] >> 4 == 4 && packet[6] & 0x3f == 0 && packet[7] == 0 {
            assert_eq!(verify::faults(&packet), [], "every whole packet that leaves is sound");
        }
        if packet[0] >> 4 == 4 && verdict == Some(Verdict::Outbound) {
            identifications.push([packet[4], packet[5]]);
            packet[4..6].fill(0);
            packet[10..12].fill(0);
        }
        Left { packet, outcome, verdict }
    });
    let left = left.collect();
    identifications.sort_unstable();
    (left, identifications)
}

fn compare_hosts(settings: &Settings, bursts: &[Vec<(Spec, u8)>]) -> u64 {
    let (mut short, mut long) = (Side2::new(settings, false), Side2::new(settings, true));
    let mut now = Instant::ORIGIN;
    let mut external: [Option<SocketAddrV4>; 8] = [None; 8];
    for specs in bursts {
        let (mut keys, mut packets) = (Vec::new(), Vec::new());
        for (spec, class) in specs {
            if spec.pause > 0 {
                now = now + Duration::from_millis(1 << spec.pause);
            }
            let Some(packet) = spec.packet(external[spec.key()]) else { continue };
            let framed = match spec.inside {
                true => from_host(spec.flow, *class, packet),
                false => Some([&[0; ROOM], packet.as_slice()].concat()),
            };
            let Some(framed) = framed else { continue };
            keys.push((spec.inside, spec.key()));
            let ingress = InterfaceId(if spec.inside { Side::Inside } else { Side::Outside } as u16);
            packets.push((PacketMeta { ingress, ..PacketMeta::default() }, framed));
        }
        let (left, right) = (process(&mut short, now, &packets), process(&mut long, now, &packets));
        for ((left, right), (_, sent)) in left.0.iter().zip(&right.0).zip(&packets) {
            assert_eq!(left, right, "of {:02x?}", &sent[ROOM..]);
        }
        assert_eq!(left.1, right.1, "the same identifications, perhaps in another order");
        assert_eq!(short.caught, long.caught);
        let (ours, theirs) = (short.state(now), long.state(now));
        assert_eq!(format!("{:?}", ours.0), format!("{:?}", theirs.0));
        assert_eq!(ours.1, theirs.1);
        for ((inside, key), Left { packet, verdict, .. }) in keys.into_iter().zip(&left.0) {
            if inside && *verdict == Some(Verdict::Outbound) && packet.starts_with(&[0x45]) && packet[7] == 0 {
                let port = u16::from_be_bytes([packet[20], packet[21]]);
                external[key] = Some(build::endpoint([packet[12], packet[13], packet[14], packet[15]], port));
            }
        }
    }
    short.shard.path.short_ways
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(runs(96)))]

    #[test]
    fn the_ways_of_hosts_decide_alike(
        bursts in prop::collection::vec(prop::collection::vec((spec(), any::<u8>()), 1..24), 1..24),
        inbound_refresh in any::<bool>(), two_states in any::<bool>(), own_timer in any::<bool>(),
    ) {
        let mut settings = Settings { inbound_refresh, ..with_hosts() };
        if two_states {
            settings.timeouts.udp_unanswered = Duration::from_secs(40);
        }
        if own_timer {
            settings.port_timeouts = [Protocol::Udp, Protocol::Tcp]
                .map(|protocol| PortTimeout { protocol, ports: 81..=90, idle: Duration::from_secs(20) })
                .to_vec();
        }
        compare_hosts(&settings, &bursts);
    }
}

/// Otherwise the comparison shows nothing.
#[test]
fn usual_packets_of_hosts_take_the_short_way() {
    for flow in 0..4 {
        let usual = |inside, tcp, flags| {
            let spec = Spec {
                inside,
                tcp,
                flow,
                remote: 1,
                flags,
                payload: 20,
                ttl: 64,
                odd: 0,
                sequence: 100,
                pause: 0,
                record: 0,
            };
            (spec, 0)
        };
        let mut bursts = vec![
            vec![usual(true, true, 0x02), usual(true, false, 0)],
            vec![usual(false, true, 0x12), usual(false, false, 0)],
        ];
        for _ in 0..10 {
            bursts.push(vec![usual(true, true, 0x10), usual(true, false, 0)]);
            bursts.push(vec![usual(false, true, 0x10), usual(false, false, 0)]);
        }
        assert_eq!(compare_hosts(&with_hosts(), &bursts), 40 + 2, "of flow {flow}");
    }
}
