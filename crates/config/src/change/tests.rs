use super::*;
use crate::keys::Kind;
use crate::keys::live::Effect;

const BEFORE: &str = r#"
[[interface]]
name = "lan"
realm = "inside"
driver = "net_tap0"
addresses = ["10.0.0.1/24"]

[[interface]]
name = "wan"
realm = "outside"
driver = "net_tap1"
addresses = ["192.0.2.2/24"]

[[route]]
prefix = "0.0.0.0/0"
via = "192.0.2.1"

[[pool]]
name = "a"
addresses = ["203.0.113.0/28"]
"#;

fn config(text: &str) -> Config {
    crate::parse(text, "natrix.toml").expect("a valid configuration")
}

fn found(after: &str) -> Vec<Change> {
    changes(&config(BEFORE), &config(after))
}

#[test]
fn a_configuration_does_not_differ_from_itself() {
    assert_eq!(found(BEFORE), []);
}

#[test]
fn each_difference_shows_both_values_and_if_it_needs_a_restart() {
    let after = BEFORE
        .replace("via = \"192.0.2.1\"", "via = \"192.0.2.9\"")
        .replace("203.0.113.0/28", "203.0.113.1-203.0.113.20")
        + "ports = \"1024-32767\"\n[timeouts]\nudp = \"2 min\"\n[tables]\nmappings = 5000\n[workers]\ncount = 2\n";
    let found = found(&after);
    let of = |object: &str| {
        let change =
            found.iter().find(|change| change.object == object).unwrap_or_else(|| panic!("{object}: {found:?}"));
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        (text(&change.before), text(&change.after), change.restart.is_some())
    };
    let reported = |before: &str, after: &str, restart| (before.to_owned(), after.to_owned(), restart);
    assert_eq!(of("timeouts.udp"), reported("5 min", "2 min", false));
    assert_eq!(of("pool \"a\".ports"), reported("1024-65535", "1024-32767", false));
    assert_eq!(of("pool \"a\".addresses"), reported("16 addresses", "20 addresses: 1 fewer, 5 more", false));
    let route = ("via 192.0.2.1 on \"wan\"", "via 192.0.2.9 on \"wan\"");
    assert_eq!(of("route 0.0.0.0/0 of \"wan\""), reported(route.0, route.1, false));
    assert_eq!(of("workers.count"), reported("1", "2", true));
    assert!(of("tables.mappings").2);
}

#[test]
fn differences_due_to_the_number_of_workers_are_not_listed() {
    for (one, other) in [(1, 2), (2, 1), (2, 3), (3, 8), (7, 2)] {
        let with = |count: u32, more: &str| config(&format!("{BEFORE}[workers]\ncount = {count}\n{more}"));
        let objects = |more: &str| {
            let found = changes(&with(one, ""), &with(other, more));
            found.into_iter().map(|change| change.object).collect::<Vec<_>>()
        };
        assert_eq!(objects(""), ["workers.count"], "{one} to {other}");
        let others = "[tables]\nmappings = 5000\n[icmp]\nerror_rate = \"77/s\"\n[log]\nfilter_rate = \"2000/s\"\n";
        let reported = objects(others);
        for expected in ["tables.mappings", "icmp.error_rate", "log.filter_rate"] {
            assert!(reported.iter().any(|object| object == expected), "{one} to {other}: {reported:?}");
        }
    }
}

#[test]
fn sizes_and_rates_are_those_of_the_file() {
    let with = |more: &str| config(&format!("{BEFORE}[workers]\ncount = 3\n{more}"));
    let before = "[tables]\nmappings = 20000\n[icmp]\nerror_rate = \"100/s\"\n[log]\nfilter_rate = \"1000/s\"\n";
    let after = "[tables]\nmappings = 20001\n[icmp]\nerror_rate = \"101/s\"\n[log]\nfilter_rate = \"1001/s\"\n";
    let found = changes(&with(before), &with(after));
    let texts: Vec<_> =
        found.iter().map(|it| (it.object.as_str(), it.before.as_deref(), it.after.as_deref())).collect();
    let expected = [
        ("tables.mappings", Some("20000, for each worker 7500"), Some("20001, for each worker 7501")),
        ("icmp.error_rate", Some("100/s"), Some("101/s")),
        ("log.filter_rate", Some("1000/s"), Some("1001/s")),
    ];
    assert_eq!(texts, expected);
}

