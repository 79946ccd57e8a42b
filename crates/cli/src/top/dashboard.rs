//! The state of the dashboard and the effect of keys.

use core::cmp::Reverse;
use std::collections::VecDeque;

use control::DropReason;

use crate::top::fetch::News;
use crate::top::fetch::Sample;

/// Seconds of history for the charts; enough for the widest terminal.
const HISTORY_MAX: usize = 512;

/// A key by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    Pause,
    Sort,
    Help,
    Escape,
}

/// Order of the drop reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Most packets since the start first.
    Total,
    /// Most packets in the last second first.
    Rate,
}

/// State of the connection to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// No answer yet.
    Connecting,
    /// The last request was answered.
    Live,
    /// The last request failed.
    Gone { reason: String, tries: u32 },
}

/// Everything that is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Dashboard {
    pub(crate) socket: String,
    pub(crate) link: Link,
    pub(crate) paused: bool,
    pub(crate) help: bool,
    pub(crate) sort: Sort,
    pub(crate) current: Option<Sample>,
    /// Forwarded packets per second, newest first.
    pub(crate) packets_history: VecDeque<u64>,
    /// Forwarded bits per second, newest first.
    pub(crate) bits_history: VecDeque<u64>,
}

fn remember(history: &mut VecDeque<u64>, value: u64) {
    history.push_front(value);
    history.truncate(HISTORY_MAX);
}

impl Dashboard {
    pub(crate) fn new(socket: String) -> Dashboard {
        Dashboard {
            socket,
            link: Link::Connecting,
            paused: false,
            help: false,
            sort: Sort::Rate,
            current: None,
            packets_history: VecDeque::new(),
            bits_history: VecDeque::new(),
        }
    }

    /// Takes the result of one attempt. A pause freezes the picture, but not the state of the
    /// connection.
    pub(crate) fn take(&mut self, news: News) {
        match news {
            News::Gone(reason) => {
                let tries = if let Link::Gone { tries, .. } = self.link { tries.saturating_add(1) } else { 1 };
                self.link = Link::Gone { reason, tries };
            }
            News::Sample(sample) => {
                self.link = Link::Live;
                if !self.paused {
                    self.take_sample(*sample);
                }
            }
        }
    }

    /// All rates are those of the daemon, which the page shows, too.
    fn take_sample(&mut self, sample: Sample) {
        remember(&mut self.packets_history, sample.status.packets_per_second);
        remember(&mut self.bits_history, sample.status.bits_per_second);
        self.current = Some(sample);
    }

    /// Applies a key; `Quit` is the caller's.
    pub(crate) fn press(&mut self, key: Key) {
        match key {
            Key::Quit => {}
            Key::Pause => self.paused = !self.paused,
            Key::Help => self.help = !self.help,
            Key::Escape => self.help = false,
            Key::Sort => {
                self.sort = match self.sort {
                    Sort::Total => Sort::Rate,
                    Sort::Rate => Sort::Total,
                }
            }
        }
    }

    /// Reasons that occurred, in the chosen order.
    pub(crate) fn drops(&self) -> Vec<&DropReason> {
        let Some(current) = &self.current else { return Vec::new() };
        let mut drops: Vec<&DropReason> = current.drops.iter().filter(|drop| drop.packets > 0).collect();
        drops.sort_by_key(|drop| {
            let rate = if self.sort == Sort::Rate { drop.packets_per_second } else { 0 };
            Reverse((rate, drop.packets))
        });
        drops
    }
}
