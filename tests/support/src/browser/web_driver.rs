//! A client of the WebDriver protocol (<https://www.w3.org/TR/webdriver2/>), for one session.

use anyhow::Context as _;
use http::{Method, Request, header};
use serde_json::{Value, json};

use crate::exchange::exchange;

/// A session of a browser. It ends with the process of the driver.
#[derive(Debug)]
pub(super) struct WebDriver {
    /// The URL of the session's commands.
    base: String,
}

impl WebDriver {
    /// Checks that a driver on this port accepts sessions.
    pub(super) async fn status(port: u16) -> anyhow::Result<()> {
        let status = send(Method::GET, &format!("http://127.0.0.1:{port}/status"), String::new()).await?;
        anyhow::ensure!(status["ready"] == true, "the driver is not ready: {status}");
        Ok(())
    }

    /// Starts the browser with these capabilities.
    pub(super) async fn new_session(port: u16, capabilities: &Value) -> anyhow::Result<Self> {
        let url = format!("http://127.0.0.1:{port}/session");
        let body = json!({"capabilities": {"alwaysMatch": capabilities}});
        let session = send(Method::POST, &url, body.to_string()).await?;
        let id = session["sessionId"].as_str().context("the session has no id")?;
        Ok(Self { base: format!("{url}/{id}") })
    }

    /// Sends a command with parameters and returns its value.
    pub(super) async fn post(&self, command: &str, body: &Value) -> anyhow::Result<Value> {
        send(Method::POST, &format!("{}/{command}", self.base), body.to_string()).await
    }

    /// Sends a command without parameters, whose value is a text.
    pub(super) async fn text(&self, command: &str) -> anyhow::Result<String> {
        let value = send(Method::GET, &format!("{}/{command}", self.base), String::new()).await?;
        value.as_str().map(str::to_owned).with_context(|| format!("{command} is no text: {value}"))
    }
}

/// Sends a command and returns its value. The value of a command that failed has an error code and
/// a message.
async fn send(method: Method, url: &str, body: String) -> anyhow::Result<Value> {
    let request = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, "application/json");
    let response = exchange(request.body(body)?, "").await?;
    let mut reply: Value = serde_json::from_slice(response.body()).context("the driver sent no JSON")?;
    let value = reply["value"].take();
    anyhow::ensure!(
        response.status().is_success(),
        "{}: {}",
        value["error"].as_str().unwrap_or("unknown error"),
        value["message"].as_str().and_then(|text| text.lines().next()).unwrap_or_default()
    );
    Ok(value)
}
