use std::fs;
use std::path::PathBuf;

use super::*;
use crate::medium::Files;
use crate::medium::rotated;

const SECOND: u64 = 1_000_000;
const FOREVER: WriterOptions = WriterOptions { rotate_bytes: 0, rotate_us: 0, sync: Sync::Never };

/// A medium that a test controls.
#[derive(Debug, Default)]
struct Faulty {
    files: Vec<Vec<u8>>,
    /// Bytes that still fit; None: unlimited.
    space: Option<usize>,
    /// Maximum of bytes to take at a time.
    piece: Option<usize>,
    fails_open: bool,
    fails_sync: bool,
    fails_rotate: bool,
    taken: Option<Taken>,
    syncs: usize,
    opened: usize,
}

impl Medium for Faulty {
    fn open(&mut self) -> io::Result<u64> {
        if self.fails_open {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        self.opened += 1;
        self.taken = None;
        self.files.push(Vec::new());
        Ok(0)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.space.unwrap_or(usize::MAX)).min(self.piece.unwrap_or(usize::MAX));
        if fits == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        if let Some(space) = &mut self.space {
            *space -= fits;
        }
        self.files.last_mut().unwrap().extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.fails_sync {
            return Err(io::Error::from(io::ErrorKind::Other));
        }
        self.syncs += 1;
        Ok(())
    }

