use super::*;

const NOW: Instant = Instant::from_micros(1_000_000);
const NETWORK: u128 = 0x2001_0db8 << 96;

/// Hosts in turn, each with all its ports; some differ in upper, some in lower bits.
fn endpoint(index: usize, network: u128) -> Inside {
    let host = index as u128 / 8 % 40;
    (network | (host & 3) << 72 | host >> 2, (1_000 + index % 8) as u16)
}

fn hold<M: Mappings>(network: u128) {
    let mut mappings = M::new(320, 40, [1, 2, 3, 4]).unwrap();
    let bursts: Vec<[Inside; BURST]> =
        (0..5).map(|burst| core::array::from_fn(|i| endpoint(burst * BURST + i, network))).collect();
    let external: Vec<_> = bursts.iter().map(|burst| mappings.leave(NOW, burst).unwrap()).collect();
    let mut distinct: Vec<Outside> = external.iter().flatten().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 320, "each internal endpoint has an external endpoint of its own");
    for (burst, external) in bursts.iter().zip(&external) {
        assert_eq!(mappings.leave(NOW, burst).unwrap(), *external, "it keeps that");
        assert_eq!(mappings.enter(NOW, external).unwrap(), *burst, "which leads back");
    }
    let stranger = [(network | 0xffff, 1_000); BURST];
    assert_eq!(mappings.leave(NOW, &stranger), None, "it is full");
    assert_eq!(mappings.enter(NOW, &[(0, 0); BURST]), None, "no such address");
}

#[test]
fn hosts_with_numbers_keep_their_endpoints() {
    hold::<ByNumber>(NETWORK);
}

#[test]
fn hosts_in_side_lines_keep_their_endpoints() {
    hold::<SideLines>(NETWORK);
}

#[test]
fn ipv4_hosts_keep_their_endpoints_in_either() {
    let endpoint = |index: usize| (0x0a00_0000 | (index as u128 / 8), 1_000 + (index % 8) as u16);
    let burst = core::array::from_fn(endpoint);
    let mut plain = Ipv4Only::new(320, 0, [1, 2, 3, 4]).unwrap();
    let mut with_lines = SideLines::new(320, 0, [1, 2, 3, 4]).unwrap();
    let external = plain.leave(NOW, &burst).unwrap();
    assert_eq!(with_lines.leave(NOW, &burst).unwrap(), external, "the same ports are drawn");
    assert_eq!(plain.enter(NOW, &external).unwrap(), burst);
    assert_eq!(with_lines.enter(NOW, &external).unwrap(), burst);
    assert!(with_lines.bytes() - plain.bytes() >= 321 * 16, "a side line for each record");
}
