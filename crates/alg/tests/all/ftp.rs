use alg::Transport;

use crate::host::Host;
use crate::host::Talk;

pub(crate) fn session() -> Talk {
    Talk::new(Host::new("ftp", 40_000, Transport::Tcp))
}

/// After login.
fn logged_in(client_is_inside: bool) -> Talk {
    let mut talk = session();
    talk.host.client_is_inside = client_is_inside;
    talk.server(b"220 (vsFTPd 3.0.3)\r\n");
    talk.client(b"USER anonymous\r\n");
    talk.server(b"331 Please specify the password.\r\n");
    talk.client(b"PASS x@\r\n");
    talk.server(b"230 Login successful.\r\n");
    talk
}

fn ports(talk: &Talk) -> Vec<u16> {
    talk.host.wants.iter().map(|want| want.port).collect()
}

#[test]
fn port_of_a_client_inside_is_rewritten() {
    let mut talk = logged_in(true);
    // 4660 = 18·256 + 52; granted 24660 = 96·256 + 84.
    assert_eq!(talk.client(b"PORT 10,0,0,1,18,52\r\n"), b"PORT 198,51,100,7,96,84\r\n");
    assert_eq!(ports(&talk), [4660]);
}

#[test]
fn eprt_of_a_client_inside_is_rewritten() {
    let mut talk = logged_in(true);
    assert_eq!(talk.client(b"EPRT |1|10.0.0.1|4660|\r\n"), b"EPRT |1|198.51.100.7|24660|\r\n");
    assert_eq!(talk.client(b"EPRT |2|2001:db8::1|4661|\r\n"), b"EPRT |2|2001:db8::1|4661|\r\n");
    assert_eq!(ports(&talk), [4660]);
}

#[test]
fn passive_replies_of_a_server_inside_are_rewritten() {
    let mut talk = logged_in(false);
    talk.client(b"PASV\r\n");
    let reply = talk.server(b"227 Entering Passive Mode (10,0,0,1,18,52).\r\n");
    assert_eq!(reply, b"227 Entering Passive Mode (198,51,100,7,96,84).\r\n");
    talk.client(b"EPSV\r\n");
    let reply = talk.server(b"229 Entering Extended Passive Mode (|||4661|)\r\n");
    assert_eq!(reply, b"229 Entering Extended Passive Mode (|||24661|)\r\n");
    assert_eq!(ports(&talk), [4660, 4661]);
    assert!(talk.host.wants[1].needs_own_address);
}

#[test]
fn passive_replies_of_a_server_outside_stay() {
    let mut talk = logged_in(true);
    talk.client(b"PASV\r\n");
    let reply = b"227 Entering Passive Mode (203,0,113,9,18,52).\r\n";
    assert_eq!(talk.server(reply), reply);
    assert_eq!(ports(&talk), []);
}

#[test]
fn a_passive_reply_needs_its_command() {
    let mut talk = logged_in(false);
    let reply = b"227 Entering Passive Mode (10,0,0,1,18,52).\r\n";
    assert_eq!(talk.server(reply), reply);
    // Replies come in the order of commands: the second one is not that of PASV.
    talk.client(b"PASV\r\n");
    talk.client(b"NOOP\r\n");
    talk.server(b"425 No passive mode.\r\n");
    assert_eq!(talk.server(reply), reply);
    assert_eq!(ports(&talk), []);
}

#[test]
fn a_passive_reply_is_found_among_those_of_other_commands() {
    // As lftp sends them (`ftp:sync-mode no`), together and one by one.
    for commands in [
        &[&b"TYPE I\r\nSIZE a\r\nPASV\r\nRETR a\r\n"[..]][..],
        &[b"TYPE I\r\n", b"SIZE a\r\n", b"PASV\r\n", b"RETR a\r\n"],
    ] {
        let mut talk = logged_in(false);
        for command in commands {
            assert_eq!(talk.client(command), *command);
        }
        talk.server(b"200 Binary.\r\n");
        talk.server(b"550 No such file.\r\n");
        let reply = b"227 Entering Passive Mode (10,0,0,1,18,52).\r\n";
        assert_eq!(talk.server(reply), b"227 Entering Passive Mode (198,51,100,7,96,84).\r\n");
        // There was one PASV.
        assert_eq!(talk.server(reply), reply);
        assert_eq!(ports(&talk), [4660]);
    }
}

#[test]
fn lines_inside_a_long_reply_are_text() {
    let mut talk = logged_in(false);
    talk.client(b"PASV\r\n");
    let reply = b"211-Status\r\n227 Entering Passive Mode (10,0,0,1,18,52).\r\n211 End\r\n";
    assert_eq!(talk.server(reply), reply);
    assert_eq!(ports(&talk), []);
}

