//! The record of lookups: each question about a subscriber is answerable itself.
//!
//! One line of JSON for each, appended to the file `lookups` of the store. Each line has the hash
//! of the line before, so that a removed or changed line shows.

use std::fs::File;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::path::Path;

use serde_json::json;

use super::catalogue::hex;
use super::error::StoreError;
use super::reader::Found;
use super::reader::Question;
use crate::utc_text;

/// Name of the file in the folder.
pub(crate) const NAME: &str = "lookups";
/// Longest line that is looked for at the end of the file.
const LINE_MAX: u64 = 1 << 16;
/// Longest text of a case.
pub const CASE_MAX: usize = 4_096;

/// Records a lookup and its case at a time, µs since 1970. The answer's holders are counted, not
/// named.
///
/// # Errors
/// The file cannot be written, or the case is longer than [`CASE_MAX`].
pub fn record(
    folder: &Path,
    question: &Question,
    found: &Found,
    case: Option<&str>,
    unix_us: u64,
) -> Result<(), StoreError> {
    let address = question.host.map_or_else(|| question.address.to_string(), |host| host.to_string());
    let fields = json!({
        "address": address,
        "port": question.port,
        "protocol": question.protocol.map(|protocol| protocol.name()),
        "from": utc_text(question.from_us),
        "to": utc_text(question.to_us),
        "holders": found.holders.len(),
        "complete": found.is_complete,
    });
    append(folder, fields, case, unix_us)
}

/// As [`record`], for an export of all holders between two times, which is about no address.
///
/// # Errors
/// As [`record`].
pub fn record_export(
    folder: &Path,
    (from_us, to_us): (u64, u64),
    case: Option<&str>,
    unix_us: u64,
) -> Result<(), StoreError> {
    let fields = json!({
        "address": null,
        "port": null,
        "protocol": null,
        "from": utc_text(from_us),
        "to": utc_text(to_us),
        "holders": null,
        "complete": null,
    });
    append(folder, fields, case, unix_us)
}

/// Appends a line with these fields, the time, the case, and the hash of the line before.
fn append(folder: &Path, mut fields: serde_json::Value, case: Option<&str>, unix_us: u64) -> Result<(), StoreError> {
    let path = folder.join(NAME);
    let error = StoreError::io(&path);
    let case = case.map(|case| case.chars().take(CASE_MAX).collect::<String>());
    let mut file = File::options().create(true).append(true).read(true).open(&path).map_err(&error)?;
    file.lock().map_err(&error)?;
    let length = file.metadata().map_err(&error)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LINE_MAX))).map_err(&error)?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).map_err(&error)?;
    let last = end.strip_suffix(b"\n").unwrap_or(&end).rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    fields["time"] = utc_text(unix_us).into();
    fields["case"] = case.into();
    fields["previous"] = hex(blake3::hash(last).as_bytes()).into();
    file.write_all(format!("{fields}\n").as_bytes()).map_err(&error)?;
    file.sync_data().map_err(&error)
}

/// Checks that every line of the record has the hash of the line before. Returns the number of
/// lines, and the number of the first wrong line if there is one.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn check(folder: &Path) -> Result<(u64, Option<u64>), StoreError> {
    use std::io::BufRead;
    let path = folder.join(NAME);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, None)),
        Err(error) => return Err(StoreError::io(&path)(error)),
    };
    let mut reader = std::io::BufReader::new(file);
    let (mut count, mut before) = (0, *blake3::hash(b"").as_bytes());
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).map_err(StoreError::io(&path))?;
        if read == 0 {
            return Ok((count, None));
        }
        count += 1;
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        let value: Option<serde_json::Value> = serde_json::from_slice(content).ok();
        if value.as_ref().and_then(|value| value["previous"].as_str()) != Some(&hex(&before)) {
            return Ok((count, Some(count)));
        }
        before = *blake3::hash(content).as_bytes();
    }
}
