//! PEER: endpoints and timers of flows.

use core::net::Ipv4Addr;

use nat::Protocol;
use nat::Settings;
use nat::class::EXTRA_SESSION_BYTES;
use nat::class::MAPPING_BYTES;
use nat::settings::Rate;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::CANNOT_PROVIDE_EXTERNAL;
use super::MALFORMED_REQUEST;
use super::NO_RESOURCES;
use super::NOT_AUTHORIZED;
use super::SUCCESS;
use super::USER_EX_QUOTA;
use super::bed;
use super::udp;
use super::with_pcp;

#[test]
fn a_peer_reply_repeats_the_request() {
    covers!("6887-12.3a", "6887-12.3c");
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    let mut bed = bed();
    let told = bed.pcp(&ask);
    let sent = ask.message();
    assert_eq!((told.code, told.message.len()), (SUCCESS, 80));
    assert_eq!((&told.message[24..42], &told.message[60..]), (&sent[24..42], &sent[60..]));
    assert!(bed.is_open(Protocol::Udp, at(E1, 53), told.external, at(I1, 7_000)));
    assert!(!bed.is_open(Protocol::Udp, at(E1, 54), told.external, at(I1, 7_000)), "only its peer");
    assert_eq!(bed.open_udp(at(I1, 7_000), at(E1, 53)), told.external, "packets use it");
}

#[test]
fn a_bad_peer_is_malformed() {
    covers!("6887-12.3b");
    for remote in [at(Ipv4Addr::LOCALHOST, 53), at(Ipv4Addr::new(224, 0, 0, 1), 53), at(E1, 0)] {
        assert_eq!(bed().pcp(&Ask::peer(I1, Protocol::Udp, 7_000, remote)).code, MALFORMED_REQUEST);
    }
}

#[test]
fn a_peer_suggestion_is_all_or_nothing() {
    covers!("6887-12.3d", "6887-12.3c");
    let mut bed = bed();
    let taken = bed.granted(&Ask::map(I2, Protocol::Udp, 7_000));
    let before = bed.mappings().len();
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    assert_eq!(bed.pcp(&ask.clone().suggest(taken)).code, CANNOT_PROVIDE_EXTERNAL);
    assert_eq!(bed.mappings().len(), before, "no state");
    let own = bed.granted(&udp(7_001));
    let free = at(*own.ip(), own.port() ^ 1);
    assert_eq!(bed.pcp(&ask.suggest(free)).external, free);
}

#[test]
fn a_peer_of_an_existing_flow_gets_its_endpoint() {
    covers!("6887-12.3e", "6887-12.3f");
    let mut bed = bed();
    let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    for lifetime in [600, 1_200] {
        let told = bed.pcp(&ask.clone().suggest(at(POOL[0], 9)).lifetime(lifetime));
        assert_eq!((told.code, told.external, told.lifetime), (SUCCESS, external, lifetime));
    }
    assert_eq!(bed.pcp(&ask.nonce(9)).code, NOT_AUTHORIZED);
}

/// Beside the mapping of packets, it needs a session for the grant and one for the peer.
#[test]
fn a_peer_without_room_for_its_session_changes_nothing() {
    let limits: [fn(&mut Settings, u32); 5] = [
        |settings, less| settings.subscriber.sessions_max = 3 - less,
        |settings, less| {
            settings.subscriber.memory_max = MAPPING_BYTES + 2 * EXTRA_SESSION_BYTES - u64::from(less);
        },
        |settings, less| settings.subscriber.new_sessions = Some(Rate { per_second: 1, burst: 2 - less }),
        |settings, less| settings.limits.sessions_per_mapping_max = 3 - less,
        |settings, less| settings.limits.extra_sessions_max = 2 - less,
    ];
    let codes = [USER_EX_QUOTA, USER_EX_QUOTA, USER_EX_QUOTA, USER_EX_QUOTA, NO_RESOURCES];
    for (number, (limit, code)) in limits.into_iter().zip(codes).enumerate() {
        for less in [0, 1] {
            let mut settings = with_pcp();
            limit(&mut settings, less);
            let mut bed = Bed::new(settings);
            let external = bed.open_udp(at(I1, 7_000), at(E1, 53));
            let before = bed.counters();
            let told = bed.pcp(&Ask::peer(I1, Protocol::Udp, 7_000, at(E2, 53)));
            if less == 0 {
                assert_eq!((told.code, told.external), (SUCCESS, external), "limit {number}");
                assert!(bed.is_open(Protocol::Udp, at(E2, 53), external, at(I1, 7_000)), "limit {number}");
                continue;
            }
            assert_eq!((told.code, bed.grants().len()), (code, 0), "limit {number}");
            let after = bed.counters();
            assert_eq!((after.sessions_created, after.sessions_removed), (before.sessions_created, 0), "{number}");
            assert_eq!(after.grants_opened, 0, "limit {number}");
            assert_eq!(bed.open_udp(at(I1, 7_000), at(E2, 53)), external, "limit {number}: packets may have it");
        }
    }
}

