//! The span of a request, with the names and attributes of the API server where it has any.
//!
//! A span contains no user name, no query and no header value except the audit identifier, with
//! which the audit log can be searched.

use http::{HeaderValue, Method};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::{KnownUser, MASTERS, MONITORING};
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_traces::{RequestSpan, method_name};

/// Returns whether this user may decide that its requests are recorded: it is a member of the
/// groups of which the API server accepts that (`notSystemPrivilegedGroup` in
/// `k8s.io/apiserver/pkg/endpoints/filters/traces.go`).
pub(crate) fn may_request_recording(user: &KnownUser) -> bool {
    user.is_in(MASTERS) || user.is_in(MONITORING)
}

/// Sets the attributes that are known before the request is parsed.
pub(crate) fn set_audit_id(span: &RequestSpan, audit_id: &HeaderValue) {
    span.set("audit-id", audit_id.to_str().unwrap_or_default());
}

/// Sets the name and the attributes of a request.
pub(crate) fn describe(span: &RequestSpan, method: &Method, info: &RequestInfo) {
    let method = method_name(method);
    span.set_name(&name(method, info));
    span.set("http.request.method", method);
    span.set("k8s.request.verb", &info.verb);
    if info.is_resource {
        span.set("k8s.request.api_group", &info.api_group);
        span.set("k8s.request.resource", &info.resource);
        span.set("k8s.request.subresource", &info.subresource);
    }
}

/// Sets the attributes of the call to the API server.
pub fn describe_call(span: &pinniped_traces::Span, method: &Method, attributes: &Attributes) {
    span.set("http.request.method", method_name(method));
    span.set("k8s.request.verb", attributes.verb());
}

/// Returns the name like `getSpanNameFromRequestInfo` of the API server.
fn name(method: &str, info: &RequestInfo) -> String {
    if !info.is_resource {
        return method.to_owned();
    }
    let mut name = format!("{method} /{}", info.api_prefix);
    let mut push = |segment: &str| {
        name.push('/');
        name.push_str(segment);
    };
    if !info.api_group.is_empty() {
        push(&info.api_group);
    }
    push(&info.api_version);
    if !info.namespace.is_empty() {
        push("namespaces/{:namespace}");
    }
    push(&info.resource);
    if !info.name.is_empty() {
        push("{:name}");
    }
    if !info.subresource.is_empty() {
        push(&info.subresource);
    }
    name
}

#[cfg(test)]
mod tests {
    use pinniped_kube_request::identity::User;

    use super::*;

    #[test]
    fn names_are_those_of_the_api_server() {
        for (method, path, wanted) in [
            ("GET", "/api/v1/namespaces/a/pods/b", "GET /api/v1/namespaces/{:namespace}/pods/{:name}"),
            ("GET", "/api/v1/nodes", "GET /api/v1/nodes"),
            (
                "POST",
                "/api/v1/namespaces/a/pods/b/exec",
                "POST /api/v1/namespaces/{:namespace}/pods/{:name}/exec",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/b",
                "PATCH /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}",
            ),
            ("GET", "/healthz/secret-path", "GET"),
            ("BREW", "/pot", "_OTHER"),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let info = RequestInfo::parse(&method, &path.parse().unwrap()).unwrap();
            assert_eq!(name(method_name(&method), &info), wanted);
        }
    }

    #[test]
    fn only_members_of_privileged_groups_may_request_recording() {
        for (group, wanted) in
            [("system:masters", true), ("system:monitoring", true), ("system:authenticated", false)]
        {
            let user = User { name: "pinny".to_owned(), groups: vec![group.to_owned()], ..User::default() };
            assert_eq!(may_request_recording(&user.into()), wanted, "{group}");
        }
    }
}
