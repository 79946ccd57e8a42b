//! What managers set, in a file: a new process begins with it.

use core::net::IpAddr;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;

use crate::controls::Control;
use crate::controls::Controls;
use crate::controls::Of;

/// A file of more bytes is not read: as many as all pools and subscribers that may have values of
/// their own take with the longest names.
const BYTES_MAX: u64 = 16 << 20;

/// Contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    set: Vec<(Name, Control)>,
}

/// `Of` in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    Instance,
    Pool(String),
    Subscriber(String, IpAddr),
}

impl From<&Of> for Name {
    fn from(of: &Of) -> Name {
        match of {
            Of::Instance => Name::Instance,
            Of::Pool(name) => Name::Pool((**name).to_owned()),
            Of::Subscriber(vrf, address) => Name::Subscriber((**vrf).to_owned(), *address),
        }
    }
}

impl From<Name> for Of {
    fn from(name: Name) -> Of {
        match name {
            Name::Instance => Of::Instance,
            Name::Pool(name) => Of::Pool(name.into()),
            Name::Subscriber(vrf, address) => Of::Subscriber(vrf.into(), address),
        }
    }
}

const VERSION: u32 = 1;

/// Where it is kept, if anywhere.
#[derive(Debug)]
pub(crate) struct Saved(Option<PathBuf>);

impl Saved {
    pub(crate) fn new(path: Option<PathBuf>) -> Saved {
        Saved(path)
    }

    /// What was saved. A file that cannot be read is reported and counts as empty: notifications
    /// are less than the rest of the agent.
    pub(crate) fn read(&self) -> Controls {
        let Some(path) = &self.0 else { return Controls::default() };
        let unreadable = |problem: &dyn core::fmt::Display| {
            let path = path.display();
            tracing::warn!(
                target: "natrix",
                object = "snmp",
                "{path} has no thresholds to begin with ({problem}); set them again"
            );
            Controls::default()
        };
        match text(path) {
            Ok(text) => parsed(&text).unwrap_or_else(|error| unreadable(&error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Controls::default(),
            Err(error) => unreadable(&error),
        }
    }

    /// Replaces the file. It is on the disk when this returns.
    pub(crate) fn write(&self, controls: &Controls) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        replace(path, controls).inspect_err(|error| {
            let path = path.display();
            tracing::warn!(target: "natrix", object = "snmp", "{path} cannot be written ({error})");
        })
    }
}

fn text(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.len() > BYTES_MAX {
        return Err(io::Error::other("it is too large"));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The values in a file, each as valid as if it were set now.
pub(crate) fn parsed(text: &[u8]) -> Result<Controls, String> {
    let contents: Contents = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if contents.version != VERSION {
        return Err(format!("version {} is not known", contents.version));
    }
    let mut controls = Controls::default();
    for (name, control) in contents.set {
        let of = Of::from(name);
        controls.restore(&of, control).map_err(|refusal| format!("{refusal:?} for {of:?}"))?;
    }
    Ok(controls)
}

/// The file of these values.
pub(crate) fn written(controls: &Controls) -> io::Result<Vec<u8>> {
    let set = controls.all().map(|(of, control)| (Name::from(of), *control)).collect();
    let mut text = serde_json::to_vec(&Contents { version: VERSION, set })?;
    text.push(b'\n');
    Ok(text)
}

fn replace(path: &Path, controls: &Controls) -> io::Result<()> {
    let text = written(controls)?;
    let beside = path.with_added_extension("new");
    // It names subscribers.
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controls::Field;
    use crate::value::Value;

    fn some_values() -> Controls {
        let mut controls = Controls::default();
        let subscriber = Of::Subscriber("red".into(), [100, 64, 0, 7].into());
        for (of, field, value) in [
            (Of::Instance, Field::First, Value::Integer(70)),
            (Of::Pool("a \"b\"".into()), Field::Second, Value::Integer(90)),
            (subscriber, Field::Interval, Value::Gauge32(3600)),
        ] {
            controls.set(&of, field, &value).unwrap();
        }
        controls
    }

    #[test]
    fn saved_values_are_read_again() {
        let folder = std::env::temp_dir().join(format!("natrix-snmp-saved-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let saved = Saved::new(Some(folder.join("thresholds")));
        assert_eq!(saved.read().all().count(), 0, "no file");
        let values = some_values();
        saved.write(&values).unwrap();
        assert!(saved.read().all().eq(values.all()));
        saved.write(&Controls::default()).unwrap();
        assert_eq!(saved.read().all().count(), 0);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&folder).unwrap();
        assert!(saved.write(&values).is_err(), "a folder that is gone");
    }

    #[test]
    fn a_damaged_file_gives_no_values() {
        let text = written(&some_values()).unwrap();
        assert!(parsed(&text).is_ok());
        for end in 0..text.len() - 2 {
            assert!(parsed(&text[..end]).is_err(), "the first {end} bytes");
        }
        let text = String::from_utf8(text).unwrap();
        for (good, bad) in [(":90", ":101"), (":70", ":-2"), (":3600", ":0"), ("version\":1", "version\":2")] {
            assert!(text.contains(good));
            assert!(parsed(text.replace(good, bad).as_bytes()).is_err(), "{bad}");
        }
    }
}
