//! What this instance has announced, in a file beside its control socket. After a kill, the next
//! start removes these routes, even if the configuration has changed meanwhile.
//!
//! Like routes of the kernel, the file ends with a restart of the machine, so nothing is synced.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

/// Table of the kernel, first address, and length of a prefix.
pub type Place = (u32, IpAddr, u8);

/// The file.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    /// What it has; None: not known.
    written: Option<BTreeSet<Place>>,
}

impl Record {
    /// The record of the instance with this control socket.
    pub fn beside(socket: &Path) -> Record {
        Record { path: socket.with_extension("announced"), written: None }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What an earlier process wrote, as far as it can be read.
    pub fn read(&self) -> BTreeSet<Place> {
        fs::read_to_string(&self.path).unwrap_or_default().lines().filter_map(place).collect()
    }

    /// Replaces what it has, if that is not the same. An empty one goes.
    ///
    /// # Errors
    /// It cannot be written. The old one stays, and the error comes once.
    pub fn write(&mut self, places: BTreeSet<Place>) -> io::Result<()> {
        if self.written.as_ref() == Some(&places) {
            return Ok(());
        }
        let lines = places.iter().map(|(table, address, length)| format!("{table} {address}/{length}\n"));
        let text: String = lines.collect();
        self.written = Some(places);
        if text.is_empty() {
            return fs::remove_file(&self.path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            });
        }
        let next = self.path.with_extension("announced.new");
        fs::write(&next, text)?;
        fs::rename(&next, &self.path)
    }
}

fn place(line: &str) -> Option<Place> {
    let (table, prefix) = line.split_once(' ')?;
    let (address, length) = prefix.split_once('/')?;
    Some((table.parse().ok()?, address.parse().ok()?, length.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_outlives_the_process_until_it_is_empty() {
        let socket = std::env::temp_dir().join(format!("natrix-record-{}.sock", std::process::id()));
        let mut record = Record::beside(&socket);
        assert!(record.read().is_empty(), "there is none");
        let places =
            BTreeSet::from([(254, "203.0.113.0".parse().unwrap(), 29), (1_000_000, "64:ff9b::".parse().unwrap(), 96)]);
        record.write(places.clone()).unwrap();
        assert_eq!(Record::beside(&socket).read(), places);
        fs::write(record.path(), "254 203.0.113.0/29\n254 203.0.1").unwrap();
        assert_eq!(Record::beside(&socket).read().len(), 1, "a line that is cut off");
        record.write(places).unwrap();
        assert_eq!(record.read().len(), 1, "what is not new is not written again");
        record.write(BTreeSet::new()).unwrap();
        assert!(!record.path().exists());
        let missing = Path::new("/nonexistent/natrix.sock");
        let mut record = Record::beside(missing);
        let one = || BTreeSet::from([(254, IpAddr::from([203, 0, 113, 0]), 29)]);
        assert!(record.write(one()).is_err());
        assert!(record.write(one()).is_ok(), "reported once");
    }
}
