//! The record of lookups: each question about a subscriber is answerable itself.
//!
//! One line of JSON for each, appended to the file `lookups` of the store. Each line has the hash
//! of the line before, so that a removed or changed line shows. The signed head of the store has
//! the number of lines and the hash of the last one, so that a cut end shows, too.

use std::fs::File;
use std::io;
use std::io::BufRead;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::json;

use super::catalogue::hex;
use super::error::StoreError;
use super::journal::Hash;
use super::reader::Question;
use crate::FILE_MODE;
use crate::utc_text;

/// Name of the file in the folder.
pub(crate) const NAME: &str = "lookups";
/// Longest line that is looked for at the end of the file.
const LINE_MAX: u64 = 1 << 16;
/// Longest text of a case.
pub const CASE_MAX: usize = 4_096;

/// A lookup as it is recorded: its holders are counted, not named.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// What was asked.
    pub question: &'a Question,
    /// Only holders in this VRF.
    pub vrf: Option<&'a str>,
    /// Only those towards this remote endpoint, or without a recorded one.
    pub remote: Option<&'a str>,
    /// Checksum of the formulas of the configuration that was given.
    pub formulas: Option<u32>,
    /// The holders in the answer, with those by a formula.
    pub holders: usize,
    /// Whether it said that no record of that time is missing.
    pub is_complete: bool,
}

/// Records a lookup and its case at a time, µs since 1970.
///
/// # Errors
/// The file cannot be written, or the case is longer than [`CASE_MAX`].
pub fn record(folder: &Path, lookup: &Lookup<'_>, case: Option<&str>, unix_us: u64) -> Result<(), StoreError> {
    let Lookup { question, vrf, remote, formulas, holders, is_complete } = *lookup;
    let address = question.host.map_or_else(|| question.address.to_string(), |host| host.to_string());
    let fields = json!({
        "address": address,
        "port": question.port,
        "protocol": question.protocol.map(|protocol| protocol.name()),
        "from": utc_text(question.from_us),
        "to": utc_text(question.to_us),
        "vrf": vrf,
        "remote": remote,
        "formulas": formulas.map(|checksum| format!("{checksum:08x}")),
        "holders": holders,
        "complete": is_complete,
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
        "vrf": null,
        "remote": null,
        "formulas": null,
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
    let mut file = File::options().create(true).append(true).read(true).mode(FILE_MODE).open(&path).map_err(&error)?;
    file.lock().map_err(&error)?;
    let last = end_of(&mut file).map_err(&error)?;
    fields["time"] = utc_text(unix_us).into();
    fields["case"] = case.into();
    fields["previous"] = hex(blake3::hash(&last).as_bytes()).into();
    write_whole(&mut file, format!("{fields}\n").as_bytes(), File::sync_data).map_err(&error)
}

/// Makes the file end with a whole line, and returns that line without its newline; nothing if the
/// file is empty. What comes after the last newline was torn off by a full disk or a power cut: no
/// lookup with it was answered, so it is cut off, unless it lacks nothing but the newline.
fn end_of(file: &mut File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let (mut end, mut reach) = (Vec::new(), LINE_MAX);
    loop {
        let from = length.saturating_sub(reach);
        end.clear();
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut end)?;
        // The last whole line, and the newline before it.
        if from == 0 || end.iter().filter(|byte| **byte == b'\n').count() > 1 {
            break;
        }
        reach = reach.saturating_mul(2);
    }
    let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
    let torn = end.split_off(whole);
    let last = end.strip_suffix(b"\n").unwrap_or(&end).rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    if torn.is_empty() {
        return Ok(last.to_vec());
    }
    if follows(&torn, blake3::hash(last).as_bytes()) {
        write_whole(file, b"\n", |_| Ok(()))?;
        return Ok(torn);
    }
    file.set_len(length.saturating_sub(torn.len() as u64))?;
    Ok(last.to_vec())
}

/// Appends all of `bytes` and calls `sync`, or else leaves the file as long as it was.
///
/// # Errors
/// The bytes cannot be written or `sync` failed.
fn write_whole(file: &mut File, bytes: &[u8], sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let length = file.metadata()?.len();
    let written = file.write_all(bytes).and_then(|()| sync(file));
    if written.is_err() {
        // If this fails, too, the next record sees to the torn end.
        let _ = file.set_len(length);
    }
    written
}

/// True if a line without its newline is a record that has the hash of the line before.
fn follows(line: &[u8], before: &[u8; 32]) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_slice(line).ok();
    value.as_ref().and_then(|value| value["previous"].as_str()) == Some(&hex(before))
}

