//! Mistakes in a body that do not invalidate it, and the positions at which they occur.

use std::fmt;

use pinniped_go_compat::json::quote;

/// Maximum number of reported mistakes; sigs.k8s.io/json has the same limit.
pub(super) const MAX_WARNINGS: usize = 100;

/// Maximum number of reported characters of a field's path. A client could exhaust memory with
/// longer names.
pub(super) const LONGEST_PATH: usize = 256;

/// Unknown and duplicate fields in the order of the document, without duplicates.
#[derive(Debug, Default)]
pub(super) struct Warnings(Vec<String>);

impl Warnings {
    pub(super) fn note(&mut self, what: &str, path: &Path<'_>) {
        if self.0.len() >= MAX_WARNINGS {
            return;
        }
        let mut truncated = Clipped(String::new());
        // An error only means that the limit is reached.
        let _full = fmt::write(&mut truncated, format_args!("{path}"));
        let text = format!("{what} field {}", quote(&truncated.0));
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    pub(super) fn into_texts(self) -> Vec<String> {
        self.0
    }
}

/// A writer that accepts at most [`LONGEST_PATH`] characters.
struct Clipped(String);

impl fmt::Write for Clipped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST_PATH - self.0.chars().count();
        match text.char_indices().nth(room) {
            None => self.0.push_str(text),
            Some((end, _)) => {
                self.0.push_str(&text[..end]);
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// The current position in the document. It is formatted only when it is reported: if it were
/// formatted for each value, the paths below a member with a long name would be many times as large
/// as the document.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    /// A member of an object with a model.
    Field(&'a Path<'a>, &'a str),
    /// A member of a map.
    Key(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// Returns the path as Go's errors about types contain it: without keys of maps and positions
    /// in lists.
    pub(super) fn fields(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Field(Path::Root, name) => (*name).to_owned(),
            Self::Field(parent, name) => format!("{}.{name}", parent.fields()),
            Self::Key(parent, _) | Self::Item(parent, _) => parent.fields(),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) | Self::Key(Path::Root, name) => write_name(f, name),
            Self::Field(parent, name) | Self::Key(parent, name) => {
                write!(f, "{parent}.")?;
                write_name(f, name)
            }
            Self::Item(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    f.write_str(name)?;
    #[cfg(test)]
    super::tests::FORMATTED_BYTES.with(|bytes| bytes.set(bytes.get() + name.len()));
    Ok(())
}
