//! Expressions of the Common Expression Language in a real kube-apiserver and in `pinniped-cel`.
//!
//! The API server gets the expressions of `testdata/cel` as claim mappings of its structured
//! authentication configuration, which it reloads, and a scripted provider issues tokens. The test
//! compares which expressions are refused and with which text, the results of the others, and the
//! texts of evaluations that fail. `docs/differences.md` lists the differences.

mod configuration;
mod rows;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Api;
use kube::api::PostParams;
use pinniped_cel::{Budget, CompileError, compile};
use pinniped_go_compat::json::{quote, unquote};
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams, client_of};
use pinniped_test_support::issuer::ScriptedIssuer;
use pinniped_test_support::wait;
use pinniped_test_support::world::World;

use configuration::{Authenticator, Signer, configuration};
use rows::{Row, comparable, environment, result_text, rows};

/// Time limit for the API server to reload its configuration.
const RELOAD: Duration = Duration::from_secs(90);
/// The largest number of authenticators in a configuration.
const MOST_AUTHENTICATORS: usize = 60;

struct Peer {
    control_plane: ControlPlane,
    issuer: ScriptedIssuer,
    signer: Signer,
    file: tempfile::NamedTempFile,
    /// The length of the log before the last change of the configuration.
    log_start: usize,
}

