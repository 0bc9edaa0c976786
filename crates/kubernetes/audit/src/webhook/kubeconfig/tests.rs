use pinniped_test_support::certs::Authority;

use super::*;

const HEAD: &str = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
                    contexts: [{name: a, context: {cluster: c, user: u}}]\n";

/// Returns a kubeconfig with the fields of a cluster and a user.
fn text(cluster: &str, user: &str) -> String {
    format!("{HEAD}clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n")
}

fn loaded(folder: &Path, text: &str) -> Result<Target, String> {
    let path = folder.join("kubeconfig");
    std::fs::write(&path, text).unwrap();
    load(&path).map_err(|error| {
        let text = error.to_string();
        let prefix = format!("the kubeconfig of the audit webhook {} is invalid: ", path.display());
        text.strip_prefix(&prefix).unwrap_or(&text).to_owned()
    })
}

#[test]
fn a_kubeconfig_has_the_address_the_authorities_and_the_credential() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new("ca").unwrap();
    let client = authority.client("audit", None).unwrap();
    let data = |pem: &str| base64::encode(pem.as_bytes());
    for (name, content) in [
        ("ca.crt", &authority.certificate_pem),
        ("tls.crt", &client.certificate_pem),
        ("tls.key", &client.private_key_pem),
        ("token", &"from-file\n".to_owned()),
    ] {
        std::fs::write(folder.join(name), content).unwrap();
    }
    let roots = Roots::Bundle(CaBundle::from_pem(authority.certificate_pem.as_bytes()).unwrap());

    let target = loaded(folder, &text("server: 'https://h:1/a/b/'", "")).unwrap();
    assert_eq!(target.url.as_str(), "https://h:1/a/b/?timeout=30s");
    assert_eq!((&target.roots, &target.credential), (&Roots::System, &Credential::None));
    assert!(target.certificate.is_none() && target.proxy.is_none());
    // A context without a user.
    let anonymous = text("server: https://h", "").replace(", user: u}}", "}}");
    assert_eq!(loaded(folder, &anonymous).unwrap().url.as_str(), "https://h/?timeout=30s");

    let cluster = format!(
        "server: https://h, certificate-authority-data: {}, certificate-authority: missing, \
         insecure-skip-tls-verify: false, proxy-url: 'http://user:pass@proxy:1', extensions: []",
        data(&authority.certificate_pem)
    );
    let user = format!(
        "client-certificate-data: {}, client-key-data: {}, token: secret",
        data(&client.certificate_pem),
        data(&client.private_key_pem)
    );
    let target = loaded(folder, &text(&cluster, &user)).unwrap();
    assert_eq!(target.roots, roots);
    assert_eq!(target.credential, Credential::Token(Token::new("secret")));
    assert_eq!(target.certificate.as_ref().unwrap().certificate_pem(), client.certificate_pem);
    assert_eq!(target.proxy.as_deref(), Some("http://user:pass@proxy:1"));
    assert!(!format!("{target:?}").contains("pass"), "{target:?}");

    // Relative paths begin at the folder of the kubeconfig.
    let user = "client-certificate: tls.crt, client-key: ./tls.key, tokenFile: token";
    let target = loaded(folder, &text("server: https://h, certificate-authority: ca.crt", user)).unwrap();
    assert_eq!(target.roots, roots);
    assert!(target.certificate.is_some());
    let header = super::super::authorization(&target.credential).unwrap().unwrap();
    assert_eq!(header, "Bearer from-file");
    assert!(header.is_sensitive());
}

