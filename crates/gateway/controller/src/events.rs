//! Events about refused `Ingress` objects, whose status has no field for a reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::networking::v1::Ingress;
use kube::Resource as _;
use pinniped_controller::event::EventWriter;
use pinniped_gateway_routing::Name;
use pinniped_kube_types::event::NewEvent;
use tokio::sync::watch;

use super::apply::changed;
use super::observe::Observed;
use super::rebuild::ValidationResults;
use pinniped_controller::client::WriteError;
use pinniped_controller::lease::Leadership;
use pinniped_controller::runtime::{RESYNC, became_leader};

const REASON: &str = "Refused";

const ACTION: &str = "Validate";

/// The maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 8;

/// The delay after a pass with a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Writes an Event for each new refusal. Only the leader writes.
pub(super) struct RefusalReporter {
    pub(super) events: EventWriter,
    pub(super) observed: Arc<Observed>,
    pub(super) results: watch::Receiver<Arc<ValidationResults>>,
    pub(super) leadership: Leadership,
    /// The current refusals that have an Event.
    pub(super) reported: BTreeMap<Name, String>,
}

impl RefusalReporter {
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
                Err(error) => {
                    done = false;
                    tracing::debug!(object = %name, %error, "could not write an Event");
                }
            }
        }
        done
    }

    /// Writes the Event for a refusal. An existing one is sufficient, because the previous leader
    /// may have written it.
    async fn write(&self, name: &Name, why: &str) -> Result<(), WriteError> {
        let Some(object) = self.observed.ingresses.get(name) else { return Ok(()) };
        self.events.create(&Ingress::object_ref(&object, &()), &NewEvent::warning(REASON, ACTION, why)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use pinniped_controller::client::Writer;
    use pinniped_kube_types::event::Reporter;
    use serde_json::json;

    use super::super::observe::Mirrors;
    use super::*;

    /// Returns a writer with an API server that responds to consecutive requests with these status
    /// codes.
    fn writer(
        codes: &'static [u16],
        requests: &Arc<Mutex<Vec<String>>>,
    ) -> (RefusalReporter, watch::Sender<Arc<ValidationResults>>) {
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
                    201 => json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {}}),
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
        let leadership = Leadership::fixed(true);
        let client = kube::Client::new(service, "ns");
        let reporter = Reporter { controller: "gateway", instance: "pod".to_owned() };
        let writer = RefusalReporter {
            events: EventWriter::new(client, Writer::new(leadership.clone()), reporter),
            observed: Arc::new(observed),
            results,
            leadership,
            reported: BTreeMap::new(),
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
        assert_eq!(requests.lock().unwrap()[0], "/apis/events.k8s.io/v1/namespaces/ns/events");
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
}
