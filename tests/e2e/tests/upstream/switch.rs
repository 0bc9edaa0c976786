//! The switch of a cluster from upstream's Concierge to this one in place, and back.
//!
//! Upstream's program does not run here, but its objects exist as it leaves them: Secrets with its
//! keys, formats and lifetimes (made by OpenSSL), APIServices, Service, status, Lease, and what its
//! older releases left.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::Walk;
use pinniped_test_support::world::World;
use pinniped_test_support::{kubectl, tools, wait};
use serde_json::{Value, json};

use crate::{TIME_LIMIT, await_proxy};

const APP: &str = "pinniped-concierge";
const DEPLOYMENT: &str = "deployment/pinniped-concierge";
const SERVICE: &str = "pinniped-concierge-impersonation-proxy-load-balancer";
const SERVING: &str = "pinniped-concierge-api-tls-serving-certificate";
const SIGNER: &str = "pinniped-concierge-impersonation-proxy-signer-ca-certificate";
const PROXY_CA: &str = "pinniped-concierge-impersonation-proxy-ca-certificate";
const PROXY_TLS: &str = "pinniped-concierge-impersonation-proxy-tls-serving-certificate";
/// Old releases kept a token of the impersonation proxy's account in it.
const LEGACY_TOKEN: &str = "pinniped-concierge-impersonation-proxy";
/// A pod of the agent of old releases.
const LEGACY_POD: &str = "pinniped-concierge-kube-cert-agent-legacy";
const API_SERVICES: [&str; 2] =
    ["v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"];
const ISSUER: &str = "credentialissuers.config.concierge.pinniped.dev";

pub(crate) async fn in_place_and_back(world: &World) -> anyhow::Result<()> {
    scale(world, 0).await?;
    let upstream = Upstream::create(world).await.context("could not create upstream's objects")?;
    let before = objects(world).await?;

    // The image is replaced; everything else is upstream's.
    scale(world, 2).await?;
    upstream.works(world, &before).await.context("after the image was replaced")?;
    let lease = get(world, "lease", APP).await?;
    ensure!(lease["spec"]["leaseTransitions"] == 8, "the Lease was not taken over: {}", lease["spec"]);
    for (kind, name) in [("secret", LEGACY_TOKEN), ("pod", LEGACY_POD)] {
        wait::until_ok(TIME_LIMIT, format!("the legacy {kind} to be deleted"), async || {
            let found = namespaced(world, &["get", kind, name, "--ignore-not-found", "-o", "name"]).await?;
            ensure!(found.is_empty(), "{found}");
            Ok(())
        })
        .await?;
    }

    // Then the manifests, with the setting of this cluster.
    for file in ["install-pinniped-concierge-crds.yaml", "install-pinniped-concierge-resources.yaml"] {
        apply(world, &Path::new("deploy").join(file)).await?;
    }
    rolled_out(world).await?;
    upstream.works(world, &before).await.context("with the manifests of this project")?;

    // And back.
    apply(world, Path::new("testdata/upstream/manifests/upstream-concierge.yaml")).await?;
    rolled_out(world).await?;
    upstream.works(world, &before).await.context("with upstream's manifests again")
}

/// Endpoint, authority and credentials that users of upstream's Concierge have.
struct Upstream {
    ip: IpAddr,
    /// The certificate authority in their kubeconfigs.
    proxy_ca: String,
    /// A kubeconfig with a certificate that upstream issued.
    kubeconfig: PathBuf,
}

