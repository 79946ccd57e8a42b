//! RFC 7857, updates to the requirements for NAT. One test or more per requirement, in order.

use std::collections::HashMap;
use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::tcp::TcpState;
use nat::types::Side;
use testkit::connection::FIN_ACK;
use testkit::connection::RST_ACK;
use testkit::connection::SYN_ACK;
use testkit::connection::opposite;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SIDES: [Side; 2] = [Side::Inside, Side::Outside];
const NOTHING: Vec<Vec<u8>> = Vec::new();

/// One worker, and two whose packets arrive at either.
fn beds(settings: &Settings) -> [Bed; 2] {
    [Bed::new(settings.clone()), Bed::new(settings.clone()).workers(2).steering(Steering::Random)]
}

/// Times of the state machine in seconds: opening, established, closing.
type Times = [u64; 3];

/// The default times, and others of which no two are alike.
const TIMES: [Times; 2] = [[240, 7_440, 240], [70, 1_000, 130]];

fn timed(times: Times) -> Settings {
    settings().timers(|timeouts| {
        timeouts.tcp_opening = Duration::from_secs(times[0]);
        timeouts.tcp_established = Duration::from_secs(times[1]);
        timeouts.tcp_closing = Duration::from_secs(times[2]);
    })
}

/// What happens to a connection: the client's or the server's segment, or a silence.
#[derive(Clone, Copy, Debug)]
enum Event {
    Client(Flags),
    Server(Flags),
    ClientData,
    ServerData,
    /// Until the established idle time has run out.
    Idle,
}

use Event::Client;
use Event::ClientData;
use Event::Idle;
use Event::Server;
use Event::ServerData;

/// A state of figure 1 (RFC 7857 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Init,
    Established,
    ClientFin,
    ServerFin,
    BothFin,
    Trans,
}

impl State {
    /// As it is shown when the client is on this side.
    fn shown(self, client: Side) -> TcpState {
        let fin = |side| if side == Side::Inside { TcpState::FinInside } else { TcpState::FinOutside };
        match self {
            State::Init => TcpState::opening(client),
            State::Established => TcpState::Established,
            State::ClientFin => fin(client),
            State::ServerFin => fin(opposite(client)),
            State::BothFin => TcpState::Closing,
            State::Trans => TcpState::Transitory,
        }
    }
}

const SYN: Flags = Flags::SYN;
const ACK: Flags = Flags::ACK;
const OPEN: [Event; 3] = [Client(SYN), Server(SYN_ACK), Client(ACK)];

