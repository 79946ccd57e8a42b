//! natv2ProtocolTable.

use std::sync::Arc;

use control::Protocol;

use super::INSTANCE;
use super::Table;
use super::View;
use crate::figures::Figures;
use crate::figures::protocol_number;
use crate::source::Unavailable;
use crate::value::Value;

pub(super) const COLUMNS: [u32; 4] = [3, 4, 5, 6];

/// In the order of their numbers.
const PROTOCOLS: [Protocol; 3] = [Protocol::Icmp, Protocol::Tcp, Protocol::Udp];

struct Protocols(Arc<Figures>);

pub(super) fn open(view: &mut View) -> Result<Box<dyn Table>, Unavailable> {
    Ok(Box::new(Protocols(view.source.figures()?)))
}

impl Table for Protocols {
    fn rows(&self) -> usize {
        PROTOCOLS.len()
    }

    fn index(&self, row: usize) -> Vec<u32> {
        vec![INSTANCE, protocol_number(PROTOCOLS[row])]
    }

    fn value(&self, column: u32, row: usize) -> Value {
        match column {
            3 => Value::unsigned(self.0.mappings(PROTOCOLS[row])),
            4 => Value::Counter64(self.0.sum(&[&format!("translated_{}", PROTOCOLS[row])])),
            5 => Value::Counter64(self.0.created(PROTOCOLS[row])),
            6 => Value::Counter64(self.0.sum(&[&format!("ports_refused_{}", PROTOCOLS[row])])),
            _ => Value::NoSuchObject,
        }
    }
}
