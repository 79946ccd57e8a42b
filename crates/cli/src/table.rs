//! Aligned tables.

use std::borrow::Cow;
use std::io;
use std::io::Write;

use control::escaped;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table that can be printed in parts. Columns are as wide as the widest cell so far, and the
/// heading is printed once.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
    heading_printed: bool,
}

impl Table {
    /// Makes a table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let widths = columns.iter().map(|(name, _)| width_of(name)).collect();
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Table { columns, widths, rows: Vec::new(), heading_printed: false }
    }

    /// Adds a row, one cell for each column. What is no plain text in a cell is escaped.
    pub fn row(&mut self, mut cells: Vec<String>) {
        for cell in &mut cells {
            if let Cow::Owned(escaped) = escaped(cell) {
                *cell = escaped;
            }
        }
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(width_of(cell));
        }
        self.rows.push(cells);
    }

    /// Prints the rows that were added since the last flush.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn flush(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.heading_printed {
            self.heading_printed = true;
            let names = self.columns.clone();
            self.line(&names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), out)?;
        }
        for row in std::mem::take(&mut self.rows) {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.line(&cells, out)?;
        }
        Ok(())
    }

    fn line(&self, cells: &[&str], out: &mut dyn Write) -> io::Result<()> {
        let mut line = String::new();
        for (position, ((cell, width), (_, align))) in cells.iter().zip(&self.widths).zip(&self.columns).enumerate() {
            if position > 0 {
                line.push_str("  ");
            }
            let padding = " ".repeat(width.saturating_sub(width_of(cell)));
            match align {
                Align::Left => line.extend([cell, padding.as_str()]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// Prints a whole table. Columns of figures only are aligned right.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_table(columns: &[String], rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    let is_figure = |cell: &String| cell.is_empty() || cell.starts_with(|letter: char| letter.is_ascii_digit());
    let align = |column: usize| {
        let right = column > 0 && rows.iter().filter_map(|row| row.get(column)).all(is_figure);
        if right { Align::Right } else { Align::Left }
    };
    let columns: Vec<(&str, Align)> =
        columns.iter().enumerate().map(|(column, name)| (name.as_str(), align(column))).collect();
    let mut table = Table::new(&columns);
    for row in rows {
        table.row(row.clone());
    }
    table.flush(out)
}

/// Writes a line of its own, which has names and texts of others: see [`escaped`].
pub(crate) fn write_plain(out: &mut dyn Write, line: &str) -> io::Result<()> {
    writeln!(out, "{}", escaped(line))
}

/// Width of a text. Names in the configuration are plain; a wide character would only misalign its
/// row.
fn width_of(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_align_right_and_words_left_without_trailing_spaces() {
        let mut table = Table::new(&[("NAME", Align::Left), ("COUNT", Align::Right), ("", Align::Left)]);
        table.row(vec!["a".to_owned(), "1,000,000".to_owned(), "x".to_owned()]);
        let mut out = Vec::new();
        table.flush(&mut out).unwrap();
        table.row(vec!["longer".to_owned(), "2".to_owned(), String::new()]);
        table.flush(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "NAME      COUNT\na     1,000,000  x\nlonger          2\n");
    }

    #[test]
    fn no_cell_forges_a_row_or_reaches_the_terminal() {
        let mut table = Table::new(&[("WHO", Align::Left), ("CASE", Align::Left)]);
        table.row(vec!["root".to_owned(), "1\n2026  nobody\t\u{1b}[2J\u{9b}1m\u{7f}\r".to_owned()]);
        table.row(vec!["müller".to_owned(), "a\u{202e}b\u{2066}c\u{200f}d\u{2028}".to_owned()]);
        table.row(vec!["DOM\\user".to_owned(), "C:\\n\n".to_owned()]);
        let mut out = Vec::new();
        table.flush(&mut out).unwrap();
        let expected = concat!(
            "WHO       CASE\n",
            "root      1\\n2026  nobody\\t\\u{1b}[2J\\u{9b}1m\\u{7f}\\r\n",
            "müller    a\\u{202e}b\\u{2066}c\\u{200f}d\\u{2028}\n",
            "DOM\\user  C:\\\\n\\n\n",
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