impl Upstream {
    /// Replaces the objects that our program has created by upstream's.
    async fn create(world: &World) -> anyhow::Result<Self> {
        let dir = world.dir().join("upstream-objects");
        std::fs::create_dir_all(&dir)?;
        let serving_ca = Authority::create(&dir, "serving-ca", "Pinniped Aggregation CA", 30)?;
        let signer = Authority::create(&dir, "signer", "Pinniped Impersonation Proxy Signer CA", 365)?;
        let proxy_ca = Authority::create(&dir, "proxy-ca", "Pinniped Impersonation Proxy Serving CA", 36500)?;

        let owner = get(world, "deployment", APP).await?["metadata"]["uid"].clone();
        let metadata = |name: &str| {
            json!({
                "name": name, "namespace": APP, "labels": {"app": APP},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": APP, "uid": owner}],
            })
        };
        let mut service = metadata(SERVICE);
        service["annotations"] = json!({"credentialissuer.pinniped.dev/label-keys": "[\"app\"]"});
        recreate(
            world,
            "service",
            &json!({
                "apiVersion": "v1", "kind": "Service", "metadata": service,
                "spec": {
                    "type": "LoadBalancer", "selector": {"app": APP},
                    "ports": [{"port": 443, "targetPort": 8444, "protocol": "TCP"}],
                },
            }),
        )
        .await?;
        let ip = world.assign_load_balancer(APP, SERVICE).await?;

        let host = format!("{APP}-api.{APP}.svc");
        let serving = serving_ca.issue(&host, &format!("DNS:{host}"), "serverAuth", 30)?;
        let proxy = proxy_ca.issue("", &format!("IP:{ip}"), "serverAuth", 36500)?;
        let client = signer.issue("upstream-user", "", "clientAuth", 1)?;
        let secrets = [
            (
                SERVING,
                "Opaque",
                json!({
                    "caCertificate": serving_ca.certificate, "caCertificatePrivateKey": serving_ca.key,
                    "tlsCertificateChain": serving.certificate, "tlsPrivateKey": serving.key,
                }),
            ),
            (
                SIGNER,
                "Opaque",
                json!({
                    "caCertificate": signer.certificate, "caCertificatePrivateKey": signer.key,
                }),
            ),
            (PROXY_CA, "Opaque", json!({"ca.crt": proxy_ca.certificate, "ca.key": proxy_ca.key})),
            (PROXY_TLS, "kubernetes.io/tls", json!({"tls.crt": proxy.certificate, "tls.key": proxy.key})),
        ];
        for (name, kind, data) in secrets {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata(name),
                "stringData": data,
            });
            recreate(world, "secret", &secret).await?;
        }
        let mut legacy = metadata(LEGACY_TOKEN);
        legacy["annotations"] = json!({"kubernetes.io/service-account.name": LEGACY_TOKEN});
        recreate(
            world,
            "secret",
            &json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
                "metadata": legacy,
            }),
        )
        .await?;
        let mut pod = metadata(LEGACY_POD);
        pod["labels"]["kube-cert-agent.pinniped.dev"] = json!("true");
        recreate(world, "pod", &json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": pod,
            "spec": {"containers": [{"name": "sleeper", "image": "none", "command": ["sleep", "infinity"]}]},
        }))
        .await?;

        // A pod that stops releases its Lease.
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
        recreate(
            world,
            "lease",
            &json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata(APP),
                "spec": {
                    "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7,
                    "acquireTime": now, "renewTime": now,
                },
            }),
        )
        .await?;
        let bundle = json!({"spec": {"caBundle": STANDARD.encode(&serving_ca.certificate)}}).to_string();
        for name in API_SERVICES {
            world.kubectl().output(&["patch", "apiservice", name, "--type=merge", "-p", &bundle]).await?;
        }
        let bundle = STANDARD.encode(&proxy_ca.certificate);
        let endpoint = format!("https://{ip}");
        let status = json!({"status": {"strategies": [
            {
                "type": "KubeClusterSigningCertificate", "status": "Error", "reason": "CouldNotFetchKey",
                "message": "could not find a healthy kube-controller-manager pod (0 candidates)",
                "lastUpdateTime": "2026-01-01T00:00:00Z",
            },
            {
                "type": "ImpersonationProxy", "status": "Success", "reason": "Listening",
                "message": "impersonation proxy is ready to accept client connections",
                "lastUpdateTime": "2026-01-01T00:00:00Z",
                "frontend": {"type": "ImpersonationProxy", "impersonationProxyInfo": {
                    "endpoint": endpoint, "certificateAuthorityData": bundle,
                }},
            },
        ]}})
        .to_string();
        let patch = [
            "patch",
            ISSUER,
            "pinniped-concierge-config",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ];
        world.kubectl().output(&patch).await?;

        let kubeconfig = dir.join("kubeconfig.yaml");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": endpoint, "certificate-authority-data": bundle}}],
            "users": [{"name": "u", "user": {
                "client-certificate-data": STANDARD.encode(&client.certificate),
                "client-key-data": STANDARD.encode(&client.key),
            }}],
        });
        std::fs::write(&kubeconfig, text.to_string())?;
        Ok(Self { ip, proxy_ca: proxy_ca.certificate, kubeconfig })
    }

    /// Checks that the credential and the kubeconfigs of upstream's users work, that new logins
    /// work, and that the objects are the same as before.
    async fn works(&self, world: &World, before: &BTreeMap<String, Value>) -> anyhow::Result<()> {
        // The status is the same as before, so the requests show when the proxy serves.
        let kubectl = world.kubectl().with_kubeconfig(&self.kubeconfig);
        let user = wait::until_ok(TIME_LIMIT, "a request with a credential of upstream's", async || {
            kubectl.output(&["auth", "whoami", "-o", "json"]).await
        })
        .await?;
        let user: Value = serde_json::from_str(&user)?;
        ensure!(user["status"]["userInfo"]["username"] == "upstream-user", "{user}");

        let listening = await_proxy(world, "Success", "Listening").await?;
        let info = &listening["frontend"]["impersonationProxyInfo"];
        ensure!(info["endpoint"] == format!("https://{}", self.ip), "{info}");
        ensure!(info["certificateAuthorityData"] == STANDARD.encode(&self.proxy_ca), "{info}");
        let walk = Walk::new(world, Narrator::Silent, std::time::Instant::now())?.at_home("home-switch")?;
        let login = async || {
            walk.kubeconfig().await?;
            Ok(walk.whoami().await?.stdout)
        };
        let whoami = wait::until_ok(TIME_LIMIT, "a new login", login).await?;
        ensure!(whoami.contains("Username: pinny\n"), "{whoami}");

        let after = objects(world).await?;
        for (name, wanted) in before {
            ensure!(after.get(name) == Some(wanted), "{name} was\n{wanted}\nand is\n{:?}", after.get(name));
        }
        Ok(())
    }
}

