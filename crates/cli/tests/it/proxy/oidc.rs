//! `pinniped proxy` with a kubeconfig whose user logs in at an OIDC issuer.

use std::sync::Arc;

use super::api_server::{ApiServer, Script};
use super::running::Running;
use crate::oidc::browser::{Desktop, callback, visit};
use crate::oidc::issuer::{Issuer, Settings, query};
use crate::support::plugin_kubeconfig;

/// A user with a browser, an issuer, and a cluster.
struct Scene {
    issuer: Arc<Issuer>,
    desktop: Arc<Desktop>,
    server: ApiServer,
}

impl Scene {
    async fn set(settings: Settings, script: Script) -> Self {
        Self {
            issuer: Arc::new(Issuer::start(settings)),
            desktop: Arc::new(Desktop::with_browser("#!/bin/sh\necho \"$1\" >> \"$OPENED\"\n")),
            server: ApiServer::start(script).await,
        }
    }

    fn kubeconfig(&self) -> String {
        let args = self.issuer.args(&[
            "--enable-concierge",
            "--concierge-authenticator-name=a",
            "--concierge-authenticator-type=jwt",
            &format!("--concierge-endpoint={}", self.server.url()),
            &format!("--concierge-ca-bundle-data={}", self.server.ca_data()),
            "--concierge-credential-type=service-account-token",
            "--impersonation-delivery=proxy",
        ]);
        plugin_kubeconfig(&self.server.url(), &self.server.ca_data(), &args)
    }

    /// Runs `act` on the page that the browser opens next, on a thread of its own.
    async fn on_next_page(&self, act: impl FnOnce(&str, &Issuer) + Send + 'static) {
        let (issuer, desktop) = (Arc::clone(&self.issuer), Arc::clone(&self.desktop));
        let opened = desktop.opened().len();
        tokio::task::spawn_blocking(move || act(&desktop.opened_after(opened), &issuer)).await.unwrap();
    }

    /// Starts the proxy, whose user logs in.
    async fn start(&self) -> Running {
        let config = self.kubeconfig();
        let page = self.on_next_page(|url, issuer| drop(visit(url, &issuer.authorize(url))));
        tokio::join!(Running::start(&self.desktop.home, &config), page).0
    }
}

#[tokio::test]
async fn one_login_at_the_issuer_serves_all_requests_and_renewals() {
    // The lifetime is shorter than the safety margin: each request renews the credential.
    let scene = Scene::set(Settings::default(), Script { lifetime: 3 }).await;
    let running = scene.start().await;
    for number in 1..4 {
        assert_eq!(running.get("/x").await.status(), 200);
        let seen = scene.server.take_last().headers;
        for line in [format!("authorization: Bearer token-{number}"), "impersonate-user: pinny".to_owned()] {
            assert!(seen.contains(&line), "{line}: {seen:?}");
        }
        assert!(!seen.iter().any(|line| line.contains("Bearer ey")), "the ID token stays here: {seen:?}");
    }
    assert_eq!(scene.server.logins(), 4);
    assert_eq!((scene.issuer.granted().len(), scene.desktop.opened().len()), (1, 1));
    // Another run uses the session.
    drop(running);
    let running = Running::start(&scene.desktop.home, &scene.kubeconfig()).await;
    assert_eq!(running.get("/x").await.status(), 200);
    assert_eq!((scene.issuer.granted().len(), scene.desktop.opened().len()), (1, 1));
}

#[tokio::test]
async fn a_session_that_has_ended_is_replaced_by_a_login_or_reported_to_the_client() {
    // ID tokens of this lifetime are refreshed for each credential.
    let settings = Settings { id_lifetime: 300, ..Settings::default() };
    let scene = Scene::set(settings, Script { lifetime: 3 }).await;
    let running = scene.start().await;
    assert_eq!(running.get("/x").await.status(), 200);
    assert_eq!(scene.issuer.granted(), ["authorization_code", "refresh_token"]);
    scene.issuer.change(|settings| settings.refresh_error = Some("invalid_grant"));

    let page = scene.on_next_page(|url, issuer| drop(visit(url, &issuer.authorize(url))));
    let (response, ()) = tokio::join!(running.get("/x"), page);
    assert_eq!(response.status(), 200, "{response:?}");
    assert_eq!(scene.desktop.opened().len(), 2);

    let page = scene.on_next_page(|url, _| {
        let state = query(url.split_once('?').unwrap().1)["state"].clone();
        callback(url, &format!("error=access_denied&state={state}"));
    });
    let (response, ()) = tokio::join!(running.get("/x"), page);
    assert_eq!(response.status(), 503, "{response:?}");
    assert!(response.body().contains("pinniped proxy could not log in: "), "{response:?}");
    assert!(response.body().contains("access_denied"), "{response:?}");
    assert_eq!(scene.desktop.opened().len(), 3);
}
