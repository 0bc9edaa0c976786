//! Events about refused `Ingress` objects, whose status has no field for a reason.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use pinniped_gateway_routing::Name;
use tokio::sync::watch;

use super::apply::changed;
use super::observe::Observed;
use super::rebuild::ValidationResults;
use pinniped_controller::client::{WriteError, Writer};
use pinniped_controller::event::{Warning, warning};
use pinniped_controller::lease::Leadership;
use pinniped_controller::runtime::{RESYNC, became_leader};

const COMPONENT: &str = "pinniped-gateway";

const REASON: &str = "Refused";

/// The maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 8;

/// The timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay after a pass with a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The maximum length of the object's name within the name of an Event, which may have 253 bytes.
const MAX_NAME_LENGTH: usize = 200;

/// Writes an Event for each new refusal. Only the leader writes.
pub(super) struct EventWriter {
    pub(super) client: kube::Client,
    pub(super) observed: Arc<Observed>,
    pub(super) results: watch::Receiver<Arc<ValidationResults>>,
    pub(super) leadership: Leadership,
    /// The current refusals that have an Event.
    pub(super) reported: BTreeMap<Name, String>,
    /// Whether the missing permission has been logged.
    pub(super) forbidden: bool,
}

impl EventWriter {
    /// Never returns.
    pub(super) async fn run(mut self) {
        let mut leadership = self.leadership.subscribe();
        loop {
            let done = !self.leadership.is_leader() || self.pass().await;
            tokio::select! {
                biased;
                () = changed(&mut self.results) => {}
                () = became_leader(&mut leadership) => {}
                () = tokio::time::sleep(if done { RESYNC } else { RETRY_INTERVAL }) => {}
            }
        }
    }

