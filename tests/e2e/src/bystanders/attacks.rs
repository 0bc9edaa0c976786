//! Known attacks: requests that close, or once closed, a shared connection to the API server.

use super::shape::{End, Shape, Wire};

type Field = (String, Vec<u8>);

/// Creates `count` fields with values of `each` bytes.
fn fields(count: usize, each: usize, byte: u8) -> Vec<Field> {
    (0..count).map(|number| (format!("x-{number}"), vec![byte; each])).collect()
}

fn field(name: &str, value: &str) -> Field {
    (name.to_owned(), value.as_bytes().to_vec())
}

/// Returns all known attacks with their names.
#[must_use]
pub fn known() -> Vec<(&'static str, Shape)> {
    let health = || Shape::get("/healthz");
    let login = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
    let post = |path: &str| Shape { method: "POST".to_owned(), body: 1000, ..Shape::get(path) };
    let mut quoted = fields(1, 40_000, b'a');
    quoted.insert(0, field("x\"y", "z"));
    let http1 = |fields: Vec<Field>| Shape { wire: Wire::Http1, fields, ..Shape::get("/healthz") };
    let mut all = vec![
        ("backslashes in many fields", Shape { fields: fields(13, 79_900, b'\\'), ..health() }),
        (
            "backslashes in many fields of a list",
            Shape { fields: fields(13, 79_900, b'\\'), ..Shape::get(login) },
        ),
        ("backslashes in one field", Shape { fields: fields(1, 1_040_000, b'\\'), ..health() }),
        ("bytes above ASCII", Shape { fields: fields(13, 79_900, 0xf9), ..health() }),
        (
            "backslashes that are not coded",
            Shape { wire: Wire::Plain, fields: fields(13, 79_900, b'\\'), ..health() },
        ),
        ("backslashes over HTTP/1.1", http1(fields(13, 79_900, b'\\'))),
        (
            "references to a table",
            Shape { fields: vec![field("x-again", &"a".repeat(3_900)); 262], ..health() },
        ),
        ("many empty fields", Shape { fields: vec![field("x", ""); 31_000], ..health() }),
        ("a name with a quotation mark", Shape { fields: vec![field("x\"y", "z")], ..health() }),
        ("a name with a quotation mark, and much behind it", Shape { fields: quoted.clone(), ..health() }),
        (
            "a name with a quotation mark, and a body",
            Shape { fields: vec![field("x\"y", "z")], body: 26_000, ..health() },
        ),
        (
            "a name with a quotation mark, and a reset",
            Shape { fields: vec![field("x\"y", "z")], body: 26_000, end: End::Reset, ..health() },
        ),
        ("large trailers", Shape { trailers: fields(13, 79_900, b'\\'), ..post(login) }),
        ("trailers with a quotation mark", Shape { trailers: quoted, ..post(login) }),
        (
            "trailers that are none",
            Shape {
                trailers: vec![
                    field("content-length", "5"),
                    field("host", "x"),
                    field("authorization", "Bearer x"),
                ],
                ..post(login)
            },
        ),
        ("chunks with trailers", Shape { wire: Wire::Http1, trailers: fields(3, 100, b'a'), ..post(login) }),
        (
            "chunks with large trailers",
            Shape { wire: Wire::Http1, trailers: fields(13, 79_900, b'\\'), ..post(login) },
        ),
        ("a huge path", Shape::get(&format!("/healthz?{}", "a".repeat(60_000)))),
        ("a huge path of odd bytes", Shape::get(&format!("/{}", "\u{fc}{\"}".repeat(10_000)))),
        ("a body that breaks off", Shape { end: End::Reset, ..post(login) }),
        ("a body that breaks off over HTTP/1.1", Shape { wire: Wire::Http1, end: End::Reset, ..post(login) }),
        ("a length without a body", Shape { fields: vec![field("content-length", "10")], ..health() }),
        ("a length that is too short", Shape { fields: vec![field("content-length", "10")], ..post(login) }),
        ("a length that is too long", Shape { fields: vec![field("content-length", "2000")], ..post(login) }),
        ("te", http1(vec![field("te", "gzip, trailers"), field("connection", "te")])),
        ("two codings", http1(vec![field("transfer-encoding", "gzip, chunked")])),
        (
            "an expectation",
            Shape { wire: Wire::Http1, fields: vec![field("expect", "100-continue")], ..post(login) },
        ),
        ("an upgrade to nothing", http1(vec![field("connection", "upgrade")])),
        (
            "an upgrade to HTTP/2",
            http1(vec![
                field("connection", "upgrade, http2-settings"),
                field("upgrade", "h2c"),
                field("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA"),
            ]),
        ),
        (
            "an upgrade of something short",
            http1(vec![
                field("connection", "upgrade"),
                field("upgrade", "websocket"),
                field("sec-websocket-version", "13"),
                field("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ]),
        ),
    ];
    for method in ["TRACE", "CONNECT", "PRI", "!#$%&'*+-.^_`|~"] {
        all.push(("an odd method", Shape { method: method.to_owned(), ..health() }));
    }
    all.push(("a huge method", Shape { method: "M".repeat(60_000), ..health() }));
    // Authenticated clients have higher limits than anonymous ones.
    let named = all.clone().into_iter().map(|(name, shape)| (name, Shape { named: true, ..shape }));
    all.into_iter().chain(named).collect()
}
