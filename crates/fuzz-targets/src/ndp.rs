//! Claims about neighbour discovery: own addresses, what is believed of others, and the cache.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use daemon::ipv6::Node;
use daemon::ipv6::OwnAddresses;
use daemon::ipv6::node::Outcome6;
use daemon::neighbour::Action;
use daemon::neighbour::NeighbourLimits;
use daemon::neighbour::Neighbours;
use nat::Duration;
use nat::Instant;
use nat::Verdict;
use nat::own_icmp6;
use nat::types::InterfaceId;
use testkit::bed6::OWN6;
use testkit::bed6::settings6;
use testkit::bed6::v6;
use testkit::topology;
use wire::build6;
use wire::ethernet::MacAddress;
use wire::icmp6;
use wire::ipv6;
use wire::ipv6::Ipv6;
use wire::neighbour::Kind;
use wire::neighbour::LENGTH_MAX;
use wire::neighbour::Message;

use crate::dice::Dice;

/// Steps of an input at most, so that each input takes milliseconds.
const STEPS_MAX: usize = 300;
/// Milliseconds.
const PAUSES: [u64; 8] = [0, 1, 100, 999, 1_000, 3_000, 60_000, 180_000];

const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const SENDERS: [MacAddress; 8] = [
    MacAddress([2, 0, 0, 0, 0, 7]),
    MacAddress([2, 0, 0, 0, 0, 8]),
    MacAddress([2, 0, 0, 0, 0, 7]),
    MacAddress([2, 0, 0, 0, 0, 9]),
    STATION,
    MacAddress::BROADCAST,
    MacAddress([0x33, 0x33, 0, 0, 0, 1]),
    MacAddress::ZERO,
];
/// Addresses of the link and of others, beside own ones and their groups.
const OTHERS: [&str; 11] = [
    "2001:db8:1::7",
    "2001:db8:1::8",
    "2001:db8:1::9",
    "fe80::7",
    "2001:db8:77::1",
    "64:ff9b::c000:20a",
    "::",
    "::1",
    "ff02::1",
    "ff02::2",
    "ff02::1:ff00:7",
];
const LIMITS: NeighbourLimits =
    NeighbourLimits { neighbours_max: 6, unresolved_max: 3, waiting_per_neighbour_max: 2, waiting_max: 4 };

struct Run {
    node: Node,
    cache: Neighbours<u32, u128>,
    now: Instant,
    addresses: Vec<u128>,
    own: Vec<u128>,
    /// Own addresses whose announcement was due, and those that were given up.
    announced: HashSet<u128>,
    given_up: HashSet<u128>,
    /// What the cache believes, by address.
    believed: HashMap<u128, MacAddress>,
    waiting: HashSet<u32>,
    serial: u32,
}

/// Only whole and right neighbour messages of the link have an effect. An own address is announced
/// and defended only while no other station has it, no other station gets it, and nothing else is
/// believed than what the last message that may say so has said. Each packet that waits comes back
/// once. The first byte says whether the addresses are in use at the start.
pub fn ndp(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let link_local = ipv6::link_local_of(STATION.0);
    let own = vec![v6(OWN6), link_local];
    let groups = own.iter().map(|address| ipv6::solicited_node(*address));
    let addresses = own.iter().copied().chain(groups).chain(OTHERS.iter().map(|other| v6(other))).collect();
    let addresses_of_node = OwnAddresses::new(&settings6(), |_| Some(STATION), |_| true);
    let mut run = Run {
        node: Node::new(&settings6(), None, &Arc::new(addresses_of_node), |_| true, 0x5eed),
        cache: Neighbours::new(LIMITS, 0x5eed),
        now: Instant::ORIGIN,
        addresses,
        own,
        announced: HashSet::new(),
        given_up: HashSet::new(),
        believed: HashMap::new(),
        waiting: HashSet::new(),
        serial: 0,
    };
    if dice.byte() & 1 == 0 {
        run.advance();
        run.now = run.now + Duration::from_secs(2);
        run.advance();
    }
    for _ in 0..STEPS_MAX {
        if dice.is_empty() {
            break;
        }
        run.step(&mut dice);
    }
    run.end();
}

