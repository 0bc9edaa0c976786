//! Kubernetes types that `k8s-openapi` does not have, or has in a form that is too large.
//!
//! | module | content |
//! |---|---|
//! | [`status`] | `metav1.Status`, as JSON and as Kubernetes protobuf |
//! | [`protobuf`] | Kubernetes protobuf: a writer of messages, and the envelope of objects |
//! | [`condition`] | conditions, and merging of new conditions into old ones |
//! | [`event`] | Events of `events.k8s.io/v1` as data |
//! | [`partial`] | `Pod`, `Node` and `Deployment` with the fields that are read |
//! | [`client_auth`] | `ExecCredential`, which kubectl and its credential plugins exchange |
//! | [`suffix`] | API groups whose suffix is configurable |
//! | [`resource`] | `kube::Resource` for kinds in such groups |
//! | [`text`] | texts with a maximum length |

#![forbid(unsafe_code)]

pub mod client_auth;
pub mod condition;
pub mod event;
pub mod partial;
pub mod protobuf;
pub mod resource;
pub mod status;
pub mod suffix;
pub mod text;

#[doc(hidden)]
pub use {k8s_openapi, kube_core};
