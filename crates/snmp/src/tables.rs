//! The tables of NATV2-MIB: finding an object, or the next one.

mod address_map;
pub(crate) mod instance;
pub(crate) mod pool;
mod pool_range;
mod port_map;
mod protocol;
pub(crate) mod subscriber;

use core::net::IpAddr;
use std::sync::Arc;

use crate::clock::MasterClock;
use crate::controls::Controls;
use crate::controls::Field;
use crate::controls::Of;
use crate::oid::Oid;
use crate::pdu::SearchRange;
use crate::settings::Settings;
use crate::source::Source;
use crate::source::Unavailable;
use crate::value::Value;
use crate::value::VarBind;

/// `natv2MIB`: 1.3.6.1.2.1.234.
const MIB: [u32; 7] = [1, 3, 6, 1, 2, 1, 234];
/// The only instance.
pub(crate) const INSTANCE: u32 = 1;

/// The subtree that this agent serves.
pub(crate) fn subtree() -> Oid {
    Oid::new(&MIB)
}

/// A table as it is now, its rows in the order of their index.
trait Table {
    /// Number of rows.
    fn rows(&self) -> usize;
    /// The index of a row.
    fn index(&self, row: usize) -> Vec<u32>;
    /// An object of a row.
    fn value(&self, column: u32, row: usize) -> Value;
    /// Whose values can be set in a row.
    fn whose(&self, _row: usize) -> Option<Of> {
        None
    }
}

/// What tables are made from.
pub(crate) struct View<'a> {
    pub(crate) source: &'a mut Source,
    pub(crate) controls: Arc<Controls>,
    pub(crate) settings: &'a Settings,
    pub(crate) clock: MasterClock,
}

type Open = fn(&mut View) -> Result<Box<dyn Table>, Unavailable>;
type Writable = fn(column: u32) -> Option<Field>;

/// A table of the MIB.
struct Described {
    /// Its entry, below `natv2MIB`.
    entry: [u32; 3],
    /// Its readable columns, in order.
    columns: &'static [u32],
    open: Open,
    /// Of a column that can be set: which value.
    writable: Writable,
}

/// All tables, in the order of a walk.
const TABLES: [Described; 7] = [
    Described {
        entry: [1, 1, 1],
        columns: &subscriber::COLUMNS,
        open: subscriber::open,
        writable: subscriber::writable,
    },
    Described { entry: [2, 1, 1], columns: &instance::COLUMNS, open: instance::open, writable: instance::writable },
    Described { entry: [2, 2, 1], columns: &protocol::COLUMNS, open: protocol::open, writable: |_| None },
    Described { entry: [2, 3, 1], columns: &pool::COLUMNS, open: pool::open, writable: pool::writable },
    Described { entry: [2, 4, 1], columns: &pool_range::COLUMNS, open: pool_range::open, writable: |_| None },
    Described { entry: [2, 5, 1], columns: &address_map::COLUMNS, open: address_map::open, writable: |_| None },
    Described { entry: [2, 6, 1], columns: &port_map::COLUMNS, open: port_map::open, writable: |_| None },
];

impl Described {
    fn entry(&self) -> Oid {
        subtree().with(&self.entry)
    }
}

/// The table and column of an object, and its index.
fn place(name: &Oid) -> Option<(&'static Described, u32, &[u32])> {
    TABLES.iter().find_map(|table| match name.after(&table.entry())? {
        [column, index @ ..] if table.columns.contains(column) => Some((table, *column, index)),
        _ => None,
    })
}

/// The row with exactly this index.
fn row_of(table: &dyn Table, index: &[u32]) -> Option<usize> {
    let row = first_row(table, index, true);
    (row < table.rows() && table.index(row) == index).then_some(row)
}

/// The first row after `index`, or with it.
fn first_row(table: &dyn Table, index: &[u32], include: bool) -> usize {
    let (mut low, mut high) = (0, table.rows());
    while low < high {
        let middle = low + (high - low) / 2;
        let of_row = table.index(middle);
        let is_before = if include { of_row.as_slice() < index } else { of_row.as_slice() <= index };
        if is_before { low = middle + 1 } else { high = middle }
    }
    low
}

/// The value of exactly this object.
pub(crate) fn get(view: &mut View, name: &Oid) -> Result<Value, Unavailable> {
    let Some((described, column, index)) = place(name) else { return Ok(Value::NoSuchObject) };
    let table = (described.open)(view)?;
    Ok(row_of(&*table, index).map_or(Value::NoSuchInstance, |row| table.value(column, row)))
}

