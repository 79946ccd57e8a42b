//! Registrations of SIP beside each other, and beside what port control grants.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use alg::AlgId;
use nat::Protocol;
use nat::Settings;
use nat::settings::Filtering;
use nat::view::ExpectationView;
use nat::view::Filter;
use nat::view::Query;
use testkit::*;
use wire::build;

use super::gateways::INVITE;
use super::gateways::Talk;
use super::gateways::udp_text;
use super::gateways::with;

const SUCCESS: u8 = 0;
const NOT_AUTHORIZED: u8 = 2;
const USER_EX_QUOTA: u8 = 10;

const PHONE: SocketAddrV4 = at(I1, 5060);
const FIRST: SocketAddrV4 = at(E1, 5060);
const SECOND: SocketAddrV4 = at(E2, 5060);

fn with_port_control() -> Settings {
    let mut settings = with(&["sip"]);
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (true, true);
    settings
}

/// The external endpoint of the phone.
fn register(bed: &mut Bed, registrar: SocketAddrV4, contact: &str, expires: u32) -> SocketAddrV4 {
    let text = format!(
        "REGISTER sip:{} SIP/2.0\r\nVia: SIP/2.0/UDP {PHONE};branch=z9\r\n\
Contact: {contact}\r\nExpires: {expires}\r\nCSeq: 1 REGISTER\r\n\r\n",
        registrar.ip()
    );
    bed.inside(&build::udp(PHONE, registrar).payload(text.as_bytes()).build());
    source(&bed.only_outside())
}

fn register_phone(bed: &mut Bed, registrar: SocketAddrV4, expires: u32) -> SocketAddrV4 {
    register(bed, registrar, &format!("<sip:a@{PHONE}>"), expires)
}

/// That are read now.
fn sip_sessions(bed: &Bed) -> u32 {
    let sip = usize::from(AlgId::named("sip").expect("a gateway").0);
    bed.shards().map(|shard| shard.view().gateways_now()[sip].sessions).sum()
}

/// By a phone that sends from `port`.
fn register_from(bed: &mut Bed, port: u16, contact: &str, expires: u32) {
    let phone = at(I1, port);
    let text = format!(
        "REGISTER sip:{E1} SIP/2.0\r\nVia: SIP/2.0/UDP {phone};branch=z9\r\n\
Contact: {contact}\r\nExpires: {expires}\r\nCSeq: 1 REGISTER\r\n\r\n"
    );
    bed.inside(&build::udp(phone, FIRST).payload(text.as_bytes()).build());
    bed.only_outside();
}

fn map(lifetime: u32) -> Ask {
    Ask::map(I1, Protocol::Udp, PHONE.port()).lifetime(lifetime)
}

fn map_by_nat_pmp(bed: &mut Bed, lifetime: u32) -> u8 {
    let mut request = vec![0, 1, 0, 0];
    request.extend(PHONE.port().to_be_bytes());
    request.extend([0, 0]);
    request.extend(lifetime.to_be_bytes());
    bed.answer(at(I1, 40_000), at(OWN_INSIDE, 5351), &request).expect("a reply")[3]
}

/// Which of the two registrars reaches the phone, from a port that it has not used before.
fn reached_by(bed: &mut Bed, external: SocketAddrV4, port: u16) -> [bool; 2] {
    [E1, E2].map(|host| bed.udp_reaches(at(host, port), external, PHONE))
}

/// Whether the registration is shown as used, and the seconds until it ends.
fn shown(bed: &Bed) -> (bool, u64) {
    let page = |shard: &nat::Shard| {
        let mut page = Query::all(Filter::default());
        shard.view().expectations_page(bed.now(), &mut page);
        page.records
    };
    let shown: Vec<ExpectationView> = bed.shards().flat_map(page).collect();
    let [ExpectationView(one)] = shown.first_chunk().expect("a registration");
    assert_eq!(shown.len(), 1, "{shown:?}");
    (one.is_used, one.expires_in.as_secs())
}

