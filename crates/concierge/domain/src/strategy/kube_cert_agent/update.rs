//! Decides how to change an existing Deployment of the agent to the wanted one.
//!
//! The API server sets defaults, and other clients may add to an object. A Deployment is therefore
//! left unchanged if it contains everything that is wanted, except for four members that must match
//! exactly, including "not set".

use pinniped_kube_types::partial::Deployment;
use serde_json::{Map, Value, to_value};

use super::subset;
use crate::strategy::impersonator::ObjectId;

/// The API server's default strategy type.
const DEFAULT_STRATEGY: &str = "RollingUpdate";

/// A change of the Deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// No change is needed.
    Nothing,
    /// The Deployment does not exist: create it.
    Create(Box<Deployment>),
    /// The selector of a Deployment is immutable: delete exactly this object, then create the
    /// other.
    Recreate(ObjectId, Box<Deployment>),
    /// Write this Deployment, which carries the observed resource version.
    Replace(Box<Deployment>),
}

/// Returns the change from `existing` to `wanted`.
pub fn step(existing: Option<&Deployment>, wanted: Deployment) -> Step {
    let Some(existing) = existing else { return Step::Create(Box::new(wanted)) };
    let mut updated = existing.clone();
    updated.spec.clone_from(&wanted.spec);
    for (into, from) in [
        (&mut updated.metadata.labels, &wanted.metadata.labels),
        (&mut updated.metadata.annotations, &wanted.metadata.annotations),
    ] {
        if let Some(from) = from {
            into.get_or_insert_default().extend(from.clone());
        }
    }
    let (old, new) = (&existing.spec, &wanted.spec);
    let selector_differs = subset::normal(&old["selector"]) != subset::normal(&new["selector"]);
    if selector_differs {
        let id = |field: &Option<String>| field.clone().unwrap_or_default();
        let existing = ObjectId {
            uid: id(&existing.metadata.uid),
            resource_version: id(&existing.metadata.resource_version),
        };
        return Step::Recreate(existing, Box::new(wanted));
    }
    let exact = template_labels(old) == template_labels(new)
        && priority_class(old) == priority_class(new)
        && strategy(old) == strategy(new);
    if exact && subset::contains(to_value(existing), to_value(&updated)) {
        return Step::Nothing;
    }
    Step::Replace(Box::new(updated))
}

fn template_labels(spec: &Value) -> Option<&Map<String, Value>> {
    spec["template"]["metadata"]["labels"].as_object().filter(|labels| !labels.is_empty())
}

fn priority_class(spec: &Value) -> &str {
    spec["template"]["spec"]["priorityClassName"].as_str().unwrap_or_default()
}

fn strategy(spec: &Value) -> &str {
    spec["strategy"]["type"].as_str().unwrap_or(DEFAULT_STRATEGY)
}

#[cfg(test)]
mod tests;
