//! `Ingress`: rules that define routes, and certificates for some of their hosts.
//!
//! The status of an Ingress has no field for errors, so they are logged, and a refusal because of
//! the namespace is also reported as an Event. A missing certificate, or one that the object may
//! not use, disables the host on port 443 only. If several objects request the same path or the
//! certificate of the same host, the oldest object wins.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::networking::v1::{HTTPIngressPath, Ingress, IngressBackend, IngressRule, IngressSpec};
use pinniped_delegation::grants::SecretReference;

use super::{
    World, class,
    draft::{Contribution, Draft, RouteSet, TerminationParams, Tls},
    ownership::Claim,
    secrets::Refusal,
    services::{PortReference, UpstreamSettings},
    timeout,
};
use crate::{
    Kind, Name, Settings,
    table::{Action, Backends, Forward, HostPattern, PathMatch, Route, Timeouts},
};

const CERTIFICATE_NAMESPACE: &str = "projectcontour.io/tls-cert-namespace";
const MINIMUM_VERSION: &str = "projectcontour.io/tls-minimum-protocol-version";
const MAXIMUM_VERSION: &str = "projectcontour.io/tls-maximum-protocol-version";
const WEBSOCKETS: &str = "projectcontour.io/websocket-routes";
const RESPONSE_TIMEOUT: &str = "projectcontour.io/response-timeout";
/// The older name of the same annotation.
const REQUEST_TIMEOUT: &str = "projectcontour.io/request-timeout";
const RETRY: &str = "projectcontour.io/retry-on";
const FORCE_HTTPS: &str = "ingress.kubernetes.io/force-ssl-redirect";
const ALLOW_HTTP: &str = "kubernetes.io/ingress.allow-http";

/// A path of type `ImplementationSpecific` is an expression if it contains one of these characters.
const EXPRESSION: [char; 6] = ['^', '+', '*', '[', ']', '%'];

/// Represents every host.
const ANY_HOST: &str = "*";

/// Returns the objects of the configured classes.
fn ours<'o>(objects: &'o [Arc<Ingress>], settings: &Settings) -> impl Iterator<Item = &'o Ingress> {
    objects.iter().map(|object| &**object).filter(|object| {
        let in_spec = object.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
        class::is_ours(settings, &object.metadata, in_spec)
    })
}

/// Returns the claims of rules and default backends that may have their hosts.
pub(super) fn claims(objects: &[Arc<Ingress>], settings: &Settings) -> impl Iterator<Item = Claim> {
    let allowed = ours(objects, settings)
        .filter(|object| settings.may_have_roots(object.metadata.namespace.as_deref().unwrap_or_default()));
    allowed.flat_map(|object| {
        let rules = object.spec.iter().flat_map(|spec| spec.rules.iter().flatten()).map(host_of_rule);
        let default = object.spec.as_ref().and_then(|spec| spec.default_backend.as_ref());
        let hosts = rules.chain(default.map(|_| ANY_HOST));
        hosts.map(|host| Claim::new(host, Kind::Ingress, &object.metadata))
    })
}

fn host_of_rule(rule: &IngressRule) -> &str {
    rule.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(ANY_HOST)
}

/// The result of adding all objects.
pub(super) struct AddedIngresses {
    /// The objects that may serve some hosts.
    pub(super) names: Vec<Name>,
    /// The objects that are refused because of their namespace, with the reason.
    pub(super) refusals: BTreeMap<Name, String>,
}

/// Adds the configuration of all objects to the draft.
pub(super) fn add(objects: &[Arc<Ingress>], world: &mut World<'_>, draft: &mut Draft) -> AddedIngresses {
    let mut ours: Vec<(Name, &Ingress)> =
        ours(objects, world.settings).map(|object| (Name::of(&object.metadata), object)).collect();
    ours.sort_by(|(one, one_object), (other, other_object)| {
        let age = |object: &Ingress| object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        age(one_object).cmp(&age(other_object)).then_with(|| one.cmp(other))
    });
    let mut all = MergedIngresses::default();
    let mut added = AddedIngresses { names: Vec::new(), refusals: BTreeMap::new() };
    for (name, object) in ours {
        let mut reader = Reader::new(&name, object, world);
        if !reader.world.settings.may_have_roots(&name.namespace) {
            let why = "an Ingress cannot be defined in this namespace: it is none of --root-namespaces";
            reader.notice(why);
            added.refusals.insert(name, why.to_owned());
            continue;
        }
        reader.read(&mut all);
        let refused: Vec<String> = std::mem::take(&mut reader.refused).into_iter().collect();
        if !refused.is_empty() {
            refused.iter().for_each(|why| reader.notice(why.as_str()));
            added.refusals.insert(name.clone(), refused.join("; "));
        }
        added.names.push(name);
    }
    all.finish(draft);
    added.names.sort();
    added
}

