//! URLs, with the parts and the errors that a program with Go 1.26 printed.

use super::*;

#[test]
fn the_parts_are_those_of_go() {
    let url = |scheme: &str, host: &str, path: &str| ParsedUrl {
        scheme: scheme.to_owned(),
        host: host.to_owned(),
        path: path.to_owned(),
        raw_path: path.to_owned(),
        ..ParsedUrl::default()
    };
    let user = |user: &str, url: ParsedUrl| ParsedUrl { user: Some(user.to_owned()), ..url };
    for (text, wanted) in [
        ("", url("", "", "")),
        (
            "HTTPS://Example.com:8443/A%2fb",
            ParsedUrl { raw_path: "/A%2fb".to_owned(), ..url("https", "Example.com:8443", "/A/b") },
        ),
        ("https://[::1]:1", url("https", "[::1]:1", "")),
        ("https://", url("https", "", "")),
        ("https:/x", url("https", "", "/x")),
        ("https:x", ParsedUrl { opaque: "x".to_owned(), ..url("https", "", "") }),
        ("//host/x", url("", "host", "/x")),
        ("///x", url("", "", "///x")),
        ("x/y:z", url("", "", "x/y:z")),
        ("https://a@b@host", user("a@b", url("https", "host", ""))),
        ("https://@host", user("", url("https", "host", ""))),
        ("https://u:%41@host", user("u:%41", url("https", "host", ""))),
        ("*", url("", "", "*")),
        ("https://%C3%BC.example/", url("https", "ü.example", "/")),
        ("https://[fe80::1%25en0]:1/", url("https", "[fe80::1%en0]:1", "/")),
        ("https://[fe80::1%25a%20b]/", url("https", "[fe80::1%a b]", "/")),
        (
            "https://h/p?a=%zz;b#c%20d#e",
            ParsedUrl {
                query: "a=%zz;b".to_owned(),
                fragment: "c d#e".to_owned(),
                raw_fragment: "c%20d#e".to_owned(),
                ..url("https", "h", "/p")
            },
        ),
        ("https://h?", url("https", "h", "")),
    ] {
        assert_eq!(parse(text), Ok(wanted), "{text}");
    }
}

#[test]
fn errors_have_the_texts_of_go() {
    for (text, wanted) in [
        (":foo", r#"parse ":foo": missing protocol scheme"#),
        ("1a:b", r#"parse "1a:b": first path segment in URL cannot contain colon"#),
        ("https://h\u{7f}#f", r#"parse "https://h\x7f": net/url: invalid control character in URL"#),
        ("https://h:x/", r#"parse "https://h:x/": invalid port ":x" after host"#),
        ("https://[::1", r#"parse "https://[::1": missing ']' in host"#),
        ("https://h h", r#"parse "https://h h": invalid character " " in host name"#),
        ("https://%41", r#"parse "https://%41": invalid URL escape "%41""#),
        ("https://ü ser@h", r#"parse "https://ü ser@h": net/url: invalid userinfo"#),
        ("https://u%zz@h", r#"parse "https://u%zz@h": invalid URL escape "%zz""#),
        ("https://h/%2", r#"parse "https://h/%2": invalid URL escape "%2""#),
        ("https://h/%%41", r#"parse "https://h/%%41": invalid URL escape "%%4""#),
        ("https://h/x#%", r#"parse "https://h/x#%": invalid URL escape "%""#),
        ("https://h%20h", r#"parse "https://h%20h": invalid URL escape "%20""#),
        ("https://a[::1]/", r#"parse "https://a[::1]/": invalid IP-literal"#),
        ("https://[1.2.3.4]/", r#"parse "https://[1.2.3.4]/": invalid IP-literal"#),
        ("https://[x]/", r#"parse "https://[x]/": invalid host: ParseAddr("x"): unable to parse IP"#),
        ("https://[::1%en0]/", r#"parse "https://[::1%en0]/": invalid URL escape "%en""#),
        ("https://[fe80::1%25%c3]/", r#"parse "https://[fe80::1%25%c3]/": invalid URL escape "%c3""#),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), wanted, "{text}");
    }
}

#[test]
fn the_target_of_a_request_is_absolute_and_has_no_fragment() {
    for (text, scheme, host, path, query) in [
        ("/x?a#f", "", "", "/x", "a#f"),
        ("/x#f", "", "", "/x#f", ""),
        ("//x", "", "", "//x", ""),
        ("*", "", "", "*", ""),
        ("https://x:1/a b", "https", "x:1", "/a b", ""),
        ("mailto:x@y", "mailto", "", "", ""),
    ] {
        let url = parse_request_uri(text).unwrap();
        let parts = (&*url.scheme, &*url.host, &*url.path, &*url.query);
        assert_eq!(parts, (scheme, host, path, query), "{text}");
    }
    for (text, wanted) in [
        ("", r#"parse "": empty url"#),
        ("x", r#"parse "x": invalid URI for request"#),
        ("1a:b", r#"parse "1a:b": invalid URI for request"#),
        ("https://x#f", r##"parse "https://x#f": invalid character "#" in host name"##),
        ("/%zz#f", r##"parse "/%zz#f": invalid URL escape "%zz""##),
    ] {
        assert_eq!(parse_request_uri(text).unwrap_err().to_string(), wanted, "{text}");
    }
}

#[test]
fn host_and_port_are_split_as_by_go() {
    for (text, hostname, port) in [
        ("https://x", "x", ""),
        ("https://x:", "x", ""),
        ("https://x:80", "x", "80"),
        ("https://[::1]", "::1", ""),
        ("https://[::1]:80", "::1", "80"),
        ("/x", "", ""),
    ] {
        let url = parse(text).unwrap();
        assert_eq!((url.hostname(), url.port()), (hostname, port), "{text}");
    }
}
