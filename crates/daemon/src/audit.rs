//! The audit log: changes and lookups, with their users. One line of JSON for each change and
//! lookup.
//!
//! What lasts, such as a change, has a line before it begins and one at its end, with the same id.
//! Pages have one of the two: the line of the end once it is there.

use std::collections::BTreeSet;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use control::Actor;
use control::AuditRecord;
use control::Fault;
use control::List;
use control::Page;
use control::STARTED;
use rustix::fs::FallocateFlags;
use rustix::fs::fallocate;

use crate::instance::lock;
use crate::machine::make_folder_of;

/// Bytes to read at once, from the end of the file towards its start.
const CHUNK_BYTES: u64 = 64 * 1024;
/// Longest text of a record: names come from clients.
const TEXT_BYTES_MAX: usize = control::CASE_BYTES_MAX;
/// Room that the file has beyond its end, of which half is renewed: at least 1,700 records of 300
/// bytes. Whatever fills the disk, such as
/// the event log beside it, a reload, a rollback and a drain can be recorded, so that they are not
/// refused while they are the remedy.
const RESERVE_BYTES: u64 = 1 << 20;
/// What lookups leave of it to changes.
const LEFT_BY_LOOKUPS_BYTES: u64 = RESERVE_BYTES / 4;
/// Bytes of a block in what a file takes (`stat(2)`).
const BLOCK_BYTES: u64 = 512;
/// What clients have begun and not ended: as many are remembered. Those of dead clients never end.
const OF_CLIENTS_MAX: usize = 1024;
/// What came of something whose end has no record, because the daemon ended before or the disk was
/// full.
const NOT_KNOWN: &str = "not known: no end was recorded";
/// What all lines of an end have, and no other line outside its texts, where quotes are escaped.
const OF_AN_END: &str = "\"began\":\"";

/// The file. It is opened for each record, so that logrotate can move it.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    /// One writer at a time.
    writing: Mutex<Unended>,
}

/// What has a record of its beginning and none of its end.
#[derive(Debug, Default)]
struct Unended {
    latest_id: u64,
    of_daemon: Vec<AuditRecord>,
    /// What clients do without the daemon, the oldest first.
    of_clients: Vec<AuditRecord>,
}

impl Unended {
    /// An id that no record has, also after a restart.
    fn next_id(&mut self) -> String {
        let now_ns = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        self.latest_id = now_ns.max(self.latest_id + 1);
        format!("{:x}", self.latest_id)
    }

    fn ids(&self) -> BTreeSet<String> {
        self.of_daemon.iter().chain(&self.of_clients).filter_map(|record| record.id.clone()).collect()
    }
}

/// Something that the daemon does, with a record of its beginning. Dropped when it is over.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    audit: &'a Audit,
    record: AuditRecord,
}

impl Begun<'_> {
    /// Writes the record of its end: what it was about, as far as that is known only now, and what
    /// came of it.
    ///
    /// # Errors
    /// It is not on the disk; the fault ends with the consequence `then`.
    pub(crate) fn end(self, subject: &str, result: &str, then: &str) -> Result<(), Fault> {
        let began = self.record.time.clone();
        let end = AuditRecord { subject: bounded(subject), result: bounded(result), ..self.record.clone() };
        self.audit.write(&AuditRecord { time: now(), began: Some(began), ..end }, then)
    }

    /// The record of its beginning.
    pub(crate) fn record(&self) -> &AuditRecord {
        &self.record
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        lock(&self.audit.writing).of_daemon.retain(|other| other.id != self.record.id);
    }
}

impl Audit {
    /// An audit log in the file `path`, which is created if it is not there.
    ///
    /// # Errors
    /// It cannot be written, so nothing could be looked up or changed.
    pub fn new(path: PathBuf) -> io::Result<Audit> {
        make_folder_of(&path);
        let audit = Audit::of_file(path);
        // Now, because the disk may be full before the first record. If it is, changes are refused.
        let _ = reserve(&audit.open()?);
        Ok(audit)
    }

    /// The audit log of an instance that does not run, to read it.
    pub fn of_file(path: PathBuf) -> Audit {
        Audit { path, writing: Mutex::default() }
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().append(true).read(true).create(true).mode(0o600).open(&self.path)
    }

    /// Writes the record of a change, or of what came of something, to the disk.
    ///
    /// # Errors
    /// It is not on the disk; the fault ends with the consequence `then`.
    pub(crate) fn write(&self, record: &AuditRecord, then: &str) -> Result<(), Fault> {
        self.write_leaving(0, &mut lock(&self.writing), record, then)
    }

