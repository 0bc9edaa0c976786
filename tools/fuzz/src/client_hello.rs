//! The first bytes of a TLS client (the ClientHello), as the gateway parses them. Input: the bytes.

use pinniped_gateway_dataplane::client_hello::{LONGEST, Progress, parse};

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    // The gateway never reads more.
    let data = &data[..data.len().min(LONGEST)];
    let whole = parse(data);
    if let Ok(Progress::Incomplete(wanted)) = &whole {
        assert!(*wanted > data.len() && *wanted <= LONGEST, "{wanted} bytes wanted of {}", data.len());
    }
    // Bytes arrive in pieces: a result for a prefix must also hold for all bytes.
    for part in 1..=8 {
        let end = data.len() * part / 8;
        match parse(&data[..end]) {
            Ok(Progress::Incomplete(wanted)) => {
                let enough = wanted <= data.len();
                assert!(enough || !matches!(whole, Ok(Progress::Complete(_))), "{wanted} were not needed");
            }
            known => assert_eq!(known, whole, "after {end} of {}", data.len()),
        }
    }
    let Ok(Progress::Complete(hello)) = whole else { return };
    if let Some(name) = hello.server_name {
        assert!((1..=255).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase()));
    }
}
