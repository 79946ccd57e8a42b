//! `natrix top`: a dashboard in the terminal.
//!
//! A thread fetches a sample each second ([`fetch`]), the dashboard keeps the recent ones
//! ([`dashboard`]), and drawing reads only the dashboard ([`draw`]), so that tests need no
//! terminal.

mod dashboard;
mod draw;
mod fetch;
mod keyboard;

#[cfg(test)]
mod tests;

use std::io;
use std::io::IsTerminal;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::Duration;

use control::Fault;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::Event;
use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::arguments::Top;
use crate::error::CliError;
use crate::top::dashboard::Dashboard;
use crate::top::dashboard::Key;
use crate::top::fetch::News;
use crate::top::keyboard::Keyboard;
use crate::top::keyboard::Waited;

/// Time to wait for a key before the next look at samples.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Time for the dashboard to end by itself after a signal.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// How the dashboard ended.
enum Left {
    /// A key.
    Quit,
    /// The terminal is gone.
    Gone,
    /// A signal.
    Signal(i32),
}

/// Runs the dashboard until it ends. Restores the terminal, after a panic or a signal too.
pub(crate) fn run(arguments: &Top) -> Result<(), CliError> {
    if !io::stdout().is_terminal() {
        let remedy = "use `natrix show status --json` for programs";
        return Err(Fault::new("top", "standard output is not a terminal", remedy).into());
    }
    let keyboard = Keyboard::open().map_err(|error| {
        Fault::new("/dev/tty", "cannot be opened, so there are no keys", "run it in a terminal").seen(error.to_string())
    })?;
    let news = fetch::start(arguments.socket.clone())?;
    // Before the terminal is changed, so that a signal always restores it.
    let signal = signals(keyboard.try_clone()?)?;
    let mut dashboard = Dashboard::new(arguments.socket.path().display().to_string());
    // `try_init` also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(&mut terminal, &mut dashboard, &keyboard, &news, &signal);
    // After SIGHUP the terminal may be gone, and a failure has no reader.
    let _ = ratatui::try_restore();
    let signal = match &outcome {
        Ok(Left::Signal(signal)) => Some(*signal),
        Ok(Left::Gone) => Some(SIGHUP),
        // Drawing on a terminal that is gone may fail before its end or the signal is seen.
        Err(_) if matches!(keyboard.wait(Duration::ZERO), Ok(Waited::Gone)) => Some(SIGHUP),
        _ => pending(&signal),
    };
    if let Some(signal) = signal {
        // Die by the signal, so that the parent process sees it.
        signal_hook::low_level::emulate_default_handler(signal)?;
    }
    let stopped = |error: io::Error| Fault::new("top", "had to stop", "start it again").seen(error.to_string());
    outcome.map_err(stopped)?;
    Ok(())
}

/// Records the latest signal that asks to end. Ends the process if the dashboard does not end by
/// itself soon after: the terminal library may be reading without end from a terminal that is gone.
///
/// The end of the terminal counts as SIGHUP, because the system sends SIGHUP only to the session of
/// the terminal.
fn signals(keyboard: Keyboard) -> io::Result<Arc<AtomicUsize>> {
    let noted = Arc::new(AtomicUsize::new(0));
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT])?;
    let note = Arc::clone(&noted);
    let of_signals = move || {
        if let Some(signal) = signals.forever().next() {
            end_soon(&note, signal);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(of_signals)?;
    let note = Arc::clone(&noted);
    let of_terminal = move || {
        if keyboard.wait_for_end().is_ok() {
            end_soon(&note, SIGHUP);
        }
    };
    thread::Builder::new().name("terminal".to_owned()).spawn(of_terminal)?;
    Ok(noted)
}

/// Records a signal and ends the process if it does not end by itself.
fn end_soon(noted: &AtomicUsize, signal: i32) {
    noted.store(signal as usize, Ordering::Relaxed);
    thread::sleep(ENDS_WITHIN);
    let _ = ratatui::try_restore();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    process::exit(128 + signal);
}

/// The recorded signal, if any.
fn pending(noted: &AtomicUsize) -> Option<i32> {
    i32::try_from(noted.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
}

fn watch(
    terminal: &mut DefaultTerminal,
    dashboard: &mut Dashboard,
    keyboard: &Keyboard,
    news: &mpsc::Receiver<News>,
    signal: &AtomicUsize,
) -> io::Result<Left> {
    terminal.draw(|frame| draw::draw(frame, dashboard))?;
    loop {
        let mut changed = false;
        loop {
            match news.try_recv() {
                Ok(news) => dashboard.take(news),
                Err(TryRecvError::Empty) => break,
                // A frozen picture without a message would mislead.
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("the fetching thread has ended")),
            }
            changed = true;
        }
        if let Some(signal) = pending(signal) {
            return Ok(Left::Signal(signal));
        }
        let event = match keyboard.wait(KEY_WAIT)? {
            Waited::Event(event) => Some(event),
            Waited::Nothing => None,
            Waited::Gone => return Ok(Left::Gone),
        };
        if let Some(event) = event {
            changed = true;
            if let Event::Key(pressed) = event
                && pressed.kind == KeyEventKind::Press
                && let Some(key) = meaning(pressed.code, pressed.modifiers)
            {
                if key == Key::Quit {
                    return Ok(Left::Quit);
                }
                dashboard.press(key);
            }
        }
        if changed {
            terminal.draw(|frame| draw::draw(frame, dashboard))?;
        }
    }
}

/// What a key means. In raw mode Ctrl-C is a key like the others.
fn meaning(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Char('q' | 'Q') => Some(Key::Quit),
        KeyCode::Char('p' | 'P' | ' ') => Some(Key::Pause),
        KeyCode::Char('s' | 'S') => Some(Key::Sort),
        KeyCode::Char('?' | 'h') => Some(Key::Help),
        KeyCode::Esc => Some(Key::Escape),
        _ => None,
    }
}
