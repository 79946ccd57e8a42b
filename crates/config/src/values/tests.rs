use super::*;

#[test]
fn durations_add_up_their_parts() {
    assert_eq!(duration("300 s"), Ok(Duration::from_secs(300)));
    assert_eq!(duration("2 h 4 min"), Ok(Duration::from_secs(7_440)));
    assert_eq!(duration("2h4min"), Ok(Duration::from_secs(7_440)));
    assert_eq!(duration(" 250ms "), Ok(Duration::from_millis(250)));
    assert_eq!(duration("1 d 1 us"), Ok(Duration::from_micros(86_400_000_001)));
}

#[test]
fn missing_units_and_bad_durations_are_different_faults() {
    assert_eq!(duration("300"), Err(ValueError::NoUnit));
    assert_eq!(duration("300 sec"), Err(ValueError::Unit("d, h, min, s, ms and us")));
    assert_eq!(duration(""), Err(ValueError::Form("a duration")));
    assert_eq!(duration("-1 s"), Err(ValueError::Form("a duration")));
    assert_eq!(duration("1.5 s"), Err(ValueError::Form("a duration")));
    assert_eq!(duration("99999999999999 d"), Err(ValueError::TooLarge));
}

#[test]
fn sizes_and_rates_carry_their_units() {
    assert_eq!(size_bytes("512 MiB"), Ok(512 << 20));
    assert_eq!(size_bytes("1GB"), Ok(1_000_000_000));
    assert_eq!(size_bytes("1"), Err(ValueError::NoUnit));
    assert_eq!(size_bytes("1 mib"), Err(ValueError::Unit("B, kB, MB, GB, TB, KiB, MiB, GiB and TiB")));
    assert_eq!(rate_per_second("1000/s"), Ok(1_000));
    assert_eq!(rate_per_second("5 k/s"), Ok(5_000));
    assert_eq!(rate_per_second("5/min"), Err(ValueError::Unit("/s, k/s and M/s")));
}

#[test]
fn port_ranges_are_ordered_and_without_zero() {
    assert_eq!(ports("1024-65535"), Ok(1024..=65535));
    assert_eq!(ports("53"), Ok(53..=53));
    assert_eq!(ports("0-80"), Err(ValueError::PortZero));
    assert_eq!(ports("80-1"), Err(ValueError::Reversed));
    assert_eq!(ports("80-65536"), Err(ValueError::TooLarge));
    assert_eq!(ports("+80"), Err(ValueError::Form("a range of ports")));
}

#[test]
fn prefixes_have_no_host_bits() {
    assert_eq!(prefix("10.0.0.0/8"), Ok(Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).unwrap()));
    assert_eq!(prefix("10.0.0.1/8"), Err(ValueError::HostBits));
    assert_eq!(prefix("10.0.0.0"), Err(ValueError::NoPrefixLength));
    assert_eq!(prefix("10.0.0.0/33"), Err(ValueError::Length(32)));
    assert_eq!(prefix("10.0.0.0/+8"), Err(ValueError::Form("an IPv4 prefix")));
    assert_eq!(address_in_prefix("10.0.0.1/24"), Ok((Ipv4Addr::new(10, 0, 0, 1), 24)));
}

#[test]
fn address_sets_are_single_ranges_or_prefixes() {
    let bits = |d| Ipv4Addr::new(203, 0, 113, d).to_bits();
    assert_eq!(addresses("203.0.113.9"), Ok(bits(9)..=bits(9)));
    assert_eq!(addresses("203.0.113.9 - 203.0.113.12"), Ok(bits(9)..=bits(12)));
    assert_eq!(addresses("203.0.113.16/28"), Ok(bits(16)..=bits(31)));
    assert_eq!(addresses("203.0.113.9-203.0.113.1"), Err(ValueError::Reversed));
    assert_eq!(addresses("203.0.113.1/28"), Err(ValueError::HostBits));
}

#[test]
fn targets_have_an_address_and_may_have_port_and_weight() {
    let of = |address: [u8; 4], port, weight| Ok(Target { address: u32::from_be_bytes(address), port, weight });
    assert_eq!(target("192.0.2.53"), of([192, 0, 2, 53], None, 1));
    assert_eq!(target("192.0.2.53:5353"), of([192, 0, 2, 53], Some(5_353), 1));
    assert_eq!(target(" 192.0.2.53 weight 3 "), of([192, 0, 2, 53], None, 3));
    assert_eq!(target("192.0.2.53:53 weight 10"), of([192, 0, 2, 53], Some(53), 10));
    assert_eq!(target("192.0.2.53 weight 0"), Err(ValueError::WeightZero));
    assert_eq!(target("192.0.2.53:0"), Err(ValueError::PortZero));
    for wrong in ["", "a", "192.0.2.53:53-54", "192.0.2.53 weight", "192.0.2.53 weight x", "192.0.2.0/24"] {
        assert!(target(wrong).is_err(), "{wrong}");
    }
    assert_eq!(target("192.0.2.53 weight 5000000000"), Err(ValueError::TooLarge));
}

#[test]
fn collectors_have_a_way_a_host_and_a_port() {
    let of = |transport, host: &str, port| Ok((transport, host.to_owned(), port));
    assert_eq!(collector("udp://192.0.2.9:4739"), of(SinkTransport::Udp, "192.0.2.9", 4_739));
    assert_eq!(collector("tcp://collector.example:1"), of(SinkTransport::Tcp, "collector.example", 1));
    assert_eq!(collector(" tls://[2001:db8::9]:6514"), of(SinkTransport::Tls, "2001:db8::9", 6_514));
    for wrong in ["", "192.0.2.9:1", "udp://:1", "udp://a", "udp://a:0", "udp://a:1-2", "udp://[a]:1", "x://a:1"] {
        assert!(collector(wrong).is_err(), "{wrong}");
    }
}
