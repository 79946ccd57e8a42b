use super::*;

const ROUTER: u128 = 0xfe80_0000_0000_0000_0000_0000_0000_0001;
const HOST: u128 = 0x2001_0db8_0000_0000_0000_0000_00ab_cdef;
const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

fn written(message: &Message) -> Vec<u8> {
    let mut out = [0; LENGTH_MAX];
    let length = message.write(&mut out);
    out[..length].to_vec()
}

/// Changes a packet, repairs its checksum, and reads it.
fn changed(message: &Message, change: impl Fn(&mut Vec<u8>)) -> Result<Message, Fault> {
    let mut bytes = written(message);
    change(&mut bytes);
    let (source, destination) = {
        let view = Ipv6::new_unchecked(bytes.as_slice());
        (view.source(), view.destination())
    };
    let mut message = Icmp6::new_unchecked(&mut bytes[ipv6::HEADER_LENGTH..]);
    message.fill_checksum(source, destination);
    Message::parse(&bytes)
}

#[test]
fn messages_are_read_as_they_were_written() {
    let question = Message::solicitation(ROUTER, STATION, HOST);
    let messages = [
        question,
        Message::probe(HOST),
        question.reply(STATION),
        Message::probe(HOST).reply(STATION),
        Message::announcement(HOST, STATION),
    ];
    for message in messages {
        assert_eq!(Message::parse(&written(&message)), Ok(message));
    }
    assert_eq!(question.destination, 0xff02_0000_0000_0000_0000_0001_ffab_cdef);
    assert_eq!(question.reply(STATION).destination, ROUTER);
    assert_eq!(Message::probe(HOST).reply(STATION).destination, ALL_NODES);
}

#[test]
fn messages_from_another_link_are_refused() {
    let question = Message::solicitation(ROUTER, STATION, HOST);
    assert_eq!(changed(&question, |bytes| bytes[7] = 254), Err(Fault::HopLimit));
    let mut bytes = written(&question);
    bytes[70] ^= 1;
    assert_eq!(Message::parse(&bytes), Err(Fault::Checksum));
}

#[test]
fn each_rule_of_the_rfc_is_checked() {
    let question = Message::solicitation(ROUTER, STATION, HOST);
    assert_eq!(changed(&question, |_| {}), Ok(question));
    assert_eq!(changed(&question, |bytes| bytes[41] = 1), Err(Fault::Code));
    assert_eq!(changed(&question, |bytes| bytes[48] = 0xff), Err(Fault::Target));
    assert_eq!(changed(&question, |bytes| bytes[65] = 0), Err(Fault::Option));
    assert_eq!(changed(&question, |bytes| bytes[65] = 2), Err(Fault::Option));
    assert_eq!(changed(&question, |bytes| bytes[40] = 133), Err(Fault::Other));
    assert_eq!(changed(&question, |bytes| bytes[6] = 17), Err(Fault::Other));
    let short = changed(&question, |bytes| {
        bytes.truncate(60);
        bytes[5] = 20;
    });
    assert_eq!(short, Err(Fault::Truncated));
    assert_eq!(changed(&question, |bytes| bytes[8..24].fill(0)), Err(Fault::Unspecified), "with a station");
    let probe = Message::probe(HOST);
    assert_eq!(changed(&probe, |bytes| bytes[39] ^= 1), Err(Fault::Unspecified), "to another group");
    let reply = question.reply(STATION);
    assert_eq!(changed(&reply, |bytes| bytes[24] = 0xff), Err(Fault::Solicited));
}

#[test]
fn options_of_other_types_are_passed() {
    let question = Message::solicitation(ROUTER, STATION, HOST);
    let nonce = changed(&question, |bytes| {
        bytes.splice(64..64, [14, 1, 1, 2, 3, 4, 5, 6]);
        bytes[5] += 8;
    });
    assert_eq!(nonce, Ok(question));
    let many = changed(&question, |bytes| {
        for _ in 0..OPTIONS_MAX {
            bytes.extend([14, 1, 1, 2, 3, 4, 5, 6]);
            bytes[5] += 8;
        }
    });
    assert_eq!(many, Err(Fault::Option));
}
