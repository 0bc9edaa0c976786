//! The page that the browser shows after the user has signed in at the issuer.
//!
//! It does not say that the login is complete, because the cluster can still refuse the token. The
//! terminal shows the result.
//!
//! It needs no script and no other resource, and follows the color scheme of the browser. Text from
//! the provider or from the request is escaped.

use aws_lc_rs::digest::{SHA256, digest};

use pinniped_go_compat::base64 as gobase64;

use crate::printer::printable;

const STYLE: &str = "\
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1c2024;--dim:#5a626b;--line:#d9dde2;--good:#1a7f37;--bad:#b42318}\
@media(prefers-color-scheme:dark){:root{--back:#14171a;--card:#1d2125;--text:#eceff2;--dim:#a5adb6;--line:#353b41;--good:#57c274;--bad:#ff8a80}}\
body{margin:0;min-height:100vh;display:grid;place-items:center;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}\
main{box-sizing:border-box;max-width:34rem;width:calc(100% - 2rem);margin:1rem;padding:2rem;background:var(--card);border:1px solid var(--line);border-radius:.75rem;border-top:.375rem solid var(--good)}\
main.failed{border-top-color:var(--bad)}\
h1{margin:0 0 1rem;font-size:1.5rem;line-height:1.25}\
p{margin:.75rem 0;overflow-wrap:anywhere}\
dl{display:grid;grid-template-columns:auto 1fr;gap:.25rem 1rem;margin:1rem 0}\
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}\
code{display:block;padding:.75rem;border:1px solid var(--line);border-radius:.375rem;font:.875rem/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}";

/// Returns the content security policy: nothing but the style of the page.
pub(super) fn policy() -> String {
    let hash = gobase64::encode(digest(&SHA256, STYLE.as_bytes()).as_ref());
    format!("default-src 'none'; style-src 'sha256-{hash}'; frame-ancestors 'none'")
}

/// Returns the page after the issuer has authenticated the user.
pub(super) fn success(user: &str, issuer: &str, client_id: &str) -> String {
    let user =
        if user.is_empty() { String::new() } else { format!("<dt>User</dt><dd>{}</dd>", escape(user)) };
    document(
        "You are signed in",
        "",
        &format!(
            "<dl>{user}<dt>Provider</dt><dd>{}</dd><dt>Client</dt><dd>{}</dd></dl>\
             <p>Your provider has confirmed your identity. Your terminal shows whether the cluster accepts this \
             login. You can close this tab.</p>",
            escape(issuer),
            escape(client_id)
        ),
    )
}

/// Returns the page after a failure.
pub(super) fn failure(error: &str, remedy: &str) -> String {
    document(
        "The login failed",
        " class=\"failed\"",
        &format!(
            "<p role=\"alert\">{}</p><code>{}</code><p>Your terminal shows the same message.</p>",
            escape(remedy),
            escape(error)
        ),
    )
}

fn document(title: &str, class: &str, content: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<main{class}>\n<h1>{title}</h1>\n{content}\n</main>\n</body>\n</html>\n"
    )
}

/// Returns text for an element of HTML. As in a terminal, it cannot change the order of other text.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped() {
        let hostile = "<script>alert('x')</script>&\"";
        for page in [success(hostile, hostile, hostile), failure(hostile, hostile)] {
            assert!(!page.contains("<script>") && !page.contains("alert('"), "{page}");
            assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"), "{page}");
        }
        assert!(failure("a\u{202e}b\u{1b}", "").contains("a\u{fffd}b\u{fffd}"));
    }

    #[test]
    fn a_page_names_the_user_and_loads_nothing() {
        let page = success("pinny@example.com", "https://issuer", "client");
        for part in
            ["<html lang=\"en\">", "pinny@example.com", "https://issuer", "can close this tab", "<main>"]
        {
            assert!(page.contains(part), "{part}");
        }
        // The cluster has not accepted the token yet.
        assert!(page.contains("<h1>You are signed in</h1>") && !page.contains("logged in"), "{page}");
        assert!(!page.contains("src=") && !page.contains("href=") && !page.contains("url("), "{page}");
        assert!(!success("", "i", "c").contains("<dt>User"));
        assert!(STYLE.is_ascii() && !STYLE.contains('<'));
    }

    #[test]
    fn the_policy_allows_exactly_the_style_of_the_page() {
        let page = success("u", "i", "c");
        let style = page.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        let hash = gobase64::encode(digest(&SHA256, style.as_bytes()).as_ref());
        assert!(policy().contains(&format!("'sha256-{hash}'")));
    }
}
