//! natv2AddressMapTable.

use std::sync::Arc;

use super::INSTANCE;
use super::Table;
use super::View;
use super::address;
use super::push_address;
use super::push_string;
use super::text;
use super::type_of;
use crate::figures::EXTERNAL_REALM;
use crate::maps::Maps;
use crate::source::KnownPools;
use crate::source::Unavailable;
use crate::value::Value;

pub(super) const COLUMNS: [u32; 7] = [6, 7, 8, 9, 10, 11, 12];

struct AddressMaps {
    maps: Arc<Maps>,
    pools: Arc<KnownPools>,
}

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    Ok(Box::new(AddressMaps { maps: view.source.maps()?, pools: view.source.pools()? }))
}

impl Table for AddressMaps {
    fn rows(&self) -> usize {
        self.maps.addresses.len()
    }

    fn index(&self, row: usize) -> Vec<u32> {
        let map = &self.maps.addresses[row];
        let mut index = vec![INSTANCE];
        push_string(&mut index, map.realm.1.as_bytes());
        push_address(&mut index, map.internal);
        index.push(map.row);
        index
    }

    fn value(&self, column: u32, row: usize) -> Value {
        let map = &self.maps.addresses[row];
        match column {
            6 => type_of(map.mapped),
            7 => address(map.mapped),
            8 => text(EXTERNAL_REALM),
            9 => type_of(map.external),
            10 => address(map.external),
            11 => Value::Gauge32(self.pools.get(&map.pool).map_or(0, |pool| pool.index)),
            12 => Value::Gauge32(map.subscriber),
            _ => Value::NoSuchObject,
        }
    }
}
