//! The claims that the fuzzer tests, as plain functions of bytes.
//!
//! The fuzzer itself is in `fuzz/`, a workspace of its own, because it is built with coverage
//! instrumentation. It calls [`target`]. In every `cargo test`, `tests/replay.rs` runs the same
//! functions over the committed seeds and regressions. How to fuzz and how to add a target:
//! `fuzz/README.md`.

pub mod alg;
pub mod api;
pub mod capture;
pub mod config;
pub mod control;
mod dice;
pub mod engine;
pub mod export;
pub mod families;
pub mod frames;
pub mod kernel;
pub mod nat;
pub mod ndp;
pub mod neighbour;
pub mod port_control;
pub mod snmp;
mod talk;
mod traffic;
pub mod translate;
pub mod wire;

/// A function for the bytes of the fuzzer. It panics if a claim fails.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of its folders in `fuzz/seeds` and `fuzz/regressions`.
    pub name: &'static str,
    /// The claim about all bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "wire_ethernet", run: wire::ethernet },
    Target { name: "wire_arp", run: wire::arp },
    Target { name: "wire_ipv4", run: wire::ipv4 },
    Target { name: "wire_ipv4_options", run: wire::ipv4_options },
    Target { name: "wire_udp", run: wire::udp },
    Target { name: "wire_tcp", run: wire::tcp },
    Target { name: "wire_icmp", run: wire::icmp },
    Target { name: "wire_ipv6", run: wire::ipv6 },
    Target { name: "wire_icmp6", run: wire::icmp6 },
    Target { name: "wire_neighbour", run: wire::neighbour },
    Target { name: "translate_roundtrip", run: translate::roundtrip },
    Target { name: "wire_quoted", run: wire::quoted },
    Target { name: "wire_checksum", run: wire::checksum },
    Target { name: "wire_fragments", run: wire::fragments },
    Target { name: "wire_verify", run: wire::verify },
    Target { name: "wire_mac_text", run: wire::mac_text },
    Target { name: "api_request", run: api::request },
    Target { name: "snmp_pdu", run: snmp::pdu },
    Target { name: "snmp_saved", run: snmp::saved },
    Target { name: "config_text", run: config::text },
    Target { name: "config_value", run: config::value },
    Target { name: "capture_read", run: capture::read },
    Target { name: "control_requests", run: control::requests },
    Target { name: "control_replies", run: control::replies },
    Target { name: "nat_icmp_quote", run: nat::icmp_quote },
    Target { name: "nat_own_icmp", run: nat::own_icmp },
    Target { name: "nat_split", run: nat::split_packet },
    Target { name: "nat_fragments", run: nat::fragments },
    Target { name: "nat_fragments6", run: families::fragments6 },
    Target { name: "softwire_path", run: families::softwire_path },
    Target { name: "daemon_arp", run: neighbour::judge },
    Target { name: "daemon_neighbours", run: neighbour::cache },
    Target { name: "daemon_ndp", run: ndp::ndp },
    Target { name: "daemon_netlink", run: kernel::messages },
    Target { name: "daemon_kernel_frames", run: kernel::frames },
    Target { name: "export_block", run: export::block },
    Target { name: "export_journal", run: export::journal },
    Target { name: "export_footer", run: export::footer },
    Target { name: "export_catalogue", run: export::catalogue },
    Target { name: "export_head", run: export::head },
    Target { name: "lookup_lines", run: lookup::log::fuzzing::lines },
    Target { name: "pcp_messages", run: port_control::messages },
    Target { name: "pcp_steps", run: port_control::steps },
    Target { name: "alg_ftp", run: alg::ftp },
    Target { name: "alg_sip", run: alg::sip },
    Target { name: "alg_rtsp", run: alg::rtsp },
    Target { name: "alg_tftp", run: alg::tftp },
    Target { name: "alg_pptp", run: alg::pptp },
    Target { name: "alg_stream", run: alg::stream },
    Target { name: "engine_path", run: engine::path },
    Target { name: "frames_path", run: frames::path },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}
