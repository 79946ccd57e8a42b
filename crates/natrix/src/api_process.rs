//! Starts and watches the process of the API, so that a failure of the API does not touch packets.

use std::io;
use std::io::Write;
use std::process::Child;
use std::process::Command as Process;
use std::process::Stdio;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use api::Listen;
use api::Role;
use api::Settings;
use api::Tls;
use api::User;
use config::Config;
use config::Http;
use config::HttpListen;
use config::HttpRole;
use control::Fault;

use crate::failure::Failure;

/// How often to look whether the process still runs.
const LOOKS_EVERY: Duration = Duration::from_millis(200);
/// Pause before it is started again.
const RESTARTS_AFTER: Duration = Duration::from_secs(5);
/// Time for it to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The watched process; ends when dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its message.
            let _ = thread.join();
        }
    }
}

/// Starts the API of a configuration, if it has one.
pub(crate) fn start(config: &Config) -> Result<Option<Watched>, Failure> {
    let Some(http) = &config.http else { return Ok(None) };
    let settings = settings(http, config)?;
    let line = serde_json::to_string(&settings).map_err(io::Error::from)?;
    let (end, ended) = mpsc::channel();
    let thread = thread::Builder::new().name("api".to_owned()).spawn(move || watch(&line, &ended))?;
    Ok(Some(Watched { end: Some(end), thread: Some(thread) }))
}

fn settings(http: &Http, config: &Config) -> Result<Settings, Failure> {
    let users = http.users.iter().map(|user| {
        let group = user.group.as_ref().map(|group| group_of(&user.name, group)).transpose()?;
        let role = match user.role {
            HttpRole::View => Role::View,
            HttpRole::Operate => Role::Operate,
            HttpRole::Audit => Role::Audit,
        };
        Ok(User { name: user.name.clone(), role, token: user.token.clone(), group })
    });
    let users: Result<Vec<User>, Failure> = users.collect();
    Ok(Settings {
        listen: match &http.listen {
            HttpListen::Tcp(address) => Listen::Tcp(*address),
            HttpListen::Unix(path) => Listen::Unix(path.clone()),
        },
        hosts: http.hosts.clone(),
        tls: http.tls.as_ref().map(|tls| Tls {
            certificate: tls.certificate.clone(),
            key: tls.key.clone(),
            client_authorities: tls.client_authorities.clone(),
        }),
        users: users?,
        control: config.control.socket.clone(),
    })
}

fn group_of(user: &str, group: &str) -> Result<u32, Failure> {
    let found = nix::unistd::Group::from_name(group).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| {
        let fault =
            Fault::new(format!("http.user \"{user}\".group"), "does not exist here", "add the group, or name another");
        cli::CliError::from(fault.seen(group)).into()
    })
}

/// Starts the process, and starts it again when it ends, until the sender of `ended` is gone.
fn watch(settings: &str, ended: &mpsc::Receiver<()>) {
    loop {
        let outcome = spawn(settings).and_then(|mut child| wait(&mut child, ended));
        match outcome {
            Ok(true) => return,
            // It has written why.
            Ok(false) => {}
            Err(error) => eprintln!("error: http: {error}; see the system's log"),
        }
        match ended.recv_timeout(RESTARTS_AFTER) {
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("warning: http: the process of the API ended; starting it again")
            }
            _ => return,
        }
    }
}

/// The settings go to its standard input, where no other user sees them. It ends when its input
/// ends, so also when this process is killed.
fn spawn(settings: &str) -> io::Result<Child> {
    let mut child = Process::new("/proc/self/exe")
        .arg("api")
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "TZ" || name == "PATH"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    if let Some(input) = &mut child.stdin {
        writeln!(input, "{settings}")?;
    }
    Ok(child)
}

/// Waits until the process ends (false), or until it is no longer wanted (true).
fn wait(child: &mut Child, ended: &mpsc::Receiver<()>) -> io::Result<bool> {
    loop {
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
        if ended.recv_timeout(LOOKS_EVERY) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    drop(child.stdin.take());
    for _ in 0..ENDS_WITHIN.as_millis() / LOOKS_EVERY.as_millis() {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        thread::sleep(LOOKS_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Ok(true)
}
