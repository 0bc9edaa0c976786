//! The text of an expression and positions in it.

/// The text of an expression, as code points with the offsets of its lines.
pub(crate) struct Source {
    pub(crate) text: Vec<char>,
    /// The offset of the first code point of each line.
    lines: Vec<u32>,
}

/// A position: the line counts from 1, the column from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Location {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Location {
    /// The position of errors that belong to the whole expression.
    pub(crate) const NONE: Self = Self { line: 0, column: u32::MAX };
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().collect();
        let mut lines = vec![0];
        let breaks = text.iter().enumerate().filter(|(_, c)| **c == '\n');
        lines.extend(breaks.map(|(index, _)| offset(index + 1)));
        Self { text, lines }
    }

    pub(crate) fn location(&self, offset: u32) -> Location {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        Location { line: u32::try_from(line).unwrap_or(u32::MAX), column: offset - self.lines[line - 1] }
    }

    /// Returns a line without its line break.
    pub(crate) fn line(&self, number: u32) -> Option<&[char]> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let start = *self.lines.get(index)? as usize;
        let end = match self.lines.get(index + 1) {
            Some(next) => *next as usize - 1,
            None => self.text.len(),
        };
        Some(&self.text[start..end])
    }

    pub(crate) fn text(&self, start: u32, end: u32) -> String {
        let end = (end as usize).min(self.text.len());
        self.text[(start as usize).min(end)..end].iter().collect()
    }
}

/// Converts an index into an offset. Sources are far smaller than 4 GiB.
pub(crate) fn offset(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
