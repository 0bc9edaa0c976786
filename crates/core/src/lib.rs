//! Decisions as pure functions: no clock, no IO.
