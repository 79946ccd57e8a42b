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
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;

use control::Actor;
use control::AuditRecord;
use control::Fault;
use control::List;
use control::Page;
use rustix::fs::FallocateFlags;
use rustix::fs::fallocate;

use crate::instance::lock;

/// Bytes to read at once, from the end of the file towards its start.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Longest text of a record: names come from clients.
const TEXT_BYTES_MAX: usize = control::CASE_BYTES_MAX;
/// Room that the file has beyond its end, of which half is renewed: at least 1,700 records of 300
/// bytes. Whatever fills the disk, such as
/// the event log beside it, a reload, a rollback and a drain can be recorded, so that they are not
/// refused while they are the remedy.
const RESERVE_BYTES: u64 = 1 << 20;
/// Bytes of a block in what a file takes (`stat(2)`).
const BLOCK_BYTES: u64 = 512;

/// The file. It is opened for each record, so that logrotate can move it.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// One writer at a time.
    writing: Mutex<()>,
}

impl Audit {
    /// An audit log in the file `path`, which is created if it can be.
    pub fn new(path: PathBuf) -> Audit {
        // Without the package nobody has made it. If it cannot be made, the first record says so.
        if let Some(folder) = path.parent().filter(|folder| *folder == Path::new(config::LOG_FOLDER)) {
            let _ = DirBuilder::new().mode(0o750).create(folder);
        }
        let audit = Audit { path, writing: Mutex::new(()) };
        // Now, because the disk may be full before the first record.
        if let Ok(file) = audit.open() {
            let _ = reserve(&file);
        }
        audit
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().append(true).read(true).create(true).mode(0o600).open(&self.path)
    }

    /// Writes the record of a change, or of what came of something, to the disk.
    ///
    /// # Errors
    /// It is not on the disk; the fault ends with the consequence `then`.
    pub(crate) fn write(&self, record: &AuditRecord, then: &str) -> Result<(), Fault> {
        self.write_leaving(0, record, then)
    }

    /// Writes the record of a lookup. On a full disk lookups leave half of the least room that the
    /// file has to changes, which may be the remedy.
    ///
    /// # Errors
    /// As of [`Audit::write`]; the lookup must not be answered.
    pub(crate) fn write_lookup(&self, record: &AuditRecord, then: &str) -> Result<(), Fault> {
        self.write_leaving(RESERVE_BYTES / 4, record, then)
    }

    fn write_leaving(&self, room_bytes: u64, record: &AuditRecord, then: &str) -> Result<(), Fault> {
        let _writing = lock(&self.writing);
        let write = || -> io::Result<()> {
            let line = serde_json::to_vec(record)?;
            let mut file = self.open()?;
            // Without `fallocate` there is what is left.
            match reserve(&file) {
                Err(error) if is_full(&error) && beyond_end(&file)? < room_bytes => Err(error),
                _ => append(&mut file, &line, File::sync_data),
            }
        };
        write().map_err(|error| {
            let remedy = format!("make room or correct the permissions, or set another control.audit; {then}");
            Fault::new(control::AUDIT_LOG, "cannot be written", remedy)
                .seen(format!("{}: {error}", self.path.display()))
        })
    }

