//! With all gateways and port control on, other sessions keep their short ways.

use std::net::SocketAddrV4;

use wire::build;
use wire::tcp::Flags;

use super::Side2;
use crate::headers::packet::Outcome;
use crate::headers::packet::PacketMeta;
use crate::settings::Gateway;
use crate::settings::PortControl;
use crate::settings::Settings;
use crate::shard::tests::settings;
use crate::time::Instant;
use crate::types::InterfaceId;
use crate::types::Side;
use crate::verdict::Verdict;

const SUBSCRIBERS: u8 = 8;
const FLOWS: u16 = 6;

fn enabled() -> Settings {
    let gateways = (0..alg::ALGS.len()).map(|id| Gateway::new(alg::AlgId(id as u8))).collect();
    let port_control = PortControl { pcp: true, nat_pmp: true, ..PortControl::default() };
    Settings { gateways, port_control, ..settings() }
}

struct Flow {
    tcp: bool,
    inside: SocketAddrV4,
    remote: SocketAddrV4,
    external: Option<SocketAddrV4>,
}

impl Flow {
    fn packet(&self, side: Side, flags: Flags) -> (PacketMeta, Vec<u8>) {
        let (source, destination) = match side {
            Side::Inside => (self.inside, self.remote),
            Side::Outside => (self.remote, self.external.expect("it is open")),
        };
        let opens = flags == Flags::SYN;
        let builder = if self.tcp {
            build::tcp(source, destination, flags).sequence(1).acknowledgment(u32::from(!opens))
        } else {
            build::udp(source, destination).payload_length(20)
        };
        let meta = PacketMeta { ingress: InterfaceId(side as u16), ..PacketMeta::default() };
        (meta, builder.dont_fragment().build())
    }
}

fn flows() -> Vec<Flow> {
    let flow = |number: u16| Flow {
        tcp: number % 2 == 1,
        inside: build::endpoint([100, 64, 0, 10 + (number % u16::from(SUBSCRIBERS)) as u8], 5_000 + number / 2),
        remote: build::endpoint([198, 51, 100, 1 + (number % 5) as u8], 443),
        external: None,
    };
    (0..u16::from(SUBSCRIBERS) * FLOWS).map(flow).collect()
}

fn send(bed: &mut Side2, flows: &mut [Flow], side: Side, flags: Flags) -> (Vec<Vec<u8>>, u64) {
    let before = bed.shard.path.short_ways;
    let packets: Vec<_> = flows.iter().map(|flow| flow.packet(side, flags)).collect();
    let left = bed.process(Instant::ORIGIN, &packets);
    let verdict = if side == Side::Inside { Verdict::Outbound } else { Verdict::Inbound };
    let mut sent = Vec::new();
    for (flow, (bytes, outcome, seen)) in flows.iter_mut().zip(left) {
        assert_eq!(seen, Some(verdict));
        assert!(matches!(outcome, Outcome::Transmit { .. }), "{outcome:?}");
        if side == Side::Inside && flow.external.is_none() {
            let port = u16::from_be_bytes([bytes[20], bytes[21]]);
            flow.external = Some(build::endpoint([bytes[12], bytes[13], bytes[14], bytes[15]], port));
        }
        sent.push(bytes);
    }
    (sent, bed.shard.path.short_ways - before)
}

fn life(settings: &Settings) -> (Vec<Vec<u8>>, Vec<u64>) {
    let mut bed = Side2::new(settings, false);
    let mut flows = flows();
    let syn_ack = Flags::SYN.union(Flags::ACK);
    let mut steps = vec![(Side::Inside, Flags::SYN), (Side::Outside, syn_ack), (Side::Inside, Flags::ACK)];
    steps.extend([(Side::Inside, Flags::ACK), (Side::Outside, Flags::ACK)].repeat(4));
    let (mut all, mut short) = (Vec::new(), Vec::new());
    for (side, flags) in steps {
        let (sent, count) = send(&mut bed, &mut flows, side, flags);
        all.extend(sent);
        short.push(count);
    }
    (all, short)
}

#[test]
fn other_sessions_keep_their_short_ways_with_all_gateways_on() {
    let (off, on) = (life(&settings()), life(&enabled()));
    assert_eq!(off.1, on.1, "short ways, step by step");
    assert!(off.0 == on.0, "not a byte differs");
    let all = u64::from(SUBSCRIBERS) * u64::from(FLOWS);
    assert_eq!(on.1[3..], [all; 8], "each established packet");
}