/// The next object of a range.
pub(crate) fn next(view: &mut View, range: &SearchRange) -> Result<VarBind, Unavailable> {
    let end = VarBind { name: range.start.clone(), value: Value::EndOfMibView };
    for described in &TABLES {
        let entry = described.entry();
        if !range.end.is_null() && entry >= range.end {
            break;
        }
        // Past the last column: no need to open it.
        let last = described.columns.last().copied().unwrap_or_default();
        if range.start >= entry.with(&[last + 1]) {
            continue;
        }
        let table = (described.open)(view)?;
        for column in described.columns {
            let prefix = entry.with(&[*column]);
            let row = match range.start.after(&prefix) {
                Some(index) => first_row(&*table, index, range.include),
                None if range.start < prefix => 0,
                None => continue,
            };
            if row < table.rows() {
                let name = prefix.with(&table.index(row));
                if !range.end.is_null() && name >= range.end {
                    return Ok(end);
                }
                return Ok(VarBind { name, value: table.value(*column, row) });
            }
        }
    }
    Ok(end)
}

/// What can be said of setting an object, before its value is looked at.
pub(crate) enum Settable {
    /// It can be set.
    Yes(Of, Field),
    /// Its value can only be read.
    ReadOnly,
    /// There is no such instance.
    NoInstance,
}

/// Whether an object can be set.
pub(crate) fn settable(view: &mut View, name: &Oid) -> Result<Settable, Unavailable> {
    let Some((described, column, index)) = place(name) else { return Ok(Settable::ReadOnly) };
    let Some(field) = (described.writable)(column) else { return Ok(Settable::ReadOnly) };
    let table = (described.open)(view)?;
    let of = row_of(&*table, index).and_then(|row| table.whose(row));
    Ok(of.map_or(Settable::NoInstance, |of| Settable::Yes(of, field)))
}

/// The name of an object of NATV2-MIB.
pub(crate) fn name_of(entry: [u32; 3], column: u32, index: &[u32]) -> Oid {
    subtree().with(&entry).with(&[column]).with(index)
}

/// InetAddressType.
fn address_type(address: IpAddr) -> u32 {
    if address.is_ipv4() { 1 } else { 2 }
}

/// The octets of InetAddress.
fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Appends a string of variable length to an index: its length, then its octets.
fn push_string(index: &mut Vec<u32>, octets: &[u8]) {
    index.push(octets.len() as u32);
    index.extend(octets.iter().copied().map(u32::from));
}

/// Appends InetAddressType and InetAddress to an index.
fn push_address(index: &mut Vec<u32>, address: IpAddr) {
    index.push(address_type(address));
    push_string(index, &octets(address));
}

/// A text.
fn text(text: &str) -> Value {
    Value::Octets(text.as_bytes().to_vec())
}

/// INTEGER of InetAddressType.
fn type_of(address: IpAddr) -> Value {
    Value::Integer(address_type(address).cast_signed())
}

/// InetAddress.
fn address(address: IpAddr) -> Value {
    Value::Octets(octets(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers(Vec<Vec<u32>>);

    impl Table for Numbers {
        fn rows(&self) -> usize {
            self.0.len()
        }

        fn index(&self, row: usize) -> Vec<u32> {
            self.0[row].clone()
        }

        fn value(&self, _: u32, row: usize) -> Value {
            Value::Integer(row as i32)
        }
    }

    #[test]
    fn the_row_after_any_index_is_found() {
        let table = Numbers(vec![vec![1, 1], vec![1, 5], vec![1, 5, 2], vec![2]]);
        for (index, include, row) in [
            (&[][..], false, 0),
            (&[1], false, 0),
            (&[1, 1], true, 0),
            (&[1, 1], false, 1),
            (&[1, 4], false, 1),
            (&[1, 5], false, 2),
            (&[1, 5, 2, 0], false, 3),
            (&[2], true, 3),
            (&[2], false, 4),
            (&[9], true, 4),
        ] {
            assert_eq!(first_row(&table, index, include), row, "{index:?} {include}");
        }
        assert_eq!(row_of(&table, &[1, 5]), Some(1));
        assert_eq!(row_of(&table, &[1]), None);
        assert_eq!(row_of(&table, &[2, 0]), None);
    }

    #[test]
    fn tables_and_columns_are_in_the_order_of_a_walk() {
        let entries: Vec<[u32; 3]> = TABLES.iter().map(|table| table.entry).collect();
        assert!(entries.is_sorted());
        for table in &TABLES {
            assert!(table.columns.is_sorted() && !table.columns.is_empty(), "{:?}", table.entry);
        }
    }

    #[test]
    fn an_address_in_an_index_has_type_and_length() {
        let mut index = Vec::new();
        push_address(&mut index, [203, 0, 113, 7].into());
        assert_eq!(index, [1, 4, 203, 0, 113, 7]);
        push_string(&mut index, b"ab");
        assert_eq!(index[6..], [2, 97, 98]);
    }
}
