//! TLS termination: the TLS configuration of each host, and the termination of its connections when
//! that changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_routing::RoutingTable;
use pinniped_gateway_routing::table::{
    ClientValidation, Fallback, HostPattern, Terminated, Termination, TlsAction, TlsHost, TlsTarget,
    TlsVersion, TlsVersions,
};
use pinniped_pki::CertificatePair;
use pinniped_pki::tls::{ALPN_HTTP, ClientDemand, ClientDemandError, Versions, host_config};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The TLS configuration of one host.
pub(crate) struct HostTlsConfig {
    inputs: Inputs,
    pub(crate) acceptor: TlsAcceptor,
    /// Cancelled when the host is removed or its configuration changes: its connections finish
    /// their running requests and close.
    pub(crate) retired: CancellationToken,
    /// The permission that the connections depend on, which survives the renewal of a certificate.
    pub(crate) grant: Grant,
}

/// The conditions that the connections of a host depend on: the permission to use a Secret, and the
/// client validation. While these are unchanged, a renewed certificate or another version of TLS
/// does not terminate a connection.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// Cancelled when the permission is revoked.
    pub(crate) revoked: CancellationToken,
    /// Cancelled when the permission is revoked, and when the gateway stops.
    pub(crate) ended: CancellationToken,
}

impl Grant {
    fn new(draining: &CancellationToken) -> Self {
        Self { revoked: CancellationToken::new(), ended: draining.child_token() }
    }

    fn revoke(&self) {
        self.revoked.cancel();
        self.ended.cancel();
    }
}

impl std::fmt::Debug for HostTlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostTlsConfig").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

/// The input of a [`HostTlsConfig`].
#[derive(Clone, Debug)]
struct Inputs {
    certificate: Arc<CertificatePair>,
    versions: TlsVersions,
    conditions: GrantConditions,
}

/// The conditions of a [`Grant`].
#[derive(Clone, Debug)]
struct GrantConditions {
    /// The Secret of the certificate; `None` for the fallback, whose certificate an administrator
    /// configures.
    secret: Option<SecretReference>,
    validation: Option<Arc<ClientValidation>>,
    http: bool,
}

impl GrantConditions {
    fn is(&self, other: &Self) -> bool {
        self.secret == other.secret
            && self.http == other.http
            && same_validation(self.validation.as_ref(), other.validation.as_ref())
    }
}

impl Inputs {
    fn of(target: TlsTarget<'_>) -> Option<Self> {
        match target {
            TlsTarget::Host(host) => {
                let TlsAction::Terminate(termination) = &host.action else { return None };
                Some(Self {
                    certificate: Arc::clone(&termination.certificate),
                    versions: termination.versions,
                    conditions: GrantConditions {
                        secret: Some(termination.secret.clone()),
                        validation: termination.client_validation.clone(),
                        http: matches!(termination.inside, Terminated::Http(_)),
                    },
                })
            }
            TlsTarget::Fallback(fallback) => Some(Self {
                certificate: Arc::clone(&fallback.certificate),
                versions: fallback.versions,
                conditions: GrantConditions { secret: None, validation: None, http: true },
            }),
        }
    }

    fn is(&self, other: &Self) -> bool {
        let same_certificate = Arc::ptr_eq(&self.certificate, &other.certificate)
            || self.certificate.certificate_pem() == other.certificate.certificate_pem()
                && self.certificate.private_key_pem() == other.certificate.private_key_pem();
        same_certificate && self.versions == other.versions && self.conditions.is(&other.conditions)
    }
}

/// Returns whether both client validations are the same.
pub(crate) fn same_validation(
    one: Option<&Arc<ClientValidation>>,
    other: Option<&Arc<ClientValidation>>,
) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Returns the client validation of a host.
pub(crate) fn validation(host: &TlsHost) -> Option<&Arc<ClientValidation>> {
    match &host.action {
        TlsAction::Terminate(Termination { client_validation, .. }) => client_validation.as_ref(),
        TlsAction::Passthrough(_) => None,
    }
}

impl HostTlsConfig {
    fn new(inputs: Inputs, retired: CancellationToken, grant: Grant) -> Result<Self, ClientDemandError> {
        let versions = match (inputs.versions.min, inputs.versions.max) {
            (TlsVersion::V1_3, _) => Versions::Only1_3,
            (TlsVersion::V1_2, TlsVersion::V1_2) => Versions::Only1_2,
            (TlsVersion::V1_2, TlsVersion::V1_3) => Versions::Both,
        };
        let demand = inputs.conditions.validation.as_deref().map(|must| ClientDemand {
            ca: &must.ca,
            revocations: must.revocations.as_deref(),
            revocations_of_leaf_only: must.revocations_of_leaf_only,
            optional: must.optional,
        });
        let alpn = if inputs.conditions.http { ALPN_HTTP } else { &[] };
        let config = host_config(versions, &inputs.certificate, demand, alpn)?;
        Ok(Self { inputs, acceptor: TlsAcceptor::from(config), retired, grant })
    }

