//! Metrics of reviews by the API server, and of their caches.

use pinniped_metrics::{Definition, Label, LabelValue};

use crate::REQUEST_SECONDS;

/// Values of the label `result` of token reviews.
pub const TOKEN_RESULTS: &[LabelValue] = &[
    ("authenticated", "The token is valid"),
    ("unauthenticated", "The token is not valid"),
    ("overloaded", "There were too many reviews"),
    ("failed", "The API server did not respond, or returned an error"),
];

/// Values of the label `result` of access reviews.
pub const ACCESS_RESULTS: &[LabelValue] = &[
    ("allowed", "The request is allowed"),
    ("denied", "The request is denied"),
    ("no_opinion", "No authorizer allows the request"),
    ("overloaded", "There were too many reviews"),
    ("failed", "The API server did not respond, or returned an error"),
];

/// Values of the label `result` of caches.
pub const CACHE_RESULTS: &[LabelValue] =
    &[("hit", "The result was cached"), ("miss", "A review was necessary")];

/// Token reviews.
pub static TOKEN: Definition = Definition::counter(
    "pinniped_token_reviews",
    "TokenReviews that were sent to the API server, or refused",
)
.by(&[Label::of("result", TOKEN_RESULTS)]);

/// The duration of token reviews.
pub static TOKEN_DURATION: Definition = Definition::histogram(
    "pinniped_token_review_duration_seconds",
    "Duration of TokenReviews, including retries and the time in the queue",
    REQUEST_SECONDS,
);

/// Reads of the cache of token reviews.
pub static TOKEN_CACHE_REQUESTS: Definition =
    Definition::counter("pinniped_token_review_cache_requests", "Reads of the cache of TokenReviews")
        .by(&[Label::of("result", CACHE_RESULTS)]);

/// Cached token reviews.
pub static TOKEN_CACHE_ENTRIES: Definition =
    Definition::gauge("pinniped_token_review_cache_entries", "Cached TokenReviews, including expired ones");

/// The limit on cached token reviews.
pub static TOKEN_CACHE_ENTRIES_LIMIT: Definition = Definition::gauge(
    "pinniped_token_review_cache_entries_limit",
    "Maximum number of cached TokenReviews: half of it for those that allow, and half for others",
);

/// Evicted token reviews.
pub static TOKEN_CACHE_EVICTIONS: Definition = Definition::counter(
    "pinniped_token_review_cache_evictions",
    "Cached TokenReviews that were removed before they expired, because the cache was full",
);

/// Access reviews.
pub static ACCESS: Definition = Definition::counter(
    "pinniped_access_reviews",
    "SubjectAccessReviews that were sent to the API server, or refused",
)
.by(&[Label::of("result", ACCESS_RESULTS)]);

/// The duration of access reviews.
pub static ACCESS_DURATION: Definition = Definition::histogram(
    "pinniped_access_review_duration_seconds",
    "Duration of SubjectAccessReviews, including retries and the time in the queue",
    REQUEST_SECONDS,
);

/// Reads of the cache of access reviews.
pub static ACCESS_CACHE_REQUESTS: Definition = Definition::counter(
    "pinniped_access_review_cache_requests",
    "Reads of the cache of SubjectAccessReviews",
)
.by(&[Label::of("result", CACHE_RESULTS)]);

/// Cached access reviews.
pub static ACCESS_CACHE_ENTRIES: Definition = Definition::gauge(
    "pinniped_access_review_cache_entries",
    "Cached SubjectAccessReviews, including expired ones",
);

/// The limit on cached access reviews.
pub static ACCESS_CACHE_ENTRIES_LIMIT: Definition = Definition::gauge(
    "pinniped_access_review_cache_entries_limit",
    "Maximum number of cached SubjectAccessReviews: half of it for those that allow, and half for others",
);

/// Evicted access reviews.
pub static ACCESS_CACHE_EVICTIONS: Definition = Definition::counter(
    "pinniped_access_review_cache_evictions",
    "Cached SubjectAccessReviews that were removed before they expired, because the cache was full",
);

/// The definitions of this module.
pub const ALL: &[&Definition] = &[
    &TOKEN,
    &TOKEN_DURATION,
    &TOKEN_CACHE_REQUESTS,
    &TOKEN_CACHE_ENTRIES,
    &TOKEN_CACHE_ENTRIES_LIMIT,
    &TOKEN_CACHE_EVICTIONS,
    &ACCESS,
    &ACCESS_DURATION,
    &ACCESS_CACHE_REQUESTS,
    &ACCESS_CACHE_ENTRIES,
    &ACCESS_CACHE_ENTRIES_LIMIT,
    &ACCESS_CACHE_EVICTIONS,
];
