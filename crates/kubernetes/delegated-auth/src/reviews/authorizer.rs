//! SubjectAccessReview by the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::digest as sha;
use bytes::Bytes;
use pinniped_fair_semaphore::{FairSemaphore, Waiting};
use pinniped_kube_metrics::{permits, reviews as definitions};
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::{KnownUser, MASTERS, User};
use pinniped_metrics::Metrics;
use pinniped_traces::{Span, SpanKind};
use serde::{Deserialize, Serialize};

use super::metrics::{ReviewDefinitions, ReviewMetrics};
use super::review_cache::{CacheAs, ReviewCache};
use super::{ReviewError, Reviews};
use crate::client_key::ClientKey;
use crate::digest::Digest;

const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const RESOURCE: &str = "post subjectaccessreviews.authorization.k8s.io";

/// The metrics. The results have the order of [`definitions::ACCESS_RESULTS`].
static METRICS: ReviewDefinitions = ReviewDefinitions {
    results: &definitions::ACCESS,
    duration: &definitions::ACCESS_DURATION,
    cache_requests: &definitions::ACCESS_CACHE_REQUESTS,
    cache_entries: &definitions::ACCESS_CACHE_ENTRIES,
    cache_entries_limit: &definitions::ACCESS_CACHE_ENTRIES_LIMIT,
    cache_evictions: &definitions::ACCESS_CACHE_EVICTIONS,
    overloaded: definitions::ACCESS_RESULTS.len() - 2,
};

/// Maximum number of reviews in flight, and of reviews that wait.
const IN_FLIGHT: usize = 200;
const WAITING: usize = 1200;

/// Reviews with this many bytes chosen by the client are not cached, so that a client cannot fill
/// the memory with them.
const MAX_CACHED_SIZE: usize = 10_000;

/// Paths that every user may read.
const HEALTH_PATHS: [&str; 3] = ["/healthz", "/readyz", "/livez"];

/// The decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed.
    Allow,
    /// Denied; no other authorizer may allow it.
    Deny {
        /// The reason of the authorizer; may be empty.
        reason: String,
    },
    /// Not allowed by any authorizer.
    NoOpinion {
        /// The reason of the authorizer; may be empty.
        reason: String,
    },
}

/// The cached form of a [`Decision`], which is cheaper to clone.
#[derive(Clone)]
enum CachedDecision {
    Allow,
    Deny(Arc<str>),
    NoOpinion(Arc<str>),
}

impl From<CachedDecision> for Decision {
    fn from(decision: CachedDecision) -> Self {
        match decision {
            CachedDecision::Allow => Self::Allow,
            CachedDecision::Deny(reason) => Self::Deny { reason: reason.to_string() },
            CachedDecision::NoOpinion(reason) => Self::NoOpinion { reason: reason.to_string() },
        }
    }
}

/// Requests the decisions of the API server on whether a user may do something. Clones are cheap
/// and share the cache.
#[derive(Clone)]
pub struct Authorizer(Arc<Inner>);

struct Inner {
    reviews: Reviews,
    metrics: ReviewMetrics,
    results: ReviewCache<CachedDecision>,
    permits: FairSemaphore,
}

impl Authorizer {
    /// Creates an authorizer that sends reviews with this client, under the client's own identity.
    pub fn new(client: kube::Client) -> Self {
        Self::with(Reviews::new(client))
    }

    /// Registers the metrics of the reviews, of their permits and of their cache.
    pub fn register_metrics(&self, metrics: &Metrics) {
        permits::register(metrics, permits::ACCESS_REVIEWS, &self.0.permits);
        let this = self.clone();
        self.0.metrics.register(metrics, move || this.0.results.usage());
    }

    pub(super) fn with(reviews: Reviews) -> Self {
        let permits = FairSemaphore::new(IN_FLIGHT, WAITING);
        let metrics = ReviewMetrics::new(&METRICS);
        Self(Arc::new(Inner { reviews, metrics, results: ReviewCache::new(), permits }))
    }

