//! Functions of optional values, and of maps that a macro builds.

use super::Declaration;

/// The signatures of the functions, as `overload: signature`.
pub(super) const FUNCTIONS: &[Declaration] = &[
    (
        "cel.@mapInsert",
        &[
            "@mapInsert_map_key_value: (map(K, V), K, V) -> map(K, V)",
            "@mapInsert_map_map: (map(K, V), map(K, V)) -> map(K, V)",
        ],
    ),
    ("hasValue", &["optional_hasValue: optional_type(V).() -> bool"]),
    ("optional.none", &["optional_none: () -> optional_type(V)"]),
    ("optional.of", &["optional_of: (V) -> optional_type(V)"]),
    ("optional.ofNonZeroValue", &["optional_ofNonZeroValue: (V) -> optional_type(V)"]),
    ("optional.unwrap", &["optional_unwrap: (list(optional_type(V))) -> list(V)"]),
    ("or", &["optional_or_optional: optional_type(V).(optional_type(V)) -> optional_type(V)"]),
    ("orValue", &["optional_orValue_value: optional_type(V).(V) -> V"]),
    ("unwrapOpt", &["optional_unwrapOpt: list(optional_type(V)).() -> list(V)"]),
    ("value", &["optional_value: optional_type(V).() -> V"]),
];
