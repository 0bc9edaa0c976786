use super::*;

fn is_proxied(environment: &ProxyEnvironment, url: &str) -> bool {
    environment.proxy_for(&Url::parse(url).unwrap()).unwrap().is_some()
}

/// The results are those of `httpproxy.Config.ProxyFunc` in golang.org/x/net v0.51.0.
#[test]
fn no_proxy_entries_match_as_in_go() {
    for (entry, url, exempt) in [
        // Without any entry.
        ("", "https://example.com", false),
        ("", "https://localhost:8443", true),
        ("", "https://localhost.", false),
        ("", "https://a.localhost", false),
        ("", "https://127.0.0.1", true),
        ("", "https://127.1.2.3", true),
        ("", "https://[::1]", true),
        ("", "https://[::ffff:127.0.0.1]", true),
        // Everything.
        ("*", "https://example.com", true),
        ("*", "https://10.1.2.3", true),
        ("a.example,*", "https://example.com", true),
        ("*:443", "https://example.com", false),
        // Names.
        ("example.com", "https://example.com", true),
        ("EXAMPLE.com", "https://Example.COM", true),
        ("example.com", "https://a.example.com", true),
        ("example.com", "https://badexample.com", false),
        ("example.com", "https://example.com.", false),
        ("example.com.", "https://example.com", false),
        (".example.com", "https://example.com", false),
        (".example.com", "https://a.example.com", true),
        ("*.example.com", "https://example.com", false),
        ("*.example.com", "https://a.example.com", true),
        ("*example.com", "https://a.example.com", false),
        ("bücher.example", "https://xn--bcher-kva.example", true),
        ("xn--bcher-kva.example", "https://bücher.example", true),
        (" a.example , b.example ", "https://b.example", true),
        (",,", "https://example.com", false),
        (".svc,.cluster.local", "https://webhook.ns.svc/authenticate", true),
        // Names with ports.
        ("example.com:8443", "https://example.com", false),
        ("example.com:8443", "https://a.example.com:8443", true),
        ("example.com:443", "https://example.com", true),
        (".example.com:443", "https://a.example.com", true),
        ("example.com:", "https://example.com", true),
        ("example.com:https", "https://example.com", false),
        ("example.com:0443", "https://example.com", false),
        (":443", "https://example.com", false),
        // Addresses.
        ("10.1.2.3", "https://10.1.2.3:99", true),
        ("10.1.2.3", "https://10.1.2.4", false),
        ("10.1.2.3:443", "https://10.1.2.3", true),
        ("10.1.2.3:443", "https://10.1.2.3:99", false),
        ("fd00::1", "https://[fd00::1]", true),
        ("[fd00::1]", "https://[fd00::1]", false),
        ("[fd00::1]:443", "https://[fd00::1]", true),
        ("[fd00::1]:99", "https://[fd00::1]", false),
        ("::ffff:10.1.2.3", "https://10.1.2.3", true),
        ("10.1.2.3", "https://[::ffff:10.1.2.3]", true),
        ("1.2.3", "https://0.1.2.3", false),
        // Networks.
        ("10.0.0.0/8", "https://10.1.2.3", true),
        ("10.9.9.9/8", "https://10.1.2.3:99", true),
        ("10.0.0.0/8", "https://11.1.2.3", false),
        ("10.0.0.0/8", "https://[::ffff:10.1.2.3]", true),
        ("10.0.0.0/33", "https://10.1.2.3", false),
        ("10.0.0.0/+8", "https://10.1.2.3", false),
        ("10.0.0.0/8:443", "https://10.1.2.3", false),
        ("0.0.0.0/0", "https://11.1.2.3", true),
        ("0.0.0.0/0", "https://[fd00::1]", false),
        ("10.1.2.3/32", "https://10.1.2.3", true),
        ("fd00::/8", "https://[fd00::1]", true),
        ("fd00::/8", "https://[fe00::1]", false),
        ("::/0", "https://10.1.2.3", false),
        ("::ffff:10.0.0.0/104", "https://10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "https://11.1.2.3", false),
    ] {
        let environment = ProxyEnvironment::new("http://proxy.example:3128", entry);
        assert_eq!(!is_proxied(&environment, url), exempt, "{entry:?} {url}");
    }
}

#[test]
fn each_scheme_has_its_own_proxy_and_upper_case_names_take_precedence() {
    let environment = |variables: &[(&str, &str)]| {
        let variables: std::collections::HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ProxyEnvironment::from_variables(|name| variables.get(name).cloned())
    };
    let proxy = |variables: &[(&str, &str)], url: &str| {
        let proxy = environment(variables).proxy_for(&Url::parse(url).unwrap());
        proxy.map(|proxy| proxy.map(|proxy| format!("{proxy:?}")))
    };
    let named = |name: &str| Ok(Some(format!("Proxy({name:?})")));
    for (variables, url, expected) in [
        (&[][..], "https://a.example", Ok(None)),
        (&[("HTTPS_PROXY", "s")], "https://a.example", named("s")),
        (&[("https_proxy", "s")], "https://a.example", named("s")),
        (&[("HTTPS_PROXY", "upper"), ("https_proxy", "lower")], "https://a.example", named("upper")),
        (&[("HTTPS_PROXY", ""), ("https_proxy", "lower")], "https://a.example", named("lower")),
        (&[("HTTPS_PROXY", "s")], "http://a.example", Ok(None)),
        (&[("HTTP_PROXY", "p")], "http://a.example", named("p")),
        (&[("HTTP_PROXY", "p")], "https://a.example", Ok(None)),
        (&[("ALL_PROXY", "all")], "https://a.example", Ok(None)),
        (
            &[("HTTP_PROXY", "p"), ("REQUEST_METHOD", "GET")],
            "http://a.example",
            Err(ProxyEnvironmentError::Cgi),
        ),
        (&[("HTTPS_PROXY", "s"), ("REQUEST_METHOD", "GET")], "https://a.example", named("s")),
        (&[("HTTPS_PROXY", "s"), ("NO_PROXY", "a.example")], "https://a.example", Ok(None)),
        (
            &[("HTTPS_PROXY", "s"), ("NO_PROXY", "x"), ("no_proxy", "a.example")],
            "https://a.example",
            named("s"),
        ),
    ] {
        assert_eq!(proxy(variables, url), expected, "{variables:?} {url}");
    }
}

#[test]
fn proxy_addresses_without_a_scheme_use_http() {
    for (value, expected) in [
        ("http://proxy.example:3128", "http://proxy.example:3128"),
        ("proxy.example:3128", "http://proxy.example:3128"),
        ("10.0.0.1:3128", "http://10.0.0.1:3128"),
        ("proxy.example", "http://proxy.example"),
        ("socks5://proxy.example:1080", "socks5://proxy.example:1080"),
    ] {
        let environment = ProxyEnvironment::new(value, "");
        let proxy = environment.proxy_for(&Url::parse("https://example.com").unwrap()).unwrap();
        assert_eq!(proxy, Some(Proxy::parse(expected).unwrap()), "{value}");
    }
}

/// Go tries to resolve the host `http:` in this case.
#[test]
fn an_invalid_proxy_address_is_an_error_only_for_endpoints_that_use_it() {
    let environment = ProxyEnvironment::new("http://user:secret@[bad", "example.com");
    assert!(environment.proxy_for(&Url::parse("https://example.com").unwrap()).unwrap().is_none());
    let error = environment.proxy_for(&Url::parse("https://example.org").unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "invalid proxy address: invalid IPv6 address");
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
}

#[test]
fn debug_prints_no_password() {
    let environment = ProxyEnvironment::new("http://user:secret@proxy", "");
    assert!(!format!("{environment:?}").contains("secret"));
}