/// Every edge of the figure, and what stays where it is: events, the state they lead to, and
/// whether the last one restarts the timer.
fn edges() -> Vec<(Vec<Event>, State, bool)> {
    use State::BothFin;
    use State::ClientFin;
    use State::Established;
    use State::Init;
    use State::ServerFin;
    use State::Trans;
    let from_closed: [(&[Event], State, bool); 8] = [
        (&[Client(SYN)], Init, true),
        (&[Client(SYN), Client(SYN)], Init, true),
        (&[Client(SYN), ClientData], Init, true),
        (&[Client(SYN), Server(ACK)], Init, true),
        (&[Client(SYN), Server(RST_ACK)], Init, false),
        (&[Client(SYN), Client(Flags::RST)], Init, false),
        (&[Client(SYN), Server(SYN_ACK)], Established, true),
        (&[Client(SYN), Server(SYN)], Established, true),
    ];
    let from_established: [(&[Event], State, bool); 38] = [
        (&[], Established, true),
        (&[ClientData], Established, true),
        (&[ServerData], Established, true),
        (&[Client(SYN)], Established, true),
        (&[Client(FIN_ACK)], ClientFin, true),
        (&[Server(FIN_ACK)], ServerFin, true),
        (&[Client(FIN_ACK), Server(ACK)], ClientFin, true),
        (&[Client(FIN_ACK), ServerData, Client(ACK)], ClientFin, true),
        (&[Client(FIN_ACK), Client(FIN_ACK)], ClientFin, true),
        (&[Server(FIN_ACK), ClientData, Server(ACK)], ServerFin, true),
        (&[Server(FIN_ACK), Server(FIN_ACK)], ServerFin, true),
        (&[Client(FIN_ACK), Server(FIN_ACK)], BothFin, true),
        (&[Server(FIN_ACK), Client(FIN_ACK)], BothFin, true),
        (&[Server(FIN_ACK), Client(FIN_ACK), Server(ACK)], BothFin, true),
        (&[Client(FIN_ACK), Server(FIN_ACK), Client(ACK), Server(FIN_ACK)], BothFin, true),
        (&[Client(FIN_ACK), Server(FIN_ACK), Server(RST_ACK)], BothFin, false),
        (&[Client(FIN_ACK), Server(FIN_ACK), Client(SYN)], Init, true),
        (&[Client(FIN_ACK), Server(FIN_ACK), Client(SYN), Server(SYN_ACK)], Established, true),
        (&[Client(RST_ACK)], Trans, true),
        (&[Server(RST_ACK)], Trans, true),
        (&[Client(Flags::RST)], Trans, true),
        (&[Server(Flags::RST)], Trans, true),
        (&[Client(FIN_ACK), Server(RST_ACK)], Trans, true),
        (&[Client(FIN_ACK), Client(RST_ACK)], Trans, true),
        (&[Server(FIN_ACK), Client(RST_ACK)], Trans, true),
        (&[Server(RST_ACK), Server(RST_ACK)], Trans, false),
        (&[Server(RST_ACK), Client(RST_ACK)], Trans, false),
        (&[Server(RST_ACK), Server(SYN_ACK)], Trans, true),
        (&[Server(RST_ACK), ClientData], Established, true),
        (&[Server(RST_ACK), ServerData], Established, true),
        (&[Client(RST_ACK), ClientData], Established, true),
        (&[Client(RST_ACK), ServerData], Established, true),
        (&[Client(RST_ACK), Client(FIN_ACK)], ClientFin, true),
        (&[Client(RST_ACK), Client(SYN)], Init, true),
        (&[Client(RST_ACK), Client(SYN), Server(SYN_ACK)], Established, true),
        (&[Idle, ClientData], Established, true),
        (&[Idle, ServerData], Established, true),
        (&[Client(FIN_ACK), Idle, ServerData], Established, true),
    ];
    let closed = from_closed.into_iter().map(|(events, state, restarts)| (events.to_vec(), state, restarts));
    let established =
        from_established.into_iter().map(|(events, state, restarts)| ([&OPEN, events].concat(), state, restarts));
    closed.chain(established).collect()
}

fn happen(bed: &mut Bed, connection: &mut Connection, client: Side, event: Event, times: Times) {
    match event {
        Client(flags) => drop(connection.pass(bed, client, flags)),
        Server(flags) => drop(connection.pass(bed, opposite(client), flags)),
        ClientData => connection.pass_data(bed, client, b"from the client"),
        ServerData => connection.pass_data(bed, opposite(client), b"from the server"),
        Idle => {
            bed.advance_secs(times[1] - 1);
            assert_ne!(connection.state(bed), Some(TcpState::Transitory));
            bed.advance_secs(2);
            assert_eq!(connection.state(bed), Some(TcpState::Transitory), "TCP_EST has run out");
        }
    }
}

/// A connection on which nothing has happened. A client outside needs a mapping that the server
/// inside has opened.
fn fresh(bed: &mut Bed, client: Side) -> Connection {
    let external = match client {
        Side::Inside => bed.open_udp(at(I1, 5000), at(E2, 9)),
        Side::Outside => bed.open_tcp(at(I1, 5000), at(E2, 9)),
    };
    let mut connection = Connection::new(at(I1, 5000), external, at(E1, 80));
    if client == Side::Inside {
        // The endpoint that the SYN will get is known only afterwards: the mapping is made with
        // another destination.
        connection.external = bed.open_tcp(at(I1, 5000), at(E2, 9));
    }
    connection
}

