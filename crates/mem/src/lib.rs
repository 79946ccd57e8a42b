//! Hugepage arena, prefetch and the single-producer single-consumer ring: the only unsafe code outside packet-io.
