//! Reasons why the proxy cannot be brought to the specified state. Their texts become messages of
//! the status: Go's, where upstream has the same error.

use pinniped_delegation::grants::SecretReference;
use pinniped_go_compat::base64::CorruptInput;
use pinniped_go_compat::json::quote;

use crate::status_text::StatusText;
use crate::strategy::certificate_names::NamesError;
use crate::strategy::certificate_validation;
use crate::strategy::external_certificate::NOT_A_CERTIFICATE;
use crate::strategy::service::ServiceError;
use crate::strategy::spec::SpecError;

/// Prefix of all errors about the Secret that the spec names.
pub const EXTERNAL_FAILED: &str =
    "could not load the externally provided TLS secret for the impersonation proxy";

/// Prefix of the error about a signer's Secret with invalid content.
pub const SIGNER_FAILED: &str = "could not set the impersonator's credential signing secret";

/// Reasons why the decision failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The spec is not valid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The mode is `auto`, and the nodes have not been listed yet.
    #[error("the nodes have not been listed yet")]
    NodesNotListed,
    /// The mode is `auto`, and the nodes could not be listed.
    #[error(transparent)]
    Nodes(StatusText),
    /// The proxy terminated without a request to stop, with this error if there was one.
    #[error("{}", .0.as_ref().map_or("unexpected shutdown of proxy server", StatusText::as_str))]
    ProxyTerminated(Option<StatusText>),
    /// A Service cannot be changed to the specified state.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The names in the serving certificate cannot be determined.
    #[error(transparent)]
    Names(#[from] NamesError),
    /// The Secret of the generated CA does not contain a CA.
    #[error("{cause}: delete secret {} to have a new CA made", quote(.secret))]
    UnusableCa {
        /// Name of the Secret.
        secret: String,
        /// The reason, in Go's words.
        #[source]
        cause: StatusText,
    },
    /// The `tls` block names no Secret.
    #[error("must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided")]
    NoSecretName,
    /// The `tls` block names a Secret that the Concierge itself writes and deletes.
    #[error("impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller")]
    ManagedSecret,
    /// The Secret that the spec names cannot be used.
    #[error("{EXTERNAL_FAILED}: {0}")]
    External(#[source] ExternalError),
    /// The bundle in the spec is not valid.
    #[error("could not decode impersonationSpec.TLS.certificateAuthorityData: {0}")]
    Bundle(#[source] BundleError),
    /// The external certificate does not work for clients, and the mode is `Enforce`.
    #[error("{}: {}", certificate_validation::FAILED, .0.join("; "))]
    Validation(Vec<String>),
    /// The Secret of the signer does not exist.
    #[error("could not load the impersonator's credential signing secret: secret {} not found", quote(.secret))]
    NoSigner {
        /// Name of the Secret.
        secret: String,
    },
}

/// Reasons why the Secret that the spec names cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExternalError {
    /// The Secret does not exist.
    #[error("secret {} not found", quote(.0))]
    NotFound(String),
    /// The `ca.crt` of the Secret has no PEM block.
    #[error("unable to read provided ca.crt: {NOT_A_CERTIFICATE}")]
    CaCrtNotPem,
    /// The name is not a valid reference.
    #[error("malformed secretName {} (expected \"name\" or \"namespace/name\")", quote(&.0.to_string()))]
    Malformed(SecretReference),
    /// The grants of the owner could not be read.
    #[error("could not find out whether Secret {} is delegated: {cause}", quote(&.secret.to_string()))]
    UnknownPermission {
        /// The Secret.
        secret: SecretReference,
        /// The reason.
        #[source]
        cause: StatusText,
    },
    /// The owner does not permit the use of the Secret.
    #[error("certificate delegation not permitted for Secret {}", quote(&.0.to_string()))]
    Denied(SecretReference),
    /// The owner permits the use of the Secret, but it cannot be read.
    #[error("could not read Secret {}: {cause}", quote(&.secret.to_string()))]
    Unreadable {
        /// The Secret.
        secret: SecretReference,
        /// The reason.
        #[source]
        cause: StatusText,
    },
}

/// Reasons why the bundle in the spec is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// The field is not base64.
    #[error(transparent)]
    Base64(#[from] CorruptInput),
    /// The decoded data has no PEM block.
    #[error("{NOT_A_CERTIFICATE}")]
    NotPem,
}
