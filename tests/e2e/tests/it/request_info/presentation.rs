//! Headers that select the representation of a response.

/// Values of `Accept`: each encoding, transformations that errors do not have, wildcards,
/// qualities, and invalid values.
pub(crate) const ACCEPT: [&str; 38] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf, */*",
    "application/vnd.kubernetes.protobuf,application/json",
    "application/json, */*",
    "*/*",
    "*",
    "application/*",
    "application/yaml;q=0.5, application/json;q=0.1",
    "application/json;q=0.1, */*;q=0.9",
    "*/*;q=0.9, application/json;q=0.1",
    "application/yaml;q=0.2,application/*;q=0.9",
    "application/json;q=0,application/yaml",
    "application/yaml; q=x, application/json;q=0.1",
    "application/yaml;q= 0.9, application/json;q=0.1",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/yaml;q=0.1",
    "application/json;as=",
    "application/json;as=Table=x",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,application/json",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/json;stream=x, application/yaml",
    "application/json;sv=1",
    "application/json;pretty=1",
    "application/json; pretty=0; export=1; unknown=x",
    "application/yaml;pretty=1",
    "text/html",
    "text/html, application/json",
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "nonsense",
    ",",
    "application/json/x, application/yaml",
    "*/json",
    "application/cbor, application/json",
    "APPLICATION/JSON",
];

/// Values of `User-Agent`.
pub(super) const AGENTS: [&str; 6] =
    ["curl/8.5.0", "Wget/1.21", "Mozilla/5.0 (X11)", "kubectl/v1.36.3", "Mozilla/4.0", "xcurl"];
