//! Serial numbers.
