"""The configurations of the NAT that the tests run against: differences from the demo's."""

SHORT_SECONDS = 3

SETUPS = {
    "default": {},
    "address_dependent": {"filtering": "address-dependent"},
    "address_and_port_dependent": {"filtering": "address-and-port-dependent"},
    "tcp_address_dependent": {"filtering": {"tcp": "address-dependent", "udp": "endpoint-independent"}},
    "narrow_outside": {"outside_mtu": 1400},
    "narrow_inside": {"inside_mtu": 1300},
    # Other ways to receive, with a queue for each worker: flows come to any of them.
    "packet_sockets": {"driver": "af_packet"},
    "tap_devices": {"driver": "tap"},
    "short_timers": {"timeouts": dict.fromkeys(("udp", "icmp", "tcp_opening"), f"{SHORT_SECONDS} s")},
}