/// That quiet kills the connection after the time its state has, and not before.
fn dies_in_its_time(bed: &mut Bed, connection: &Connection, state: State, client: Side, times: Times, gone: u64) {
    let shown = Some(state.shown(client));
    let (first, then) = match state {
        State::Init => (times[0], 0),
        State::Established | State::ClientFin | State::ServerFin => (times[1], times[2]),
        State::BothFin | State::Trans => (times[2], 0),
    };
    assert_eq!(connection.state(bed), shown);
    bed.advance_secs(first - gone - 1);
    assert_eq!(connection.state(bed), shown, "a second before {first} s");
    bed.advance_secs(2);
    if then > 0 {
        assert_eq!(connection.state(bed), Some(TcpState::Transitory), "TCP_EST has run out");
        bed.advance_secs(then - 2);
        assert_eq!(connection.state(bed), Some(TcpState::Transitory));
        bed.advance_secs(2);
    }
    assert_eq!(connection.state(bed), None, "after {first} + {then} s");
    for side in SIDES {
        let late = connection.segment(side, Flags::ACK.union(Flags::PSH)).payload(b"too late").build();
        assert_eq!(connection.send_raw(bed, side, &late), None);
    }
}

#[test]
fn every_edge_of_the_state_machine_follows_the_figure() {
    covers!("7857-2", "5382-REQ-5");
    for (number, (events, state, restarts)) in edges().into_iter().enumerate() {
        for times in TIMES {
            for client in SIDES {
                let workers = 1 + number % 2;
                let mut bed = Bed::new(timed(times)).workers(workers).steering(Steering::Random);
                let mut connection = fresh(&mut bed, client);
                let (last, before) = events.split_last().expect("an edge has events");
                for event in before {
                    happen(&mut bed, &mut connection, client, *event, times);
                }
                // A pause before the last one shows whether it restarts the timer.
                bed.advance_secs(20);
                happen(&mut bed, &mut connection, client, *last, times);
                assert_eq!(connection.state(&bed), Some(state.shown(client)), "{events:?}, client {}", client.name());
                dies_in_its_time(&mut bed, &connection, state, client, times, if restarts { 0 } else { 20 });
                bed.run_out();
            }
        }
    }
}

#[test]
fn sessions_of_one_mapping_have_states_and_times_of_their_own() {
    covers!("7857-2");
    for mut bed in beds(&settings()) {
        let mut first = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
        let mut second = Connection::open(&mut bed, at(I1, 5000), at(E1, 81));
        let mut third = Connection::open(&mut bed, at(I1, 5000), at(E2, 80));
        let fourth = Connection::half_open(&mut bed, at(I1, 5000), at(E2, 81));
        first.close(&mut bed, Side::Inside);
        second.pass(&mut bed, Side::Outside, RST_ACK);
        third.pass(&mut bed, Side::Outside, FIN_ACK);
        let states = [&first, &second, &third, &fourth].map(|connection| connection.state(&bed));
        let expected =
            [TcpState::Closing, TcpState::Transitory, TcpState::FinOutside, TcpState::OpeningOutbound].map(Some);
        assert_eq!(states, expected);
        bed.advance_secs(241);
        assert_eq!(bed.sessions().len(), 1);
        assert_eq!(third.state(&bed), Some(TcpState::FinOutside));
        bed.advance_secs(7_190);
        third.pass_data(&mut bed, Side::Inside, b"the mapping lives as long as one of them");
        // The last one ends, and the mapping with it.
        third.pass(&mut bed, Side::Inside, FIN_ACK);
        bed.advance_secs(241);
        assert_eq!(bed.mappings(), []);
        bed.run_out();
    }
}