#[test]
fn pools_come_and_go_and_interfaces_need_a_restart() {
    let after = BEFORE.replace("name = \"a\"", "name = \"b\"").replace("mtu", "").replace("10.0.0.1/24", "10.0.0.2/24");
    let found = found(&after);
    let objects: Vec<(&str, bool)> =
        found.iter().map(|change| (change.object.as_str(), change.restart.is_some())).collect();
    assert_eq!(objects, [("interface \"lan\".addresses", true), ("pool \"a\"", false), ("pool \"b\"", false)]);
    assert!(found[1].after.is_none() && found[2].before.is_none());
}

#[test]
fn rules_filters_and_pools_are_named_with_their_prefixes() {
    let rule = |prefix: &str| format!("[[rule]]\naction = \"drop\"\ninside = \"{prefix}\"\n");
    let filter = |prefix: String| format!("[[filter]]\naction = \"deny\"\ninside = \"{prefix}\"\n");
    let then = |before: &str, after: &str, object: &str| {
        let found = changes(&config(before), &config(after));
        let found = found.into_iter().find(|change| change.object == object).map(|change| change.after);
        found.flatten().unwrap_or_default()
    };
    let wide = format!("{BEFORE}{}", rule("10.0.0.0/24"));
    let one = format!("{BEFORE}{}{}", rule("10.0.0.7/32"), rule("10.0.0.0/24"));
    assert_eq!(then(&wide, &one, "rule"), "2 rules; first difference at rule[0]; added: 10.0.0.7/32");
    assert_eq!(then(&one, &wide, "rule"), "1 rule; first difference at rule[0]; removed: 10.0.0.7/32");
    let first = format!("{BEFORE}{}", rule("10.0.0.7/32"));
    let removed = "1 rule; first difference at rule[1], which is removed; removed: 10.0.0.0/24";
    assert_eq!(then(&one, &first, "rule"), removed);
    // Many do not hide one host, and have a bound.
    let many: String = (0..12).map(|block| filter(format!("10.0.0.{}/28", block * 16))).collect();
    let found = then(BEFORE, &format!("{BEFORE}{many}{}", filter("10.0.0.200/32".to_owned())), "filter");
    assert!(found.starts_with("13 filters; first difference at filter[0]; added: 10.0.0.200/32, "), "{found}");
    assert!(found.ends_with(" and 5 more"), "{found}");
    let pool = "[[pool]]\nname = \"one\"\naddresses = [\"198.51.100.9\"]\nsubscribers = [\"10.0.0.9/32\"]\n";
    let found = then(BEFORE, &format!("{BEFORE}{pool}"), "pool \"one\"");
    assert_eq!(found, "1 address for 10.0.0.9/32");
}

#[test]
fn filters_that_do_not_log_decide_nothing_about_records() {
    let filters =
        |more: &str| format!("{BEFORE}[[filter]]\naction = \"permit\"\nprotocol = \"tcp\"\nlog = true\n{more}");
    let of_records = |before: &str, after: &str| {
        let found = changes(&config(before), &config(after));
        found.iter().map(|change| (change.object.clone(), change.of_records)).collect::<Vec<_>>()
    };
    let more = |log| filters(&format!("[[filter]]\naction = \"deny\"\nprotocol = \"udp\"\n{log}"));
    let is = |of_records| vec![("filter".to_owned(), of_records)];
    assert_eq!(of_records(&filters(""), &more("")), is(false));
    assert_eq!(of_records(&filters(""), &more("log = true\n")), is(true));
    assert_eq!(of_records(&more(""), BEFORE), is(true), "a filter that logs is removed");
}

const EVERY_KEY: &str = include_str!("../../tests/every_key.toml");
const EVERY_KEY_OF_IPV6: &str = include_str!("../../tests/every_key_of_ipv6.toml");
const EVERY_KEY_OF_ROUTING: &str = include_str!("../../tests/every_key_of_routing.toml");

