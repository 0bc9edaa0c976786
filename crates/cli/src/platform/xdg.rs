//! Linux and BSD: the programs that open a browser.

/// The programs that open an address, in order, and their arguments before it.
pub(crate) const OPENERS: [(&str, &[&str]); 3] =
    [("xdg-open", &[]), ("x-www-browser", &[]), ("www-browser", &[])];

/// Whether a browser requires that a variable names a display.
pub(crate) const NEEDS_DISPLAY: bool = true;
