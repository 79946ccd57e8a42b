//! Nothing that may stand in a file makes the reader panic, and nothing is both faulty and silent.

use proptest::prelude::*;

const KEYS: &[&str] = &[
    "name",
    "realm",
    "driver",
    "parent",
    "vlan",
    "addresses",
    "mtu",
    "prefix",
    "via",
    "interface",
    "exclude",
    "ports",
    "reserved_ports",
    "subscribers",
    "pooling",
    "filtering",
    "parity",
    "action",
    "protocol",
    "inside",
    "outside",
    "udp",
    "mappings",
    "error_rate",
    "count",
    "cpus",
    "memory",
    "buffers",
    "socket",
    "mode",
    "level",
    "hugepages",
    "zebra",
];

const TABLES: &[&str] = &[
    "[[interface]]",
    "[[route]]",
    "[[pool]]",
    "[[rule]]",
    "[subscriber]",
    "[timeouts]",
    "[tables]",
    "[icmp]",
    "[workers]",
    "[dpdk]",
    "[control]",
    "[log]",
    "[interface]",
    "[[timeouts]]",
    "[pool.filtering]",
];

const VALUES: &[&str] = &[
    "\"lan\"",
    "\"inside\"",
    "\"outside\"",
    "\"net_tap0\"",
    "\"net_tap1\"",
    "[\"10.0.0.1/24\"]",
    "[\"192.0.2.2/24\"]",
    "[\"0.0.0.0/0\"]",
    "[\"0.0.0.0-255.255.255.255\"]",
    "[\"255.255.255.255\"]",
    "\"0.0.0.0/0\"",
    "\"10.0.0.2\"",
    "\"255.255.255.255/0\"",
    "\"1-65535\"",
    "[1, \"2-9\"]",
    "[]",
    "[[]]",
    "{}",
    "{ udp = 1 }",
    "0",
    "-1",
    "64",
    "1500",
    "9223372036854775807",
    "-9223372036854775808",
    "1e300",
    "nan",
    "true",
    "1979-05-27",
    "\"5 min\"",
    "\"\"",
    "\"é\\u0000\"",
    "\"18446744073709551615 us\"",
    "\"18446744073709551615 TiB\"",
    "\"1000/s\"",
    "\"pass\"",
    "\"gre\"",
    "\"/x\"",
    "\"0660\"",
];

fn line() -> impl Strategy<Value = String> {
    let key = prop::sample::select(KEYS);
    let value = prop::sample::select(VALUES);
    prop_oneof![
        1 => prop::sample::select(TABLES).prop_map(str::to_owned),
        4 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
    ]
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}") {
        let _ = config::parse(&text, "natrix.toml");
    }

    #[test]
    fn any_lines_are_answered(lines in prop::collection::vec(line(), 0..40)) {
        // Keys twice in a table would end the reading at the first: leave the second out.
        let mut text = String::new();
        let mut seen = Vec::new();
        for line in &lines {
            if line.starts_with('[') {
                seen.clear();
            }
            let key = line.split(' ').next().unwrap_or_default();
            if !seen.contains(&key) {
                seen.push(key);
                text += line;
                text.push('\n');
            }
        }
        if let Err(faults) = config::parse(&text, "natrix.toml") {
            prop_assert!(!faults.is_empty());
            for fault in faults {
                prop_assert!(fault.to_string().starts_with("error: natrix.toml"));
                prop_assert!(fault.line.is_none_or(|line| line as usize <= text.lines().count()));
            }
        }
    }

    #[test]
    fn any_byte_of_a_good_file_may_change(at in 0usize..4_000, with in any::<char>()) {
        let good = include_str!("every_key.toml");
        let mut text: Vec<char> = good.chars().collect();
        let at = at % text.len();
        text[at] = with;
        let _ = config::parse(&text.into_iter().collect::<String>(), "natrix.toml");
    }
}
