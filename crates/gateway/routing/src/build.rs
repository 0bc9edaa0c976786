//! Builds the routing table from Kubernetes objects.

mod address;
mod class;
mod conditions;
mod draft;
mod http_proxy;
mod ingress;
mod ingress_route;
mod ownership;
mod secrets;
mod services;
mod timeout;

pub use address::{addresses, addresses_of_service};

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use pinniped_delegation::grants::{Grants, inert_wildcards};
use regex::bytes::RegexBuilder;

use crate::{
    Kind, Name, Notice, Objects, Settings,
    status::{HttpProxyValidation, IngressRouteValidation},
    table::{Pattern, RoutingTable, TlsVersion, TlsVersions},
};
use draft::Draft;
use ingress::AddedIngresses;
use ownership::Owners;
use secrets::{SecretCache, Secrets};
use services::{Services, Upstreams};

/// The memory limit of one compiled expression, in bytes.
const LARGEST_PATTERN: usize = 1 << 20;

/// The result of a build.
#[derive(Debug)]
pub struct Built {
    /// The routing table for the data plane.
    pub table: RoutingTable,
    /// The validation result of each `HTTPProxy` of the configured classes.
    pub http_proxies: BTreeMap<Name, HttpProxyValidation>,
    /// The validation result of each `IngressRoute` of the configured classes.
    pub ingress_routes: BTreeMap<Name, IngressRouteValidation>,
    /// Each `Ingress` of the configured classes in a permitted namespace. The status of an Ingress
    /// has no field for errors, only for addresses.
    pub ingresses: Vec<Name>,
    /// Each `Ingress` that is refused in part or completely because of its namespace, with the
    /// reason.
    pub refused_ingresses: BTreeMap<Name, String>,
    /// Messages for the log, sorted.
    pub notices: Vec<Notice>,
    /// The referenced objects that the result depends on, in addition to the routing objects.
    pub referenced: ReferencedObjects,
}

/// The objects that routing objects refer to, whether they exist or not. Changes of other Secrets,
/// Services and EndpointSlices have no effect on the result.
#[derive(Clone, Debug, Default)]
pub struct ReferencedObjects {
    /// Secrets. The builder does not read a Secret that the object may not use.
    pub secrets: HashSet<Name>,
    /// Services, with their EndpointSlices.
    pub services: HashSet<Name>,
}

/// Builds routing tables.
///
/// A builder caches values that are expensive to create, and the values of the last table: parsed
/// certificates (until the content of the Secret changes), compiled expressions, and backends,
/// which remain the same value while nothing about them changes. The end of each build removes the
/// entries that it did not use.
#[derive(Debug)]
pub struct Builder {
    settings: Settings,
    secrets: SecretCache,
    patterns: Patterns,
    upstreams: Upstreams,
}

impl Builder {
    /// Returns a builder with empty caches.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            secrets: SecretCache::default(),
            patterns: Patterns::default(),
            upstreams: Upstreams::default(),
        }
    }

    /// Builds the table for these objects.
    pub fn build(&mut self, objects: &Objects) -> Built {
        let mut notices = Vec::new();
        let grants = grants(objects, &mut notices);
        let mut world = World {
            settings: &self.settings,
            secrets: Secrets::new(grants, &objects.secrets, &mut self.secrets),
            services: Services::new(&objects.services, &objects.endpoint_slices, &mut self.upstreams),
            patterns: &mut self.patterns,
            owners: Owners::of(objects, &self.settings),
            notices: &mut notices,
        };
        // The kinds override each other in this order.
        let mut draft = Draft::default();
        let AddedIngresses { names: ingresses, refusals: refused_ingresses } =
            ingress::add(&objects.ingresses, &mut world, &mut draft);
        let ingress_routes = ingress_route::add(&objects.ingress_routes, &mut world, &mut draft);
        let http_proxies = http_proxy::add(&objects.http_proxies, &mut world, &mut draft);
        let referenced =
            ReferencedObjects { secrets: world.secrets.referenced(), services: world.services.referenced() };
        self.secrets.forget_unused();
        self.upstreams.forget_unused();
        self.patterns.forget_unused();
        notices.sort();
        notices.dedup();
        let table = draft.finish();
        Built { table, http_proxies, ingress_routes, ingresses, refused_ingresses, notices, referenced }
    }
}

/// The input that all kinds need.
struct World<'a> {
    settings: &'a Settings,
    secrets: Secrets<'a>,
    services: Services<'a>,
    patterns: &'a mut Patterns,
    owners: Owners,
    notices: &'a mut Vec<Notice>,
}