/// While a session uses its port: that of its REGISTER, or a call of the registrar.
#[test]
fn a_registration_is_shown_as_used_while_its_port_is() {
    let mut bed = Bed::new(with(&["sip"]));
    let external = register_phone(&mut bed, FIRST, 3_600);
    assert_eq!(shown(&bed), (true, 3_600));
    bed.advance_secs(1_800);
    assert_eq!(shown(&bed), (false, 1_800));
    assert_eq!(reached_by(&mut bed, external, 6_000), [true, false]);
    assert_eq!(shown(&bed), (true, 1_800));
    bed.run_out();
}

/// Each ends its own.
#[test]
fn two_registrars_reach_one_phone() {
    for workers in [1, 2, 8] {
        for is_star in [false, true] {
            let mut bed = Bed::new(with(&["sip"])).workers(workers);
            let end = |bed: &mut Bed, registrar| match is_star {
                // Of what the session has registered.
                true => {
                    register_phone(bed, registrar, 3_600);
                    register(bed, registrar, "*", 0)
                }
                false => register_phone(bed, registrar, 0),
            };
            let external = register_phone(&mut bed, FIRST, 3_600);
            assert_eq!(register_phone(&mut bed, SECOND, 3_600), external);
            bed.advance_secs(1_800);
            assert_eq!(reached_by(&mut bed, external, 6_000), [true, true]);
            // Each is renewed by itself.
            register_phone(&mut bed, FIRST, 3_600);
            assert_eq!(bed.grants().len(), 2);
            bed.advance_secs(2_000);
            assert_eq!(reached_by(&mut bed, external, 6_001), [true, false]);
            register_phone(&mut bed, SECOND, 3_600);
            end(&mut bed, FIRST);
            bed.advance_secs(400);
            assert_eq!(reached_by(&mut bed, external, 6_002), [false, true]);
            end(&mut bed, SECOND);
            bed.advance_secs(1);
            assert_eq!(reached_by(&mut bed, external, 6_003), [false, false]);
            bed.run_out();
        }
    }
}

#[test]
fn a_mapping_admits_all_beside_a_registration() {
    for by_pcp in [true, false] {
        let mut bed = Bed::new(with_port_control());
        let ask = |bed: &mut Bed, lifetime| match by_pcp {
            true => bed.pcp(&map(lifetime)).code,
            false => map_by_nat_pmp(bed, lifetime),
        };
        let external = register_phone(&mut bed, FIRST, 3_000);
        assert_eq!(reached_by(&mut bed, external, 6_000), [true, false]);
        assert_eq!(ask(&mut bed, 600), SUCCESS);
        assert_eq!(reached_by(&mut bed, external, 6_001), [true, true]);
        // A renewal of one leaves the other.
        register_phone(&mut bed, FIRST, 3_000);
        assert_eq!(reached_by(&mut bed, external, 6_002), [true, true]);
        assert_eq!(ask(&mut bed, 600), SUCCESS);
        assert_eq!(reached_by(&mut bed, external, 6_003), [true, true]);
        assert_eq!(ask(&mut bed, 0), SUCCESS);
        assert_eq!(reached_by(&mut bed, external, 6_004), [true, false]);
        bed.advance_secs(2_000);
        assert_eq!(reached_by(&mut bed, external, 6_005), [true, false]);
        bed.run_out();
    }
}

#[test]
fn a_deletion_leaves_a_registration() {
    let mut bed = Bed::new(with_port_control());
    let external = register_phone(&mut bed, FIRST, 3_000);
    assert_eq!(bed.pcp(&map(0)).code, NOT_AUTHORIZED);
    assert_eq!(map_by_nat_pmp(&mut bed, 0), SUCCESS, "there is nothing to delete");
    bed.advance_secs(2_000);
    assert_eq!(reached_by(&mut bed, external, 6_000), [true, false]);
    bed.run_out();
}

