//! How an existing Deployment of the agent becomes the wanted one.
//!
//! The API server fills in defaults, and others may add to an object. So a Deployment is left alone when everything
//! that is wanted is there, whatever else there is; except for four things in which "nothing" is a wish, too.

use pinniped_kube_types::partial::Deployment;
use serde_json::{Map, Value, to_value};

use super::subset;
use crate::strategy::impersonator::ObjectId;

/// What an API server takes when no strategy type is given.
const DEFAULT_STRATEGY: &str = "RollingUpdate";

/// One change of the Deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it should be.
    Nothing,
    /// It does not exist.
    Create(Box<Deployment>),
    /// The selector of a Deployment cannot be changed: delete exactly this one, then create.
    Recreate(ObjectId, Box<Deployment>),
    /// Write this, which carries the resource version of the one that was seen.
    Replace(Box<Deployment>),
}

/// The change that makes `existing` what is `wanted`.
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
