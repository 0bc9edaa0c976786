//! `metav1.Status`, the error format of Kubernetes.
//!
//! A constructor for each kind of failure uses the wording of Kubernetes' own libraries, because
//! clients match on message, reason and causes. This module only serializes: [`Status::to_json`],
//! [`Status::to_json_pretty`] and [`Status::to_protobuf`]. It neither negotiates the encoding nor
//! writes the response.

mod generic;
mod protobuf;
mod wording;

use serde::{Deserialize, Serialize};

use pinniped_go_compat::json as gojson;

pub use generic::generic_message;

/// An error in the format of Kubernetes. The members are in the order of the wire format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// `Status`; empty only in the timeout response of the Go server, which omits it (see
    /// [`Status::timeout`]).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// `v1`; empty when `kind` is empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// Always empty.
    pub metadata: StatusMeta,
    /// `Failure` or `Success`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The error, for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The error, for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The object of the error and its causes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status code, 0 when unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: i32,
}

/// The list metadata, which is always empty in a [`Status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusMeta {}

/// The object of an error and the causes.
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
    /// The causes of the error.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::resource::null_as_default")]
    pub causes: Vec<StatusCause>,
    /// Seconds to wait before a retry, 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

/// One cause of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCause {
    /// The reason, for programs, such as [`cause::REQUIRED`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message, for users.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the invalid field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Values of [`StatusCause::reason`].
pub mod cause {
    /// A required value is missing.
    pub const REQUIRED: &str = "FieldValueRequired";
    /// A value is invalid.
    pub const INVALID: &str = "FieldValueInvalid";
    /// A value is not one of the supported values.
    pub const NOT_SUPPORTED: &str = "FieldValueNotSupported";
    /// A value is set that must not be set.
    pub const FORBIDDEN: &str = "FieldValueForbidden";
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl Status {
    /// Returns the HTTP status code; 500 when the member `code` is not a valid one.
    pub fn code(&self) -> u16 {
        if (100..=599).contains(&self.code) { self.code as u16 } else { 500 }
    }

    /// Returns compact JSON, with the same bytes that a Go server sends except for the newline at
    /// the end.
    pub fn to_json(&self) -> String {
        gojson::to_string(self)
    }

    /// Returns JSON indented by two spaces, without a newline at the end.
    pub fn to_json_pretty(&self) -> String {
        gojson::to_string_pretty(self)
    }

    /// Returns Kubernetes protobuf: the magic number and an envelope around the message.
    pub fn to_protobuf(&self) -> Vec<u8> {
        protobuf::encode(self)
    }
}

#[cfg(test)]
mod tests;