#[test]
fn opening_and_closing_have_times_of_their_own() {
    covers!("7857-2.1a");
    for mut bed in beds(&timed([5, 60, 9])) {
        let opening = Connection::half_open(&mut bed, at(I1, 5000), at(E1, 80));
        let mut closing = Connection::open(&mut bed, at(I2, 5000), at(E1, 80));
        closing.close(&mut bed, Side::Inside);
        bed.advance(Duration::from_millis(4_900));
        assert_eq!(opening.state(&bed), Some(TcpState::OpeningOutbound));
        bed.advance(Duration::from_millis(200));
        assert_eq!((opening.state(&bed), closing.state(&bed)), (None, Some(TcpState::Closing)));
        let late = opening.segment(Side::Outside, SYN_ACK).build();
        assert_eq!(opening.send_raw(&mut bed, Side::Outside, &late), None);
        bed.advance(Duration::from_millis(3_800));
        assert_eq!(closing.state(&bed), Some(TcpState::Closing));
        bed.advance(Duration::from_millis(200));
        assert_eq!(closing.state(&bed), None);
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn the_opening_time_may_be_short() {
    covers!("7857-2.1b");
    for mut bed in beds(&timed([30, 7_440, 240])) {
        let mut answered = Connection::half_open(&mut bed, at(I1, 5000), at(E1, 80));
        let unanswered = Connection::half_open(&mut bed, at(I2, 5000), at(E1, 80));
        bed.advance_secs(29);
        answered.pass(&mut bed, Side::Outside, SYN_ACK);
        assert!(unanswered.state(&bed).is_some());
        bed.advance_secs(2);
        assert!(unanswered.state(&bed).is_none());
        bed.advance_secs(7_400);
        answered.pass_data(&mut bed, Side::Outside, b"not affected once it is open");
    }
}

#[test]
fn by_default_opening_and_closing_take_four_minutes() {
    covers!("7857-2.1c");
    let timeouts = Settings::default().timeouts;
    assert!(timeouts.tcp_opening >= Duration::from_secs(240));
    assert!(timeouts.tcp_closing >= Duration::from_secs(240));
}

#[test]
fn a_rst_reaches_the_other_end_in_every_state() {
    covers!("7857-2.2a");
    for (events, _, _) in edges() {
        for side in SIDES {
            for flags in [Flags::RST, RST_ACK] {
                for distance in [0, 1_000, 0x4000_0000, 0x8000_0000] {
                    let mut bed = Bed::new(settings());
                    let mut connection = fresh(&mut bed, Side::Inside);
                    for event in &events {
                        happen(&mut bed, &mut connection, Side::Inside, *event, TIMES[0]);
                    }
                    let next = wire_sequence(&connection, side);
                    let reset = connection.segment(side, flags).sequence(next.wrapping_add(distance)).build();
                    // Also one that does not belong to it: what is not believed is forwarded all
                    // the same.
                    let arrived = connection.send_raw(&mut bed, side, &reset).expect("RST");
                    assert_eq!(packet::tcp(&arrived).flags(), flags);
                    assert_eq!(packet::tcp(&arrived).sequence(), next.wrapping_add(distance));
                }
            }
        }
    }
}

fn wire_sequence(connection: &Connection, side: Side) -> u32 {
    packet::tcp(&connection.segment(side, Flags::ACK).build()).sequence()
}

#[test]
fn after_a_rst_a_session_stays_four_minutes_and_data_revives_it() {
    covers!("7857-2.2b");
    for side in SIDES {
        for mut bed in beds(&settings()) {
            let mut connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
            connection.pass(&mut bed, side, RST_ACK);
            bed.advance_secs(200);
            assert_eq!(connection.state(&bed), Some(TcpState::Transitory));
            // The RST was lost behind the NAT, or was forged: the other end goes on.
            connection.pass_data(&mut bed, opposite(side), b"are you there?");
            assert_eq!(connection.state(&bed), Some(TcpState::Established));
            bed.advance_secs(7_439);
            connection.pass_data(&mut bed, side, b"yes");
            // And again, without a word this time.
            connection.pass(&mut bed, side, RST_ACK);
            bed.advance_secs(239);
            assert_eq!(connection.state(&bed), Some(TcpState::Transitory));
            bed.advance_secs(2);
            assert_eq!(connection.state(&bed), None);
            let late = connection.segment(opposite(side), Flags::ACK).payload(b"too late").build();
            assert_eq!(connection.send_raw(&mut bed, opposite(side), &late), None);
            assert_eq!(bed.mappings(), []);
        }
    }
}

#[test]
fn a_rst_outside_the_window_shortens_nothing() {
    covers!("7857-2.2c", "S9");
    for mut bed in beds(&settings()) {
        let mut connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
        for round in 0..20 {
            connection.pass_data(&mut bed, Side::Inside, &[round; 1_000]);
            connection.pass_data(&mut bed, Side::Outside, &[round; 1_400]);
        }
        let expires_in = connection.expires_in(&bed);
        let next = wire_sequence(&connection, Side::Outside);
        // A blind attacker knows the endpoints and tries numbers all over the space, as far apart
        // as a window.
        let mut forged = 0;
        for step in 2..0xfffe_u32 {
            let sequence = next.wrapping_add(step << 16);
            for flags in [Flags::RST, RST_ACK] {
                if (step + u32::from(flags.0)) % 16 == 0 {
                    let reset = connection.segment(Side::Outside, flags).sequence(sequence).build();
                    assert!(connection.send_raw(&mut bed, Side::Outside, &reset).is_some());
                    forged += 1;
                }
            }
        }
        assert!(forged > 4_000);
        assert_eq!(connection.state(&bed), Some(TcpState::Established));
        assert_eq!(connection.expires_in(&bed), expires_in, "neither shortened nor refreshed");
        assert_eq!(bed.counters().tcp_resets_ignored, forged);
        bed.advance_secs(7_439);
        connection.pass_data(&mut bed, Side::Inside, b"unharmed");
        // The true one is believed.
        connection.pass(&mut bed, Side::Outside, RST_ACK);
        assert_eq!(connection.state(&bed), Some(TcpState::Transitory));
    }
}

#[test]
fn an_external_port_is_never_shared_whatever_the_destinations() {
    covers!("7857-3b", "4787-REQ-3", "5382-REQ-7");
    for mut bed in beds(&settings().addresses(&POOL[..1]).ports(40_000, 40_009)) {
        let tcp: HashSet<_> = (0..5)
            .flat_map(|port| [bed.open_tcp(at(I1, port), at(E1, 80)), bed.open_tcp(at(I2, port), at(E1, 80))])
            .collect();
        assert_eq!(tcp.len(), 10);
        // All ten are in use: no third subscriber gets one of them, not even to another
        // destination.
        for remote in [at(E1, 80), at(E2, 81)] {
            bed.inside(&build::tcp(at(I3, 5000), remote, SYN).build());
            assert_eq!(bed.take_outside(), NOTHING);
            assert!(is_icmp(&bed.only_inside(), 3, 1));
        }
        assert_eq!(bed.mappings().len(), 10);
    }
}

/// A subscriber whose paired address has no port left for this protocol.
fn full(bed: &mut Bed, protocol: Protocol) -> core::net::Ipv4Addr {
    let open = |bed: &mut Bed, port| match protocol {
        Protocol::Udp => bed.open_udp(at(I1, port), at(E1, 9)),
        Protocol::Tcp => bed.open_tcp(at(I1, port), at(E1, 9)),
        Protocol::Icmp => bed.ping(I1, port, E1),
    };
    let first = *open(bed, 0).ip();
    for port in 1..100 {
        assert_eq!(*open(bed, port).ip(), first, "paired");
    }
    first
}

#[test]
fn a_full_address_refuses_though_others_have_ports() {
    covers!("7857-4a", "7857-4c", "6888-REQ-2");
    for mut bed in beds(&settings().addresses(&POOL[..2]).ports(10_000, 10_099)) {
        let udp = full(&mut bed, Protocol::Udp);
        let next = |protocol| match protocol {
            Protocol::Udp => build::udp(at(I1, 200), at(E1, 9)).payload(b"one too many").build(),
            _ => build::tcp(at(I1, 200), at(E1, 9), SYN).build(),
        };
        bed.inside(&next(Protocol::Udp));
        assert_eq!(bed.take_outside(), NOTHING);
        let error = bed.only_inside();
        assert!(is_icmp(&error, 3, 1), "RFC 6888 REQ-11");
        assert_eq!(source(quote(&error)), at(I1, 200));
        // The other protocol has its own ports, on the same address.
        assert_eq!(full(&mut bed, Protocol::Tcp), udp);
        bed.inside(&next(Protocol::Tcp));
        assert_eq!(bed.take_outside(), NOTHING);
        assert!(is_icmp(&bed.only_inside(), 3, 1));
        assert_eq!(bed.count(Verdict::PortsExhausted), 2);
        // Somebody else is served from the other address.
        let other = bed.open_udp(at(I2, 5000), at(E1, 9));
        assert_ne!(*other.ip(), udp);
        assert_eq!(bed.open_tcp(at(I2, 5000), at(E1, 9)).ip(), other.ip());
        // What exists goes on, and what ends makes room.
        assert!(POOL.contains(bed.open_udp(at(I1, 7), at(E2, 7)).ip()));
        bed.advance_secs(200);
        bed.open_udp(at(I1, 7), at(E1, 9));
        bed.advance_secs(101);
        bed.sweep();
        // Once its port has been held down (RFC 6888 REQ-8).
        bed.advance_secs(121);
        bed.sweep();
        bed.inside(&next(Protocol::Udp));
        assert_eq!(source(&bed.only_outside()).ip(), &udp);
    }
}

#[test]
fn mappings_of_udp_and_tcp_are_independent() {
    covers!("7857-5a", "7857-5b");
    for mut bed in beds(&settings()) {
        let differ = (5_000..5_050)
            .filter(|port| {
                let udp = bed.open_udp(at(I1, *port), at(E1, 9));
                let tcp = bed.open_tcp(at(I1, *port), at(E1, 9));
                assert_eq!(udp.ip(), tcp.ip(), "paired");
                udp.port() != tcp.port()
            })
            .count();
        assert!(differ >= 48, "equal only by chance");
        // Lives of their own: TCP, half open, ends after 240 s; UDP after 300.
        bed.advance_secs(242);
        assert!(bed.mapping_of(Protocol::Tcp, at(I1, 5_000)).is_none());
        let udp = bed.mapping_of(Protocol::Udp, at(I1, 5_000)).expect("UDP lives on").external;
        bed.open_tcp(at(I1, 5_000), at(E1, 9));
        assert_eq!(bed.open_udp(at(I1, 5_000), at(E2, 9)), at(udp.address, udp.port));
        bed.advance_secs(239);
        bed.open_tcp(at(I1, 5_000), at(E1, 9));
        bed.advance_secs(62);
        assert!(bed.mapping_of(Protocol::Udp, at(I1, 5_000)).is_none(), "TCP did not refresh UDP");
        assert!(bed.mapping_of(Protocol::Tcp, at(I1, 5_000)).is_some());
    }
}

#[test]
fn a_mapping_lets_in_its_own_protocol_only() {
    covers!("7857-6a", "7857-6b");
    for mut bed in beds(&settings()) {
        let tcp = bed.open_tcp(at(I1, 5000), at(E1, 80));
        let udp = bed.open_udp(at(I2, 5000), at(E1, 80));
        let icmp = bed.ping(I3, 5000, E1);
        for remote in [at(E1, 80), at(E2, 7777)] {
            bed.outside(&build::udp(remote, tcp).payload(b"?").build());
            bed.outside(&build::udp(remote, icmp).payload(b"?").build());
            for flags in [SYN, SYN_ACK, ACK] {
                bed.outside(&build::tcp(remote, udp, flags).build());
                bed.outside(&build::tcp(remote, icmp, flags).build());
            }
            bed.outside(&build::echo_reply(*remote.ip(), *tcp.ip(), tcp.port()).build());
            bed.outside(&build::echo_reply(*remote.ip(), *udp.ip(), udp.port()).build());
        }
        assert_eq!(bed.take_inside(), NOTHING);
        assert_eq!(bed.sessions().len(), 3);
    }
}

#[test]
fn datagrams_that_the_filter_refuses_do_not_refresh() {
    covers!("7857-7a", "S14");
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&settings().short_timers().inbound_refresh().filtering(filtering)) {
            let external = bed.open_udp(at(I1, 5000), at(E1, 9));
            for _ in 0..3 {
                bed.advance_secs(3);
                assert!(!bed.udp_reaches(at(E2, 9), external, at(I1, 5000)));
            }
            assert_eq!(bed.mappings().len(), 1);
            bed.advance(Duration::from_millis(1_100));
            assert!(!bed.udp_reaches(at(E1, 9), external, at(I1, 5000)), "gone at 10 s");
            assert_eq!(bed.mappings(), []);
            // The one that may send does refresh, as the setting says.
            let external = bed.open_udp(at(I1, 5000), at(E1, 9));
            for _ in 0..5 {
                bed.advance_secs(8);
                assert!(bed.udp_reaches(at(E1, 9), external, at(I1, 5000)));
            }
        }
    }
}