#[test]
fn a_registration_outlives_a_mapping_and_leaves_it() {
    for registration_is_longer in [true, false] {
        let mut bed = Bed::new(with_port_control());
        let external = bed.granted(&map(600));
        assert_eq!(register_phone(&mut bed, FIRST, 3_000), external);
        if registration_is_longer {
            bed.advance_secs(900);
            assert_eq!(reached_by(&mut bed, external, 6_000), [true, false]);
        } else {
            register_phone(&mut bed, FIRST, 0);
            bed.advance_secs(500);
            assert_eq!(reached_by(&mut bed, external, 6_000), [true, true]);
        }
        bed.run_out();
    }
}

/// A call over UDP from another port names the phone as its contact.
#[test]
fn a_call_does_not_shorten_a_registration() {
    let mut bed = Bed::new(with(&["sip"]));
    let external = register_phone(&mut bed, FIRST, 3_000);
    bed.inside(&build::udp(at(I1, 5090), FIRST).payload(INVITE.as_bytes()).build());
    assert!(udp_text(&bed.only_outside()).contains(&format!("<sip:alice@{external}>")));
    bed.advance_secs(2_000);
    assert_eq!(reached_by(&mut bed, external, 6_000), [true, false]);
    bed.run_out();
}

/// A call that names a port which its client has mapped leaves the mapping where it is.
#[test]
fn media_share_the_mapping_of_their_client() {
    for suggested in [20_000, 20_001] {
        let mut bed = Bed::new(with_port_control());
        let own = Ask::map(I1, Protocol::Udp, 5_004).suggest(at(POOL[0], suggested));
        let external = bed.granted(&own);
        bed.inside(&build::udp(PHONE, FIRST).payload(INVITE.as_bytes()).build());
        let text = udp_text(&bed.only_outside());
        assert!(text.contains(&format!("m=audio {} ", external.port())), "{text}");
        assert_eq!(bed.granted(&own), external, "it has not moved");
        bed.pcp(&own.lifetime(0));
        assert!(bed.udp_reaches(at(E1, 20_000), external, at(I1, 5_004)), "the call goes on");
        bed.run_out();
    }
}

#[test]
fn registrations_do_not_count_as_mappings_of_port_control() {
    let mut settings = with_port_control();
    settings.port_control.mappings_per_subscriber = 1;
    let mut bed = Bed::new(settings);
    register_phone(&mut bed, FIRST, 3_000);
    register_phone(&mut bed, SECOND, 3_000);
    let codes = [7_000, 7_001].map(|port| bed.pcp(&Ask::map(I1, Protocol::Udp, port)).code);
    assert_eq!(codes, [SUCCESS, USER_EX_QUOTA]);
    bed.run_out();
}

/// A port held down is given up to make room, but not one that something else still needs.
#[test]
fn giving_up_a_port_leaves_the_registration_there() {
    let mut settings = with_port_control();
    settings.subscriber.ports_max = [1, 1, 1];
    let mut bed = Bed::new(settings);
    let external = register_phone(&mut bed, FIRST, 3_000);
    assert_eq!(bed.pcp(&map(1_200)).code, SUCCESS);
    bed.advance_secs(600);
    assert_eq!(bed.pcp(&map(0)).code, SUCCESS);
    assert_eq!(bed.pcp(&Ask::map(I1, Protocol::Udp, 7_000)).code, USER_EX_QUOTA);
    assert_eq!(reached_by(&mut bed, external, 6_000), [true, false]);
    bed.run_out();
}