    /// Writes the record of something before it begins; `of_lookup` as of [`Audit::write_lookup`].
    ///
    /// # Errors
    /// As of [`Audit::write`]; it must not begin.
    pub(crate) fn begin(&self, record: AuditRecord, of_lookup: bool, then: &str) -> Result<Begun<'_>, Fault> {
        let mut unended = lock(&self.writing);
        let record = AuditRecord { id: Some(unended.next_id()), result: STARTED.to_owned(), ..record };
        self.write_leaving(if of_lookup { LEFT_BY_LOOKUPS_BYTES } else { 0 }, &mut unended, &record, then)?;
        unended.of_daemon.push(record.clone());
        Ok(Begun { audit: self, record })
    }

    /// Writes what a client does without the daemon; returns the record as it was written. It ends
    /// what the same user began with `id`; an id of something else ends nothing.
    ///
    /// # Errors
    /// As of [`Audit::write_lookup`].
    pub(crate) fn write_of_client(
        &self,
        mut record: AuditRecord,
        id: Option<&str>,
        then: &str,
    ) -> Result<AuditRecord, Fault> {
        let mut unended = lock(&self.writing);
        let begins = record.result == STARTED;
        let ended = unended.of_clients.iter().position(|begun| {
            let AuditRecord { who, from, action, .. } = begun;
            id.is_some()
                && begun.id.as_deref() == id
                && (who, from, action) == (&record.who, &record.from, &record.action)
        });
        if begins {
            record.id = Some(unended.next_id());
        } else if let Some(begun) = ended.and_then(|index| unended.of_clients.get(index)) {
            (record.id, record.began) = (begun.id.clone(), Some(begun.time.clone()));
        }
        self.write_leaving(LEFT_BY_LOOKUPS_BYTES, &mut unended, &record, then)?;
        if begins {
            if unended.of_clients.len() >= OF_CLIENTS_MAX {
                unended.of_clients.remove(0);
            }
            unended.of_clients.push(record.clone());
        } else if let Some(index) = ended {
            unended.of_clients.remove(index);
        }
        Ok(record)
    }

    /// Writes the record of a lookup. On a full disk lookups leave half of the least room that the
    /// file has to changes, which may be the remedy.
    ///
    /// # Errors
    /// As of [`Audit::write`]; the lookup must not be answered.
    pub(crate) fn write_lookup(&self, record: &AuditRecord, then: &str) -> Result<(), Fault> {
        self.write_leaving(LEFT_BY_LOOKUPS_BYTES, &mut lock(&self.writing), record, then)
    }

    /// Writes a record, and whatever it begins is not ended before `_writing` says so.
    fn write_leaving(
        &self,
        room_bytes: u64,
        _writing: &mut Unended,
        record: &AuditRecord,
        then: &str,
    ) -> Result<(), Fault> {
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

    /// Records from the latest to the first, also those of files that logrotate renamed, and one of
    /// what has two. The cursor is the place in a file where the page ends.
    ///
    /// Costs a look through all later records if something on a further page never ended.
    ///
    /// # Errors
    /// A file cannot be read, there is none, or the cursor is not from this list.
    pub fn page(&self, list: &List) -> Result<Page<AuditRecord>, Fault> {
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
        // What ends later has its record beyond this length.
        let (length_now, unended) = {
            let writing = lock(&self.writing);
            (std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len()), writing.ids())
        };
        let endings = self.endings().map_err(failed)?;
        let begin = endings.iter().position(|ending| *ending == start);
        let begin = begin.ok_or_else(|| foreign(list.cursor.as_deref().unwrap_or_default()))?;
        let after = end.map(|place| (endings.get(..=begin).unwrap_or_default(), place));
        let mut joined = Joined { audit: self, unended, ended: BTreeSet::new(), after };
        let mut rest = list.limit_effective() as usize;
        let (mut objects, mut has_file) = (Vec::new(), false);
        for ending in endings.iter().skip(begin) {
            let mut file = match File::open(self.with_ending(ending)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            has_file = true;
            let about = file.metadata().map_err(failed)?;
            if about.is_dir() {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            let length = about.len();
            let whole = if ending.is_empty() { length.min(length_now) } else { length };
            let mut place = end.take().unwrap_or(whole);
            if place > length {
                return Err(foreign(list.cursor.as_deref().unwrap_or_default()));
            }
            while rest > 0 && place > 0 {
                let (found, from) = read_back(&mut file, place, rest).map_err(failed)?;
                let kept = joined.keep(found).map_err(failed)?;
                (rest, place) = (rest - kept.len(), from);
                objects.extend(kept);
            }
            if place > 0 {
                return Ok(Page { objects, cursor: Some(format!("{ending}:{place}")) });
            }
        }
        if !has_file && list.cursor.is_none() {
            let remedy = "put it back if it was moved; the next change or lookup begins another";
            let fault = Fault::new(control::AUDIT_LOG, "does not exist, so its records are not known", remedy);
            return Err(fault.seen(self.path.display().to_string()));
        }
        Ok(Page::whole(objects))
    }

    /// Which of `wanted` have a record of their end after a place in the last of these files, the
    /// latest first.
    fn ended_after(&self, endings: &[String], place: u64, wanted: &BTreeSet<String>) -> io::Result<BTreeSet<String>> {
        let (mut found, mut place, mut line) = (BTreeSet::new(), place, Vec::new());
        for ending in endings.iter().rev() {
            let mut file = match File::open(self.with_ending(ending)) {
                Ok(file) => BufReader::with_capacity(CHUNK_BYTES as usize, file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            file.seek(SeekFrom::Start(core::mem::take(&mut place)))?;
            while found.len() < wanted.len() && file.read_until(b'\n', &mut line)? > 0 {
                let text = core::str::from_utf8(&line).ok().filter(|text| text.contains(OF_AN_END));
                let record = text.and_then(|text| serde_json::from_str::<AuditRecord>(text).ok());
                found.extend(record.and_then(|record| record.id).filter(|id| wanted.contains(id)));
                line.clear();
            }
        }
        Ok(found)
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

/// Leaves one record of what has two, while a page is read from its latest record on.
struct Joined<'a> {
    audit: &'a Audit,
    /// The ids of what goes on.
    unended: BTreeSet<String>,
    /// Those that ended on this page.
    ended: BTreeSet<String>,
    /// Where later records begin, if this is not the first page: the last of these files, and the
    /// place in it.
    after: Option<(&'a [String], u64)>,
}

impl Joined<'_> {
    /// Leaves out the beginning of what has a record of its end. If it has none and does not go on,
    /// the record says so.
    fn keep(&mut self, mut records: Vec<AuditRecord>) -> io::Result<Vec<AuditRecord>> {
        self.ended
            .extend(records.iter().filter(|record| record.began.is_some()).filter_map(|record| record.id.clone()));
        let begun = |record: &AuditRecord| record.id.clone().filter(|_| record.began.is_none());
        records.retain(|record| begun(record).is_none_or(|id| !self.ended.contains(&id)));
        let is_over = |record: &AuditRecord| begun(record).filter(|id| !self.unended.contains(id));
        let over: BTreeSet<String> = records.iter().filter_map(is_over).collect();
        if let (Some((endings, place)), false) = (self.after, over.is_empty()) {
            let ended = self.audit.ended_after(endings, place, &over)?;
            records.retain(|record| begun(record).is_none_or(|id| !ended.contains(&id)));
        }
        for record in records.iter_mut().filter(|record| is_over(record).is_some()) {
            NOT_KNOWN.clone_into(&mut record.result);
        }
        Ok(records)
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
        time: now(),
        who: bounded(&actor.who),
        from: bounded(&actor.from),
        action: bounded(action),
        subject: bounded(subject),
        case: actor.case.as_deref().map(bounded),
        result: bounded(result),
        id: None,
        began: None,
    }
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
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
        let audit = Audit::new(place.clone()).unwrap();
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
        let audit = Audit::new(path.clone()).unwrap();
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

    /// Action and result of all records, page by page.
    fn seen(audit: &Audit, limit: u32) -> Vec<(String, String)> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = audit.page(&list(limit, cursor)).unwrap();
            let is_last = page.cursor.is_none();
            assert!(is_last || page.objects.len() == limit as usize, "a page of {limit} is not full");
            found.extend(page.objects.into_iter().map(|record| (record.action, record.result)));
            cursor = page.cursor;
            if is_last {
                return found;
            }
        }
    }

    fn of(action: &str, result: &str) -> (String, String) {
        (action.to_owned(), result.to_owned())
    }

    #[test]
    fn what_has_a_beginning_and_an_end_is_listed_once() {
        let folder = place("joined");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("audit.jsonl");
        let audit = Audit::new(path.clone()).unwrap();
        let begin = |action: &str| audit.begin(record(&Actor::default(), action, "", ""), false, "").unwrap();
        let mut wanted = Vec::new();
        for number in 0..3 {
            begin(&format!("reload {number}")).end("a text", "done", "").unwrap();
            audit.write(&record(&Actor::default(), "find", "a", "none"), "").unwrap();
            wanted.splice(0..0, [of("find", "none"), of(&format!("reload {number}"), "done")]);
        }
        // Its end is in the next file, after those of two others.
        let slow = begin("drain");
        std::fs::rename(&path, folder.join("audit.jsonl-20261101")).unwrap();
        drop(begin("died"));
        begin("rollback").end("", "failed: x", "").unwrap();
        let goes_on = begin("goes on");
        slow.end("", "done", "").unwrap();
        wanted.splice(
            0..0,
            [of("drain", "done"), of("goes on", STARTED), of("rollback", "failed: x"), of("died", NOT_KNOWN)],
        );
        for limit in [1, 2, 3, 4, 5, 100] {
            assert_eq!(seen(&audit, limit), wanted, "pages of {limit}");
        }
        drop(goes_on);
        wanted[1].1 = NOT_KNOWN.to_owned();
        // A daemon that knows of nothing that goes on.
        assert_eq!(seen(&Audit::new(path.clone()).unwrap(), 3), wanted);
        let page = audit.page(&list(1, None)).unwrap();
        let began = page.objects[0].began.as_deref().unwrap();
        assert!(began < page.objects[0].time.as_str(), "{page:?}");
        // The files have both records.
        let texts = [folder.join("audit.jsonl-20261101"), path].map(|path| std::fs::read_to_string(path).unwrap());
        assert_eq!(texts.iter().map(|text| text.lines().count()).sum::<usize>(), 9 + 1 + 1 + 2 + 1 + 1);
        assert!(texts[0].lines().last().unwrap().contains(STARTED), "{}", texts[0]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_its_user_ends_what_a_client_began() {
        let place = place("clients");
        let audit = Audit::new(place.clone()).unwrap();
        let actor = |who: &str| Actor { who: who.to_owned(), ..Actor::default() };
        let write = |who: &str, action: &str, result: &str, id: Option<&str>| {
            audit.write_of_client(record(&actor(who), action, "the store", result), id, "").unwrap()
        };
        let change = audit.begin(record(&actor("law"), "reload", "", ""), false, "").unwrap();
        let id = write("law", "log export", STARTED, None).id.unwrap();
        for (who, action, id) in
            [("noc", "log export", Some(id.as_str())), ("law", "log verify", Some(&id)), ("law", "log export", None)]
        {
            assert_eq!(write(who, action, "ended: none", id).id, None, "{who} {action} {id:?}");
        }
        assert_eq!(write("law", "reload", "done", change.record().id.as_deref()).id, None, "what the daemon does");
        assert_eq!(seen(&audit, 10).len(), 6);
        let end = write("law", "log export", "ended: found 7", Some(&id));
        assert_eq!((end.id.as_deref(), end.began.is_some()), (Some(id.as_str()), true));
        assert_eq!(write("law", "log export", "ended: found 8", Some(&id)).id, None, "a second end");
        let seen = seen(&audit, 3);
        assert_eq!(seen.len(), 7);
        assert_eq!(&seen[..2], [of("log export", "ended: found 8"), of("log export", "ended: found 7")]);
        assert_eq!(seen[6], of("reload", STARTED));
        for _ in 0..2 * OF_CLIENTS_MAX {
            write("law", "log export", STARTED, None);
        }
        assert_eq!(lock(&audit.writing).of_clients.len(), OF_CLIENTS_MAX);
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn a_torn_line_is_left_out() {
        let place = place("torn");
        let audit = Audit::new(place.clone()).unwrap();
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
        let audit = Audit::new(place.clone()).unwrap();
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
        let audit = Audit::new(place.clone()).unwrap();
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
        let audit = Audit::of_file("/nonexistent/audit.jsonl".into());
        let fault = audit.write(&record(&Actor::default(), "find", "a", "asked"), "nothing was done").unwrap_err();
        assert!(fault.to_string().ends_with("nothing was done"), "{fault}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_no_audit_log() {
        let folder = place("no_file");
        let _ = std::fs::remove_dir_all(&folder);
        let missing = Audit::new(folder.join("audit.jsonl")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(Audit::new(folder.clone()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        std::fs::remove_dir(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_not_there_is_not_an_empty_list() {
        let place = place("gone");
        let audit = Audit::new(place.clone()).unwrap();
        assert_eq!(audit.page(&list(10, None)).unwrap(), Page::whole(Vec::new()), "before the first record");
        std::fs::remove_file(&place).unwrap();
        let fault = audit.page(&list(10, None)).unwrap_err().to_string();
        assert!(fault.contains("does not exist") && fault.contains(&place.display().to_string()), "{fault}");
        std::fs::create_dir(&place).unwrap();
        let fault = audit.page(&list(10, None)).unwrap_err().to_string();
        assert!(fault.contains("cannot be read"), "{fault}");
        std::fs::remove_dir(&place).unwrap();
        audit.write(&record(&Actor::default(), "find", "a", "asked"), "").unwrap();
        assert_eq!(audit.page(&list(10, None)).unwrap().objects.len(), 1);
        std::fs::remove_file(place).unwrap();
    }
}