#[test]
fn syns_that_the_filter_refuses_do_not_refresh() {
    covers!("7857-7b", "S14");
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&settings().short_timers().inbound_refresh().filtering(filtering)) {
            let opening = Connection::half_open(&mut bed, at(I1, 5000), at(E1, 80));
            let established = Connection::open(&mut bed, at(I2, 5000), at(E1, 80));
            let knock = |bed: &mut Bed| {
                for connection in [&opening, &established] {
                    for flags in [SYN, SYN_ACK, ACK, Flags::RST] {
                        bed.outside(&build::tcp(at(E2, 80), connection.external, flags).build());
                    }
                }
                assert_eq!(bed.take_inside(), NOTHING);
            };
            for _ in 0..3 {
                bed.advance_secs(3);
                knock(&mut bed);
            }
            assert!(opening.state(&bed).is_some());
            bed.advance(Duration::from_millis(1_100));
            assert!(opening.state(&bed).is_none(), "gone at 10 s");
            assert!(bed.mapping_of(Protocol::Tcp, at(I1, 5000)).is_none());
            for _ in 0..9 {
                bed.advance_secs(3);
                knock(&mut bed);
            }
            assert!(established.state(&bed).is_some());
            bed.advance_secs(3);
            assert_eq!(bed.mappings(), [], "gone at 40 s");
        }
    }
}