    /// Decides whether this user is allowed to make a request with these attributes. A review is
    /// charged to `client`, which differs from the user when the client impersonates.
    ///
    /// An empty verb is denied with the reason `invalid verb`. Members of `system:masters` and the
    /// exact health paths are allowed. The API server decides everything else. Callers that add the
    /// name of the authorizer to reasons do so themselves.
    ///
    /// # Errors
    ///
    /// [`ReviewError`] when the review fails. This result is not cached and must not be treated as
    /// allowed.
    pub async fn authorize<'a>(
        &self,
        client: impl Into<ClientKey<'a>>,
        user: &KnownUser,
        attributes: &Attributes,
    ) -> Result<Decision, ReviewError> {
        if attributes.verb().is_empty() {
            return Ok(Decision::Deny { reason: "invalid verb".to_owned() });
        }
        if user.is_in(MASTERS) {
            return Ok(Decision::Allow);
        }
        if let Attributes::NonResource { path, .. } = attributes
            && HEALTH_PATHS.contains(&path.as_str())
        {
            return Ok(Decision::Allow);
        }
        let key = digest(user, attributes);
        let known = self.0.results.known(&key);
        self.0.metrics.looked_up(known.is_some());
        if let Some(decision) = known {
            return Ok(decision.into());
        }
        // Boxed because it is large, and most requests need no review.
        let decision = Box::pin(self.review(key, client.into(), user, attributes)).await;
        self.0.metrics.refused_if_overloaded(&decision);
        decision.map(Into::into)
    }

    async fn review(
        &self,
        key: Digest,
        client: ClientKey<'_>,
        user: &User,
        attributes: &Attributes,
    ) -> Result<CachedDecision, ReviewError> {
        let review = Review {
            kind: "SubjectAccessReview",
            api_version: "authorization.k8s.io/v1",
            spec: Spec::new(user, attributes),
        };
        let body = serde_json::to_vec(&review).map_err(|error| ReviewError::Call(error.to_string()))?;
        let body = Bytes::from(body);
        let is_cached = size_chosen_by_client(attributes) < MAX_CACHED_SIZE;
        let cache_as = move |decision: &CachedDecision| match decision {
            _ if !is_cached => CacheAs::Neither,
            CachedDecision::Allow => CacheAs::Positive,
            CachedDecision::Deny(_) | CachedDecision::NoOpinion(_) => CacheAs::Negative,
        };
        let Inner { reviews, results, permits, .. } = &*self.0;
        let review = |permit| {
            let span = pinniped_traces::child("SubjectAccessReview", SpanKind::Client);
            self.clone().post(permit, body.clone(), span)
        };
        results.get_or_review(key, reviews.charge(client.levels()), permits, cache_as, review).await
    }

    async fn post(
        self,
        permit: Waiting,
        body: Bytes,
        span: Option<Span>,
    ) -> Result<CachedDecision, ReviewError> {
        let began = Instant::now();
        let decision = self.post_unobserved(permit, body, span).await;
        self.0.metrics.reviewed(began, &decision, |decision| match decision {
            CachedDecision::Allow => 0,
            CachedDecision::Deny(_) => 1,
            CachedDecision::NoOpinion(_) => 2,
        });
        decision
    }

    async fn post_unobserved(
        &self,
        permit: Waiting,
        body: Bytes,
        span: Option<Span>,
    ) -> Result<CachedDecision, ReviewError> {
        let response: ReviewResponse = self.0.reviews.post(permit, PATH, RESOURCE, body, span).await?;
        let status = response.status.unwrap_or_default();
        let reason: Arc<str> = status.reason.unwrap_or_default().into();
        match (status.allowed.unwrap_or_default(), status.denied.unwrap_or_default()) {
            (true, true) => Err(ReviewError::Call(
                "webhook subject access review returned both allow and deny response".to_owned(),
            )),
            (true, false) => Ok(CachedDecision::Allow),
            (false, true) => Ok(CachedDecision::Deny(reason)),
            (false, false) => Ok(CachedDecision::NoOpinion(reason)),
        }
    }
}

