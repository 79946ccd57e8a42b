//! natv2InstanceTable: one row, for the one instance that a daemon runs.

use std::sync::Arc;

use control::Filtering;
use control::Pooling;
use control::Resource;

use super::INSTANCE;
use super::Table;
use super::View;
use super::text;
use crate::controls::Control;
use crate::controls::Field;
use crate::controls::Of;
use crate::figures::Figures;
use crate::source::Unavailable;
use crate::value::Value;

pub(crate) const ENTRY: [u32; 3] = [2, 1, 1];
/// natv2InstanceAddressMapEntries, natv2InstancePortMapEntries and their creations.
pub(crate) const ADDRESS_MAP_ENTRIES: u32 = 7;
pub(crate) const PORT_MAP_ENTRIES: u32 = 8;
pub(crate) const ADDRESS_MAP_CREATIONS: u32 = 10;
pub(crate) const PORT_MAP_CREATIONS: u32 = 11;

pub(super) const COLUMNS: [u32; 25] =
    [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26];

struct Instance {
    figures: Arc<Figures>,
    alias: String,
    fragments_max: u32,
    control: Control,
    started: u32,
}

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    let figures = view.source.figures()?;
    Ok(Box::new(Instance {
        alias: view.settings.alias.clone(),
        fragments_max: view.settings.fragments_max,
        control: view.controls.of(&Of::Instance),
        started: view.clock.shows(figures.started),
        figures,
    }))
}

pub(super) fn writable(column: u32) -> Option<Field> {
    match column {
        20 => Some(Field::First),
        21 => Some(Field::Second),
        22 => Some(Field::Interval),
        _ => None,
    }
}

impl Instance {
    /// The most permissive of all pools, so that no operator counts on a filter that is not
    /// everywhere.
    fn filtering(&self) -> i32 {
        let each = self.figures.pools.iter().flat_map(|pool| {
            let filtering = pool.filtering;
            [filtering.udp, filtering.tcp, filtering.icmp].map(|one| match one {
                Filtering::EndpointIndependent => 0,
                Filtering::AddressDependent => 1,
                Filtering::AddressAndPortDependent => 2,
            })
        });
        each.min().unwrap_or(0)
    }

    /// Paired if all pools pair.
    fn pooling(&self) -> i32 {
        i32::from(self.figures.pools.iter().all(|pool| pool.pooling == Pooling::Paired))
    }
}

impl Table for Instance {
    fn rows(&self) -> usize {
        1
    }

    fn index(&self, _: usize) -> Vec<u32> {
        vec![INSTANCE]
    }

    fn whose(&self, _: usize) -> Option<Of> {
        Some(Of::Instance)
    }

    fn value(&self, column: u32, _: usize) -> Value {
        let (figures, status) = (&self.figures, &self.figures.status);
        match column {
            2 => text(&self.alias),
            // Endpoint-independent. Sessions of endpoint-dependent rules are not port maps.
            3 => Value::Integer(0),
            4 => Value::Integer(self.filtering()),
            5 => Value::Integer(self.pooling()),
            // Fragments in any order.
            6 => Value::Integer(2),
            ADDRESS_MAP_ENTRIES => Value::unsigned(figures.address_maps()),
            PORT_MAP_ENTRIES => Value::unsigned(status.mappings),
            9 => Value::Counter64(figures.sum(&["outbound", "inbound", "hairpin"])),
            ADDRESS_MAP_CREATIONS => Value::Counter64(figures.sum(&["addresses_paired"])),
            PORT_MAP_CREATIONS => Value::Counter64(status.mappings_created),
            // There is no limit of address maps, so none is exceeded.
            12 => Value::Counter64(0),
            13 => Value::Counter64(figures.dropped(&[Resource::Mappings])),
            14 => Value::Counter64(figures.dropped(&[Resource::Subscribers])),
            15 => Value::Counter64(figures.dropped(&[Resource::Addresses])),
            16 => Value::Counter64(figures.dropped(&[Resource::Ports, Resource::SubscriberPorts])),
            17 => Value::Counter64(figures.dropped(&[Resource::Fragments])),
            18 => Value::Counter64(figures.dropped(&[Resource::Other, Resource::SubscriberOther])),
            19 => Value::TimeTicks(self.started),
            20 => Value::Integer(self.control.first),
            21 => Value::Integer(self.control.second),
            22 => Value::Gauge32(self.control.interval),
            23 => Value::Gauge32(0),
            24 => Value::unsigned(status.mappings_max),
            25 => Value::Gauge32(self.fragments_max),
            26 => Value::unsigned(status.subscribers_max),
            _ => Value::NoSuchObject,
        }
    }
}
