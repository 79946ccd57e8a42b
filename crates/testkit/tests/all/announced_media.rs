//! Media at announced ports that flow only from outside: a film, or a call in which one side
//! listens.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use testkit::*;
use wire::build;

use super::gateways::INVITE;
use super::gateways::Talk;
use super::gateways::close;
use super::gateways::udp_text;
use super::gateways::with;

/// Twice the time after which a UDP session ends with the default timers.
const MINUTES: u64 = 10;
/// RTCP reports come at least so often (RFC 3550 §6.2).
const INTERVAL_S: u64 = 5;

/// RTP and RTCP of one stream: what the outside sends from, and where it leads.
struct Stream {
    remotes: [SocketAddrV4; 2],
    externals: [SocketAddrV4; 2],
    insides: [SocketAddrV4; 2],
}

impl Stream {
    fn new(external: SocketAddrV4, inside: SocketAddrV4) -> Stream {
        let pair = |first: SocketAddrV4| [first, at(*first.ip(), first.port() + 1)];
        Stream { remotes: pair(at(E1, 20_000)), externals: pair(external), insides: pair(inside) }
    }

    /// How many seconds each port is reached for.
    fn play(&self, bed: &mut Bed, seconds: u64) -> [u64; 2] {
        let mut reached = [0; 2];
        for _ in 0..seconds / INTERVAL_S {
            for (i, reached) in reached.iter_mut().enumerate() {
                let arrives = bed.udp_reaches(self.remotes[i], self.externals[i], self.insides[i]);
                *reached += if arrives { INTERVAL_S } else { 0 };
            }
            bed.advance_secs(INTERVAL_S);
        }
        reached
    }

    /// The inside sends one packet from each port.
    fn answer(&self, bed: &mut Bed) {
        for i in 0..2 {
            assert_eq!(bed.open_udp(self.insides[i], self.remotes[i]), self.externals[i]);
        }
    }
}

fn number_after(text: &str, name: &str) -> u16 {
    let rest = text.split(name).nth(1).expect("its place");
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|port| port.parse().ok()).expect("a port")
}

fn call(bed: &mut Bed) -> Stream {
    let text = INVITE.replace("65\r\n\r\n", "77\r\n\r\n") + "a=recvonly\r\n";
    bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(text.as_bytes()).build());
    let sent = bed.only_outside();
    Stream::new(at(*source(&sent).ip(), number_after(&udp_text(&sent), "m=audio ")), at(I1, 5_004))
}

fn film(bed: &mut Bed) -> (Talk, Stream) {
    let mut talk = Talk::open(bed, at(I1, 40_000), at(E1, 554));
    let setup = "SETUP rtsp://x/a RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP;unicast;client_port=5004-5005\r\n\r\n";
    let sent = talk.send_out(bed, setup);
    let external = at(*talk.external.ip(), number_after(&sent, "client_port="));
    (talk, Stream::new(external, at(I1, 5_004)))
}

/// The inside sends nothing, or one packet to open the firewalls on its way, early or while it
/// already hears something.
#[test]
fn one_sided_media_last_as_long_as_they_come() {
    covers!("4787-REQ-6a");
    for workers in [1, 2, 8] {
        for is_film in [false, true] {
            for answers_after in [None, Some(0), Some(10)] {
                let mut bed = Bed::new(with(&["sip", "rtsp"])).workers(workers);
                let (_talk, stream) = match is_film {
                    true => film(&mut bed),
                    false => (Talk::opened(at(I1, 1), at(E1, 1), at(E1, 1)), call(&mut bed)),
                };
                if let Some(seconds) = answers_after {
                    stream.play(&mut bed, seconds);
                    stream.answer(&mut bed);
                }
                let seconds = MINUTES * 60;
                assert_eq!(stream.play(&mut bed, seconds), [seconds; 2], "{is_film} {answers_after:?}");
                let stranger = at(E2, 20_000);
                assert!(!bed.udp_reaches(stranger, stream.externals[0], stream.insides[0]));
                // They end like any session.
                bed.advance_secs(301);
                assert_eq!(stream.play(&mut bed, 60), [0; 2]);
                bed.run_out();
            }
        }
    }
}

/// A sender that ignores the end of its session keeps no port.
#[test]
fn a_closed_rtsp_session_keeps_no_media() {
    let mut bed = Bed::new(with(&["rtsp"]));
    let (talk, stream) = film(&mut bed);
    assert_eq!(stream.play(&mut bed, 60), [60; 2]);
    close(&mut bed, &talk);
    let seconds = stream.play(&mut bed, MINUTES * 60)[0];
    assert!((290..=310).contains(&seconds), "{seconds} s");
    bed.run_out();
}

/// What no payload has announced is still kept by the inside only (RFC 4787 §4.3 REQ-6).
#[test]
fn other_sessions_are_not_kept_from_outside() {
    covers!("4787-REQ-6a");
    let mut bed = Bed::new(with(&["sip", "rtsp"]));
    let external = bed.open_udp(at(I1, 5_004), at(E1, 20_000));
    let stream = Stream::new(external, at(I1, 5_004));
    let seconds = stream.play(&mut bed, MINUTES * 60)[0];
    assert!((295..=305).contains(&seconds), "{seconds} s");
    bed.run_out();
}
