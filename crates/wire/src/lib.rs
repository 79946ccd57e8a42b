//! Typed views of Ethernet, 802.1Q, ARP, IPv4, TCP, UDP and ICMP, and incremental checksums (RFC 1624).
