//! The tests of the whole packet path, as one program: they are linked once, and run side by side.
//!
//! Each file is about one thing; `cargo test -p testkit --test all rfc5382::` runs those of one.
//! What counts allocations of the whole process is a program of its own.

mod answers_to_askers;
mod balanced_forwards;
mod bed;
mod conformance_table;
mod deltas;
mod destination_translation;
mod deterministic_orders;
mod displaced;
mod draining;
mod end_causes;
mod endpoint_dependent;
mod events;
mod full_tables;
mod gateways;
mod guaranteed_ports;
mod hairpin_refusals;
mod mistakes;
mod mode_changes;
mod model;
mod multicore;
mod penalty;
mod plan_names;
mod plan_rules;
mod policy_under_reload;
mod port_blocks;
mod port_control_model;
mod realms;
mod reload;
mod renumbered;
mod reuse_delay;
mod rfc3022;
mod rfc4787;
mod rfc5382;
mod rfc5508;
mod rfc6056;
mod rfc6886;
mod rfc6887;
mod rfc6888_limits;
mod rfc7753;
mod rfc7857;
mod rules;
mod shared_by_workers;
mod shared_port_quota;
mod shorter_timers;
mod simulation;
mod slices_in_blocks;
mod static_mappings;
mod subscribers_per_address;
mod traps;
mod utilisation_alarms;
mod why;