#[test]
fn a_peer_outlives_the_idle_time_and_then_is_like_any_other() {
    covers!("6887-12.3g", "6887-12.3h");
    let mut bed = bed();
    let idle = bed.settings().timeouts.udp.as_micros() / 1_000_000;
    let told = bed.pcp(&Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53)).lifetime(3_600));
    assert!(u64::from(told.lifetime) > idle);
    bed.open_udp(at(I1, 7_000), at(E1, 53));
    bed.advance_secs(3_000);
    assert!(bed.is_open(Protocol::Udp, at(E1, 53), told.external, at(I1, 7_000)));
    bed.advance_secs(600 + idle + 10);
    assert!(!bed.is_open(Protocol::Udp, at(E1, 53), told.external, at(I1, 7_000)));
}

/// Idle, a mapping without a PEER is gone after this time.
fn idle_secs(bed: &Bed) -> u64 {
    bed.settings().timeouts.udp.as_micros() / 1_000_000 + 10
}

#[test]
fn a_deleted_peer_leaves_the_timers_of_packets() {
    covers!("6887-12.3h", "6887-15b");
    for has_packets in [false, true] {
        let mut bed = bed();
        let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
        if has_packets {
            bed.open_udp(at(I1, 7_000), at(E1, 53));
        }
        let told = bed.pcp(&ask.clone().lifetime(86_400));
        bed.advance_secs(5);
        let left = bed.pcp(&ask.lifetime(0));
        let idle = idle_secs(&bed);
        assert_eq!(left.code, SUCCESS);
        assert!((1..=idle).contains(&u64::from(left.lifetime)), "{} s are left of {idle}", left.lifetime);
        bed.advance_secs(u64::from(left.lifetime) - 2);
        assert_eq!(bed.mappings().len(), 1, "not before packets alone would let it end");
        assert!(!bed.is_open(Protocol::Udp, at(E2, 53), told.external, at(I1, 7_000)));
        bed.advance_secs(15);
        assert_eq!((bed.mappings().len(), bed.sessions().len()), (0, 0), "with packets: {has_packets}");
    }
}

#[test]
fn a_peer_is_shortened_by_a_renewal() {
    covers!("6887-12.3e", "6887-15b");
    let mut bed = bed();
    let idle = idle_secs(&bed);
    bed.open_udp(at(I1, 7_000), at(E1, 53));
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53));
    bed.pcp(&ask.clone().lifetime(86_400));
    assert_eq!(bed.pcp(&ask.lifetime(120)).lifetime, 120);
    bed.advance_secs(idle.max(120) + 10);
    assert_eq!((bed.grants().len(), bed.mappings().len(), bed.sessions().len()), (0, 0, 0));
}

/// What a client gives up does not stay beyond the limit.
#[test]
fn deleted_peers_leave_nothing_beyond_their_timers() {
    covers!("6887-11.3o", "6887-15b");
    let mut settings = with_pcp();
    settings.port_control.mappings_per_subscriber = 3;
    let mut bed = Bed::new(settings);
    for port in 7_000..7_200 {
        let ask = Ask::peer(I1, Protocol::Udp, port, at(E1, 53));
        assert_eq!(bed.pcp(&ask.clone().lifetime(86_400)).code, SUCCESS, "{port}");
        assert_eq!(bed.pcp(&ask.lifetime(0)).code, SUCCESS, "{port}");
        bed.advance_secs(1);
    }
    let idle = idle_secs(&bed);
    bed.advance_secs(idle);
    assert_eq!((bed.grants().len(), bed.mappings().len(), bed.sessions().len()), (0, 0, 0));
}

#[test]
fn a_peer_ends_with_its_connection() {
    covers!("6887-12.3h");
    let mut bed = bed();
    let external = bed.connect(at(I1, 7_000), at(E1, 80));
    assert_eq!(bed.pcp(&Ask::peer(I1, Protocol::Tcp, 7_000, at(E1, 80)).lifetime(20_000)).external, external);
    bed.advance_secs(9_000);
    assert_eq!(bed.sessions().len(), 1, "longer than an idle connection");
    bed.inside(&build::tcp(at(I1, 7_000), at(E1, 80), Flags::RST).sequence(2).build());
    bed.outside(&build::tcp(at(E1, 80), external, Flags::RST).sequence(2).build());
    bed.advance_secs(600);
    assert_eq!((bed.sessions().len(), bed.mappings().len()), (0, 0));
}
