//! `cargo xtask manifests`: renders the files of `deploy/` from the chart in `deploy/chart`.
//!
//! One run of `helm template` with `ci/manifests-values.yaml` renders every object. Helm names the
//! template of each object and sorts the objects into the order in which it installs them. A file
//! of `deploy/` has the objects of some templates in this order. The base and the components of
//! `deploy/kustomize` have copies of these files, because kustomize reads only files below its own
//! folder.
//!
//! The files about metrics come from the definitions in `crates/*/metrics` and from [`monitoring`],
//! which has the rules for alerts and the dashboard. The tables of the page about custom resources
//! come from the rendered CustomResourceDefinitions; see [`fields`].

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::control_plane::helm;
use crate::{cargo, fields, monitoring};

/// Flags of `manifests`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing, and fail if a file differs from the chart.
    #[arg(long)]
    check: bool,
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

/// A file that is rendered from the chart.
struct Output {
    /// Its path, from the root of the repository.
    file: &'static str,
    /// The beginnings of the names of its templates, from the chart's folder `templates`.
    templates: &'static [&'static str],
    /// A word that its objects contain; empty for all objects.
    only: &'static str,
    /// The comment at the beginning of the file.
    head: &'static str,
}

/// The comment at the beginning of every file.
const NOTE: &str =
    "# Rendered from deploy/chart by `cargo xtask manifests`. Change the chart, not this file.\n";

const CONCIERGE: &str = "\
# The Concierge. Apply install-pinniped-concierge-crds.yaml first.
#
# Names and labels are those of upstream Pinniped, so that this manifest can replace an installation
# of upstream in place. Of upstream's permissions, the manifest has only those that are used.
#
";
const TOKENS: &str = "\
# Optional: the objects for the strategy ServiceAccountToken. Apply
# install-pinniped-concierge-resources.yaml first, then this file, then set
# spec.serviceAccountTokens.mode of the CredentialIssuer to \"enabled\".
#
# Each user gets the token of a service account that may impersonate exactly this user. RBAC does
# not let an account grant permissions that it does not have, so the account that writes the roles
# of these service accounts must have the permission to impersonate any user. That account is the
# ServiceAccount below. No ServiceAccount of install-pinniped-concierge-resources.yaml may write
# ClusterRoles. See docs/threat-model.md.
#
";
const LOCAL_USER_AUTHENTICATOR: &str = "\
# A webhook for demonstrations and tests, whose users are Secrets. Do not use it in production.
#
";
const GATEWAY: &str = "\
# The gateway serves the hosts and routes of HTTPProxy and Ingress objects, with certificates of
# their own namespace or certificates that other namespaces have delegated. Apply
# install-tls-certificate-delegation.yaml and install-gateway-crds.yaml first. In a cluster with
# Contour, both definitions are already installed.
#
# The gateway needs no other component, and the Concierge does not need the gateway.
#
";
const GATEWAY_LEGACY: &str = "\
# The permissions of the gateway for the kinds of install-tls-certificate-delegation-legacy.yaml.
# Apply both files after install-pinniped-gateway.yaml, and only in clusters that still have objects
# of these API groups.
#
";
const HTTP_PROXY: &str = "\
# The kind HTTPProxy, which configures the hosts and routes of the gateway. The kind is Contour's.
# In a cluster with Contour, this definition is already installed: neither apply nor delete this
# file there.
#
";
const DELEGATION: &str = "\
# The kind TLSCertificateDelegation, with which the owner of a TLS Secret lets other namespaces
# serve with the certificate. The kind is Contour's. In a cluster with Contour, this definition is
# already installed: neither apply nor delete this file there.
#
";
const DELEGATION_LEGACY: &str = "\
# TLSCertificateDelegation in the API groups of Contour's first releases and of its design document,
# and IngressRoute, the predecessor of HTTPProxy. Apply this file only in clusters that still have
# objects of these groups. Grants of all groups have the same effect.
#
";

