//! The audit log: who changed or looked up what. One line of JSON for each change and lookup.

use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;

use control::Actor;
use control::AuditRecord;
use control::Fault;
use control::List;
use control::Page;

use crate::instance::lock;

/// Bytes to read at once, from the end of the file towards its start.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Longest text of a record: names and cases come from clients.
const TEXT_BYTES_MAX: usize = 1_024;

/// The file. It is opened for each record, so that logrotate can move it.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// One writer at a time.
    writing: Mutex<()>,
}

impl Audit {
    /// An audit log in the file `path`, which the first record creates.
    pub fn new(path: PathBuf) -> Audit {
        // Without the package nobody has made it. If it cannot be made, the first record says so.
        if let Some(folder) = path.parent().filter(|folder| *folder == Path::new(config::LOG_FOLDER)) {
            let _ = DirBuilder::new().mode(0o750).create(folder);
        }
        Audit { path, writing: Mutex::new(()) }
    }

    /// Writes a record to the disk.
    ///
    /// # Errors
    /// It is not on the disk; the fault ends with the consequence `then`. A lookup must not be
    /// answered.
    pub(crate) fn write(&self, record: &AuditRecord, then: &str) -> Result<(), Fault> {
        let _writing = lock(&self.writing);
        let write = || -> io::Result<()> {
            let mut line = serde_json::to_vec(record)?;
            line.push(b'\n');
            let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        write().map_err(|error| {
            let remedy = format!("make room or correct the permissions, or set another control.audit; {then}");
            Fault::new("audit log", "cannot be written", remedy).seen(format!("{}: {error}", self.path.display()))
        })
    }

    /// Records from the latest to the first. The cursor is the place in the file where the page
    /// ends.
    pub(crate) fn page(&self, list: &List) -> Result<Page<AuditRecord>, Fault> {
        let failed = |error: io::Error| {
            let fault = Fault::new("audit log", "cannot be read", "check its permissions");
            fault.seen(format!("{}: {error}", self.path.display()))
        };
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Page::whole(Vec::new())),
            Err(error) => return Err(failed(error)),
        };
        let length = file.metadata().map_err(failed)?.len();
        let end = match &list.cursor {
            None => length,
            Some(cursor) => cursor.parse().ok().filter(|end| *end <= length).ok_or_else(|| {
                let remedy = "omit it to start from the latest record";
                Fault::new("cursor", "is not from this list", remedy).seen(cursor.as_str())
            })?,
        };
        read_back(&mut file, end, list.limit_effective() as usize).map_err(failed)
    }
}

/// Reads `limit` lines that end before `end`, from the last.
fn read_back(file: &mut File, end: u64, limit: usize) -> io::Result<Page<AuditRecord>> {
    let (mut start, mut text) = (end, Vec::new());
    // One line more than wanted, so that all wanted lines are whole.
    while start > 0 && text.iter().filter(|byte| **byte == b'\n').count() <= limit {
        let from = start.saturating_sub(CHUNK_BYTES);
        let mut chunk = vec![0; (start - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut chunk)?;
        chunk.extend_from_slice(&text);
        (start, text) = (from, chunk);
    }
    let (mut objects, mut rest) = (Vec::new(), text.as_slice());
    while objects.len() < limit && !rest.is_empty() {
        let line_end = rest.strip_suffix(b"\n").unwrap_or(rest);
        let line_start = line_end.iter().rposition(|byte| *byte == b'\n').map_or(0, |position| position + 1);
        // A line that a failure of the machine cut off.
        objects.extend(line_end.get(line_start..).and_then(|line| serde_json::from_slice(line).ok()));
        rest = rest.get(..line_start).unwrap_or_default();
    }
    let place = start + rest.len() as u64;
    Ok(Page { objects, cursor: (place > 0).then(|| place.to_string()) })
}

/// A record of now.
pub(crate) fn record(actor: &Actor, action: &str, subject: &str, result: &str) -> AuditRecord {
    AuditRecord {
        time: jiff::Timestamp::now().to_string(),
        who: bounded(&actor.who),
        from: bounded(&actor.from),
        action: bounded(action),
        subject: bounded(subject),
        case: actor.case.as_deref().map(bounded),
        result: bounded(result),
    }
}

fn bounded(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("natrix-audit-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&place);
        place
    }

    fn list(limit: u32, cursor: Option<String>) -> List {
        List { limit: Some(limit), cursor, ..List::default() }
    }

    #[test]
    fn records_are_read_back_page_by_page() {
        let place = place("pages");
        let audit = Audit::new(place.clone());
        assert_eq!(audit.page(&list(10, None)).unwrap(), Page::whole(Vec::new()));
        // More than one chunk.
        let subject = |number: usize| format!("{number} {}", "x".repeat(500));
        for number in 0..500 {
            audit.write(&record(&Actor::default(), "find", &subject(number), "asked"), "").unwrap();
        }
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = audit.page(&list(7, cursor)).unwrap();
            assert!(page.objects.len() <= 7);
            found.extend(page.objects.into_iter().map(|record| record.subject));
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        let expected: Vec<String> = (0..500).rev().map(subject).collect();
        assert_eq!(found, expected);
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn a_torn_line_is_left_out() {
        let place = place("torn");
        let audit = Audit::new(place.clone());
        audit.write(&record(&Actor::default(), "find", "a", "asked"), "").unwrap();
        OpenOptions::new().append(true).open(&place).unwrap().write_all(b"{\"time\":").unwrap();
        let page = audit.page(&list(10, None)).unwrap();
        assert_eq!(page.objects.len(), 1);
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn what_cannot_be_recorded_is_refused() {
        let audit = Audit::new("/nonexistent/audit.jsonl".into());
        let fault = audit.write(&record(&Actor::default(), "find", "a", "asked"), "nothing was done").unwrap_err();
        assert!(fault.to_string().ends_with("nothing was done"), "{fault}");
    }
}
