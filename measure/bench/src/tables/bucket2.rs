//! `bucket2`: lists of cache lines with two items each (figures 5 and 6 of the paper). See
//! [`bucket`](super::bucket).

use super::bucket::Bucket;

/// Two items a line, the rest of it unused.
pub(super) type Bucket2 = Bucket<2>;
