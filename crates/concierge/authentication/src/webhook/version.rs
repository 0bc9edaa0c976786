//! The API version of TokenReview that a webhook speaks.
//!
//! A webhook of Pinniped speaks `authentication.k8s.io/v1beta1`, because upstream sends nothing
//! else. A webhook that was written for the API server may speak only `authentication.k8s.io/v1`.
//! The two versions have the same members.
//!
//! The first request to a webhook is always v1beta1. The review is repeated as v1 only if the
//! webhook refuses v1beta1, or responds with a review of version v1, so a webhook that speaks
//! v1beta1 receives the same requests as from upstream. The version that worked is used from then
//! on. If the webhook refuses that one later, the other one is tried at most once each
//! [`RETRY_INTERVAL`], because a webhook may also refuse a request for its token.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time between two attempts with the other version, once a version has worked.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// A version of the API group `authentication.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1Beta1,
    V1,
}

impl ReviewVersion {
    /// Returns the value of `apiVersion`.
    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "authentication.k8s.io/v1beta1",
            Self::V1 => "authentication.k8s.io/v1",
        }
    }

    /// Returns the version without its group.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1 => "v1",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::V1Beta1 => Self::V1,
            Self::V1 => Self::V1Beta1,
        }
    }
}

/// Returns whether a response with this status code may mean that the webhook does not speak the
/// version of the request: bad request, unsupported media type, or unprocessable entity.
pub(super) fn may_refuse_version(code: u16) -> bool {
    matches!(code, 400 | 415 | 422)
}

/// The version that works with a webhook, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct VersionMemory(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The version of the last review that the webhook accepted.
    accepted: Option<ReviewVersion>,
    /// The time of the last attempt with the other version.
    last_retry: Option<Instant>,
}

impl VersionMemory {
    /// Returns the version of the next request.
    pub(super) fn first(&self) -> ReviewVersion {
        self.lock().accepted.unwrap_or(ReviewVersion::V1Beta1)
    }

    /// Records that the webhook accepted a review, and returns whether the version of the next
    /// request changes.
    pub(super) fn accepted(&self, version: ReviewVersion) -> bool {
        let mut known = self.lock();
        let before = known.accepted.replace(version).unwrap_or(ReviewVersion::V1Beta1);
        if before == version {
            return false;
        }
        known.last_retry = None;
        true
    }

    /// Returns whether a review that the webhook refused is repeated in the other version.
    pub(super) fn may_try_other(&self, now: Instant) -> bool {
        let mut known = self.lock();
        // Until a version has worked, each login needs both attempts: its token may be the first
        // valid one.
        if known.accepted.is_none() {
            return true;
        }
        let is_due = known.last_retry.is_none_or(|last| now.duration_since(last) >= RETRY_INTERVAL);
        if is_due {
            known.last_retry = Some(now);
        }
        is_due
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_worked_is_used_and_the_other_one_is_tried_once_a_minute() {
        let memory = VersionMemory::default();
        let now = Instant::now();
        assert_eq!(memory.first(), ReviewVersion::V1Beta1);
        assert!(memory.may_try_other(now) && memory.may_try_other(now));

        assert!(!memory.accepted(ReviewVersion::V1Beta1));
        assert!(memory.may_try_other(now));
        assert!(!memory.may_try_other(now + RETRY_INTERVAL - Duration::from_secs(1)));
        assert!(memory.may_try_other(now + RETRY_INTERVAL));

        assert!(memory.accepted(ReviewVersion::V1));
        assert!(!memory.accepted(ReviewVersion::V1));
        assert_eq!(memory.first(), ReviewVersion::V1);
        assert!(memory.may_try_other(now + RETRY_INTERVAL));
    }
}