/// The lines of a record and the hash of the last one, for the signed head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines {
    count: u64,
    last: Hash,
    /// Bytes of these lines.
    bytes: u64,
    /// What an earlier head had. While the file lacks that, this is signed again.
    earlier: (u64, Hash),
    /// True if the file has lost lines.
    is_cut: bool,
}

impl Lines {
    /// Of a record that had these lines, by an earlier head.
    pub(crate) fn after(earlier: (u64, Hash)) -> Lines {
        Lines { earlier, ..Lines::default() }
    }

    /// Reads what was appended, unless a line is just being written.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_on(&mut self, folder: &Path) -> io::Result<()> {
        self.read_locked(folder, |file| Ok(file.try_lock_shared().is_ok()))
    }

    /// Reads what was appended; waits for a line that is just being written.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_all(&mut self, folder: &Path) -> io::Result<()> {
        self.read_locked(folder, |file| file.lock_shared().map(|()| true))
    }

    /// Reads what was appended if `lock` says that it has the file.
    fn read_locked(&mut self, folder: &Path, lock: impl FnOnce(&File) -> io::Result<bool>) -> io::Result<()> {
        let mut file = match File::open(folder.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.found(0);
                return Ok(());
            }
            opened => opened?,
        };
        let length = file.metadata()?.len();
        self.found(length);
        // A line counts when it is on the disk.
        if length == self.bytes || self.is_cut || !lock(&file)? {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.bytes))?;
        let mut reader = io::BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line)?;
            let Some(content) = line.strip_suffix(b"\n") else { return Ok(()) };
            (self.count, self.last) = (self.count + 1, *blake3::hash(content).as_bytes());
            self.bytes += line.len() as u64;
            self.is_cut |= self.count == self.earlier.0 && self.last != self.earlier.1;
        }
    }

    /// Notes the length of the file.
    fn found(&mut self, length: u64) {
        if length < self.bytes && !self.is_cut {
            // An earlier head may have had more lines, which were not back.
            if self.count >= self.earlier.0 {
                self.earlier = (self.count, self.last);
            }
            self.is_cut = true;
        }
    }

    /// How many lines there were, and the hash of the last one.
    pub(crate) fn signed(&self) -> (u64, Hash) {
        let has_all = !self.is_cut && self.count >= self.earlier.0;
        if has_all { (self.count, self.last) } else { self.earlier }
    }
}

/// What is wrong if a head has so many lines with this hash of the last one; None if it fits.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn against(folder: &Path, signed: (u64, Hash)) -> Result<Option<String>, StoreError> {
    let mut lines = Lines::after(signed);
    lines.read_all(folder).map_err(StoreError::io(&folder.join(NAME)))?;
    let (expected, found) = (signed.0, lines.count);
    Ok(match (lines.is_cut, found < expected) {
        (true, _) => Some(format!("line {expected} of lookups is another one; the record was rewritten")),
        (_, true) => Some(format!("{found} lines of lookups instead of {expected}; the end was cut off")),
        _ => None,
    })
}

/// Checks that every line of the record has the hash of the line before. Returns the number of
/// lines, and the number of the first wrong line if there is one. A last line without a newline
/// was never whole: if it does not follow, it is torn, and does not count.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn check(folder: &Path) -> Result<(u64, Option<u64>), StoreError> {
    let path = folder.join(NAME);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, None)),
        Err(error) => return Err(StoreError::io(&path)(error)),
    };
    let mut reader = io::BufReader::new(file);
    let (mut count, mut before) = (0, *blake3::hash(b"").as_bytes());
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).map_err(StoreError::io(&path))?;
        if read == 0 {
            return Ok((count, None));
        }
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        if !follows(content, &before) {
            let has_newline =
                content.len() < line.len() || rest_has_newline(&mut reader).map_err(StoreError::io(&path))?;
            return Ok(if has_newline { (count + 1, Some(count + 1)) } else { (count, None) });
        }
        count += 1;
        before = *blake3::hash(content).as_bytes();
    }
}

