//! Which instance `natrix reload`, `natrix plan` and `natrix audit` address.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-addressed-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// A configuration that names this socket, and nothing else.
    fn configuration(&self, socket: &Path) -> String {
        let path = self.0.join("natrix.toml");
        fs::write(&path, format!("[control]\nsocket = \"{}\"\n", socket.display())).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the command reports: each of these sockets has no instance that answers.
fn report(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    let output = command.args(words).env_remove("NATRIX_SOCKET").output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// A socket that takes connections and ends them at once.
fn listening(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream)
        }
    });
}

#[test]
fn the_socket_that_the_file_names_is_asked() {
    let folder = Folder::new("named");
    let socket = folder.0.join("east.sock");
    listening(&socket);
    let file = folder.configuration(&socket);
    for command in ["reload", "plan", "audit"] {
        let errors = report(&[command, "-c", &file]);
        assert!(errors.contains(&format!("{}: ", socket.display())) && !errors.contains("note:"), "{errors}");
    }
}

#[test]
fn a_socket_on_the_command_line_comes_first() {
    let folder = Folder::new("given");
    let (socket, other) = (folder.0.join("east.sock"), folder.0.join("west.sock"));
    listening(&socket);
    let file = folder.configuration(&socket);
    let errors = report(&["reload", "-c", &file, "--socket", &other.display().to_string()]);
    assert!(errors.contains("west.sock: ") && !errors.contains("east.sock"), "{errors}");
}

#[test]
fn a_pipe_is_not_waited_for() {
    let folder = Folder::new("pipe");
    let pipe = folder.0.join("natrix.toml").display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = Command::new(env!("CARGO_BIN_EXE_natrix"))
        .args(["plan", "-c", &pipe])
        .env_remove("NATRIX_SOCKET")
        .spawn()
        .unwrap();
    for _ in 0..200 {
        if child.try_wait().unwrap().is_some() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("it waits for the pipe's writer");
}

#[test]
fn without_an_instance_there_the_default_is_asked() {
    let folder = Folder::new("default");
    let socket = folder.0.join("new.sock");
    let file = folder.configuration(&socket);
    // An instance at the default socket would find that this is no configuration.
    let errors = report(&["plan", "-c", &file]);
    let note = format!(
        "note: no instance runs at {}, the control socket in {file}; asking the one at {}",
        socket.display(),
        control::SOCKET_PATH_DEFAULT
    );
    assert!(errors.starts_with(&note), "{errors}");
}