#[test]
fn errors_that_answer_datagrams_do_not_refresh() {
    covers!("7857-7.1a", "S14");
    for mut bed in beds(&settings().short_timers()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        for _ in 0..3 {
            bed.advance_secs(3);
            bed.outside(&build::udp(at(E1, 9), external).payload(b"anybody?").build());
            let arrived = bed.only_inside();
            bed.inside(&build::icmp_error(I1, E1, 3, 3, &arrived).build());
            assert!(is_icmp(&bed.only_outside(), 3, 3), "the answer reaches its addressee");
        }
        assert_eq!(bed.mappings().len(), 1);
        bed.advance(Duration::from_millis(1_100));
        assert!(!bed.udp_reaches(at(E1, 9), external, at(I1, 5000)), "gone at 10 s");
    }
}

#[test]
fn rsts_from_inside_do_not_refresh() {
    covers!("7857-7.1a", "S14");
    for mut bed in beds(&settings().short_timers()) {
        // The subscriber opened a connection and forgot it, and refuses any other remote host.
        let mut connection = Connection::open(&mut bed, at(I1, 5000), at(E1, 80));
        let mut visitor = Connection::new(at(I1, 5000), connection.external, at(E2, 80));
        visitor.pass(&mut bed, Side::Outside, SYN);
        let mapping = |bed: &Bed| bed.mapping_of(Protocol::Tcp, at(I1, 5000)).map(|mapping| mapping.expires_in);
        for _ in 0..3 {
            bed.advance_secs(3);
            let before = (mapping(&bed), visitor.expires_in(&bed));
            visitor.pass(&mut bed, Side::Inside, RST_ACK);
            assert_eq!((mapping(&bed), visitor.expires_in(&bed)), before);
        }
        bed.advance_secs(2);
        assert_eq!(visitor.state(&bed), None, "gone 10 s after the SYN");
        // The first RST of a connection moves it to the closing time; further ones move nothing.
        connection.pass(&mut bed, Side::Inside, RST_ACK);
        for _ in 0..3 {
            bed.advance_secs(3);
            connection.pass(&mut bed, Side::Inside, RST_ACK);
        }
        bed.advance_secs(2);
        assert_eq!(bed.mappings(), [], "gone 10 s after the first RST");
    }
}

