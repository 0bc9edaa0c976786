//! The life cycle of one pod: volumes, container, probes, status, restarts, termination.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt as _};
use rustix::process::Signal;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::container::{self, ContainerParams};
use super::{NODE_IP, Shared, probe, program_of, volumes};
use crate::guardian::{Ending, signal_group};

/// Interval of the readiness probe. Much shorter than a usual probe period, because tests wait for
/// readiness.
const PROBE_EVERY: Duration = Duration::from_millis(200);
/// First and longest pause before the restart of a crashed container.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Time after which a container counts as running, so that the pause before its next restart is the
/// first one again. A kubelet waits ten minutes.
const BACKOFF_RESET: Duration = Duration::from_secs(5);

/// Interval at which the volumes are written again, well before a token expires after one hour.
const REFRESH_EVERY: Duration = Duration::from_secs(20 * 60);

/// Runs `pod` until `stop`, then terminates its container and deletes the pod.
pub(super) async fn run(shared: Arc<Shared>, pod: Pod, stop: CancellationToken) {
    let key = (pod.namespace().unwrap_or_default(), pod.name_any());
    let ip = shared.next_address();
    let log = container::log_file(&shared, &pod);
    shared.update(&key, |entry| {
        entry.ip = Some(ip);
        entry.log.clone_from(&log);
    });
    let mut restarts = 0;
    let mut pause = BACKOFF.0;
    while !stop.is_cancelled() {
        let started = Instant::now();
        match run_once(&shared, &pod, &key, ip, restarts, &stop).await {
            Ok(Some(status)) => note(&log, &format!("container ended: {status}")),
            Ok(None) => break,
            Err(error) => note(&log, &format!("container could not be started: {error:#}")),
        }
        if started.elapsed() >= BACKOFF_RESET {
            pause = BACKOFF.0;
        }
        restarts += 1;
        shared.update(&key, |entry| entry.restarts = restarts);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(BACKOFF.1);
    }
    remove(&shared, &pod).await;
}

/// Runs the container once. Returns `None` when it was stopped on request.
async fn run_once(
    shared: &Shared,
    pod: &Pod,
    key: &(String, String),
    ip: Ipv4Addr,
    restarts: u32,
    stop: &CancellationToken,
) -> anyhow::Result<Option<ExitStatus>> {
    let Some(container) = pod.spec.as_ref().and_then(|spec| spec.containers.first()) else { return Ok(None) };
    let Some(program) = program_of(shared, pod) else { return Ok(None) };
    let dir = shared.control_plane.dir().join("pods").join(pod.uid().unwrap_or_default());
    let mut changed_config_maps = shared.changed_config_maps.subscribe();
    // As with kubelet, the objects of a volume may be created later than the pod.
    let volumes = loop {
        match volumes::materialise(&shared.client, pod, &dir.join("volumes")).await {
            Ok(volumes) => break volumes,
            Err(error) if stop.is_cancelled() => return Err(error),
            Err(_) => tokio::time::sleep(PROBE_EVERY).await,
        }
    };
    let params = ContainerParams { pod, container, program: &program, ip, volumes: &volumes, dir: &dir };
    let command = container::command(shared, &params).await?;
    let guardian = shared.control_plane.guardian();
    let mut process = guardian.spawn(&command, Ending::Gentle, &container::log_file(shared, pod))?;
    let pid = process.id();
    let mut ended = tokio::task::spawn_blocking(move || process.wait());
    let mut ready = container.readiness_probe.is_none();
    shared.update(key, |entry| {
        entry.pid = Some(pid);
        entry.ready = ready;
    });
    report(shared, pod, container, ip, ready, restarts).await;
    let mut ticks = tokio::time::interval(PROBE_EVERY);
    let mut refresh = tokio::time::interval(REFRESH_EVERY);
    refresh.reset();
    let status = loop {
        tokio::select! {
            status = &mut ended => break Some(status??),
            () = stop.cancelled() => {
                signal_group(pid, Signal::TERM);
                let grace = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                let log = container::log_file(shared, pod);
                match tokio::time::timeout(grace, &mut ended).await {
                    Ok(status) => note(&log, &format!("container ended: {}", status??)),
                    Err(_elapsed) => {
                        signal_group(pid, Signal::KILL);
                        let status = ended.await??;
                        note(&log, &format!("container killed after {} s: {status}", grace.as_secs()));
                    }
                }
                break None;
            }
            _ = refresh.tick() => renew(shared, pod, &dir).await,
            changed = changed_config_maps.recv() => {
                // Changes that were missed may concern this pod.
                let concerns = |(namespace, name): (String, String)| {
                    namespace == key.0 && volumes::contain_config_map(pod, &name)
                };
                if changed.map_or(true, concerns) {
                    renew(shared, pod, &dir).await;
                }
            }
            _ = ticks.tick() => {
                let Some(wanted) = &container.readiness_probe else { continue };
                let now = probe::succeeds(wanted, container, IpAddr::V4(ip)).await;
                if now != ready {
                    ready = now;
                    shared.update(key, |entry| entry.ready = ready);
                    report(shared, pod, container, ip, ready, restarts).await;
                }
            }
        }
    };
    guardian.forget(pid);
    shared.update(key, |entry| {
        entry.pid = None;
        entry.ready = false;
    });
    if status.is_some() {
        report(shared, pod, container, ip, false, restarts + 1).await;
    }
    Ok(status)
}

/// Writes the files of the volumes again.
async fn renew(shared: &Shared, pod: &Pod, dir: &Path) {
    if let Err(error) = volumes::materialise(&shared.client, pod, &dir.join("volumes")).await {
        note(&container::log_file(shared, pod), &format!("volumes could not be renewed: {error:#}"));
    }
}

/// Writes the pod's status.
async fn report(shared: &Shared, pod: &Pod, container: &Container, ip: Ipv4Addr, ready: bool, restarts: u32) {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str, is: bool| json!({"type": kind, "status": if is { "True" } else { "False" }, "lastTransitionTime": now});
    let status = json!({"metadata": {"uid": pod.uid()}, "status": {
        "phase": "Running",
        "hostIP": NODE_IP, "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now,
        "conditions": [condition("PodScheduled", true), condition("Initialized", true),
            condition("ContainersReady", ready), condition("Ready", ready)],
        "containerStatuses": [{"name": container.name, "image": container.image, "imageID": "", "ready": ready,
            "started": true, "restartCount": restarts, "state": {"running": {"startedAt": now}}}],
    }});
    let pods = Api::<Pod>::namespaced(shared.client.clone(), &pod.namespace().unwrap_or_default());
    let written = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await;
    if let Err(error) = written {
        note(&container::log_file(shared, pod), &format!("status could not be written: {error}"));
    }
}

async fn remove(shared: &Shared, pod: &Pod) {
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default().grace_period(0)
    };
    let pods = Api::<Pod>::namespaced(shared.client.clone(), &pod.namespace().unwrap_or_default());
    // The pod or the control plane may already be gone.
    let _ = pods.delete(&pod.name_any(), &params).await;
}

/// Writes a line of the stand-in to the pod's own log, where a reader looks first.
fn note(log: &Path, line: &str) {
    use std::io::Write as _;
    if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(log) {
        let _ = writeln!(file, "[stand-in kubelet] {line}");
    }
}
