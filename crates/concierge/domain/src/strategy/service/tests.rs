use super::*;
use crate::strategy::spec::{Mode, ServiceFields, ServiceKind};

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn config(annotations: &[(&str, &str)], ip: Option<&str>) -> ProxyConfig {
    ProxyConfig {
        mode: Mode::Enabled,
        service: ServiceKind::LoadBalancer,
        load_balancer_ip: ip.map(str::to_owned),
        annotations: map(annotations),
        fields: ServiceFields::default(),
        endpoint: None,
        tls: None,
    }
}

fn service(kind: ServiceType, annotations: &[(&str, &str)], ip: Option<&str>) -> Service {
    let labels = map(&[("app", "concierge"), ("other-key", "x")]);
    desired(kind, "name", "ns", &labels, 8444, &config(annotations, ip))
}

/// Returns the Service as the API server stores it after `patch`.
fn patched(existing: &Service, desired: &Service) -> Option<Service> {
    let patch = patch(existing, desired).unwrap()?;
    let mut value = serde_json::to_value(existing).unwrap();
    apply(&mut value, &patch);
    Some(serde_json::from_value(value).unwrap())
}

fn apply(target: &mut Value, patch: &Value) {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else { panic!("objects only") };
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            Value::Object(_) => apply(target.entry(key).or_insert_with(|| json!({})), value),
            other => drop(target.insert(key.clone(), other.clone())),
        }
    }
}

fn annotations(service: &Service) -> BTreeMap<String, String> {
    service.metadata.annotations.clone().unwrap_or_default()
}

