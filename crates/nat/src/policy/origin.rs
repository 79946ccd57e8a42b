//! Where rules and filters are in the configuration.

/// Small, because there may be a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Index among the tables of its kind.
    Table(u32),
    /// Index of the file, and the line, from 1.
    Line(u16, u32),
}

/// Origins by position in [`Settings`](crate::Settings). All compare equal, so that reformatting a
/// file changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Files of rules, then of filters, as configured.
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
    /// `3` for the fourth table, `web.csv:17` for a line.
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
