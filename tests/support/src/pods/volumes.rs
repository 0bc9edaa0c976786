//! Writes the volumes of a pod as folders.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};

/// The files of one volume: path inside the volume and content.
type Files = BTreeMap<String, Vec<u8>>;

/// The source of a mounted volume.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A folder of the host.
    Folder(PathBuf),
    /// A new memory file system.
    Memory,
}

/// Writes all volumes of `pod` below `dir`.
pub(super) async fn materialise(
    client: &kube::Client,
    pod: &Pod,
    dir: &Path,
) -> anyhow::Result<BTreeMap<String, Source>> {
    let mut sources = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let source = materialise_one(client, pod, volume, &dir.join(&volume.name))
            .await
            .with_context(|| format!("could not set up volume {}", volume.name))?;
        sources.insert(volume.name.clone(), source);
    }
    Ok(sources)
}

/// Returns whether a volume of the pod has files of this ConfigMap of its namespace.
pub(super) fn contain_config_map(pod: &Pod, name: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| {
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let mut maps = projected.filter_map(|source| source.config_map.as_ref()).map(|map| &map.name);
        volume.config_map.as_ref().is_some_and(|map| map.name == name) || maps.any(|map| map == name)
    })
}

async fn materialise_one(
    client: &kube::Client,
    pod: &Pod,
    volume: &Volume,
    dir: &Path,
) -> anyhow::Result<Source> {
    let files = if let Some(host_path) = &volume.host_path {
        return Ok(Source::Folder(PathBuf::from(&host_path.path)));
    } else if volume.empty_dir.is_some() {
        return Ok(Source::Memory);
    } else if let Some(map) = &volume.config_map {
        config_map(client, pod, &map.name, map.items.as_deref(), map.optional).await?
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.as_deref().unwrap_or_default();
        self::secret(client, pod, name, secret.items.as_deref(), secret.optional).await?
    } else if let Some(downward) = &volume.downward_api {
        downward_api(pod, downward.items.as_deref().unwrap_or_default())?
    } else if let Some(projected) = &volume.projected {
        let mut files = Files::new();
        for source in projected.sources.iter().flatten() {
            files.extend(projection(client, pod, source).await?);
        }
        files
    } else {
        anyhow::bail!("its type is not supported by the stand-in");
    };
    write(dir, &files)?;
    Ok(Source::Folder(dir.to_owned()))
}

/// Replaces each file atomically, as readers of a mounted token expect.
fn write(dir: &Path, files: &Files) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (path, content) in files {
        let file = dir.join(path);
        std::fs::create_dir_all(file.parent().unwrap_or(dir))?;
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, content)?;
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o644))?;
        std::fs::rename(&fresh, &file)?;
    }
    Ok(())
}

async fn projection(client: &kube::Client, pod: &Pod, source: &VolumeProjection) -> anyhow::Result<Files> {
    if let Some(token) = &source.service_account_token {
        return service_account_token(client, pod, token).await;
    }
    if let Some(map) = &source.config_map {
        return config_map(client, pod, &map.name, map.items.as_deref(), map.optional).await;
    }
    if let Some(secret) = &source.secret {
        return self::secret(client, pod, &secret.name, secret.items.as_deref(), secret.optional).await;
    }
    if let Some(downward) = &source.downward_api {
        return downward_api(pod, downward.items.as_deref().unwrap_or_default());
    }
    anyhow::bail!("a projected source's type is not supported by the stand-in")
}

async fn service_account_token(
    client: &kube::Client,
    pod: &Pod,
    wanted: &ServiceAccountTokenProjection,
) -> anyhow::Result<Files> {
    let account =
        pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_else(|| "default".into());
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: wanted.audience.clone().map(|audience| vec![audience]),
            expiration_seconds: wanted.expiration_seconds,
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name_any()),
                uid: pod.uid(),
            }),
        }),
        ..TokenRequest::default()
    };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let response = accounts
        .create_token_request(&account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("could not get a token for ServiceAccount {account}"))?;
    let token = response.status.and_then(|status| status.token).context("the TokenRequest has no token")?;
    Ok(Files::from([(wanted.path.clone(), token.into_bytes())]))
}

async fn config_map(
    client: &kube::Client,
    pod: &Pod,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
) -> anyhow::Result<Files> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let Some(map) = maps.get_opt(name).await? else {
        anyhow::ensure!(optional == Some(true), "ConfigMap {name} is not there");
        return Ok(Files::new());
    };
    let mut all: Files = map.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.into_bytes())).collect();
    all.extend(map.binary_data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)));
    choose(all, items)
}

async fn secret(
    client: &kube::Client,
    pod: &Pod,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
) -> anyhow::Result<Files> {
    let secrets = Api::<Secret>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let Some(secret) = secrets.get_opt(name).await? else {
        anyhow::ensure!(optional == Some(true), "Secret {name} is not there");
        return Ok(Files::new());
    };
    choose(secret.data.unwrap_or_default().into_iter().map(|(k, v)| (k, v.0)).collect(), items)
}

fn choose(all: Files, items: Option<&[KeyToPath]>) -> anyhow::Result<Files> {
    let Some(items) = items.filter(|items| !items.is_empty()) else { return Ok(all) };
    items
        .iter()
        .map(|item| {
            let content = all.get(&item.key).with_context(|| format!("key {} is not there", item.key))?;
            Ok((item.path.clone(), content.clone()))
        })
        .collect()
}

fn downward_api(pod: &Pod, items: &[DownwardAPIVolumeFile]) -> anyhow::Result<Files> {
    items
        .iter()
        .map(|item| {
            let field = item.field_ref.as_ref().context("only fieldRef is supported by the stand-in")?;
            Ok((item.path.clone(), field_value(pod, field)?.into_bytes()))
        })
        .collect()
}

/// Returns a field of the pod in the form that kubelet uses (`fieldpath.ExtractFieldPathAsString`).
pub(super) fn field_value(pod: &Pod, field: &ObjectFieldSelector) -> anyhow::Result<String> {
    Ok(match field.field_path.as_str() {
        "metadata.name" => pod.name_any(),
        "metadata.namespace" => pod.namespace().unwrap_or_default(),
        "metadata.uid" => pod.uid().unwrap_or_default(),
        "metadata.labels" => format_map(pod.labels()),
        "metadata.annotations" => format_map(pod.annotations()),
        "spec.nodeName" => super::NODE_NAME.to_owned(),
        "spec.serviceAccountName" => {
            pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default()
        }
        "status.hostIP" => super::NODE_IP.to_string(),
        other => anyhow::bail!("field {other} is not supported by the stand-in"),
    })
}

/// Formats a map as `key="value"` lines, sorted, with values quoted as Go's `%q` does for the
/// characters that labels may contain, without a final newline.
fn format_map(map: &BTreeMap<String, String>) -> String {
    let quoted = |value: &String| serde_json::Value::String(value.clone()).to_string();
    map.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_the_format_of_kubelet() {
        let map = BTreeMap::from([("b".to_owned(), "x\"y".to_owned()), ("a/c".to_owned(), String::new())]);
        assert_eq!(format_map(&map), "a/c=\"\"\nb=\"x\\\"y\"");
    }
}
