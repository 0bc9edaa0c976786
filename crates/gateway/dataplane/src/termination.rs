//! Where TLS ends: the configuration of each host, and when its connections have to go.

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

/// The end of TLS for one host.
pub(crate) struct End {
    facts: Facts,
    pub(crate) acceptor: TlsAcceptor,
    /// Cancelled when the host is gone, or served otherwise: its connections end in an orderly way.
    pub(crate) retired: CancellationToken,
    /// What the connections rest on, which outlives a renewed certificate.
    pub(crate) grant: Grant,
}

/// What the connections of a host rest on: the permission to serve with a Secret, and what clients must show. While
/// these stay, a renewed certificate or another version of TLS is no reason to cut a connection.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// Cancelled when it is gone.
    pub(crate) revoked: CancellationToken,
    /// Cancelled when it is gone, and when the gateway stops.
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

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("End").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// What an [`End`] was made of.
#[derive(Clone, Debug)]
struct Facts {
    certificate: Arc<CertificatePair>,
    versions: TlsVersions,
    basis: Basis,
}

/// What a [`Grant`] is about.
#[derive(Clone, Debug)]
struct Basis {
    /// Where the certificate comes from; an administrator chose the fallback's.
    secret: Option<SecretReference>,
    validation: Option<Arc<ClientValidation>>,
    http: bool,
}

impl Basis {
    fn is(&self, other: &Self) -> bool {
        self.secret == other.secret
            && self.http == other.http
            && same_validation(self.validation.as_ref(), other.validation.as_ref())
    }
}

impl Facts {
    fn of(target: TlsTarget<'_>) -> Option<Self> {
        match target {
            TlsTarget::Host(host) => {
                let TlsAction::Terminate(termination) = &host.action else { return None };
                Some(Self {
                    certificate: Arc::clone(&termination.certificate),
                    versions: termination.versions,
                    basis: Basis {
                        secret: Some(termination.secret.clone()),
                        validation: termination.client_validation.clone(),
                        http: matches!(termination.inside, Terminated::Http(_)),
                    },
                })
            }
            TlsTarget::Fallback(fallback) => Some(Self {
                certificate: Arc::clone(&fallback.certificate),
                versions: fallback.versions,
                basis: Basis { secret: None, validation: None, http: true },
            }),
        }
    }

    fn is(&self, other: &Self) -> bool {
        let same_certificate = Arc::ptr_eq(&self.certificate, &other.certificate)
            || self.certificate.certificate_pem() == other.certificate.certificate_pem()
                && self.certificate.private_key_pem() == other.certificate.private_key_pem();
        same_certificate && self.versions == other.versions && self.basis.is(&other.basis)
    }
}

/// Whether clients have to show the same thing.
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

/// What clients of a host have to show.
pub(crate) fn validation(host: &TlsHost) -> Option<&Arc<ClientValidation>> {
    match &host.action {
        TlsAction::Terminate(Termination { client_validation, .. }) => client_validation.as_ref(),
        TlsAction::Passthrough(_) => None,
    }
}

impl End {
    fn new(facts: Facts, retired: CancellationToken, grant: Grant) -> Result<Self, ClientDemandError> {
        let versions = match (facts.versions.min, facts.versions.max) {
            (TlsVersion::V1_3, _) => Versions::Only1_3,
            (TlsVersion::V1_2, TlsVersion::V1_2) => Versions::Only1_2,
            (TlsVersion::V1_2, TlsVersion::V1_3) => Versions::Both,
        };
        let demand = facts.basis.validation.as_deref().map(|must| ClientDemand {
            ca: &must.ca,
            revocations: must.revocations.as_deref(),
            revocations_of_leaf_only: must.revocations_of_leaf_only,
            optional: must.optional,
        });
        let alpn = if facts.basis.http { ALPN_HTTP } else { &[] };
        let config = host_config(versions, &facts.certificate, demand, alpn)?;
        Ok(Self { facts, acceptor: TlsAcceptor::from(config), retired, grant })
    }

    pub(crate) fn validation(&self) -> Option<&Arc<ClientValidation>> {
        self.facts.basis.validation.as_ref()
    }
}

/// Why there is no end for a host. Told to the log once, and known until the table says otherwise: making it again for
/// every connection would cost more than the connection.
#[derive(Clone, Debug)]
struct Impossible {
    facts: Facts,
    why: Arc<ClientDemandError>,
}

/// What was tried for a host.
type Tried = Result<Arc<End>, Impossible>;

/// The ends in use, made with the first handshake of each.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<Made>);

/// While somebody has this, the table does not change.
pub(crate) struct Locked<'a>(MutexGuard<'a, Made>);

#[derive(Debug, Default)]
struct Made {
    hosts: HashMap<HostPattern, Tried>,
    fallback: Option<Arc<End>>,
    /// What the connections of hosts rest on. No longer than the table is.
    grants: HashMap<HostPattern, (Basis, Grant)>,
    fallback_grant: Option<Grant>,
    /// What the upgraded connections of the fallback's hosts rest on.
    fallback_hosts: HashMap<HostPattern, Grant>,
}

