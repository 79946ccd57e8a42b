use std::sync::Arc;

use wire::build;

use crate::settings::Class;
use crate::settings::Settings;
use crate::settings::SubscriberLimits;
use crate::shard::Shard;
use crate::shard::tests::send;
use crate::shard::tests::settings;
use crate::snapshot::shared::Shared;
use crate::types::Prefix;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

fn with_ports(ports: u32) -> Settings {
    let subscriber = SubscriberLimits { ports_max: [ports; 3], ..SubscriberLimits::default() };
    Settings { subscriber, ..settings() }
}

fn change(shard: &mut Shard, settings: Settings) {
    let mut shared = Shared::new(settings, 1).expect("settings are sound");
    shared.ports = Arc::clone(&shard.path.ledger.shared.ports);
    shard.path.ledger.shared = Arc::new(shared);
    shard.path.ledger.forget_classes();
}

fn shard(settings: Settings) -> Shard {
    Shard::new(Arc::new(Shared::new(settings, 1).expect("settings are sound")), WorkerId(0), [1, 2, 3, 4])
        .expect("memory suffices")
}

fn open(shard: &mut Shard, port: u16) -> Option<Verdict> {
    let packet = build::udp(build::endpoint([100, 64, 0, 10], port), build::endpoint([198, 51, 100, 1], 80)).build();
    send(shard, 1, Side::Inside, &packet).0
}

#[test]
fn a_limit_below_present_use_refuses_only_what_is_new() {
    // covers: 6888-REQ-4a, 6888-REQ-11d
    let mut shard = shard(with_ports(10));
    for port in 5_000..5_010 {
        assert_eq!(open(&mut shard, port), Some(Verdict::Outbound));
    }
    change(&mut shard, with_ports(4));
    assert_eq!(open(&mut shard, 6_000), Some(Verdict::SubscriberPortQuota));
    for port in 5_000..5_010 {
        assert_eq!(open(&mut shard, port), Some(Verdict::Outbound), "{port} goes on");
    }
    change(&mut shard, with_ports(12));
    assert_eq!(
        [6_001, 6_002, 6_003].map(|port| open(&mut shard, port)),
        [Some(Verdict::Outbound), Some(Verdict::Outbound), Some(Verdict::SubscriberPortQuota),]
    );
}

#[test]
fn a_subscriber_finds_its_class_after_any_number_of_changes() {
    let limits = |ports| SubscriberLimits { ports_max: [ports; 3], ..SubscriberLimits::default() };
    let in_class = |ports| {
        let subscribers = vec![Prefix::new([100, 64, 0, 0].into(), 24).expect("a prefix")];
        Settings {
            classes: vec![Class {
                name: "c".into(),
                subscribers,
                realms: vec![],
                limits: limits(ports),
                gateways: None,
            }],
            ..with_ports(0)
        }
    };
    let mut shard = shard(in_class(1));
    assert_eq!(open(&mut shard, 5_000), Some(Verdict::Outbound));
    // More changes than generations have values.
    for round in 0..700_u32 {
        change(&mut shard, with_ports(0));
        if round % 255 == 254 {
            assert_eq!(open(&mut shard, 6_000), Some(Verdict::SubscriberPortQuota));
        }
        change(&mut shard, in_class(2 + round));
    }
    assert_eq!(open(&mut shard, 6_000), Some(Verdict::Outbound));
}
