//! The destinations of requests and connections.

use std::{
    hash::{Hash, Hasher},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use pinniped_pki::{CaBundle, CertificatePair};

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePort {
    /// The namespace of the Service.
    pub namespace: Box<str>,
    /// The name of the Service.
    pub name: Box<str>,
    /// The port of the Service.
    pub port: u16,
}

impl std::fmt::Display for ServicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// The protocol of a backend. For a [`TcpProxy`] that terminates TLS, `Tls` and `H2` both mean that
/// the bytes are encrypted with TLS again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS.
    H2c,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/1.1 over TLS.
    Tls,
}

impl Protocol {
    /// Returns whether connections to the backend use TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::H2 | Self::Tls)
    }
}

/// The load balancing policy for the endpoints of an [`Upstream`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Balance {
    /// Round robin.
    #[default]
    RoundRobin,
    /// Random.
    Random,
    /// The endpoint with fewer requests of two random ones.
    LeastRequest,
}

/// The requirements for a backend's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamValidation {
    /// The trusted CAs.
    pub ca: Arc<CaBundle>,
    /// The names of which the certificate must contain one; never empty.
    pub names: Arc<[Box<str>]>,
}

impl Hash for UpstreamValidation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The bundle is long, and there is rarely more than one for a name, so only the names are
        // hashed.
        self.names.hash(state);
    }
}

/// The identity of a backend. It stays the same while endpoints change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId {
    /// The Service whose endpoints the backend uses.
    pub service: ServicePort,
    /// The protocol of the endpoints.
    pub protocol: Protocol,
    /// The load balancing policy.
    pub balance: Balance,
    /// The requirements for the certificates; `None` disables verification.
    pub validation: Option<UpstreamValidation>,
    /// The idle timeout of keep-alive connections; no timeout if `None`.
    pub idle_connection: Option<Duration>,
}

/// A backend and its current endpoints.
#[derive(Debug)]
pub struct Upstream {
    /// The identity.
    pub id: UpstreamId,
    /// The client certificate for the backend.
    pub client_certificate: Option<Arc<CertificatePair>>,
    /// The ready endpoints, sorted. If empty, requests get a 503 and connections are closed.
    pub endpoints: Arc<[SocketAddr]>,
}

/// A backend and its weight.
#[derive(Clone, Debug)]
pub struct Weighted {
    /// The weight; never 0.
    pub weight: u32,
    /// The backend.
    pub upstream: Arc<Upstream>,
}

/// Weighted backends; at least one.
#[derive(Clone, Debug)]
pub struct Backends {
    choices: Box<[Weighted]>,
    total: u64,
}

impl Backends {
    /// Creates backends from the configured weights: the weight of a single backend is ignored; if
    /// all weights are 0, they become equal; otherwise backends with weight 0 are omitted. Returns
    /// `None` without a backend.
    pub fn new(written: Vec<(u32, Arc<Upstream>)>) -> Option<Self> {
        let equal = written.len() == 1 || written.iter().all(|(weight, _)| *weight == 0);
        let choices: Box<[Weighted]> = written
            .into_iter()
            .map(|(weight, upstream)| Weighted { weight: if equal { 1 } else { weight }, upstream })
            .filter(|choice| choice.weight > 0)
            .collect();
        let total = choices.iter().map(|choice| u64::from(choice.weight)).sum();
        (!choices.is_empty()).then_some(Self { choices, total })
    }

    /// Returns all backends.
    pub fn choices(&self) -> &[Weighted] {
        &self.choices
    }

    /// Returns the backend for a number, which may be random or a counter: each backend gets its
    /// share of all numbers.
    pub fn pick(&self, number: u64) -> &Arc<Upstream> {
        let mut left = number % self.total;
        for choice in &self.choices {
            let weight = u64::from(choice.weight);
            if left < weight {
                return &choice.upstream;
            }
            left -= weight;
        }
        // The remainder is less than the sum of all weights.
        &self.choices[self.choices.len() - 1].upstream
    }
}

/// A TCP proxy: connections are relayed byte for byte.
#[derive(Clone, Debug)]
pub struct TcpProxy {
    /// The destinations.
    pub backends: Backends,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(name: &str) -> Arc<Upstream> {
        Arc::new(Upstream {
            id: UpstreamId {
                service: ServicePort { namespace: "ns".into(), name: name.into(), port: 80 },
                protocol: Protocol::Http1,
                balance: Balance::RoundRobin,
                validation: None,
                idle_connection: None,
            },
            client_certificate: None,
            endpoints: Arc::new([]),
        })
    }

    fn shares(weights: &[u32]) -> Vec<(String, u32)> {
        let written = weights.iter().enumerate().map(|(i, weight)| (*weight, upstream(&i.to_string())));
        let backends = Backends::new(written.collect());
        backends
            .iter()
            .flat_map(Backends::choices)
            .map(|c| (c.upstream.id.service.name.to_string(), c.weight))
            .collect()
    }

    #[test]
    fn t8_weights_of_single_all_zero_and_mixed_backends() {
        type Shares = &'static [(&'static str, u32)];
        let table: [(&[u32], Shares); 6] = [
            (&[], &[]),
            (&[70], &[("0", 1)]),
            (&[0], &[("0", 1)]),
            (&[7, 77], &[("0", 7), ("1", 77)]),
            (&[0, 0, 0], &[("0", 1), ("1", 1), ("2", 1)]),
            (&[77, 0, 7], &[("0", 77), ("2", 7)]),
        ];
        for (weights, wanted) in table {
            let wanted: Vec<(String, u32)> = wanted.iter().map(|(n, w)| ((*n).to_owned(), *w)).collect();
            assert_eq!(shares(weights), wanted, "{weights:?}");
        }
    }

    #[test]
    fn backends_are_picked_in_proportion_to_their_weights() {
        let backends =
            Backends::new(vec![(7, upstream("a")), (0, upstream("b")), (3, upstream("c"))]).unwrap();
        let picked: String = (0..20).map(|n| backends.pick(n).id.service.name.to_string()).collect();
        assert_eq!(picked, "aaaaaaacccaaaaaaaccc");
        let many = Backends::new(vec![(u32::MAX, upstream("a")), (u32::MAX, upstream("b"))]).unwrap();
        assert_eq!(&*many.pick(u64::from(u32::MAX)).id.service.name, "b");
    }
}
