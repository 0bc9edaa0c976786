use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use pinniped_concierge_domain::service_account_tokens::Settings;
use serde_json::{Value, json};

use super::*;

/// The issuer of a disabled strategy.
pub(crate) struct Off;

impl TokenIssuer for Off {
    fn issue<'a>(
        &'a self,
        _user: &'a ImpersonatedUser,
    ) -> BoxFuture<'a, Result<IssuedToken, TokenIssuerError>> {
        Box::pin(async { Err(TokenIssuerError::Off) })
    }
}

#[test]
fn jti_returns_the_id_of_a_token_or_an_empty_text() {
    let claims = URL_SAFE_NO_PAD.encode(r#"{"jti":"6b8a","iss":"x"}"#);
    for (token, wanted) in [
        (format!("e30.{claims}.c2ln"), "6b8a"),
        (format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode("{}")), ""),
        ("e30.!.c2ln".to_owned(), ""),
        ("opaque".to_owned(), ""),
    ] {
        assert_eq!(jti(&token), wanted, "{token}");
    }
}

/// A minimal API server for an issuer: objects by path.
#[derive(Default)]
struct ApiServer {
    objects: Mutex<BTreeMap<String, Value>>,
    calls: Mutex<Vec<String>>,
    knows_no_roles: bool,
}

impl ApiServer {
    fn client(self: &Arc<Self>) -> kube::Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                // Other tasks run while a response is in transit.
                tokio::task::yield_now().await;
                let (code, response) = server.respond(head.method.as_str(), head.uri.path(), body);
                let response = Body::from(response.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::builder().status(code).body(response).expect("a response"))
            }
        });
        kube::Client::new(service, "ns")
    }

    fn respond(&self, method: &str, path: &str, mut body: Value) -> (u16, Value) {
        let mut objects = self.objects.lock().expect("lock");
        let what = path.split('/').rev().find(|part| part.chars().all(|c| c.is_ascii_lowercase()));
        self.calls.lock().expect("lock").push(format!("{method} {}", what.unwrap_or_default()));
        let refused = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "AlreadyExists" };
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason}))
        };
        if path.ends_with("/subjectaccessreviews") {
            body["status"] = json!({"allowed": !self.knows_no_roles});
            return (201, body);
        }
        if let Some(account) = path.strip_suffix("/token") {
            // The account that writes roles is not one of the objects.
            if !objects.contains_key(account) && !account.ends_with("/writer") {
                return refused(404);
            }
            let expires = (Timestamp::now() + Duration::from_secs(600)).to_string();
            body["status"] = json!({"token": "e30.e30.c2ln", "expirationTimestamp": expires});
            return (201, body);
        }
        match method {
            "GET" => objects.get(path).map_or_else(|| refused(404), |found| (200, found.clone())),
            "POST" => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
                if objects.contains_key(&path) {
                    return refused(409);
                }
                body["metadata"]["uid"] = json!(format!("uid-{}", objects.len()));
                objects.insert(path, body.clone());
                (201, body)
            }
            "PUT" => {
                objects.insert(path.to_owned(), body.clone());
                (200, body)
            }
            _ => objects.remove(path).map_or_else(|| refused(404), |removed| (200, removed)),
        }
    }

    /// Returns the issuer of one replica.
    fn issuer(self: &Arc<Self>) -> ServiceAccountTokens {
        let client = self.client();
        let switch = Switch::default();
        switch.set(Some(Active {
            settings: Settings {
                namespace: "users".to_owned(),
                token_lifetime: Duration::from_secs(300),
                idle_timeout: Duration::from_secs(86_400),
                constrained: false,
            },
            form: Form::Plain,
        }));
        ServiceAccountTokens::new(ServiceAccountTokensParams {
            account: Account::new(client.clone(), "ns", "writer", |_| client.clone()),
            client,
            switch,
            labels: BTreeMap::from([("app".to_owned(), "concierge".to_owned())]),
            name_users: false,
        })
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().expect("lock"))
    }

    fn paths(&self, part: &str) -> Vec<String> {
        self.objects.lock().expect("lock").keys().filter(|path| path.contains(part)).cloned().collect()
    }

    fn change(&self, part: &str, change: impl FnOnce(&mut Value)) {
        let path = self.paths(part).remove(0);
        change(self.objects.lock().expect("lock").get_mut(&path).expect("that object"));
    }
}

