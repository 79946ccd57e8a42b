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

use crate::arguments::Top;
use crate::error::CliError;
use crate::top::dashboard::Dashboard;
use crate::top::dashboard::Key;
use crate::top::fetch::News;

/// How long keys are waited for before news of the daemon are looked at.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// Runs the dashboard until it is left. The terminal is put back on the way out, on a panic too.
pub(crate) fn run(arguments: &Top) -> Result<(), CliError> {
    if !io::stdout().is_terminal() {
        let remedy = "use `natrix show status --json` for programs";
        return Err(Fault::new("top", "standard output is not a terminal", remedy).into());
    }
    let news = fetch::start(arguments.socket.clone())?;
    let mut dashboard = Dashboard::new(arguments.socket.socket.display().to_string());
    // `try_init` also installs a panic hook that puts the terminal back.
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(&mut terminal, &mut dashboard, &news);
    ratatui::restore();
    let stopped = |error: io::Error| Fault::new("top", "had to stop", "start it again").seen(error.to_string());
    Ok(outcome.map_err(stopped)?)
}

fn watch(terminal: &mut DefaultTerminal, dashboard: &mut Dashboard, news: &mpsc::Receiver<News>) -> io::Result<()> {
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
        if event::poll(KEY_WAIT)? {
            changed = true;
            if let Event::Key(pressed) = event::read()?
                && pressed.kind == KeyEventKind::Press
                && let Some(key) = meaning(pressed.code, pressed.modifiers)
            {
                if key == Key::Quit {
                    return Ok(());
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