/// Returns identity and content of each object that has to survive the switch. The resource version
/// of a Secret also shows that nothing wrote to it.
async fn objects(world: &World) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut objects = BTreeMap::new();
    for name in [SERVING, SIGNER, PROXY_CA, PROXY_TLS] {
        let secret = get(world, "secret", name).await?;
        let metadata = &secret["metadata"];
        let content = json!([metadata["uid"], metadata["resourceVersion"], secret["type"], secret["data"]]);
        objects.insert(name.to_owned(), content);
    }
    for name in API_SERVICES {
        let object = get(world, "apiservice", name).await?;
        objects.insert(name.to_owned(), json!([object["metadata"]["uid"], object["spec"]["caBundle"]]));
    }
    let service = get(world, "service", SERVICE).await?;
    objects.insert(SERVICE.to_owned(), json!([service["metadata"]["uid"], service["spec"]]));
    for (kind, name) in [
        ("deployment", APP),
        ("serviceaccount", APP),
        ("serviceaccount", "pinniped-concierge-impersonation-proxy"),
        (ISSUER, "pinniped-concierge-config"),
    ] {
        let object = get(world, kind, name).await?;
        objects.insert(format!("{kind} {name}"), object["metadata"]["uid"].clone());
    }
    Ok(objects)
}

/// A pair of certificate and key, PEM.
struct Pair {
    certificate: String,
    key: String,
}

/// An authority as upstream makes them: the key in the format `EC PRIVATE KEY`.
struct Authority {
    path: PathBuf,
    certificate: String,
    key: String,
}

