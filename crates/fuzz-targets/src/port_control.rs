//! Claims about requests of port control: the parser alone, and sequences through the engine.

use core::net::Ipv4Addr;
use std::hint::black_box;

use nat::Duration;
use nat::Shard;
use nat::Verdict;
use testkit::Bed;
use testkit::Variants;
use testkit::at;
use testkit::packet;
use testkit::settings;
use wire::build;

use crate::dice::Dice;

const SERVER: Ipv4Addr = testkit::OWN_INSIDE;
const STEPS_MAX: usize = 60;
/// Rounds of housekeeping in one step of time.
const ROUNDS: u64 = 16;

/// Whatever a datagram is, it is parsed without a panic, and the reply to what is refused is as
/// long as the request, in words and within the bounds.
pub fn messages(bytes: &[u8]) {
    match pcp::parse(bytes) {
        Ok(request) => {
            assert!(request.fixed_length() + request.options.len() == bytes.len());
            if let Ok(options) = pcp::parse_options(&request) {
                let reply = pcp::Reply::success(&request, 1, 2, Some((3, 4)), &options, options.port_set);
                if let Some(reply) = reply {
                    assert!(reply.as_bytes().len() <= bytes.len(), "a reply has no more than the request");
                    assert_eq!(reply.as_bytes()[1], bytes[1] | 0x80);
                }
            }
        }
        Err(pcp::Refused::Error(code)) => {
            let reply = pcp::error(bytes, code, code.lifetime(), 7);
            let length = reply.as_bytes().len();
            assert!(length.is_multiple_of(4) && length <= pcp::MESSAGE_MAX);
            assert!(length <= bytes.len().max(60));
        }
        Err(pcp::Refused::Ignored) => {}
    }
    let _ = black_box(pcp::nat_pmp::parse(bytes));
}

/// Datagrams of any content from some hosts, with time between them: each gets at most one reply,
/// nothing goes outside, every port is accounted for, and at the end nothing is left.
pub fn steps(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let choice = dice.byte();
    let mut settings = settings().ports(10_000, 10_040);
    settings.limits.mappings_max = 200;
    settings.limits.extra_sessions_max = 100;
    settings.limits.subscribers_max = 50;
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (choice & 1 == 0, choice & 2 != 0);
    settings.port_control.mappings_per_subscriber = 6;
    settings.port_control.third_party = vec![testkit::topology::prefix([100, 64, 0, 10], 32)];
    let workers = 1 + usize::from(choice >> 2 & 3);
    let mut bed = Bed::new(settings).workers(workers);
    for _ in 0..STEPS_MAX {
        if dice.is_empty() {
            break;
        }
        let operation = dice.byte();
        let host = Ipv4Addr::new(100, 64, 0, 10 + (operation >> 4 & 3));
        match operation % 8 {
            7 => {
                // In few rounds: housekeeping takes most of the time of an input.
                let time = Duration::from_millis(u64::from(dice.byte()) * 1_000 / ROUNDS);
                for _ in 0..ROUNDS {
                    bed.jump(time);
                    bed.settle();
                }
            }
            6 => {
                let to = at(Ipv4Addr::new(198, 51, 100, 1), 53);
                bed.inside(&build::udp(at(host, 7_000 + u16::from(dice.byte() & 3)), to).build());
                bed.take_outside();
            }
            _ => {
                let length = usize::from(dice.byte());
                let mut message = dice.bytes(length).to_vec();
                // Most are about themselves.
                if operation & 0x80 == 0 && message.len() >= 24 && message[0] == 2 {
                    message[8..24].copy_from_slice(&pcp::mapped(host.to_bits()));
                }
                ask(&mut bed, host, &message);
            }
        }
        assert!(bed.ports_used() <= bed.mappings().len() as u64 + bed.ports_held() + 64);
    }
    end(bed);
}

/// Expires all timers, by jumps: housekeeping in small steps over the longest lifetime takes much
/// longer than all requests.
fn end(mut bed: Bed) {
    let timeouts = bed.settings().timeouts;
    let granted = bed.grants().iter().map(|grant| grant.left).max().unwrap_or(Duration::ZERO);
    let rest = bed.settings().pools.iter().map(|pool| pool.reuse_delay).max().unwrap_or(Duration::ZERO);
    // The port of a grant is held down as long as an idle mapping, then as all ports are.
    for time in [granted, timeouts.longest(), timeouts.longest(), rest + Duration::from_secs(1)] {
        bed.jump(time);
        for _ in 0..4 {
            bed.sweep();
        }
    }
    assert!(bed.shards().all(Shard::is_empty), "records are left after all timers ran out");
    assert_eq!(bed.ports_used(), 0, "ports are in use though there is no mapping");
    assert!(bed.grants().is_empty(), "grants are left");
    bed.check_books();
}

fn ask(bed: &mut Bed, host: Ipv4Addr, message: &[u8]) {
    let before = bed.count(Verdict::Local) + bed.count(Verdict::LocalIgnored);
    bed.inside(&build::udp(at(host, 40_000), at(SERVER, pcp::SERVER_PORT)).payload(message).build());
    assert_eq!(bed.count(Verdict::Local) + bed.count(Verdict::LocalIgnored), before + 1, "one verdict");
    assert!(bed.take_outside().is_empty(), "nothing goes outside");
    // Without port control its port is unreachable.
    let replies = bed.take_inside().into_iter().filter(|reply| packet::source(reply) == at(SERVER, pcp::SERVER_PORT));
    for reply in replies {
        let payload = packet::payload(&reply);
        assert!(payload.len() <= message.len().max(60), "no amplification: {message:02x?} {payload:02x?}");
    }
}
