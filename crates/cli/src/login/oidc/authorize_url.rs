//! The address at which the user authorizes the login.

use pinniped_go_compat::url::encode_query;

use super::secrets::LoginSecrets;

/// The parameters of the authorization request (RFC 6749 §4.1.1) that do not depend on the flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuthorizeParams<'a> {
    pub(super) endpoint: &'a str,
    pub(super) client_id: &'a str,
    pub(super) scopes: &'a [String],
    pub(super) secrets: &'a LoginSecrets,
    /// Name and type of the identity provider of a Supervisor.
    pub(super) upstream: Option<(&'a str, &'a str)>,
}

impl AuthorizeParams<'_> {
    /// Returns the address. With `form_post` the provider returns to `redirect_uri` with a POST.
    pub(super) fn url(&self, redirect_uri: &str, form_post: bool) -> String {
        let (challenge, scope) = (self.secrets.challenge(), self.scopes.join(" "));
        let mut pairs = vec![
            ("access_type", "offline"),
            ("client_id", self.client_id),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("nonce", self.secrets.nonce()),
            ("redirect_uri", redirect_uri),
            ("response_type", "code"),
            ("state", self.secrets.state()),
        ];
        if !scope.is_empty() {
            pairs.push(("scope", &scope));
        }
        if let Some((name, type_)) = self.upstream {
            pairs.extend([("pinniped_idp_name", name), ("pinniped_idp_type", type_)]);
        }
        if form_post {
            pairs.push(("response_mode", "form_post"));
        }
        let separator = if self.endpoint.contains('?') { '&' } else { '?' };
        format!("{}{separator}{}", self.endpoint, encode_query(&pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_are_those_of_upstream() {
        let secrets = LoginSecrets::generate().unwrap();
        let scopes = ["groups".to_owned(), "openid".to_owned()];
        let params = AuthorizeParams {
            endpoint: "https://issuer/authorize",
            client_id: "pinniped-cli",
            scopes: &scopes,
            secrets: &secrets,
            upstream: None,
        };
        let (challenge, nonce, state) = (secrets.challenge(), secrets.nonce(), secrets.state());
        assert_eq!(
            params.url("http://127.0.0.1:1/callback", false),
            format!(
                "https://issuer/authorize?access_type=offline&client_id=pinniped-cli&code_challenge={challenge}&code_challenge_method=S256&nonce={nonce}&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback&response_type=code&scope=groups+openid&state={state}"
            )
        );
        let upstream = Some(("some idp", "ldap"));
        let url = AuthorizeParams { endpoint: "https://issuer/a?b=c", upstream, ..params }.url("r", true);
        assert!(url.starts_with("https://issuer/a?b=c&access_type=offline&"), "{url}");
        assert!(
            url.contains(&format!(
                "&nonce={nonce}&pinniped_idp_name=some+idp&pinniped_idp_type=ldap&redirect_uri=r&response_mode=form_post&response_type=code&"
            )),
            "{url}"
        );
    }
}
