//! Prints objects: as a table for people, or as JSON lines for programs.

use std::io;
use std::io::Write;

use serde_json::to_writer;

use control::Client;
use control::Object;
use control::PAGE_OBJECTS_MAX;
use control::Request;

use crate::error::CliError;
use crate::show_arguments::Paging;
use crate::table::Align;
use crate::table::Table;

/// Writes one object as one line of JSON.
pub(crate) fn json_line<T: Object>(object: &T, out: &mut dyn Write) -> io::Result<()> {
    to_writer(&mut *out, object)?;
    out.write_all(b"\n")
}

/// Objects of one page: large enough to be fast, small enough that a table appears at once.
const PAGE_OBJECTS: u64 = 1_000;
const _: () = assert!(PAGE_OBJECTS <= PAGE_OBJECTS_MAX as u64);

/// The columns of a kind of object in a table.
pub(crate) trait Row: Object {
    /// Headings of the columns.
    const COLUMNS: &'static [(&'static str, Align)];

    /// The cells, one for each column.
    fn cells(&self) -> Vec<String>;
}

/// Prints a complete list.
pub(crate) fn print_all<T: Row>(objects: &[T], json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        return objects.iter().try_for_each(|object| json_line(object, out));
    }
    let mut table = Table::new(T::COLUMNS);
    objects.iter().for_each(|object| table.row(object.cells()));
    table.flush(out)
}

/// Prints a list of the instance page by page, as [`print_fetched`] does.
pub(crate) fn print_pages<T: Row>(
    client: &mut Client,
    paging: &Paging,
    page: impl Fn(Option<u32>, Option<String>) -> Request,
    json: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), CliError> {
    let fetch = |limit, cursor| Ok(client.request::<T>(&page(limit, cursor))?);
    print_fetched(fetch, paging, json, out, notes)
}

/// Prints a list page by page, up to the limit. If there is more, prints the next cursor to
/// `notes`, so that the output remains a list.
pub(crate) fn print_fetched<T: Row>(
    mut fetch: impl FnMut(Option<u32>, Option<String>) -> Result<(Vec<T>, Option<String>), CliError>,
    paging: &Paging,
    json: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), CliError> {
    let mut table = Table::new(T::COLUMNS);
    let mut left = if paging.all { u64::MAX } else { paging.limit };
    let mut cursor = paging.cursor.clone();
    loop {
        let limit = u32::try_from(left.min(PAGE_OBJECTS)).ok();
        let (objects, next) = fetch(limit, cursor)?;
        left = left.saturating_sub(objects.len() as u64);
        for object in &objects {
            if json {
                json_line(object, out)?;
            } else {
                table.row(object.cells());
            }
        }
        if !json {
            table.flush(out)?;
        }
        match next {
            None => return Ok(()),
            Some(next) if left == 0 => {
                out.flush()?;
                // A failure to write notes has no reader to report to.
                let _ = writeln!(notes, "more: continue with --cursor {next}, or use --all");
                return Ok(());
            }
            next => cursor = next,
        }
    }
}
