//! natv2AddressMapTable. The external address is the number of the row, so that a row keeps its
//! index while others come and go.

use core::net::IpAddr;
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

fn row_number(external: IpAddr) -> u32 {
    match external {
        IpAddr::V4(address) => address.to_bits(),
        // There are no pools of IPv6.
        IpAddr::V6(_) => 0,
    }
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
        index.push(row_number(map.external));
        index
    }

    fn value(&self, column: u32, row: usize) -> Value {
        let map = &self.maps.addresses[row];
        match column {
            6 => type_of(map.internal),
            7 => address(map.internal),
            8 => text(EXTERNAL_REALM),
            9 => type_of(map.external),
            10 => address(map.external),
            11 => Value::Gauge32(self.pools.get(&map.pool).map_or(0, |pool| pool.index)),
            12 => Value::Gauge32(map.subscriber),
            _ => Value::NoSuchObject,
        }
    }
}
