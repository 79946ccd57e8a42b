//! Which pages suit a table, and its size there.

use core::fmt;

/// Ordinary hugepage.
pub const PAGE_2M: u64 = 2 << 20;
/// Large hugepage.
pub const PAGE_1G: u64 = 1 << 30;

/// An arena's pages, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// Reserved hugepages of 1 GiB.
    Huge1G,
    /// Reserved hugepages of 2 MiB.
    Huge2M,
    /// Asked from the kernel, which supplies 2 MiB pages while it has any.
    Transparent,
    /// 4 KiB on most machines. Worth a warning for large tables.
    Plain,
}

impl PageKind {
    /// For messages.
    pub const fn name(self) -> &'static str {
        match self {
            PageKind::Huge1G => "1 GiB hugepages",
            PageKind::Huge2M => "2 MiB hugepages",
            PageKind::Transparent => "transparent hugepages",
            PageKind::Plain => "plain pages",
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reserved hugepages that suit so many bytes, best first, each with the rounded size. Empty for
/// small tables.
pub(crate) fn worth(bytes: u64) -> impl Iterator<Item = (PageKind, u64)> {
    let kinds = [(PageKind::Huge1G, PAGE_1G), (PageKind::Huge2M, PAGE_2M)].into_iter();
    kinds.filter_map(move |(kind, page)| {
        let rounded = bytes.checked_next_multiple_of(page)?;
        // May waste an eighth of a large table, or half of a small one that fills most of a 2 MiB
        // page.
        let waste_max = if kind == PageKind::Huge2M && rounded == PAGE_2M { bytes } else { bytes / 8 };
        (rounded - bytes <= waste_max).then_some((kind, rounded))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(bytes: u64) -> Vec<(PageKind, u64)> {
        worth(bytes).collect()
    }

    #[test]
    fn tables_go_where_little_is_wasted() {
        assert_eq!(kinds(100_000), []);
        assert_eq!(kinds(1 << 20), [(PageKind::Huge2M, PAGE_2M)]);
        assert_eq!(kinds(PAGE_2M + 1), [], "nearly half of two pages would be empty");
        assert_eq!(kinds(100 << 20), [(PageKind::Huge2M, 100 << 20)]);
        assert_eq!(kinds(1 << 30), [(PageKind::Huge1G, 1 << 30), (PageKind::Huge2M, 1 << 30)]);
        assert_eq!(kinds((1 << 30) + 1), [(PageKind::Huge2M, (1 << 30) + PAGE_2M)]);
        assert_eq!(kinds(u64::MAX), []);
    }
}
