//! One engine and one pool for IPv4 subscribers, IPv6 hosts of NAT64, and hosts in softwires. A
//! program of its own, so that a change here builds quickly.

mod deltas;
mod hosts;
mod load;
mod policy;
mod why;