#[test]
fn parity_is_not_kept_unless_the_pool_asks_for_it() {
    covers!("7857-8a");
    for mut bed in beds(&settings()) {
        let kept = (5_000..5_500).filter(|port| bed.open_tcp(at(I1, *port), at(E1, 9)).port() % 2 == port % 2).count();
        assert!((180..320).contains(&kept), "{kept} of 500 ports kept their parity by chance");
    }
    for mut bed in beds(&settings().parity()) {
        assert!((5_000..5_500).all(|port| bed.open_tcp(at(I1, port), at(E1, 9)).port() % 2 == port % 2));
    }
}

#[test]
fn fragmented_datagrams_never_share_an_identification() {
    covers!("7857-10", "S5", "3022-12");
    for workers in [1, 2, 4] {
        let mut bed = Bed::new(settings().addresses(&POOL[..1])).workers(workers).steering(Steering::Random);
        for id in [0, 1, 77, 0xffff] {
            let wholes = [I1, I2, I3].map(|host| {
                build::udp(at(host, 5000), at(E1, 9)).identification(id).payload(&[host.octets()[3]; 3_500]).build()
            });
            let pieces = wholes.each_ref().map(|whole| build::fragment(whole, 1_500));
            assert!(pieces.iter().all(|pieces| pieces.len() == 3));
            // Interleaved: the first pieces, then the second ones, then the third.
            for position in 0..3 {
                for pieces in &pieces {
                    bed.inside(&pieces[position]);
                }
            }
            let mut by_id: HashMap<u16, Vec<Vec<u8>>> = HashMap::new();
            for piece in bed.take_outside() {
                by_id.entry(packet::header(&piece).identification()).or_default().push(piece);
            }
            assert_eq!(by_id.len(), 3, "the receiver can separate them");
            for pieces in by_id.values() {
                let joined = build::reassemble(pieces).expect("all pieces of one datagram");
                assert_eq!(wire::verify::faults(&joined), []);
                assert!(wholes.iter().any(|whole| payload(whole) == payload(&joined)));
            }
        }
    }
}

