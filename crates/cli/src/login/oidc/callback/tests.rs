//! The table of requests and responses, over real connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::printer::Level;

/// Redeems the code `good`, and counts.
#[derive(Default)]
struct Codes {
    redeemed: AtomicUsize,
}

impl Redeem for Codes {
    type Value = String;

    fn is_state(&self, state: &str) -> bool {
        state == "right"
    }

    async fn redeem(&self, code: &str) -> Result<Redeemed<String>, String> {
        self.redeemed.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        match code {
            "good" => Ok(Redeemed { user: "pinny <3".into(), value: "tokens".into() }),
            code => Err(format!("no such code: {code}")),
        }
    }
}

async fn send(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
}

fn post(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /callback HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends the requests, all but the last of which keep the listener waiting. Returns the responses,
/// the result, and the number of redemptions.
async fn run(requests: &[&str], is_supervisor: bool) -> (Vec<String>, Result<String, String>, usize) {
    let codes = Codes::default();
    let issuer = Url::parse("https://issuer.example.com/path").unwrap();
    let printer = Printer::new(Level::Warning);
    let callback = Callback::new(&codes, &issuer, "client", is_supervisor, "/callback", printer);
    let listener = CallbackListener::bind(0).await.unwrap();
    let address = listener.address;
    assert_eq!(listener.redirect_uri("/callback"), format!("http://127.0.0.1:{}/callback", address.port()));
    let client = async {
        let mut responses = Vec::new();
        for request in requests {
            responses.push(send(address, request).await);
        }
        responses
    };
    let (result, responses) = tokio::join!(listener.serve(&callback), client);
    (responses, result, codes.redeemed.load(Ordering::SeqCst))
}

#[tokio::test]
async fn requests_that_are_no_result_keep_the_listener_waiting() {
    let options = "OPTIONS /callback HTTP/1.1\r\nHost: a\r\n\r\n";
    let preflight = "OPTIONS /callback HTTP/1.1\r\nHost: a\r\nOrigin: https://x\r\nAccess-Control-Request-Headers: x-a, x-b\r\n\r\n";
    let put = "PUT /callback HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let last = get("/callback?state=right&code=good");
    let (responses, result, redeemed) =
        run(&[&get("/favicon.ico"), &get("/callback/"), options, preflight, put, &last], true).await;
    assert!(responses[0].starts_with("HTTP/1.1 404 ") && responses[1].starts_with("HTTP/1.1 404 "));
    assert!(responses[2].starts_with("HTTP/1.1 400 "), "{}", responses[2]);
    for line in [
        "HTTP/1.1 204 No Content",
        "access-control-allow-origin: https://issuer.example.com",
        "vary: *",
        "access-control-allow-credentials: false",
        "access-control-allow-methods: GET, POST, OPTIONS",
        "access-control-allow-private-network: true",
        "access-control-allow-headers: x-a, x-b",
    ] {
        assert!(responses[3].lines().any(|found| found == line), "{line} in {}", responses[3]);
    }
    assert!(responses[4].starts_with("HTTP/1.1 405 "), "{}", responses[4]);
    assert!(responses[5].starts_with("HTTP/1.1 200 OK\r\n"), "{}", responses[5]);
    assert!(responses[5].ends_with("\r\n\r\nyou have been logged in and may now close this tab"));
    for line in [
        "content-type: text/plain; charset=utf-8",
        "access-control-allow-origin: https://issuer.example.com",
        "vary: *",
        "content-security-policy: default-src 'none'; frame-ancestors 'none'",
    ] {
        assert!(responses[5].lines().any(|found| found == line), "{line} in {}", responses[5]);
    }
    assert_eq!((result, redeemed), (Ok("tokens".to_owned()), 1));
}

#[tokio::test]
async fn failures_end_the_login_with_the_texts_of_upstream() {
    let large = post(&"a".repeat(1024 * 1024 + 1));
    let latin = "POST /callback?state=right HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n&";
    for (request, status, error, redemptions) in [
        (get("/callback?code=good"), "403 Forbidden", "missing or invalid state parameter", 0),
        (get("/callback?code=good&state=wrong"), "403 Forbidden", "missing or invalid state parameter", 0),
        (post("code=good&state=wrong"), "403 Forbidden", "missing or invalid state parameter", 0),
        (
            get("/callback?state=right&error=access_denied&error_description=not+you"),
            "400 Bad Request",
            "login failed with code \"access_denied\": not you",
            0,
        ),
        (large, "400 Bad Request", "invalid form: http: POST too large", 0),
        (
            get("/callback?state=right&code=bad"),
            "400 Bad Request",
            "could not complete authorization code exchange: no such code: bad",
            1,
        ),
        (
            latin.to_owned(),
            "400 Bad Request",
            "could not complete authorization code exchange: no such code: ",
            1,
        ),
    ] {
        let (responses, result, redeemed) = run(&[&request], true).await;
        let text = status.split_once(' ').unwrap().1;
        assert!(responses[0].starts_with(&format!("HTTP/1.1 {status}\r\n")), "{}", responses[0]);
        assert!(responses[0].ends_with(&format!("\r\n\r\n{text}: {error}\n")), "{}", responses[0]);
        assert_eq!((result, redeemed), (Err(error.to_owned()), redemptions));
    }
}

#[tokio::test]
async fn other_issuers_get_a_page_that_names_the_user() {
    let (responses, result, _) = run(&[&post("state=right&code=good")], false).await;
    assert!(responses[0].contains("content-type: text/html; charset=utf-8\r\n"), "{}", responses[0]);
    assert!(responses[0].contains("pinny &lt;3"), "{}", responses[0]);
    assert!(responses[0].contains("https://issuer.example.com/path"), "{}", responses[0]);
    assert_eq!(result, Ok("tokens".to_owned()));
    let (responses, result, _) = run(&[&get("/callback?state=right&error=%3Cb%3E")], false).await;
    assert!(responses[0].starts_with("HTTP/1.1 400 "), "{}", responses[0]);
    assert!(responses[0].contains("&lt;b&gt;") && !responses[0].contains("<b>"), "{}", responses[0]);
    assert_eq!(result, Err("login failed with code \"<b>\"".to_owned()));
}

#[tokio::test]
async fn a_tab_that_is_closed_before_it_has_its_page_logs_in() {
    let codes = Codes::default();
    let issuer = Url::parse("https://issuer.example.com").unwrap();
    let printer = Printer::new(Level::Warning);
    let callback = Callback::new(&codes, &issuer, "client", false, "/callback", printer);
    let listener = CallbackListener::bind(0).await.unwrap();
    let address = listener.address;
    let client = async {
        // Connections that a browser opens in advance, and a request that it does not complete.
        drop(TcpStream::connect(address).await.unwrap());
        for request in ["GET /callback?state=ri", &get("/callback?state=right&code=good")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
        }
    };
    let both = async { tokio::join!(listener.serve(&callback), client).0 };
    let result = tokio::time::timeout(Duration::from_secs(20), both).await.expect("a result");
    assert_eq!((result, codes.redeemed.load(Ordering::SeqCst)), (Ok("tokens".to_owned()), 1));
}

#[tokio::test]
async fn two_tabs_redeem_one_code() {
    let codes = Codes::default();
    let issuer = Url::parse("https://issuer.example.com").unwrap();
    let callback = Callback::new(&codes, &issuer, "client", true, "/callback", Printer::new(Level::Warning));
    let listener = CallbackListener::bind(0).await.unwrap();
    let address = listener.address;
    let request = get("/callback?state=right&code=good");
    // Both connections are open before either request is complete.
    let mut tabs = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    let clients = async {
        let mut texts = [String::new(), String::new()];
        for tab in &mut tabs {
            tab.write_all(request.as_bytes()).await.unwrap();
        }
        for (tab, text) in tabs.iter_mut().zip(&mut texts) {
            tab.read_to_string(text).await.unwrap();
        }
        texts
    };
    let (result, texts) = tokio::join!(listener.serve(&callback), clients);
    assert!(texts.iter().all(|text| text.starts_with("HTTP/1.1 200 ")), "{texts:?}");
    assert_eq!((result, codes.redeemed.load(Ordering::SeqCst)), (Ok("tokens".to_owned()), 1));
}

#[tokio::test]
async fn a_port_in_use_is_an_error() {
    let first = CallbackListener::bind(0).await.unwrap();
    let error = CallbackListener::bind(first.address.port()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

/// The head of a request whose body is longer than what arrives.
const LONG_FORM: &str = "POST /callback HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\n";

/// Serves one connection, over which a part of a request arrives every four seconds. Returns what
/// the client has received when the connection is closed.
async fn serve_slow_client<R: Redeem>(callback: &Callback<'_, R>, parts: &[&str]) -> String {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let (mut receive, mut send) = tokio::io::split(&mut client);
    let send = async {
        for part in parts {
            // The connection may be closed.
            let _ = send.write_all(part.as_bytes()).await;
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        std::future::pending::<()>().await;
    };
    let receive = async {
        let mut response = String::new();
        receive.read_to_string(&mut response).await.unwrap();
        response
    };
    let exchange = async {
        tokio::select! {
            ((), response) = async { tokio::join!(callback.serve_connection(server), receive) } => response,
            () = send => String::new(),
        }
    };
    tokio::time::timeout(REQUEST_TIMEOUT * 10, exchange).await.expect("the connection stays open")
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_complete_in_ten_seconds_does_not_end_the_login() {
    let (head, rest) = LONG_FORM.split_at(30);
    for (parts, status) in [
        // No body, a slow body, a slow head with a slow body, a slow head.
        (&[LONG_FORM][..], "HTTP/1.1 408 "),
        (&[LONG_FORM, "state=right", "&code=good", "&a=", "b", "c"], "HTTP/1.1 408 "),
        (&[head, rest, "state=right", "&code=good", "&a=", "b"], "HTTP/1.1 408 "),
        (&["GET ", "/call", "back", "?state", "=right", "&code"], ""),
    ] {
        let codes = Codes::default();
        let issuer = Url::parse("https://issuer.example.com").unwrap();
        let printer = Printer::new(Level::Warning);
        let callback = Callback::new(&codes, &issuer, "client", false, "/callback", printer);
        let begin = Instant::now();
        let response = serve_slow_client(&callback, parts).await;
        assert!(response.starts_with(status), "{parts:?}: {response}");
        assert_eq!(begin.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs(), "{parts:?}");
        assert_eq!(codes.redeemed.load(Ordering::SeqCst), 0);

        // The browser brings the code.
        let response = serve_slow_client(&callback, &[&get("/callback?state=right&code=good")]).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert_eq!(callback.result().await, Ok("tokens".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_redemption_may_take_longer_than_a_request() {
    struct Slow;
    impl Redeem for Slow {
        type Value = ();

        fn is_state(&self, _: &str) -> bool {
            true
        }

        async fn redeem(&self, _: &str) -> Result<Redeemed<()>, String> {
            tokio::time::sleep(REQUEST_TIMEOUT * 3).await;
            Ok(Redeemed { user: String::new(), value: () })
        }
    }
    let issuer = Url::parse("https://issuer.example.com").unwrap();
    let callback = Callback::new(&Slow, &issuer, "client", true, "/callback", Printer::new(Level::Warning));
    let response = serve_slow_client(&callback, &[&post("state=right&code=good")]).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(callback.result().await, Ok(()));
}
