//! Whether the file that event records are to go to may be one: records are appended to it, and it is renamed in time.

use std::fs;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// How each record begins.
const RECORD: &[u8] = b"{\"time\":\"";
/// Of one that was cut short, so much at least must be there: other files have lines with nothing but a brace.
const CUT_BYTES_MIN: usize = 3;
/// Bytes a record is looked for in. The longest has a small part of them.
const LOOK_BYTES: u64 = 1 << 16;

/// What is wrong with what is there under this name, and what to do; none where nothing is there, or what can not be read: that is told
/// when it is opened.
pub(crate) fn problem(path: &Path) -> Option<(&'static str, &'static str)> {
    if !fs::metadata(path).ok()?.is_file() {
        let remedy =
            "name a file, which is renamed in time, or write \"-\" for standard output, which may lead anywhere";
        return Some(("is no regular file", remedy));
    }
    let mut first = Vec::new();
    File::open(path).ok()?.take(LOOK_BYTES).read_to_end(&mut first).ok()?;
    // Others may have cut its beginning off, or a killed process its last line.
    let is_log = first.iter().all(u8::is_ascii_whitespace) || first.split(|byte| *byte == b'\n').any(is_record);
    let remedy = "name another file, or one that is not there yet: records are appended to it";
    (!is_log).then_some(("is no event log: no line of it is a record", remedy))
}

/// Also of a record that was cut short.
fn is_record(line: &[u8]) -> bool {
    line.starts_with(RECORD) || line.len() >= CUT_BYTES_MIN && RECORD.starts_with(line)
}
