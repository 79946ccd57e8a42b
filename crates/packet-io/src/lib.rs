//! Burst receive and send: DPDK ethdev through a small C shim, pcap files, in-memory ports.