impl Peer {
    async fn start() -> anyhow::Result<Self> {
        let issuer = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await?;
        let signer = Signer::new()?;
        issuer.publish(&signer.key_set());
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), configuration(&issuer, &[])?)?;
        let flag = format!("--authentication-config={}", file.path().display());
        let params = ControlPlaneParams { extra_apiserver_args: vec![flag], ..Default::default() };
        let control_plane = ControlPlane::start(params).await?;
        Ok(Self { control_plane, issuer, signer, file, log_start: 0 })
    }

    fn configure(&mut self, authenticators: &[Authenticator]) -> anyhow::Result<()> {
        self.log_start = self.log()?.len();
        std::fs::write(self.file.path(), configuration(&self.issuer, authenticators)?)?;
        Ok(())
    }

    fn log(&self) -> anyhow::Result<String> {
        let bytes = std::fs::read(self.control_plane.log_file("kube-apiserver"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the errors that the log has since the last change of the configuration.
    fn errors(&self) -> anyhow::Result<Vec<String>> {
        let log = self.log()?;
        let new = log.get(self.log_start..).unwrap_or_default();
        Ok(logged_errors(new))
    }

    /// Waits for an error that contains a text.
    async fn error_with(&self, text: &str) -> anyhow::Result<String> {
        wait::until(RELOAD, format!("an error with {text:?}"), async || {
            self.errors().ok()?.into_iter().find(|error| error.contains(text))
        })
        .await
    }

    /// Sends a token, and returns the extra fields of the user, or `None` for a refused token.
    async fn review(&self, token: &str) -> anyhow::Result<Option<BTreeMap<String, Vec<String>>>> {
        let kubeconfig = tempfile::NamedTempFile::new()?;
        let text = configuration::kubeconfig(&self.control_plane, token);
        std::fs::write(kubeconfig.path(), text)?;
        let reviews: Api<SelfSubjectReview> = Api::all(client_of(kubeconfig.path()).await?);
        match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
            Ok(review) => {
                let user = review.status.and_then(|status| status.user_info).context("no user")?;
                Ok(Some(user.extra.unwrap_or_default()))
            }
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the errors of a log: a Go string literal, or several lines between `<` and ` >`.
fn logged_errors(log: &str) -> Vec<String> {
    let mut errors = Vec::new();
    for (start, _) in log.match_indices(" err=") {
        let rest = &log[start + " err=".len()..];
        if let Some(lines) = rest.strip_prefix("<\n") {
            // The end may not be written yet.
            let Some(end) = lines.find("\n >") else { continue };
            let lines = lines[..end].split('\n').map(|line| line.strip_prefix('\t').unwrap_or(line));
            errors.push(lines.collect::<Vec<&str>>().join("\n"));
        } else {
            errors.extend(first_literal(rest));
        }
    }
    errors
}

/// Returns the Go string literal with which a text begins.
fn first_literal(text: &str) -> Option<String> {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find_map(|(index, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(index)
    })?;
    unquote(&text[..=end])
}

#[tokio::test]
async fn expressions_have_the_results_that_kube_apiserver_has() {
    const TEST: &str = "expressions in a real kube-apiserver";
    let why = "pinniped-cel has the functions and the texts of 1.36";
    if !World::shared().unwrap().control_plane().is_since(36, TEST, why).await.unwrap() {
        return;
    }
    let mut peer = Peer::start().await.unwrap();
    let rows = rows();
    assert!(rows.len() >= 300);
    let mut differences = Vec::new();
    differences.extend(refused_expressions(&mut peer, &rows).await.unwrap());
    differences.extend(results(&mut peer, &rows).await.unwrap());
    differences.extend(failures(&mut peer, &rows).await.unwrap());
    let count = differences.len();
    assert!(differences.is_empty(), "{count} differences:\n{}", differences.join("\n"));
}

/// Compares the errors of expressions that do not compile.
async fn refused_expressions(peer: &mut Peer, rows: &[Row]) -> anyhow::Result<Vec<String>> {
    let refused: Vec<(&Row, CompileError)> = rows
        .iter()
        .filter_map(|row| Some((row, compile(&environment(row.user()), &row.expression).err()?)))
        .collect();
    assert!(refused.len() > 100);
    let mut authenticator = Authenticator::new(&peer.issuer, 0);
    let mut expected = Vec::new();
    for (row, error) in &refused {
        let place = if row.user() {
            authenticator.user_rules.push(row.expression.clone());
            format!("jwt[0].userValidationRules[{}].expression", authenticator.user_rules.len() - 1)
        } else {
            authenticator.extra.push(row.expression.clone());
            format!("jwt[0].claimMappings.extra[{}].valueExpression", authenticator.extra.len() - 1)
        };
        let expected_error = match error {
            CompileError::Literal { .. } => format!("{place}: Internal error: {error}"),
            _ => format!("{place}: Invalid value: {}: {error}", quote(&row.expression)),
        };
        expected.push((row, expected_error));
    }
    peer.configure(&[authenticator])?;
    let reported = peer.error_with("claimMappings.extra").await?;
    let mut differences = Vec::new();
    for (row, expected) in expected {
        if !reported.contains(&expected) {
            let place = expected.split(": ").next().unwrap_or_default();
            let found = reported.find(&format!("{place}: "));
            let found = found.map(|at| reported[at..].chars().take(600).collect::<String>());
            differences
                .push(format!("{}: expected {expected:?}, the API server has {found:?}", row.expression));
        }
    }
    Ok(differences)
}

/// Compares the results of expressions that can be evaluated.
async fn results(peer: &mut Peer, rows: &[Row]) -> anyhow::Result<Vec<String>> {
    let mut authenticator = Authenticator::new(&peer.issuer, 1);
    let claims = peer.signer.claims(&authenticator.issuer, rows::claims());
    let environment = environment(false);
    let mut expected = Vec::new();
    for row in rows.iter().filter(|row| !row.user()) {
        let Ok(program) = compile(&environment, &row.expression) else { continue };
        let wrapped = comparable(&row.expression, program.output_type());
        let Ok(program) = compile(&environment, &wrapped) else { continue };
        let variables = [("claims", rows::object(&claims))];
        if let Ok(value) = program.evaluate(&variables, Budget::default()) {
            expected.push((row, result_text(&value)));
            authenticator.extra.push(wrapped);
        }
    }
    assert!(expected.len() >= 300, "{}", expected.len());
    let token = peer.signer.sign(&claims)?;
    peer.configure(&[authenticator])?;
    let extra = wait::until(RELOAD, "the token to be accepted", async || {
        peer.review(&token).await.ok().flatten().filter(|extra| extra.len() > 100)
    })
    .await
    .with_context(|| {
        format!("errors: {:?}", peer.errors().unwrap_or_default().iter().rev().take(3).collect::<Vec<_>>())
    })?;
    let mut differences = Vec::new();
    for (index, (row, expected)) in expected.into_iter().enumerate() {
        let found = extra.get(&configuration::extra_key(index)).cloned().unwrap_or_default();
        if found != expected {
            let expression = &row.expression;
            differences.push(format!("{expression}: expected {expected:?}, the API server has {found:?}"));
        }
    }
    Ok(differences)
}

/// Compares the errors of evaluations that fail.
async fn failures(peer: &mut Peer, rows: &[Row]) -> anyhow::Result<Vec<String>> {
    let environment = environment(false);
    let failing: Vec<(String, String)> = rows
        .iter()
        .filter(|row| !row.user())
        .filter_map(|row| {
            let program = compile(&environment, &row.expression).ok()?;
            let claims = peer.signer.claims("https://issuer", rows::claims());
            let variables = [("claims", rows::object(&claims))];
            let error = program.evaluate(&variables, Budget::default()).err()?;
            Some((row.expression.clone(), error.to_string()))
        })
        .collect();
    assert!(failing.len() > 60, "{}", failing.len());
    let mut differences = Vec::new();
    for (round, batch) in failing.chunks(MOST_AUTHENTICATORS).enumerate() {
        let mut authenticators = Vec::new();
        for (index, (expression, _)) in batch.iter().enumerate() {
            let mut authenticator = Authenticator::new(&peer.issuer, 100 * (round + 1) + index);
            authenticator.extra.push(expression.clone());
            authenticators.push(authenticator);
        }
        peer.configure(&authenticators)?;
        for (authenticator, (expression, error)) in authenticators.iter().zip(batch) {
            let claims = peer.signer.claims(&authenticator.issuer, rows::claims());
            let token = peer.signer.sign(&claims)?;
            let marker = format!("expression '{expression}' resulted in error: ");
            let found = wait::until(RELOAD, format!("a result of {expression:?}"), async || {
                if peer.review(&token).await.ok()?.is_some() {
                    return Some(None);
                }
                let errors = peer.errors().ok()?;
                errors.into_iter().find(|error| error.contains(&marker)).map(Some)
            })
            .await?;
            let same = found.as_ref().is_some_and(|found| found.contains(&format!("{marker}{error}")));
            if !same {
                differences.push(format!("{expression}: expected {error:?}, the API server has {found:?}"));
            }
        }
    }
    Ok(differences)
}

#[test]
fn errors_are_read_in_both_forms_of_the_log() {
    let log =
        "E1 a.go:1] \"x\" err=\"a \\\"b\\\" \\\\\" x=\"y\"\nE2 a.go:2] \"x\" err=<\n\tone\n\t | two\n >\n";
    assert_eq!(logged_errors(log), [r#"a "b" \"#, "one\n | two"]);
}
