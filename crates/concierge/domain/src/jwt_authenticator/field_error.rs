//! Errors about fields of a spec, in the format of Kubernetes' `field.ErrorList`.

use std::fmt;

use pinniped_go_compat::json::quote;
use pinniped_kube_request::identity::aggregate;

/// An error about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    field: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    Required {
        detail: String,
    },
    Invalid {
        value: String,
        detail: String,
    },
    Duplicate {
        value: String,
    },
    Internal {
        detail: String,
    },
    /// The text after the name of the field.
    Text(String),
}

impl FieldError {
    /// The field must be set. The detail may be empty.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), problem: Problem::Required { detail: detail.into() } }
    }

    /// The field has a value that is not valid.
    pub fn invalid(field: impl Into<String>, value: &str, detail: impl Into<String>) -> Self {
        let problem = Problem::Invalid { value: value.to_owned(), detail: detail.into() };
        Self { field: field.into(), problem }
    }

    /// The field has the value of an earlier one.
    pub fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self { field: field.into(), problem: Problem::Duplicate { value: value.to_owned() } }
    }

    /// The field could not be checked.
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), problem: Problem::Internal { detail: detail.into() } }
    }

    /// Another function worded the error, without the name of the field.
    pub fn text(field: impl Into<String>, text: String) -> Self {
        Self { field: field.into(), problem: Problem::Text(text) }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.field)?;
        match &self.problem {
            Problem::Required { detail } if detail.is_empty() => f.write_str("Required value"),
            Problem::Required { detail } => write!(f, "Required value: {detail}"),
            Problem::Invalid { value, detail } => write!(f, "Invalid value: {}: {detail}", quote(value)),
            Problem::Duplicate { value } => write!(f, "Duplicate value: {}", quote(value)),
            Problem::Internal { detail } => write!(f, "Internal error: {detail}"),
            Problem::Text(text) => f.write_str(text),
        }
    }
}

/// The errors of a spec, at least one. Printed as `[a, b]` if there are several.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", aggregate(.0.iter().map(ToString::to_string).collect()).unwrap_or_default())]
pub struct FieldErrors(pub Vec<FieldError>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_printed_as_by_kubernetes() {
        let one = FieldError::invalid("a.b[0]", "x\"", "no");
        assert_eq!(FieldErrors(vec![one.clone()]).to_string(), r#"a.b[0]: Invalid value: "x\"": no"#);
        let all = FieldErrors(vec![
            one.clone(),
            FieldError::required("c", ""),
            FieldError::required("d", "why"),
            FieldError::duplicate("e", "x"),
            FieldError::internal("f", "no"),
            one,
        ]);
        assert_eq!(
            all.to_string(),
            r#"[a.b[0]: Invalid value: "x\"": no, c: Required value, d: Required value: why, e: Duplicate value: "x", f: Internal error: no]"#
        );
    }
}