fn size_chosen_by_client(attributes: &Attributes) -> usize {
    match attributes {
        Attributes::NonResource { verb, path } => verb.len() + path.len(),
        Attributes::Resource(resource) => {
            let selector = |text: &Option<String>| text.as_ref().map_or(0, String::len);
            resource.verb.len()
                + resource.group.len()
                + resource.version.len()
                + resource.resource.len()
                + resource.subresource.len()
                + resource.name.len()
                + resource.namespace.len()
                + selector(&resource.field_selector)
                + selector(&resource.label_selector)
        }
    }
}

/// Returns the digest of a review. Every text is preceded by its length, so that different reviews
/// never have the same input.
fn digest(user: &KnownUser, attributes: &Attributes) -> Digest {
    let mut input = DigestInput(Vec::with_capacity(256));
    input.0.extend_from_slice(user.digest(digest_of_user));
    input.about(attributes);
    input.digest()
}

fn digest_of_user(user: &User) -> Digest {
    // Users who differ in a field that is missing here would share decisions.
    let User { name, uid, groups, extra } = user;
    let mut input = DigestInput(Vec::with_capacity(512));
    input.text(name);
    input.text(uid);
    input.count(groups.len());
    groups.iter().for_each(|group| input.text(group));
    input.count(extra.len());
    for (key, values) in extra {
        input.text(key);
        input.count(values.len());
        values.iter().for_each(|value| input.text(value));
    }
    input.digest()
}

/// Collects the input of a digest in one buffer, which is faster than many small updates of a hash.
struct DigestInput(Vec<u8>);

impl DigestInput {
    fn about(&mut self, attributes: &Attributes) {
        match attributes {
            Attributes::NonResource { verb, path } => {
                self.count(0);
                self.text(verb);
                self.text(path);
            }
            Attributes::Resource(resource) => {
                self.count(1);
                self.text(&resource.verb);
                self.text(&resource.group);
                self.text(&resource.version);
                self.text(&resource.resource);
                self.text(&resource.subresource);
                self.text(&resource.name);
                self.text(&resource.namespace);
                for selector in [&resource.field_selector, &resource.label_selector] {
                    self.count(usize::from(selector.is_some()));
                    self.text(selector.as_deref().unwrap_or_default());
                }
            }
        }
    }

    fn count(&mut self, count: usize) {
        self.0.extend_from_slice(&count.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn digest(&self) -> Digest {
        let mut result = Digest::default();
        result.copy_from_slice(sha::digest(&sha::SHA256, &self.0).as_ref());
        result
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'static str,
    api_version: &'static str,
    spec: Spec<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_attributes: Option<Resource<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    non_resource_attributes: Option<NonResource<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    verb: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field_selector: Option<Selector<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<Selector<'a>>,
}

/// A raw selector; the API server parses it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Selector<'a> {
    raw_selector: &'a str,
}

#[derive(Serialize)]
struct NonResource<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    verb: &'a str,
}

impl<'a> Spec<'a> {
    fn new(user: &'a User, attributes: &'a Attributes) -> Self {
        let (resource_attributes, non_resource_attributes) = match attributes {
            Attributes::Resource(resource) => (Some(Resource::new(resource)), None),
            Attributes::NonResource { verb, path } => (None, Some(NonResource { path, verb })),
        };
        Self {
            resource_attributes,
            non_resource_attributes,
            user: &user.name,
            groups: &user.groups,
            extra: &user.extra,
            uid: &user.uid,
        }
    }
}

impl<'a> Resource<'a> {
    fn new(resource: &'a ResourceAttributes) -> Self {
        let selector = |raw: &'a Option<String>| {
            raw.as_deref().filter(|raw| !raw.is_empty()).map(|raw_selector| Selector { raw_selector })
        };
        Self {
            namespace: &resource.namespace,
            verb: &resource.verb,
            group: &resource.group,
            version: &resource.version,
            resource: &resource.resource,
            subresource: &resource.subresource,
            name: &resource.name,
            field_selector: selector(&resource.field_selector),
            label_selector: selector(&resource.label_selector),
        }
    }
}

#[derive(Deserialize)]
struct ReviewResponse {
    status: Option<ReviewStatus>,
}

#[derive(Default, Deserialize)]
struct ReviewStatus {
    allowed: Option<bool>,
    denied: Option<bool>,
    reason: Option<String>,
}

#[cfg(test)]
mod tests;
