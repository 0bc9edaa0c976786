//! Reads the configuration of an authenticator: its name, and for a JWTAuthenticator the issuer,
//! the audience and the CA of the issuer.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use pinniped_concierge_api::authentication::{CertificateAuthorityDataSource, JwtAuthenticator};
use pinniped_concierge_api::names::GROUP_LOGIN;
use pinniped_error::chain;
use pinniped_go_compat::base64::{self as gobase64, CorruptInput};
use pinniped_go_compat::json::quote;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::CaBundle;

use super::count_roots;
use super::discovery::Authenticator;
use super::options::Options;
use crate::admin::{Admin, RequestError, Subject};
use crate::printer::Printer;

/// The CA of the issuer was not discovered.
#[derive(Debug, thiserror::Error)]
#[error("tried to autodiscover --oidc-ca-bundle, but {}", chain(.0))]
pub struct IssuerCaError(#[from] CaSourceError);

/// The JWTAuthenticator has no usable CA.
#[derive(Debug, thiserror::Error)]
pub enum CaSourceError {
    /// Its inline bundle is not base64.
    #[error("JWTAuthenticator {authenticator} has invalid spec.tls.certificateAuthorityData")]
    Inline {
        /// The name of the authenticator.
        authenticator: String,
        /// The error of the decoder.
        #[source]
        source: CorruptInput,
    },
    /// The namespace of the referenced object is not known.
    #[error("encountered error discovering namespace of Concierge for JWTAuthenticator {authenticator}")]
    Namespace {
        /// The name of the authenticator.
        authenticator: String,
        /// The failed search.
        #[source]
        source: NamespaceError,
    },
    /// The kind of the referenced object is unknown.
    #[error(
        "JWTAuthenticator {authenticator} spec.tls.certificateAuthorityDataSource.Kind value {} \
         is not supported by this CLI version",
        quote(.kind)
    )]
    Kind {
        /// The name of the authenticator.
        authenticator: String,
        /// The kind.
        kind: String,
    },
    /// The referenced object cannot be read.
    #[error(
        "encountered error getting {object} specified by JWTAuthenticator {authenticator} \
         spec.tls.certificateAuthorityDataSource"
    )]
    Read {
        /// Kind, namespace and name of the object.
        object: String,
        /// The name of the authenticator.
        authenticator: String,
        /// The failed request.
        #[source]
        source: RequestError,
    },
    /// The key does not exist.
    #[error("{key} does not exist in {object}")]
    NoKey {
        /// The key and the field that names it.
        key: String,
        /// Kind, namespace and name of the object.
        object: String,
    },
    /// The value is empty.
    #[error("{key} exists but has empty value in {object}")]
    EmptyKey {
        /// The key and the field that names it.
        key: String,
        /// Kind, namespace and name of the object.
        object: String,
    },
    /// The value has no certificate.
    #[error("value at {key} does not contain any CA certificates in {object}")]
    NoCertificates {
        /// The key and the field that names it.
        key: String,
        /// Kind, namespace and name of the object.
        object: String,
    },
}

/// The namespace of the Concierge is not known.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The APIServices cannot be listed.
    #[error("error listing APIServices")]
    List(#[from] RequestError),
    /// No APIService names it.
    #[error("could not find APIService with non-empty spec.service.namespace for API group {0}")]
    NotFound(String),
}

/// Sets authenticator, issuer, audience and issuer CA if the user did not specify them.
pub(super) async fn fill_in(
    options: &mut Options,
    authenticator: &Authenticator,
    admin: &Admin,
    suffix: &GroupSuffix,
    printer: Printer,
) -> Result<(), IssuerCaError> {
    let flags = &mut options.concierge;
    if flags.authenticator_type.is_empty() && flags.authenticator_name.is_empty() {
        let name = [("name", json!(authenticator.name()))];
        match authenticator {
            Authenticator::Webhook(_) => printer.info("discovered WebhookAuthenticator", &name),
            Authenticator::Jwt(_) => printer.info("discovered JWTAuthenticator", &name),
        }
        flags.authenticator_type = authenticator.type_name().to_owned();
        flags.authenticator_name = authenticator.name().to_owned();
    }
    let Authenticator::Jwt(jwt) = authenticator else { return Ok(()) };

    let oidc = &mut options.oidc;
    if oidc.issuer.is_empty() {
        oidc.issuer = jwt.spec.issuer.clone();
        printer.info("discovered OIDC issuer", &[("issuer", json!(oidc.issuer))]);
    }
    if oidc.request_audience.is_empty() {
        oidc.request_audience = jwt.spec.audience.clone();
        printer.info("discovered OIDC audience", &[("audience", json!(oidc.request_audience))]);
    }
    // Workloads send no request to the issuer.
    if oidc.ca_bundle.is_empty() && options.workload_token.source.is_none() {
        let source = CaSource { jwt, admin, suffix, printer };
        oidc.ca_bundle = source.find().await?;
    }
    Ok(())
}

