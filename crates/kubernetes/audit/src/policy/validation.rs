//! Parses and validates a policy, like `ValidatePolicy` of k8s.io/apiserver, whose texts it has.

use std::fmt::Display;

use pinniped_kube_request::identity::is_dns_subdomain;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{GroupResources, Level, Policy, Problems, Rule, Stage, Stages, raw};

const API_VERSION: &str = "audit.k8s.io/v1";
const KIND: &str = "Policy";

/// Returns the policy, or all its problems.
pub(super) fn policy(text: &str) -> Result<Policy, Problems> {
    let mut problems = Problems::default();
    let policy = parsed(text, &mut problems);
    match policy {
        Some(policy) if problems.0.is_empty() => Ok(policy),
        _ => Err(problems),
    }
}

fn parsed(text: &str, problems: &mut Problems) -> Option<Policy> {
    let document: Value = match serde_saphyr::from_str(text) {
        Ok(document) => document,
        Err(error) => {
            problems.add("the file", format_args!("is not YAML: {error}"));
            return None;
        }
    };
    let raw: raw::Policy = decoded("the file", raw::without_nulls(document), problems)?;
    for (field, value, wanted) in [("apiVersion", &raw.api_version, API_VERSION), ("kind", &raw.kind, KIND)] {
        if value != wanted {
            problems.add(field, format_args!("must be {wanted} (instead of {value:?})"));
        }
    }
    let omit_stages = stages("omitStages", &raw.omit_stages, problems);
    if raw.rules.is_empty() {
        problems.add("rules", "must have a rule, such as `- level: Metadata`, which logs all requests");
    }
    let mut rules = Vec::with_capacity(raw.rules.len());
    for (at, value) in raw.rules.into_iter().enumerate() {
        let field = format!("rules[{at}]");
        let Some(parsed) = decoded(&field, value, problems) else { continue };
        let mut rule = rule(&field, parsed, raw.omit_managed_fields, problems);
        rule.omit_stages = rule.omit_stages.union(omit_stages);
        rules.push(rule);
    }
    Some(Policy { rules, omit_stages, omit_managed_fields: raw.omit_managed_fields })
}

fn decoded<T: DeserializeOwned>(field: &str, value: Value, problems: &mut Problems) -> Option<T> {
    // serde accepts a list of the members of a struct, too.
    if !value.is_object() {
        problems.add(field, "must be a mapping of keys to values");
        return None;
    }
    serde_json::from_value(value).map_err(|error| problems.add(field, error)).ok()
}

fn rule(field: &str, raw: raw::Rule, omit_managed_fields: bool, problems: &mut Problems) -> Rule {
    let level = level(&format!("{field}.level"), &raw.level, problems);
    let has_resources = !raw.resources.is_empty() || !raw.namespaces.is_empty();
    for (at, url) in raw.non_resource_urls.iter().enumerate() {
        non_resource_url(&format!("{field}.nonResourceURLs[{at}]"), url, problems);
    }
    if !raw.non_resource_urls.is_empty() && has_resources {
        problems.add(
            format_args!("{field}.nonResourceURLs"),
            "rules cannot apply to both regular resources and non-resource URLs: split the rule",
        );
    }
    let mut resources = Vec::with_capacity(raw.resources.len());
    for (at, value) in raw.resources.into_iter().enumerate() {
        let field = format!("{field}.resources[{at}]");
        if let Some(raw) = decoded(&field, value, problems) {
            resources.push(group_resources(&field, raw, problems));
        }
    }
    Rule {
        level,
        users: raw.users,
        user_groups: raw.user_groups,
        verbs: raw.verbs,
        resources,
        namespaces: raw.namespaces,
        non_resource_urls: raw.non_resource_urls,
        omit_stages: stages(&format!("{field}.omitStages"), &raw.omit_stages, problems),
        omit_managed_fields: raw.omit_managed_fields.unwrap_or(omit_managed_fields),
    }
}

fn level(field: &str, name: &str, problems: &mut Problems) -> Level {
    let found = Level::ALL.into_iter().find(|level| level.name() == name);
    if found.is_none() {
        let valid = Level::ALL.map(Level::name).join(", ");
        match name {
            "" => problems.add(field, format_args!("required value: use one of {valid}")),
            _ => problems.add(field, format_args!("unsupported value {name:?}: use one of {valid}")),
        }
    }
    found.unwrap_or_default()
}

fn stages(field: &str, names: &[String], problems: &mut Problems) -> Stages {
    let mut stages = Stages::default();
    for (at, name) in names.iter().enumerate() {
        match Stage::ALL.into_iter().find(|stage| stage.name() == name) {
            Some(stage) => stages.insert(stage),
            None => {
                let valid = Stage::ALL.map(Stage::name).join(",");
                invalid(
                    format_args!("{field}[{at}]"),
                    name,
                    format_args!("allowed stages are {valid}"),
                    problems,
                );
            }
        }
    }
    stages
}

fn non_resource_url(field: &str, url: &str, problems: &mut Problems) {
    if url == "*" {
        return;
    }
    if !url.starts_with('/') {
        invalid(field, url, "non-resource URL rules must begin with a '/' character", problems);
    }
    // The last byte may be the wildcard.
    if url.bytes().rev().skip(1).any(|byte| byte == b'*') {
        invalid(
            field,
            url,
            "non-resource URL wildcards '*' must be the final character of the rule",
            problems,
        );
    }
}

fn group_resources(field: &str, raw: raw::GroupResources, problems: &mut Problems) -> GroupResources {
    let raw::GroupResources { group, resources, resource_names } = raw;
    if !matches!(group.as_str(), "" | "*") && !is_dns_subdomain(&group) {
        invalid(
            format_args!("{field}.group"),
            &group,
            "must be the name of an API group without a version, such as rbac.authorization.k8s.io, \
             \"\" for the core group, or * for all groups",
            problems,
        );
    }
    if !resource_names.is_empty() && resources.is_empty() {
        problems.add(
            format_args!("{field}.resourceNames"),
            "using resourceNames requires at least one resource: add it to resources",
        );
    }
    GroupResources { group, resources, resource_names }
}

fn invalid(field: impl Display, value: &str, problem: impl Display, problems: &mut Problems) {
    problems.add(field, format_args!("invalid value {value:?}: {problem}"));
}
