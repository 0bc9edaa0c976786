//! Functions that Kubernetes adds: URLs, regular expressions, quantities, addresses, formats,
//! versions and authorization.

use super::Declaration;

/// The signatures of the functions, as `overload: signature`.
pub(super) const FUNCTIONS: &[Declaration] = &[
    (
        "add",
        &[
            "quantity_add: kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity",
            "quantity_add_int: kubernetes.Quantity.(int) -> kubernetes.Quantity",
        ],
    ),
    ("allowed", &["decision_allowed: kubernetes.authorization.Decision.() -> bool"]),
    ("asApproximateFloat", &["quantity_get_float: kubernetes.Quantity.() -> double"]),
    ("asInteger", &["quantity_get_int: kubernetes.Quantity.() -> int"]),
    (
        "check",
        &[
            "pathcheck_check: kubernetes.authorization.PathCheck.(string) -> kubernetes.authorization.Decision",
            "resourcecheck_check: kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.Decision",
        ],
    ),
    ("cidr", &["string_to_cidr: (string) -> net.CIDR"]),
    (
        "compareTo",
        &[
            "quantity_compare_to: kubernetes.Quantity.(kubernetes.Quantity) -> int",
            "semver_compare_to: kubernetes.Semver.(kubernetes.Semver) -> int",
        ],
    ),
    (
        "containsCIDR",
        &[
            "cidr_contains_cidr_string: net.CIDR.(string) -> bool",
            "cidr_contains_cidr: net.CIDR.(net.CIDR) -> bool",
        ],
    ),
    (
        "containsIP",
        &[
            "cidr_contains_ip_string: net.CIDR.(string) -> bool",
            "cidr_contains_ip_ip: net.CIDR.(net.IP) -> bool",
        ],
    ),
    ("error", &["decision_error: kubernetes.authorization.Decision.() -> string"]),
    ("errored", &["decision_errored: kubernetes.authorization.Decision.() -> bool"]),
    ("family", &["ip_family: net.IP.() -> int"]),
    (
        "fieldSelector",
        &[
            "authorizer_fieldselector: kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
        ],
    ),
    ("find", &["string_find_string: string.(string) -> string"]),
    (
        "findAll",
        &[
            "string_find_all_string: string.(string) -> list(string)",
            "string_find_all_string_int: string.(string, int) -> list(string)",
        ],
    ),
    ("format.byte", &["format.byte: () -> kubernetes.NamedFormat"]),
    ("format.date", &["format.date: () -> kubernetes.NamedFormat"]),
    ("format.datetime", &["format.datetime: () -> kubernetes.NamedFormat"]),
    ("format.dns1035Label", &["format.dns1035Label: () -> kubernetes.NamedFormat"]),
    ("format.dns1035LabelPrefix", &["format.dns1035LabelPrefix: () -> kubernetes.NamedFormat"]),
    ("format.dns1123Label", &["format.dns1123Label: () -> kubernetes.NamedFormat"]),
    ("format.dns1123LabelPrefix", &["format.dns1123LabelPrefix: () -> kubernetes.NamedFormat"]),
    ("format.dns1123Subdomain", &["format.dns1123Subdomain: () -> kubernetes.NamedFormat"]),
    ("format.dns1123SubdomainPrefix", &["format.dns1123SubdomainPrefix: () -> kubernetes.NamedFormat"]),
    ("format.labelValue", &["format.labelValue: () -> kubernetes.NamedFormat"]),
    ("format.named", &["format-named: (string) -> optional_type(kubernetes.NamedFormat)"]),
    ("format.qualifiedName", &["format.qualifiedName: () -> kubernetes.NamedFormat"]),
    ("format.uri", &["format.uri: () -> kubernetes.NamedFormat"]),
    ("format.uuid", &["format.uuid: () -> kubernetes.NamedFormat"]),
    ("getEscapedPath", &["url_get_escaped_path: kubernetes.URL.() -> string"]),
    ("getHost", &["url_get_host: kubernetes.URL.() -> string"]),
    ("getHostname", &["url_get_hostname: kubernetes.URL.() -> string"]),
    ("getPort", &["url_get_port: kubernetes.URL.() -> string"]),
    ("getQuery", &["url_get_query: kubernetes.URL.() -> map(string, list(string))"]),
    ("getScheme", &["url_get_scheme: kubernetes.URL.() -> string"]),
    (
        "group",
        &[
            "authorizer_group: kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.GroupCheck",
        ],
    ),
    ("ip", &["string_to_ip: (string) -> net.IP", "cidr_ip: net.CIDR.() -> net.IP"]),
    ("ip.isCanonical", &["ip_is_canonical: (string) -> bool"]),
    ("isCIDR", &["is_cidr: (string) -> bool"]),
    ("isGlobalUnicast", &["ip_is_global_unicast: net.IP.() -> bool"]),
    (
        "isGreaterThan",
        &[
            "quantity_is_greater_than: kubernetes.Quantity.(kubernetes.Quantity) -> bool",
            "semver_is_greater_than: kubernetes.Semver.(kubernetes.Semver) -> bool",
        ],
    ),
    ("isIP", &["is_ip: (string) -> bool"]),
    ("isInteger", &["quantity_is_integer: kubernetes.Quantity.() -> bool"]),
    (
        "isLessThan",
        &[
            "quantity_is_less_than: kubernetes.Quantity.(kubernetes.Quantity) -> bool",
            "semver_is_less_than: kubernetes.Semver.(kubernetes.Semver) -> bool",
        ],
    ),
    ("isLinkLocalMulticast", &["ip_is_link_local_multicast: net.IP.() -> bool"]),
    ("isLinkLocalUnicast", &["ip_is_link_local_unicast: net.IP.() -> bool"]),
    ("isLoopback", &["ip_is_loopback: net.IP.() -> bool"]),
    ("isQuantity", &["is_quantity_string: (string) -> bool"]),
    ("isSemver", &["is_semver_string: (string) -> bool", "is_semver_string_bool: (string, bool) -> bool"]),
    ("isURL", &["is_url_string: (string) -> bool"]),
    ("isUnspecified", &["ip_is_unspecified: net.IP.() -> bool"]),
    (
        "labelSelector",
        &[
            "authorizer_labelselector: kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
        ],
    ),
    ("major", &["semver_major: kubernetes.Semver.() -> int"]),
    ("masked", &["cidr_masked: net.CIDR.() -> net.CIDR"]),
    ("minor", &["semver_minor: kubernetes.Semver.() -> int"]),
    (
        "name",
        &[
            "resourcecheck_name: kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
        ],
    ),
    (
        "namespace",
        &[
            "resourcecheck_namespace: kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
        ],
    ),
    ("patch", &["semver_patch: kubernetes.Semver.() -> int"]),
    (
        "path",
        &[
            "authorizer_path: kubernetes.authorization.Authorizer.(string) -> kubernetes.authorization.PathCheck",
        ],
    ),
    ("prefixLength", &["cidr_prefix_length: net.CIDR.() -> int"]),
    ("quantity", &["string_to_quantity: (string) -> kubernetes.Quantity"]),
    ("reason", &["decision_reason: kubernetes.authorization.Decision.() -> string"]),
    (
        "resource",
        &[
            "groupcheck_resource: kubernetes.authorization.GroupCheck.(string) -> kubernetes.authorization.ResourceCheck",
        ],
    ),
    (
        "semver",
        &[
            "string_to_semver: (string) -> kubernetes.Semver",
            "string_bool_to_semver: (string, bool) -> kubernetes.Semver",
        ],
    ),
    (
        "serviceAccount",
        &[
            "authorizer_serviceaccount: kubernetes.authorization.Authorizer.(string, string) -> kubernetes.authorization.Authorizer",
        ],
    ),
    ("sign", &["quantity_sign: (kubernetes.Quantity) -> int"]),
    (
        "sub",
        &[
            "quantity_sub: kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity",
            "quantity_sub_int: kubernetes.Quantity.(int) -> kubernetes.Quantity",
        ],
    ),
    (
        "subresource",
        &[
            "resourcecheck_subresource: kubernetes.authorization.ResourceCheck.(string) -> kubernetes.authorization.ResourceCheck",
        ],
    ),
    ("url", &["string_to_url: (string) -> kubernetes.URL"]),
    ("validate", &["format-validate: kubernetes.NamedFormat.(string) -> optional_type(list(string))"]),
];
