use std::collections::BTreeMap;
use std::io;

use futures::{StreamExt as _, stream};
use http_body_util::StreamBody;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, client};
use pinniped_test_support::log_events::LogEvents;
use serde_json::json;
use tracing::Level;

use super::*;

/// Maximum number of responses of a script. A watch that sends more requests has no pauses.
const MAX_RESPONSES: usize = 1000;

type Frames = stream::BoxStream<'static, io::Result<Frame<bytes::Bytes>>>;

fn frame(object: &serde_json::Value) -> Frame<bytes::Bytes> {
    Frame::data(bytes::Bytes::from(object.to_string() + "\n"))
}

/// The response of a scripted API server to a watch.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// An end after this time.
    Ends(Duration),
    /// A bookmark, and an end.
    Bookmark,
    /// A connection that breaks after the head.
    Breaks,
    /// A failure with this status code.
    Code(u16),
    /// No event, and no end.
    Silence,
}

impl Reply {
    fn response(self) -> Response<StreamBody<Frames>> {
        let (code, frames): (u16, Frames) = match self {
            // The head of the response follows at once, and its end later.
            Self::Ends(after) => {
                (200, stream::once(tokio::time::sleep(after)).filter_map(async |()| None).boxed())
            }
            Self::Bookmark => {
                let object =
                    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "2"}});
                let event = json!({"type": "BOOKMARK", "object": object});
                (200, stream::iter([Ok(frame(&event))]).boxed())
            }
            Self::Breaks => {
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, "broken");
                (200, stream::iter([Err(error)]).boxed())
            }
            Self::Code(code) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "message": "no"});
                (code, stream::iter([Ok(frame(&status))]).boxed())
            }
            Self::Silence => (200, stream::pending().boxed()),
        };
        Response::builder().status(code).body(StreamBody::new(frames)).expect("a response")
    }
}

/// The times of the requests, by resource, and `?watch` for watches.
type Times = Arc<Mutex<BTreeMap<String, Vec<Instant>>>>;

/// Returns a client of an API server that responds to the watch with this number, starting at 0, of
/// this resource, and to all lists.
fn scripted(reply: impl Fn(usize, &str) -> Reply + Clone + Send + 'static, times: &Times) -> kube::Client {
    let times = Arc::clone(times);
    let service = tower::service_fn(move |request: Request<client::Body>| {
        let resource = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let name = if is_watch { format!("{resource}?watch") } else { resource.clone() };
        let mut times = times.lock().unwrap();
        let seen = times.entry(name).or_default();
        seen.push(Instant::now());
        let number = seen.len() - 1;
        let reply = if number < MAX_RESPONSES { reply(number, &resource) } else { Reply::Silence };
        async move {
            if is_watch {
                return Ok::<_, io::Error>(reply.response());
            }
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
                "items": []});
            Ok(Response::new(StreamBody::new(stream::iter([Ok(frame(&list))]).boxed())))
        }
    });
    kube::Client::new(WatchPauses::new(service), "ns")
}

/// Watches two resources for this time, and returns the times of the requests.
async fn run(
    time: Duration,
    reply: impl Fn(usize, &str) -> Reply + Clone + Send + 'static,
) -> BTreeMap<String, Vec<Instant>> {
    let times = Times::default();
    let client = scripted(reply, &times);
    let config_maps =
        watcher(Api::<ConfigMap>::default_namespaced(client.clone()), watcher::Config::default());
    let secrets = watcher(Api::<Secret>::default_namespaced(client), watcher::Config::default());
    let (config_maps, secrets) = (config_maps.for_each(async |_| {}), secrets.for_each(async |_| {}));
    assert!(tokio::time::timeout(time, futures::future::join(config_maps, secrets)).await.is_err());
    let times = times.lock().unwrap();
    times.clone()
}

