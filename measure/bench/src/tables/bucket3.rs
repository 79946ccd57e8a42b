//! `bucket3`: lists of cache lines with three items each (figure 5 of the paper), its final choice:
//! "cache-friendly (3-item optimized) hash tables". See [`bucket`](super::bucket).

use super::bucket::Bucket;

/// Three items a line.
pub(super) type Bucket3 = Bucket<3>;
