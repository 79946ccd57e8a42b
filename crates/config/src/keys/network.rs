//! Keys of interfaces, routes, NAT64 and softwires.

use super::Key;
use super::Kind;
use super::MTU_MAX;
use super::NAME;
use super::Preset;
use super::key;

pub(super) const INTERFACE: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"lan\""), "Name in commands and counters."),
    key(
        "realm",
        Kind::Choice(&["inside", "outside"]),
        Preset::Required("\"inside\""),
        "`inside` faces the subscribers, `outside` the Internet.",
    ),
    key(
        "vrf",
        Kind::Text("as `name`"),
        Preset::Value("\"default\""),
        "Inside interfaces: the VRF of their subscribers. VRFs are separate, so their inside addresses may \
         overlap; mappings, pairing and limits belong to a subscriber of one VRF. At most 128.",
    ),
    key(
        "driver",
        Kind::Text(
            "PCI address, or one of `net_af_xdp`, `net_af_packet`, `net_tap`, `net_memif`, `net_virtio_user`, \
             `net_ring`, `net_pcap`, `net_null` with an instance number and arguments",
        ),
        Preset::Derived { rule: "none: needed unless `parent` is given", example: "\"net_af_xdp0,iface=eth1\"" },
        "The DPDK device in the form of `--allow` or `--vdev`. A device serves one port.",
    ),
    key(
        "parent",
        Kind::Text("name of an interface with a `driver`"),
        Preset::Derived { rule: "none", example: "\"wan\"" },
        "Makes this an 802.1Q sub-interface of that port; `vlan` is needed too.",
    ),
    key(
        "vlan",
        Kind::Integer { min: 1, max: 4_094, unit: "" },
        Preset::Derived { rule: "none: untagged", example: "100" },
        "802.1Q VLAN of the frames. Once per port; one interface of a port may be untagged.",
    ),
    key(
        "addresses",
        Kind::List(
            "address with the length of its connected prefix: IPv4, 1 to 32, one of them below 32, needed outside; IPv6, 1 to 128",
        ),
        Preset::Required("[\"10.0.0.1/24\"]"),
        "Natrix's own addresses. Neighbours and next hops must be in their prefixes. With an IPv6 address, \
         the interface also has a link-local one, and answers neighbours and pings; IPv6 is not forwarded.",
    ),
    key(
        "mtu",
        Kind::Integer { min: 68, max: MTU_MAX, unit: "bytes" },
        Preset::Derived { rule: "1500, or the value of the parent", example: "1500" },
        "Largest IP packet to send. Larger ones are fragmented, or answered with ICMP \"too big\" if they \
         may not be fragmented. Packet buffers are as large as the largest MTU needs.",
    ),
    key(
        "kernel",
        Kind::Text("1 to 15 letters, digits, `-`, `_` or `.`"),
        Preset::Derived { rule: "none", example: "\"nx-wan\"" },
        "Name of a TAP device that stands for the port in the kernel, with its Ethernet address, MTU and \
         addresses, so that FRR, BIRD, LLDP and SSH can use the port: [routing.md](routing.md). Sub-interfaces of \
         the port become VLAN devices, called `NAME.VLAN` unless they have a name of their own.",
    ),
    key(
        "kernel_table",
        Kind::Integer { min: 1, max: 4_294_967_295, unit: "" },
        Preset::Derived {
            rule: "the table of the VRF device that it is in, otherwise 254, the main table",
            example: "10",
        },
        "With `[routing] kernel`: the kernel's table whose routes count for this interface. The interfaces of a \
         VRF have one table, and so have those of the outside.",
    ),
    key(
        "rx_descriptors",
        Kind::Integer { min: 64, max: 8_192, unit: "packets" },
        Preset::Value("1024"),
        "Receive ring of each queue, a power of two. Larger rings absorb longer bursts and take more buffers \
         and cache.",
    ),
    key(
        "tx_descriptors",
        Kind::Integer { min: 64, max: 8_192, unit: "packets" },
        Preset::Value("1024"),
        "Transmit ring of each queue, a power of two.",
    ),
];

pub(super) const ROUTE: &[Key] = &[
    key(
        "prefix",
        Kind::Text("IPv4 or IPv6 prefix, host bits zero"),
        Preset::Required("\"0.0.0.0/0\""),
        "Destinations of the route.",
    ),
    key(
        "via",
        Kind::Text("address on a connected prefix, or a link-local IPv6 address"),
        Preset::Required("\"192.0.2.1\""),
        "The router.",
    ),
    key(
        "interface",
        Kind::Text("name of an interface"),
        Preset::Derived { rule: "the one with the connected prefix of `via`", example: "\"wan\"" },
        "Interface towards the router. Only a check, because `via` implies it, unless `via` is link-local.",
    ),
];

const HOSTS_VRF: Key = key(
    "vrf",
    Kind::Text("VRF of an inside interface with an IPv6 address"),
    Preset::Value("\"default\""),
    "The VRF of the hosts.",
);
const HOSTS_POOL: Key = key(
    "pool",
    Kind::Text("name of a pool"),
    Preset::Required("\"main\""),
    "The pool that serves the hosts, beside its `subscribers`. One for all of a VRF's hosts; neither one-to-one \
     nor deterministic.",
);

pub(super) const NAT64: &[Key] = &[
    key(
        "prefix",
        Kind::Text("IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits"),
        Preset::Value("\"64:ff9b::/96\""),
        "IPv6 addresses with an IPv4 address inside. The well-known prefix 64:ff9b::/96 reaches no private \
         addresses (RFC 6052 §3.1). Prefixes of a VRF do not overlap. Routes of the network lead the prefix here.",
    ),
    HOSTS_VRF,
    HOSTS_POOL,
    key(
        "lowest_ipv6_mtu",
        Kind::Integer { min: 1_280, max: MTU_MAX, unit: "bytes" },
        Preset::Value("1280"),
        "Size of IPv6 packets that reaches every host (RFC 7915 §4.1). IPv4 packets without Don't Fragment are cut to \
         it, so a larger value means fewer fragments if all links inside carry such packets. It does not raise the \
         MTU of the interfaces.",
    ),
];

pub(super) const SOFTWIRE: &[Key] = &[
    key(
        "aftr",
        Kind::Text("IPv6 address"),
        Preset::Required("\"2001:db8:1::aaaa\""),
        "Address of the AFTR. It may be an address of an interface; otherwise routes of the network lead it here.",
    ),
    HOSTS_VRF,
    HOSTS_POOL,
    key(
        "inner",
        Kind::List("IPv4 prefix"),
        Preset::Value("[\"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\", \"192.0.0.0/29\"]"),
        "Sources permitted inside the softwires; packets from others are dropped (RFC 6333 §11).",
    ),
    key(
        "subscribers",
        Kind::List("IPv6 prefix, host bits zero"),
        Preset::Value("[]"),
        "Addresses of customers, if not all: softwires from other addresses are dropped as `softwire_subscriber` (RFC \
         6333 §11).",
    ),
];

pub(super) const ROUTING: &[Key] = &[key(
    "kernel",
    Kind::Boolean,
    Preset::Value("false"),
    "Use the routes of the kernel that lead to devices of `[[interface]] kernel`. For the same prefix, \
         connected and static routes are preferred.",
)];
