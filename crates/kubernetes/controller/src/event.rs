//! Writes Events (`events.k8s.io/v1`), which `kubectl describe` shows.
//!
//! [`EventWriter`] makes one request for the content that `pinniped_kube_types::event` builds. A
//! controller uses [`EventRecorder`]: a bounded queue and a task, so that no pass waits for an
//! Event. The Events about one object are written in their order; an Event that cannot be written
//! delays only later ones about its object, unless the Events of `MAX_OBJECTS` objects wait. Only
//! the leader writes. Events inform people; a lost Event has no other consequence, so an Event that
//! does not fit into the queue or exceeds the rate of its object is discarded.
//!
//! `kube::runtime::events::Recorder` is not used because it identifies a repetition by the reason
//! alone, which keeps the note of the first occurrence, and because the API server refuses its
//! Events about objects with long names. It has no queue and no rate limit either.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use pinniped_kube_types::event::{NewEvent, Reporter, namespace, repetition};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::{WriteError, Writer};

/// The timeout of one attempt to write an Event, including the addition to its series.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of Events that wait for their write.
const QUEUE_LENGTH: usize = 256;

/// Maximum number of objects whose Events are written at the same time.
const MAX_OBJECTS: usize = 16;

/// Maximum number of Events about one object that wait for an earlier one. More than [`BURST`];
/// only Events with several reasons can exceed it, and are discarded.
const MAX_WAITING: usize = 32;

/// Maximum number of attempts to write one Event.
const MAX_ATTEMPTS: u32 = 4;

/// The pause after the first failed attempt. It doubles after each attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Time for which the Events in the queue may still be written at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of Events about one object with one reason that may be written at once: the number of
/// client-go for an object.
const BURST: u32 = 25;

/// Time after which one more of these Events may be written, as in client-go.
const REFILL_INTERVAL: Duration = Duration::from_secs(300);

/// Maximum number of rates that are remembered.
const MAX_RATES: usize = 1024;

/// Writes single Events.
pub struct EventWriter {
    client: kube::Client,
    writer: Writer,
    reporter: Reporter,
    /// Whether the missing permission has been logged.
    forbidden: AtomicBool,
}

impl EventWriter {
    /// Returns a writer that refuses while `writer` does.
    pub fn new(client: kube::Client, writer: Writer, reporter: Reporter) -> Self {
        Self { client, writer, reporter, forbidden: AtomicBool::new(false) }
    }

    /// Writes an Event that states a fact: if the same Event exists, nothing is written. A
    /// namespace that no longer exists is not an error.
    ///
    /// # Errors
    ///
    /// Returns [`WriteError`] if this process is not the leader, or the API server refuses the
    /// Event or does not respond in time. The first missing permission is logged.
    pub async fn create(&self, regarding: &ObjectReference, new: &NewEvent) -> Result<(), WriteError> {
        let deadline = Instant::now() + WRITE_TIMEOUT;
        self.limited(regarding, "create", deadline, self.create_once(regarding, new)).await.map(drop)
    }

    /// Writes an Event that states an occurrence: if the same Event exists, the occurrence is added
    /// to its series.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`EventWriter::create`].
    pub async fn create_or_count(
        &self,
        regarding: &ObjectReference,
        new: &NewEvent,
    ) -> Result<(), WriteError> {
        let deadline = Instant::now() + WRITE_TIMEOUT;
        let created = self.limited(regarding, "create", deadline, self.create_once(regarding, new)).await?;
        let Some(name) = created else { return Ok(()) };
        self.limited(regarding, "patch", deadline, self.count(regarding, &name)).await
    }

    /// Creates the Event. Returns its name if it exists already.
    async fn create_once(
        &self,
        regarding: &ObjectReference,
        new: &NewEvent,
    ) -> Result<Option<String>, WriteError> {
        let event = new.object(regarding, &self.reporter, Timestamp::now());
        match self.writer.create(&self.api(regarding), &event).await {
            Err(error) if error.is_race() => Ok(event.metadata.name),
            // The namespace no longer exists.
            Err(error) if error.is_not_found() => Ok(None),
            result => result.map(|_| None),
        }
    }

    async fn count(&self, regarding: &ObjectReference, name: &str) -> Result<(), WriteError> {
        let api = self.api(regarding);
        // An empty patch returns the object without the permission to read Events.
        let existing = match self.writer.merge_patch(&api, name, &json!({})).await {
            // It has expired since the attempt to create it.
            Err(error) if error.is_not_found() => return Ok(()),
            result => result?,
        };
        let patch = repetition(&existing, Timestamp::now());
        self.writer.merge_patch(&api, name, &patch).await.map(drop)
    }

