use alg::Transport;
use alg::WantKind;

use crate::host::Host;
use crate::host::Talk;

fn session() -> Talk {
    Talk::new(Host::new("rtsp", 40_000, Transport::Tcp))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

pub(crate) const SETUP: &str = "SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001,RTP/AVP;dest_addr=\"10.0.0.1:5000\"\r\n\r\n";

#[test]
fn ports_of_a_client_inside_are_translated_both_ways() {
    let mut talk = session();
    let setup = "SETUP rtsp://203.0.113.9/a/track1 RTSP/1.0\r\nCSeq: 3\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    let out = text(talk.client(setup.as_bytes()));
    assert_eq!(out, setup.replace("5000-5001", "25000-25001"));
    assert_eq!((talk.host.wants[0].kind, talk.host.wants[0].port), (WantKind::Pair, 5000));
    let reply = "RTSP/1.0 200 OK\r\nCSeq: 3\r\nTransport: RTP/AVP;unicast;client_port=25000-25001;server_port=6000-6001\r\n\r\n";
    assert_eq!(text(talk.server(reply.as_bytes())), reply.replace("25000-25001", "5000-5001"));
}

#[test]
fn addresses_of_rtsp_2_are_translated_both_ways() {
    let mut talk = session();
    let setup = "SETUP rtsp://x/a RTSP/2.0\r\nTransport: RTP/AVP/UDP;unicast;dest_addr=\"10.0.0.1:5000\"/\"10.0.0.1:5001\"\r\n\r\n";
    let out = text(talk.client(setup.as_bytes()));
    assert_eq!(out, setup.replace("10.0.0.1:500", "198.51.100.7:2500"));
    let reply = out.replace("SETUP rtsp://x/a RTSP/2.0", "RTSP/2.0 200 OK");
    assert_eq!(text(talk.server(reply.as_bytes())), setup.replace("SETUP rtsp://x/a RTSP/2.0", "RTSP/2.0 200 OK"));
}

#[test]
fn interleaved_data_passes_unread() {
    let mut talk = session();
    let setup = b"SETUP rtsp://x/a RTSP/1.0\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n";
    assert_eq!(talk.client(setup), setup);
    let mut reply = b"RTSP/1.0 200 OK\r\nTransport: RTP/AVP/TCP;interleaved=0-1\r\n\r\n".to_vec();
    reply.extend_from_slice(b"$\0\x20\0");
    reply.resize(reply.len() + 0x2000, b'$');
    assert_eq!(talk.server(&reply), reply);
    assert!(talk.host.wants.is_empty());
    let udp = b"SETUP rtsp://x/b RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5002-5003\r\n\r\n";
    assert_ne!(talk.client(udp), udp);
}

#[test]
fn ports_of_a_server_inside_are_translated() {
    let mut talk = session();
    talk.host.client_is_inside = false;
    let setup = b"SETUP rtsp://x/a RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    assert_eq!(talk.client(setup), setup);
    let reply = "RTSP/1.0 200 OK\r\nTransport: RTP/AVP;unicast;source=10.0.0.1;client_port=5000-5001;server_port=6000-6001\r\n\r\n";
    let wanted = reply.replace("6000-6001", "26000-26001").replace("10.0.0.1", "198.51.100.7");
    assert_eq!(text(talk.server(reply.as_bytes())), wanted);
}
