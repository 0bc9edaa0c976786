//! The handling of a request: checks, body, user, password, response.

use std::{sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use pinniped_http_server::body_budget::{BodyBudget, BodyLimits, ReadBodyError, WholeBody};
use pinniped_http_server::{Body, BoxError};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    passwords,
    protocol::{self, AuthenticationResult, Credentials},
    users::{self, Directory, User},
};

/// Sizes of bodies. A TokenReview has a few hundred bytes; tokens of other kinds, sent here by
/// mistake, have thousands. The uncharged parts are bounded by the number of connections and their
/// streams ([`super::run`]).
const BODIES: BodyLimits = BodyLimits { body: 256 << 10, uncharged: 1 << 10, budget: 8 << 20 };

/// How long a body may take to arrive. Callers time out after half a minute.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take to read its response of a few hundred bytes. Connections are limited
/// ([`super::run`]), and a client that does not read must not keep one open indefinitely.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Responds to TokenReviews from a directory of users.
#[derive(Clone)]
pub struct Authenticator {
    users: Arc<dyn Directory>,
    /// One permit per concurrent password check. bcrypt occupies a processor for a tenth of a
    /// second, so there is one permit per processor. Other checks wait in order, and leave the
    /// queue when their client disconnects.
    checks: Arc<Semaphore>,
    bodies: Arc<BodyBudget>,
}

impl Authenticator {
    /// Creates an authenticator that checks at most `concurrent_checks` passwords at a time.
    pub fn new(users: impl Directory, concurrent_checks: usize) -> Self {
        Self {
            users: Arc::new(users),
            checks: Arc::new(Semaphore::new(concurrent_checks.max(1))),
            bodies: Arc::new(BodyBudget::new(BODIES)),
        }
    }

