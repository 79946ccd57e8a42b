//! Routes: those of the configuration, those of the kernel, and which of them count.

pub mod rib;