const CONCIERGE_TEMPLATES: &[&str] = &[
    "concierge/configmap",
    "concierge/credentialissuer",
    "concierge/deployment",
    "concierge/namespace",
    "concierge/rbac",
    "concierge/service-accounts",
    "concierge/services",
];
const TOKENS_TEMPLATES: &[&str] = &["concierge/service-account-tokens"];
const DEFINITIONS: &[&str] = &["crds/concierge"];
/// The folder with a file for each definition of the Concierge.
const DEFINITIONS_DIR: &str = "deploy/crds/";

/// Every rendered file.
const OUTPUTS: [Output; 17] = [
    output("deploy/crds/authentication.concierge.pinniped.dev_jwtauthenticators.yaml", DEFINITIONS, "")
        .only("\n    kind: JWTAuthenticator\n"),
    output("deploy/crds/authentication.concierge.pinniped.dev_webhookauthenticators.yaml", DEFINITIONS, "")
        .only("\n    kind: WebhookAuthenticator\n"),
    output("deploy/crds/config.concierge.pinniped.dev_credentialissuers.yaml", DEFINITIONS, "")
        .only("\n    kind: CredentialIssuer\n"),
    output("deploy/install-pinniped-concierge-crds.yaml", DEFINITIONS, ""),
    output("deploy/install-pinniped-concierge-resources.yaml", CONCIERGE_TEMPLATES, CONCIERGE),
    output("deploy/install-pinniped-concierge-service-account-tokens.yaml", TOKENS_TEMPLATES, TOKENS),
    output(
        "deploy/install-local-user-authenticator.yaml",
        &["local-user-authenticator"],
        LOCAL_USER_AUTHENTICATOR,
    ),
    output("deploy/install-pinniped-gateway.yaml", &["gateway.yaml"], GATEWAY),
    output("deploy/install-pinniped-gateway-legacy.yaml", &["gateway-legacy"], GATEWAY_LEGACY),
    output("deploy/install-gateway-crds.yaml", &["crds/http-proxy"], HTTP_PROXY),
    output(
        "deploy/install-tls-certificate-delegation.yaml",
        &["crds/tls-certificate-delegation"],
        DELEGATION,
    ),
    output("deploy/install-tls-certificate-delegation-legacy.yaml", &["crds/legacy"], DELEGATION_LEGACY),
    output("deploy/kustomize/base/definitions.yaml", DEFINITIONS, ""),
    output("deploy/kustomize/base/concierge.yaml", CONCIERGE_TEMPLATES, ""),
    output("deploy/kustomize/components/service-account-tokens/objects.yaml", TOKENS_TEMPLATES, TOKENS),
    output(
        "deploy/kustomize/components/local-user-authenticator/objects.yaml",
        &["local-user-authenticator"],
        LOCAL_USER_AUTHENTICATOR,
    ),
    output(
        "deploy/kustomize/components/gateway/objects.yaml",
        &["gateway.yaml", "crds/http-proxy", "crds/tls-certificate-delegation"],
        "",
    ),
];

