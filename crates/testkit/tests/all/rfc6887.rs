//! RFC 6887, the Port Control Protocol.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

mod floods;
mod map;
mod messages;
mod peer;
mod reload;

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Filtering;
use testkit::*;

const SUCCESS: u8 = 0;
const UNSUPP_VERSION: u8 = 1;
const NOT_AUTHORIZED: u8 = 2;
const MALFORMED_REQUEST: u8 = 3;
const UNSUPP_OPCODE: u8 = 4;
const UNSUPP_OPTION: u8 = 5;
const MALFORMED_OPTION: u8 = 6;
const NO_RESOURCES: u8 = 8;
const UNSUPP_PROTOCOL: u8 = 9;
const USER_EX_QUOTA: u8 = 10;
const CANNOT_PROVIDE_EXTERNAL: u8 = 11;
const ADDRESS_MISMATCH: u8 = 12;
const EXCESSIVE_REMOTE_PEERS: u8 = 13;

const BOTH: [Protocol; 2] = [Protocol::Udp, Protocol::Tcp];

fn with_pcp() -> Settings {
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.pcp = true;
    settings
}

fn bed() -> Bed {
    Bed::new(with_pcp())
}

fn udp(port: u16) -> Ask {
    Ask::map(I1, Protocol::Udp, port)
}

/// One for each way to give out ports, with the same address inside each.
fn all_ways() -> [(&'static str, Settings); 4] {
    let two =
        Blocks { size: BlockSize::of_ports(64).expect("a size"), per_subscriber_max: 4, idle: Duration::from_secs(60) };
    let with = |change: &dyn Fn(&mut nat::settings::Pool)| {
        let mut settings = with_pcp();
        change(&mut settings.pools[0]);
        settings
    };
    let few = || vec![topology::prefix([100, 64, 0, 0], 24)];
    [
        ("ports", with_pcp()),
        ("blocks", with(&|pool| pool.allocation = Allocation::Blocks(two))),
        (
            "slices",
            with(&|pool| {
                pool.subscribers = few();
                pool.allocation = Allocation::Deterministic { dynamic_slices: 0, overflow: two };
            }),
        ),
        (
            "one to one",
            with(&|pool| {
                pool.subscribers = few();
                pool.addresses = (0..=255).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
                pool.one_to_one = true;
            }),
        ),
    ]
}
