//! Where rules and filters are in the configuration.

/// Small, because there may be a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The table of its kind with this index, from 0.
    Table(u32),
    /// The file with this index, and the line, from 1.
    Line(u16, u32),
}

/// Places by position in [`Settings`](crate::Settings). All values compare equal, so that
/// reformatting a file changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Files of rules, then of filters, as named in the configuration.
    pub files: Vec<String>,
    /// Of rules.
    pub rules: Vec<Origin>,
    /// Of rules for other protocols.
    pub pass_rules: Vec<Origin>,
    /// Of filters.
    pub filters: Vec<Origin>,
}

impl PartialEq for Origins {
    fn eq(&self, _: &Origins) -> bool {
        true
    }
}

impl Eq for Origins {}

impl Origins {
    /// For display: `3` for the fourth table, `web.csv:17` for a line.
    pub fn place(&self, of: &[Origin], position: usize) -> String {
        match of.get(position) {
            Some(Origin::Table(index)) => index.to_string(),
            Some(Origin::Line(file, line)) => {
                format!("{}:{line}", self.files.get(usize::from(*file)).map_or("", String::as_str))
            }
            None => position.to_string(),
        }
    }
}