#[test]
fn identifications_repeat_no_sooner_than_they_must() {
    covers!("7857-10", "S5");
    for workers in [1, 2] {
        let mut bed = Bed::new(settings().addresses(&POOL[..1])).workers(workers).steering(Steering::Random);
        let mut seen = HashSet::new();
        // All with the same identification inside. Each worker has its share of the 65536.
        let each = if workers == 1 { 30_000 } else { 16_000 };
        for number in 0..each {
            for host in [I1, I2] {
                bed.inside(&build::udp(at(host, 5000), at(E1, 9)).identification(7).payload(b"DF clear").build());
                let id = packet::header(&bed.only_outside()).identification();
                assert!(seen.insert(id), "{id} again after {number} datagrams");
            }
        }
    }
}

#[test]
fn atomic_queries_and_replies_keep_their_identification() {
    covers!("7857-10");
    for mut bed in beds(&settings()) {
        for id in [0, 1, 0xffff] {
            bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).identification(id).dont_fragment().build());
            let out = bed.only_outside();
            assert_eq!(packet::header(&out).identification(), id);
            assert!(packet::header(&out).dont_fragment());
            bed.outside(&build::udp(at(E1, 9), source(&out)).identification(id).build());
            assert_eq!(packet::header(&bed.only_inside()).identification(), id, "inside nobody shares the address");
        }
    }
}

#[test]
fn a_query_mapping_goes_with_its_last_session() {
    covers!("7857-11");
    for mut bed in beds(&settings()) {
        bed.ping(I1, 7, E1);
        bed.advance_secs(30);
        bed.ping(I1, 7, E2);
        bed.advance_secs(31);
        assert_eq!((bed.mappings().len(), bed.sessions().len()), (1, 1));
        bed.advance_secs(28);
        assert_eq!((bed.mappings().len(), bed.sessions().len()), (1, 1));
        bed.advance_secs(2);
        assert_eq!((bed.mappings().len(), bed.sessions().len()), (0, 0));
        bed.run_out();
    }
}

#[test]
fn errors_about_hairpinned_packets_are_translated_at_both_ends() {
    covers!("7857-12b", "5508-REQ-7a");
    for workers in [1, 2, 4] {
        for seed in 1..=4 {
            let mut bed = Bed::new(settings()).workers(workers).seed(seed).steering(Steering::Random);
            let first = bed.open_udp(at(I1, 5000), at(E1, 9));
            let second = bed.open_udp(at(I2, 6000), at(E1, 9));
            bed.inside(&build::udp(at(I1, 5000), second).payload(b"for a closed port").build());
            let arrived = bed.only_inside();
            for (from, kind, code) in [(I2, 3, 3), (INSIDE_ROUTER, 11, 0), (INSIDE_ROUTER, 3, 4)] {
                bed.inside(&build::icmp_error(from, *first.ip(), kind, code, &arrived).next_hop_mtu(1_400).build());
                let error = bed.only_inside();
                assert!(is_icmp(&error, kind, code));
                assert_eq!((source(&error).ip(), destination(&error).ip()), (second.ip(), &I1));
                assert_eq!((source(quote(&error)), destination(quote(&error))), (at(I1, 5000), second));
                assert_eq!(packet::icmp(&error).next_hop_mtu(), 1_400);
            }
            assert_eq!(bed.take_outside(), NOTHING);
        }
    }
}
