//! Writes the seeds of the targets: `cargo run -p fuzz-targets --example write-seeds`.

use std::fs;
use std::io;
use std::path::Path;

use wire::arp::Message;
use wire::build;
use wire::build::endpoint;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::MacAddress;
use wire::ethernet::VlanTag;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

fn main() -> io::Result<()> {
    let inside = endpoint([100, 64, 0, 10], 40_000);
    let server = endpoint([203, 0, 113, 1], 443);
    let (client, router) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));

    let route_options = [148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 131, 7, 4, 1, 2, 3, 4];
    let syn_options = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let extension = [0, 8, 1, 1, 0, 0, 17, 64];
    let udp = build::udp(inside, server).payload(b"payload").build();
    let plain = build::udp(inside, server).without_checksum().build();
    let routed = build::udp(inside, server).ip_options(&route_options).payload_length(200).build();
    let syn = build::tcp(inside, server, Flags::SYN).sequence(1).tcp_options(&syn_options).build();
    let data = build::tcp(inside, server, Flags::ACK | Flags::PSH).payload_length(100).build();
    let echo = build::echo_request(*inside.ip(), *server.ip(), 7).payload(b"ping").build();
    let zeros = build::echo_reply(*server.ip(), *inside.ip(), 0).sequence(0).payload(&[0; 8]).build();
    let error = |icmp_type, code, quote: &[u8]| build::icmp_error(*server.ip(), *inside.ip(), icmp_type, code, quote);
    let unreachable = error(3, 3, &udp).build();
    let too_big = error(3, 4, &syn[..28]).next_hop_mtu(1400).build();
    let extended = error(11, 0, &routed[..128]).extension(&extension).build();
    let legacy = error(11, 0, &data).legacy_extension(&extension).build();
    let about_echo = error(11, 0, &echo).build();
    let fragments = build::fragment(&routed, 100);

    let mut packets = vec![
        ("udp", udp.clone()),
        ("udp-without-checksum", plain.clone()),
        ("udp-with-options", routed.clone()),
        ("tcp-syn", syn.clone()),
        ("tcp-data", data),
        ("echo", echo),
        ("echo-reply-of-zeros", zeros),
        ("port-unreachable", unreachable),
        ("too-big", too_big),
        ("extension", extended),
        ("legacy-extension", legacy),
        ("error-about-echo", about_echo),
    ];
    packets.extend(["fragment-1", "fragment-2", "fragment-3"].into_iter().zip(fragments));

    for (name, packet) in &packets {
        write("wire_ipv4", name, packet)?;
        write("wire_verify", name, packet)?;
        write("wire_quoted", name, packet)?;
        write("wire_checksum", name, packet)?;
        write("nat_own_icmp", name, packet)?;
        write("nat_split", name, &[&[0, 100], packet.as_slice()].concat())?;
        if Ipv4::new_unchecked(packet.as_slice()).protocol() == 1 {
            write("nat_icmp_quote", name, packet)?;
        }
        write("wire_fragments", name, &[&[0, 100], packet.as_slice()].concat())?;
        let view = Ipv4::new_unchecked(packet.as_slice());
        let target = match view.protocol() {
            1 => "wire_icmp",
            6 => "wire_tcp",
            _ => "wire_udp",
        };
        write(target, name, view.payload())?;
    }
    // Steps of `nat_fragments`: flags (32: more fragments, 64: refused), offset, length in units of 8, wait.
    write("nat_fragments", "in-order", &[32, 0, 0, 10, 0, 32, 0, 80, 10, 1, 0, 0, 160, 1, 1])?;
    write("nat_fragments", "last-first", &[0, 0, 160, 1, 0, 32, 0, 80, 10, 1, 32, 0, 0, 10, 1])?;
    write("nat_fragments", "overlap", &[32, 0, 80, 10, 0, 32, 0, 88, 1, 0, 32, 0, 0, 10, 0])?;
    write("nat_fragments", "too-late", &[32, 0, 80, 10, 0, 32, 0, 0, 10, 250, 0, 0, 160, 1, 255, 0, 0, 160, 1, 255])?;
    write("nat_fragments", "refused", &[32, 0, 80, 10, 0, 96, 0, 0, 10, 0, 0, 0, 160, 1, 0])?;
    write("wire_ipv4_options", "routes", &route_options)?;
    write("wire_ipv4_options", "nothing", &[1, 1, 1, 0])?;
    write("wire_tcp", "options-alone", &syn_options)?;
    write("wire_ethernet", "plain", &build::frame(client, router, ETHER_TYPE_IPV4, &plain))?;
    let tag = VlanTag { id: 100, priority_bits: 5 };
    write("wire_ethernet", "tagged", &build::tagged_frame(client, router, tag, ETHER_TYPE_IPV4, &plain))?;
    let request = Message::request(client, 0x6440_000a, 0x6440_0001);
    write("wire_arp", "request", &request.to_bytes())?;
    write("wire_arp", "reply", &request.reply(router).to_bytes())?;
    write("wire_mac_text", "colons", client.to_string().as_bytes())?;
    write("wire_mac_text", "dashes", b"02-00-5E-10-AB-01")
}

fn write(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}
