//! Floods of requests leave traffic alone.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::SUCCESS;
use super::bed;
use super::udp;
use super::with_pcp;

#[test]
fn a_flood_of_requests_leaves_traffic_alone() {
    covers!("6887-8.2e");
    let mut bed = bed();
    let external = bed.open_udp(at(I2, 5_000), at(E1, 53));
    for number in 0..20_000_u32 {
        bed.inside(&Ask { port: number as u16, ..udp(0) }.packet());
    }
    let counters = bed.counters();
    assert!(counters.port_control_limited > 19_000, "{} limited", counters.port_control_limited);
    assert!(bed.mappings().len() < 66);
    bed.take_inside();
    assert!(bed.udp_reaches(at(E1, 53), external, at(I2, 5_000)));
    bed.inside(&Ask::map(I3, Protocol::Udp, 1).packet());
    assert_eq!(PcpReply::of(payload(&bed.only_inside())).code, SUCCESS, "another client is served");
}

/// Of spoofed sources, forged clients, third parties, and one that scans ports: established traffic
/// of others loses nothing, whatever the number of workers.
#[test]
fn floods_of_any_kind_leave_established_traffic_alone() {
    covers!("6887-8.2e");
    let run = |workers: usize| {
        let mut settings = with_pcp().limits(|limits| {
            (limits.mappings_max, limits.extra_sessions_max, limits.subscribers_max) = (6_000, 6_000, 2_000);
        });
        settings.port_control.nat_pmp = true;
        settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 12], 32)];
        let mut bed = Bed::new(settings).workers(workers);
        let flows: Vec<_> = (0..40_u16)
            .map(|number| {
                let (inside, remote) = (at(if number % 2 == 0 { I1 } else { I2 }, 5_000 + number), at(E1, 53));
                let external =
                    if number % 4 < 2 { bed.open_udp(inside, remote) } else { bed.connect(inside, at(E1, 80)) };
                (number % 4 < 2, inside, external)
            })
            .collect();
        let victim = |number: u32| Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(100, 64, 32, 0)) + number);
        for number in 0..24_000_u32 {
            let ask = Ask { port: 1_024 + (number % 60_000) as u16, ..Ask::map(victim(number), Protocol::Udp, 0) };
            let packet = match number % 6 {
                0 => ask.packet(),
                1 => Ask { from: at(I3, 40_000), ..ask }.packet(),
                // One host may, the other may not.
                2 => Ask { from: at(I3, 40_000), client: I3, ..ask }.third_party(victim(number)).packet(),
                3 => Ask { from: at(I1, 40_000), client: I1, ..ask }.third_party(I2).packet(),
                4 => Ask { from: at(I3, 40_001), client: I3, ..ask }
                    .suggest(at(POOL[0], 1_024 + (number % 60_000) as u16))
                    .prefer_failure()
                    .packet(),
                _ => {
                    let request = [0, 1, 0, 0, (number >> 8) as u8, number as u8, 0, 0, 0, 0, 2, 0];
                    build::udp(at(victim(number), 40_000), at(OWN_INSIDE, 5_351)).payload(&request).build()
                }
            };
            bed.inside(&packet);
            if number % 64 == 0 {
                for reply in bed.take_inside() {
                    assert!(payload(&reply).len() <= 100, "no reply is longer than a request");
                }
                assert!(bed.take_outside().is_empty(), "nothing goes outside");
                bed.advance(Duration::from_micros(500));
            }
            if number % 480 == 0 {
                bed.take_inside();
                for (is_udp, inside, external) in &flows {
                    let remote = at(E1, if *is_udp { 53 } else { 80 });
                    let (out, back) = if *is_udp {
                        (build::udp(*inside, remote), build::udp(remote, *external))
                    } else {
                        let segment = |from, to| build::tcp(from, to, Flags::ACK).sequence(1).acknowledgment(1);
                        (segment(*inside, remote), segment(remote, *external))
                    };
                    bed.inside(&out.build());
                    assert_eq!(source(&bed.only_outside()), *external);
                    bed.outside(&back.build());
                    assert_eq!(destination(&bed.only_inside()), *inside);
                }
            }
        }
        let counters = bed.counters();
        assert!(counters.port_control_limited > 0, "{} limited", counters.port_control_limited);
        let of_scanner = bed.grants().iter().filter(|grant| grant.internal.address == I3).count();
        assert!(of_scanner <= 64, "{of_scanner} grants of the host that scans");
        bed.check_books();
        bed.run_out();
        assert!(bed.grants().is_empty());
        assert_eq!(bed.ports_used(), 0);
    };
    [1, 2, 8].into_iter().for_each(run);
}
