//! What clients learn from a reload, and what becomes of their mappings.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use testkit::*;
use wire::build;

use super::SUCCESS;
use super::bed;
use super::udp;
use super::with_pcp;

/// The first address drains with the reload: an idle mapping moves at once.
#[test]
fn a_renumbered_pool_sends_updates_and_resets_the_epoch_time() {
    covers!("6887-8.5c", "6887-14.2", "6887-14a");
    for workers in [1, 2, 8] {
        let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        let mut bed = Bed::new(settings.clone()).workers(workers);
        bed.advance_secs(1_000);
        let ask = udp(7_000).filter(128, at(E1, 0));
        let external = bed.granted(&ask);
        bed.reload(settings.addresses(&POOL[1..2]));
        let mut updates = Vec::new();
        for step in 0..300 {
            bed.advance(Duration::from_millis(10));
            for packet in bed.take_inside() {
                assert_eq!((source(&packet), destination(&packet)), (ask.to, ask.from));
                updates.push((step * 10, PcpReply::of(payload(&packet))));
            }
        }
        assert_eq!(updates.len(), 3, "{workers} workers");
        assert!(updates[1].0 - updates[0].0 >= 250 && updates[2].0 - updates[1].0 >= 500);
        let (_, first) = &updates[0];
        assert_eq!((first.code, *first.external.ip()), (SUCCESS, POOL[1]));
        assert!(first.epoch <= 3 && (590..=600).contains(&first.lifetime), "{first:?}");
        assert_ne!(first.external, external);
        assert!(bed.is_open(Protocol::Udp, at(E1, 5), first.external, at(I1, 7_000)), "the filter moved along");
        assert!(!bed.is_open(Protocol::Udp, at(E2, 5), first.external, at(I1, 7_000)));
        assert_eq!(bed.granted(&udp(7_000)), first.external);
        assert!(bed.pcp(&Ask::announce(I2)).epoch > 1_000, "others need not renew");
        assert_eq!(bed.counters().port_control_updates, 3);
    }
}

#[test]
fn an_update_for_a_third_party_goes_to_the_host_that_asked() {
    covers!("6887-14.2");
    for workers in [1, 2, 8] {
        let mut settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 10], 32)];
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let ask = udp(7_000).third_party(I2);
        bed.granted(&ask);
        bed.reload(settings.addresses(&POOL[1..2]));
        (0..300).for_each(|_| bed.advance(Duration::from_millis(10)));
        let updates = bed.take_inside();
        assert_eq!(updates.len(), 3, "{workers} workers");
        for update in updates {
            assert_eq!((source(&update), destination(&update)), (ask.to, ask.from));
            let told = PcpReply::of(payload(&update));
            assert_eq!((told.code, *told.external.ip()), (SUCCESS, POOL[1]));
            assert_eq!(told.options(), [(1, pcp::mapped(I2.to_bits()).to_vec())], "THIRD_PARTY is repeated");
            assert!(bed.is_open(Protocol::Udp, at(E1, 5), told.external, at(I2, 7_000)));
        }
    }
}

/// A portal hears of its subjects from their workers, and must never see the epoch time jump
/// between them.
#[test]
fn a_portal_sees_one_epoch_time_across_a_reload() {
    covers!("6887-8.5a", "6887-8.5d", "6887-13.1b");
    for workers in [1, 2, 8] {
        let mut settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
        settings.port_control.third_party = vec![topology::prefix([100, 64, 0, 10], 32)];
        let mut bed = Bed::new(settings.clone()).workers(workers);
        bed.advance_secs(1_000);
        bed.granted(&udp(7_000).third_party(I2));
        bed.reload(settings.addresses(&POOL[1..2]));
        bed.advance_secs(10);
        bed.take_inside();
        let mut seen = Vec::new();
        // A subject that moved, one without anything, and the portal itself.
        for ask in [udp(7_000).third_party(I2), udp(7_001).third_party(I3), Ask::announce(I1)] {
            let told = bed.pcp(&ask);
            assert_eq!(told.code, SUCCESS);
            seen.push(told.epoch);
        }
        assert!(seen.iter().all(|epoch| epoch.abs_diff(seen[0]) <= 1), "{seen:?} with {workers} workers");
        assert!(seen[0] <= 11, "its subjects' addresses have changed: {seen:?}");
        assert!(bed.pcp(&Ask::announce(I2)).epoch > 1_000, "the subject asked for nothing itself");
    }
}

#[test]
fn the_client_of_a_peer_learns_that_its_address_is_gone() {
    covers!("6887-14.2");
    let mut settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    settings.reload.drain_time = Some(Duration::from_secs(300));
    let mut bed = Bed::new(settings.clone());
    let ask = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53)).lifetime(7_200);
    let external = bed.granted(&ask);
    bed.reload(settings.addresses(&POOL[1..2]));
    let mut updates = Vec::new();
    for _ in 0..7_000 {
        bed.advance(Duration::from_millis(100));
        updates.extend(bed.take_inside().iter().map(|packet| PcpReply::of(payload(packet))));
    }
    assert_eq!(updates.len(), 3);
    let sent = ask.message();
    for told in updates {
        assert_eq!((told.code, told.lifetime, told.external, told.message[1]), (SUCCESS, 0, external, 0x82));
        assert_eq!((told.message.len(), &told.message[60..]), (80, &sent[60..]), "its remote endpoint is repeated");
        assert_eq!(told.message[24..42], sent[24..42]);
    }
    assert!(bed.grants().is_empty());
}

