//! The printed tables.

use std::fmt::Write as _;

/// Rows of cells, printed as a Markdown table with aligned columns.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with this head.
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|c| c.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 {
                    write!(line, "| {cell:<width$} ")?;
                } else {
                    write!(line, "| {cell:>width$} ")?;
                }
            }
            writeln!(f, "{line}|")?;
            if index == 0 {
                let mut line = String::new();
                for (column, width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(*width);
                    if column == 0 { write!(line, "|-{dashes}-")? } else { write!(line, "|-{dashes}:")? }
                }
                writeln!(f, "{line}|")?;
            }
        }
        Ok(())
    }
}
