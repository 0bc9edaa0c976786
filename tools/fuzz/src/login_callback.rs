//! The callback listener of `pinniped login oidc`, to which every program on the machine and every
//! web page can send requests. Input: the bytes of one connection. The issuer of this target
//! redeems codes that start with `good`.

use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use pinniped_cli::login::oidc::callback::{Callback, Redeem, Redeemed};
use pinniped_cli::printer::{Level, Printer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use url::Url;

use crate::input;

/// The state of the login.
const STATE: &str = "0123456789abcdef";
/// The capacity of a connection in bytes, so that neither side waits for the other.
const CAPACITY: usize = 1 << 20;
/// Some headers of every response.
const SECURITY: [&str; 3] =
    ["x-frame-options: DENY", "referrer-policy: no-referrer", "content-security-policy: default-src 'none'"];
/// The numbers of tags in the content of the pages after a failure and after a success.
const TAGS: [usize; 2] = [11, 21];

static ISSUER: LazyLock<Url> =
    LazyLock::new(|| Url::parse("https://issuer.example.com/path").expect("the address is valid"));

/// The codes that were brought to the issuer.
#[derive(Default)]
struct Issuer(Mutex<Vec<String>>);

impl Redeem for Issuer {
    type Value = String;

    fn is_state(&self, state: &str) -> bool {
        state == STATE
    }

    async fn redeem(&self, code: &str) -> Result<Redeemed<String>, String> {
        self.0.lock().expect("no other thread panics").push(code.to_owned());
        match code.starts_with("good") {
            true => Ok(Redeemed { user: "<pinny>".to_owned(), value: code.to_owned() }),
            false => Err("no such code".to_owned()),
        }
    }
}

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    for is_supervisor in [false, true] {
        login(data, is_supervisor);
    }
}

fn login(data: &[u8], is_supervisor: bool) {
    let issuer = Issuer::default();
    let printer = Printer::new(Level::Warning);
    let callback = Callback::new(&issuer, &ISSUER, "client", is_supervisor, "/callback", printer);
    let (response, result) = input::block_on(async {
        let (mut client, server) = tokio::io::duplex(CAPACITY);
        let browser = async {
            // The server closes the connection of a request that it cannot read.
            let sent = client.write_all(data).await;
            if sent.is_ok() {
                let _closed = client.shutdown().await;
            }
            let mut response = Vec::new();
            let _ended = client.read_to_end(&mut response).await;
            response
        };
        let ((), response) = tokio::join!(callback.serve_connection(server), browser);
        let result = tokio::time::timeout(Duration::ZERO, callback.result()).await.ok();
        (String::from_utf8_lossy(&response).into_owned(), result)
    });
    let codes = issuer.0.into_inner().expect("no other thread panics");
    assert!(codes.len() <= 1, "one request brings one code: {codes:?}");
    if !codes.is_empty() {
        let text: Vec<u8> = percent_encoding::percent_decode(data).collect();
        // The state may be divided between two chunks.
        let is_chunked = contains(&data.to_ascii_lowercase(), b"chunked");
        let has_state = is_chunked || contains(&text, STATE.as_bytes());
        assert!(has_state, "a code without the state was redeemed");
        let is_method = |name: &[u8]| contains(data, name);
        assert!(is_method(b"GET ") || is_method(b"POST "), "a code of another method was redeemed");
    }
    match &result {
        Some(Ok(value)) => assert!(codes == [value.as_str()] && value.starts_with("good")),
        Some(Err(_)) => {
            assert!(codes.iter().all(|code| !code.starts_with("good")), "a login that succeeded failed");
        }
        None => assert!(codes.is_empty(), "a redeemed code has no result"),
    }
    page(&response, is_supervisor, result.is_some());
}

fn page(response: &str, is_supervisor: bool, is_decided: bool) {
    let response = response.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(response);
    let Some((head, body)) = response.split_once("\r\n\r\n") else {
        assert!(response.is_empty() && !is_decided, "{response:?}");
        return;
    };
    let is_from_parser =
        head.starts_with("HTTP/1.1 4") && body.is_empty() && !head.contains("x-frame-options");
    if is_from_parser {
        assert!(!is_decided, "{head}");
        return;
    }
    for header in SECURITY {
        assert!(head.contains(header), "{head}");
    }
    if is_decided && !is_supervisor {
        let (_, main) = body.split_once("<main").expect("the page has content");
        assert!(TAGS.contains(&main.matches('<').count()), "{main}");
        assert!(main.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')), "{main:?}");
    } else {
        assert!(!head.contains("text/html"), "{head}");
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
