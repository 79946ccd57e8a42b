//! Test beds: frames in, frames out, virtual clock, simulated network, reference model.
