//! natv2SubscriberTable. The engine does not count translations by subscriber, so
//! natv2SubscriberTranslations is not there.

use std::sync::Arc;

use super::Table;
use super::View;
use super::address;
use super::text;
use super::type_of;
use crate::clock::MasterClock;
use crate::controls::Controls;
use crate::controls::Field;
use crate::controls::Of;
use crate::maps::Maps;
use crate::source::Unavailable;
use crate::value::Value;

pub(crate) const ENTRY: [u32; 3] = [1, 1, 1];
/// natv2SubscriberPortMapEntries and their creations.
pub(crate) const PORT_MAP_ENTRIES: u32 = 7;
pub(crate) const PORT_MAP_CREATIONS: u32 = 10;

pub(super) const COLUMNS: [u32; 14] = [2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15, 16, 17];

struct Subscribers {
    maps: Arc<Maps>,
    controls: Arc<Controls>,
    clock: MasterClock,
}

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    Ok(Box::new(Subscribers { maps: view.source.maps()?, controls: Arc::clone(&view.controls), clock: view.clock }))
}

pub(super) fn writable(column: u32) -> Option<Field> {
    match column {
        16 => Some(Field::Second),
        17 => Some(Field::Interval),
        _ => None,
    }
}

impl Table for Subscribers {
    fn rows(&self) -> usize {
        self.maps.subscribers.len()
    }

    fn index(&self, row: usize) -> Vec<u32> {
        vec![self.maps.subscribers[row].index]
    }

    fn whose(&self, row: usize) -> Option<Of> {
        Some(self.maps.subscribers[row].of())
    }

    fn value(&self, column: u32, row: usize) -> Value {
        let subscriber = &self.maps.subscribers[row];
        let control = || self.controls.of(&subscriber.of());
        match column {
            2 => text(&subscriber.realm),
            3 => type_of(subscriber.address),
            4 => address(subscriber.address),
            5 => Value::Gauge32(subscriber.prefix_length.into()),
            6 => Value::Gauge32(subscriber.address_maps),
            PORT_MAP_ENTRIES => Value::unsigned(subscriber.port_maps),
            9 => Value::Counter64(subscriber.address_creations),
            PORT_MAP_CREATIONS => Value::Counter64(subscriber.port_creations),
            11 => Value::Counter64(subscriber.address_failures),
            12 => Value::Counter64(subscriber.port_failures),
            14 => Value::TimeTicks(self.clock.shows(subscriber.since)),
            15 => Value::unsigned(subscriber.port_maps_max),
            16 => Value::Integer(control().second),
            17 => Value::Gauge32(control().interval),
            _ => Value::NoSuchObject,
        }
    }
}
