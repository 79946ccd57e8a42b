//! Where objects go: a table for people, or JSON lines for programs.

use std::io;
use std::io::Write;

use serde_json::to_writer;

use control::Client;
use control::Object;
use control::PAGE_OBJECTS_MAX;
use control::Request;

use crate::arguments::Paging;
use crate::error::CliError;
use crate::table::Align;
use crate::table::Table;

/// Writes one object as one line of JSON.
pub(crate) fn json_line<T: Object>(object: &T, out: &mut dyn Write) -> io::Result<()> {
    to_writer(&mut *out, object)?;
    out.write_all(b"\n")
}

/// Objects of one page: large enough to be quick, small enough that tables start at once.
const PAGE_OBJECTS: u64 = 1_000;
const _: () = assert!(PAGE_OBJECTS <= PAGE_OBJECTS_MAX as u64);

/// How a kind of object looks in a table.
pub(crate) trait Row: Object {
    /// Headings of the columns.
    const COLUMNS: &'static [(&'static str, Align)];

    /// The cells, one for each column.
    fn cells(&self) -> Vec<String>;
}

/// Prints objects that are all here.
pub(crate) fn print_all<T: Row>(objects: &[T], json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        return objects.iter().try_for_each(|object| json_line(object, out));
    }
    let mut table = Table::new(T::COLUMNS);
    objects.iter().for_each(|object| table.row(object.cells()));
    table.flush(out)
}

/// Prints a list page by page as it comes, up to the limit. Says on standard error where to go on when there is more: the
/// output itself stays a list.
pub(crate) fn print_pages<T: Row>(
    client: &mut Client,
    paging: &Paging,
    page: impl Fn(Option<u32>, Option<String>) -> Request,
    json: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), CliError> {
    let mut table = Table::new(T::COLUMNS);
    let mut left = if paging.all { u64::MAX } else { paging.limit };
    let mut cursor = paging.cursor.clone();
    loop {
        let limit = u32::try_from(left.min(PAGE_OBJECTS)).ok();
        let (objects, next) = client.request::<T>(&page(limit, cursor))?;
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
                // Where notes can not be written nobody reads them.
                let _ = writeln!(notes, "more: --cursor {next} goes on from here, --all shows everything");
                return Ok(());
            }
            next => cursor = next,
        }
    }
}
