//! The messages of the Concierge other than those of strategies: of conditions, and of its log.

use super::{Explanation, Kind};

const fn condition(
    topic: &'static str,
    texts: &'static [&'static str],
    meaning: &'static str,
    remedy: &'static str,
) -> Explanation {
    Explanation { topic, kind: Kind::ConditionMessage, meaning, remedy, texts }
}

const fn log(
    topic: &'static str,
    texts: &'static [&'static str],
    meaning: &'static str,
    remedy: &'static str,
) -> Explanation {
    Explanation { topic, kind: Kind::LogMessage, meaning, remedy, texts }
}

/// The rows, more specific texts first.
pub const ALL: &[Explanation] = &[
    condition(
        "webhook-connection",
        &["cannot dial server: "],
        "The webhook of a WebhookAuthenticator is not reachable from the Concierge, or its certificate is not trusted.",
        "see the webhook's Service and its pods, and spec.tls of the WebhookAuthenticator",
    ),
    condition(
        "url-scheme",
        &["has invalid scheme, require 'https'"],
        "The URL in the spec is not an https URL.",
        "use an https URL",
    ),
    condition(
        "provider-discovery",
        &["could not perform oidc discovery on provider issuer"],
        "The Concierge cannot read the discovery document of the issuer.",
        "for an unknown authority, set spec.tls; for a timeout, see network policies and HTTPS_PROXY; for an issuer \
         that does not match, copy `issuer` from the document",
    ),
    condition(
        "provider-keys",
        &["could not fetch keys: "],
        "The Concierge cannot read the keys of the issuer.",
        "see whether jwks_uri of the discovery document is reachable from a pod",
    ),
    condition(
        "issuer-path",
        &["cannot include path '"],
        "spec.issuer is the address of the discovery document, not that of the issuer.",
        "remove /.well-known/openid-configuration",
    ),
    condition(
        "jwt-authenticator-spec",
        &["could not initialize jwt authenticator"],
        "A field of the JWTAuthenticator is not valid, such as a CEL expression.",
        "correct the field that the message names",
    ),
    condition(
        "old-keys",
        &["logins continue with these keys"],
        "The issuer has not responded for a while. Users whose tokens are signed with known keys still log in.",
        "see whether the issuer responds to the Concierge",
    ),
    condition(
        "two-ca-bundles",
        &["both tls.certificateAuthorityDataSource and tls.certificateAuthorityData provided"],
        "spec.tls has a CA bundle and a reference to one.",
        "remove one of the two fields",
    ),
    condition(
        "ca-bundle-encoding",
        &["no base64-encoded PEM certificates found in"],
        "The field does not have a CA bundle in the expected form.",
        "write the base64 of a PEM bundle, as printed by base64 -w0",
    ),
    condition(
        "ca-bundle-source",
        &["spec.tls.certificateAuthorityDataSource is invalid"],
        "The Secret or the ConfigMap with the CA bundle, or its key, does not exist in the Concierge's namespace.",
        "create it there",
    ),
    condition(
        "serving-certificate-name",
        &[" is valid for ["],
        "The external certificate of the impersonation proxy is for another name than that of its endpoint.",
        "issue it for the host of spec.impersonationProxy.externalEndpoint",
    ),
    condition(
        "serving-certificate-expired",
        &[" expired at "],
        "The external certificate of the impersonation proxy was not renewed.",
        "renew it: a new certificate in the same Secret is served without a restart",
    ),
    condition(
        "serving-certificate-ca",
        &["does not verify with the advertised CA bundle"],
        "Clients get another CA than the one that signed the certificate of the impersonation proxy.",
        "correct spec.impersonationProxy.tls.certificateAuthorityData, or ca.crt of the Secret",
    ),
    log(
        "configuration",
        &["could not load config"],
        "The configuration file of the Concierge is not valid, and the pod terminates.",
        "correct the key that the error names",
    ),
    log(
        "unknown-configuration-key",
        &["unknown key in the configuration is ignored"],
        "A key of the Concierge's configuration has a typing error; the log line has the most similar key.",
        "correct the key",
    ),
    log(
        "no-permission-to-lead",
        &["this pod cannot become leader"],
        "The Role of the Concierge does not allow Leases, so this pod runs no controllers.",
        "apply the resources of the installation again",
    ),
    log(
        "missing-permission",
        &["the features that need it stay disabled"],
        "A Role of the Concierge lacks a permission that the log line names.",
        "apply the resources of the installation again",
    ),
    log(
        "cluster-not-ready",
        &["the cluster is not ready for this pod yet"],
        "The pod waits for the API server or a ConfigMap; the log line has the cause.",
        "wait, or remove the cause",
    ),
];
