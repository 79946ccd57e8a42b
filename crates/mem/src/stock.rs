//! Decides whether all tables together fit this machine, before the first is made.
//!
//! Reserved hugepages are not part of the available memory, and tables that do not suit them cannot
//! have them. So a sum is not enough: [`Stock::plan`] places each table where [`crate::Arena`]
//! will.

use core::fmt;
use std::fs;

use crate::available;
use crate::pages::PAGE_1G;
use crate::pages::PAGE_2M;
use crate::pages::PageKind;
use crate::pages::worth;

/// A future use of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// An arena: on reserved hugepages if it suits them and enough are free, else on ordinary
    /// pages.
    Table(u64),
    /// Always on ordinary pages.
    Heap(u64),
    /// Packet buffers: on reserved hugepages of any size if all fit there, else on ordinary pages.
    Packets(u64),
}

impl Need {
    /// Bytes requested.
    pub const fn bytes(self) -> u64 {
        match self {
            Need::Table(bytes) | Need::Heap(bytes) | Need::Packets(bytes) => bytes,
        }
    }
}

/// Reserved hugepages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hugepages {
    /// None if the machine does not have this size.
    pub reserved: Option<u64>,
    /// Neither used nor promised.
    pub free: u64,
}

/// Available memory by kind of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// Bytes on ordinary pages.
    pub ordinary_bytes: u64,
    /// Pages of 2 MiB.
    pub huge_2m: Hugepages,
    /// Pages of 1 GiB.
    pub huge_1g: Hugepages,
    /// Bytes that this process may have on all pages together.
    pub process_bytes: u64,
}

impl Stock {
    /// Ordinary pages only.
    pub const fn ordinary(bytes: u64) -> Stock {
        let none = Hugepages { reserved: None, free: 0 };
        Stock { ordinary_bytes: bytes, huge_2m: none, huge_1g: none, process_bytes: u64::MAX }
    }

    /// What this machine, the control groups and the process's limits leave; an unknown limit
    /// counts as none.
    pub fn of_this_machine() -> Stock {
        Stock {
            ordinary_bytes: available::bytes().unwrap_or(u64::MAX),
            huge_2m: hugepages(2048, "2MB", PAGE_2M),
            huge_1g: hugepages(1_048_576, "1GB", PAGE_1G),
            process_bytes: available::address_space_bytes().unwrap_or(u64::MAX),
        }
    }

    /// Bytes of the free hugepages of all sizes.
    pub const fn hugepage_bytes(&self) -> u64 {
        self.huge_2m.free.saturating_mul(PAGE_2M).saturating_add(self.huge_1g.free.saturating_mul(PAGE_1G))
    }

    /// Places all needs without taking anything.
    ///
    /// # Errors
    /// Memory is short; hugepages that suit no need do not count.
    pub fn plan(&self, needs: impl IntoIterator<Item = Need>) -> Result<Plan, NotEnough> {
        let mut left = *self;
        let mut plan = Plan { stock: *self, needed_bytes: 0, missed_bytes: 0, pages_2m: 0, with_1g: (0, 0) };
        let mut placed_bytes = 0_u64;
        let mut all_fit = true;
        for need in needs {
            let bytes = need.bytes();
            plan.needed_bytes = plan.needed_bytes.saturating_add(bytes);
            plan.want_hugepages(need);
            match left.place(need) {
                Some(on) => {
                    placed_bytes = placed_bytes.saturating_add(bytes);
                    match on {
                        // On larger pages it needs none of 2 MiB.
                        PageKind::Huge1G => plan.unwant_2m(need),
                        PageKind::Huge2M => {}
                        PageKind::Transparent | PageKind::Plain if plan.suits_hugepages(need) => {
                            plan.missed_bytes = plan.missed_bytes.saturating_add(bytes);
                        }
                        PageKind::Transparent | PageKind::Plain => {}
                    }
                }
                None => all_fit = false,
            }
        }
        let available_bytes = placed_bytes.saturating_add(left.ordinary_bytes).min(self.process_bytes);
        if all_fit && plan.needed_bytes <= self.process_bytes {
            return Ok(plan);
        }
        Err(NotEnough { needed_bytes: plan.needed_bytes, available_bytes, stock: *self })
    }

    /// Takes the pages for the need and returns their kind.
    fn place(&mut self, need: Need) -> Option<PageKind> {
        match need {
            Need::Table(bytes) => {
                for (kind, rounded) in worth(bytes) {
                    let (free, page) = match kind {
                        PageKind::Huge1G => (&mut self.huge_1g.free, PAGE_1G),
                        _ => (&mut self.huge_2m.free, PAGE_2M),
                    };
                    if let Some(rest) = free.checked_sub(rounded / page) {
                        *free = rest;
                        return Some(kind);
                    }
                }
            }
            Need::Packets(bytes) => {
                // Whole large pages, then small ones, else one large page for the remainder.
                let large = (bytes / PAGE_1G).min(self.huge_1g.free);
                let small = (bytes - large * PAGE_1G).div_ceil(PAGE_2M);
                if small <= self.huge_2m.free {
                    self.huge_1g.free -= large;
                    self.huge_2m.free -= small;
                    return Some(if small == 0 { PageKind::Huge1G } else { PageKind::Huge2M });
                }
                if bytes.div_ceil(PAGE_1G) <= self.huge_1g.free {
                    self.huge_1g.free -= bytes.div_ceil(PAGE_1G);
                    return Some(PageKind::Huge1G);
                }
            }
            Need::Heap(_) => {}
        }
        self.ordinary_bytes = self.ordinary_bytes.checked_sub(need.bytes())?;
        Some(PageKind::Plain)
    }
}