    pub(crate) fn validation(&self) -> Option<&Arc<ClientValidation>> {
        self.inputs.conditions.validation.as_ref()
    }
}

/// The reason why a host has no TLS configuration. Logged once and cached until the table changes:
/// repeating the attempt for every connection would cost more than the connection.
#[derive(Clone, Debug)]
struct InvalidConfig {
    inputs: Inputs,
    why: Arc<ClientDemandError>,
}

/// The result of building the configuration of a host.
type ConfigResult = Result<Arc<HostTlsConfig>, InvalidConfig>;

/// The configurations in use, each created by the first handshake of its host.
#[derive(Debug, Default)]
pub(crate) struct HostTlsConfigs(Mutex<ConfigMap>);

/// A guard. The table does not change while it exists.
pub(crate) struct LockedConfigs<'a>(MutexGuard<'a, ConfigMap>);

#[derive(Debug, Default)]
struct ConfigMap {
    hosts: HashMap<HostPattern, ConfigResult>,
    fallback: Option<Arc<HostTlsConfig>>,
    /// The grants of hosts. An entry does not outlive its host in the table.
    grants: HashMap<HostPattern, (GrantConditions, Grant)>,
    fallback_grant: Option<Grant>,
    /// The grants of upgraded connections to hosts of the fallback.
    fallback_hosts: HashMap<HostPattern, Grant>,
}

impl HostTlsConfigs {
    pub(crate) fn lock(&self) -> LockedConfigs<'_> {
        // A panic elsewhere cannot leave the value in an inconsistent state: each statement
        // completes it.
        LockedConfigs(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LockedConfigs<'_> {
    /// Returns the configuration of a host or the fallback; `None` for passthrough.
    pub(crate) fn of(
        &mut self,
        target: TlsTarget<'_>,
        draining: &CancellationToken,
    ) -> Result<Option<Arc<HostTlsConfig>>, Arc<ClientDemandError>> {
        let Some(inputs) = Inputs::of(target) else { return Ok(None) };
        let tls_config = match target {
            TlsTarget::Host(host) => match self.0.hosts.get(&host.pattern) {
                Some(result) => return result.clone().map(Some).map_err(|invalid| invalid.why),
                None => {
                    let grants = self.0.grants.entry(host.pattern.clone());
                    let (_, grant) =
                        grants.or_insert_with(|| (inputs.conditions.clone(), Grant::new(draining)));
                    let result = try_create(host, inputs, draining, grant.clone());
                    self.0.hosts.insert(host.pattern.clone(), result.clone());
                    result.map_err(|invalid| invalid.why)?
                }
            },
            TlsTarget::Fallback(_) => match &self.0.fallback {
                Some(tls_config) => Arc::clone(tls_config),
                // Without client validation the configuration cannot fail.
                None => {
                    let grant = self.0.fallback_grant.get_or_insert_with(|| Grant::new(draining)).clone();
                    let tls_config = Arc::new(
                        HostTlsConfig::new(inputs, draining.child_token(), grant).map_err(Arc::new)?,
                    );
                    Arc::clone(self.0.fallback.insert(tls_config))
                }
            },
        };
        Ok(Some(tls_config))
    }

    /// Returns the grant for upgraded connections to a host of the fallback.
    pub(crate) fn of_fallback_host(&mut self, pattern: HostPattern, draining: &CancellationToken) -> &Grant {
        self.0.fallback_hosts.entry(pattern).or_insert_with(|| Grant::new(draining))
    }

    /// Terminates the connections of hosts that changed in `table`, and removes their
    /// configurations.
    pub(crate) fn retire(&mut self, table: &RoutingTable) {
        self.retire_configs(table);
        self.0.grants.retain(|pattern, (conditions, grant)| {
            let host = table.tls.hosts.of_pattern(pattern);
            let now = host.and_then(|host| Inputs::of(TlsTarget::Host(host)));
            revoke_if_changed(grant, now.is_some_and(|now| conditions.is(&now.conditions)))
        });
        let fallback = table.tls.fallback.as_ref();
        self.0.fallback_grant.take_if(|grant| !revoke_if_changed(grant, fallback.is_some()));
        self.0.fallback_hosts.retain(|pattern, grant| {
            revoke_if_changed(
                grant,
                fallback.is_some_and(|fallback| fallback.hosts.of_pattern(pattern).is_some()),
            )
        });
    }

    fn retire_configs(&mut self, table: &RoutingTable) {
        self.0.hosts.retain(|pattern, result| {
            let host = table.tls.hosts.of_pattern(pattern);
            let now = host.and_then(|host| Inputs::of(TlsTarget::Host(host)));
            match result {
                Ok(tls_config) => retire_if_changed(tls_config, now),
                Err(invalid) => now.is_some_and(|now| invalid.inputs.is(&now)),
            }
        });
        let fallback = table.tls.fallback.as_ref();
        let inputs = |fallback: &Arc<Fallback>| Inputs::of(TlsTarget::Fallback(fallback));
        if self
            .0
            .fallback
            .as_ref()
            .is_some_and(|tls_config| !retire_if_changed(tls_config, fallback.and_then(inputs)))
        {
            self.0.fallback = None;
        }
    }
}

fn try_create(host: &TlsHost, inputs: Inputs, draining: &CancellationToken, grant: Grant) -> ConfigResult {
    HostTlsConfig::new(inputs.clone(), draining.child_token(), grant).map(Arc::new).map_err(|error| {
        tracing::warn!(host = %host.pattern, %error, "no client can satisfy the client validation of a host, so the host is not served");
        InvalidConfig { inputs, why: Arc::new(error) }
    })
}

/// Revokes a grant if its conditions have changed. Returns whether they are unchanged.
fn revoke_if_changed(grant: &Grant, is_unchanged: bool) -> bool {
    if !is_unchanged {
        grant.revoke();
    }
    is_unchanged
}

/// Retires a configuration if its input has changed. Returns whether it is unchanged.
fn retire_if_changed(config: &HostTlsConfig, now: Option<Inputs>) -> bool {
    let is_unchanged = now.is_some_and(|now| config.inputs.is(&now));
    if !is_unchanged {
        config.retired.cancel();
    }
    is_unchanged
}

#[cfg(test)]
mod tests {
    use pinniped_gateway_routing::table::{
        Backends, Balance, Protocol, ServicePort, TcpProxy, Upstream, UpstreamId,
    };
    use pinniped_test_support::certs::Authority;

