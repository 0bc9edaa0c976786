//! macOS: the program that opens a browser.

/// The programs that open an address, in order, and their arguments before it.
pub(crate) const OPENERS: [(&str, &[&str]); 1] = [("open", &[])];

/// Whether a browser requires that a variable names a display.
pub(crate) const NEEDS_DISPLAY: bool = false;