#[test]
fn each_problem_names_the_field_and_shows_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    const SERVER: &str = "server: https://h";
    const FORM: &str = "clusters[c].cluster.server: must be a URL of the form https://HOST[:PORT][/PATH]";
    let one = Authority::new("ca").unwrap().client("one", None).unwrap();
    let other = Authority::new("ca").unwrap().client("two", None).unwrap();
    let data = |pem: &str| base64::encode(pem.as_bytes());
    let mismatch = format!(
        "client-certificate-data: {}, client-key-data: {}",
        data(&one.certificate_pem),
        data(&other.private_key_pem)
    );
    let use_instead = "is not supported: use client-certificate and client-key, token, or tokenFile";
    for (text, wanted) in [
        ("{".to_owned(), "the file: is not a kubeconfig: ".to_owned()),
        (String::new(), "current-context: is required".to_owned()),
        ("current-context: b".to_owned(), "current-context: contexts has no entry \"b\": add it, or correct the name".to_owned()),
        (HEAD.to_owned(), "contexts[a].cluster: clusters has no entry \"c\": add it, or correct the name".to_owned()),
        (
            text(SERVER, "").replace("users: [{name: u", "users: [{name: v"),
            "contexts[a].user: users has no entry \"u\": add it, or correct the name".to_owned(),
        ),
        (text("", ""), FORM.to_owned()),
        (text("server: h", ""), FORM.to_owned()),
        (text("server: http://h", ""), FORM.to_owned()),
        (text("server: 'https://user:SECRET@h'", ""), FORM.to_owned()),
        (text("server: 'https://h/?key=SECRET'", ""), FORM.to_owned()),
        (
            text("server: https://h, insecure-skip-tls-verify: true", ""),
            "clusters[c].cluster.insecure-skip-tls-verify: events would be sent to any server: remove it, \
             and set certificate-authority-data"
                .to_owned(),
        ),
        (
            text("server: https://h, tls-server-name: i", ""),
            "clusters[c].cluster.tls-server-name: is not supported".to_owned(),
        ),
        (
            text("server: https://h, certificate-authority-date: i", ""),
            "clusters[c].cluster.certificate-authority-date: is not a field of a kubeconfig".to_owned(),
        ),
        (
            text("server: https://h, certificate-authority-data: '!'", ""),
            "clusters[c].cluster.certificate-authority-data: illegal base64 data at input byte 0".to_owned(),
        ),
        (
            text("server: https://h, certificate-authority-data: YQ==", ""),
            "clusters[c].cluster.certificate-authority-data: no PEM-encoded certificates found".to_owned(),
        ),
        (
            text("server: https://h, certificate-authority: missing.crt", ""),
            format!(
                "clusters[c].cluster.certificate-authority: could not read {}",
                folder.join("missing.crt").display()
            ),
        ),
        (
            text("server: https://h, proxy-url: 'http://user:SECRET@[h'", ""),
            "clusters[c].cluster.proxy-url: ".to_owned(),
        ),
        (text(SERVER, "username: u"), format!("users[u].user.username: {use_instead}")),
        (text(SERVER, "password: SECRET"), format!("users[u].user.password: {use_instead}")),
        (text(SERVER, "exec: {command: a}"), format!("users[u].user.exec: {use_instead}")),
        (text(SERVER, "as: a"), format!("users[u].user.as: {use_instead}")),
        (text(SERVER, "tokens: SECRET"), "users[u].user.tokens: is not a field of a kubeconfig".to_owned()),
        (
            text(SERVER, "token: SECRET, tokenFile: f"),
            "users[u].user.tokenFile: cannot be used together with token".to_owned(),
        ),
        (
            text(SERVER, "token: \"SECRET\\n\""),
            "users[u].user.token: the token of the audit webhook has characters that a header cannot contain: correct it".to_owned(),
        ),
        (
            text(SERVER, "tokenFile: missing"),
            format!("users[u].user.tokenFile: could not read {}", folder.join("missing").display()),
        ),
        (
            text(SERVER, "client-key-data: U0VDUkVU"),
            "users[u].user.client-certificate: is required with client-key".to_owned(),
        ),
        (
            text(SERVER, &format!("client-certificate-data: {}", data(&one.certificate_pem))),
            "users[u].user.client-key: is required with client-certificate".to_owned(),
        ),
        (
            text(SERVER, &mismatch),
            "users[u].user.client-certificate-data: tls: private key does not match public key".to_owned(),
        ),
    ] {
        let problem = loaded(folder, &text).unwrap_err();
        assert!(problem.starts_with(&wanted), "{text}\n{problem}\n{wanted}");
        assert!(!problem.contains("SECRET"), "{problem}");
    }
    let missing = folder.join("none");
    let error = load(&missing).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("could not read the kubeconfig of the audit webhook {}", missing.display())
    );
}
