//! The objects of one watch, reduced to the parts that the routing table can depend on.
//!
//! This is not `kube`'s store: a mirror reports the effect of a change on the table, so that a list
//! without changes causes no build; it can be emptied when its kind is no longer served; and its
//! keys are names only, which matters with ten thousand objects.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use pinniped_gateway_routing::Name;

use super::changes::ChangedObject;
use super::kinds::Mirrored;

/// The objects of one watch, by name.
pub(super) struct Mirror<K>(Mutex<HashMap<Name, Arc<K>>>);

/// Prints only the number of objects, because they may be Secrets.
impl<K> fmt::Debug for Mirror<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_tuple("Mirror").field(&count).finish()
    }
}

impl<K> Default for Mirror<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The effect of a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MirrorChange {
    /// The changes that are relevant for the table.
    pub(super) objects: Vec<ChangedObject>,
    /// Whether any object has changed, even if only in its status.
    pub(super) any: bool,
}

impl MirrorChange {
    fn of<K: Mirrored>(old: Option<&Arc<K>>, new: Option<&K>) -> Self {
        let mut change = Self::default();
        change.add(old, new);
        change
    }

    fn add<K: Mirrored>(&mut self, old: Option<&Arc<K>>, new: Option<&K>) {
        match (old, new) {
            (Some(old), Some(new)) if old.is_equivalent(new) => {
                self.any |= old.meta().resource_version != new.meta().resource_version;
                return;
            }
            (None, None) => return,
            _ => {}
        }
        self.any = true;
        let objects = [old.map(|old| old.changed_object()), new.map(Mirrored::changed_object)];
        for object in objects.into_iter().flatten() {
            if self.objects.last() != Some(&object) {
                self.objects.push(object);
            }
        }
    }
}

impl<K: Mirrored> Mirror<K> {
    /// Replaces all objects. An unchanged object remains the same value.
    pub(super) fn replace_all(&self, objects: Vec<K>) -> MirrorChange {
        self.with(|known| {
            let mut change = MirrorChange::default();
            let mut next = HashMap::with_capacity(objects.len());
            for object in objects {
                let name = Name::of(object.meta());
                let old = known.remove(&name);
                change.add(old.as_ref(), Some(&object));
                next.insert(name, Arc::new(object));
            }
            for gone in known.values() {
                change.add(Some(gone), None);
            }
            *known = next;
            change
        })
    }

    /// Adds or replaces an object.
    pub(super) fn set(&self, object: K) -> MirrorChange {
        self.with(|known| {
            let name = Name::of(object.meta());
            let change = MirrorChange::of(known.get(&name), Some(&object));
            known.insert(name, Arc::new(object));
            change
        })
    }

    /// Removes an object.
    pub(super) fn remove(&self, name: &Name) -> MirrorChange {
        self.with(|known| MirrorChange::of(known.remove(name).as_ref(), None))
    }

    /// Returns an object.
    pub(super) fn get(&self, name: &Name) -> Option<Arc<K>> {
        self.with(|known| known.get(name).cloned())
    }

    /// Returns all objects, in no particular order.
    pub(super) fn all(&self) -> Vec<Arc<K>> {
        self.with(|known| known.values().cloned().collect())
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut HashMap<Name, Arc<K>>) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use pinniped_gateway_api::HttpProxy;
    use serde_json::{Value, json};

    use super::*;

    fn secret(name: &str, version: &str, bytes: &str) -> Secret {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name, "resourceVersion": version},
            "type": "Opaque", "data": {"ca.crt": bytes},
        });
        let mut secret: Secret = serde_json::from_value(object).unwrap();
        secret.slim();
        secret
    }

    fn proxy(version: &str, spec: &Value, status: &Value) -> HttpProxy {
        let metadata = json!({"namespace": "ns", "name": "p", "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn changed_object(name: &str) -> ChangedObject {
        ChangedObject::Secret(Name { namespace: "ns".to_owned(), name: name.to_owned() })
    }

    #[test]
    fn only_changes_are_reported() {
        let mirror = Mirror::default();
        let change = mirror.replace_all(vec![secret("a", "1", "AAAA"), secret("b", "2", "AAAA")]);
        assert_eq!(change.objects, [changed_object("a"), changed_object("b")]);
        // The same list again, with one object that was written without a change.
        let change = mirror.replace_all(vec![secret("a", "3", "AAAA"), secret("b", "2", "AAAA")]);
        assert_eq!(change.objects, []);
        assert_eq!(mirror.set(secret("a", "4", "AAAA")).objects, []);
        assert_eq!(mirror.set(secret("a", "5", "BBBB")).objects, [changed_object("a")]);
        let change = mirror.replace_all(vec![secret("c", "6", "AAAA"), secret("a", "5", "BBBB")]);
        assert_eq!(change.objects, [changed_object("c"), changed_object("b")]);
        let name = |name: &str| Name { namespace: "ns".to_owned(), name: name.to_owned() };
        assert_eq!(mirror.remove(&name("c")).objects, [changed_object("c")]);
        assert_eq!(mirror.remove(&name("c")), MirrorChange::default());
        assert_eq!(mirror.all().len(), 1);
        assert!(mirror.get(&name("a")).is_some() && mirror.get(&name("c")).is_none());
        assert_eq!(mirror.replace_all(Vec::new()).objects, [changed_object("a")]);
    }

    #[test]
    fn a_status_change_is_reported_but_not_relevant_for_the_table() {
        let mirror = Mirror::default();
        let (spec, other) = (json!({"virtualhost": {"fqdn": "h"}}), json!({"virtualhost": {"fqdn": "i"}}));
        assert_eq!(mirror.set(proxy("1", &spec, &Value::Null)).objects, [ChangedObject::Routing]);
        let change = mirror.set(proxy("2", &spec, &json!({"currentStatus": "valid"})));
        assert_eq!(change, MirrorChange { objects: Vec::new(), any: true });
        let change = mirror.set(proxy("2", &spec, &json!({"currentStatus": "valid"})));
        assert_eq!(change, MirrorChange::default());
        assert_eq!(mirror.set(proxy("3", &other, &Value::Null)).objects, [ChangedObject::Routing]);
    }
}
