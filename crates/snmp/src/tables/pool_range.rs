//! natv2PoolRangeTable.

use std::sync::Arc;

use super::INSTANCE;
use super::Table;
use super::View;
use super::address;
use crate::source::KnownPools;
use crate::source::NumberedRange;
use crate::source::Unavailable;
use crate::value::Value;

pub(super) const COLUMNS: [u32; 2] = [4, 5];

struct Ranges(Arc<KnownPools>);

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    Ok(Box::new(Ranges(view.source.pools()?)))
}

impl Table for Ranges {
    fn rows(&self) -> usize {
        self.0.ranges.len()
    }

    fn index(&self, row: usize) -> Vec<u32> {
        let NumberedRange { pool, number, .. } = self.0.ranges[row];
        vec![INSTANCE, pool, number]
    }

    fn value(&self, column: u32, row: usize) -> Value {
        let range = self.0.ranges[row].range;
        match column {
            4 => address(range.first.into()),
            5 => address(range.last.into()),
            _ => Value::NoSuchObject,
        }
    }
}