    use super::*;

    #[test]
    fn an_invalid_configuration_is_tried_once_for_each_table() {
        pinniped_pki::install_crypto_provider();
        let pair = Authority::new("CA").unwrap().server("a", &["a"], &[]).unwrap();
        let certificate =
            CertificatePair::parse(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).unwrap();
        let id = UpstreamId {
            service: ServicePort { namespace: "ns".into(), name: "s".into(), port: 1 },
            protocol: Protocol::Http1,
            balance: Balance::RoundRobin,
            validation: None,
            idle_connection: None,
        };
        let upstream = Upstream { id, client_certificate: None, endpoints: [].into() };
        let unsatisfiable = ClientValidation {
            ca: Arc::default(),
            revocations: None,
            revocations_of_leaf_only: false,
            optional: false,
            forward: None,
        };
        let pattern = HostPattern::parse("a");
        let host = Arc::new(TlsHost {
            pattern: pattern.clone(),
            action: TlsAction::Terminate(Termination {
                certificate: Arc::new(certificate),
                secret: SecretReference { namespace: "ns".into(), name: "s".into() },
                versions: TlsVersions::default(),
                client_validation: Some(Arc::new(unsatisfiable)),
                inside: Terminated::Tcp(TcpProxy {
                    backends: Backends::new(vec![(1, Arc::new(upstream))]).unwrap(),
                }),
            }),
        });
        let (ends, draining) = (HostTlsConfigs::default(), CancellationToken::new());
        let fail = || ends.lock().of(TlsTarget::Host(&host), &draining).unwrap_err();
        let first = fail();
        assert!(Arc::ptr_eq(&first, &fail()), "created and logged again");
        // Another table without a change of the host.
        let mut table = RoutingTable::default();
        table.tls.hosts.insert(pattern, Arc::clone(&host));
        ends.lock().retire(&table);
        assert!(Arc::ptr_eq(&first, &fail()), "created and logged again");
        ends.lock().retire(&RoutingTable::default());
        assert!(!Arc::ptr_eq(&first, &fail()), "retained for a removed host");
    }
}
