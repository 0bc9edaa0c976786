//! Where TLS ends: the configuration of each host, and when its connections have to go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinniped_pki::CertificatePair;
use pinniped_pki::tls::{ALPN_HTTP, ClientDemand, ClientDemandError, Versions, host_config};
use pinniped_routing::RoutingTable;
use pinniped_routing::table::{
    ClientValidation, Fallback, HostPattern, Terminated, Termination, TlsAction, TlsHost, TlsTarget,
    TlsVersion, TlsVersions,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The end of TLS for one host.
pub(crate) struct End {
    facts: Facts,
    pub(crate) acceptor: TlsAcceptor,
    /// Cancelled when the host is gone, or served otherwise: its connections end in an orderly way.
    pub(crate) retired: CancellationToken,
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
    validation: Option<Arc<ClientValidation>>,
    http: bool,
}

impl Facts {
    fn of(target: TlsTarget<'_>) -> Option<Self> {
        match target {
            TlsTarget::Host(host) => {
                let TlsAction::Terminate(termination) = &host.action else { return None };
                Some(Self {
                    certificate: Arc::clone(&termination.certificate),
                    versions: termination.versions,
                    validation: termination.client_validation.clone(),
                    http: matches!(termination.inside, Terminated::Http(_)),
                })
            }
            TlsTarget::Fallback(fallback) => Some(Self {
                certificate: Arc::clone(&fallback.certificate),
                versions: fallback.versions,
                validation: None,
                http: true,
            }),
        }
    }

    fn is(&self, other: &Self) -> bool {
        let same_certificate = Arc::ptr_eq(&self.certificate, &other.certificate)
            || self.certificate.certificate_pem() == other.certificate.certificate_pem()
                && self.certificate.private_key_pem() == other.certificate.private_key_pem();
        same_certificate
            && self.versions == other.versions
            && self.http == other.http
            && same_validation(self.validation.as_ref(), other.validation.as_ref())
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
    fn new(facts: Facts, retired: CancellationToken) -> Result<Self, ClientDemandError> {
        let versions = match (facts.versions.min, facts.versions.max) {
            (TlsVersion::V1_3, _) => Versions::Only1_3,
            (TlsVersion::V1_2, TlsVersion::V1_2) => Versions::Only1_2,
            (TlsVersion::V1_2, TlsVersion::V1_3) => Versions::Both,
        };
        let demand = facts.validation.as_deref().map(|must| ClientDemand {
            ca: &must.ca,
            revocations: must.revocations.as_deref(),
            revocations_of_leaf_only: must.revocations_of_leaf_only,
            optional: must.optional,
        });
        let alpn = if facts.http { ALPN_HTTP } else { &[] };
        let config = host_config(versions, &facts.certificate, demand, alpn)?;
        Ok(Self { facts, acceptor: TlsAcceptor::from(config), retired })
    }

    pub(crate) fn validation(&self) -> Option<&Arc<ClientValidation>> {
        self.facts.validation.as_ref()
    }
}

/// The ends in use, made with the first handshake of each.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<Made>);

/// While somebody has this, the table does not change.
pub(crate) struct Locked<'a>(MutexGuard<'a, Made>);

#[derive(Debug, Default)]
struct Made {
    hosts: HashMap<HostPattern, Arc<End>>,
    fallback: Option<Arc<End>>,
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
    ) -> Result<Option<Arc<End>>, ClientDemandError> {
        let made = match target {
            TlsTarget::Host(host) => self.0.hosts.get(&host.pattern),
            TlsTarget::Fallback(_) => self.0.fallback.as_ref(),
        };
        if let Some(end) = made {
            return Ok(Some(Arc::clone(end)));
        }
        let Some(facts) = Facts::of(target) else { return Ok(None) };
        let end = Arc::new(End::new(facts, draining.child_token())?);
        match target {
            TlsTarget::Host(host) => {
                self.0.hosts.insert(host.pattern.clone(), Arc::clone(&end));
            }
            TlsTarget::Fallback(_) => self.0.fallback = Some(Arc::clone(&end)),
        }
        Ok(Some(end))
    }

    /// Tells the connections of what is served otherwise in `table` to end, and forgets it.
    pub(crate) fn retire(&mut self, table: &RoutingTable) {
        self.0.hosts.retain(|pattern, end| {
            let host = table.tls.hosts.of_pattern(pattern);
            stays(end, host.and_then(|host| Facts::of(TlsTarget::Host(host))))
        });
        let fallback = table.tls.fallback.as_ref();
        let facts = |fallback: &Arc<Fallback>| Facts::of(TlsTarget::Fallback(fallback));
        if self.0.fallback.as_ref().is_some_and(|end| !stays(end, fallback.and_then(facts))) {
            self.0.fallback = None;
        }
    }
}

fn stays(end: &End, now: Option<Facts>) -> bool {
    let stays = now.is_some_and(|now| end.facts.is(&now));
    if !stays {
        end.retired.cancel();
    }
    stays
}