impl Ends {
    pub(crate) fn lock(&self) -> Locked<'_> {
        // What it guards is whole between any two statements, so a panic elsewhere does not spoil it.
        Locked(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Locked<'_> {
    /// The end for a host or the fallback; `None` for passthrough.
    pub(crate) fn of(
        &mut self,
        target: TlsTarget<'_>,
        draining: &CancellationToken,
    ) -> Result<Option<Arc<End>>, Arc<ClientDemandError>> {
        let Some(facts) = Facts::of(target) else { return Ok(None) };
        let end = match target {
            TlsTarget::Host(host) => match self.0.hosts.get(&host.pattern) {
                Some(tried) => return tried.clone().map(Some).map_err(|impossible| impossible.why),
                None => {
                    let grants = self.0.grants.entry(host.pattern.clone());
                    let (_, grant) = grants.or_insert_with(|| (facts.basis.clone(), Grant::new(draining)));
                    let tried = try_to_make(host, facts, draining, grant.clone());
                    self.0.hosts.insert(host.pattern.clone(), tried.clone());
                    tried.map_err(|impossible| impossible.why)?
                }
            },
            TlsTarget::Fallback(_) => match &self.0.fallback {
                Some(end) => Arc::clone(end),
                // Nothing is demanded of clients here, so nothing can be wrong with that.
                None => {
                    let grant = self.0.fallback_grant.get_or_insert_with(|| Grant::new(draining)).clone();
                    let end = Arc::new(End::new(facts, draining.child_token(), grant).map_err(Arc::new)?);
                    Arc::clone(self.0.fallback.insert(end))
                }
            },
        };
        Ok(Some(end))
    }

    /// What an upgraded connection of one of the fallback's hosts rests on.
    pub(crate) fn of_fallback_host(&mut self, pattern: HostPattern, draining: &CancellationToken) -> &Grant {
        self.0.fallback_hosts.entry(pattern).or_insert_with(|| Grant::new(draining))
    }

    /// Tells the connections of what is served otherwise in `table` to end, and forgets it.
    pub(crate) fn retire(&mut self, table: &RoutingTable) {
        self.retire_ends(table);
        self.0.grants.retain(|pattern, (basis, grant)| {
            let host = table.tls.hosts.of_pattern(pattern);
            let now = host.and_then(|host| Facts::of(TlsTarget::Host(host)));
            kept(grant, now.is_some_and(|now| basis.is(&now.basis)))
        });
        let fallback = table.tls.fallback.as_ref();
        self.0.fallback_grant.take_if(|grant| !kept(grant, fallback.is_some()));
        self.0.fallback_hosts.retain(|pattern, grant| {
            kept(grant, fallback.is_some_and(|fallback| fallback.hosts.of_pattern(pattern).is_some()))
        });
    }

    fn retire_ends(&mut self, table: &RoutingTable) {
        self.0.hosts.retain(|pattern, tried| {
            let host = table.tls.hosts.of_pattern(pattern);
            let now = host.and_then(|host| Facts::of(TlsTarget::Host(host)));
            match tried {
                Ok(end) => stays(end, now),
                Err(impossible) => now.is_some_and(|now| impossible.facts.is(&now)),
            }
        });
        let fallback = table.tls.fallback.as_ref();
        let facts = |fallback: &Arc<Fallback>| Facts::of(TlsTarget::Fallback(fallback));
        if self.0.fallback.as_ref().is_some_and(|end| !stays(end, fallback.and_then(facts))) {
            self.0.fallback = None;
        }
    }
}

fn try_to_make(host: &TlsHost, facts: Facts, draining: &CancellationToken, grant: Grant) -> Tried {
    End::new(facts.clone(), draining.child_token(), grant).map(Arc::new).map_err(|error| {
        tracing::warn!(host = %host.pattern, %error, "no client can meet what a host demands, so it serves nobody");
        Impossible { facts, why: Arc::new(error) }
    })
}

/// Revokes a grant that does not stay.
fn kept(grant: &Grant, stays: bool) -> bool {
    if !stays {
        grant.revoke();
    }
    stays
}

fn stays(end: &End, now: Option<Facts>) -> bool {
    let stays = now.is_some_and(|now| end.facts.is(&now));
    if !stays {
        end.retired.cancel();
    }
    stays
}

#[cfg(test)]
mod tests {
    use pinniped_gateway_routing::table::{
        Backends, Balance, Protocol, ServicePort, TcpProxy, Upstream, UpstreamId,
    };
    use pinniped_test_support::certs::Authority;

    use super::*;

    #[test]
    fn what_cannot_be_made_is_tried_once_for_a_table() {
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
        let nobody = ClientValidation {
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
                client_validation: Some(Arc::new(nobody)),
                inside: Terminated::Tcp(TcpProxy {
                    backends: Backends::new(vec![(1, Arc::new(upstream))]).unwrap(),
                }),
            }),
        });
        let (ends, draining) = (Ends::default(), CancellationToken::new());
        let fail = || ends.lock().of(TlsTarget::Host(&host), &draining).unwrap_err();
        let first = fail();
        assert!(Arc::ptr_eq(&first, &fail()), "made and told again");
        // Another table in which nothing has changed for the host.
        let mut table = RoutingTable::default();
        table.tls.hosts.insert(pattern, Arc::clone(&host));
        ends.lock().retire(&table);
        assert!(Arc::ptr_eq(&first, &fail()), "made and told again");
        ends.lock().retire(&RoutingTable::default());
        assert!(!Arc::ptr_eq(&first, &fail()), "kept for a host that is gone");
    }
}
