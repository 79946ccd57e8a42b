//! `natrix top`: a dashboard in the terminal.
//!
//! A thread fetches a sample each second ([`fetch`]); the dashboard keeps what it needs of them ([`dashboard`]); drawing reads the
//! dashboard and nothing else ([`draw`]), so that it can be tested without a terminal.

mod dashboard;
mod draw;
mod fetch;

#[cfg(test)]
mod tests;

use std::io;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use control::Fault;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use ratatui::crossterm::event::Event;
use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;

use crate::arguments::Top;
use crate::error::CliError;
use crate::top::dashboard::Dashboard;
use crate::top::dashboard::Key;
use crate::top::fetch::News;

/// How long keys are waited for before news of the daemon are looked at.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// How the dashboard was left.
enum Left {
    /// By a key.
    Quit,
    /// By this signal.
    Signal(i32),
}

/// Runs the dashboard until it is left. The terminal is put back on the way out, on a panic and a signal too.
pub(crate) fn run(arguments: &Top) -> Result<(), CliError> {
    if !io::stdout().is_terminal() {
        let remedy = "use `natrix show status --json` for programs";
        return Err(Fault::new("top", "standard output is not a terminal", remedy).into());
    }
    let news = fetch::start(arguments.socket.clone())?;
    // Before the terminal is changed: whoever ends this finds it as it was.
    let signal = signals()?;
    let mut dashboard = Dashboard::new(arguments.socket.socket.display().to_string());
    // `try_init` also installs a panic hook that puts the terminal back.
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(&mut terminal, &mut dashboard, &news, &signal);
    // After SIGHUP there may be none any more, and nobody to tell so.
    let _ = ratatui::try_restore();
    let signal = match &outcome {
        Ok(Left::Signal(signal)) => Some(*signal),
        // A terminal that is gone can not be drawn on, whichever is noticed first.
        _ => pending(&signal),
    };
    if let Some(signal) = signal {
        // Whoever waits for this process sees by what it ended.
        signal_hook::low_level::emulate_default_handler(signal)?;
    }
    let stopped = |error: io::Error| Fault::new("top", "had to stop", "start it again").seen(error.to_string());
    outcome.map_err(stopped)?;
    Ok(())
}

/// Has signals that ask to end noted, the latest of them by its number.
fn signals() -> io::Result<Arc<AtomicUsize>> {
    let noted = Arc::new(AtomicUsize::new(0));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register_usize(signal, Arc::clone(&noted), signal as usize)?;
    }
    Ok(noted)
}

/// The signal that was noted, if one was.
fn pending(noted: &AtomicUsize) -> Option<i32> {
    i32::try_from(noted.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
}

fn watch(
    terminal: &mut DefaultTerminal,
    dashboard: &mut Dashboard,
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
                // A picture that silently stands still would mislead.
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("the fetching thread has ended")),
            }
            changed = true;
        }
        if let Some(signal) = pending(signal) {
            return Ok(Left::Signal(signal));
        }
        if event::poll(KEY_WAIT)? {
            changed = true;
            if let Event::Key(pressed) = event::read()?
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
