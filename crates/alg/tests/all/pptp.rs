use alg::Transport;
use alg::WantKind;

use crate::host::Host;
use crate::host::Talk;
use crate::host::granted;

/// A control message: its kind, its length, and the words from byte 12 on.
pub(crate) fn message(kind: u16, length: u16, words: &[u16]) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(length)];
    bytes[..2].copy_from_slice(&length.to_be_bytes());
    bytes[2..8].copy_from_slice(&[0, 1, 0x1a, 0x2b, 0x3c, 0x4d]);
    bytes[8..10].copy_from_slice(&kind.to_be_bytes());
    for (i, word) in words.iter().enumerate() {
        bytes[12 + 2 * i..14 + 2 * i].copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

const CONNECTED: u16 = 0x0100;

pub(crate) fn host() -> Host {
    Host::new("pptp", 40_000, Transport::Tcp)
}

fn start() -> Vec<u8> {
    message(1, 156, &[CONNECTED])
}

fn started() -> Vec<u8> {
    message(2, 156, &[CONNECTED, CONNECTED])
}

fn open(host: Host) -> Talk {
    let mut talk = Talk::new(host);
    assert_eq!(talk.client(&start()), start());
    assert_eq!(talk.server(&started()), started());
    talk
}

/// What the client of the greeted connection [`greeted`] sends: calls, and messages about them.
pub(crate) fn calls() -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..40 {
        bytes.extend(message(7, 168, &[i % 8]));
        bytes.extend(message(15, 24, &[70 + i]));
        bytes.extend(message(5, 16, &[]));
    }
    bytes
}

pub(crate) fn greeted() -> Host {
    let mut host = host();
    host.message(true, &start());
    host.message(false, &started());
    host
}

#[test]
fn an_outgoing_call_is_rewritten() {
    let mut talk = open(host());
    let external = granted(5);
    assert_eq!(talk.client(&message(7, 168, &[5, 1, 2])), message(7, 168, &[external, 1, 2]));
    assert_eq!(talk.server(&message(8, 32, &[77, external, CONNECTED])), message(8, 32, &[77, 5, CONNECTED]));
    let wants: Vec<_> = talk.host.wants.iter().map(|want| (want.kind, want.port, want.peer, want.lifetime)).collect();
    assert_eq!(wants, [(WantKind::Call, 5, None, None), (WantKind::Call, 5, Some(77), None)]);
    for (kind, length) in [(14, 40), (15, 24), (11, 28)] {
        assert_eq!(talk.server(&message(kind, length, &[external])), message(kind, length, &[5]), "to the client");
        assert_eq!(talk.client(&message(kind, length, &[77])), message(kind, length, &[77]), "to the server");
    }
    assert_eq!(talk.client(&message(12, 16, &[5])), message(12, 16, &[external]));
    assert_eq!(talk.server(&message(13, 148, &[77])), message(13, 148, &[77]));
    assert!(talk.host.wants.iter().any(|want| want.port == 5 && want.lifetime == Some(0)));
    assert!(!talk.host.is_over);
}

#[test]
fn calls_to_a_server_inside_are_rewritten() {
    let mut inside = host();
    inside.client_is_inside = false;
    let mut talk = open(inside);
    assert_eq!(talk.client(&message(7, 168, &[5])), message(7, 168, &[5]), "of the outside");
    let external = granted(77);
    assert_eq!(talk.server(&message(8, 32, &[77, 5, CONNECTED])), message(8, 32, &[external, 5, CONNECTED]));
    assert_eq!(talk.client(&message(15, 24, &[external])), message(15, 24, &[77]));
    assert_eq!(talk.server(&message(9, 220, &[78])), message(9, 220, &[granted(78)]));
    assert_eq!(talk.client(&message(10, 24, &[6, granted(78), CONNECTED])), message(10, 24, &[6, 78, CONNECTED]),);
    assert!(talk.host.wants.iter().any(|want| (want.port, want.peer) == (78, Some(6))));
}

#[test]
fn a_refused_call_ends_what_it_asked_for() {
    let mut talk = open(host());
    talk.client(&message(7, 168, &[5]));
    let refused = |peer| message(8, 32, &[0, peer, 0x0200]);
    assert_eq!(talk.server(&refused(granted(5))), refused(5));
    assert!(talk.host.wants.iter().any(|want| want.lifetime == Some(0)));
    assert!(talk.host.wants.iter().all(|want| want.peer.is_none()));
}

#[test]
fn a_stopped_connection_ends_all_calls() {
    for kind in [3, 4] {
        let mut talk = open(host());
        for id in 0..3 {
            talk.client(&message(7, 168, &[id]));
        }
        let stop = message(kind, 16, &[CONNECTED]);
        assert_eq!(talk.server(&stop), stop);
        let ended: Vec<_> = talk.host.wants.iter().filter(|want| want.lifetime == Some(0)).collect();
        assert_eq!(ended.iter().map(|want| want.port).collect::<Vec<_>>(), [0, 1, 2]);
    }
}

#[test]
fn identifiers_of_no_call_stay() {
    let mut talk = open(host());
    for (kind, length) in [(8, 32), (10, 24), (11, 28), (12, 16), (13, 148), (14, 40), (15, 24)] {
        let bytes = message(kind, length, &[9, 8, CONNECTED][..usize::from(length / 2 - 6).min(3)]);
        assert_eq!(talk.server(&bytes), bytes);
    }
    assert!(talk.host.wants.is_empty());
}

#[test]
fn anything_ambiguous_ends_reading() {
    let mut cookie = message(7, 168, &[5]);
    cookie[4] = 0x1b;
    let mut management = message(7, 168, &[5]);
    management[3] = 2;
    for bytes in [
        b"POST / HTTP/1.1\r\n".to_vec(),
        vec![0; 16],
        cookie,
        management,
        message(7, 167, &[5]),
        message(7, 170, &[5]),
        message(0, 16, &[]),
        message(16, 16, &[]),
        message(2, 156, &[CONNECTED, CONNECTED]),
    ] {
        for is_open in [false, true] {
            let mut talk = if is_open { open(host()) } else { Talk::new(host()) };
            assert_eq!(talk.client(&bytes), bytes);
            assert!(talk.host.is_over, "{bytes:?}");
            let call = message(7, 168, &[5]);
            assert_eq!(talk.client(&call), call);
            assert!(talk.host.wants.is_empty());
        }
    }
}

#[test]
fn a_connection_is_opened_by_both_ends() {
    let refused = message(2, 156, &[CONNECTED, 0x0200]);
    let call = message(7, 168, &[5]);
    // A call first; a server first; a refusal; a call before the reply.
    for exchange in [
        vec![(true, call.clone()), (true, start()), (false, started())],
        vec![(false, started()), (true, start())],
        vec![(true, start()), (false, refused)],
        vec![(true, start()), (true, call.clone()), (false, started())],
    ] {
        let mut talk = Talk::new(host());
        for (is_client, bytes) in exchange {
            let passed = if is_client { talk.client(&bytes) } else { talk.server(&bytes) };
            assert_eq!(passed, bytes);
        }
        assert_eq!(talk.client(&call), call);
        assert!(talk.host.is_over && talk.host.wants.is_empty());
    }
}