impl Run {
    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.byte() % 8 {
            0..=2 => {
                let packet = self.message(dice);
                self.take(dice, &packet);
            }
            3 => {
                let (source, destination) = (dice.pick(&self.addresses), dice.pick(&self.addresses));
                let packet = build6::echo_request(source.into(), destination.into(), 7, b"ping");
                self.take(dice, &packet);
            }
            4 => {
                let (source, destination) = (dice.pick(&self.addresses), dice.pick(&self.addresses));
                let (next_header, length) = (dice.byte(), usize::from(dice.byte()));
                let packet = build6::raw(source.into(), destination.into(), next_header, dice.bytes(length));
                self.take(dice, &packet);
            }
            5 => self.ask(dice),
            6 => {
                self.now = self.now + Duration::from_millis(dice.pick(&PAUSES));
                self.advance();
            }
            _ => self.act(usize::from(dice.byte())),
        }
        assert_eq!(self.cache.waiting_count() as usize, self.waiting.len());
    }

    /// A neighbour message, changed at one place if the dice say so.
    fn message(&self, dice: &mut Dice<'_>) -> Vec<u8> {
        let how = dice.byte();
        let kind = match how & 1 {
            0 => Kind::Solicitation,
            _ => Kind::Advertisement { router: how & 2 != 0, solicited: how & 4 != 0, override_known: how & 8 != 0 },
        };
        let message = Message {
            kind,
            source: dice.pick(&self.addresses),
            destination: dice.pick(&self.addresses),
            target: dice.pick(&self.addresses),
            station: (how & 16 == 0).then(|| dice.pick(&SENDERS)),
        };
        let mut packet = [0; LENGTH_MAX];
        let length = message.write(&mut packet);
        let mut packet = packet[..length].to_vec();
        if how & 32 != 0 {
            let at = usize::from(dice.byte()) % packet.len();
            packet[at] ^= dice.byte();
            if how & 64 != 0 {
                build6::fill_checksum(&mut packet);
            }
        }
        if how & 128 != 0 {
            packet.truncate(usize::from(dice.byte()));
        }
        packet
    }

    fn take(&mut self, dice: &mut Dice<'_>, packet: &[u8]) {
        let sender = dice.pick(&SENDERS);
        let is_group = dice.byte() & 1 != 0;
        let judgement = self.node.judge(self.now, topology::INSIDE, (STATION, sender), is_group, packet);
        let message = Message::parse(packet);
        if let Some(learnt) = judgement.learnt {
            assert!(message.is_ok() && packet[7] == wire::neighbour::HOP_LIMIT, "{learnt:?} of {packet:02x?}");
            assert!(self.node.is_on_link(topology::INSIDE, learnt.address), "{learnt:?} is not of the link");
            assert!(!self.own.contains(&learnt.address) || self.given_up.contains(&learnt.address), "{learnt:?}");
            match learnt.station {
                Some(station) => {
                    assert!(station.is_unicast() && station != STATION, "{learnt:?}");
                    self.learn(learnt.address, station, learnt.override_known);
                }
                // An answer without a station: what is known stays known.
                None => self.cache.confirm(self.now, topology::INSIDE, learnt.address),
            }
        }
        match judgement.outcome {
            Outcome6::None => {}
            Outcome6::Advertise { reply, station } => {
                assert!(message.is_ok(), "an answer to no message: {packet:02x?}");
                let Ok(message) = message else { return };
                assert_eq!((message.kind, reply.target), (Kind::Solicitation, message.target));
                assert!(self.announced.contains(&reply.target) && !self.given_up.contains(&reply.target), "{reply:?}");
                assert_eq!((reply.source, reply.station), (reply.target, Some(STATION)));
                assert_eq!(station.is_none(), message.source == 0, "to the station that asked, if there is one");
                let mut bytes = [0; LENGTH_MAX];
                let length = reply.write(&mut bytes);
                assert_eq!(Message::parse(&bytes[..length]), Ok(reply));
            }
            Outcome6::Duplicate(address) => {
                assert!(message.is_ok() && self.own.contains(&address) && !self.announced.contains(&address));
                self.node.give_up(topology::INSIDE, address);
                self.given_up.insert(address);
            }
            Outcome6::Claimed(address) => {
                assert!(message.is_ok() && self.announced.contains(&address), "{packet:02x?}");
            }
            Outcome6::Echo { offset } => {
                let view = Ipv6::new_unchecked(packet);
                assert_eq!(packet.get(offset), Some(&icmp6::TYPE_ECHO_REQUEST));
                assert!(self.own.contains(&view.destination()) && view.source() != 0, "{packet:02x?}");
                let is_own = self.own.contains(&view.source()) && !self.given_up.contains(&view.source());
                assert!(!is_own, "an answer to an own address: {packet:02x?}");
            }
            Outcome6::Error(_) => {
                assert!(own_icmp6::may_answer(packet) && !is_group, "{packet:02x?}");
            }
        }
        if sender == STATION {
            assert_eq!(judgement.outcome, Outcome6::None, "an answer to an own packet");
            assert!(judgement.verdict != Verdict::Local, "{packet:02x?}");
        }
    }

    /// As a worker does it (RFC 4861 §7.2.5).
    fn learn(&mut self, address: u128, station: MacAddress, override_known: bool) {
        let known = self.cache.lookup(topology::INSIDE, address);
        if !override_known && known.is_some_and(|known| known != station) {
            return;
        }
        if self.cache.learn(self.now, topology::INSIDE, address, station) {
            self.believed.insert(address, station);
        }
    }

    fn ask(&mut self, dice: &mut Dice<'_>) {
        let (address, source) = (dice.pick(&self.addresses), dice.byte());
        match self.cache.lookup(topology::INSIDE, address) {
            Some(station) => assert_eq!(self.believed.get(&address), Some(&station)),
            None => {
                self.serial += 1;
                let waiting = &mut self.waiting;
                let given_up = |packet: u32| assert!(waiting.remove(&packet), "{packet} comes back twice");
                let to = (topology::INSIDE, address);
                if self.cache.hold(self.now, source.into(), to, self.serial, given_up).is_ok() {
                    self.waiting.insert(self.serial);
                }
            }
        }
    }

    fn act(&mut self, most: usize) {
        for _ in 0..most {
            match self.cache.next_action(self.now) {
                None => break,
                Some(Action::Request { .. }) => {}
                Some(Action::Send { packet, station, .. }) => {
                    assert!(self.believed.values().any(|known| *known == station), "{station} said nothing");
                    assert!(self.waiting.remove(&packet), "{packet} comes back twice");
                }
                Some(Action::Unresolved { packet, .. }) => {
                    assert!(self.waiting.remove(&packet), "{packet} comes back twice");
                }
            }
        }
    }

    /// Probes and announcements that are due.
    fn advance(&mut self) {
        while let Some(due) = self.node.next_due(self.now) {
            assert!(self.own.contains(&due.address) && due.interface == topology::INSIDE, "{due:?}");
            assert!(!self.given_up.contains(&due.address), "{due:?} was given up");
            if !due.is_probe {
                assert!(self.announced.insert(due.address), "{due:?} is announced twice");
            }
        }
        while let Some(report) = self.node.next_report(self.now) {
            assert!(report.source == 0 || self.own.contains(&report.source), "{report:?}");
        }
    }

    fn end(mut self) {
        for _ in 0..400 {
            self.now = self.now + Duration::from_secs(1);
            self.advance();
            self.act(usize::MAX);
        }
        assert_eq!((self.cache.waiting_count(), self.waiting.len()), (0, 0), "packets wait for ever");
        assert_eq!(self.cache.views(0).count(), 0, "neighbours that nobody uses are kept for ever");
        let in_use = |address: &u128| self.announced.contains(address) != self.given_up.contains(address);
        assert!(self.own.iter().all(in_use), "each own address is in use, or was given up");
        let outside = InterfaceId(topology::OUTSIDE.0);
        assert!(!self.node.is_on(outside), "an interface without IPv6");
    }
}
