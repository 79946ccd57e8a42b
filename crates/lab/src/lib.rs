//! The lab: measures any NAT from outside.
//!
//! | module | what it answers for |
//! |---|---|
//! | [`tuples`] | the four-tuples of a test and their pseudorandom order |
//! | [`frame`] | frames that nobody else can have written |
//! | [`tester`] | sending at a rate, taking what arrives, knowing when the tester itself was too slow |
//! | [`ledger`] | Responder's state table, validation, counts and delays |
//! | [`search`] | binary search of rates, search of a table's capacity |

pub mod frame;
pub mod ledger;
pub mod search;
pub mod tester;
pub mod tuples;
