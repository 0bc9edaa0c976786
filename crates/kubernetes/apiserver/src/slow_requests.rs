//! The slowest requests of the last minutes, for administrators.
//!
//! A request is described by its verb and its resource, and by its audit ID, with which an
//! administrator finds it in the audit log. Names of users, objects and namespaces, paths and
//! queries are not part of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_types::text::truncated;
use tokio::time::Instant;

/// The number of requests that are remembered.
const MAX_REQUESTS: usize = 20;

/// The time for which a request is remembered.
const RETENTION: Duration = Duration::from_secs(600);

/// Requests that are faster are never remembered, so that most requests take no lock.
const THRESHOLD: Duration = Duration::from_millis(100);

/// Maximum length of a resource, which an unauthorized client can invent, in bytes.
const MAX_RESOURCE_LENGTH: usize = 128;

/// Maximum length of an audit ID, which a client can choose, in bytes.
const MAX_AUDIT_ID_LENGTH: usize = 64;

/// A slow request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// The name of the server.
    pub server: &'static str,
    /// The Kubernetes verb, or the method in lower case.
    pub verb: String,
    /// `resource.group/subresource`; empty for a request without a resource.
    pub resource: String,
    /// The time from the head of the request to the head of its response, or to its end without
    /// one.
    pub duration: Duration,
    /// The time since then.
    pub age: Duration,
    /// The audit ID.
    pub audit_id: String,
}

/// Remembers slow requests. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct SlowRequests(Arc<Mutex<Vec<Remembered>>>);

#[derive(Debug)]
struct Remembered {
    ended: Instant,
    request: SlowRequest,
}

impl SlowRequests {
    /// Returns the remembered requests, the slowest first.
    pub fn slowest(&self) -> Vec<SlowRequest> {
        let now = Instant::now();
        let mut slowest: Vec<SlowRequest> = {
            let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            forget(&mut requests, now);
            let aged = |remembered: &Remembered| SlowRequest {
                age: now.saturating_duration_since(remembered.ended),
                ..remembered.request.clone()
            };
            requests.iter().map(aged).collect()
        };
        slowest.sort_by_key(|request| std::cmp::Reverse(request.duration));
        slowest
    }

    /// Returns a guard that records the request when it is dropped.
    pub(crate) fn watch<'a>(
        &'a self,
        server: &'static str,
        attributes: &'a Attributes,
        audit_id: &'a HeaderValue,
        received: Instant,
    ) -> SlowRequestGuard<'a> {
        SlowRequestGuard { requests: self, server, attributes, audit_id, received }
    }

    fn record(&self, request: SlowRequest, ended: Instant) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut requests, ended);
        // One place for requests of the same kind, so that they do not hide others.
        let is_same = |other: &SlowRequest| {
            (other.server, &other.verb, &other.resource) == (request.server, &request.verb, &request.resource)
        };
        if let Some(same) = requests.iter_mut().find(|same| is_same(&same.request)) {
            if same.request.duration <= request.duration {
                *same = Remembered { ended, request };
            }
            return;
        }
        if requests.len() >= MAX_REQUESTS {
            let fastest = (0..requests.len()).min_by_key(|&nth| requests[nth].request.duration);
            match fastest {
                Some(nth) if requests[nth].request.duration < request.duration => requests.swap_remove(nth),
                _ => return,
            };
        }
        requests.push(Remembered { ended, request });
    }
}

fn forget(requests: &mut Vec<Remembered>, now: Instant) {
    requests.retain(|remembered| now.saturating_duration_since(remembered.ended) < RETENTION);
}

/// Records a request when it is dropped, if the request was slow.
pub(crate) struct SlowRequestGuard<'a> {
    requests: &'a SlowRequests,
    server: &'static str,
    attributes: &'a Attributes,
    audit_id: &'a HeaderValue,
    received: Instant,
}

