//! Natrix configuration: TOML text to a validated, compiled snapshot, reporting every fault at once.
