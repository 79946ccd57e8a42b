//! What a process beside the daemon gives up before it meets anyone: it reads files, talks to the
//! control socket and through the sockets that it has, and does nothing else.

#![forbid(unsafe_code)]

use std::io;
use std::path::Path;

use landlock::ABI;
use landlock::Access;
use landlock::AccessFs;
use landlock::AccessNet;
use landlock::BitFlags;
use landlock::NetPort;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetCreatedAttr;
use landlock::RulesetStatus;
use landlock::Scope;
use landlock::path_beneath_rules;
use rustix::process::DumpableBehavior;
use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::process::getrlimit;
use rustix::process::set_dumpable_behavior;
use rustix::process::setrlimit;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;
use rustix::thread::clear_ambient_capability_set;
use rustix::thread::set_capabilities;

/// Lets neither this process nor those that it starts leave a core file, which would have keys,
/// tokens and subscribers in it. For a program: at its start, before it reads a secret.
///
/// A limit of one byte, because the kernel hands the core of a process without room for a file to
/// the program in `kernel.core_pattern` all the same, but not with this limit (core(5)).
///
/// # Errors
/// The system refuses.
pub fn leave_no_core() -> io::Result<()> {
    let hard = getrlimit(Resource::Core).maximum;
    // Under a limit of 0 there is no file, and it can only be lowered.
    let least = hard.map_or(1, |hard| hard.min(1));
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(least), maximum: Some(least) })?)
}

/// What a confined process still needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs<'a> {
    /// Its listening Unix socket, which it removes at the end.
    pub own_socket: Option<&'a Path>,
    /// The TCP port that it connects to.
    pub connects_to: Option<u16>,
    /// A file that it replaces: it may create, write and remove files in the folder of this one.
    pub writes_beside: Option<&'a Path>,
}

/// Takes capabilities, core files, writing, executing, listening and connecting by TCP from this
/// thread and the threads that it starts, except for `needs`. Without Landlock, in the kernel or
/// because a filter of system calls refuses it, only the first two, and the result is false.
///
/// # Errors
/// The system refuses.
pub fn confine(needs: Needs) -> io::Result<bool> {
    // A core file would have tokens and subscribers in it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    restrict(needs).map_err(io::Error::other)
}

/// What a process says where Landlock does not restrict it.
pub const NO_LANDLOCK: &str = "Landlock does not restrict this process, only its missing privileges do; use a kernel \
                               from 5.13 on with Landlock, and let the service's SystemCallFilter have landlock_create_ruleset, landlock_add_rule and \
                               landlock_restrict_self";

/// False: nothing is restricted.
fn restrict(needs: Needs) -> Result<bool, landlock::RulesetError> {
    let abi = ABI::V6;
    let reading: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let folder = needs.own_socket.and_then(Path::parent);
    let kept = needs.writes_beside.and_then(Path::parent);
    let replacing = reading | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    let ports =
        needs.connects_to.map(|port| Ok::<_, landlock::RulesetError>(NetPort::new(port, AccessNet::ConnectTcp)));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(["/"], reading))?
        .add_rules(path_beneath_rules(folder, AccessFs::RemoveFile))?
        .add_rules(path_beneath_rules(kept, replacing))?
        .add_rules(ports)?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
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
        let (kept, socket, state) = (folder.join("kept"), folder.join("sockets"), folder.join("states"));
        fs::create_dir_all(&socket).unwrap();
        fs::create_dir_all(&state).unwrap();
        fs::write(&kept, "text").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let permitted = TcpListener::bind("127.0.0.1:0").unwrap();
        let known = permitted.local_addr().unwrap();
        // Only this thread: the others of the test are not confined.
        let confined = std::thread::spawn(move || {
            let socket = socket.join("http.sock");
            fs::write(&socket, "").unwrap();
            let state = state.join("state");
            let needs =
                Needs { own_socket: Some(&socket), connects_to: Some(known.port()), writes_beside: Some(&state) };
            assert!(confine(needs).unwrap(), "Landlock restricts it");
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
            assert!(TcpStream::connect(known).is_ok(), "the named port is open to it");
            let new = state.with_extension("new");
            for text in ["one", "two"] {
                fs::write(&new, text).unwrap();
                fs::rename(&new, &state).unwrap();
                assert_eq!(fs::read_to_string(&state).unwrap(), text);
            }
            assert!(fs::rename(&state, &kept).is_err(), "out of its folder");
            assert!(fs::create_dir(state.with_extension("folder")).is_err());
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
