//! `metav1.Status`: how Kubernetes says that something went wrong.
//!
//! A constructor for every kind of failure gives the wording of Kubernetes' own libraries, because clients match on
//! message, reason and causes. Choosing the encoding and writing the response is not done here; this module gives the
//! bytes: [`Status::to_json`], [`Status::to_json_pretty`] and, in [`protobuf`], [`Status::to_protobuf`].

pub mod protobuf;
mod wording;

use serde::{Deserialize, Serialize};

use pinniped_go_compat::json as gojson;

/// An error in Kubernetes' form. Members are in the order of the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// `Status`; empty in the one answer of a Go server that forgets it, see [`Status::timeout`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// `v1`; empty where `kind` is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Always empty.
    pub metadata: StatusMeta,
    /// `Failure` or `Success`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// What went wrong, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What went wrong, for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it went wrong with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status, 0 when unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: i32,
}

/// The metadata of a list, which in a [`Status`] has nothing to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusMeta {}

/// What an error is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind or, in many messages, resource of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One by one.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::null_as_default")]
    pub causes: Vec<StatusCause>,
    /// Seconds to wait before the next try, 0 when it makes no sense to wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

/// One cause of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCause {
    /// For programs, such as [`cause::REQUIRED`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the member at fault.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Values of [`StatusCause::reason`].
pub mod cause {
    /// A value was missing.
    pub const REQUIRED: &str = "FieldValueRequired";
    /// A value was wrong.
    pub const INVALID: &str = "FieldValueInvalid";
    /// A value is not among those that are supported.
    pub const NOT_SUPPORTED: &str = "FieldValueNotSupported";
    /// A value was there that must not be.
    pub const FORBIDDEN: &str = "FieldValueForbidden";
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl Status {
    /// The HTTP status that goes with it; 500 when it says none that HTTP knows.
    pub fn code(&self) -> u16 {
        if (100..=599).contains(&self.code) { self.code as u16 } else { 500 }
    }

    /// JSON on one line, in the bytes a Go server would send but for the newline at the end.
    pub fn to_json(&self) -> String {
        gojson::to_string(self)
    }

    /// JSON indented by two spaces, without a newline at the end.
    pub fn to_json_pretty(&self) -> String {
        gojson::to_string_pretty(self)
    }

    /// Kubernetes protobuf: the magic number and an envelope around the message.
    pub fn to_protobuf(&self) -> Vec<u8> {
        protobuf::encode(self)
    }
}

#[cfg(test)]
mod tests;
