//! Tests of Services, names and pods without a node.

use std::net::IpAddr;
use std::time::Duration;

use pinniped_test_support::wait;
use pinniped_test_support::world::World;

/// A Deployment of two pods that serve their own names over HTTP with a program of the machine.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: pods-test}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: script, namespace: pods-test}
data:
  serve.sh: |
    set -eu
    test "$KUBERNETES_SERVICE_HOST" = 10.96.0.1
    test "$(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace)" = pods-test
    test -s /var/run/secrets/kubernetes.io/serviceaccount/token
    grep -q BEGIN /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    test "$(cat /etc/podinfo/name)" = "$MY_NAME"
    grep -qx 'app="web"' /etc/podinfo/labels
    echo scratch > /tmp/file
    if echo no > /etc/config/no 2>/dev/null; then echo "config is writable"; exit 1; fi
    if echo no > /no 2>/dev/null; then echo "root is writable"; exit 1; fi
    grep -q 'kubernetes.default.svc$' /etc/hosts
    echo started
    exec perl -MIO::Socket::INET -e '
      my $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die "listen: $!";
      while (my $c = $s->accept) {
        my $r = <$c>;
        print $c "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n$ENV{MY_NAME}";
        close $c;
      }'
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: pods-test}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: none
        command: [test-shell, /etc/config/serve.sh]
        env:
        - {name: MY_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        securityContext: {readOnlyRootFilesystem: true}
        readinessProbe: {httpGet: {path: /, port: 8080}}
        volumeMounts:
        - {name: config, mountPath: /etc/config, readOnly: true}
        - {name: podinfo, mountPath: /etc/podinfo, readOnly: true}
        - {name: tmp, mountPath: /tmp}
      volumes:
      - {name: config, configMap: {name: script}}
      - {name: tmp, emptyDir: {}}
      - name: podinfo
        downwardAPI:
          items:
          - {path: labels, fieldRef: {fieldPath: metadata.labels}}
          - {path: name, fieldRef: {fieldPath: metadata.name}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: pods-test}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#;

async fn send_request(host: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut tcp = tokio::net::TcpStream::connect((host, 80)).await.ok()?;
    tcp.write_all(b"GET / HTTP/1.0\r\n\r\n").await.ok()?;
    let mut response = String::new();
    tcp.read_to_string(&mut response).await.ok()?;
    response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

#[tokio::test]
async fn a_deployment_runs_and_its_service_responds_by_name() {
    let world = World::shared().unwrap();
    let Some(pods) = world.pods("a deployment runs and its service answers by name") else { return };
    pods.register("test-shell", std::fs::canonicalize("/bin/sh").unwrap());
    world.kubectl().apply(MANIFEST).await.unwrap();

    let wait = Duration::from_secs(30);
    let rollout = ["rollout", "status", "deployment/web", "-n", "pods-test", "--timeout=30s"];
    let status = world.kubectl().run(&rollout).await.unwrap();
    assert_eq!(status.code, 0, "{status:?}\n{}", pods.log_tails("pods-test", 20));
    // Both pods respond, each at its own address, behind one ClusterIP.
    let mut seen = std::collections::BTreeSet::new();
    wait::until(wait, "both pods to respond", async || {
        seen.extend(send_request("web.pods-test.svc").await);
        (seen.len() == 2).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(seen, pods.list("pods-test").into_iter().map(|(name, _)| name).collect());

    // After a crash the same pods are restarted.
    pods.signal("pods-test", rustix::process::Signal::KILL);
    wait::until(wait, "both pods to restart", async || {
        pods.list("pods-test").iter().all(|(_, pod)| pod.restarts == 1 && pod.ready).then_some(())
    })
    .await
    .unwrap();

    world.kubectl().output(&["delete", "namespace", "pods-test", "--timeout=60s"]).await.unwrap();
    assert!(pods.list("pods-test").iter().all(|(_, pod)| pod.pid.is_none()));
}

#[tokio::test]
async fn the_api_server_is_reachable_by_name_at_its_cluster_ip() {
    let world = World::shared().unwrap();
    if world.pods("the API server is reached at its ClusterIP").is_none() {
        return;
    }
    wait::until(Duration::from_secs(20), "kubernetes.default.svc to respond", async || {
        tokio::net::TcpStream::connect(("kubernetes.default.svc", 443)).await.ok()
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_host_name_of_a_test_resolves() {
    let world = World::shared().unwrap();
    if world.pods("a host name of a test resolves").is_none() {
        return;
    }
    let ip: IpAddr = "10.123.0.1".parse().unwrap();
    world.set_host("impersonation-proxy-mtls.local", ip).unwrap();
    let found =
        tokio::net::lookup_host(("impersonation-proxy-mtls.local", 443)).await.unwrap().next().unwrap();
    assert_eq!(found.ip(), ip);
}