impl World<'_> {
    fn notice(&mut self, kind: Kind, name: &Name, text: impl Into<String>) {
        self.notices.push(Notice { kind, name: name.clone(), text: text.into() });
    }

    /// Returns the TLS versions that a host requests, limited to those that the settings allow;
    /// `None` if there are none.
    fn versions(&self, min: &str, max: &str) -> Option<TlsVersions> {
        let parse = |written: &str| match written {
            "1.2" => Some(TlsVersion::V1_2),
            "1.3" => Some(TlsVersion::V1_3),
            _ => None,
        };
        let allowed = self.settings.versions;
        let versions = TlsVersions {
            min: parse(min).unwrap_or(TlsVersion::V1_2).max(allowed.min),
            max: parse(max).unwrap_or(TlsVersion::V1_3).min(allowed.max),
        };
        (versions.min <= versions.max).then_some(versions)
    }
}

/// Returns the grants of the delegation objects of all API groups.
fn grants(objects: &Objects, notices: &mut Vec<Notice>) -> Grants {
    let mut grants = Grants::default();
    for object in &objects.delegations {
        let name = Name::of(&object.metadata);
        grants.add(&name.namespace, &object.spec.delegations);
        for secret in inert_wildcards(&object.spec.delegations) {
            notices.push(Notice {
                kind: Kind::TlsCertificateDelegation,
                name: name.clone(),
                text: format!(
                    "\"*\" together with other namespaces does not delegate Secret {secret:?} to all of them: use it as the only entry"
                ),
            });
        }
    }
    grants
}

/// Compiled expressions, keyed by their source.
#[derive(Debug, Default)]
struct Patterns(HashMap<Box<str>, (bool, Result<Pattern, regex::Error>)>);

impl Patterns {
    /// Compiles an expression that must match a complete text.
    fn compile(&mut self, written: &str) -> Result<Pattern, regex::Error> {
        if let Some((used, known)) = self.0.get_mut(written) {
            *used = true;
            return known.clone();
        }
        let compiled = compile(written);
        self.0.insert(written.into(), (true, compiled.clone()));
        compiled
    }

    /// Compiles an expression for the rest of the path after a prefix. The result never matches a
    /// path outside of the prefix.
    ///
    /// Contour concatenates prefix and expression, so that under `/blog` the expression `/x|/.*`
    /// matches every path. Here the expression is a group, and the prefix is checked separately.
    fn compile_below(&mut self, prefix: &str, written: &str) -> Result<Pattern, regex::Error> {
        // Compiled alone first: `/a)|(/b` is invalid, but would be valid within the group.
        let alone = self.compile(written)?;
        if prefix.is_empty() {
            return Ok(alone);
        }
        // The expression itself starts with a slash.
        let before = regex::escape(prefix.trim_end_matches('/'));
        let joined = match before.as_str() {
            "" => alone,
            before => self.compile(&format!("{before}(?:{written})"))?,
        };
        Ok(joined.restricted(prefix, before.len() + written.len()))
    }

    fn forget_unused(&mut self) {
        self.0.retain(|_, (used, _)| std::mem::take(used));
    }
}

fn compile(written: &str) -> Result<Pattern, regex::Error> {
    // Classes like `\d` match ASCII only, as in Go and in Envoy.
    let build = |pattern: &str| RegexBuilder::new(pattern).unicode(false).size_limit(LARGEST_PATTERN).build();
    // Compiled alone first: `a)|(b` is invalid, but would be valid between the parentheses.
    build(written)?;
    build(&format!("^(?:{written})$")).map(|whole| Pattern::new(Arc::from(written), whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_must_match_the_complete_text() {
        let mut patterns = Patterns::default();
        for (written, text, wanted) in [
            ("/x.*", "/xyz", true),
            ("/x", "/xyz", false),
            ("x", "/x", false),
            ("/a|/b", "/b", true),
            ("/a|/b", "/ab", false),
            (r"/\d+", "/12", true),
            (r"/\d+", "/\u{663}", false),
            ("/a$", "/a\n", false),
        ] {
            assert_eq!(
                patterns.compile(written).unwrap().matches(text.as_bytes()),
                wanted,
                "{written} {text}"
            );
        }
        for written in ["(", "a)|(b", "[", "(a{1000}){1000}"] {
            assert!(patterns.compile(written).is_err(), "{written}");
        }
        assert_eq!(patterns.0.len(), 10);
        patterns.forget_unused();
        patterns.compile("(").unwrap_err();
        patterns.forget_unused();
        assert_eq!(patterns.0.len(), 1);
    }
}