    /// Handles one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let response = protocol::respond(self.review(request).await);
        response.map(|body| body.with_deadline(Instant::now() + RESPONSE_TIMEOUT))
    }

    async fn review<B>(&self, request: Request<B>) -> Result<AuthenticationResult, StatusCode>
    where
        B: http_body::Body + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        protocol::check(&parts)?;
        // The body is dropped here: the request may wait for password checks of others.
        let credentials = protocol::credentials(&self.read(body).await?.bytes)?;
        self.authenticate(credentials).await
    }

    async fn read<B>(&self, body: B) -> Result<WholeBody<'_>, StatusCode>
    where
        B: http_body::Body + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        match tokio::time::timeout(BODY_TIMEOUT, Box::pin(self.bodies.read(body))).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(ReadBodyError::TooLarge)) => Err(StatusCode::PAYLOAD_TOO_LARGE),
            Ok(Err(ReadBodyError::Exhausted)) => {
                tracing::debug!("too many large bodies at the same time");
                Err(StatusCode::TOO_MANY_REQUESTS)
            }
            Ok(Err(ReadBodyError::Broken(error))) => {
                tracing::debug!(err = %error, "failed to decode body");
                Err(StatusCode::BAD_REQUEST)
            }
            Err(_elapsed) => Err(StatusCode::REQUEST_TIMEOUT),
        }
    }

    async fn authenticate(&self, credentials: Credentials) -> Result<AuthenticationResult, StatusCode> {
        let Credentials { username, password } = credentials;
        let password = {
            let whole = password;
            passwords::bcrypt_input(&whole)
        };
        let Some(User { password_hash, groups }) = self.users.find(&username) else {
            drop(username);
            tracing::debug!("user not found");
            self.blocking(move || passwords::waste(&password)).await?;
            return Ok(AuthenticationResult::Unauthenticated);
        };
        if !self.blocking(move || passwords::matches(&password_hash, &password)).await? {
            tracing::debug!("authentication failed: wrong password");
            return Ok(AuthenticationResult::Unauthenticated);
        }
        let groups = users::groups(&groups).map_err(|error| {
            tracing::debug!(err = %error, "could not read groups");
            StatusCode::INTERNAL_SERVER_ERROR
        })?;
        tracing::debug!("successful authentication");
        Ok(AuthenticationResult::Authenticated { username, groups })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StatusCode> {
        let permit = Arc::clone(&self.checks).acquire_owned().await;
        // The permit moves into the task, because the work continues when its client disconnects.
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        done.await.map_err(|error| {
            tracing::debug!(err = %error, "could not check password");
            StatusCode::INTERNAL_SERVER_ERROR
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bytes::Bytes;
    use futures::StreamExt as _;
    use http::header::CONTENT_TYPE;
    use http_body::Frame;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use zeroize::Zeroizing;

    use super::*;

    impl Directory for HashMap<&'static str, User> {
        fn find(&self, name: &str) -> Option<User> {
            self.get(name).cloned()
        }
    }

    fn authenticator() -> Authenticator {
        let hash = |password: &str| bcrypt::hash(password, 4).unwrap().into_bytes();
        let user = |hash: Vec<u8>, groups: &str| User {
            password_hash: Zeroizing::new(hash),
            groups: groups.as_bytes().to_vec(),
        };
        let users: HashMap<&'static str, User> = [
            ("multi", user(hash("multi-pw"), "a,b")),
            ("one", user(hash("one-pw"), "a")),
            ("none", user(hash("none-pw"), "")),
            ("nohash", user(Vec::new(), "a")),
            ("badhash", user(b"not a valid password hash".to_vec(), "a")),
            ("colon", user(hash("pw:with:colons"), "a")),
            ("badgroups", user(hash("badgroups-pw"), "a\"b")),
        ]
        .into();
        Authenticator::new(users, 2)
    }

    async fn authenticate_token(token: &str) -> (u16, String) {
        let body = format!(
            r#"{{"apiVersion":"authentication.k8s.io/v1beta1","kind":"TokenReview","spec":{{"token":"{token}"}}}}"#
        );
        send(&body).await
    }

    async fn send(body: &str) -> (u16, String) {
        let request = Request::post("/authenticate")
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, */*")
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let response = authenticator().handle(request).await;
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(content_type.is_some(), !body.is_empty());
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn users_are_authenticated_only_with_their_passwords() {
        let yes = |user: &str| Some(user.to_owned());
        let table = [
            ("multi:multi-pw", yes(r#""username":"multi","groups":["a","b"]"#)),
            ("one:one-pw", yes(r#""username":"one","groups":["a"]"#)),
            ("none:none-pw", yes(r#""username":"none""#)),
            ("colon:pw:with:colons", yes(r#""username":"colon","groups":["a"]"#)),
            ("multi:one-pw", None),
            ("multi:wrong", None),
            ("multi:", None),
            ("unknown:multi-pw", None),
            (":multi-pw", None),
            ("a/b:multi-pw", None),
            ("nohash:foo", None),
            ("nohash:", None),
            ("badhash:foo", None),
        ];
        let head =
            r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{}"#;
        for (token, expected) in table {
            let status = match expected {
                Some(user) => format!(r#"{{"authenticated":true,"user":{{{user}}}}}"#),
                None => r#"{"user":{}}"#.to_owned(),
            };
            assert_eq!(
                authenticate_token(token).await,
                (200, format!("{head},\"status\":{status}}}\n")),
                "{token}"
            );
        }
    }

    #[tokio::test]
    async fn invalid_requests_and_groups_have_empty_responses() {
        assert_eq!(authenticate_token("multi").await, (400, String::new()));
        assert_eq!(send("invalid body").await, (400, String::new()));
        assert_eq!(send("").await, (400, String::new()));
        assert_eq!(authenticate_token("badgroups:badgroups-pw").await, (500, String::new()));
        // The error about invalid groups is returned only with the correct password.
        assert_eq!(authenticate_token("badgroups:wrong").await.0, 200);
        assert_eq!(send(&" ".repeat(BODIES.body + 1)).await, (413, String::new()));
    }

    #[tokio::test]
    async fn logins_continue_while_unfinished_large_bodies_use_the_whole_budget() {
        let authenticator = authenticator();
        let part = Bytes::from(vec![b' '; BODIES.body]);
        let post = || {
            Request::post("/authenticate")
                .header("Content-Type", "application/json")
                .header("Accept", "application/json")
        };
        let unfinished = || {
            let part = futures::stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(part.clone()))]);
            let body = StreamBody::new(part.chain(futures::stream::pending()));
            Box::pin(authenticator.handle(post().body(body).unwrap()))
        };
        let mut kept = Vec::new();
        let refused = loop {
            let mut request = unfinished();
            match futures::poll!(request.as_mut()) {
                std::task::Poll::Pending => kept.push(request),
                std::task::Poll::Ready(response) => break response,
            }
        };
        assert_eq!(refused.status(), 429);
        assert_eq!(kept.len(), BODIES.budget / (BODIES.body - BODIES.uncharged));
        let login = r#"{"apiVersion":"authentication.k8s.io/v1beta1","kind":"TokenReview","spec":{"token":"one:one-pw"}}"#;
        let body = Full::new(Bytes::from_static(login.as_bytes()));
        assert_eq!(authenticator.handle(post().body(body).unwrap()).await.status(), 200);
    }

    #[tokio::test]
    async fn every_response_has_a_deadline_for_clients_that_do_not_read() {
        for path in ["/authenticate", "/elsewhere"] {
            let request = Request::post(path).body(Full::new(Bytes::new())).unwrap();
            let response = authenticator().handle(request).await;
            let end = response.body().deadline().expect("a deadline");
            assert!(end > Instant::now() && end <= Instant::now() + RESPONSE_TIMEOUT, "{path}");
        }
    }
}