/// Each key of the manual, left out of a file that has all of them: what differs is named, and is
/// live or not as the manual says.
#[test]
fn every_key_that_is_left_out_makes_a_difference_with_a_name() {
    let (mut reported, mut silent) = (0, Vec::new());
    for section in crate::keys::sections() {
        for key in section.keys {
            let is_of_ipv6 = key.name.starts_with("ipv6_")
                || matches!(section.name, "nat64" | "softwire")
                || (section.name, key.name) == ("forward", "b4");
            let is_of_routing = section.name == "routing"
                || matches!((section.name, key.name), ("interface", "kernel" | "kernel_table"));
            let all = match (is_of_ipv6, is_of_routing) {
                (true, _) => EVERY_KEY_OF_IPV6,
                (_, true) => EVERY_KEY_OF_ROUTING,
                _ => EVERY_KEY,
            };
            let before = config(all);
            let mut document: toml_edit::DocumentMut = all.parse().expect("TOML");
            let path = section.name.split('.');
            let item = path.fold(document.as_item_mut(), |item, name| &mut item[name]);
            if let Some(tables) = item.as_array_of_tables_mut() {
                tables.iter_mut().for_each(|table| drop(table.remove(key.name)));
            } else if let Some(table) = item.as_table_like_mut() {
                table.remove(key.name);
            }
            // Others need some keys.
            let Ok(after) = crate::parse(&document.to_string(), "natrix.toml") else { continue };
            let found = changes(&before, &after);
            let name = format!("{}.{}", section.name, key.name);
            if found.is_empty() {
                silent.push(name);
                continue;
            }
            reported += 1;
            // Of keys without a line of their own the object is named at least.
            assert!(found.iter().all(|change| change.object != "*"), "{name}: {found:?}");
            let needs_restart = Effect::of(section.name, key.name) != Effect::Live;
            assert_eq!(found.iter().any(|change| change.restart.is_some()), needs_restart, "{name}: {found:?}");
            let of_records = found.iter().filter(|change| change.of_records).count();
            let wanted = match (section.name, key.name) {
                ("log" | "log.store" | "log.sink", _) | ("filter", "log") => found.len(),
                // The filter of this file may be one that logs.
                ("filter", _) => of_records,
                _ => 0,
            };
            assert_eq!(of_records, wanted, "{name}: {found:?}");
        }
    }
    assert!(reported > 60, "{reported} keys are reported");
    // They say what would hold without them too, or are for checks only.
    let idle = [
        "route.interface",
        "pool.threshold_clear",
        "pool.one_to_one",
        "tables.external_addresses",
        "icmp.error_rate",
        "workers.count",
        "log.sync",
    ];
    assert_eq!(silent, idle);
}

/// Other values of a key, as they stand in the file. Not all are right everywhere.
fn variants(kind: Kind) -> Vec<String> {
    match kind {
        Kind::Integer { min, max, .. } => {
            vec![min.to_string(), (min + 1).to_string(), (min + 64).to_string(), max.to_string()]
        }
        Kind::Duration { .. } => ["250 ms", "1 s", "3 min", "2 h"].map(|time| format!("\"{time}\"")).to_vec(),
        Kind::Size { .. } => ["64 KiB", "2 MiB", "300 MiB", "3 GiB"].map(|size| format!("\"{size}\"")).to_vec(),
        Kind::Rate { .. } => ["1/s", "77/s", "3 k/s"].map(|rate| format!("\"{rate}\"")).to_vec(),
        Kind::Boolean => vec!["true".to_owned(), "false".to_owned()],
        Kind::Choice(words) => words.iter().map(|word| format!("\"{word}\"")).collect(),
        Kind::Text(_) => {
            let texts =
                ["red", "blue", "main", "net_tap7", "0000:3b:00.0", "2000-2063", "10.0.0.0/28", "192.0.2.7", "0640"];
            texts.iter().map(|text| format!("\"{text}\"")).collect()
        }
        Kind::List(_) => {
            let lists = ["[]", "[3, 1]", "[\"10.0.0.0/28\"]", "[\"203.0.113.33\"]", "[\"red\"]", "[\"tcp-closed\"]"];
            lists.map(str::to_owned).to_vec()
        }
        Kind::Mixed(_) => ["80", "\"tcp\"", "\"80-90\"", "{ udp = 7 }"].map(str::to_owned).to_vec(),
    }
}