struct CaSource<'a> {
    jwt: &'a JwtAuthenticator,
    admin: &'a Admin,
    suffix: &'a GroupSuffix,
    printer: Printer,
}

impl CaSource<'_> {
    fn name(&self) -> String {
        self.jwt.metadata.name.clone().unwrap_or_default()
    }

    /// Returns the CA of the issuer as PEM; empty if the authenticator has none.
    async fn find(&self) -> Result<Vec<u8>, CaSourceError> {
        let Some(tls) = &self.jwt.spec.tls else { return Ok(Vec::new()) };
        if let Some(data) = tls.certificate_authority_data.as_deref().filter(|data| !data.is_empty()) {
            let pem = gobase64::decode(data.as_bytes())
                .map_err(|source| CaSourceError::Inline { authenticator: self.name(), source })?;
            self.printer.info("discovered OIDC CA bundle", &[("roots", json!(count_roots(&pem)))]);
            return Ok(pem);
        }
        let Some(source) = &tls.certificate_authority_data_source else { return Ok(Vec::new()) };
        let namespace = self
            .concierge_namespace()
            .await
            .map_err(|source| CaSourceError::Namespace { authenticator: self.name(), source })?;
        self.printer.info(
            "discovered Concierge namespace for API group suffix",
            &[("apiGroupSuffix", json!(self.suffix.as_str()))],
        );
        let value = self.read(source, &namespace).await?;
        let pem = self.check(source, &namespace, value)?;
        self.printer.info(
            "discovered OIDC CA bundle from JWTAuthenticator spec.tls.certificateAuthorityDataSource",
            &[("roots", json!(count_roots(&pem)))],
        );
        Ok(pem)
    }

    /// Returns the namespace of the Concierge, which is the namespace of the Service of its login
    /// API.
    async fn concierge_namespace(&self) -> Result<String, NamespaceError> {
        let group = self.suffix.replace(GROUP_LOGIN);
        let api: Api<APIService> = Api::all(self.admin.client.clone());
        let subject = Subject {
            verb: "list",
            resource: "apiservices.apiregistration.k8s.io",
            name: "",
            path: "/apis/apiregistration.k8s.io/v1/apiservices",
        };
        let all = api
            .list(&ListParams::default())
            .await
            .map_err(|error| self.admin.request_error(&error, subject))?;
        all.items
            .into_iter()
            .filter_map(|service| service.spec)
            .filter(|spec| spec.group.as_deref() == Some(group.as_str()))
            .filter_map(|spec| spec.service?.namespace)
            .find(|namespace| !namespace.is_empty())
            .ok_or(NamespaceError::NotFound(group))
    }

    /// Returns the value of the key, if the object has it.
    async fn read(
        &self,
        source: &CertificateAuthorityDataSource,
        namespace: &str,
    ) -> Result<Option<Vec<u8>>, CaSourceError> {
        let client = self.admin.client.clone();
        let (name, key) = (source.name.as_str(), source.key.as_str());
        match source.kind.as_str() {
            "Secret" => {
                let api: Api<Secret> = Api::namespaced(client, namespace);
                let secret =
                    api.get(name).await.map_err(|err| self.unreadable(source, namespace, "secrets", &err))?;
                Ok(secret.data.and_then(|mut data| data.remove(key)).map(|value| value.0))
            }
            "ConfigMap" => {
                let api: Api<ConfigMap> = Api::namespaced(client, namespace);
                let map = api
                    .get(name)
                    .await
                    .map_err(|err| self.unreadable(source, namespace, "configmaps", &err))?;
                Ok(map.data.and_then(|mut data| data.remove(key)).map(String::into_bytes))
            }
            kind => Err(CaSourceError::Kind { authenticator: self.name(), kind: kind.to_owned() }),
        }
    }

    fn unreadable(
        &self,
        source: &CertificateAuthorityDataSource,
        namespace: &str,
        resource: &str,
        error: &kube::Error,
    ) -> CaSourceError {
        let path = format!("/api/v1/namespaces/{namespace}/{resource}/{}", source.name);
        let subject = Subject { verb: "get", resource, name: &source.name, path: &path };
        CaSourceError::Read {
            object: format!("{} {namespace}/{}", source.kind, source.name),
            authenticator: self.name(),
            source: self.admin.request_error(error, subject),
        }
    }

    fn check(
        &self,
        source: &CertificateAuthorityDataSource,
        namespace: &str,
        value: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, CaSourceError> {
        let key = format!(
            "key {} specified by JWTAuthenticator {} spec.tls.certificateAuthorityDataSource.key",
            quote(&source.key),
            self.name()
        );
        let object = format!("{} {namespace}/{}", source.kind, source.name);
        match value {
            None => Err(CaSourceError::NoKey { key, object }),
            Some(value) if value.is_empty() => Err(CaSourceError::EmptyKey { key, object }),
            Some(value) if CaBundle::from_pem(&value).is_err() => {
                Err(CaSourceError::NoCertificates { key, object })
            }
            Some(value) => Ok(value),
        }
    }
}
