//! Claims about the neighbour cache and the judgement of ARP messages.

use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::VecDeque;

use daemon::neighbour::Action;
use daemon::neighbour::Answerer;
use daemon::neighbour::NeighbourLimits;
use daemon::neighbour::Neighbours;
use nat::Duration;
use nat::Instant;
use nat::Verdict;
use nat::types::InterfaceId;
use testkit::topology;
use wire::arp::Message;
use wire::arp::Operation;
use wire::ethernet::MacAddress;

use crate::dice::Dice;

type Neighbour = (InterfaceId, u32);

/// The right behaviour of the cache, from its inputs.
struct Expected {
    /// Waiting packets by neighbour, in order.
    waiting: HashMap<Neighbour, VecDeque<u32>>,
    /// The last answer for each neighbour.
    station: HashMap<Neighbour, MacAddress>,
    given_back: HashSet<u32>,
}

impl Expected {
    fn take(&mut self, action: Action<u32>) {
        match action {
            Action::Request { .. } => {}
            Action::Send { packet, interface, station } => {
                let found = self.waiting.iter().find(|(_, queue)| queue.front() == Some(&packet));
                let neighbour = found.map(|(neighbour, _)| *neighbour);
                assert!(neighbour.is_some(), "packet {packet} is sent, but did not wait, or not first");
                let Some(neighbour) = neighbour else { return };
                assert_eq!((neighbour.0, Some(&station)), (interface, self.station.get(&neighbour)));
                self.give_back(neighbour, packet);
            }
            Action::Unresolved { packet, interface } => {
                let neighbour = self.give_up(packet);
                assert_eq!(neighbour.map(|neighbour| neighbour.0), Some(interface), "packet {packet}");
            }
        }
    }

    /// A packet is dropped, which waited for this neighbour.
    fn give_up(&mut self, packet: u32) -> Option<Neighbour> {
        let found = self.waiting.iter().find(|(_, queue)| queue.front() == Some(&packet));
        let neighbour = found.map(|(neighbour, _)| *neighbour);
        assert!(neighbour.is_some(), "packet {packet} is dropped, but did not wait, or not first");
        if let Some(neighbour) = neighbour {
            self.give_back(neighbour, packet);
        }
        neighbour
    }

    fn give_back(&mut self, neighbour: Neighbour, packet: u32) {
        assert!(self.given_back.insert(packet), "packet {packet} came back twice");
        if let Some(queue) = self.waiting.get_mut(&neighbour) {
            queue.pop_front();
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

/// Each held packet comes back once, in order, and to the station that answered last; in the end
/// nothing is left. Two bytes choose the bounds; a step is an operation with neighbour, and its
/// argument.
pub fn cache(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let limits = NeighbourLimits {
        neighbours_max: u32::from(dice.byte() % 8) + 1,
        unresolved_max: u32::from(dice.byte() % 8),
        waiting_per_neighbour_max: 3,
        waiting_max: 8,
    };
    let mut cache = Neighbours::new(limits, 0x5eed);
    let mut expected = Expected { waiting: HashMap::new(), station: HashMap::new(), given_back: HashSet::new() };
    let mut now = Instant::ORIGIN;
    let mut serial = 0;
    while !dice.is_empty() {
        let (step, argument) = (dice.byte(), dice.byte());
        let neighbour = (InterfaceId(u16::from(step >> 6 & 1)), u32::from(step >> 3 & 7));
        match step & 7 {
            0 | 1 => match cache.lookup(neighbour.0, neighbour.1) {
                Some(station) => assert_eq!(expected.station.get(&neighbour), Some(&station)),
                None => {
                    serial += 1;
                    let given_up = |packet| {
                        expected.give_up(packet);
                    };
                    if cache.hold(now, argument.into(), neighbour, serial, given_up).is_ok() {
                        expected.waiting.entry(neighbour).or_default().push_back(serial);
                    }
                }
            },
            2 | 3 => {
                let station = MacAddress([2, 0, 0, 0, 0, argument]);
                if cache.learn(now, neighbour.0, neighbour.1, station) {
                    expected.station.insert(neighbour, station);
                }
            }
            4 => {
                for _ in 0..argument {
                    let Some(action) = cache.next_action(now) else { break };
                    expected.take(action);
                }
            }
            5 | 6 => now = now + Duration::from_millis(u64::from(argument) * 300),
            _ => {
                if let Some(packet) = cache.take_waiting() {
                    expected.give_up(packet);
                }
            }
        }
        assert_eq!(cache.waiting_count() as usize, expected.waiting());
        assert!(cache.views(0).count() <= limits.neighbours_max as usize);
    }
    for _ in 0..400 {
        now = now + Duration::from_secs(1);
        while let Some(action) = cache.next_action(now) {
            expected.take(action);
        }
    }
    assert_eq!((cache.waiting_count(), expected.waiting()), (0, 0), "packets wait for ever");
    assert_eq!(cache.views(0).count(), 0, "neighbours that nobody uses are kept for ever");
}

/// Only requests for our own addresses are answered, and no other station can claim these
/// addresses.
pub fn judge(bytes: &[u8]) {
    let Some((interface, payload)) = bytes.split_first() else { return };
    let Ok(message) = Message::parse(payload) else { return };
    let answerer = Answerer::new(&topology::settings());
    let station = MacAddress([2, 0, 0, 0, 0, 1]);
    let interface = InterfaceId(u16::from(interface % 3));
    let answer = answerer.judge(interface, station, &message);
    if answer.reply {
        assert!(message.operation == Operation::Request && answerer.is_ours(interface, message.target_address));
        let reply = message.reply(station);
        assert_eq!((reply.sender_mac, reply.sender_address), (station, message.target_address));
        assert_eq!(Message::parse(&reply.to_bytes()), Ok(reply));
    }
    if let Some(learnt) = answer.learnt {
        assert!(!answerer.is_ours(interface, learnt.address), "{learnt:?} is an address of ours");
        assert!(learnt.station.is_unicast() && learnt.station != station && learnt.address != 0, "{learnt:?}");
    }
    assert!(matches!(answer.verdict, Verdict::Local | Verdict::LocalIgnored | Verdict::ArpInvalid));
}
