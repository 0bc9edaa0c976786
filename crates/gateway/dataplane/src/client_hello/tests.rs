use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::*;

/// Returns a complete handshake message with these extensions.
fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0]); // session id
    body.extend([0, 2, 0x13, 1]); // suites
    body.extend([1, 0]); // compression
    let mut list = Vec::new();
    for (kind, content) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend(vector16(content));
    }
    body.extend(vector16(&list));
    let mut message = vec![CLIENT_HELLO, 0];
    message.extend(vector16(&body));
    message
}

fn vector16(content: &[u8]) -> Vec<u8> {
    let mut vector = u16::try_from(content.len()).unwrap().to_be_bytes().to_vec();
    vector.extend(content);
    vector
}

fn sni(names: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
    let mut list = Vec::new();
    for (kind, name) in names {
        list.push(*kind);
        list.extend(vector16(name));
    }
    (SERVER_NAME, vector16(&list))
}

/// Splits the message into records of at most this many bytes.
fn records(message: &[u8], most: usize) -> Vec<u8> {
    message.chunks(most).flat_map(|part| [vec![HANDSHAKE, 3, 1], vector16(part)].concat()).collect()
}

fn one_record(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    records(&message(extensions), LONGEST_RECORD)
}

fn complete(bytes: &[u8]) -> ClientHello {
    match parse(bytes) {
        Ok(Progress::Complete(hello)) => hello,
        other => panic!("{other:?}"),
    }
}

/// Returns the ClientHello of rustls, with a post-quantum key share.
fn real(name: &str, alpn: &[&[u8]]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_client_hello_of_rustls_with_a_post_quantum_key_share_is_parsed() {
    let bytes = real("Impersonation-Proxy-mTLS.local", &[b"h2", b"http/1.1"]);
    assert!(bytes.len() > 1400, "{} bytes fit one packet: no post-quantum share in it", bytes.len());
    let hello = complete(&bytes);
    assert_eq!(hello.server_name.as_deref(), Some("impersonation-proxy-mtls.local"));
    assert_eq!(hello.alpn, [Box::from(&b"h2"[..]), Box::from(&b"http/1.1"[..])]);
    assert_eq!(hello.highest_version, 0x0304);
    assert_eq!(complete(&real("127.0.0.1", &[])).server_name, None);
}

#[test]
fn every_prefix_of_a_client_hello_is_incomplete_and_requests_no_more_than_its_length() {
    let whole = real("a.example", &[b"h2"]);
    for most in [1, 2, 7, 100, LONGEST_RECORD] {
        let bytes = records(&whole[RECORD_HEADER..], most);
        let wanted = complete(&bytes);
        for end in 0..bytes.len() {
            match parse(&bytes[..end]) {
                Ok(Progress::Incomplete(needed)) => {
                    assert!(
                        end < needed && needed <= bytes.len(),
                        "{needed} after {end} of {}, {most}",
                        bytes.len()
                    );
                }
                other => panic!("{other:?} after {end} of {}, records of {most}", bytes.len()),
            }
        }
        assert_eq!(complete(&bytes), wanted, "records of {most}");
        // The parser ignores bytes after the ClientHello, such as early data or a second message in
        // the same record.
        assert_eq!(complete(&[bytes, b"anything".to_vec()].concat()), wanted);
    }
}

#[test]
fn a_client_hello_may_have_no_extensions_and_no_server_name() {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2f, 1, 0]);
    let mut bytes = vec![CLIENT_HELLO, 0];
    bytes.extend(vector16(&body));
    let hello = complete(&records(&bytes, 1000));
    assert_eq!(hello, ClientHello { highest_version: 0x0303, ..ClientHello::default() });
    assert_eq!(complete(&one_record(&[])).server_name, None);
    assert_eq!(complete(&one_record(&[sni(&[])])).server_name, None);
    assert_eq!(complete(&one_record(&[sni(&[(9, b"of another kind")])])).server_name, None);
}

