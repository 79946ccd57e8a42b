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

/// Its sender may wait for an acknowledgement of the header before it sends the body (RFC 896).
#[test]
fn a_header_does_not_wait_for_its_body() {
    let mut talk = session();
    let describe = b"DESCRIBE rtsp://x/a RTSP/1.0\r\n\r\n";
    assert_eq!(talk.client(describe), describe);
    let header = b"RTSP/1.0 200 OK\r\nContent-Length: 40\r\n\r\n";
    assert_eq!(talk.server(header), header);
    // What is not a message does not become one.
    let body = b"SETUP rtsp://x/ RTSP/1.0\r\nTransport: x\r\n";
    assert_eq!(body.len(), 40);
    assert_eq!(talk.server(&body[..15]), &body[..15]);
    assert_eq!(talk.server(&body[15..]), &body[15..]);
    let setup = b"SETUP rtsp://x/b RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5002-5003\r\n\r\n";
    assert_ne!(talk.client(setup), setup, "it is still read");
    let reply = "RTSP/1.0 200 OK\r\nTransport: RTP/AVP;unicast;client_port=25002-25003;server_port=6000-6001\r\n\r\n";
    assert_eq!(text(talk.server(reply.as_bytes())), reply.replace("25002-25003", "5002-5003"));
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

/// Players and set-top boxes write more than RFC 2326 has in its examples.
#[test]
fn transports_of_real_clients_are_translated() {
    for (transport, wanted) in [
        ("MP2T/H2221/UDP;unicast;client_port=5000", "MP2T/H2221/UDP;unicast;client_port=25000"),
        ("RAW/RAW/UDP;unicast;client_port=5000-5001", "RAW/RAW/UDP;unicast;client_port=25000-25001"),
        ("RTP/AVP; unicast; client_port=5000-5001", "RTP/AVP; unicast; client_port=25000-25001"),
        (
            "RTP/AVP;unicast;destination=10.0.0.1;client_port=5000-5001",
            "RTP/AVP;unicast;destination=198.51.100.7;client_port=25000-25001",
        ),
        ("MP2T/H2221/TCP;unicast;client_port=5000", "MP2T/H2221/TCP;unicast;client_port=5000"),
        // RFC 7826 §20.1: a quoted quote.
        (r#"RTP/AVP;url="a\",;b";client_port=5000"#, r#"RTP/AVP;url="a\",;b";client_port=25000"#),
        ("RTP/AVP;destination=10.0.0.2;client_port=5000", "RTP/AVP;destination=10.0.0.2;client_port=25000"),
    ] {
        let setup = format!("SETUP rtsp://x/a RTSP/1.0\r\nTransport: {transport}\r\n\r\n");
        assert_eq!(text(session().client(setup.as_bytes())), setup.replace(transport, wanted));
    }
}

/// RFC 7826 §18.54: a pair or one endpoint, each with an address, a port, or both.
#[test]
fn every_form_of_addresses_is_translated_both_ways() {
    for (own, hidden, wants) in [
        (r#"":5000""#, r#"":25000""#, &[(WantKind::Data, 5000)][..]),
        (r#"":5001""#, r#"":25001""#, &[(WantKind::Data, 5001)]),
        (r#""10.0.0.1:5000""#, r#""198.51.100.7:25000""#, &[(WantKind::Data, 5000)]),
        (r#"":5000"/":5001""#, r#"":25000"/":25001""#, &[(WantKind::Pair, 5000)]),
        (r#""10.0.0.1:5000"/":5001""#, r#""198.51.100.7:25000"/":25001""#, &[(WantKind::Pair, 5000)]),
        (r#"":5001"/":5002""#, r#"":25001"/":25002""#, &[(WantKind::Data, 5001), (WantKind::Data, 5002)]),
        (
            r#""10.0.0.1:5000"/"10.0.0.1:7000""#,
            r#""198.51.100.7:25000"/"198.51.100.7:27000""#,
            &[(WantKind::Data, 5000), (WantKind::Data, 7000)],
        ),
        (r#""10.0.0.1""#, r#""198.51.100.7""#, &[]),
    ] {
        let transport = |addresses: &str| format!("RTP/AVP/UDP;unicast;dest_addr={addresses};RTCP-mux");
        let setup = format!("SETUP rtsp://x/a RTSP/2.0\r\nTransport: {}\r\n\r\n", transport(own));
        let mut talk = session();
        let out = text(talk.client(setup.as_bytes()));
        assert_eq!(out, setup.replace(own, hidden));
        let asked: Vec<_> = talk.host.wants.iter().map(|want| (want.kind, want.port)).collect();
        assert_eq!(asked, wants, "{own}");
        let needs = talk.host.wants.iter().any(|want| want.needs_own_address);
        assert_eq!(needs, own.contains(r#"":"#), "{own}: where no address is named, that of the session counts");
        let server = r#"src_addr="203.0.113.9:6000"/"203.0.113.9:6001""#;
        let reply = format!("RTSP/2.0 200 OK\r\nTransport: {};{server}\r\n\r\n", transport(hidden));
        assert_eq!(text(talk.server(reply.as_bytes())), reply.replace(hidden, own));

        // A server inside, with the same addresses as its source.
        let mut talk = session();
        talk.host.client_is_inside = false;
        let setup = "SETUP rtsp://x/a RTSP/2.0\r\nTransport: RTP/AVP;dest_addr=\":6000\"\r\n\r\n";
        assert_eq!(text(talk.client(setup.as_bytes())), setup);
        let reply = |addresses: &str| {
            format!("RTSP/2.0 200 OK\r\nTransport: RTP/AVP;dest_addr=\":6000\";src_addr={addresses}\r\n\r\n")
        };
        assert_eq!(text(talk.server(reply(own).as_bytes())), reply(hidden));
        let asked: Vec<_> = talk.host.wants.iter().map(|want| (want.kind, want.port)).collect();
        assert_eq!(asked, wants, "{own}");
        let later =
            |addresses: &str| format!("SETUP rtsp://x/a RTSP/2.0\r\nTransport: RTP/AVP;src_addr={addresses}\r\n\r\n");
        assert_eq!(text(talk.client(later(hidden).as_bytes())), later(own));
    }
}

#[test]
fn addresses_that_are_not_the_senders_own_are_left_alone() {
    for addresses in [
        r#""10.0.0.2:5000""#,
        r#""10.0.0.1:5000"/"10.0.0.2:5001""#,
        r#"":80""#,
        r#"":5000"/":80""#,
        r#"":5000"/"#,
        r#"":5000"/"x:5001""#,
        r#"":5000"/":5001"/":5002""#,
        r#"":5000" x"#,
        r#"":5000"#,
        r#""""#,
        r#"":""#,
        r#"":66000""#,
    ] {
        let setup = format!("SETUP rtsp://x/a RTSP/2.0\r\nTransport: RTP/AVP;unicast;dest_addr={addresses}\r\n\r\n");
        let mut talk = session();
        assert_eq!(text(talk.client(setup.as_bytes())), setup);
        assert!(talk.host.wants.is_empty(), "{addresses}");
    }
}