    /// Writes Events for new refusals. Returns `false` if a write must be retried.
    async fn pass(&mut self) -> bool {
        let results = Arc::clone(&self.results.borrow_and_update());
        let refused = &results.refused_ingresses;
        self.reported.retain(|name, why| refused.get(name) == Some(why));
        let new: Vec<(Name, String)> = refused
            .iter()
            .filter(|(name, _)| !self.reported.contains_key(*name))
            .map(|(name, why)| (name.clone(), why.clone()))
            .collect();
        let this = &*self;
        let written: Vec<(Name, String, Result<(), WriteError>)> = futures::stream::iter(new)
            .map(|(name, why)| async move {
                let result = this.write(&name, &why).await;
                (name, why, result)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            .collect()
            .await;
        let mut done = true;
        for (name, why, result) in written {
            match result {
                Ok(()) => _ = self.reported.insert(name, why),
                Err(WriteError::NotLeader(_)) => {}
                Err(error) if error.is_forbidden() => {
                    done = false;
                    if !std::mem::replace(&mut self.forbidden, true) {
                        tracing::warn!(
                            verb = "create",
                            resource = "events",
                            %error,
                            "a permission is missing: there are no Events about refused Ingresses"
                        );
                    }
                }
                Err(error) => {
                    done = false;
                    tracing::debug!(object = %name, %error, "could not write an Event");
                }
            }
        }
        done
    }

    async fn write(&self, name: &Name, why: &str) -> Result<(), WriteError> {
        let Some(object) = self.observed.ingresses.get(name) else { return Ok(()) };
        let events: Api<Event> = Api::namespaced(self.client.clone(), &name.namespace);
        let writer = Writer::new(self.leadership.clone());
        let event = event(&object, name, why, Timestamp::now());
        match tokio::time::timeout(WRITE_TIMEOUT, writer.create(&events, &event)).await {
            // The previous leader has already written the Event, or the namespace no longer exists.
            Ok(Err(error)) if error.is_race() || error.is_not_found() => Ok(()),
            Ok(result) => result.map(drop),
            // The next pass writes it under the same name.
            Err(_elapsed) => Err(WriteError::Api(kube::Error::Service("no response in time".into()))),
        }
    }
}

/// Returns the Event for a refusal. Its name is derived from the object and the reason, so that it
/// is written once.
fn event(object: &Ingress, name: &Name, why: &str, now: Timestamp) -> Event {
    let mut hasher = DefaultHasher::new();
    (&object.metadata.uid, why).hash(&mut hasher);
    let short = &name.name[..name.name.floor_char_boundary(MAX_NAME_LENGTH)];
    let metadata = ObjectMeta {
        name: Some(format!("{short}.{:016x}", hasher.finish())),
        namespace: Some(name.namespace.clone()),
        ..ObjectMeta::default()
    };
    let about = ObjectReference {
        api_version: Some("networking.k8s.io/v1".to_owned()),
        kind: Some("Ingress".to_owned()),
        namespace: Some(name.namespace.clone()),
        name: Some(name.name.clone()),
        uid: object.metadata.uid.clone(),
        resource_version: object.metadata.resource_version.clone(),
        ..ObjectReference::default()
    };
    warning(Warning { metadata, about, component: COMPONENT, reason: REASON, message: why }, now)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::super::observe::Mirrors;
    use super::*;

    /// Returns a writer with an API server that responds to consecutive requests with these status
    /// codes.
    fn writer(
        codes: &'static [u16],
        requests: &Arc<Mutex<Vec<String>>>,
    ) -> (EventWriter, watch::Sender<Arc<ValidationResults>>) {
        let requests = Arc::clone(requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let requests = Arc::clone(&requests);
            async move {
                assert_eq!(request.method(), Method::POST);
                let nth = {
                    let mut requests = requests.lock().unwrap();
                    requests.push(request.uri().path().to_owned());
                    requests.len() - 1
                };
                let code = codes[nth.min(codes.len() - 1)];
                let body = match code {
                    201 => json!({"apiVersion": "v1", "kind": "Event", "metadata": {}, "involvedObject": {}}),
                    _ => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let ingress = json!({"metadata": {"namespace": "ns", "name": "i", "uid": "u"}});
        let mut observed = Observed::default();
        observed.ingresses = Mirrors::of(vec![serde_json::from_value(ingress).unwrap()]);
        let (sender, results) = watch::channel(refused(Some("why")));
        let writer = EventWriter {
            client: kube::Client::new(service, "ns"),
            observed: Arc::new(observed),
            results,
            leadership: Leadership::fixed(true),
            reported: BTreeMap::new(),
            forbidden: false,
        };
        (writer, sender)
    }

    fn refused(why: Option<&str>) -> Arc<ValidationResults> {
        let name = Name { namespace: "ns".to_owned(), name: "i".to_owned() };
        let refused_ingresses = why.into_iter().map(|why| (name.clone(), why.to_owned())).collect();
        Arc::new(ValidationResults { refused_ingresses, ..ValidationResults::default() })
    }

    #[tokio::test]
    async fn each_new_refusal_results_in_one_event() {
        let requests = Arc::default();
        let (mut writer, results) = writer(&[201], &requests);
        for (step, now, events) in [
            ("it appears", Some("why"), 1),
            ("it stands", Some("why"), 1),
            ("for another reason", Some("other"), 2),
            ("it is gone", None, 2),
            ("it is there again", Some("why"), 3),
        ] {
            results.send_replace(refused(now));
            assert!(writer.pass().await, "{step}");
            assert_eq!(requests.lock().unwrap().len(), events, "{step}");
        }
        assert_eq!(requests.lock().unwrap()[0], "/api/v1/namespaces/ns/events");
    }

    #[tokio::test]
    async fn an_existing_event_is_sufficient_and_a_failed_one_is_retried() {
        for (codes, passes) in
            [(&[409, 500][..], &[true, true][..]), (&[403, 500, 201], &[false, false, true])]
        {
            let (mut writer, _kept) = writer(codes, &Arc::default());
            for (nth, done) in passes.iter().enumerate() {
                assert_eq!(writer.pass().await, *done, "{codes:?} {nth}");
            }
        }
    }

    #[test]
    fn an_event_respects_the_length_limits() {
        let name = Name { namespace: "ns".to_owned(), name: "n".repeat(253) };
        let event = event(&Ingress::default(), &name, &"ä".repeat(2000), Timestamp::UNIX_EPOCH);
        assert!(event.metadata.name.unwrap().len() <= 253);
        assert!(event.message.unwrap().len() <= 1024);
    }
}
