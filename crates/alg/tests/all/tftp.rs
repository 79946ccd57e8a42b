use alg::Transport;

use crate::host::Host;

#[test]
fn requests_expect_an_answer_from_another_port() {
    for request in [&b"\0\x01boot.bin\0octet\0"[..], b"\0\x02log\0NetASCII\0blksize\x001428\0"] {
        let mut host = Host::new("tftp", 40_000, Transport::Udp);
        assert_eq!(host.message(true, request), request);
        assert_eq!(host.wants.iter().map(|want| want.port).collect::<Vec<_>>(), [40_000]);
    }
}

#[test]
fn anything_else_expects_nothing() {
    for request in [
        &b"\0\x03\0\x01data"[..],
        b"\0\x01boot.bin\0octet",
        b"\0\x01\0octet\0",
        b"\0\x01a\nb\0octet\0",
        b"\0\x01a\0b\0",
        b"\0",
    ] {
        let mut host = Host::new("tftp", 40_000, Transport::Udp);
        assert_eq!(host.message(true, request), request);
        assert!(host.wants.is_empty());
    }
    let mut from_outside = Host::new("tftp", 40_000, Transport::Udp);
    from_outside.client_is_inside = false;
    from_outside.message(true, b"\0\x01boot.bin\0octet\0");
    assert!(from_outside.wants.is_empty());
}