/// The texts of a plan are read by people who know the file and not the program: whatever a key is
/// changed from and to.
#[test]
fn no_value_is_shown_as_the_program_sees_it() {
    let mut reported = 0;
    for (all, section) in [EVERY_KEY, EVERY_KEY_OF_IPV6, EVERY_KEY_OF_ROUTING]
        .into_iter()
        .flat_map(|all| crate::keys::sections().iter().map(move |it| (all, it)))
    {
        let before = config(all);
        for key in section.keys {
            let removed = core::iter::once(None);
            for variant in removed.chain(variants(key.kind).into_iter().map(Some)) {
                let mut document: toml_edit::DocumentMut = all.parse().expect("TOML");
                let path = section.name.split('.');
                let item = path.fold(document.as_item_mut(), |item, name| &mut item[name]);
                let value = variant.as_ref().map(|text| text.parse::<toml_edit::Value>().expect("a value"));
                let change = |table: &mut dyn toml_edit::TableLike| match &value {
                    Some(value) if table.contains_key(key.name) => {
                        table.insert(key.name, toml_edit::value(value.clone()));
                    }
                    Some(_) => {}
                    None => drop(table.remove(key.name)),
                };
                if let Some(tables) = item.as_array_of_tables_mut() {
                    tables.iter_mut().for_each(|table| change(table));
                } else if let Some(table) = item.as_table_like_mut() {
                    change(table);
                }
                let Ok(after) = crate::parse(&document.to_string(), "natrix.toml") else { continue };
                for change in changes(&before, &after).into_iter().chain(changes(&after, &before)) {
                    for text in [&change.before, &change.after].into_iter().flatten() {
                        // An IPv6 address has `::`, too.
                        let is_address = matches!(
                            (section.name, key.name),
                            ("nat64", "prefix") | ("softwire", "aftr" | "subscribers") | ("forward", _)
                        );
                        let is_odd = ["{", "}", "Some(", "None", "("].iter().any(|odd| text.contains(odd))
                            || !is_address && text.contains("::");
                        assert!(!is_odd && !text.is_empty(), "{}.{}: {change:?}", section.name, key.name);
                        reported += 1;
                    }
                }
            }
        }
    }
    assert!(reported > 400, "{reported} values are shown");
}

#[test]
fn another_key_of_a_formula_is_named_and_never_shown() {
    let keyed = |key: &str| {
        let more = format!(
            "subscribers = [\"10.0.0.0/28\"]\nallocation = \"deterministic\"\nalgorithm = \"keyed\"\nalgorithm_key = \"{key}\"\n"
        );
        config(&(BEFORE.to_owned() + &more))
    };
    let found = changes(&keyed("winter-sparrow-42"), &keyed("summer-sparrow-43"));
    let objects: Vec<&str> = found.iter().map(|change| change.object.as_str()).collect();
    assert_eq!(objects, ["pool \"a\".algorithm_key"]);
    assert!(!format!("{found:?}").contains("sparrow"), "{found:?}");
    let spread =
        BEFORE.to_owned() + "subscribers = [\"10.0.0.0/28\"]\nallocation = \"deterministic\"\nalgorithm = \"spread\"\n";
    let found = changes(&keyed("winter-sparrow-42"), &config(&spread));
    let values: Vec<_> = found.iter().map(|change| (change.before.as_deref(), change.after.as_deref())).collect();
    assert_eq!(values, [(Some("keyed"), Some("spread"))]);
}

#[test]
fn differences_of_lists_are_those_of_sets() {
    let mut lists: Vec<Vec<u8>> = vec![Vec::new()];
    for length in 0..4 {
        let longer = lists.iter().filter(|list| list.len() == length);
        let longer = longer.flat_map(|list| (0..3).map(|last| [list.as_slice(), &[last]].concat()));
        lists.extend(longer.collect::<Vec<Vec<u8>>>());
    }
    // So many that they are not looked for one by one.
    let many: Vec<u8> = (0..40).collect();
    lists.extend([many.clone(), [many.as_slice(), &[1, 2]].concat(), [&[0], &many[20..]].concat()]);
    for before in &lists {
        for after in &lists {
            let only = |all: &[u8], others: &[u8]| -> Vec<u8> {
                all.iter().copied().filter(|one| !others.contains(one)).collect()
            };
            let (added, removed) = only_in_one(before, after);
            let found: (Vec<u8>, Vec<u8>) =
                (added.into_iter().copied().collect(), removed.into_iter().copied().collect());
            assert_eq!(found, (only(after, before), only(before, after)), "{before:?} {after:?}");
        }
    }
}
