//! Documents about artifacts: the components of a program ([`sbom`]) and the origin of a build
//! ([`provenance`]). They contain no time and no random numbers, so that the same sources give the
//! same documents. The release workflow signs them.

pub(crate) mod provenance;
pub(crate) mod sbom;

/// Returns the text of a document.
pub(crate) fn text(document: &serde_json::Value) -> Vec<u8> {
    format!("{document:#}\n").into_bytes()
}