const fn output(file: &'static str, templates: &'static [&'static str], head: &'static str) -> Output {
    Output { file, templates, only: "", head }
}

impl Output {
    const fn only(self, only: &'static str) -> Self {
        Self { only, ..self }
    }

    /// Returns the text of the file.
    fn text(&self, objects: &[Object<'_>]) -> anyhow::Result<String> {
        let own = |object: &&Object<'_>| {
            self.templates.iter().any(|template| object.template.starts_with(template))
                && object.yaml.contains(self.only)
        };
        let objects: Vec<&str> = objects.iter().filter(own).map(|object| object.yaml).collect();
        anyhow::ensure!(!objects.is_empty(), "the chart renders no object of {}", self.file);
        let mut text = format!("{}{NOTE}", self.head);
        for object in objects {
            text.push_str("---\n");
            text.push_str(object);
            text.push('\n');
        }
        Ok(text)
    }
}

/// A rendered object.
struct Object<'a> {
    /// The path of its template below `templates/`.
    template: &'a str,
    yaml: &'a str,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = cargo::root();
    if !args.check {
        for file in update(&root, args.offline)? {
            println!("{file}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stale = stale(&root, args.offline)?;
    for (file, _) in &stale {
        eprintln!("error: {file} is not up to date: run `cargo xtask manifests`");
    }
    Ok(if stale.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Renders the files below `root` that differ from their sources there, and returns their paths.
pub(crate) fn update(root: &Path, offline: bool) -> anyhow::Result<Vec<&'static str>> {
    let mut updated = Vec::new();
    for (file, wanted) in stale(root, offline)? {
        let path = root.join(file);
        let folder = path.parent().context("a file is in a folder")?;
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, wanted))
            .with_context(|| format!("could not write {}", path.display()))?;
        updated.push(file);
    }
    Ok(updated)
}

/// Returns the files below `root` that differ from their sources there, with their new text.
fn stale(root: &Path, offline: bool) -> anyhow::Result<Vec<(&'static str, String)>> {
    let rendered = render(&helm::find_or_build(offline)?, root)?;
    let objects = objects(&rendered)?;
    let mut files = Vec::new();
    for output in &OUTPUTS {
        files.push((output.file, output.text(&objects)?));
    }
    let definitions: Vec<_> =
        files.iter().filter(|(file, _)| file.starts_with(DEFINITIONS_DIR)).cloned().collect();
    files.push((fields::PAGE, fields::page(root, &definitions)?));
    files.extend(monitoring::files()?);
    files
        .retain(|(file, wanted)| !std::fs::read_to_string(root.join(file)).is_ok_and(|text| text == *wanted));
    Ok(files)
}

/// Renders all objects for kubectl.
fn render(helm: &Path, root: &Path) -> anyhow::Result<String> {
    let chart: PathBuf = root.join("deploy/chart");
    let mut command = Command::new(helm);
    command.arg("template").arg("pinniped-concierge").arg(&chart);
    command.arg("--namespace=pinniped-concierge").arg("--values").arg(chart.join("ci/manifests-values.yaml"));
    // The kind is known when the manifest is applied: the definitions are applied before.
    command.arg("--api-versions=config.concierge.pinniped.dev/v1alpha1/CredentialIssuer");
    let output = command.output().with_context(|| format!("could not run {}", helm.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "helm could not render the chart: {}", errors.trim());
    String::from_utf8(output.stdout).context("helm wrote text that is not UTF-8")
}

/// Splits the output of `helm template` into objects.
fn objects(rendered: &str) -> anyhow::Result<Vec<Object<'_>>> {
    let documents = rendered.strip_prefix("---\n").unwrap_or(rendered).split("\n---\n");
    let object = |document| {
        let (source, yaml) = split_source(document)
            .with_context(|| format!("an object without the name of its template: {document}"))?;
        Ok(Object { template: source, yaml: yaml.trim_end() })
    };
    documents.map(object).collect()
}

/// Returns the template that Helm names in the first line, and the other lines.
fn split_source(document: &str) -> Option<(&str, &str)> {
    let (source, yaml) = document.strip_prefix("# Source: ")?.split_once('\n')?;
    Some((source.split_once("/templates/")?.1, yaml))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_written_to_the_file_of_their_template() {
        let rendered = "---\n# Source: pinniped/templates/gateway.yaml\n# First.\nkind: A\n---\n\
                        # Source: pinniped/templates/gateway-legacy.yaml\nkind: B\n\n---\n\
                        # Source: pinniped/templates/gateway.yaml\nkind: C\n";
        let objects = objects(rendered).unwrap();
        let text = |template: &'static [&'static str]| output("f", template, "# Head\n").text(&objects);
        assert_eq!(
            text(&["gateway.yaml"]).unwrap(),
            format!("# Head\n{NOTE}---\n# First.\nkind: A\n---\nkind: C\n")
        );
        assert_eq!(text(&["gateway-legacy"]).unwrap(), format!("# Head\n{NOTE}---\nkind: B\n"));
        assert!(text(&["other"]).is_err());
    }

    #[test]
    fn every_template_belongs_to_at_most_one_file_of_the_installation() {
        let installed = || OUTPUTS.iter().filter(|output| output.file.starts_with("deploy/install"));
        let templates: Vec<_> = installed().flat_map(|output| output.templates).collect();
        for (index, template) in templates.iter().enumerate() {
            assert!(!templates[..index].contains(template), "{template}");
        }
    }
}