/// What `plan` says of a mapping is what happens to it.
#[test]
fn a_census_knows_what_becomes_of_grants() {
    let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    let mut bed = Bed::new(settings.clone());
    bed.granted(&udp(7_000).lifetime(7_200));
    bed.granted(&udp(7_001).lifetime(7_200));
    bed.inside(&build::udp(at(I1, 7_001), at(E1, 53)).payload(b"x").build());
    bed.take_outside();
    let mut off = settings.clone();
    off.port_control.pcp = false;
    let mappings = bed.census(off)[0].mappings;
    assert_eq!((mappings.keep, mappings.end), (1, 1), "the idle one ends without a server");
    let mappings = bed.census(settings.clone())[0].mappings;
    assert_eq!((mappings.keep, mappings.end), (2, 0));
    let moved = settings.addresses(&POOL[1..2]);
    let mappings = bed.census(moved.clone())[0].mappings;
    assert_eq!((mappings.drain + mappings.drain_until, mappings.end), (1, 1), "the idle one moves at once");
    bed.reload(moved);
    bed.advance_secs(5);
    let on = |bed: &Bed, address| bed.grants().iter().filter(|grant| grant.external.address == address).count();
    assert_eq!((on(&bed, POOL[0]), on(&bed, POOL[1])), (1, 1));
}

#[test]
fn a_mapping_in_use_drains_before_it_moves() {
    covers!("6887-14.2");
    let settings = with_pcp().addresses(&POOL[..1]).limits(|limits| limits.external_addresses_max = 8);
    let mut bed = Bed::new(settings.clone());
    let external = bed.granted(&udp(7_000).lifetime(7_200));
    bed.inside(&build::udp(at(I1, 7_000), at(E1, 53)).payload(b"x").build());
    bed.take_outside();
    bed.reload(settings.addresses(&POOL[1..2]));
    bed.advance_secs(20);
    assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 7_000)), "its session goes on");
    bed.take_inside();
    bed.advance_secs(600);
    let updates = bed.take_inside();
    assert_eq!(updates.len(), 3);
    assert_eq!(*PcpReply::of(payload(&updates[0])).external.ip(), POOL[1]);
}

/// Its client could neither renew nor delete it.
#[test]
fn disabled_port_control_ends_what_it_granted() {
    covers!("6887-14.2");
    for workers in [1, 2, 8] {
        let settings = with_pcp();
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let ask = udp(7_000).lifetime(7_200);
        let external = bed.granted(&ask);
        let in_use = bed.granted(&udp(7_001));
        bed.inside(&build::udp(at(I1, 7_001), at(E1, 53)).payload(b"x").build());
        bed.take_outside();
        let mut off = settings;
        off.port_control.pcp = false;
        bed.reload(off);
        (0..300).for_each(|_| bed.advance(Duration::from_millis(10)));
        let updates: Vec<PcpReply> = bed.take_inside().iter().map(|packet| PcpReply::of(payload(packet))).collect();
        for granted in [external, in_use] {
            let of_it: Vec<_> = updates.iter().filter(|told| told.external == granted).collect();
            assert_eq!(of_it.len(), 3, "{workers} workers");
            assert!(of_it.iter().all(|told| (told.code, told.lifetime) == (SUCCESS, 0)));
        }
        assert!(bed.grants().is_empty());
        assert!(!bed.udp_reaches(at(E2, 5), external, at(I1, 7_000)));
        assert!(bed.udp_reaches(at(E1, 53), in_use, at(I1, 7_001)), "its session goes on");
        bed.run_out();
    }
}

#[test]
fn a_loss_of_state_is_announced_to_all() {
    covers!("6887-14.1b", "6887-8.5b");
    let mut bed = bed();
    bed.restore(0, &[]);
    bed.announce_loss();
    let mut times = Vec::new();
    for step in 0..13_500_u64 {
        bed.advance(Duration::from_millis(10));
        for packet in bed.take_inside() {
            assert_eq!(source(&packet), at(OWN_INSIDE, 5_351));
            assert_eq!(destination(&packet), at(Ipv4Addr::new(224, 0, 0, 1), 5_350));
            let told = PcpReply::of(payload(&packet));
            assert_eq!((told.code, told.lifetime, told.message[1]), (SUCCESS, 0, 0x80));
            assert!(u64::from(told.epoch).abs_diff(step / 100) <= 1, "{}: seconds since the loss", told.epoch);
            times.push(step * 10);
        }
    }
    assert_eq!(times.len(), 10);
    let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps[0] >= 250 && gaps.windows(2).all(|two| two[1] + 20 >= 2 * two[0]), "{gaps:?}");
    assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
}