fn pinny() -> ImpersonatedUser {
    ImpersonatedUser { username: "pinny".to_owned(), ..ImpersonatedUser::default() }
}

#[tokio::test]
async fn a_second_login_within_a_minute_only_creates_a_secret_and_a_token() {
    let server = Arc::new(ApiServer::default());
    let issuer = server.issuer();
    let issued = issuer.issue(&pinny()).await.expect("a token");
    let name = object_name(&IdentityDigest::of(&pinny()));
    assert_eq!(issued.service_account, format!("system:serviceaccount:users:{name}"));
    assert!(issued.bound_secret.starts_with(&format!("users/{name}-")));
    let left = issued.expires.duration_since(Timestamp::now()).as_secs();
    assert!((298..=300).contains(&left), "the lifetime of the settings, not the granted one: {left}");
    assert!(server.calls().len() > 6);
    issuer.issue(&pinny()).await.expect("a token");
    assert_eq!(server.calls(), ["POST secrets", "POST token"]);
}

#[tokio::test]
async fn concurrent_first_logins_on_several_replicas_succeed_and_create_one_set_of_objects() {
    let server = Arc::new(ApiServer::default());
    let issuers: Vec<_> = (0..3).map(|_| server.issuer()).collect();
    let (user, names) = (pinny(), ["serviceaccounts/", "clusterroles/", "clusterrolebindings/"]);
    let logins = (0..20).map(|number| issuers[number % 3].issue(&user));
    for result in futures::future::join_all(logins).await {
        result.expect("a token");
    }
    for kind in names {
        assert_eq!(server.paths(kind).len(), 1, "{kind}");
    }
    assert_eq!(server.paths("secrets/").len(), 20);
}

#[tokio::test]
async fn an_object_deleted_after_its_verification_is_created_again() {
    let server = Arc::new(ApiServer::default());
    let issuer = server.issuer();
    issuer.issue(&pinny()).await.expect("a token");
    server.objects.lock().expect("lock").clear();
    issuer.issue(&pinny()).await.expect("a token");
    assert_eq!(server.paths("clusterrolebindings/").len(), 1);
}

#[tokio::test]
async fn a_role_with_more_permissions_is_repaired_and_a_foreign_role_is_refused() {
    let server = Arc::new(ApiServer::default());
    server.issuer().issue(&pinny()).await.expect("a token");
    let path = server.paths("clusterroles/").remove(0);
    let good = server.objects.lock().expect("lock")[&path]["rules"].clone();
    server.change("clusterroles/", |role| role["rules"] = json!([{"verbs": ["*"]}]));
    server.change("clusterrolebindings/", |binding| binding["roleRef"]["name"] = json!("cluster-admin"));
    // Another replica, or this one a minute later, has no cached verification.
    server.issuer().issue(&pinny()).await.expect("a token");
    let objects = server.objects.lock().expect("lock").clone();
    let of = |part: &str| objects.iter().find(|(path, _)| path.contains(part)).expect("it").1.clone();
    assert_eq!(of("clusterroles/")["rules"], good);
    assert_eq!(of("clusterrolebindings/")["roleRef"]["name"], object_name(&IdentityDigest::of(&pinny())));

    server.change("clusterroles/", |role| role["metadata"]["labels"]["app"] = json!("another"));
    let error = server.issuer().issue(&pinny()).await.expect_err("it is another installation's").to_string();
    assert!(error.contains("was made by another installation"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn issue_waits_for_an_effective_role_until_the_timeout() {
    let server = Arc::new(ApiServer { knows_no_roles: true, ..ApiServer::default() });
    let began = tokio::time::Instant::now();
    let error = server.issuer().issue(&pinny()).await.expect_err("the role is not known");
    assert!(matches!(error, TokenIssuerError::RbacNotYetEffective { .. }), "{error}");
    assert_eq!(began.elapsed().as_secs(), 5);
    assert!(server.paths("secrets/").is_empty(), "no token that could not be used");
}

#[tokio::test]
async fn a_disabled_strategy_sends_no_request() {
    let server = Arc::new(ApiServer::default());
    let issuer = server.issuer();
    issuer.params.switch.set(None);
    assert!(matches!(issuer.issue(&pinny()).await, Err(TokenIssuerError::Off)));
    assert!(server.calls().is_empty());
}