/// True if a newline follows.
fn rest_has_newline(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() || bytes.contains(&b'\n') {
            return Ok(!bytes.is_empty());
        }
        let length = bytes.len();
        reader.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an empty folder.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("natrix-lookups-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn a_record_torn_at_any_byte_is_no_tampering() {
        let folder = folder("torn");
        let file = folder.join(NAME);
        record_export(&folder, (1, 2), Some("first"), 10).unwrap();
        let first = std::fs::read(&file).unwrap();
        record_export(&folder, (3, 4), Some("second"), 20).unwrap();
        let both = std::fs::read(&file).unwrap();
        let whole = |length: usize| length + 1 >= both.len();
        for length in first.len()..=both.len() {
            std::fs::write(&file, &both[..length]).unwrap();
            assert_eq!(check(&folder).unwrap(), (1 + u64::from(whole(length)), None), "cut at {length}");
            record_export(&folder, (5, 6), Some("third"), 30).unwrap();
            assert_eq!(check(&folder).unwrap(), (2 + u64::from(whole(length)), None), "cut at {length}");
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.contains("first") && text.contains("third"), "{text}");
            assert_eq!(text.contains("second"), whole(length), "{text}");
        }
        // A power cut can leave zeros where data were not yet on the disk.
        for zeros in [1, 100_000] {
            std::fs::write(&file, [first.as_slice(), &vec![0; zeros]].concat()).unwrap();
            assert_eq!(check(&folder).unwrap(), (1, None), "{zeros} zeros");
            record_export(&folder, (5, 6), None, 30).unwrap();
            assert_eq!(check(&folder).unwrap(), (2, None), "{zeros} zeros");
        }
        std::fs::write(&file, &first[..first.len() / 2]).unwrap();
        assert_eq!(check(&folder).unwrap(), (0, None));
        record_export(&folder, (5, 6), None, 30).unwrap();
        assert_eq!(check(&folder).unwrap(), (1, None));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_changed_line_is_still_found() {
        let folder = folder("changed");
        let file = folder.join(NAME);
        for number in 0..3 {
            record_export(&folder, (1, 2), Some(&format!("case {number}")), number).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("case 0", "case 9")).unwrap();
        assert_eq!(check(&folder).unwrap(), (2, Some(2)));
        // A torn line is the last one only.
        std::fs::write(&file, text.replacen("}\n", "\n", 1)).unwrap();
        assert_eq!(check(&folder).unwrap(), (1, Some(1)));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_line_that_is_just_being_written_is_waited_for() {
        let folder = folder("locked");
        record_export(&folder, (1, 2), None, 1).unwrap();
        let mut lines = Lines::default();
        lines.read_all(&folder).unwrap();
        let signed = lines.signed();
        assert_eq!(signed.0, 1);
        let file = File::open(folder.join(NAME)).unwrap();
        file.lock().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| against(&folder, signed));
            // Long enough to meet the lock on most runs; the answer is the same on all.
            std::thread::sleep(std::time::Duration::from_millis(50));
            file.unlock().unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), None);
        });
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_head_never_signs_fewer_lines_than_before() {
        let folder = folder("fewer");
        let file = folder.join(NAME);
        let mut ends = vec![0];
        for number in 0..5 {
            record_export(&folder, (1, 2), Some(&format!("case {number}")), number).unwrap();
            ends.push(std::fs::metadata(&file).unwrap().len() as usize);
        }
        let all = std::fs::read(&file).unwrap();
        let mut lines = Lines::default();
        lines.read_on(&folder).unwrap();
        let signed = lines.signed();
        assert_eq!(signed.0, 5);
        // A start finds two of the five lines; then only one is left, and then both are back.
        let mut lines = Lines::after(signed);
        for left in [2, 1, 2] {
            std::fs::write(&file, &all[..ends[left]]).unwrap();
            lines.read_on(&folder).unwrap();
            assert_eq!(lines.signed(), signed, "with {left} lines");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let folder = folder("failed");
        record_export(&folder, (1, 2), None, 1).unwrap();
        let before = std::fs::read(folder.join(NAME)).unwrap();
        let mut file = File::options().append(true).read(true).open(folder.join(NAME)).unwrap();
        let full = |_: &File| Err(io::ErrorKind::StorageFull.into());
        write_whole(&mut file, b"half of a rec", full).unwrap_err();
        assert_eq!(std::fs::read(folder.join(NAME)).unwrap(), before);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
