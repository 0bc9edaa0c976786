//! One request of an attacker, as data.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use pinniped_test_support::rng::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Client, PATIENCE, Target, next_chunk, raw};
use crate::walkthrough::EXTERNAL_NAME;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// HTTP/1.1, byte for byte.
    Http1,
    /// HTTP/2 with Huffman-coded strings and references to the dynamic table. Fields that an HTTP/2
    /// client cannot send are left out.
    Http2,
    /// HTTP/2 with plain strings. Only method, path and fields are used.
    Plain,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The complete request is sent.
    Whole,
    /// The stream is reset before its end. Over HTTP/1.1 the connection closes.
    Reset,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The protocol.
    pub wire: Wire,
    /// Whether the request has the attacker's certificate; otherwise it is anonymous.
    pub named: bool,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Header fields.
    pub fields: Vec<(String, Vec<u8>)>,
    /// Size of the body in bytes.
    pub body: usize,
    /// Trailer fields after a body.
    pub trailers: Vec<(String, Vec<u8>)>,
    /// The end of the request.
    pub end: End,
}

impl Shape {
    /// Returns an anonymous GET over HTTP/2.
    pub fn get(path: &str) -> Self {
        Self {
            wire: Wire::Http2,
            named: false,
            method: "GET".to_owned(),
            path: path.to_owned(),
            fields: Vec::new(),
            body: 0,
            trailers: Vec::new(),
            end: End::Whole,
        }
    }