/// All needs fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stock before anything was taken.
    stock: Stock,
    /// Total bytes.
    pub needed_bytes: u64,
    /// Bytes that suit hugepages but get none.
    pub missed_bytes: u64,
    /// Pages of 2 MiB for everything that is not on pages of 1 GiB.
    pages_2m: u64,
    /// Pages of 1 GiB and of 2 MiB for everything.
    with_1g: (u64, u64),
}

impl Plan {
    fn suits_hugepages(&self, need: Need) -> bool {
        match need {
            Need::Table(bytes) => worth(bytes).next().is_some(),
            Need::Heap(_) => false,
            Need::Packets(bytes) => bytes > 0,
        }
    }

    fn pages_2m_of(need: Need) -> u64 {
        match need {
            // Whatever suits 1 GiB suits 2 MiB, too.
            Need::Table(bytes) => worth(bytes).last().map_or(0, |(_, rounded)| rounded / PAGE_2M),
            Need::Heap(_) => 0,
            Need::Packets(bytes) => bytes.div_ceil(PAGE_2M),
        }
    }

    fn want_hugepages(&mut self, need: Need) {
        self.pages_2m = self.pages_2m.saturating_add(Plan::pages_2m_of(need));
        match need {
            Need::Table(bytes) => match worth(bytes).next() {
                Some((PageKind::Huge1G, rounded)) => self.with_1g.0 = self.with_1g.0.saturating_add(rounded / PAGE_1G),
                _ => self.with_1g.1 = self.with_1g.1.saturating_add(Plan::pages_2m_of(need)),
            },
            Need::Heap(_) => {}
            Need::Packets(bytes) => {
                self.with_1g.0 = self.with_1g.0.saturating_add(bytes / PAGE_1G);
                self.with_1g.1 = self.with_1g.1.saturating_add((bytes % PAGE_1G).div_ceil(PAGE_2M));
            }
        }
    }

    fn unwant_2m(&mut self, need: Need) {
        self.pages_2m = self.pages_2m.saturating_sub(Plan::pages_2m_of(need));
    }

    /// The one warning of a start without enough hugepages.
    ///
    /// Call it when everything is taken: `missed_bytes` is what really is on ordinary pages.
    pub fn warning(&self, missed_bytes: u64) -> Option<String> {
        if missed_bytes == 0 {
            return None;
        }
        let Stock { huge_2m, huge_1g, .. } = &self.stock;
        let reserve = |pages: u64, stock: &Hugepages, kib: u32| {
            // Pages of other processes remain theirs.
            let total = stock.reserved.unwrap_or(0).saturating_sub(stock.free).saturating_add(pages);
            format!("echo {total} > {}/nr_hugepages", directory(kib))
        };
        let mut remedy = reserve(self.pages_2m, huge_2m, 2048);
        if huge_1g.reserved.is_some() && self.with_1g.0 > 0 {
            let large = reserve(self.with_1g.0, huge_1g, 1_048_576);
            let small = reserve(self.with_1g.1, huge_2m, 2048);
            remedy = format!("{remedy}; or with pages of 1 GiB, faster still: {large} && {small}");
        }
        Some(format!(
            "hugepages: {} of tables and buffers use ordinary pages, which costs speed: {} of the {} hugepages needed \
             were free. {}. Before the next start: {remedy}",
            mib_text(missed_bytes),
            huge_2m.free,
            self.pages_2m,
            transparent_text(missed_bytes),
        ))
    }
}

fn transparent_text(missed_bytes: u64) -> String {
    match available::transparent_bytes() {
        Some(0) => "None of them became transparent hugepages".to_owned(),
        Some(bytes) => format!("{} of them became transparent hugepages", mib_text(bytes.min(missed_bytes))),
        None => "The kernel does not report how many became transparent hugepages".to_owned(),
    }
}

fn mib_text(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Memory is short for all tables together. Nothing has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotEnough {
    /// Total bytes needed.
    pub needed_bytes: u64,
    /// Bytes available for them.
    pub available_bytes: u64,
    /// The available memory in detail.
    pub stock: Stock,
}

impl NotEnough {
    /// Bytes by kind of page, for messages.
    pub fn available_text(&self) -> String {
        let Stock { ordinary_bytes, huge_2m, huge_1g, process_bytes } = &self.stock;
        let process = match *process_bytes {
            u64::MAX => String::new(),
            bytes => format!(", this process may have {bytes} in all"),
        };
        format!(
            "{} bytes available: {ordinary_bytes} on ordinary pages, hugepages free {} of 2 MiB and {} of 1 GiB{process}",
            self.available_bytes, huge_2m.free, huge_1g.free
        )
    }
}

impl fmt::Display for NotEnough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are needed in all ({})", self.needed_bytes, self.available_text())
    }
}

fn directory(kib: u32) -> String {
    format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB")
}

/// Hugepages of this many KiB that the control groups let this process have.
fn hugepages(kib: u32, group_name: &str, page_bytes: u64) -> Hugepages {
    let number = |name: &str| fs::read_to_string(format!("{}/{name}", directory(kib))).ok()?.trim().parse::<u64>().ok();
    let Some(reserved) = number("nr_hugepages") else { return Hugepages::default() };
    let free = number("free_hugepages").unwrap_or(0).saturating_sub(number("resv_hugepages").unwrap_or(0));
    let group = available::group_hugepage_bytes(group_name).map_or(u64::MAX, |bytes| bytes / page_bytes);
    Hugepages { reserved: Some(reserved), free: free.min(group) }
}

#[cfg(test)]
mod tests;
