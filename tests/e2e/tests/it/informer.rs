//! A shared informer of client-go behind the proxy, which is the main work of every controller
//! written in Go.
//!
//! The informer is a separate program (`tools/third-party/informer`) with the WatchList feature. It
//! authenticates with a client certificate and follows hundreds of ConfigMaps, once as JSON and
//! once as protobuf, while the proxy is killed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::kubectl::Kubectl;
use pinniped_test_support::{tools, wait};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::installed::{self, Installed, TIME_LIMIT};

/// Environment variable with the path of the program; `cargo xtask test` builds it and sets this.
const INFORMER_ENV: &str = "PINNIPED_INFORMER";
const USER: &str = "informer-user";
const NAMESPACE: &str = "informer";
/// Number of objects that exist before the informer starts.
const OBJECTS: usize = 400;
const TYPES: [(&str, &str); 2] =
    [("json", "application/json"), ("protobuf", "application/vnd.kubernetes.protobuf")];

#[tokio::test]
async fn an_informer_of_client_go_misses_nothing_even_when_the_proxy_is_killed() {
    let Some(program) = std::env::var_os(INFORMER_ENV).map(PathBuf::from) else {
        return tools::skip("a real informer", "it is built by `cargo xtask test`");
    };
    let Some(installed) = installed::alone("a real informer").await else { return };
    installed.namespace(NAMESPACE).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    installed.allow(USER, rules).await;
    let maps = Api::<ConfigMap>::namespaced(installed.admin().await, NAMESPACE);
    let made = futures::stream::iter(0..OBJECTS).map(|index| create(&maps, format!("first-{index:03}")));
    let made: Vec<anyhow::Result<()>> = made.buffer_unordered(16).collect().await;
    made.into_iter().collect::<anyhow::Result<()>>().unwrap();

    let kubectl = installed.kubectl(USER, &installed.certificate(USER, None).into());
    let mut informers = Vec::new();
    for (name, content_type) in TYPES {
        let mut informer = Informer::start(&program, &kubectl, name, content_type).unwrap();
        informer.until("the first objects", |seen| seen.synced.is_some()).await.unwrap();
        informer.until("the first objects", |seen| seen.live.len() >= OBJECTS).await.unwrap();
        listed_by_watching(&installed, &informer).await.unwrap();
        informers.push(informer);
    }

    change_something(&maps, &mut informers, "second").await.unwrap();
    kill_the_proxy(&installed, &maps, &mut informers).await.unwrap();
    change_something(&maps, &mut informers, "third").await.unwrap();

    let wanted = contents(&maps).await.unwrap();
    for informer in &mut informers {
        informer.until("the same as there is", |seen| seen.live == wanted).await.unwrap();
        assert_eq!(informer.seen.odd, Vec::<String>::new());
    }
    for informer in informers {
        informer.end().await.unwrap();
    }
}

/// Checks that the first events came as part of a watch, and that there was no list request.
async fn listed_by_watching(installed: &Installed, informer: &Informer) -> anyhow::Result<()> {
    let control_plane = installed.world().control_plane();
    let event = control_plane
        .await_audit_event("a watch with initial events", &informer.agent, |event| {
            event["userAgent"] == informer.agent.as_str() && event["verb"] == "watch"
        })
        .await?;
    let uri = event["requestURI"].as_str().unwrap_or_default();
    ensure!(uri.contains("sendInitialEvents=true"), "{uri}");
    ensure!(event["impersonatedUser"]["username"] == USER, "{event}");
    let verbs: Vec<Value> = of(installed, informer)?.into_iter().map(|event| event["verb"].clone()).collect();
    ensure!(!verbs.contains(&json!("list")), "{verbs:?}");
    Ok(())
}

/// Returns the requests of this informer to the API server.
fn of(installed: &Installed, informer: &Informer) -> anyhow::Result<Vec<Value>> {
    let events = installed.world().control_plane().audit_events(&informer.agent)?;
    Ok(events.into_iter().filter(|event| event["userAgent"] == informer.agent.as_str()).collect())
}

async fn change_something(
    maps: &Api<ConfigMap>,
    informers: &mut [Informer],
    name: &str,
) -> anyhow::Result<()> {
    create(maps, name.to_owned()).await?;
    for informer in &mut *informers {
        informer.until("an add", |seen| seen.is(name, "first")).await?;
    }
    update(maps, name).await?;
    for informer in &mut *informers {
        informer.until("an update", |seen| seen.is(name, "changed")).await?;
    }
    maps.delete(name, &DeleteParams::default()).await?;
    for informer in &mut *informers {
        informer.until("a delete", |seen| !seen.live.contains_key(name)).await?;
    }
    Ok(())
}