/// Returns the times between the watches of ConfigMaps.
fn between(times: &BTreeMap<String, Vec<Instant>>) -> Vec<Duration> {
    times["configmaps?watch"].windows(2).map(|two| two[1] - two[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_repeated_with_growing_pauses_up_to_a_limit() {
    for reply in [
        Reply::Ends(Duration::ZERO),
        Reply::Ends(SHORT - Duration::from_millis(100)),
        Reply::Bookmark,
        Reply::Breaks,
    ] {
        let times =
            run(
                Duration::from_secs(600),
                move |_, resource| {
                    if resource == "configmaps" { reply } else { Reply::Silence }
                },
            )
            .await;
        let pauses = between(&times);
        assert!((20..35).contains(&pauses.len()), "{reply:?} {} {pauses:?}", pauses.len());
        assert!((SHORT..SHORT * 3).contains(&pauses[0]), "{reply:?} {pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE + SHORT), "{reply:?} {pauses:?}");
        let last = &pauses[pauses.len() / 2..];
        assert!(last.iter().all(|pause| *pause >= LONGEST_PAUSE / 2), "{reply:?} {pauses:?}");
        // A watch is continued: its objects are not listed again.
        assert_eq!(times["configmaps"].len(), 1, "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lasts_is_repeated_at_once_and_ends_the_pauses() {
    let long = Duration::from_secs(10);
    let times = run(Duration::from_secs(600), move |number, _| match number {
        5 | 7.. => Reply::Ends(long),
        _ => Reply::Ends(Duration::ZERO),
    })
    .await;
    let pauses = between(&times);
    assert!(pauses[4] > SHORT * 5, "{pauses:?}");
    let is_at_once = |pause: &Duration| (long..long + SHORT / 10).contains(pause);
    assert!(is_at_once(&pauses[5]), "{pauses:?}");
    assert!((SHORT..SHORT * 3).contains(&pauses[6]), "{pauses:?}");
    assert!(pauses.len() > 50 && pauses[7..].iter().all(is_at_once), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_short_watch_delays_no_watch_of_another_resource_and_no_list() {
    let times = run(Duration::from_secs(600), |_, resource| match resource {
        "configmaps" => Reply::Ends(Duration::ZERO),
        // The watcher repeats it without a pause.
        _ => Reply::Code(410),
    })
    .await;
    let first = times["configmaps?watch"][0];
    // The first silent watch, after all failures. The watcher repeats it after minutes.
    assert_eq!(times["secrets?watch"].get(MAX_RESPONSES), Some(&first), "a failure is no short watch");
    assert!(between(&times)[0] >= SHORT);
}

#[tokio::test(start_paused = true)]
async fn short_watches_are_forgotten() {
    let client = WatchPauses::new(());
    let watch =
        || Watch { key: "x".to_owned(), begin: Instant::now(), successions: client.successions.clone() };
    (0..10).for_each(|_| watch().ended());
    assert!(client.successions.get(&"x".to_owned()).is_some());
    tokio::time::advance(FORGOTTEN_AFTER).await;
    assert!(client.successions.get(&"x".to_owned()).is_none());
    for n in 0..2 * MAX_WATCHES {
        Watch { key: n.to_string(), ..watch() }.ended();
    }
    assert!(client.successions.len() as u64 <= MAX_WATCHES);
}

#[test]
fn the_key_of_a_watch_has_everything_but_the_resource_version() {
    let key = |method: Method, uri: &str| {
        key(&Request::builder().method(method).uri(uri).body(()).expect("a request"))
    };
    for (uri, expected) in [
        ("/api/v1/pods", None),
        ("/api/v1/pods?labelSelector=watch%3Dtrue", None),
        ("/api/v1/pods?watch=true&resourceVersion=7", Some("/api/v1/pods?watch=true")),
        (
            "/api/v1/pods?watch=true&fieldSelector=a%3Db&resourceVersion=7",
            Some("/api/v1/pods?watch=true&fieldSelector=a%3Db"),
        ),
    ] {
        assert_eq!(key(Method::GET, uri).as_deref(), expected, "{uri}");
        assert_eq!(key(Method::POST, uri), None, "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn short_watches_in_succession_are_reported_once() {
    for (count, lines) in [(REPORTED as usize - 1, 0), (REPORTED as usize, 1), (MAX_RESPONSES, 1)] {
        let warnings = LogEvents::record(&["pinniped"], Level::WARN);
        run(Duration::from_secs(3600), move |number, resource| {
            if resource == "configmaps" && number < count {
                Reply::Ends(Duration::ZERO)
            } else {
                Reply::Ends(Duration::from_secs(290))
            }
        })
        .await;
        let warnings = warnings.all();
        assert_eq!(warnings.len(), lines, "{count} {warnings:?}");
        for line in &warnings {
            assert_eq!(line.field("resource"), "configmaps");
            assert_eq!(line.field("path"), "/api/v1/namespaces/ns/configmaps");
        }
    }
}
