//! From objects to the table.

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
    status::{ProxyVerdict, RouteVerdict},
    table::{Pattern, RoutingTable, TlsVersion, TlsVersions},
};
use draft::Draft;
use ingress::Added;
use ownership::Owners;
use secrets::{SecretCache, Secrets};
use services::{Services, Upstreams};

/// The most memory that one expression may take when compiled.
const LARGEST_PATTERN: usize = 1 << 20;

/// What comes out.
#[derive(Debug)]
pub struct Built {
    /// What the data plane serves.
    pub table: RoutingTable,
    /// What there is to say about each `HTTPProxy` of our classes.
    pub http_proxies: BTreeMap<Name, ProxyVerdict>,
    /// What there is to say about each `IngressRoute` of our classes.
    pub ingress_routes: BTreeMap<Name, RouteVerdict>,
    /// Each `Ingress` of our classes in a namespace that may have them; Kubernetes has no words about them, only addresses.
    pub ingresses: Vec<Name>,
    /// The objects of kind `Ingress` of which something is refused because of the namespace that they are in, and why.
    pub refused_ingresses: BTreeMap<Name, String>,
    /// What is worth a line in the log, sorted.
    pub notices: Vec<Notice>,
    /// What the answer depends on, besides the objects that say something about routes.
    pub looked_up: LookedUp,
}

/// The objects that others refer to, whether they are there or not. Nothing changes when any other Secret, Service or
/// EndpointSlice does.
#[derive(Clone, Debug, Default)]
pub struct LookedUp {
    /// Secrets. One whose use is not permitted is not looked up.
    pub secrets: HashSet<Name>,
    /// Services, with their EndpointSlices.
    pub services: HashSet<Name>,
}

/// Builds tables.
///
/// It keeps what is dear to make and what the last table had: parsed certificates (until the Secret's content changes),
/// compiled expressions, and backends, which are the very same value while nothing about them changes. What one build
/// did not need is forgotten at its end.
#[derive(Debug)]
pub struct Builder {
    settings: Settings,
    secrets: SecretCache,
    patterns: Patterns,
    upstreams: Upstreams,
}

impl Builder {
    /// One that has built nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            secrets: SecretCache::default(),
            patterns: Patterns::default(),
            upstreams: Upstreams::default(),
        }
    }

    /// Builds the table of these objects.
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
        // The order in which kinds override each other.
        let mut draft = Draft::default();
        let Added { names: ingresses, refusals: refused_ingresses } =
            ingress::add(&objects.ingresses, &mut world, &mut draft);
        let ingress_routes = ingress_route::add(&objects.ingress_routes, &mut world, &mut draft);
        let http_proxies = http_proxy::add(&objects.http_proxies, &mut world, &mut draft);
        let looked_up = LookedUp { secrets: world.secrets.looked_up(), services: world.services.looked_up() };
        self.secrets.forget_unused();
        self.upstreams.forget_unused();
        self.patterns.forget_unused();
        notices.sort();
        notices.dedup();
        let table = draft.finish();
        Built { table, http_proxies, ingress_routes, ingresses, refused_ingresses, notices, looked_up }
    }
}

/// What all kinds need.
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

    /// The versions of TLS that a host wants, within those that the settings allow; `None` if there are none.
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

/// The grants of all objects of all API groups.
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
                    "\"*\" beside other namespaces delegates Secret {secret:?} to nobody else: let it stand alone"
                ),
            });
        }
    }
    grants
}

/// Compiled expressions by how they are written.
#[derive(Debug, Default)]
struct Patterns(HashMap<Box<str>, (bool, Result<Pattern, String>)>);

impl Patterns {
    /// Compiles an expression that has to match the whole of a text, or tells what is wrong with it.
    fn compile(&mut self, written: &str) -> Result<Pattern, String> {
        if let Some((used, known)) = self.0.get_mut(written) {
            *used = true;
            return known.clone();
        }
        let compiled = compile(written);
        self.0.insert(written.into(), (true, compiled.clone()));
        compiled
    }

    /// Compiles an expression for what follows a path prefix: whatever it says, nothing outside of the prefix matches.
    ///
    /// Contour writes prefix and expression one after the other, so that under `/blog` the expression `/x|/.*` takes
    /// every path. Here the expression is a group, and the prefix must be there besides.
    fn compile_below(&mut self, prefix: &str, written: &str) -> Result<Pattern, String> {
        // By itself first: within the group `/a)|(/b` would be an expression.
        let alone = self.compile(written)?;
        if prefix.is_empty() {
            return Ok(alone);
        }
        // The expression starts with a slash itself.
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

fn compile(written: &str) -> Result<Pattern, String> {
    // Classes like `\d` are ASCII, as in Go and in Envoy.
    let build = |pattern: &str| {
        RegexBuilder::new(pattern)
            .unicode(false)
            .size_limit(LARGEST_PATTERN)
            .build()
            .map_err(|e| e.to_string())
    };
    // By itself first: `a)|(b` is no expression, but would be one between the parentheses.
    build(written)?;
    build(&format!("^(?:{written})$")).map(|whole| Pattern::new(Arc::from(written), whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_has_to_match_the_whole_text() {
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