/// RFC 4787 §5 REQ-8: the gateway lets the registrar in. Everyone else meets the filtering of the
/// pool, as at any other mapping.
#[test]
fn a_registration_narrows_no_filtering() {
    for (filtering, stranger, known) in [
        (Filtering::EndpointIndependent, true, true),
        (Filtering::AddressDependent, false, true),
        (Filtering::AddressAndPortDependent, false, false),
    ] {
        for workers in [1, 8] {
            let mut bed = Bed::new(with(&["sip"]).filtering(filtering)).workers(workers);
            let external = register_phone(&mut bed, FIRST, 3_600);
            assert_eq!(reached_by(&mut bed, external, 6_000), [true, stranger], "{filtering:?}");
            bed.advance_secs(1_800);
            assert_eq!(reached_by(&mut bed, external, 6_001), [true, stranger], "{filtering:?} by the grant only");
            bed.inside(&build::udp(PHONE, at(E2, 7_000)).payload(b"x").build());
            assert_eq!(source(&bed.only_outside()), external);
            assert_eq!(reached_by(&mut bed, external, 6_002), [true, known], "{filtering:?} after a packet to it");
            // Without the registration, what is left is the filtering.
            register_phone(&mut bed, FIRST, 0);
            bed.advance_secs(1);
            let registrar = filtering != Filtering::AddressAndPortDependent;
            assert_eq!(reached_by(&mut bed, external, 6_003), [registrar, known], "{filtering:?}");
            bed.run_out();
        }
    }
}

/// RFC 3261 §10.2.2: a phone that was silent for long begins another session, and takes back what
/// it registered. Another phone at the same address does not lose its registration.
#[test]
fn a_star_ends_what_an_earlier_session_registered() {
    for workers in [1, 8] {
        let mut bed = Bed::new(with(&["sip"])).workers(workers);
        for (from, contact) in [(5060, 5060), (5060, 6060), (5070, 5070)] {
            register_from(&mut bed, from, &format!("<sip:a@{I1}:{contact}>"), 7_200);
        }
        let externals = [5060, 6060, 5070].map(|port| {
            let external = bed.mapping_of(Protocol::Udp, at(I1, port)).expect("it is registered").external;
            at(external.address, external.port)
        });
        let reached = |bed: &mut Bed, port| {
            [0, 1, 2].map(|i| bed.udp_reaches(at(E1, port), externals[i], at(I1, [5060, 6060, 5070][i])))
        };
        bed.advance_secs(3_600);
        assert_eq!(sip_sessions(&bed), 0, "its session has timed out");
        assert_eq!(reached(&mut bed, 6_000), [true; 3]);
        register_from(&mut bed, 5060, "*", 0);
        bed.advance_secs(1);
        assert_eq!(reached(&mut bed, 6_001), [false, false, true]);
        bed.run_out();
    }
}

/// Over TCP the phone sends from another port each time, and says in `Via` where it listens.
#[test]
fn a_star_over_another_connection_ends_the_registration() {
    let mut bed = Bed::new(with(&["sip"]));
    let registrar = FIRST;
    let send = |bed: &mut Bed, from: u16, contact: &str, expires: u32| {
        let mut talk = Talk::open(bed, at(I1, from), registrar);
        talk.send_out(
            bed,
            &format!(
                "REGISTER sip:{E1} SIP/2.0\r\nVia: SIP/2.0/TCP {I1}:5080;branch=z9\r\nContact: {contact}\r\n\
Expires: {expires}\r\nCSeq: 1 REGISTER\r\nContent-Length: 0\r\n\r\n"
            ),
        );
    };
    send(&mut bed, 40_000, &format!("<sip:a@{I1}:5080>"), 86_400);
    send(&mut bed, 40_002, &format!("<sip:b@{I1}:5090>"), 86_400);
    let registered = |bed: &Bed| {
        let mut ports: Vec<u16> = bed.grants().iter().map(|grant| grant.internal.port).collect();
        ports.sort_unstable();
        ports
    };
    assert_eq!(registered(&bed), [5080, 5090]);
    bed.advance_secs(20_000);
    assert_eq!((sip_sessions(&bed), registered(&bed)), (0, vec![5080, 5090]));
    send(&mut bed, 40_004, "*", 0);
    bed.advance_secs(1);
    assert_eq!(registered(&bed), [5090]);
    bed.run_out();
}
