use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::client::Body;
use serde_json::json;

use super::*;

/// Returns a client of an API server that responds to lists of a resource with this status
/// code; 0 for no response.
fn client(code_of: fn(&str) -> u16) -> kube::Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        let resource = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let code = code_of(&resource);
        if code == 0 || watching {
            std::future::pending::<()>().await;
        }
        let body = match code {
            200 => {
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
                    "items": [{"metadata": {"name": "x", "namespace": "ns"}}]})
            }
            _ => {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"})
            }
        };
        let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        Ok::<_, std::io::Error>(response.expect("a response"))
    });
    kube::Client::new(service, "ns")
}

fn watches(client: &kube::Client) -> Watches {
    let config = watcher::Config::default;
    let mut watches = Watches::new(&TaskMonitor::default());
    watches.start(Watched::<Secret>::new(Api::default_namespaced(client.clone()), (), config(), "secrets"));
    watches.start(Watched::<Service>::new(Api::default_namespaced(client.clone()), (), config(), "services"));
    watches.start(Watched::<ConfigMap>::new(
        Api::default_namespaced(client.clone()),
        (),
        config(),
        "configmaps",
    ));
    watches
}

#[tokio::test(start_paused = true)]
async fn caches_are_synced_when_each_is_filled_or_refused() {
    let watches = watches(&client(|resource| match resource {
        "services" => 403,
        "configmaps" => 404,
        _ => 200,
    }));
    assert_eq!(watches.synced(Duration::from_secs(60)).await, Ok(()));
    watches.stop().await;
}

/// The resources of an API server that serves the same objects in two versions.
fn versions() -> [ApiResource; 2] {
    [("v1", "configmaps"), ("v1beta1", "secrets")].map(|(version, plural)| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("maps.test", version, "Map"), plural)
    })
}

/// Returns a watch of `configmaps` that may be served as `secrets` instead, which are two
/// versions of the same objects here.
fn two_versions(client: &kube::Client) -> Watched<DynamicObject> {
    let [resource, older] = versions();
    let [new, old] = [&resource, &older].map(|resource| Api::all_with(client.clone(), resource));
    let mut watched = Watched::new(new, resource, watcher::Config::default(), "maps");
    watched.or_version(old);
    watched
}

/// Runs a watch until `is_so` is true for the store and the problem.
async fn run_until(
    mut watched: Watched<DynamicObject>,
    is_so: impl Fn(&Store<DynamicObject>, &Problem) -> bool,
) {
    let (store, problem, trigger) = (watched.store(), watched.problem(), Trigger::new());
    watched.wake(&trigger, |_| true);
    watched.wake_on_problem(&trigger);
    let run = watched.run(CancellationToken::new());
    let met = async {
        while !is_so(&store, &problem) {
            trigger.woken().await;
        }
    };
    tokio::select! {
        () = met => {}
        () = run => panic!("the watch ended"),
        () = tokio::time::sleep(Duration::from_secs(600)) => {
            panic!("{:?} {:?}", store.state(), problem.current())
        }
    }
}

async fn run_with_older_version(
    code_of: fn(&str) -> u16,
    is_so: impl Fn(&Store<DynamicObject>, &Problem) -> bool,
) {
    run_until(two_versions(&client(code_of)), is_so).await;
}

/// The response of a scripted API server.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// A list of one object with this name.
    Object(&'static str),
    /// The same, of which there are more pages.
    Page,
    /// An end after this time.
    Ends(Duration),
    /// A watch that has to begin with another list.
    Expired,
    /// A failure with this status code.
    Code(u16),
    /// The connection fails.
    Broken,
    /// No response.
    Silence,
}

/// Returns a client of an API server that responds to the request with this number, starting at
/// 0, for this resource. The name of the resource is followed by `?watch` for a watch.
fn scripted(reply: impl Fn(usize, &str) -> Reply + Clone + Send + 'static) -> kube::Client {
    let requests = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: Request<Body>| {
        let resource = request.uri().path().rsplit('/').next().unwrap_or_default();
        let query = request.uri().query().unwrap_or_default();
        let watch = if query.contains("watch=true") { "?watch" } else { "" };
        let page = if query.contains("continue=") { "?page" } else { "" };
        let number = requests.fetch_add(1, Ordering::SeqCst);
        let reply = reply(number, &format!("{resource}{watch}{page}"));
        async move {
            let list = |name: &str, next: &str| {
                json!({"kind": "List", "apiVersion": "v1",
                    "metadata": {"resourceVersion": "1", "continue": next},
                    "items": [{"metadata": {"name": name}}]})
            };
            let failure = |code: u16| {
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "code": code, "reason": "no", "message": "no"})
            };
            let (code, body) = match reply {
                Reply::Object(name) => (200, list(name, "").to_string()),
                Reply::Page => (200, list("x", "next").to_string()),
                Reply::Ends(after) => {
                    tokio::time::sleep(after).await;
                    (200, String::new())
                }
                Reply::Expired => (200, json!({"type": "ERROR", "object": failure(410)}).to_string() + "\n"),
                Reply::Code(code) => (code, failure(code).to_string()),
                Reply::Broken => return Err(std::io::Error::other("broken")),
                Reply::Silence => std::future::pending().await,
            };
            Ok(Response::builder().status(code).body(Body::from(body.into_bytes())).expect("a response"))
        }
    });
    kube::Client::new(service, "ns")
}