    /// Sends the request over a connection of its own and returns the status of the response.
    ///
    /// # Errors
    /// Returns an error when there is no response.
    pub async fn send(&self, target: &Target) -> anyhow::Result<u16> {
        let exchange = async {
            match self.wire {
                Wire::Http1 => self.over_http1(target).await,
                Wire::Http2 => self.over_http2(target).await,
                Wire::Plain => {
                    let client = self.named.then_some(&target.attacker);
                    raw::get(target, client, &self.path, &self.fields).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, exchange).await.context("no response in time")?
    }

    async fn over_http2(&self, target: &Target) -> anyhow::Result<u16> {
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(self.method.as_bytes())?;
        *request.uri_mut() = format!("https://{EXTERNAL_NAME}{}", self.path).parse()?;
        *request.headers_mut() = map(&self.fields);
        let mut client = Client::open(target, self.named.then_some(&target.attacker)).await?;
        let bare = self.body == 0 && self.trailers.is_empty() && self.end == End::Whole;
        let (response, mut stream) = client.begin(request, bare).await?;
        if self.body > 0 {
            let ends = self.trailers.is_empty() && self.end == End::Whole;
            stream.send_data(Bytes::from(vec![b'x'; self.body]), ends)?;
        }
        if !self.trailers.is_empty() {
            stream.send_trailers(map(&self.trailers))?;
        }
        if self.end == End::Reset {
            // Gives the stream time to reach the proxy.
            tokio::task::yield_now().await;
            stream.send_reset(Reason::CANCEL);
            bail!("reset");
        }
        let (head, mut body) = response.await?.into_parts();
        // A watch would never end.
        for _ in 0..64 {
            match next_chunk(&mut body).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => break,
            }
        }
        Ok(head.status.as_u16())
    }

    async fn over_http1(&self, target: &Target) -> anyhow::Result<u16> {
        let mut head =
            format!("{} {} HTTP/1.1\r\nHost: {EXTERNAL_NAME}\r\n", self.method, self.path).into_bytes();
        let chunked = !self.trailers.is_empty();
        if chunked {
            head.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        } else if self.body > 0 && !self.fields.iter().any(|(name, _)| name == "content-length") {
            head.extend_from_slice(format!("Content-Length: {}\r\n", self.body).as_bytes());
        }
        write_fields(&self.fields, &mut head);
        head.extend_from_slice(b"\r\n");
        let sent = if self.end == End::Reset { self.body / 2 } else { self.body };
        if chunked {
            head.extend_from_slice(format!("{sent:x}\r\n").as_bytes());
        }
        head.resize(head.len() + sent, b'x');
        if chunked && self.end == End::Whole {
            head.extend_from_slice(b"\r\n0\r\n");
            write_fields(&self.trailers, &mut head);
            head.extend_from_slice(b"\r\n");
        }
        let mut tls = target.connect(b"http/1.1", self.named.then_some(&target.attacker)).await?;
        // A server that rejects the request early closes before its end.
        let written = async {
            tls.write_all(&head).await?;
            tls.flush().await
        };
        let written = written.await;
        if self.end == End::Reset {
            bail!("closed");
        }
        let mut response = Vec::new();
        while !response.windows(4).any(|four| four == b"\r\n\r\n") {
            if tls.read_buf(&mut response).await? == 0 {
                written?;
                bail!("closed by the proxy");
            }
        }
        let status = response.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
        status.context("no status")
    }
}

fn map(fields: &[(String, Vec<u8>)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        // HTTP/2 accepts more names than HTTP/1.1.
        let name = HeaderName::from_lowercase(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            // A map has a maximum number of names; further ones are not needed.
            let _unimportant = map.try_append(name, value);
        }
    }
    map
}

fn write_fields(fields: &[(String, Vec<u8>)], out: &mut Vec<u8>) {
    for (name, value) in fields {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// Generates the request of this seed.
#[must_use]
pub fn generated(seed: u64) -> Shape {
    let mut rng = Rng::new(seed);
    let wire = rng.one_of(&[Wire::Http1, Wire::Http1, Wire::Http2, Wire::Http2, Wire::Plain]);
    let mut path = rng.one_of(PATHS).to_owned();
    if rng.in_hundred(15) {
        path.push_str(if path.contains('?') { "&" } else { "?" });
        path.push_str(&rng.one_of(&["x", "%41", "{}", "[]", "&"]).repeat(rng.below(20_000)));
    }
    let fields = if rng.in_hundred(70) { fields(&mut rng, 1 << 20) } else { Vec::new() };
    let method = if rng.in_hundred(60) { "GET" } else { rng.one_of(METHODS) };
    let with_body = rng.in_hundred(40);
    let body = if with_body { 1 + rng.below(60_000) } else { 0 };
    let trailers = if with_body && rng.in_hundred(50) { fields_of_a_trailer(&mut rng) } else { Vec::new() };
    Shape {
        wire,
        named: rng.in_hundred(50),
        method: if rng.in_hundred(3) { "M".repeat(1 + rng.below(30_000)) } else { method.to_owned() },
        path,
        fields,
        body,
        trailers,
        end: if rng.in_hundred(25) { End::Reset } else { End::Whole },
    }
}

fn fields_of_a_trailer(rng: &mut Rng) -> Vec<(String, Vec<u8>)> {
    fields(rng, 1 << 19)
}

/// Generates fields with at most `most` bytes in total.
fn fields(rng: &mut Rng, most: usize) -> Vec<(String, Vec<u8>)> {
    let mut left = rng.one_of(&[2_000, 20_000, 70_000, 300_000, most]);
    let mut fields = Vec::new();
    for number in 0..1 + rng.below(200) {
        let name = if rng.in_hundred(40) {
            rng.one_of(NAMES).to_owned()
        } else {
            format!("{}{number}", rng.one_of(&["x-", "x_", "!#$%&'*+-.^_`|~", "x\"", "x-forwarded-"]))
        };
        let length = (1 << rng.below(20)).min(left);
        let piece = rng.one_of(PIECES);
        let value = piece.repeat(length / piece.len());
        left = left.saturating_sub(name.len() + value.len() + 32);
        fields.push((name, value));
        if left == 0 {
            break;
        }
    }
    // Repeated fields become references to the dynamic table.
    if rng.in_hundred(20)
        && let Some(last) = fields.last().cloned()
    {
        for _ in 0..rng.below(2_000) {
            if left < last.1.len() + 64 {
                break;
            }
            left -= last.1.len() + 64;
            fields.push(last.clone());
        }
    }
    fields
}

const PATHS: &[&str] = &[
    "/healthz",
    "/version",
    "/api",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1",
    "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
    "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests",
    "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests",
    "/openapi/v2?timeout=1s",
    "/api/v1/namespaces/default/services/kubernetes/proxy/",
    "/api//v1/../namespaces",
    "/%2e%2e/%00",
    "/{\"json\"}",
    "/\u{e4}\u{f6}\u{fc}",
    "*",
];

const METHODS: &[&str] = &[
    "GET",
    "HEAD",
    "OPTIONS",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "!#$%&'*+-.^_`|~",
];

const NAMES: &[&str] = &[
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "impersonate-user",
    "impersonate-group",
    "if-none-match",
    "keep-alive",
    "proxy-connection",
    "sec-websocket-protocol",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-remote-user",
    "x-stream-protocol-version",
];

const PIECES: &[&[u8]] = &[
    b"\\",
    b"a",
    b"0",
    b"<>",
    b"\xff",
    b"\xc3\xa4",
    b"\t ",
    b"upgrade",
    b"close, ",
    b"trailers",
    b"100-continue",
    b"chunked",
    b"gzip, ",
    b"websocket",
    b"Bearer ",
];
