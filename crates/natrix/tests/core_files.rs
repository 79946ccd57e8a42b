//! No secret gets into a core file, whatever limit the process was started with.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use serde_json::json;

const NATRIX: &str = env!("CARGO_BIN_EXE_natrix");

/// A program in `folder`, with as large a limit of core files as the system permits.
fn with_core_files(folder: &Path, words: &[&str]) -> Child {
    let script = "ulimit -S -c $(ulimit -H -c); exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(words).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn abort(child: &mut Child) -> ExitStatus {
    let killed = Command::new("kill").args(["-ABRT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    child.wait().unwrap()
}

fn core_limit(pid: u32) -> Vec<String> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    line.split_whitespace().skip(4).take(2).map(str::to_owned).collect()
}

/// Asks the API with a token, so that the token is in its memory.
fn log_in(socket: &Path, token: &str) -> String {
    for tries_left in (0..600).rev() {
        let stream = UnixStream::connect(socket);
        assert!(stream.is_ok() || tries_left > 0, "the API listens: {stream:?}");
        if let Ok(mut stream) = stream {
            let request = format!(
                "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            return answer;
        }
        thread::sleep(Duration::from_millis(50));
    }
    unreachable!("the last try ends the loop")
}

/// A folder that all users may write to, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-core-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Gives an API a user, and logs in. Returns the token, which is in its memory then.
fn log_in_to(api: &Child, folder: &Path) -> String {
    let made = Command::new(NATRIX).args(["token", "law", "--role", "audit", "--json"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let (token, hash) = (made["token"].as_str().unwrap(), made["hash"].as_str().unwrap());
    let socket = folder.join("http.sock");
    let settings = json!({
        "listen": { "unix": socket },
        "hosts": [],
        "tls": null,
        "users": [{ "name": "law", "role": "audit", "token": hash, "group": null }],
        "control": folder.join("control.sock"),
    });
    let handed = json!({ "level": "info", "format": "text", "settings": settings });
    writeln!(api.stdin.as_ref().unwrap(), "{handed}").unwrap();
    let answer = log_in(&socket, token);
    // The login is known; there is no instance to ask.
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    token.to_owned()
}

#[test]
fn an_aborted_api_leaves_no_core() {
    let folder = Folder::new("aborted");
    let mut control = with_core_files(&folder.0, &["sleep", "60"]);
    let mut api = with_core_files(&folder.0, &[NATRIX, "api"]);
    let token = log_in_to(&api, &folder.0);
    let limit = core_limit(api.id());
    let (of_control, of_api) = (abort(&mut control), abort(&mut api));
    let files = fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    let secret = token.split_once(':').unwrap().1.as_bytes();
    let holds_secret =
        |path: &&PathBuf| fs::read(path).is_ok_and(|bytes| bytes.windows(secret.len()).any(|window| window == secret));
    let found: Vec<_> = files.iter().filter(holds_secret).collect();
    // Where the system permits none at all, the lower limit stays.
    let permitted = core_limit(std::process::id())[1] != "0";
    let wanted = if permitted { "1" } else { "0" };
    assert_eq!(limit, [wanted, wanted], "limit of the API (another program left a core: {})", of_control.core_dumped());
    assert_eq!(of_api.signal(), Some(6));
    assert!(!of_api.core_dumped(), "the API left a core");
    assert_eq!(found, Vec::<&PathBuf>::new(), "files with the token");
}

/// The words in front of a command that make it one of a user without privileges.
fn without_privileges() -> &'static [&'static str] {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if is_root { &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] } else { &[] }
}

/// Whether a program of the same user sees into a process, as `gcore` and debuggers must.
fn is_open_to_its_user(pid: u32) -> bool {
    let look = ["head", "-c", "1"];
    let words: Vec<&str> = without_privileges().iter().chain(&look).copied().collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(format!("/proc/{pid}/environ"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn a_process_of_the_same_user_cannot_dump_the_api() {
    let folder = Folder::new("taken");
    // Where this user can execute it.
    let program = folder.0.join("natrix");
    fs::copy(NATRIX, &program).unwrap();
    let start = |words: &[&str]| {
        with_core_files(&folder.0, &without_privileges().iter().chain(words).copied().collect::<Vec<_>>())
    };
    let mut control = start(&["sleep", "60"]);
    let mut api = start(&[program.to_str().unwrap(), "api"]);
    log_in_to(&api, &folder.0);
    let open = (is_open_to_its_user(control.id()), is_open_to_its_user(api.id()));
    for child in [&mut control, &mut api] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(open, (true, false), "another program, and the API");
}