#[test]
fn a_new_service_has_exactly_these_fields() {
    let lb = service(ServiceType::LoadBalancer, &[("b", "2"), ("a", "1")], Some("1.2.3.4"));
    let wanted = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "name", "namespace": "ns",
            "labels": {"app": "concierge", "other-key": "x"},
            "annotations": {
                "a": "1", "b": "2",
                "credentialissuer.pinniped.dev/annotation-keys": r#"["a","b"]"#,
                "credentialissuer.pinniped.dev/label-keys": r#"["app","other-key"]"#,
            },
        },
        "spec": {
            "type": "LoadBalancer", "loadBalancerIP": "1.2.3.4", "selector": {"app": "concierge"},
            "ports": [{"port": 443, "targetPort": 8444, "protocol": "TCP"}],
        },
    });
    assert_eq!(serde_json::to_value(&lb).unwrap(), wanted);

    let cluster_ip = service(ServiceType::ClusterIp, &[], Some("1.2.3.4"));
    let spec = cluster_ip.spec.clone().unwrap();
    assert_eq!((spec.type_.as_deref(), spec.load_balancer_ip), (Some("ClusterIP"), None));
    assert_eq!(annotations(&cluster_ip), map(&[(LABEL_KEYS, r#"["app","other-key"]"#)]));
}

#[test]
fn an_unchanged_service_needs_no_write() {
    let wanted = service(ServiceType::LoadBalancer, &[("a", "1")], None);
    let mut existing = wanted.clone();
    // Additions of other clients and of the API server are ignored.
    existing.metadata.annotations.as_mut().unwrap().insert("foreign".into(), "f".into());
    existing.metadata.labels.as_mut().unwrap().insert("foreign".into(), "f".into());
    existing.metadata.resource_version = Some("7".into());
    let spec = existing.spec.as_mut().unwrap();
    spec.cluster_ip = Some("10.0.0.1".into());
    spec.load_balancer_ip = Some(String::new());
    spec.ports.as_mut().unwrap()[0].node_port = Some(30000);
    assert_eq!(patch(&existing, &wanted), Ok(None));
}

#[test]
fn a_foreign_key_that_the_spec_names_becomes_ours() {
    let mut existing = service(ServiceType::LoadBalancer, &[], None);
    existing.metadata.annotations.as_mut().unwrap().insert("a".into(), "foreign".into());
    let updated = patched(&existing, &service(ServiceType::LoadBalancer, &[("a", "ours")], None)).unwrap();
    assert_eq!(annotations(&updated).get("a").map(String::as_str), Some("ours"));
    let gone = patched(&updated, &service(ServiceType::LoadBalancer, &[], None)).unwrap();
    assert_eq!(annotations(&gone), map(&[(LABEL_KEYS, r#"["app","other-key"]"#)]));
}

#[test]
fn a_key_removed_from_the_spec_is_deleted_and_foreign_keys_are_kept() {
    let mut existing = service(ServiceType::LoadBalancer, &[("a", "1"), ("b", "2")], None);
    existing.metadata.annotations.as_mut().unwrap().insert("foreign".into(), "f".into());
    let updated = patched(&existing, &service(ServiceType::LoadBalancer, &[("a", "1")], None)).unwrap();
    let wanted =
        [("a", "1"), ("foreign", "f"), (ANNOTATION_KEYS, r#"["a"]"#), (LABEL_KEYS, r#"["app","other-key"]"#)];
    assert_eq!(annotations(&updated), map(&wanted));
}

#[test]
fn unreadable_bookkeeping_is_overwritten() {
    let wanted = service(ServiceType::LoadBalancer, &[("a", "1")], None);
    for bad in [None, Some("garbage"), Some(r#"{"a":1}"#)] {
        let mut existing = wanted.clone();
        let books = existing.metadata.annotations.as_mut().unwrap();
        books.insert("old".into(), "kept".into());
        match bad {
            Some(bad) => drop(books.insert(ANNOTATION_KEYS.into(), bad.into())),
            None => drop(books.remove(ANNOTATION_KEYS)),
        }
        let updated = annotations(&patched(&existing, &wanted).unwrap());
        assert_eq!(updated.get(ANNOTATION_KEYS).map(String::as_str), Some(r#"["a"]"#), "{bad:?}");
        assert_eq!(updated.get("old").map(String::as_str), Some("kept"), "{bad:?}");
    }
}

#[test]
fn labels_are_managed_like_annotations() {
    let existing = service(ServiceType::ClusterIp, &[], None);
    let labels = map(&[("app", "concierge")]);
    let wanted = desired(ServiceType::ClusterIp, "name", "ns", &labels, 8444, &config(&[], None));
    let updated = patched(&existing, &wanted).unwrap();
    assert_eq!(updated.metadata.labels, Some(labels));
    assert_eq!(annotations(&updated), map(&[(LABEL_KEYS, r#"["app"]"#)]));
}

#[test]
fn type_address_and_selector_are_corrected_and_the_rest_is_unchanged() {
    let wanted = service(ServiceType::LoadBalancer, &[], Some("1.2.3.4"));
    let mut existing = wanted.clone();
    existing.metadata.uid = Some("u".into());
    existing.metadata.resource_version = Some("7".into());
    let spec = existing.spec.as_mut().unwrap();
    spec.type_ = Some("NodePort".into());
    spec.load_balancer_ip = None;
    spec.selector = Some(map(&[("app", "x"), ("more", "y")]));
    spec.ports.as_mut().unwrap()[0].node_port = Some(30000);
    assert_eq!(
        patch(&existing, &wanted),
        Ok(Some(json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "spec": {
                "type": "LoadBalancer", "loadBalancerIP": "1.2.3.4",
                "selector": {"app": "concierge", "more": null},
            },
        })))
    );
}

fn with(kind: ServiceType, fields: ServiceFields) -> Service {
    let config = ProxyConfig { fields, ..config(&[], None) };
    let mut service = desired(kind, "name", "ns", &map(&[("app", "concierge")]), 8444, &config);
    service.metadata.uid = Some("u".into());
    service.metadata.resource_version = Some("7".into());
    service
}

fn all_fields() -> ServiceFields {
    ServiceFields {
        load_balancer_class: Some("example.com/a".into()),
        load_balancer_source_ranges: vec!["10.0.0.0/8".into()],
        external_traffic_policy: Some("Local".into()),
        ip_family_policy: Some("PreferDualStack".into()),
    }
}

/// Returns the part of a patch that changes `spec`.
fn spec_patch(existing: &Service, desired: &Service) -> Value {
    patch(existing, desired).unwrap().map(|patch| patch["spec"].clone()).unwrap_or_default()
}

#[test]
fn fields_are_copied_and_recorded_if_the_kind_supports_them() {
    let lb = with(ServiceType::LoadBalancer, all_fields());
    let spec = serde_json::to_value(&lb.spec).unwrap();
    assert_eq!(spec["loadBalancerClass"], "example.com/a");
    assert_eq!(spec["loadBalancerSourceRanges"], json!(["10.0.0.0/8"]));
    assert_eq!(spec["externalTrafficPolicy"], "Local");
    assert_eq!(spec["ipFamilyPolicy"], "PreferDualStack");
    let book = r#"["externalTrafficPolicy","ipFamilyPolicy","loadBalancerClass","loadBalancerSourceRanges"]"#;
    assert_eq!(annotations(&lb).get(FIELD_KEYS).map(String::as_str), Some(book));
    assert_eq!(lb.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));

    let cip = with(ServiceType::ClusterIp, all_fields());
    let spec = serde_json::to_value(&cip.spec).unwrap();
    assert_eq!(spec["ipFamilyPolicy"], "PreferDualStack");
    assert!(
        ["loadBalancerClass", "loadBalancerSourceRanges", "externalTrafficPolicy"]
            .iter()
            .all(|field| spec.get(field).is_none())
    );
    assert_eq!(annotations(&cip).get(FIELD_KEYS).map(String::as_str), Some(r#"["ipFamilyPolicy"]"#));
}

#[test]
fn fields_that_are_not_configured_are_unchanged() {
    let wanted = with(ServiceType::LoadBalancer, ServiceFields::default());
    assert!(
        !annotations(&wanted).contains_key(FIELD_KEYS),
        "without fields there is nothing new in the Service"
    );
    let mut existing = with(ServiceType::LoadBalancer, all_fields());
    existing.metadata.annotations.as_mut().unwrap().remove(FIELD_KEYS);
    assert_eq!(patch(&existing, &wanted), Ok(None));
}

#[test]
fn fields_are_corrected_and_released() {
    let plain = with(ServiceType::LoadBalancer, ServiceFields::default());
    let class = |class: Option<&str>| ServiceFields {
        load_balancer_class: class.map(str::to_owned),
        ..ServiceFields::default()
    };
    let most = ServiceFields { load_balancer_class: None, ..all_fields() };
    let given = with(ServiceType::LoadBalancer, most.clone());
    assert_eq!(
        spec_patch(&plain, &given),
        json!({
            "externalTrafficPolicy": "Local", "ipFamilyPolicy": "PreferDualStack",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
        })
    );
    assert_eq!(spec_patch(&given, &given), Value::Null);
    let fewer = ServiceFields { load_balancer_source_ranges: vec!["10.1.0.0/16".into()], ..most };
    assert_eq!(
        spec_patch(&given, &with(ServiceType::LoadBalancer, fewer)),
        json!({"loadBalancerSourceRanges": ["10.1.0.0/16"]})
    );
    // Fields that were removed from the CredentialIssuer have the same effect as fields that were
    // never set.
    assert_eq!(
        patch(&given, &plain),
        Ok(Some(json!({
            "metadata": {"uid": "u", "resourceVersion": "7", "annotations": {FIELD_KEYS: null}},
            "spec": {
                "externalTrafficPolicy": "Cluster", "ipFamilyPolicy": "SingleStack",
                "loadBalancerSourceRanges": null,
            },
        })))
    );
    // The class of a Service is immutable.
    let fixed = "could not change the loadBalancerClass of service \"name\", which is fixed once it was created: \
                 delete the Service to have it created anew";
    let a = with(ServiceType::LoadBalancer, class(Some("example.com/a")));
    for other in [Some("example.com/b"), None] {
        let other = with(ServiceType::LoadBalancer, class(other));
        assert_eq!(patch(&a, &other).map_err(|error| error.to_string()), Err(fixed.to_owned()));
    }
    assert_eq!(patch(&plain, &a).map_err(|error| error.to_string()), Err(fixed.to_owned()));
    assert_eq!(spec_patch(&a, &a), Value::Null);
}
