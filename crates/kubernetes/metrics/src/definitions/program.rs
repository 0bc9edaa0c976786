//! Metrics of every server program.

use super::{BOTH, Definition, bounded, gauge};

/// The build.
pub static BUILD_INFO: Definition = gauge("pinniped_build_info", "1, with the version of the program", BOTH)
    .by(&[bounded("version", "the version of the program", 1)]);

/// The leader election.
pub static LEADER: Definition =
    gauge("pinniped_leader", "Whether this pod is the leader, which writes statuses and Secrets", BOTH);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&BUILD_INFO, &LEADER];