    /// Records from the latest to the first, also those of files that logrotate renamed. The cursor
    /// is the place in a file where the page ends.
    ///
    /// # Errors
    /// A file cannot be read, or the cursor is not from this list.
    pub(crate) fn page(&self, list: &List) -> Result<Page<AuditRecord>, Fault> {
        let failed = |error: io::Error| {
            let fault = Fault::new(control::AUDIT_LOG, "cannot be read", "check its permissions");
            fault.seen(format!("{}: {error}", self.path.display()))
        };
        let (start, mut end) = match &list.cursor {
            None => (String::new(), None),
            Some(cursor) => {
                let (ending, place) = cursor.rsplit_once(':').unwrap_or(("", cursor));
                (ending.to_owned(), Some(place.parse().map_err(|_| foreign(cursor))?))
            }
        };
        let endings = self.endings().map_err(failed)?;
        let begin = endings.iter().position(|ending| *ending == start);
        let begin = begin.ok_or_else(|| foreign(list.cursor.as_deref().unwrap_or_default()))?;
        let mut rest = list.limit_effective() as usize;
        let mut objects = Vec::new();
        for ending in endings.iter().skip(begin) {
            let mut file = match File::open(self.with_ending(ending)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            let length = file.metadata().map_err(failed)?.len();
            let end = end.take().unwrap_or(length);
            if end > length {
                return Err(foreign(list.cursor.as_deref().unwrap_or_default()));
            }
            if rest == 0 && end > 0 {
                return Ok(Page { objects, cursor: Some(format!("{ending}:{end}")) });
            }
            let (found, place) = read_back(&mut file, end, rest).map_err(failed)?;
            rest -= found.len();
            objects.extend(found);
            if place > 0 {
                return Ok(Page { objects, cursor: Some(format!("{ending}:{place}")) });
            }
        }
        Ok(Page::whole(objects))
    }

    /// What the names of the files have after that of the first, the latest first: logrotate adds
    /// `-` and the date. Others, such as compressed ones, are not read.
    fn endings(&self) -> io::Result<Vec<String>> {
        let mut endings = vec![String::new()];
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else { return Ok(endings) };
        let is_date = |ending: &str| {
            let digits = ending.strip_prefix('-').unwrap_or_default();
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
        };
        let listed = match folder.read_dir() {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(endings),
            Err(error) => return Err(error),
        };
        for entry in listed {
            let entry = entry?.file_name();
            let ending = entry.to_str().and_then(|entry| entry.strip_prefix(name.to_str()?));
            endings.extend(ending.filter(|ending| is_date(ending)).map(str::to_owned));
        }
        // Dates of one form are in order as text, and the first file has none.
        endings.get_mut(1..).unwrap_or_default().sort_unstable_by(|one, other| other.cmp(one));
        Ok(endings)
    }

    fn with_ending(&self, ending: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(ending);
        path.into()
    }
}

/// Takes room from the disk beyond the end of the file, if half of it has been used.
fn reserve(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() && beyond_end(file)? < RESERVE_BYTES / 2 {
        fallocate(file, FallocateFlags::KEEP_SIZE, metadata.len(), RESERVE_BYTES)?;
    }
    Ok(())
}

/// Bytes of the disk that the file has and does not use.
fn beyond_end(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    Ok((metadata.blocks() * BLOCK_BYTES).saturating_sub(metadata.len()))
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Appends a line of its own and calls `sync`, or else leaves the file as long as it was. A line
/// that a full disk or a power cut tore is ended first, so that it takes no other with it.
fn append(file: &mut File, line: &[u8], sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let metadata = file.metadata()?;
    let length = metadata.len();
    let mut last = [b'\n'];
    // What is no file, such as a pipe, has no end to look at.
    if let (true, Some(place)) = (metadata.is_file(), length.checked_sub(1)) {
        file.read_exact_at(&mut last, place)?;
    }
    let start: &[u8] = if last == *b"\n" { b"" } else { b"\n" };
    let written = file.write_all(&[start, line, b"\n"].concat()).and_then(|()| sync(file));
    // Else the room beyond the end would be given back, too.
    let is_longer = |file: &File| file.metadata().is_ok_and(|now| now.len() > length);
    if written.is_err() && metadata.is_file() && is_longer(file) {
        // If this fails, too, the next record ends the torn line.
        let _ = file.set_len(length);
    }
    written
}

fn foreign(cursor: &str) -> Fault {
    let remedy = "omit it to start from the latest record";
    Fault::new("cursor", "is not from this list", remedy).seen(cursor)
}

/// Reads `limit` lines that end before `end`, from the last; returns them and where they begin.
fn read_back(file: &mut File, end: u64, limit: usize) -> io::Result<(Vec<AuditRecord>, u64)> {
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
    Ok((objects, start + rest.len() as u64))
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
    fn records_of_renamed_files_follow_those_of_the_first() {
        let folder = place("renamed");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("audit.jsonl");
        let audit = Audit::new(path.clone());
        // None of ours, or not to be read: they have no records.
        for other in ["audit.jsonl-20260101.gz", "audit.jsonl.1", "audit.jsonl-", "other.jsonl-20260101"] {
            std::fs::write(folder.join(other), "nonsense\n").unwrap();
        }
        let mut expected = Vec::new();
        for month in ["20260901", "20261001", "20261101", ""] {
            for number in 0..4 {
                let subject = format!("{month} {number}");
                audit.write(&record(&Actor::default(), "find", &subject, "asked"), "").unwrap();
                expected.insert(0, subject);
            }
            if !month.is_empty() {
                std::fs::rename(&path, folder.join(format!("audit.jsonl-{month}"))).unwrap();
            }
        }
        for limit in [1, 3, 4, 5, 100] {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let page = audit.page(&list(limit, cursor)).unwrap();
                let is_last = page.cursor.is_none();
                assert!(is_last || page.objects.len() == limit as usize, "a page of {limit} is not full");
                found.extend(page.objects.into_iter().map(|record| record.subject));
                cursor = page.cursor;
                if is_last {
                    break;
                }
            }
            assert_eq!(found, expected, "pages of {limit}");
        }
        // The latest has been renamed, and there is no new one yet.
        std::fs::rename(&path, folder.join("audit.jsonl-20261201")).unwrap();
        assert_eq!(audit.page(&list(2, None)).unwrap().objects[1].subject, " 2");
        for cursor in ["x", "5000", "-20261001:5000", "-20200101:1", "/../other.jsonl-20260101:1"] {
            assert!(audit.page(&list(2, Some(cursor.to_owned()))).is_err(), "{cursor}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_torn_line_is_left_out() {
        let place = place("torn");
        let audit = Audit::new(place.clone());
        audit.write(&record(&Actor::default(), "find", "a", "asked"), "").unwrap();
        OpenOptions::new().append(true).open(&place).unwrap().write_all(b"{\"time\":").unwrap();
        let page = audit.page(&list(10, None)).unwrap();
        assert_eq!(page.objects.len(), 1);
        // The next record is not glued to it.
        audit.write(&record(&Actor::default(), "find", "b", "asked"), "").unwrap();
        audit.write(&record(&Actor::default(), "find", "c", "asked"), "").unwrap();
        let subjects: Vec<String> =
            audit.page(&list(10, None)).unwrap().objects.into_iter().map(|it| it.subject).collect();
        assert_eq!(subjects, ["c", "b", "a"]);
        assert_eq!(std::fs::read_to_string(&place).unwrap().lines().count(), 4, "three records and the torn line");
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let place = place("failed");
        let audit = Audit::new(place.clone());
        audit.write(&record(&Actor::default(), "find", "a", "asked"), "").unwrap();
        let before = std::fs::read(&place).unwrap();
        let mut file = OpenOptions::new().append(true).read(true).open(&place).unwrap();
        append(&mut file, b"{\"time\":", |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(std::fs::read(&place).unwrap(), before);
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn the_file_has_room_on_the_disk_for_further_records() {
        let place = place("room");
        let beyond = || {
            let metadata = std::fs::metadata(&place).unwrap();
            (metadata.blocks() * BLOCK_BYTES).saturating_sub(metadata.len())
        };
        let audit = Audit::new(place.clone());
        assert_eq!(std::fs::metadata(&place).unwrap().len(), 0);
        assert!(beyond() >= RESERVE_BYTES, "before the first record: {}", beyond());
        for number in 0..2_000 {
            audit.write(&record(&Actor::default(), "find", &"x".repeat(1_000), "asked"), "").unwrap();
            assert!(beyond() >= RESERVE_BYTES / 4, "after {number} records: {}", beyond());
        }
        assert_eq!(audit.page(&list(1, None)).unwrap().objects.len(), 1);
        assert_eq!(std::fs::read_to_string(&place).unwrap().lines().count(), 2_000);
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn what_cannot_be_recorded_is_refused() {
        let audit = Audit::new("/nonexistent/audit.jsonl".into());
        let fault = audit.write(&record(&Actor::default(), "find", "a", "asked"), "nothing was done").unwrap_err();
        assert!(fault.to_string().ends_with("nothing was done"), "{fault}");
    }
}
