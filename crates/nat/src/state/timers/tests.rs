use crate::settings::PortTimeout;
use crate::settings::Settings;
use crate::settings::Timeouts;
use crate::state::tcp::TcpState;
use crate::state::timers::FLOORS;
use crate::state::timers::FirstLife;
use crate::state::timers::Timers;
use crate::time::Duration;
use crate::types::Protocol;
use crate::types::Side;
use proptest::prelude::*;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn timers(timeouts: Timeouts, port_timeouts: Vec<PortTimeout>) -> Timers {
    Timers::new(&Settings { timeouts, port_timeouts, ..Settings::default() })
}

#[test]
fn by_default_udp_has_one_state() {
    let timers = timers(Timeouts::default(), Vec::new());
    let first = timers.first(Protocol::Udp, 53, Side::Inside);
    assert_eq!(first, FirstLife { state: TcpState::Established, lifetime: secs(300), has_own_timer: false });
}

#[test]
fn an_unanswered_udp_session_may_live_less_than_an_answered_one() {
    let timers = timers(Timeouts { udp_unanswered: secs(120), ..Timeouts::default() }, Vec::new());
    let first = timers.first(Protocol::Udp, 5_000, Side::Inside);
    assert_eq!(first, FirstLife { state: TcpState::UNANSWERED, lifetime: secs(120), has_own_timer: false });
    assert_eq!(timers.lifetime(Protocol::Udp, TcpState::Established, None), secs(300));
    assert_eq!(timers.first(Protocol::Icmp, 7, Side::Inside).state, TcpState::Established);
}

#[test]
fn a_destination_port_may_have_its_own_timer() {
    let of = |protocol, ports, seconds| PortTimeout { protocol, ports, idle: secs(seconds) };
    let ports =
        vec![of(Protocol::Udp, 53..=53, 10), of(Protocol::Udp, 0..=1_023, 30), of(Protocol::Tcp, 22..=22, 86_400)];
    let timers = timers(Timeouts { udp_unanswered: secs(60), ..Timeouts::default() }, ports);
    let first = timers.first(Protocol::Udp, 53, Side::Inside);
    assert_eq!(first, FirstLife { state: TcpState::Established, lifetime: secs(10), has_own_timer: true });
    assert_eq!(timers.own(Protocol::Udp, 123), Some(secs(30)));
    assert_eq!(
        [timers.own(Protocol::Udp, 1_024), timers.own(Protocol::Tcp, 53), timers.own(Protocol::Icmp, 53)],
        [None; 3]
    );
    // For TCP the established time; the rest is as for other ports.
    let own = timers.own(Protocol::Tcp, 22);
    assert_eq!(timers.lifetime(Protocol::Tcp, TcpState::FinInside, own), secs(86_400 + 240));
    assert_eq!(timers.lifetime(Protocol::Tcp, TcpState::OpeningOutbound, own), secs(240));
    assert_eq!(timers.lifetime(Protocol::Tcp, TcpState::Established, None), secs(7_440 + 240));
    let first = timers.first(Protocol::Tcp, 22, Side::Outside);
    assert_eq!((first.state, first.has_own_timer), (TcpState::OpeningInbound, false));
}

#[test]
fn under_pressure_timers_shrink_to_the_rfcs_bounds() {
    let configured = Timeouts { adapt_above_percent: Some(80), icmp: secs(160), ..Timeouts::default() };
    let mut timers = timers(configured, Vec::new());
    assert!(!timers.adapt([80; 3]));
    assert_eq!(*timers.current(), configured);
    assert!(timers.adapt([90, 0, 95]));
    assert_eq!([timers.current().udp, timers.current().icmp], [secs(210), secs(85)]);
    assert_eq!(timers.current().tcp_established, configured.tcp_established);
    assert!(timers.adapt([100; 3]));
    assert_eq!(
        [timers.current().udp, timers.current().udp_unanswered, timers.current().icmp],
        [secs(120), secs(120), secs(60)]
    );
    assert!(!timers.adapt([100; 3]));
    assert!(timers.adapt([3; 3]));
    assert_eq!(*timers.current(), configured);
}

#[test]
fn without_leave_nothing_adapts() {
    let mut timers = timers(Timeouts::default(), Vec::new());
    assert!(!timers.adapt([100; 3]));
    assert_eq!(*timers.current(), Timeouts::default());
}

proptest! {
    /// Never below the bounds, above the configured time, or longer with more pressure.
    #[test]
    fn adaptation_stays_between_the_bounds(
        above in 1_u8..100, udp in 1_u64..4_000, icmp in 1_u64..4_000, opening in 1_u64..4_000, established in 1_u64..40_000,
        uses in prop::collection::vec(0_u8..=100, 1..20),
    ) {
        let configured = Timeouts {
            udp: secs(udp), udp_unanswered: secs(udp), icmp: secs(icmp), tcp_opening: secs(opening),
            tcp_established: secs(established), adapt_above_percent: Some(above), ..Timeouts::default()
        };
        let mut uses = uses;
        uses.sort_unstable();
        let mut timers = timers(configured, Vec::new());
        let of = |timeouts: &Timeouts| [timeouts.udp, timeouts.udp_unanswered, timeouts.tcp_opening, timeouts.tcp_established, timeouts.icmp];
        let mut before = of(&configured);
        for used in uses {
            timers.adapt([used; 3]);
            let now = of(timers.current());
            for (((now, before), configured), floor) in now.iter().zip(before).zip(of(&configured)).zip(of(&FLOORS)) {
                prop_assert!(*now <= before && *now >= floor.min(configured));
            }
            before = now;
        }
    }
}
