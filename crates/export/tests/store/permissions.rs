//! Modes of the files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use export::FILE_MODE;
use export::FOLDER_MODE;
use export::store::Generated;
use export::store::Generator;
use export::store::Question;
use export::store::Store;
use export::store::lookups;

use super::Folder;
use super::generated;

#[test]
fn only_user_and_group_read_a_store() {
    let folder = Folder::new("modes");
    let (writer, now, begun) = generated(&folder, Generated::Mappings(40_000), 5);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let modes = |folder: &Path| -> Vec<(PathBuf, u32)> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), mode(&path))).collect()
    };
    let while_open = modes(&folder.0);
    writer.finish(now, now.monotonic_us, true).unwrap();
    let question = Question {
        address: begun[0].external,
        host: None,
        port: None,
        protocol: None,
        from_us: Generator::begin().unix_us,
        to_us: Generator::begin().unix_us + now.monotonic_us,
    };
    let found = Store::open(&folder.0).unwrap().look_up(&question).unwrap();
    let (holders, is_complete) = (found.holders.len(), found.is_complete);
    let lookup = lookups::Lookup { question: &question, vrf: None, remote: None, formulas: None, holders, is_complete };
    lookups::record(&folder.0, &lookup, None, now.unix_us).unwrap();
    let all = [while_open, modes(&folder.0)].concat();
    for kind in ["segment-", "journal-", "catalogue", "lookups", "lock"] {
        let is_kind = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(kind);
        assert!(all.iter().any(|(path, _)| is_kind(path)), "{kind}: {all:?}");
    }
    assert_eq!(mode(&folder.0) & !FOLDER_MODE, 0);
    for (path, mode) in all {
        assert_eq!(mode & !FILE_MODE, 0, "{}: {mode:o}", path.display());
    }
}