    fn api(&self, regarding: &ObjectReference) -> Api<Event> {
        Api::namespaced(self.client.clone(), namespace(regarding))
    }

    async fn limited<T>(
        &self,
        regarding: &ObjectReference,
        verb: &str,
        deadline: Instant,
        write: impl Future<Output = Result<T, WriteError>>,
    ) -> Result<T, WriteError> {
        let result = match tokio::time::timeout_at(deadline, write).await {
            Ok(result) => result,
            Err(_elapsed) => Err(WriteError::Api(kube::Error::Service("no response in time".into()))),
        };
        if let Err(error) = &result
            && error.is_forbidden()
            && !self.forbidden.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                verb,
                resource = "events.events.k8s.io",
                namespace = namespace(regarding),
                %error,
                "a permission is missing: there are no Events"
            );
        }
        result
    }
}

/// An Event in the queue.
#[derive(Debug)]
struct Queued {
    regarding: ObjectReference,
    event: NewEvent,
}

/// Records occurrences. Clones share the queue.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<Queued>,
    writer: Writer,
}

impl EventRecorder {
    /// Returns a recorder, and the task that writes its Events.
    pub fn new(client: kube::Client, writer: Writer, reporter: Reporter) -> (Self, EventTask) {
        let (sender, queue) = mpsc::channel(QUEUE_LENGTH);
        let events = EventWriter::new(client, writer.clone(), reporter);
        (Self { queue: sender, writer }, EventTask { queue, events, rates: Rates::default() })
    }

    /// Returns whether this pod writes Events: whether it is the leader.
    pub fn is_active(&self) -> bool {
        self.writer.guard().is_ok()
    }

    /// Records an occurrence. Returns immediately; discards the Event if this pod is not the
    /// leader or too many Events wait.
    pub fn record(&self, regarding: ObjectReference, event: NewEvent) {
        if !self.is_active() {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(queued)) = self.queue.try_send(Queued { regarding, event })
        {
            tracing::debug!(reason = %queued.event.reason, "discarded an Event: too many Events wait");
        }
    }
}

/// The task that writes the Events of an [`EventRecorder`].
pub struct EventTask {
    queue: mpsc::Receiver<Queued>,
    events: EventWriter,
    rates: Rates,
}

impl EventTask {
    /// Writes Events until `stop`, and then those that wait, for a short time.
    pub async fn run(self, stop: CancellationToken) {
        let Self { mut queue, events, mut rates } = self;
        let mut writes =
            Writes { events: &events, running: FuturesUnordered::new(), waiting: HashMap::new() };
        let mut is_open = true;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(object) = writes.running.next() => writes.ended(&object),
                queued = queue.recv(), if is_open && writes.has_room() => match queued {
                    Some(queued) if rates.allows_event(&queued) => writes.add(queued),
                    Some(_) => {}
                    None => is_open = false,
                },
            }
        }
        let rest = async {
            loop {
                while writes.has_room()
                    && let Ok(queued) = queue.try_recv()
                {
                    if rates.allows_event(&queued) {
                        writes.add(queued);
                    }
                }
                let Some(object) = writes.running.next().await else { break };
                writes.ended(&object);
            }
        };
        _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, rest).await;
    }
}

/// The Events that are being written, one of each object.
struct Writes<'a> {
    events: &'a EventWriter,
    /// Each resolves with the object of its Event.
    running: FuturesUnordered<BoxFuture<'a, Arc<str>>>,
    /// The objects in `running`, with the Events that follow.
    waiting: HashMap<Arc<str>, VecDeque<Queued>>,
}

impl Writes<'_> {
    /// Returns whether the Events of another object can be written.
    fn has_room(&self) -> bool {
        self.running.len() < MAX_OBJECTS
    }

    fn add(&mut self, queued: Queued) {
        let object: Arc<str> = object_key(&queued.regarding).into();
        match self.waiting.get_mut(&object) {
            None => {
                self.waiting.insert(Arc::clone(&object), VecDeque::new());
                self.start(object, queued);
            }
            Some(waiting) if waiting.len() < MAX_WAITING => waiting.push_back(queued),
            Some(_) => {
                tracing::debug!(
                    object = queued.regarding.name.as_deref().unwrap_or_default(),
                    reason = %queued.event.reason,
                    "discarded an Event: too many Events about this object wait"
                );
            }
        }
    }

    fn start(&self, object: Arc<str>, queued: Queued) {
        let events = self.events;
        self.running.push(Box::pin(async move {
            write(events, &queued).await;
            object
        }));
    }

    /// Starts the next Event about an object, if one waits.
    fn ended(&mut self, object: &Arc<str>) {
        match self.waiting.get_mut(object).and_then(VecDeque::pop_front) {
            Some(next) => self.start(Arc::clone(object), next),
            None => _ = self.waiting.remove(object),
        }
    }
}