/// The merged configuration of all objects.
#[derive(Default)]
struct MergedIngresses {
    plain: BTreeMap<HostPattern, RouteSet>,
    secure: BTreeMap<HostPattern, RouteSet>,
    terms: HashMap<HostPattern, TerminationParams>,
    /// Default backends, for requests that match no rule.
    default_plain: RouteSet,
}

impl MergedIngresses {
    fn finish(mut self, draft: &mut Draft) {
        if !self.default_plain.is_empty() {
            let any = self.plain.entry(HostPattern::Any).or_default();
            self.default_plain.iter().cloned().for_each(|route| any.keep(route));
        }
        for (pattern, plain) in self.plain {
            let mut contribution = Contribution::new(pattern);
            contribution.plain = plain;
            draft.add(contribution);
        }
        for (pattern, routes) in self.secure {
            if let Some(terms) = self.terms.remove(&pattern) {
                let mut contribution = Contribution::new(pattern);
                contribution.tls = Some(Tls::Http(terms, routes));
                draft.add(contribution);
            }
        }
    }
}

/// The evaluation of one object.
struct Reader<'o, 'w, 'b> {
    name: &'o Name,
    object: &'o Ingress,
    world: &'w mut World<'b>,
    /// The reasons why hosts are refused.
    refused: BTreeSet<String>,
}

impl<'o, 'w, 'b> Reader<'o, 'w, 'b> {
    fn new(name: &'o Name, object: &'o Ingress, world: &'w mut World<'b>) -> Self {
        Self { name, object, world, refused: BTreeSet::new() }
    }

    /// Returns whether the object's namespace may have a host; otherwise records the reason.
    fn may_have(&mut self, host: &HostPattern) -> bool {
        let refusal = self.world.owners.refusal(host, &self.name.namespace);
        let may_have = refusal.is_none();
        self.refused.extend(refusal);
        may_have
    }

    fn annotation(&self, name: &str) -> Option<&'o str> {
        let annotations = self.object.metadata.annotations.as_ref()?;
        annotations.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn notice(&mut self, text: impl Into<String>) {
        self.world.notice(Kind::Ingress, self.name, text);
    }

    fn read(&mut self, all: &mut MergedIngresses) {
        let Some(spec) = &self.object.spec else { return };
        if self.annotation(RETRY).is_some() {
            self.notice(format!("ignoring annotation {RETRY:?}; it is not supported"));
        }
        for (host, terms) in self.certificates(spec) {
            if self.may_have(&host) {
                all.terms.entry(host).or_insert(terms);
            }
        }
        let forced = self.annotation(FORCE_HTTPS) == Some("true");
        let plain = forced || self.annotation(ALLOW_HTTP) != Some("false");
        let timeouts = self.timeouts();
        if let Some(backend) = &spec.default_backend
            && self.may_have(&HostPattern::Any)
            && let Some(route) = self.route("/", "ImplementationSpecific", backend, timeouts).ok().flatten()
            && plain
        {
            all.default_plain.keep(Arc::new(route));
        }
        let mut routes: BTreeMap<HostPattern, RouteSet> = BTreeMap::new();
        for rule in spec.rules.iter().flatten() {
            let host = HostPattern::parse(host_of_rule(rule));
            if self.may_have(&host) {
                self.rule(rule, timeouts, routes.entry(host).or_default());
            }
        }
        for (host, routes) in routes {
            if plain {
                let known = all.plain.entry(host.clone()).or_default();
                routes.iter().cloned().for_each(|route| known.keep(route));
            }
            if host != HostPattern::Any {
                let known = all.secure.entry(host).or_default();
                routes.iter().cloned().for_each(|route| known.keep(route));
            }
        }
    }

    /// Returns the certificates of hosts; the last entry for a host applies.
    fn certificates(&mut self, spec: &IngressSpec) -> HashMap<HostPattern, TerminationParams> {
        let mut certificates = HashMap::new();
        let default_namespace = self.annotation(CERTIFICATE_NAMESPACE).unwrap_or(&self.name.namespace);
        for tls in spec.tls.iter().flatten() {
            let written = tls.secret_name.as_deref().unwrap_or_default();
            let reference = SecretReference::parse(written, default_namespace);
            let certificate = match self.world.secrets.serving(&reference, &self.name.namespace) {
                Ok(certificate) => certificate,
                Err(Refusal::NotPermitted) => {
                    self.notice(format!("certificate delegation not permitted for Secret \"{reference}\""));
                    continue;
                }
                Err(Refusal::Invalid(why)) => {
                    self.notice(format!("unresolved reference to Secret \"{reference}\": {why}"));
                    continue;
                }
            };
            let min = self.annotation(MINIMUM_VERSION).unwrap_or_default();
            let max = self.annotation(MAXIMUM_VERSION).unwrap_or_default();
            let Some(versions) = self.world.versions(min, max) else {
                self.notice("the minimum TLS protocol version is greater than the maximum one: no HTTPS");
                continue;
            };
            for host in tls.hosts.iter().flatten() {
                let host = HostPattern::parse(host);
                if host != HostPattern::Any {
                    let terms = TerminationParams {
                        certificate: Arc::clone(&certificate),
                        secret: reference.clone(),
                        versions,
                        client_validation: None,
                    };
                    certificates.insert(host, terms);
                }
            }
        }
        certificates
    }