impl Authority {
    fn create(dir: &Path, file: &str, name: &str, days: u32) -> anyhow::Result<Self> {
        let path = dir.join(file);
        let (key, certificate) = (path.with_extension("key"), path.with_extension("crt"));
        openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", text(&key)])?;
        openssl(&[
            "req",
            "-x509",
            "-new",
            "-key",
            text(&key),
            "-out",
            text(&certificate),
            "-subj",
            &format!("/CN={name}"),
            "-days",
            &days.to_string(),
            "-addext",
            "keyUsage=critical,digitalSignature,keyCertSign",
            "-addext",
            "extendedKeyUsage=clientAuth,serverAuth",
        ])?;
        let (certificate, key) = (std::fs::read_to_string(certificate)?, std::fs::read_to_string(key)?);
        ensure!(key.starts_with("-----BEGIN EC PRIVATE KEY-----"), "not the format of upstream");
        Ok(Self { path, certificate, key })
    }

    /// Issues a certificate, with a key in PKCS#8.
    fn issue(&self, name: &str, alternative: &str, usage: &str, days: u32) -> anyhow::Result<Pair> {
        let leaf = self.path.with_extension("leaf");
        let [key, request, certificate] =
            ["key", "csr", "crt"].map(|end| leaf.with_extension(format!("leaf.{end}")));
        openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", text(&key)])?;
        let subject = if name.is_empty() { "/".to_owned() } else { format!("/CN={name}") };
        let usage = format!("extendedKeyUsage={usage}");
        let alternative = format!("subjectAltName={alternative}");
        let mut args = vec![
            "req",
            "-new",
            "-key",
            text(&key),
            "-out",
            text(&request),
            "-subj",
            &subject,
            "-addext",
            "keyUsage=critical,digitalSignature",
            "-addext",
            &usage,
        ];
        if alternative.len() > "subjectAltName=".len() {
            args.extend(["-addext", &alternative]);
        }
        openssl(&args)?;
        openssl(&[
            "x509",
            "-req",
            "-in",
            text(&request),
            "-out",
            text(&certificate),
            "-CA",
            text(&self.path.with_extension("crt")),
            "-CAkey",
            text(&self.path.with_extension("key")),
            "-CAcreateserial",
            "-days",
            &days.to_string(),
            "-copy_extensions",
            "copyall",
        ])?;
        Ok(Pair { certificate: std::fs::read_to_string(certificate)?, key: std::fs::read_to_string(key)? })
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

fn openssl(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("openssl").args(args).output().context("could not start openssl")?;
    ensure!(output.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn namespaced(world: &World, args: &[&str]) -> anyhow::Result<String> {
    world.kubectl().output(&[args, &["-n", APP]].concat()).await
}

async fn get(world: &World, kind: &str, name: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&namespaced(world, &["get", kind, name, "-o", "json"]).await?)?)
}

/// Deletes an object if it exists, and creates this one.
async fn recreate(world: &World, kind: &str, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().context("the object has no name")?;
    namespaced(world, &["delete", kind, name, "--ignore-not-found", "--timeout=60s"]).await?;
    // Not `apply`, which leaves an annotation.
    let create = world.kubectl().command(&["create", "-f", "-"]);
    kubectl::run(create, Some(&object.to_string())).await?.success().map(drop)
}

/// Applies a manifest, in which the proxy is enabled.
async fn apply(world: &World, file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(tools::repository().join(file))?;
    let edited = text.replace("    mode: auto\n    service:", "    mode: enabled\n    service:");
    ensure!(edited != text || text.contains("CustomResourceDefinition"), "{} has no proxy", file.display());
    world.kubectl().apply(&edited).await.map(drop)
}

async fn scale(world: &World, replicas: u32) -> anyhow::Result<()> {
    namespaced(world, &["scale", DEPLOYMENT, &format!("--replicas={replicas}")]).await?;
    if replicas > 0 {
        return rolled_out(world).await;
    }
    let selector = ["wait", "pod", "-l", "app=pinniped-concierge", "--for=delete", "--timeout=60s"];
    namespaced(world, &selector).await.map(drop)
}

async fn rolled_out(world: &World) -> anyhow::Result<()> {
    namespaced(world, &["rollout", "status", DEPLOYMENT, "--timeout=60s"]).await.map(drop)
}