#[test]
fn hands_off_after_auth_tls_is_accepted() {
    for (reply, is_over) in [(&b"234 Proceed.\r\n"[..], true), (b"502 No.\r\n", false)] {
        let mut talk = session();
        talk.server(b"220 ready\r\n");
        talk.client(b"AUTH TLS\r\n");
        talk.server(reply);
        let port = b"PORT 10,0,0,1,18,52\r\n";
        assert_eq!(talk.client(port) == port, is_over);
        assert_eq!(ports(&talk).is_empty(), is_over);
    }
}

#[test]
fn each_command_has_a_switch() {
    for (bit, line) in [(0, &b"PORT 10,0,0,1,18,52\r\n"[..]), (1, b"EPRT |1|10.0.0.1|4660|\r\n")] {
        let mut talk = logged_in(true);
        talk.host.disabled = 1 << bit;
        assert_eq!(talk.client(line), line);
        talk.host.disabled = !(1 << bit);
        assert_ne!(talk.client(line), line);
    }
    for (bit, command, line) in [
        (2, &b"PASV\r\n"[..], &b"227 Entering Passive Mode (10,0,0,1,18,52)\r\n"[..]),
        (3, b"EPSV\r\n", b"229 Extended (|||4660|)\r\n"),
    ] {
        let mut talk = logged_in(false);
        talk.host.disabled = 1 << bit;
        talk.client(command);
        assert_eq!(talk.server(line), line);
        talk.host.disabled = !(1 << bit);
        talk.client(command);
        assert_ne!(talk.server(line), line);
    }
}

#[test]
fn another_address_or_a_low_port_gets_nothing() {
    for line in [
        &b"PORT 10,0,0,2,18,52\r\n"[..],
        b"PORT 203,0,113,9,18,52\r\n",
        b"PORT 10,0,0,1,0,22\r\n",
        b"PORT 10,0,0,1,3,255\r\n",
        b"EPRT |1|10.0.0.1|22|\r\n",
        b"EPRT |1|10.0.0.3|4660|\r\n",
        b"PORT 10,0,0,1,18,52,9\r\n",
        b"PORT 10,0,0,1,18\r\n",
        b"PORT 10,0,0,256,18,52\r\n",
        b"PORT 010,0,0,0001,18,52\r\n",
        b"EPRT |1|10.0.0.1|99999|\r\n",
        b"EPRT |1|10.0.0.1|4660\r\n",
    ] {
        let mut talk = logged_in(true);
        assert_eq!(talk.client(line), line);
        assert_eq!(ports(&talk), [], "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn an_abort_with_telnet_bytes_passes() {
    let mut talk = logged_in(true);
    let abort = b"\xff\xf4\xff\xf2ABOR\r\n";
    assert_eq!(talk.client(abort), abort);
    assert_ne!(talk.client(b"PORT 10,0,0,1,18,52\r\n"), b"PORT 10,0,0,1,18,52\r\n");
}

#[test]
fn a_transfer_keeps_the_control_session_busy() {
    let alg = alg::AlgId::named("ftp").and_then(alg::AlgId::alg).unwrap();
    let mut talk = logged_in(true);
    talk.client(b"RETR film\r\n");
    assert!(!alg.is_busy(&talk.host.memory));
    talk.server(b"150 Opening BINARY mode data connection.\r\n");
    assert!(alg.is_busy(&talk.host.memory));
    talk.server(b"226 Transfer complete.\r\n");
    assert!(!alg.is_busy(&talk.host.memory));
}

#[test]
fn requests_of_http_with_a_method_like_a_command_get_nothing() {
    let port = b"PORT 10,0,0,1,18,52\r\n";
    let requests: [&[&[u8]]; 7] = [
        &[b"USER / HTTP/1.1\r\n", b"Host: ftp.example\r\n", b"\r\n"],
        &[b"HELP / HTTP/1.1\r\n", b"Accept: */*\r\n"],
        &[b"USER a\r\n", b"\r\n"],
        &[b"USER a\r\n", b"<html>\r\n"],
        &[b"USER a\r\n", b"{\"a\": 1}\r\n"],
        &[b"HELPxyz\r\n"],
        &[b"USER a\r\n", b" PASS b\r\n"],
    ];
    for lines in requests {
        let mut talk = session();
        talk.server(b"220 ready\r\n");
        lines.iter().for_each(|line| assert_eq!(talk.client(line), *line));
        assert_eq!(talk.client(port), port, "{lines:02x?}");
        assert_eq!(ports(&talk), [0; 0], "{lines:02x?}");
    }
    // Commands of extensions are commands.
    let mut talk = logged_in(true);
    for line in [&b"XSHA512 a b\r\n"[..], b"pwd\r\n", b"SITE CHMOD 644 a\r\n", b"OPTS UTF8 ON\r\n"] {
        talk.client(line);
    }
    assert_eq!(talk.client(port), b"PORT 198,51,100,7,96,84\r\n");
}
