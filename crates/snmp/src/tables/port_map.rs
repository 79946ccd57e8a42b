//! natv2PortMapTable. The query identifier of ICMP stands for the port.

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

pub(super) const COLUMNS: [u32; 8] = [7, 8, 9, 10, 11, 12, 13, 14];

struct PortMaps {
    maps: Arc<Maps>,
    pools: Arc<KnownPools>,
}

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    Ok(Box::new(PortMaps { maps: view.source.maps()?, pools: view.source.pools()? }))
}

impl Table for PortMaps {
    fn rows(&self) -> usize {
        self.maps.ports.len()
    }

    fn index(&self, row: usize) -> Vec<u32> {
        let map = &self.maps.ports[row];
        let mut index = vec![INSTANCE, map.protocol];
        push_string(&mut index, EXTERNAL_REALM.as_bytes());
        push_address(&mut index, map.external.ip());
        index.push(map.external.port().into());
        index
    }

    fn value(&self, column: u32, row: usize) -> Value {
        let map = &self.maps.ports[row];
        match column {
            7 => text(&map.realm),
            8 => type_of(map.internal),
            9 => address(map.internal),
            10 => type_of(map.mapped),
            11 => address(map.mapped),
            12 => Value::Gauge32(map.internal_port.into()),
            13 => Value::Gauge32(self.pools.get(&map.pool).map_or(0, |pool| pool.index)),
            14 => Value::Gauge32(map.subscriber),
            _ => Value::NoSuchObject,
        }
    }
}
