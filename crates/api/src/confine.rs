//! What the process gives up once it listens: it reads files, talks to the control socket and to
//! the clients that connect, and nothing else.

use std::io;
use std::path::Path;

use landlock::ABI;
use landlock::Access;
use landlock::AccessFs;
use landlock::AccessNet;
use landlock::BitFlags;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetCreatedAttr;
use landlock::Scope;
use landlock::path_beneath_rules;
use rustix::process::DumpableBehavior;
use rustix::process::set_dumpable_behavior;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;
use rustix::thread::clear_ambient_capability_set;
use rustix::thread::set_capabilities;

/// Takes capabilities, core files, writing, executing, listening and connecting by TCP from this
/// thread and the threads that it starts. `socket` is the listening Unix socket, if there is one,
/// which is removed at the end. A kernel without Landlock takes only the first two.
///
/// # Errors
/// The system refuses.
pub(crate) fn confine(socket: Option<&Path>) -> io::Result<()> {
    // A core file would have tokens in it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    restrict(socket).map_err(io::Error::other)
}

fn restrict(socket: Option<&Path>) -> Result<(), landlock::RulesetError> {
    let abi = ABI::V6;
    let reading: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let folder = socket.and_then(Path::parent);
    Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(["/"], reading))?
        .add_rules(path_beneath_rules(folder, AccessFs::RemoveFile))?
        .restrict_self()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::net::TcpStream;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_confined_thread_reads_and_does_nothing_else() {
        let folder = std::env::temp_dir().join(format!("natrix-confine-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (kept, socket) = (folder.join("kept"), folder.join("sockets"));
        fs::create_dir_all(&socket).unwrap();
        fs::write(&kept, "text").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Only this thread: the others of the test are not confined.
        let confined = std::thread::spawn(move || {
            let socket = socket.join("http.sock");
            fs::write(&socket, "").unwrap();
            confine(Some(&socket)).unwrap();
            assert_eq!(fs::read_to_string(&kept).unwrap(), "text");
            let refused = [
                fs::write(&kept, "other").map_err(|error| error.kind()),
                fs::remove_file(&kept).map_err(|error| error.kind()),
                fs::create_dir(kept.with_extension("folder")).map_err(|error| error.kind()),
                Command::new("/bin/true").status().map(drop).map_err(|error| error.kind()),
                TcpStream::connect(address).map(drop).map_err(|error| error.kind()),
                TcpListener::bind("127.0.0.1:0").map(drop).map_err(|error| error.kind()),
            ];
            assert_eq!(refused, [Err(io::ErrorKind::PermissionDenied); 6]);
            fs::remove_file(socket).unwrap();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                assert!(status.contains(&format!("{name}:\t0000000000000000")), "{name}: {status}");
            }
        });
        let outcome = confined.join();
        fs::remove_dir_all(&folder).unwrap();
        assert!(outcome.is_ok());
    }
}
