//! The state of the dashboard and the effect of keys.

use std::collections::VecDeque;

use control::DropReason;
use control::Interface;

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

/// Rates of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) packets: f64,
    pub(crate) bits: f64,
    pub(crate) drops: f64,
    pub(crate) mappings_created: f64,
    pub(crate) sessions_created: f64,
}

/// Rates of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct InterfaceRates {
    pub(crate) rx_packets: f64,
    pub(crate) rx_bits: f64,
    pub(crate) tx_packets: f64,
    pub(crate) tx_bits: f64,
}

/// A drop reason and its rate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DropRate<'a> {
    pub(crate) drop: &'a DropReason,
    pub(crate) per_second: f64,
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
    previous: Option<Sample>,
    pub(crate) rates: Rates,
    /// Forwarded packets per second, newest first.
    pub(crate) packets_history: VecDeque<u64>,
    /// Forwarded bits per second, newest first.
    pub(crate) bits_history: VecDeque<u64>,
}

fn remember(history: &mut VecDeque<u64>, value: f64) {
    history.push_front(value as u64);
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
            previous: None,
            rates: Rates::default(),
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

    fn take_sample(&mut self, sample: Sample) {
        // A restarted daemon counts from zero, so there is no previous sample.
        let same_run = |before: &Sample| {
            before.status.pid == sample.status.pid && before.status.uptime_us < sample.status.uptime_us
        };
        self.previous = self.current.take().filter(same_run);
        self.current = Some(sample);
        self.rates = Rates {
            packets: self.rate_of(|sample| sample.status.packets_forwarded),
            bits: self.rate_of(|sample| sample.status.bytes_forwarded) * 8.0,
            drops: self.rate_of(|sample| sample.status.packets_dropped),
            mappings_created: self.rate_of(|sample| sample.status.mappings_created),
            sessions_created: self.rate_of(|sample| sample.status.sessions_created),
        };
        if self.previous.is_some() {
            remember(&mut self.packets_history, self.rates.packets);
            remember(&mut self.bits_history, self.rates.bits);
        }
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

    /// Growth of a total per second of the daemon's clock, so that a late answer makes no peak.
    fn rate_of(&self, total: impl Fn(&Sample) -> u64) -> f64 {
        let (Some(current), Some(previous)) = (&self.current, &self.previous) else { return 0.0 };
        let micros = current.status.uptime_us.saturating_sub(previous.status.uptime_us);
        let growth = total(current).saturating_sub(total(previous));
        if micros == 0 { 0.0 } else { growth as f64 * 1e6 / micros as f64 }
    }

    /// Packets one worker received per second.
    pub(crate) fn worker_rate(&self, worker: u8) -> f64 {
        self.rate_of(|sample| {
            let found = sample.status.workers.iter().find(|candidate| candidate.worker == worker);
            found.map_or(0, |worker| worker.packets_received)
        })
    }

    /// Rates of one interface.
    pub(crate) fn interface_rates(&self, name: &str) -> InterfaceRates {
        let of = |total: fn(&Interface) -> u64| {
            self.rate_of(|sample| sample.interfaces.iter().find(|interface| interface.name == name).map_or(0, total))
        };
        InterfaceRates {
            rx_packets: of(|interface| interface.rx_packets),
            rx_bits: of(|interface| interface.rx_bytes) * 8.0,
            tx_packets: of(|interface| interface.tx_packets),
            tx_bits: of(|interface| interface.tx_bytes) * 8.0,
        }
    }

    /// Reasons that occurred, in the chosen order.
    pub(crate) fn drops(&self) -> Vec<DropRate<'_>> {
        let Some(current) = &self.current else { return Vec::new() };
        let rate = |reason: &str| {
            self.rate_of(|sample| sample.drops.iter().find(|drop| drop.reason == reason).map_or(0, |drop| drop.packets))
        };
        let mut drops: Vec<DropRate<'_>> = current
            .drops
            .iter()
            .filter(|drop| drop.packets > 0)
            .map(|drop| DropRate { drop, per_second: rate(&drop.reason) })
            .collect();
        drops.sort_by(|a, b| {
            let by_total = b.drop.packets.cmp(&a.drop.packets);
            match self.sort {
                Sort::Total => by_total,
                Sort::Rate => b.per_second.total_cmp(&a.per_second).then(by_total),
            }
        });
        drops
    }
}