impl Drop for SlowRequestGuard<'_> {
    fn drop(&mut self) {
        let ended = Instant::now();
        let duration = ended.saturating_duration_since(self.received);
        if duration < THRESHOLD {
            return;
        }
        let audit_id = String::from_utf8_lossy(self.audit_id.as_bytes());
        let request = SlowRequest {
            server: self.server,
            verb: truncated(self.attributes.verb(), MAX_RESOURCE_LENGTH),
            resource: truncated(&resource(self.attributes), MAX_RESOURCE_LENGTH),
            duration,
            age: Duration::ZERO,
            audit_id: truncated(&audit_id, MAX_AUDIT_ID_LENGTH),
        };
        self.requests.record(request, ended);
    }
}

fn resource(attributes: &Attributes) -> String {
    let Attributes::Resource(ResourceAttributes { group, resource, subresource, .. }) = attributes else {
        return String::new();
    };
    let separated = |separator: &str, text: &str| match text {
        "" => String::new(),
        text => format!("{separator}{text}"),
    };
    format!("{resource}{}{}", separated(".", group), separated("/", subresource))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records a request of this duration.
    async fn request(requests: &SlowRequests, attributes: &Attributes, duration: u64) {
        let audit_id = HeaderValue::from_str(&format!("audit-{duration}")).unwrap();
        let guard = requests.watch("proxy", attributes, &audit_id, Instant::now());
        tokio::time::advance(Duration::from_millis(duration)).await;
        drop(guard);
    }

    fn scale() -> Attributes {
        Attributes::Resource(ResourceAttributes {
            verb: "get".into(),
            group: "apps".into(),
            resource: "deployments".into(),
            subresource: "scale".into(),
            name: "secret-name".into(),
            namespace: "secret-namespace".into(),
            ..ResourceAttributes::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_request_has_its_verb_resource_duration_and_audit_id() {
        let requests = SlowRequests::default();
        request(&requests, &scale(), 99).await;
        assert_eq!(requests.slowest(), []);
        request(&requests, &scale(), 100).await;
        let path = Attributes::NonResource { verb: "get".into(), path: "/some/path".into() };
        request(&requests, &path, 300).await;
        let slow = |resource: &str, duration, age, audit_id: &str| SlowRequest {
            server: "proxy",
            verb: "get".into(),
            resource: resource.into(),
            duration: Duration::from_millis(duration),
            age: Duration::from_millis(age),
            audit_id: audit_id.into(),
        };
        let expected = [slow("", 300, 0, "audit-300"), slow("deployments.apps/scale", 100, 300, "audit-100")];
        assert_eq!(requests.slowest(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_requests_are_kept_for_ten_minutes() {
        let requests = SlowRequests::default();
        let path = |verb: String| Attributes::NonResource { verb, path: "/".into() };
        for duration in 100..100 + 2 * MAX_REQUESTS as u64 {
            request(&requests, &path(format!("verb-{duration}")), duration).await;
        }
        request(&requests, &scale(), 101).await;
        let slowest = requests.slowest();
        assert_eq!(slowest.len(), MAX_REQUESTS);
        assert!(slowest.iter().all(|request| request.duration.as_millis() >= 120), "{slowest:?}");
        tokio::time::advance(RETENTION).await;
        assert_eq!(requests.slowest(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_one_kind_have_one_place_which_the_slowest_takes() {
        let requests = SlowRequests::default();
        for duration in [200, 300, 150] {
            request(&requests, &scale(), duration).await;
        }
        let slowest = requests.slowest();
        assert_eq!(slowest.iter().map(|request| &*request.audit_id).collect::<Vec<_>>(), ["audit-300"]);
    }

    #[tokio::test(start_paused = true)]
    async fn texts_of_clients_are_truncated() {
        let requests = SlowRequests::default();
        let long = "x".repeat(10_000);
        let attributes = Attributes::Resource(ResourceAttributes {
            verb: long.clone(),
            resource: long.clone(),
            ..ResourceAttributes::default()
        });
        let audit_id = HeaderValue::from_str(&long).unwrap();
        let guard = requests.watch("proxy", &attributes, &audit_id, Instant::now());
        tokio::time::advance(THRESHOLD).await;
        drop(guard);
        let request = requests.slowest().remove(0);
        assert!(request.verb.len() + request.resource.len() + request.audit_id.len() < 400);
    }
}
