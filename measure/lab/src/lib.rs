//! The lab: measures any NAT from outside.
//!
//! | module | what it answers for |
//! |---|---|
//! | [`tuples`] | the four-tuples of a test and their pseudorandom order |
//! | [`frame`] | frames that nobody else can have written |
//! | [`segment`] | the same as segments of TCP |
//! | [`clock`] | the time that the tester goes by |
//! | [`tester`] | sends at a rate, takes what arrives, knows when the tester itself was too slow |
//! | [`ledger`] | Responder's state table, validation, counts and delays |
//! | [`search`] | binary search of rates, search of a table's capacity |
//! | [`topology`] | the test hosts: network namespaces and what connects them |
//! | [`device`] | devices under test: Natrix, Netfilter |
//! | [`edge`] | customers' edges: hosts that the device sees over IPv6 |
//! | [`experiment`] | the tests of RFC 9693 |
//! | [`join`] | two ports joined as by a wire |
//! | [`priority`] | tester and device before ordinary programs |
//! | [`link`] | whether the tester's interfaces have a link |
//! | [`watch`] | whether the machine took a CPU of the device away |
//! | [`process`] | programs that the lab starts and can ask to end |
//! | [`probe`] | how a NAT behaves, found from outside |
//! | [`sharing`] | several NATs as next hops of one router |
//! | [`study`] | published experiments, repeated |
//! | [`report`] | results as one HTML file |
//! | [`result`] | machine, versions, command: what makes a result one that can be repeated |

pub mod clock;
pub mod device;
pub mod edge;
pub mod experiment;
pub mod frame;
pub mod join;
pub mod ledger;
pub mod link;
pub mod priority;
pub mod probe;
pub mod process;
pub mod report;
pub mod result;
pub mod search;
pub mod segment;
pub mod sharing;
pub mod study;
pub mod tester;
pub mod topology;
pub mod tuples;
pub mod watch;
