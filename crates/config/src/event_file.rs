//! Whether the file that event records are to go to may be one: records are appended to it, and it
//! is renamed in time.

use std::fs;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// How each record begins.
const RECORD: &[u8] = b"{\"time\":\"";
/// Of one that was cut short, so much at least must be there: other files have lines with nothing
/// but a brace.
const CUT_BYTES_MIN: usize = 3;
/// Bytes a record is looked for in. The longest has a small part of them.
const LOOK_BYTES: u64 = 1 << 16;

/// What is wrong with the file of this name, and what to do. None if there is no such file, or if
/// it cannot be read, which is reported when it is opened.
pub(crate) fn problem(path: &Path) -> Option<(&'static str, &'static str)> {
    if !fs::metadata(path).ok()?.is_file() {
        let remedy = "name a regular file, which can be rotated, or write \"-\" for standard output";
        return Some(("is not a regular file", remedy));
    }
    let mut first = Vec::new();
    File::open(path).ok()?.take(LOOK_BYTES).read_to_end(&mut first).ok()?;
    // Others may have cut its beginning off, or a killed process its last line.
    let is_log = first.iter().all(u8::is_ascii_whitespace) || first.split(|byte| *byte == b'\n').any(is_record);
    let remedy = "name another file, or one that does not exist yet: records are appended to it";
    (!is_log).then_some(("is not an event log: none of its lines is a record", remedy))
}

/// Also of a record that was cut short.
fn is_record(line: &[u8]) -> bool {
    line.starts_with(RECORD) || line.len() >= CUT_BYTES_MIN && RECORD.starts_with(line)
}
