//! NAT slipstreaming and its kin: payload of a browser, or of a host outside, that imitates a
//! control connection. Nothing is expected, and no byte changes.

use alg::Transport;

use crate::ftp;
use crate::host::Host;
use crate::host::Talk;

const PORT: &[u8] = b"PORT 10,0,0,1,18,52\r\n";
const REGISTER: &[u8] = b"REGISTER sip:203.0.113.9 SIP/2.0\r\nVia: SIP/2.0/TCP 10.0.0.1:5060;branch=z9hG4bK1\r\n\
Contact: <sip:a@10.0.0.1:9999>\r\nContent-Length: 0\r\n\r\n";

fn expects_nothing(mut talk: Talk, exchange: &[(bool, &[u8])]) {
    for (is_client, bytes) in exchange {
        let out = if *is_client { talk.client(bytes) } else { talk.server(bytes) };
        assert_eq!(out, *bytes, "{}", String::from_utf8_lossy(bytes));
    }
    assert!(talk.host.wants.is_empty());
}

fn tcp(name: &str) -> Talk {
    Talk::new(Host::new(name, 40_000, Transport::Tcp))
}

#[test]
fn a_form_posted_to_the_ftp_port() {
    let post = b"POST / HTTP/1.1\r\nHost: x:21\r\nContent-Length: 21\r\n\r\n";
    expects_nothing(ftp::session(), &[(true, post), (true, PORT)]);
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, post), (true, PORT)]);
}

#[test]
fn commands_before_the_greeting() {
    expects_nothing(ftp::session(), &[(true, b"USER x\r\n"), (false, b"220 ready\r\n"), (true, PORT)]);
}

#[test]
fn a_server_that_greets_in_another_language() {
    expects_nothing(ftp::session(), &[(false, b"HTTP/1.1 200 OK\r\n\r\n"), (true, PORT)]);
    expects_nothing(ftp::session(), &[(false, b"230 Hi\r\n"), (true, b"USER x\r\n"), (true, PORT)]);
}

#[test]
fn a_first_command_that_is_port() {
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, PORT)]);
}

#[test]
fn a_command_at_the_start_of_a_packet_within_a_line() {
    let long = [b"USER ".as_slice(), &[b'a'; 400]].concat();
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, &[&long, PORT].concat())]);
}

#[test]
fn a_line_longer_than_any_command() {
    let long = [b"USER ".as_slice(), &[b'a'; 600], b"\r\n"].concat();
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, &long), (true, PORT)]);
}

#[test]
fn a_line_that_ends_with_a_bare_line_feed() {
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, b"USER a\nPORT 10,0,0,1,18,52\r\n")]);
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, b"USER a\rPORT 10,0,0,1,18,52\r\n")]);
    expects_nothing(ftp::session(), &[(false, b"220 ready\r\n"), (true, b"USER a\0"), (true, PORT)]);
}

#[test]
fn a_form_posted_to_the_sip_port() {
    let post = b"POST / HTTP/1.1\r\nHost: x:5060\r\nContent-Length: 200\r\n\r\n";
    expects_nothing(tcp("sip"), &[(true, post), (true, REGISTER)]);
}

#[test]
fn a_form_whose_padding_fills_a_segment_before_a_register() {
    let padding = [b"POST / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n".as_slice(), &[b'x'; 1407]].concat();
    expects_nothing(tcp("sip"), &[(true, &padding), (true, REGISTER)]);
}

#[test]
fn a_register_in_the_body_of_a_message() {
    let head = format!("MESSAGE sip:x SIP/2.0\r\nContent-Length: {}\r\n\r\n", REGISTER.len());
    expects_nothing(tcp("sip"), &[(true, &[head.as_bytes(), REGISTER].concat())]);
}

#[test]
fn two_different_lengths() {
    let message = b"MESSAGE sip:x SIP/2.0\r\nContent-Length: 5\r\nl: 0\r\n\r\n";
    expects_nothing(tcp("sip"), &[(true, message), (true, REGISTER)]);
}

#[test]
fn a_message_longer_than_any_call() {
    let message = [b"MESSAGE sip:x SIP/2.0\r\nContent-Length: 9000\r\n\r\n".as_slice(), &[b' '; 1000]].concat();
    expects_nothing(tcp("sip"), &[(true, &message), (true, REGISTER)]);
}

#[test]
fn a_contact_of_another_host_or_with_a_low_port() {
    for contact in ["10.0.0.2:9999", "10.0.0.1:22", "10.0.0.1:1023", "printer.lan:9999", "10.0.0.01:9999"] {
        let text = String::from_utf8_lossy(REGISTER).replace("10.0.0.1:9999", contact).replace("10.0.0.1:5060", "x:1");
        expects_nothing(tcp("sip"), &[(true, text.as_bytes())]);
    }
}

#[test]
fn media_of_another_host() {
    let sdp = "v=0\r\nc=IN IP4 10.0.0.2\r\nm=audio 5004 RTP/AVP 0\r\n";
    let text =
        format!("INVITE sip:x SIP/2.0\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}", sdp.len());
    expects_nothing(tcp("sip"), &[(true, text.as_bytes())]);
}

#[test]
fn http_to_the_rtsp_port() {
    let setup = b"SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    expects_nothing(tcp("rtsp"), &[(true, b"GET / HTTP/1.1\r\n\r\n"), (true, setup)]);
    expects_nothing(tcp("rtsp"), &[(true, b"$\0\0\x04abcd"), (true, setup)]);
}