    fn rotate(&mut self, _: u64) -> io::Result<()> {
        if self.fails_rotate {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        Ok(())
    }

    fn taken(&self, _: u64) -> Option<Taken> {
        self.taken.clone()
    }

    fn close(&mut self) {}
}

fn writer(medium: Faulty, options: WriterOptions) -> (LogWriter<Faulty>, Arc<Figures>) {
    let figures = Arc::new(Figures::default());
    (LogWriter::new(medium, options, Arc::clone(&figures)), figures)
}

/// A line of ten bytes.
fn line<M: Medium>(writer: &mut LogWriter<M>, number: u32) {
    writer.line(|out| out.extend_from_slice(format!("line {number:4}\n").as_bytes()));
}

fn text(files: &[Vec<u8>]) -> String {
    String::from_utf8(files.concat()).unwrap()
}

fn all_lines(count: u32) -> String {
    (0..count).map(|number| format!("line {number:4}\n")).collect()
}

#[test]
fn a_full_disk_is_counted_and_retried_without_a_lost_byte() {
    let (mut writer, figures) = writer(Faulty { space: Some(25), ..Faulty::default() }, FOREVER);
    for number in 0..10 {
        line(&mut writer, number);
    }
    assert!(!writer.flush(0, 0));
    let view = figures.view();
    assert_eq!((view.errors, view.failing, view.bytes, view.records), (1, true, 25, 0));
    assert!(view.last_error.unwrap().starts_with("write: "));
    // Not before half a second has passed.
    assert!(!writer.flush(RETRY_US - 1, 0));
    assert_eq!(figures.view().errors, 1);
    assert!(!writer.flush(RETRY_US, 0));
    assert_eq!(figures.view().errors, 2);
    writer.medium.space = None;
    assert!(writer.flush(3 * RETRY_US, 0));
    let view = figures.view();
    assert_eq!((view.errors, view.failing, view.bytes, view.records), (2, false, 100, 10));
    assert_eq!(text(&writer.medium.files), all_lines(10));
}

#[test]
fn while_nothing_can_be_written_only_so_much_is_taken() {
    let (mut writer, _) = writer(Faulty { space: Some(0), ..Faulty::default() }, FOREVER);
    let mut number = 0;
    while writer.has_room() {
        line(&mut writer, number % 1_000);
        number += 1;
        assert!((number as usize) <= BUFFER_MAX / 10 + 1, "the buffer has a bound");
    }
    assert!(!writer.flush(0, 0));
    assert!(!writer.has_room());
    writer.medium.space = None;
    assert!(writer.flush(SECOND, 0) && writer.has_room());
}

#[test]
fn a_medium_that_takes_single_bytes_gets_all_in_order() {
    let (mut writer, figures) = writer(Faulty { piece: Some(1), ..Faulty::default() }, FOREVER);
    for number in 0..100 {
        line(&mut writer, number);
    }
    assert!(writer.flush(0, 0));
    assert_eq!(text(&writer.medium.files), all_lines(100));
    assert_eq!((figures.view().records, figures.view().errors), (100, 0));
}

#[test]
fn large_files_are_rotated_between_lines() {
    let (mut writer, figures) = writer(Faulty::default(), WriterOptions { rotate_bytes: 55, ..FOREVER });
    for number in 0..30 {
        line(&mut writer, number);
        assert!(writer.flush(u64::from(number), 0));
    }
    assert_eq!(writer.medium.files.len(), 6, "five lines each");
    assert!(writer.medium.files.iter().all(|file| file.len() <= 55 && file.ends_with(b"\n")));
    assert_eq!(text(&writer.medium.files), all_lines(30));
    assert_eq!(figures.view().rotations, 5);
}

#[test]
fn old_files_are_rotated_unless_they_are_empty() {
    let (mut writer, figures) = writer(Faulty::default(), WriterOptions { rotate_us: 10 * SECOND, ..FOREVER });
    assert!(writer.flush(0, 0) && writer.flush(50 * SECOND, 0));
    assert_eq!(figures.view().rotations, 0);
    line(&mut writer, 0);
    assert!(writer.flush(51 * SECOND, 0));
    assert!(writer.flush(62 * SECOND, 0));
    assert_eq!(figures.view().rotations, 1);
}

#[test]
fn failed_rotation_and_sync_are_counted_and_retried() {
    let options = WriterOptions { rotate_bytes: 15, rotate_us: 0, sync: Sync::Always };
    let (mut writer, figures) = writer(Faulty { fails_rotate: true, ..Faulty::default() }, options);
    line(&mut writer, 0);
    assert!(writer.flush(0, 0));
    line(&mut writer, 1);
    assert!(!writer.flush(SECOND, 0));
    writer.medium.fails_rotate = false;
    writer.medium.fails_sync = true;
    assert!(!writer.flush(2 * SECOND, 0));
    assert_eq!((figures.view().errors, figures.view().records), (2, 1), "what is not on the disk is not written");
    writer.medium.fails_sync = false;
    assert!(writer.flush(3 * SECOND, 0));
    assert_eq!(text(&writer.medium.files), all_lines(2));
    assert_eq!(figures.view().records, 2);
}

#[test]
fn it_is_synced_as_often_as_asked_for() {
    for (sync, expected) in [(Sync::Never, 0), (Sync::OnRotation, 0), (Sync::Interval(SECOND), 5), (Sync::Always, 50)] {
        let (mut writer, _) = writer(Faulty::default(), WriterOptions { sync, ..FOREVER });
        for number in 0..50 {
            line(&mut writer, number);
            // A tenth of a second each, by a clock that began long ago.
            assert!(writer.flush(SECOND + u64::from(number) * SECOND / 10, 0));
        }
        assert_eq!(writer.medium.syncs, expected, "{sync:?}");
        writer.finish(100 * SECOND, 0);
        let at_end = usize::from(sync != Sync::Never && sync != Sync::Always);
        assert_eq!(writer.medium.syncs, expected + at_end, "{sync:?} at the end");
    }
}

#[test]
fn the_last_lines_are_synced_in_time_without_further_lines() {
    let (mut writer, _) = writer(Faulty::default(), WriterOptions { sync: Sync::Interval(SECOND), ..FOREVER });
    line(&mut writer, 0);
    assert!(writer.flush(0, 0));
    assert!(writer.flush(SECOND * 9 / 10, 0));
    let before = writer.medium.syncs;
    assert!(writer.flush(2 * SECOND, 0));
    assert_eq!(writer.medium.syncs, before + 1);
    assert!(writer.flush(4 * SECOND, 0));
    assert_eq!(writer.medium.syncs, before + 1, "there is nothing new");
}

#[test]
fn a_removed_file_is_reopened_and_its_cut_line_written_again() {
    let (mut writer, _) = writer(Faulty { space: Some(25), ..Faulty::default() }, FOREVER);
    for number in 0..4 {
        line(&mut writer, number);
    }
    assert!(!writer.flush(0, 0));
    writer.medium.space = None;
    writer.medium.taken = Some(Taken::Deleted);
    assert_eq!(writer.look(2 * SECOND), Some(Taken::Deleted));
    writer.first_line(|out| out.extend_from_slice(b"opened\n"));
    assert!(writer.flush(2 * SECOND, 0));
    assert_eq!(writer.medium.opened, 2);
    assert_eq!(writer.medium.files[0], b"line    0\nline    1\nline ");
    assert_eq!(writer.medium.files[1], b"opened\nline    2\nline    3\n");
}

#[test]
fn a_file_is_looked_for_once_a_second() {
    let (mut writer, _) = writer(Faulty::default(), FOREVER);
    writer.medium.taken = Some(Taken::Cut);
    assert_eq!(writer.look(0), None, "nothing is open yet");
    assert!(writer.flush(0, 0));
    assert_eq!(writer.look(SECOND), None);
    writer.medium.taken = Some(Taken::Cut);
    assert_eq!(writer.look(2 * SECOND - 1), None);
    assert_eq!(writer.look(2 * SECOND), Some(Taken::Cut));
    assert!(!writer.is_open() && writer.look(9 * SECOND).is_none(), "it is said once");
    writer.medium.fails_open = true;
    assert!(!writer.flush(9 * SECOND, 0) && !writer.is_open());
    writer.medium.fails_open = false;
    assert!(writer.flush(10 * SECOND, 0) && writer.is_open());
}

#[test]
fn a_medium_that_cannot_be_opened_is_tried_again() {
    let (mut writer, figures) = writer(Faulty { fails_open: true, ..Faulty::default() }, FOREVER);
    line(&mut writer, 0);
    assert!(!writer.flush(0, 0));
    assert!(figures.view().last_error.unwrap().starts_with("open: "));
    writer.medium.fails_open = false;
    assert!(writer.flush(SECOND, 0));
    assert_eq!(text(&writer.medium.files), all_lines(1));
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-export-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn rotated_files_bear_their_time_and_the_oldest_go() {
    let folder = Folder::new("rotation");
    let path = folder.0.join("events.json");
    fs::write(folder.0.join("events-of-somebody-else.json"), "mine").unwrap();
    let figures = Arc::new(Figures::default());
    let options = WriterOptions { rotate_bytes: 25, ..FOREVER };
    let mut writer = LogWriter::new(Files::new(path.clone(), 3), options, Arc::clone(&figures));
    for number in 0..20 {
        line(&mut writer, number);
        assert!(writer.flush(u64::from(number), 1_795_289_400_000_000 + u64::from(number) * SECOND));
    }
    let names: Vec<String> =
        rotated(&path).unwrap().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [
            "events-20261121T193014.000000Z.json",
            "events-20261121T193016.000000Z.json",
            "events-20261121T193018.000000Z.json"
        ]
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "line   18\nline   19\n");
    assert_eq!(fs::read_to_string(folder.0.join(&names[0])).unwrap(), "line   12\nline   13\n");
    assert!(folder.0.join("events-of-somebody-else.json").exists());
    assert_eq!(figures.view().errors, 0);
}

#[test]
fn two_files_put_aside_at_the_same_microsecond_have_two_names() {
    let folder = Folder::new("same-time");
    let path = folder.0.join("events.json");
    let mut writer =
        LogWriter::new(Files::new(path.clone(), 0), WriterOptions { rotate_bytes: 5, ..FOREVER }, Arc::default());
    for number in 0..5 {
        line(&mut writer, number);
        assert!(writer.flush(0, 1_795_289_400_000_000));
    }
    let mut all: String = rotated(&path).unwrap().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    all += &fs::read_to_string(&path).unwrap();
    assert_eq!(all, all_lines(5));
}

#[test]
fn a_moved_file_is_made_anew_and_a_cut_line_is_closed() {
    let folder = Folder::new("moved");
    let path = folder.0.join("events.json");
    fs::write(&path, "{\"cut").unwrap();
    let figures = Arc::new(Figures::default());
    let mut writer = LogWriter::new(Files::new(path.clone(), 0), FOREVER, figures);
    line(&mut writer, 0);
    assert!(writer.flush(0, 0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"cut\nline    0\n");
    let moved = folder.0.join("taken.json");
    fs::rename(&path, &moved).unwrap();
    line(&mut writer, 1);
    assert_eq!(writer.look(2 * SECOND), Some(Taken::Renamed(Some(moved.canonicalize().unwrap()))));
    assert!(writer.flush(2 * SECOND, 0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "line    1\n");
}

#[test]
fn what_another_program_did_to_a_file_is_known() {
    let folder = Folder::new("taken");
    let path = folder.0.join("events.json");
    let mut writer = LogWriter::new(Files::new(path.clone(), 0), FOREVER, Arc::default());
    let mut at = 0;
    let mut look = |writer: &mut LogWriter<Files>, text: &str| {
        at += SECOND;
        let found = writer.look(at);
        line(writer, 7);
        assert!(writer.flush(at, 0));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        found
    };
    assert_eq!(look(&mut writer, "line    7\n"), None);
    assert_eq!(look(&mut writer, "line    7\nline    7\n"), None);
    fs::remove_file(&path).unwrap();
    assert_eq!(look(&mut writer, "line    7\n"), Some(Taken::Deleted));
    // Deleted, and another file has its name.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another\n").unwrap();
    assert_eq!(look(&mut writer, "another\nline    7\n"), Some(Taken::Deleted));
    // As logrotate does with copytruncate. The next line goes to the end of what is left.
    fs::write(&path, "").unwrap();
    assert_eq!(look(&mut writer, "line    7\n"), Some(Taken::Cut));
    assert_eq!(look(&mut writer, "line    7\nline    7\n"), None);
    // With its folder, which comes back.
    fs::remove_dir_all(&folder.0).unwrap();
    assert_eq!(writer.look(u64::MAX), Some(Taken::Deleted));
    line(&mut writer, 8);
    assert!(!writer.flush(at, 0) && !writer.flush(at + RETRY_US, 0));
    assert!(writer.figures.view().last_error.unwrap().starts_with("open: "));
    fs::create_dir(&folder.0).unwrap();
    assert!(writer.flush(at + 2 * RETRY_US, 0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "line    8\n");
}

#[test]
fn a_device_without_space_is_an_error_that_says_so() {
    let figures = Arc::new(Figures::default());
    let mut writer = LogWriter::new(Files::new("/dev/full".into(), 0), FOREVER, Arc::clone(&figures));
    line(&mut writer, 0);
    assert!(!writer.flush(0, 0));
    let said = figures.view().last_error.unwrap();
    assert!(said.contains("No space left on device"), "{said}");
}