    fn timeouts(&mut self) -> Timeouts {
        let default = Timeouts::default();
        let Some(written) = self.annotation(RESPONSE_TIMEOUT).or_else(|| self.annotation(REQUEST_TIMEOUT))
        else {
            return default;
        };
        let response: Option<Duration> = timeout::parse(written, default.response).unwrap_or_else(|why| {
            self.notice(format!("using the default response timeout: {why}"));
            default.response
        });
        Timeouts { response, ..default }
    }

    /// Adds the routes of one rule. An invalid expression ends the rule.
    fn rule(&mut self, rule: &IngressRule, timeouts: Timeouts, routes: &mut RouteSet) {
        for HTTPIngressPath { path, path_type, backend } in rule.http.iter().flat_map(|http| &http.paths) {
            let path = path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
            match self.route(path, path_type, backend, timeouts) {
                Ok(Some(route)) => routes.replace(Arc::new(route)),
                Ok(None) => {}
                Err(InvalidExpression) => return,
            }
        }
    }

    /// Returns a route, or `None` if its backend is missing.
    fn route(
        &mut self,
        path: &str,
        path_type: &str,
        backend: &IngressBackend,
        timeouts: Timeouts,
    ) -> Result<Option<Route>, InvalidExpression> {
        let Some(backends) = self.backends(path, backend) else { return Ok(None) };
        let matched = self.path(path, path_type)?;
        let websockets = self
            .annotation(WEBSOCKETS)
            .is_some_and(|list| list.split(',').map(str::trim).collect::<HashSet<_>>().contains(path));
        Ok(Some(Route {
            path: matched,
            headers: Box::default(),
            query: Box::default(),
            upgrade_to_https: self.annotation(FORCE_HTTPS) == Some("true"),
            action: Action::Forward(Forward { backends, timeouts, websockets, rewrite: None }),
        }))
    }

    fn path(&mut self, path: &str, path_type: &str) -> Result<PathMatch, InvalidExpression> {
        Ok(match path_type {
            "Exact" => PathMatch::Exact(path.into()),
            "Prefix" => match path.trim_end_matches('/') {
                "" => PathMatch::Prefix("/".into()),
                segments => PathMatch::Segments(segments.into()),
            },
            _ if path.contains(EXPRESSION) => {
                let pattern = self.world.patterns.compile(path).map_err(|why| {
                    self.notice(format!("path {path:?} is not a valid regular expression: {why}"));
                    InvalidExpression
                })?;
                PathMatch::Regex(pattern)
            }
            _ => PathMatch::Prefix(path.into()),
        })
    }

    fn backends(&mut self, path: &str, backend: &IngressBackend) -> Option<Backends> {
        let Some(service) = &backend.service else {
            self.notice(format!("skipping path {path:?}: only Services can be backends"));
            return None;
        };
        let port = service.port.as_ref();
        let port = match port.and_then(|port| port.name.as_deref()).filter(|name| !name.is_empty()) {
            Some(name) => PortReference::Name(name),
            None => PortReference::Number(port.and_then(|port| port.number).unwrap_or_default().into()),
        };
        let found = match self.world.services.find(&self.name.namespace, &service.name, port) {
            Ok(found) => found,
            Err(why) => {
                self.notice(format!("skipping path {path:?}: {why}"));
                return None;
            }
        };
        let mut wanted = UpstreamSettings::plain(found.protocol());
        if let Some(reference) =
            self.world.settings.client_certificate.as_ref().filter(|_| wanted.protocol.is_tls())
        {
            match self.world.secrets.serving_of_administrator(reference) {
                Ok(certificate) => wanted.client_certificate = Some(certificate),
                Err(why) => {
                    self.notice(format!(
                        "skipping path {path:?}: the gateway's client certificate \"{reference}\" is invalid: {why}"
                    ));
                    return None;
                }
            }
        }
        Backends::new(vec![(1, self.world.services.upstream(found, wanted))])
    }
}

/// A path that should be an expression is invalid; the error has been reported.
#[derive(Debug)]
struct InvalidExpression;
