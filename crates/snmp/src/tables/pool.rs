//! natv2PoolTable.

use std::sync::Arc;

use super::INSTANCE;
use super::Table;
use super::View;
use super::text;
use crate::controls::Control;
use crate::controls::Field;
use crate::controls::Of;
use crate::figures::EXTERNAL_REALM;
use crate::figures::Figures;
use crate::figures::ports_mapped;
use crate::source::Unavailable;
use crate::value::Value;

pub(crate) const ENTRY: [u32; 3] = [2, 3, 1];
/// natv2PoolNotifiedPortMapEntries and natv2PoolNotifiedPortMapProtocol, which only notifications
/// have.
pub(crate) const NOTIFIED_ENTRIES: u32 = 16;
pub(crate) const NOTIFIED_PROTOCOL: u32 = 17;

pub(super) const COLUMNS: [u32; 14] = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 18];

struct Row {
    index: u32,
    /// Its place among the pools of the figures.
    place: usize,
    since: u32,
    control: Control,
}

struct Pools {
    figures: Arc<Figures>,
    rows: Vec<Row>,
}

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    let figures = view.source.figures()?;
    let known = view.source.pools()?;
    let rows = figures.pools.iter().enumerate().filter_map(|(place, pool)| {
        let known = known.get(&pool.name)?;
        Some(Row {
            index: known.index,
            place,
            since: view.clock.shows(known.since),
            control: view.controls.of(&Of::Pool(pool.name.as_str().into())),
        })
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_unstable_by_key(|row| row.index);
    Ok(Box::new(Pools { figures, rows }))
}

pub(super) fn writable(column: u32) -> Option<Field> {
    match column {
        14 => Some(Field::First),
        15 => Some(Field::Second),
        18 => Some(Field::Interval),
        _ => None,
    }
}

impl Table for Pools {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn index(&self, row: usize) -> Vec<u32> {
        vec![INSTANCE, self.rows[row].index]
    }

    fn whose(&self, row: usize) -> Option<Of> {
        Some(Of::Pool(self.figures.pools[self.rows[row].place].name.as_str().into()))
    }

    fn value(&self, column: u32, row: usize) -> Value {
        let Row { place, since, control, .. } = &self.rows[row];
        let pool = &self.figures.pools[*place];
        match column {
            3 => text(EXTERNAL_REALM),
            // IPv4.
            4 => Value::Integer(1),
            5 => Value::Gauge32(pool.port_min.into()),
            6 => Value::Gauge32(pool.port_max.into()),
            7 => Value::unsigned(pool.subscribers),
            8 => {
                let each = control::Protocol::ALL.iter().map(|protocol| ports_mapped(pool, *protocol));
                Value::unsigned(each.sum())
            }
            9 => Value::Counter64(pool.addresses_paired),
            10 => Value::Counter64(pool.mappings_created),
            11 => Value::Counter64(pool.refused_without_address),
            12 => Value::Counter64(pool.refused_without_port),
            13 => Value::TimeTicks(*since),
            14 => Value::Integer(control.first),
            15 => Value::Integer(control.second),
            18 => Value::Gauge32(control.interval),
            _ => Value::NoSuchObject,
        }
    }
}