/// Changes objects while no proxy is running.
async fn kill_the_proxy(
    installed: &Installed,
    maps: &Api<ConfigMap>,
    informers: &mut [Informer],
) -> anyhow::Result<()> {
    let mut watches = Vec::new();
    for informer in &*informers {
        watches.push(of(installed, informer)?.len());
    }
    installed.pods().signal(CONCIERGE, Signal::KILL);
    for index in 0..20 {
        create(maps, format!("meanwhile-{index}")).await?;
        update(maps, &format!("first-{index:03}")).await?;
        maps.delete(&format!("first-{:03}", index + 100), &DeleteParams::default()).await?;
    }
    for (informer, before) in informers.iter_mut().zip(watches) {
        // The informer backs off while no server responds.
        informer.deadline = 4 * TIME_LIMIT;
        informer
            .until("what happened meanwhile", |seen| {
                (0..20).all(|index| {
                    seen.is(&format!("meanwhile-{index}"), "first")
                        && seen.is(&format!("first-{index:03}"), "changed")
                        && !seen.live.contains_key(&format!("first-{:03}", index + 100))
                })
            })
            .await?;
        wait::until(TIME_LIMIT, "another watch in the audit log", async || {
            (of(installed, informer).ok()?.len() > before).then_some(())
        })
        .await?;
    }
    Ok(())
}

async fn create(maps: &Api<ConfigMap>, name: String) -> anyhow::Result<()> {
    let map = json!({"metadata": {"name": name}, "data": {"value": "first", "padding": "x".repeat(1000)}});
    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    Ok(())
}

async fn update(maps: &Api<ConfigMap>, name: &str) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"data": {"value": "changed"}}));
    maps.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Returns name and value of every object, as stored by the API server.
async fn contents(maps: &Api<ConfigMap>) -> anyhow::Result<BTreeMap<String, String>> {
    // One ConfigMap belongs to the cluster, and has no value.
    let value =
        |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("value").cloned()).unwrap_or_default();
    let list = maps.list(&kube::api::ListParams::default()).await?;
    Ok(list.items.iter().filter_map(|map| Some((map.metadata.name.clone()?, value(map)))).collect())
}

/// A line of the program's output.
#[derive(Debug, Deserialize)]
struct Line {
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    count: usize,
    #[serde(default)]
    error: String,
}

/// The program's output so far.
#[derive(Debug, Default)]
struct Seen {
    /// The existing objects: name and value.
    live: BTreeMap<String, String>,
    /// The number of objects at the time when the informer had synced.
    synced: Option<usize>,
    /// Impossible events: an object added twice, or changed before it was added.
    odd: Vec<String>,
}

impl Seen {
    fn is(&self, name: &str, value: &str) -> bool {
        self.live.get(name).is_some_and(|found| found == value)
    }

    fn take(&mut self, line: Line) -> anyhow::Result<()> {
        let reported = format!("{line:?}");
        let before = match line.event.as_str() {
            "add" => self.live.insert(line.name, line.value).is_some(),
            "update" => self.live.insert(line.name, line.value).is_none(),
            "delete" => self.live.remove(&line.name).is_none(),
            "synced" => self.synced.replace(line.count).is_some(),
            // The informer reports this while the proxy is not running.
            "broken" => false,
            _ => anyhow::bail!("the informer failed: {}", line.error),
        };
        if before {
            self.odd.push(reported);
        }
        Ok(())
    }
}

/// The running program.
struct Informer {
    agent: String,
    child: Child,
    /// The program exits when this pipe closes, also when the test process exits.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Seen,
    deadline: Duration,
}

impl Informer {
    fn start(program: &Path, kubectl: &Kubectl, name: &str, content_type: &str) -> anyhow::Result<Self> {
        let agent = format!("informer-{name}/1");
        let mut child = Command::new(program)
            .arg("--kubeconfig")
            .arg(kubectl.kubeconfig())
            .args(["--namespace", NAMESPACE, "--content-type", content_type, "--user-agent", &agent])
            .env("KUBE_FEATURE_WatchListClient", "true")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        let stdin = child.stdin.take().context("no standard input")?;
        let lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        Ok(Self { agent, child, stdin, lines, seen: Seen::default(), deadline: TIME_LIMIT })
    }

    /// Reads until the output fits.
    async fn until(&mut self, what: &str, fits: impl Fn(&Seen) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !fits(&self.seen) {
            let left = self.deadline.saturating_sub(began.elapsed());
            let line = tokio::time::timeout(left, self.lines.next_line()).await;
            let line = line.with_context(|| {
                let Seen { live, odd, .. } = &self.seen;
                format!("{} waited for {what}; it has {} objects, {odd:?}", self.agent, live.len())
            })??;
            let line = line.with_context(|| format!("{} ended before {what}", self.agent))?;
            self.seen.take(serde_json::from_str(&line).with_context(|| line.clone())?)?;
        }
        Ok(())
    }

    async fn end(mut self) -> anyhow::Result<()> {
        drop(self.stdin);
        let status =
            tokio::time::timeout(TIME_LIMIT, self.child.wait()).await.context("it does not end")??;
        ensure!(status.success(), "{} ended with {status}", self.agent);
        // The cluster has one more object in each namespace.
        let synced = self.seen.synced.context("it never had all")?;
        ensure!((OBJECTS..=OBJECTS + 1).contains(&synced), "it had {synced} at first");
        Ok(())
    }
}
