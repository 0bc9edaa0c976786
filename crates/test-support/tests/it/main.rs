//! The support crate proves itself: the control plane works, and nothing is left behind.

mod control_plane;
mod guardian;
mod world;
