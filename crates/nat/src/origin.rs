//! Where rules and filters stand in the configuration, so that people find the one that decided.

/// Where one stands; small, as there may be a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The table of its kind with this index, from 0.
    Table(u32),
    /// The file with this index, and the line, from 1.
    Line(u16, u32),
}

/// Where they stand, by their position in the lists of [`Settings`](crate::Settings). What they do does not depend on it: all of these
/// are equal, so that a file which is only laid out anew changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Files of rules, then of filters, as the configuration names them.
    pub files: Vec<String>,
    /// Of rules.
    pub rules: Vec<Origin>,
    /// Of rules about other protocols, which stand among the others.
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
    /// The place of the one at `position` of a list of these, as people write it: `3` for the fourth table, `web.csv:17` for a line of
    /// a file. Where nothing is known of it, the position.
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
