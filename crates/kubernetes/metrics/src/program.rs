//! Metrics of the Concierge and of the gateway: the build, and the leader.

use pinniped_metrics::{Definition, Label};

/// The build.
pub static BUILD_INFO: Definition = Definition::gauge(
    "pinniped_build_info",
    "1, with the version of the program",
)
.by(&[Label::bounded("version", "the version of the program", 1)]);

/// The leader election.
pub static LEADER: Definition =
    Definition::gauge("pinniped_leader", "Whether this pod is the leader, which writes statuses and Secrets");

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&BUILD_INFO, &LEADER];