#[test]
fn server_names_are_lowercased_and_invalid_ones_refused() {
    let named = |name: &[u8]| parse(&one_record(&[sni(&[(HOST_NAME, name)])]));
    let Ok(Progress::Complete(hello)) = named(b"WWW.Example.COM") else { panic!("complete") };
    assert_eq!(hello.server_name.as_deref(), Some("www.example.com"));
    let long = [b'a'; LONGEST_NAME + 1];
    let bad: [&[u8]; 5] = [b"", b"a b", b"a\0b", "\u{e4}.example".as_bytes(), &long];
    for name in bad {
        assert_eq!(named(name), Err(ClientHelloError::BadServerName), "{name:?}");
    }
    let twice = sni(&[(HOST_NAME, b"a"), (HOST_NAME, b"b")]);
    assert_eq!(parse(&one_record(&[twice])), Err(ClientHelloError::BadServerName));
    let again = [sni(&[(HOST_NAME, b"a")]), sni(&[(HOST_NAME, b"b")])];
    assert_eq!(parse(&one_record(&again)), Err(ClientHelloError::BadServerName));
}

#[test]
fn grease_versions_are_ignored() {
    let versions = (SUPPORTED_VERSIONS, vec![6, 0x5a, 0x5a, 3, 4, 3, 3]);
    assert_eq!(complete(&one_record(&[versions])).highest_version, 0x0304);
    let grease = (SUPPORTED_VERSIONS, vec![2, 0xfa, 0xfa]);
    assert_eq!(complete(&one_record(&[grease])).highest_version, 0x0303);
}

#[test]
fn bytes_that_are_not_a_client_hello_are_refused_as_early_as_possible() {
    let table: &[(&str, &[u8], Result<Progress, ClientHelloError>)] = &[
        ("nothing yet", b"", Ok(Progress::Incomplete(6))),
        ("plain HTTP", b"GET / HTTP/1.1\r\n", Err(ClientHelloError::PlainHttp)),
        ("its first letters", b"GE", Ok(Progress::Incomplete(4))),
        ("of two methods", b"P", Ok(Progress::Incomplete(5))),
        ("HTTP/2 without TLS", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Err(ClientHelloError::PlainHttp)),
        ("another protocol", b"SSH-2.0-x", Err(ClientHelloError::NotTls)),
        ("SSL 2", &[0x80, 0x2e, 1, 0, 2], Err(ClientHelloError::NotTls)),
        ("an alert", &[21, 3, 3, 0, 2, 2, 40], Err(ClientHelloError::NotTls)),
        ("a record of no version", &[22, 4], Err(ClientHelloError::NotTls)),
        ("an empty record", &[22, 3, 1, 0, 0], Err(ClientHelloError::Malformed)),
        ("a record too long", &[22, 3, 1, 0x40, 1], Err(ClientHelloError::Malformed)),
        ("a ServerHello", &[22, 3, 3, 0, 100, 2], Err(ClientHelloError::NotClientHello)),
        ("a hello of 16 MiB", &[22, 3, 1, 2, 0, 1, 0xff, 0xff, 0xff], Err(ClientHelloError::TooLong)),
        ("a second record of another kind", &[22, 3, 1, 0, 1, 1, 23], Err(ClientHelloError::NotClientHello)),
    ];
    for (name, bytes, wanted) in table {
        assert_eq!(parse(bytes), *wanted, "{name}");
    }
}

#[test]
fn a_long_client_hello_in_tiny_records_is_refused_at_the_size_limit() {
    let padding = (0xfafa, vec![0; 8000]);
    let bytes = records(&message(&[padding]), 1);
    assert_eq!(parse(&bytes), Err(ClientHelloError::TooLong));
    // The parser also refuses a prefix when the announced length exceeds the limit.
    let within = (0..=LONGEST).find(|end| parse(&bytes[..*end]).is_err()).unwrap();
    assert!(within <= LONGEST);
}

#[test]
fn wrong_lengths_are_malformed_and_never_panic() {
    let good = message(&[sni(&[(HOST_NAME, b"a.example")]), (ALPN, vec![0, 3, 2, b'h', b'2'])]);
    // Sets every byte to each value that could be a wrong length.
    for at in MESSAGE_HEADER..good.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            let _no_panic = parse(&records(&bad, LONGEST_RECORD));
        }
    }
    let mut short = good;
    let length = u16::try_from(short.len() - MESSAGE_HEADER - 1).unwrap().to_be_bytes();
    short[2..4].copy_from_slice(&length);
    assert_eq!(parse(&records(&short, LONGEST_RECORD)), Err(ClientHelloError::Malformed));
}
