use super::*;

const SOURCE: u128 = 0x2001_0db8_0000_0000_0000_0000_0000_0001;
const DESTINATION: u128 = 0x2001_0db8_0000_0000_0000_0000_0000_0002;

#[test]
fn the_checksum_covers_the_pseudo_header() {
    let mut message = [128, 0, 0, 0, 0, 7, 0, 1, b'p', b'i', b'n', b'g'];
    let mut view = Icmp6::new_checked(message.as_mut_slice()).expect("a message");
    view.fill_checksum(SOURCE, DESTINATION);
    // By hand: 2001+0db8+1 + 2001+0db8+2 + c + 3a + 8000+7+1 + 7069+6e67 = 1ba93, folded ba94.
    assert_eq!(view.checksum(), !0xba94);
    assert!(view.is_checksum_valid(SOURCE, DESTINATION));
    assert!(!view.is_checksum_valid(SOURCE, DESTINATION + 1));
    assert_eq!((view.identifier(), view.sequence()), (7, 1));
}

#[test]
fn extensions_are_behind_the_length_in_words_of_eight_bytes() {
    let mut message = vec![0; 8 + 128 + 8];
    message[0] = TYPE_TIME_EXCEEDED;
    assert_eq!(extension_layout(&message).quote, 8..144);
    message[4] = 16;
    let layout = extension_layout(&message);
    assert_eq!((layout.quote, layout.extension), (8..136, 136..144));
    message[4] = 17;
    assert_eq!(extension_layout(&message).quote, 8..144, "nothing is behind it");
    message[4] = 18;
    assert_eq!(extension_layout(&message).quote, 8..144, "it reaches past the end");
    message[4] = 16;
    message[0] = TYPE_PARAMETER_PROBLEM;
    assert_eq!(extension_layout(&message).quote, 8..144, "the type has none");
}

#[test]
fn errors_have_the_high_bit_clear() {
    assert!(is_error(1) && is_error(127) && !is_error(128) && !is_error(255));
    assert_eq!(Icmp6::new_checked([0; 7]).err(), Some(Fault::Truncated));
}
