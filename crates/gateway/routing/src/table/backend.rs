//! Where requests and connections go.

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
    /// The Service's namespace.
    pub namespace: Box<str>,
    /// The Service's name.
    pub name: Box<str>,
    /// The Service's port.
    pub port: u16,
}

impl std::fmt::Display for ServicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// What a backend speaks. For a [`TcpProxy`] that terminates TLS, `Tls` and `H2` both mean: wrap the bytes in TLS
/// again.
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
    /// Whether connections to the backend are wrapped in TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::H2 | Self::Tls)
    }
}

/// How an endpoint of an [`Upstream`] is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Any.
    Random,
    /// The one with the fewest requests, of two taken at random.
    LeastRequest,
}

/// What a backend's certificate must be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamValidation {
    /// The CAs that it may be of.
    pub ca: Arc<CaBundle>,
    /// The names of which it must be for one; never empty.
    pub names: Arc<[Box<str>]>,
}

impl Hash for UpstreamValidation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The bundle is long, and there is seldom more than one for a name.
        self.names.hash(state);
    }
}

/// What makes one backend different from another. It stays the same while endpoints come and go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId {
    /// Whose endpoints.
    pub service: ServicePort,
    /// What they speak.
    pub protocol: Protocol,
    /// How one is chosen.
    pub balance: Balance,
    /// What their certificates must be like; not verified without it.
    pub validation: Option<UpstreamValidation>,
    /// How long a connection may be kept without a request; for ever if `None`.
    pub idle_connection: Option<Duration>,
}

/// A backend, and where it is now.
#[derive(Debug)]
pub struct Upstream {
    /// Which one.
    pub id: UpstreamId,
    /// The certificate that the gateway shows to it.
    pub client_certificate: Option<Arc<CertificatePair>>,
    /// Its endpoints that are ready, sorted. May be empty: 503, or a closed connection.
    pub endpoints: Arc<[SocketAddr]>,
}

/// A backend and its share.
#[derive(Clone, Debug)]
pub struct Weighted {
    /// Its share; never 0.
    pub weight: u32,
    /// The backend.
    pub upstream: Arc<Upstream>,
}

/// Backends by weight; at least one.
#[derive(Clone, Debug)]
pub struct Backends {
    choices: Box<[Weighted]>,
    total: u64,
}

impl Backends {
    /// Of weights as they are written: one backend needs none; if all are 0 the shares are equal; otherwise those
    /// with 0 get nothing and are left out. `None` without a backend.
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

    /// All of them.
    pub fn choices(&self) -> &[Weighted] {
        &self.choices
    }

    /// The backend for a number drawn at random, or counted up: each gets its share of all numbers.
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

/// Connections go to these, byte for byte.
#[derive(Clone, Debug)]
pub struct TcpProxy {
    /// Where to.
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
    fn t8_one_weight_is_ignored_none_means_equal_shares_and_zero_beside_others_is_idle() {
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
    fn each_backend_is_picked_by_its_share() {
        let backends =
            Backends::new(vec![(7, upstream("a")), (0, upstream("b")), (3, upstream("c"))]).unwrap();
        let picked: String = (0..20).map(|n| backends.pick(n).id.service.name.to_string()).collect();
        assert_eq!(picked, "aaaaaaacccaaaaaaaccc");
        let many = Backends::new(vec![(u32::MAX, upstream("a")), (u32::MAX, upstream("b"))]).unwrap();
        assert_eq!(&*many.pick(u64::from(u32::MAX)).id.service.name, "b");
    }
}
