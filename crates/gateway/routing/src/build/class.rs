//! Selects the objects of the configured ingress classes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Settings;

const CLASS: &str = "projectcontour.io/ingress.class";
const CLASS_OF_KUBERNETES: &str = "kubernetes.io/ingress.class";
const CLASS_OF_HEPTIO: &str = "contour.heptio.com/ingress.class";

/// The default class.
const DEFAULT: &str = "contour";

/// Returns whether an `Ingress` or `HTTPProxy` with this class in its spec belongs to the gateway.
pub(super) fn is_ours(settings: &Settings, metadata: &ObjectMeta, in_spec: Option<&str>) -> bool {
    matches(settings, &[CLASS, CLASS_OF_KUBERNETES], metadata, in_spec)
}

/// Returns whether an `IngressRoute` belongs to the gateway.
pub(super) fn is_our_ingress_route(settings: &Settings, metadata: &ObjectMeta) -> bool {
    matches(settings, &[CLASS, CLASS_OF_HEPTIO, CLASS_OF_KUBERNETES], metadata, None)
}

/// Uses the first annotation that exists; if its value is empty, uses the class of the spec.
fn matches(settings: &Settings, annotations: &[&str], metadata: &ObjectMeta, in_spec: Option<&str>) -> bool {
    let known = metadata.annotations.as_ref();
    let annotated = annotations.iter().find_map(|name| known?.get(*name)).filter(|class| !class.is_empty());
    let class = annotated.map(String::as_str).or(in_spec).unwrap_or_default();
    if settings.classes.is_empty() {
        class.is_empty() || class == DEFAULT
    } else {
        settings.classes.iter().any(|ours| ours == class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(annotations: &[(&str, &str)]) -> ObjectMeta {
        let annotations =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
    }

    #[test]
    fn i8_the_first_annotation_or_the_spec_sets_the_class() {
        let default = Settings::default();
        let set = Settings { classes: vec!["a".into(), "b".into()], ..Settings::default() };
        type Annotations = &'static [(&'static str, &'static str)];
        let table: [(Annotations, Option<&str>, bool, bool); 11] = [
            (&[], None, true, false),
            (&[], Some(""), true, false),
            (&[], Some("contour"), true, false),
            (&[], Some("other"), false, false),
            (&[], Some("b"), false, true),
            (&[(CLASS, "contour")], Some("other"), true, false),
            (&[(CLASS, "a")], Some("other"), false, true),
            (&[(CLASS_OF_KUBERNETES, "a")], None, false, true),
            (&[(CLASS, "other"), (CLASS_OF_KUBERNETES, "a")], None, false, false),
            (&[(CLASS, ""), (CLASS_OF_KUBERNETES, "other")], Some("a"), false, true),
            (&[(CLASS_OF_HEPTIO, "other")], None, true, false),
        ];
        for (annotations, in_spec, by_default, when_set) in table {
            let metadata = object(annotations);
            assert_eq!(is_ours(&default, &metadata, in_spec), by_default, "{annotations:?} {in_spec:?}");
            assert_eq!(is_ours(&set, &metadata, in_spec), when_set, "{annotations:?} {in_spec:?}");
        }
        let of_heptio = object(&[(CLASS_OF_HEPTIO, "a"), (CLASS_OF_KUBERNETES, "other")]);
        assert!(is_our_ingress_route(&set, &of_heptio));
        assert!(!is_our_ingress_route(&default, &of_heptio));
    }
}
