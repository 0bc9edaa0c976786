//! The stub of a login: a Concierge that returns the same token for every request, so that
//! `pinniped proxy` can be measured with it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{Handler, Listen};

/// Lifetime of a login.
const LIFETIME: SignedDuration = SignedDuration::from_mins(50);

/// Flags of the stub.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoginStubOptions {
    #[command(flatten)]
    listen: Listen,
    /// The user to impersonate.
    #[arg(long)]
    user: String,
    /// A group of the user.
    #[arg(long)]
    group: String,
    /// File with the token of an account that is allowed to impersonate.
    #[arg(long)]
    token: PathBuf,
}

/// Runs the stub until the process is terminated.
pub(crate) async fn login_stub(options: &LoginStubOptions) -> anyhow::Result<()> {
    let token = std::fs::read_to_string(&options.token).context("could not read the token")?;
    let login =
        Login { token: token.trim().to_owned(), user: options.user.clone(), group: options.group.clone() };
    super::serve(&options.listen, Arc::new(login)).await
}

struct Login {
    token: String,
    user: String,
    group: String,
}

impl Login {
    async fn respond(&self, request: Request<Incoming>) -> anyhow::Result<Response<Full<Bytes>>> {
        // The body is read and ignored, so that the connection can be reused.
        request.into_body().collect().await?;
        let ends = Timestamp::from_second((Timestamp::now() + LIFETIME).as_second())?;
        let content = json!({
            "kind": "TokenCredentialRequest", "apiVersion": "login.concierge.pinniped.dev/v1alpha1",
            "metadata": {}, "spec": {"authenticator": {"apiGroup": null, "kind": "", "name": ""}},
            "status": {
                "credential": {"token": self.token, "expirationTimestamp": ends.to_string()},
                "impersonate": {"username": self.user, "groups": [self.group]},
            },
        });
        let mut response = Response::new(Full::from(content.to_string()));
        *response.status_mut() = StatusCode::CREATED;
        Ok(response)
    }
}

impl Handler for Arc<Login> {
    type Body = Full<Bytes>;

    fn connection(
        &self,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<Full<Bytes>>,
        Error = anyhow::Error,
        Future: Send + 'static,
    > + Send
    + 'static {
        let login = Arc::clone(self);
        service_fn(move |request| -> BoxFuture<'static, _> {
            let login = Arc::clone(&login);
            Box::pin(async move { login.respond(request).await })
        })
    }
}
