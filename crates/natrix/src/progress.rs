//! A bar with the time left, for whatever takes more than a second.

use indicatif::ProgressBar;
use indicatif::ProgressStyle;

/// A bar; hidden where standard error is no terminal.
pub(crate) fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {percent} %, {eta} left");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
