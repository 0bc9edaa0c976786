//! Decides which requests the leader deletes: those whose login ended without deleting them,
//! because its pod was terminated or the deletion failed.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::request::NAME_PREFIX;

/// Age from which a request belongs to no login any more. Longer than a login waits for its
/// certificate, with a margin for different clocks.
const ORPHAN_AGE: Duration = Duration::from_secs(120);

/// Interval between two lists of all requests.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// A request to delete. It is deleted only if its UID is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Option<String>,
}

/// Returns the orphans among the requests with the labels of this installation. Objects without a
/// name of the expected form are ignored.
pub fn orphans<'a>(requests: impl IntoIterator<Item = &'a ObjectMeta>, now: Timestamp) -> Vec<Orphan> {
    let is_orphan = |meta: &&ObjectMeta| {
        let created = meta.creation_timestamp.as_ref();
        let age = created.and_then(|created| Duration::try_from(now.duration_since(created.0)).ok());
        age.is_some_and(|age| age >= ORPHAN_AGE)
    };
    let orphan = |meta: &ObjectMeta| {
        let name = meta.name.clone().filter(|name| name.starts_with(NAME_PREFIX))?;
        Some(Orphan { name, uid: meta.uid.clone() })
    };
    requests.into_iter().filter(is_orphan).filter_map(orphan).collect()
}

/// Decides when the leader lists the requests: not before the strategy was in use, and after it was
/// in use until there are no requests left.
#[derive(Debug, Default)]
pub struct Schedule {
    /// Whether there may be requests.
    expects_requests: bool,
    swept: Option<Instant>,
}

impl Schedule {
    /// Records that the strategy is, or was, in use.
    pub fn used(&mut self) {
        self.expects_requests = true;
    }

    /// Returns the time until the next list; `None` if none is needed.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        self.expects_requests.then(|| {
            let age = self.swept.map(|swept| now.saturating_duration_since(swept));
            age.map_or(Duration::ZERO, |age| SWEEP_INTERVAL.saturating_sub(age))
        })
    }

    /// Records a list, which is repeated later if it failed (`found` is `None`).
    pub fn swept(&mut self, found: Option<usize>, now: Instant) {
        self.swept = Some(now);
        if found == Some(0) {
            self.expects_requests = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn only_old_requests_of_logins_are_orphans() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let meta = |name: &str, age: Option<i64>| ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(format!("uid of {name}")),
            creation_timestamp: age.map(|age| Time(Timestamp::from_second(now.as_second() - age).unwrap())),
            ..ObjectMeta::default()
        };
        let requests = [
            meta("pinniped-login-old", Some(120)),
            meta("pinniped-login-young", Some(119)),
            meta("pinniped-login-of-a-fast-clock", Some(-60)),
            meta("pinniped-login-without-time", None),
            meta("another", Some(9_999)),
        ];
        let found = orphans(&requests, now);
        let uid = Some("uid of pinniped-login-old".to_owned());
        assert_eq!(found, [Orphan { name: "pinniped-login-old".to_owned(), uid }]);
    }

    #[test]
    fn requests_are_listed_every_minute_until_none_is_left_after_the_strategy_was_in_use() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = |schedule: &Schedule, seconds| schedule.due_in(at(seconds)).map(|due| due.as_secs());
        assert_eq!(due(&schedule, 0), None);
        schedule.used();
        assert_eq!(due(&schedule, 0), Some(0));
        schedule.swept(None, at(0));
        assert_eq!(due(&schedule, 10), Some(50));
        schedule.swept(Some(2), at(60));
        assert_eq!(due(&schedule, 120), Some(0));
        schedule.swept(Some(0), at(120));
        assert_eq!(due(&schedule, 500), None);
        // The strategy is still in use.
        schedule.used();
        assert_eq!(due(&schedule, 130), Some(50));
    }
}