/// Maximum number of responses of a script. A watch that sends more requests has no pauses.
const MAX_RESPONSES: usize = 1000;

/// Runs a watch for ten minutes, and returns the times of its requests and the pauses between
/// them.
async fn run_for_long(
    reply: impl Fn(&str) -> Reply + Clone + Send + 'static,
) -> (Vec<Instant>, Vec<Duration>) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&times);
    let client = scripted(move |number, request| {
        seen.lock().unwrap().push(Instant::now());
        if number < MAX_RESPONSES { reply(request) } else { Reply::Silence }
    });
    let run = two_versions(&client).run(CancellationToken::new());
    assert!(tokio::time::timeout(Duration::from_secs(600), run).await.is_err(), "it never ends");
    let times = times.lock().unwrap().clone();
    let pauses = times.windows(2).map(|two| two[1] - two[0]);
    let pauses = pauses.filter(|pause| !pause.is_zero()).collect();
    (times, pauses)
}

fn assert_growing(pauses: &[Duration], case: &str) {
    assert!((20..35).contains(&pauses.len()), "{case} {} {pauses:?}", pauses.len());
    let longest = LONGEST_PAUSE + Duration::from_millis(100);
    assert!(pauses.iter().all(|pause| *pause <= longest), "{case} {pauses:?}");
    assert!(pauses[0] < Duration::from_secs(3), "{case} {pauses:?}");
    let last = &pauses[pauses.len() / 2..];
    assert!(last.iter().all(|pause| *pause >= LONGEST_PAUSE / 2), "{case} {pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_repeated_with_growing_pauses_up_to_a_limit() {
    for reply in [Reply::Code(503), Reply::Code(403), Reply::Code(404), Reply::Broken] {
        let (times, pauses) = run_for_long(move |_| reply).await;
        assert_growing(&pauses, &format!("{reply:?}"));
        // Both versions are tried without a pause, and confirmed by discovery.
        let round = if matches!(reply, Reply::Code(404)) { 4 } else { 1 };
        assert_eq!(times.len(), round * (pauses.len() + 1), "{reply:?} {pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fails_after_each_list_is_repeated_with_growing_pauses() {
    for failure in [Reply::Code(404), Reply::Code(403), Reply::Code(503), Reply::Expired, Reply::Broken] {
        let (_, pauses) = run_for_long(move |request| match request {
            "configmaps" | "secrets" => Reply::Object("x"),
            "configmaps?watch" | "secrets?watch" => failure,
            // Discovery is not available.
            _ => Reply::Code(503),
        })
        .await;
        assert_growing(&pauses, &format!("{failure:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_stays_unreadable_if_only_its_watches_are_unknown() {
    let client = scripted(|number, request| match request {
        _ if number >= MAX_RESPONSES => Reply::Silence,
        "configmaps" | "secrets" => Reply::Object("x"),
        "configmaps?watch" | "secrets?watch" => Reply::Code(404),
        _ => Reply::Code(503),
    });
    assert!(stays_incomplete(&client).await);
}

#[tokio::test(start_paused = true)]
async fn an_unserved_kind_is_unreadable_when_its_absence_is_no_longer_confirmed() {
    for was_filled in [false, true] {
        for failure in [Reply::Code(503), Reply::Broken, Reply::Silence] {
            let client = scripted(move |number, request| match (number, request) {
                (0, "configmaps") if was_filled => Reply::Object("x"),
                (1, "configmaps?watch") if was_filled => Reply::Ends(Duration::from_secs(10)),
                (..7, _) => Reply::Code(404),
                _ => failure,
            });
            let was_unserved = AtomicBool::new(false);
            run_until(two_versions(&client), |_, problem| {
                was_unserved.fetch_or(problem.is_unserved(), Ordering::SeqCst);
                was_unserved.load(Ordering::SeqCst)
                    && !problem.is_unserved()
                    && problem.incomplete().is_some()
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_version_is_listed_when_the_watched_one_is_no_longer_served() {
    let is_switched = Arc::new(AtomicBool::new(false));
    let client = scripted(move |_, request| match (request, is_switched.load(Ordering::SeqCst)) {
        ("configmaps", false) => Reply::Code(404),
        ("secrets", false) => Reply::Object("old"),
        ("secrets?watch", false) => {
            is_switched.store(true, Ordering::SeqCst);
            Reply::Ends(Duration::from_secs(10))
        }
        ("configmaps", true) => Reply::Object("new"),
        ("configmaps?watch", true) => Reply::Silence,
        _ => Reply::Code(404),
    });
    run_until(two_versions(&client), |store, problem| {
        let names: Vec<_> = store.state().iter().map(|object| object.name_any()).collect();
        assert_ne!(problem.incomplete().as_deref(), Some("no"), "nothing is missing");
        names == ["new"] && problem.current().is_none()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_switched_off_is_unserved() {
    let client = scripted(|number, request| match (number, request) {
        (0, "configmaps") => Reply::Object("x"),
        (_, "configmaps?watch") if number < 2 => Reply::Ends(Duration::from_secs(10)),
        _ => Reply::Code(404),
    });
    run_until(two_versions(&client), |store, problem| !store.is_empty() && problem.is_unserved()).await;
}

/// Runs a watch, and returns whether objects may be missing all the time after they were for
/// the first time.
async fn stays_incomplete(client: &kube::Client) -> bool {
    let watched = two_versions(client);
    let problem = watched.problem();
    let mut changes = watched.problem.subscribe();
    let refused = async {
        while problem.incomplete().is_none_or(|why| why != "no") {
            changes.changed().await.expect("it runs");
        }
        while problem.incomplete().is_some() {
            changes.changed().await.expect("it runs");
        }
    };
    tokio::select! {
        () = refused => false,
        () = watched.run(CancellationToken::new()) => panic!("the watch ended"),
        () = tokio::time::sleep(Duration::from_secs(600)) => problem.incomplete().is_some(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_permission_stays_known_while_other_errors_follow() {
    let others = [Reply::Code(403), Reply::Code(500), Reply::Broken, Reply::Code(429)];
    // The list succeeds, and the watch is forbidden.
    let watch = scripted(move |number, request| match request {
        "configmaps" => Reply::Object("x"),
        _ => others[(number - 1) % others.len()],
    });
    assert!(stays_incomplete(&watch).await);
    // After a watch that works, the list is forbidden.
    let list = scripted(move |number, _| match number {
        0 => Reply::Object("x"),
        1 => Reply::Expired,
        _ => others[number % others.len()],
    });
    assert!(stays_incomplete(&list).await);
    // A list without a response does not show that it is permitted.
    let silence = scripted(|number, _| match number {
        0 => Reply::Object("x"),
        1 => Reply::Expired,
        2 => Reply::Code(403),
        _ => Reply::Silence,
    });
    assert!(stays_incomplete(&silence).await);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_which_only_a_part_is_read_does_not_end_a_problem() {
    let client = scripted(|number, request| match (number, request) {
        (0, _) => Reply::Object("x"),
        (1, _) => Reply::Expired,
        (3.., "configmaps") => Reply::Page,
        _ => Reply::Code(403),
    });
    assert!(stays_incomplete(&client).await);
}

#[tokio::test(start_paused = true)]
async fn a_permission_counts_as_granted_when_the_watch_runs_without_an_error() {
    for failure in [Reply::Code(403), Reply::Broken] {
        let client = scripted(move |number, request| match (number, request) {
            (_, "configmaps") => Reply::Object("x"),
            (..4, _) => failure,
            _ => Reply::Silence,
        });
        let (began, was_reported) = (Instant::now(), AtomicBool::new(false));
        run_until(two_versions(&client), |_, problem| {
            let is_reported = problem.current().is_some();
            was_reported.fetch_or(is_reported, Ordering::SeqCst);
            was_reported.load(Ordering::SeqCst) && !is_reported && problem.incomplete().is_none()
        })
        .await;
        let within = WORKS_AFTER + Duration::from_secs(15);
        assert!((WORKS_AFTER..within).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_older_version_is_watched_if_the_newer_one_is_not_served() {
    let is_filled = |store: &Store<DynamicObject>, problem: &Problem| {
        store.state().len() == 1 && problem.current().is_none() && problem.incomplete().is_none()
    };
    run_with_older_version(|resource| if resource == "secrets" { 200 } else { 404 }, is_filled).await;
    run_with_older_version(|resource| if resource == "secrets" { 404 } else { 200 }, is_filled).await;
    run_with_older_version(|_| 404, |_, problem| problem.is_unserved() && problem.incomplete().is_none())
        .await;
    for code_of in
        [(|resource| if resource == "secrets" { 403 } else { 404 }) as fn(&str) -> u16, |resource| {
            if resource == "secrets" { 404 } else { 403 }
        }]
    {
        run_with_older_version(code_of, |_, problem| {
            !problem.is_unserved() && problem.incomplete().is_some()
        })
        .await;
    }
}

#[test]
fn a_cache_is_incomplete_until_it_was_filled_and_while_reading_is_forbidden() {
    for (is_unserved, is_forbidden, was_filled, is_incomplete) in [
        (false, false, false, true),
        (false, false, true, false),
        (false, true, false, true),
        (false, true, true, true),
        (true, false, false, false),
        (true, false, true, false),
    ] {
        let refused = is_forbidden.then(|| "forbidden".to_owned());
        let state = ProblemState { message: "no".to_owned(), is_unserved, refused };
        let (sender, receiver) = tokio::sync::watch::channel(Some(state.clone()));
        let filled = tokio::sync::watch::channel(was_filled).1;
        let problem = Problem { state: receiver, filled };
        let wanted = if is_forbidden { "forbidden" } else { "no" };
        assert_eq!(problem.incomplete().as_deref(), is_incomplete.then_some(wanted), "{state:?}");
        sender.send_replace(None);
        assert_eq!(problem.incomplete().is_some(), !was_filled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_notified_when_an_object_changes() {
    let watched: Watched<Secret> =
        Watched::new(Api::default_namespaced(client(|_| 0)), (), watcher::Config::default(), "secrets");
    let (cache, mut watched) = (watched.cache(), watched);
    let count = |wanted: usize| move |store: &Store<Secret>| store.state().len() == wanted;
    cache.wait_until(count(0)).await;
    let within = Duration::from_secs(60);
    assert!(tokio::time::timeout(within, cache.wait_until(count(1))).await.is_err());
    let secret =
        || serde_json::from_value::<Secret>(json!({"metadata": {"name": "x", "namespace": "ns"}})).unwrap();
    let ((), ()) = tokio::join!(cache.wait_until(count(1)), async {
        for event in [Event::Init, Event::InitApply(secret()), Event::InitDone] {
            watched.apply(&event);
        }
    });
    let ((), ()) =
        tokio::join!(cache.wait_until(count(0)), async { watched.apply(&Event::Delete(secret())) });
}

#[tokio::test(start_paused = true)]
async fn caches_without_a_response_are_named_after_the_timeout() {
    let watches = watches(&client(|resource| match resource {
        "services" => 0,
        "configmaps" => 503,
        _ => 200,
    }));
    let began = Instant::now();
    let error = watches.synced(Duration::from_secs(60)).await.expect_err("two are missing");
    assert_eq!(error.to_string(), "failed to sync informers of services, configmaps");
    assert_eq!(began.elapsed().as_secs(), 60);
    watches.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_optional_cache_is_filled_and_not_waited_for() {
    let mut watches = Watches::new(&TaskMonitor::default());
    let mut ready = Vec::new();
    for code_of in [(|_| 503) as fn(&str) -> u16, |_| 200] {
        let api = Api::default_namespaced(client(code_of));
        let watched = Watched::<Secret>::new(api, (), watcher::Config::default(), "secrets");
        ready.push((watched.ready(), watched.problem()));
        watches.start_optional(watched);
    }
    assert_eq!(watches.synced(Duration::ZERO).await, Ok(()));
    let [(failing, unread), (filled, read)] = ready.try_into().unwrap_or_else(|_| panic!("two"));
    assert_eq!(unread.incomplete().as_deref(), Some(NOT_READ_YET));
    filled.await;
    assert_eq!(read.incomplete(), None);
    assert!(tokio::time::timeout(Duration::from_secs(600), failing).await.is_err());
    assert_eq!(unread.incomplete().as_deref(), Some("no"));
    watches.stop().await;
}

#[tokio::test]
async fn a_watch_that_panics_is_reported_with_its_name() {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let body = if watching {
            json!({"type": "ADDED", "object": {"kind": "Secret", "apiVersion": "v1",
                "metadata": {"name": "x", "namespace": "ns", "resourceVersion": "2"}}})
        } else {
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})
        };
        Ok::<_, std::io::Error>(Response::new(Body::from(format!("{body}\n").into_bytes())))
    });
    let api = Api::default_namespaced(kube::Client::new(service, "ns"));
    let mut watched = Watched::<Secret>::new(api, (), watcher::Config::default(), "secrets");
    watched.wake(&Trigger::new(), |_| panic!("a defect"));
    let monitor = TaskMonitor::default();
    let mut watches = Watches::new(&monitor);
    watches.start(watched);
    let end = tokio::time::timeout(Duration::from_secs(10), monitor.failed()).await.expect("a report");
    assert_eq!(end.to_string(), "task \"watch of secrets\" panicked: a defect");
    watches.stop().await;
}