/// Writes an Event, with a limited number of attempts.
async fn write(events: &EventWriter, Queued { regarding, event }: &Queued) {
    let mut pause = FIRST_PAUSE;
    for attempt in 1..=MAX_ATTEMPTS {
        match events.create_or_count(regarding, event).await {
            Ok(()) | Err(WriteError::NotLeader(_)) => return,
            Err(error) if error.is_forbidden() => return,
            Err(error) => {
                let object = regarding.name.as_deref().unwrap_or_default();
                tracing::debug!(object, %error, attempt, "could not write an Event");
            }
        }
        if attempt < MAX_ATTEMPTS {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

/// Returns what identifies an object.
fn object_key(object: &ObjectReference) -> &str {
    object.uid.as_deref().or(object.name.as_deref()).unwrap_or_default()
}

/// The rate of Events with each reason about each object, so that a frequent transition does not
/// hide another fact: a bucket of [`BURST`] tokens, which gets one token in each
/// [`REFILL_INTERVAL`].
#[derive(Debug, Default)]
struct Rates(HashMap<Arc<str>, Rate>);

#[derive(Clone, Copy, Debug)]
struct Rate {
    tokens: u32,
    /// The time up to which the bucket has been refilled.
    refilled: Instant,
}

impl Rate {
    fn refill(&mut self, now: Instant) {
        let intervals = now.saturating_duration_since(self.refilled).as_secs() / REFILL_INTERVAL.as_secs();
        let intervals = u32::try_from(intervals).unwrap_or(BURST);
        self.tokens = self.tokens.saturating_add(intervals).min(BURST);
        self.refilled = if self.tokens == BURST { now } else { self.refilled + REFILL_INTERVAL * intervals };
    }
}

impl Rates {
    /// Returns whether the rate of the Event allows it now.
    fn allows_event(&mut self, Queued { regarding, event }: &Queued) -> bool {
        let allowed = self.allows(regarding, &event.reason, Instant::now());
        if !allowed {
            tracing::debug!(
                object = regarding.name.as_deref().unwrap_or_default(),
                reason = %event.reason,
                "discarded an Event: there were too many Events with this reason about this object"
            );
        }
        allowed
    }

    fn allows(&mut self, object: &ObjectReference, reason: &str, now: Instant) -> bool {
        let key = format!("{}/{reason}", object_key(object));
        if !self.0.contains_key(key.as_str()) && self.0.len() >= MAX_RATES {
            self.forget(now);
        }
        let rate = self.0.entry(key.into()).or_insert(Rate { tokens: BURST, refilled: now });
        rate.refill(now);
        let allowed = rate.tokens > 0;
        rate.tokens = rate.tokens.saturating_sub(1);
        allowed
    }

    /// Forgets the rates that have all tokens, and the one with the most tokens if there is none.
    fn forget(&mut self, now: Instant) {
        for rate in self.0.values_mut() {
            rate.refill(now);
        }
        self.0.retain(|_, rate| rate.tokens < BURST);
        if self.0.len() >= MAX_RATES
            && let Some(key) = self.0.iter().max_by_key(|(_, rate)| rate.tokens).map(|(key, _)| key.clone())
        {
            self.0.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::lease::Leadership;

    /// An API server that stores Events, and responds with the next of `codes` while there are any.
    #[derive(Clone, Default)]
    struct Server {
        codes: Arc<Mutex<Vec<u16>>>,
        events: Arc<Mutex<Vec<Value>>>,
        requests: Arc<Mutex<Vec<String>>>,
        /// The object about which Events cannot be written.
        failing: Option<(&'static str, Failure)>,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Failure {
        Refuses,
        Hangs,
    }

    impl Server {
        fn client(&self) -> kube::Client {
            let this = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let this = this.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                    if let Some((name, failure)) = this.failing
                        && body["regarding"]["name"] == name
                    {
                        this.requests.lock().unwrap().push(format!("{} {name}", parts.method));
                        if failure == Failure::Hangs {
                            std::future::pending::<()>().await;
                        }
                        return Ok(Response::builder().status(500).body(Body::from(b"{}".to_vec())).unwrap());
                    }
                    let (code, body) = this.respond(parts.method.as_str(), parts.uri.path(), body);
                    let response = Response::builder().status(code);
                    Ok::<_, std::io::Error>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
                }
            });
            kube::Client::new(service, "ns")
        }

        fn respond(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
            self.requests.lock().unwrap().push(format!("{method} {path}"));
            let status = |code: u16| {
                (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}))
            };
            let mut codes = self.codes.lock().unwrap();
            if !codes.is_empty() {
                return status(codes.remove(0));
            }
            let mut events = self.events.lock().unwrap();
            match method {
                "POST" if events.iter().any(|old| old["metadata"]["name"] == body["metadata"]["name"]) => {
                    status(409)
                }
                "POST" => {
                    events.push(body.clone());
                    (201, body)
                }
                _ => {
                    let name = path.rsplit('/').next().unwrap();
                    let event = events.iter_mut().find(|old| old["metadata"]["name"] == name).unwrap();
                    if let Some(series) = body.get("series") {
                        event["series"] = series.clone();
                    }
                    (200, event.clone())
                }
            }
        }

        fn counts(&self) -> Vec<(String, i64)> {
            let events = self.events.lock().unwrap();
            let count = |event: &Value| event["series"]["count"].as_i64().unwrap_or(1);
            events.iter().map(|event| (event["note"].as_str().unwrap().to_owned(), count(event))).collect()
        }
    }

    fn thing() -> ObjectReference {
        ObjectReference {
            kind: Some("Thing".to_owned()),
            name: Some("thing".to_owned()),
            uid: Some("u".to_owned()),
            ..ObjectReference::default()
        }
    }

    fn recorder(server: &Server, is_leader: bool) -> (EventRecorder, EventTask) {
        let writer = Writer::new(Leadership::fixed(is_leader));
        let reporter = Reporter { controller: "program", instance: "pod".to_owned() };
        EventRecorder::new(server.client(), writer, reporter)
    }

    /// Records these notes and waits until they are written or discarded.
    async fn record(server: &Server, is_leader: bool, notes: &[&str]) {
        let (recorder, task) = recorder(server, is_leader);
        for note in notes {
            recorder.record(thing(), NewEvent::warning("Bad", "Validate", *note));
        }
        drop(recorder);
        let stop = CancellationToken::new();
        let (running, stopped) = (task.run(stop.clone()), stop);
        let (_, ()) = tokio::join!(running, async {
            // The clock is paused: this is after all writes and their repetitions.
            tokio::time::sleep(Duration::from_secs(3600)).await;
            stopped.cancel();
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_occurrence_is_counted_in_the_series_of_its_event_by_every_process() {
        let server = Server::default();
        record(&server, true, &["one", "two", "one"]).await;
        assert_eq!(server.counts(), [("one".to_owned(), 2), ("two".to_owned(), 1)]);
        record(&server, true, &["one"]).await;
        assert_eq!(server.counts(), [("one".to_owned(), 3), ("two".to_owned(), 1)]);
        let requests = server.requests.lock().unwrap();
        assert_eq!(requests[0], "POST /apis/events.k8s.io/v1/namespaces/default/events");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fact_is_written_once() {
        let server = Server::default();
        let writer = Writer::new(Leadership::fixed(true));
        let reporter = Reporter { controller: "program", instance: "pod".to_owned() };
        let events = EventWriter::new(server.client(), writer, reporter);
        for _ in 0..2 {
            events.create(&thing(), &NewEvent::normal("R", "A", "fact")).await.unwrap();
        }
        assert_eq!(server.counts(), [("fact".to_owned(), 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_write_is_repeated_and_a_forbidden_one_is_not() {
        for (codes, is_written, requests) in [
            (&[500, 503, 500][..], true, 4),
            (&[500, 500, 500, 500], false, 4),
            (&[403], false, 1),
            (&[404], false, 1),
        ] {
            let server = Server { codes: Arc::new(Mutex::new(codes.to_vec())), ..Server::default() };
            record(&server, true, &["note"]).await;
            assert_eq!(!server.counts().is_empty(), is_written, "{codes:?}");
            assert_eq!(server.requests.lock().unwrap().len(), requests, "{codes:?}");
        }
    }

    /// Returns an object with this name.
    fn named(name: &str) -> ObjectReference {
        ObjectReference { name: Some(name.to_owned()), uid: Some(name.to_owned()), ..thing() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_cannot_be_written_delays_only_later_ones_about_its_object() {
        for (failure, longest) in [(Failure::Refuses, 7), (Failure::Hangs, 47)] {
            let server = Server { failing: Some(("bad", failure)), ..Server::default() };
            let (recorder, task) = recorder(&server, true);
            let note = |name: &str, note: &str| {
                recorder.record(named(name), NewEvent::normal("R", "A", note));
            };
            note("bad", "first");
            note("bad", "second");
            for nth in 0..20 {
                note(&format!("good-{}", nth % 10), &format!("{nth}"));
            }
            let stop = CancellationToken::new();
            let running = tokio::spawn(task.run(stop.clone()));
            let began = Instant::now();
            while server.counts().len() < 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(began.elapsed() < Duration::from_secs(1), "{failure:?}: {:?}", server.counts());
            }
            let attempts = || {
                let requests = server.requests.lock().unwrap();
                requests.iter().filter(|request| request.ends_with(" bad")).count()
            };
            // The failing Event is given up, and the next one of its object is tried.
            tokio::time::sleep(Duration::from_secs(longest)).await;
            assert!((4..=6).contains(&attempts()), "{failure:?}: {}", attempts());
            tokio::time::sleep(Duration::from_secs(longest + 1)).await;
            assert_eq!(attempts(), 8, "{failure:?}");
            stop.cancel();
            running.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_events_about_an_object_are_written_in_their_order() {
        let server = Server { codes: Arc::new(Mutex::new(vec![500])), ..Server::default() };
        record(&server, true, &["one", "two", "three"]).await;
        let notes: Vec<String> = server.counts().into_iter().map(|(note, _)| note).collect();
        assert_eq!(notes, ["one", "two", "three"]);
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_cannot_be_written_do_not_delay_the_shutdown() {
        let server = Server { failing: Some(("bad", Failure::Hangs)), ..Server::default() };
        let (recorder, task) = recorder(&server, true);
        for nth in 0..100 {
            recorder.record(named("bad"), NewEvent::normal("R", "A", nth.to_string()));
        }
        recorder.record(named("good"), NewEvent::normal("R", "A", "good"));
        let stop = CancellationToken::new();
        stop.cancel();
        let began = Instant::now();
        task.run(stop).await;
        assert!(began.elapsed() <= SHUTDOWN_TIMEOUT);
        assert_eq!(server.counts(), [("good".to_owned(), 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_leader_writes() {
        let server = Server::default();
        record(&server, false, &["note"]).await;
        assert!(server.requests.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_does_not_block() {
        let server = Server::default();
        let (recorder, task) = recorder(&server, true);
        for nth in 0..QUEUE_LENGTH * 2 {
            recorder.record(thing(), NewEvent::normal("R", "A", nth.to_string()));
        }
        drop(recorder);
        let stop = CancellationToken::new();
        stop.cancel();
        task.run(stop).await;
        assert_eq!(server.counts().len(), BURST as usize, "the rate of the object");
    }

    #[test]
    fn the_rate_of_a_reason_is_bounded_and_other_objects_and_reasons_have_their_own() {
        let mut rates = Rates::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let allowed =
            |rates: &mut Rates, now| (0..100).filter(|_| rates.allows(&thing(), "Bad", now)).count();
        assert_eq!(allowed(&mut rates, at(0)), 25);
        assert_eq!(allowed(&mut rates, at(299)), 0);
        assert_eq!(allowed(&mut rates, at(300)), 1);
        assert_eq!(allowed(&mut rates, at(1250)), 3);
        assert_eq!(allowed(&mut rates, at(1500)), 1, "part of an interval is not lost");
        let other = ObjectReference { uid: Some("v".to_owned()), ..thing() };
        assert!(rates.allows(&other, "Bad", at(1500)));
        assert!(rates.allows(&thing(), "Worse", at(1500)), "another reason");
        assert_eq!(allowed(&mut rates, at(1_000_000)), 25);
    }

    #[test]
    fn the_number_of_remembered_objects_is_bounded() {
        let mut rates = Rates::default();
        let now = Instant::now();
        let object = |nth: usize| ObjectReference { uid: Some(nth.to_string()), ..thing() };
        (0..30).for_each(|_| _ = rates.allows(&object(0), "Bad", now));
        for nth in 1..MAX_RATES * 2 {
            assert!(rates.allows(&object(nth), "Bad", now));
            assert!(rates.0.len() <= MAX_RATES);
        }
        assert!(!rates.allows(&object(0), "Bad", now), "an object without tokens stays");
    }
}
