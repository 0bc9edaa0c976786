//! The texts of "403 Forbidden" and of the plain-text 500 in the wording of the API server.
//!
//! Clients and tests compare these texts, so quoting follows Go's `%q`, and `&`, `<` and `>` from
//! the request are escaped as HTML entities.

use pinniped_go_compat::json::quote;
use pinniped_kube_types::status::{Status, StatusDetails};

use crate::attributes::Attributes;

/// Returns the `Status` that refuses `attributes` to this user.
pub fn status(username: &str, attributes: &Attributes, reason: &str) -> Status {
    let details = match attributes {
        Attributes::Resource(r) => StatusDetails {
            name: r.name.clone(),
            group: r.group.clone(),
            kind: r.resource.clone(),
            ..StatusDetails::default()
        },
        Attributes::NonResource { .. } => StatusDetails::default(),
    };
    Status::forbidden(message(username, attributes, reason), details)
}

/// Returns the message of a refusal, for example `pods is forbidden: User "u" cannot list resource
/// "pods" in API group "" at the cluster scope: <reason>`.
pub fn message(username: &str, attributes: &Attributes, reason: &str) -> String {
    let mut text = sanitize(&denial(username, attributes));
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
    let (resource, group, name) = match attributes {
        Attributes::Resource(r) => (r.resource.as_str(), r.group.as_str(), r.name.as_str()),
        Attributes::NonResource { .. } => ("", "", ""),
    };
    if resource.is_empty() && group.is_empty() {
        return format!("forbidden: {text}");
    }
    let dot = if group.is_empty() { "" } else { "." };
    if name.is_empty() {
        format!("{resource}{dot}{group} is forbidden: {text}")
    } else {
        format!("{resource}{dot}{group} {} is forbidden: {text}", quote(name))
    }
}

/// Returns the plain-text body of an internal error of the handler chain, without the final
/// newline.
pub fn internal_error_text(request_uri: &str, error: &str) -> String {
    sanitize(&format!("Internal Server Error: {}: {error}", quote(request_uri)))
}

fn denial(username: &str, attributes: &Attributes) -> String {
    let user = quote(username);
    match attributes {
        Attributes::NonResource { verb, path } => format!("User {user} cannot {verb} path {}", quote(path)),
        Attributes::Resource(r) => {
            let resource = if r.subresource.is_empty() {
                quote(&r.resource)
            } else {
                quote(&format!("{}/{}", r.resource, r.subresource))
            };
            let scope = if r.namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {}", quote(&r.namespace))
            };
            format!(
                "User {user} cannot {} resource {resource} in API group {} {scope}",
                r.verb,
                quote(&r.group)
            )
        }
    }
}

fn sanitize(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::ResourceAttributes;

    const REASON: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";

    fn resource(verb: &str, group: &str, [resource, sub, name, namespace]: [&str; 4]) -> Attributes {
        Attributes::Resource(ResourceAttributes {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: sub.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            ..Default::default()
        })
    }

    #[test]
    fn refusal_messages_equal_those_of_the_api_server() {
        let get = |path: &str| Attributes::NonResource { verb: "get".to_owned(), path: path.to_owned() };
        for (user, attributes, wanted) in [
            (
                "u",
                resource("delete", "apps", ["deployments", "scale", "foo", "ns"]),
                r#"deployments.apps "foo" is forbidden: User "u" cannot delete resource "deployments/scale" in API group "apps" in the namespace "ns": "#,
            ),
            (
                "pinny",
                resource("list", "", ["pods", "", "", ""]),
                r#"pods is forbidden: User "pinny" cannot list resource "pods" in API group "" at the cluster scope: "#,
            ),
            ("u", get("/healthz/log"), r#"forbidden: User "u" cannot get path "/healthz/log": "#),
            ("a<b>&\"", get("/x"), r#"forbidden: User "a&lt;b&gt;&amp;\"" cannot get path "/x": "#),
            (
                "u",
                resource("get", "apps", ["", "", "a\"<\u{ad}", "n<s"]),
                ".apps \"a\\\"<\\u00ad\" is forbidden: User \"u\" cannot get resource \"\" in API group \"apps\" in the namespace \"n&lt;s\": ",
            ),
            (
                "u",
                resource("get", "", ["", "x", "a", ""]),
                r#"forbidden: User "u" cannot get resource "/x" in API group "" at the cluster scope: "#,
            ),
            (
                "u",
                resource("", "", ["namespaces", "", "", ""]),
                r#"namespaces is forbidden: User "u" cannot  resource "namespaces" in API group "" at the cluster scope: "#,
            ),
        ] {
            assert_eq!(message(user, &attributes, REASON), format!("{wanted}{REASON}"));
        }
        assert_eq!(message("u", &get("/x"), ""), r#"forbidden: User "u" cannot get path "/x""#);
    }

    #[test]
    fn the_status_names_the_object() {
        let status = status("u", &resource("get", "apps", ["deployments", "", "foo", "ns"]), "r");
        assert_eq!(
            status.to_json(),
            concat!(
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"deployments.apps \"foo\" is forbidden: "#,
                r#"User \"u\" cannot get resource \"deployments\" in API group \"apps\" in the namespace \"ns\": r","#,
                r#""reason":"Forbidden","details":{"name":"foo","group":"apps","kind":"deployments"},"code":403}"#
            )
        );
    }

    #[test]
    fn internal_errors_quote_the_request() {
        assert_eq!(
            internal_error_text("/api/v1/watch", "failed to create RequestInfo: <x>"),
            r#"Internal Server Error: "/api/v1/watch": failed to create RequestInfo: &lt;x&gt;"#
        );
    }
}
