//! PEM as Go reads it.
