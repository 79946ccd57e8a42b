//! `find` with a VRF on a whole instance: only holders in this VRF are named.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;

use crate::instance::Instance;
use control::Find;
use control::FindAnswer;
use control::Place;
use control::Request;

fn by_address(address: Ipv4Addr, port: u16) -> Find {
    Find { address: address.into(), port: Some(port), protocol: None, vrf: None, limit: None, cursor: None }
}

/// Answers and the next cursor.
fn found(one: &mut Instance, find: &Find) -> (Vec<FindAnswer>, Option<String>) {
    one.client.request::<FindAnswer>(&Request::Find(find.clone())).expect("answers")
}

#[test]
fn holders_in_other_vrfs_are_omitted() {
    let blue = "[[interface]]\nname = \"blue\"\nrealm = \"inside\"\nvrf = \"blue\"\ndriver = \"net_tap2\"\naddresses = [\"10.0.0.1/24\"]\n\n[[pool]]";
    let forwards = "[[forward]]\nprotocol = \"udp\"\nexternal = \"203.0.113.1\"\nports = 80\ninside = \"10.0.0.80\"\n\
                    [[forward]]\nprotocol = \"tcp\"\nexternal = \"203.0.113.1\"\nports = 80\ninside = \"10.0.0.81\"\nvrf = \"blue\"\n";
    let mut one = Instance::start_with("find-vrf", forwards, |text| text.replace("[[pool]]", blue));
    let asked = by_address(Ipv4Addr::new(203, 0, 113, 1), 80);
    let holders = |one: &mut Instance, vrf: Option<&str>| {
        let (found, _) = found(one, &Find { vrf: vrf.map(str::to_owned), ..asked.clone() });
        found
            .into_iter()
            .map(|answer| (answer.vrf, answer.holder.map(|holder| holder.octets()[3]), answer.detail))
            .collect::<Vec<_>>()
    };
    let all = holders(&mut one, None);
    assert_eq!(all.iter().map(|held| held.1).collect::<Vec<_>>(), [Some(80), Some(81)], "{all:?}");
    for (vrf, last) in [("default", 80), ("blue", 81)] {
        let some = holders(&mut one, Some(vrf));
        assert_eq!((some.len(), some[0].0.as_deref(), some[0].1), (1, Some(vrf), Some(last)), "{some:?}");
    }
    let (nobody, _) =
        found(&mut one, &Find { vrf: Some("blue".to_owned()), protocol: Some(control::Protocol::Udp), ..asked });
    let replies = "no subscriber of VRF \"blue\" holds 203.0.113.1:80 now";
    assert_eq!((nobody.len(), nobody[0].holder, nobody[0].detail.as_str()), (1, None, replies));
    one.stop();
}

#[test]
fn an_unused_inside_address_is_found_in_vrfs_with_a_route() {
    let blue = "[[interface]]\nname = \"blue\"\nrealm = \"inside\"\nvrf = \"blue\"\ndriver = \"net_tap2\"\naddresses = [\"10.0.0.1/24\", \"10.1.0.1/24\"]\n\n[[pool]]";
    let mut one = Instance::start_with("find-idle", "", |text| text.replace("[[pool]]", blue));
    let asked = |last: [u8; 4], vrf: Option<&str>| Find {
        port: None,
        vrf: vrf.map(str::to_owned),
        ..by_address(last.into(), 0)
    };
    let mut replies = |address: [u8; 4], vrf: Option<&str>| {
        let (found, _) = found(&mut one, &asked(address, vrf));
        found.into_iter().map(|answer| (answer.place, answer.vrf, answer.detail)).collect::<Vec<_>>()
    };
    let idle = |vrf: &str, who: &str| {
        let detail = format!("{who} may use pool \"a\" and has no mapping now");
        (Place::Internal, Some(vrf.to_owned()), detail)
    };
    let (here, there) = (idle("default", "10.0.0.99"), idle("blue", "blue/10.0.0.99"));
    assert_eq!(replies([10, 0, 0, 99], None), [here.clone(), there.clone()]);
    assert_eq!(replies([10, 0, 0, 99], Some("default")), [here]);
    assert_eq!(replies([10, 0, 0, 99], Some("blue")), [there]);
    // Only one of them has a route to it.
    assert_eq!(replies([10, 1, 0, 9], None), [idle("blue", "blue/10.1.0.9")]);
    let nobody = |of_vrf: &str, address: &str| {
        let detail = format!(
            "{address} is neither an external address of a pool nor a subscriber{of_vrf} (no inside route leads to it), nor an address of Natrix"
        );
        (Place::Nowhere, None, detail)
    };
    assert_eq!(replies([10, 1, 0, 9], Some("default")), [nobody(" of VRF \"default\"", "10.1.0.9")]);
    assert_eq!(replies([8, 8, 8, 8], None), [nobody("", "8.8.8.8")]);
    one.stop();
}
