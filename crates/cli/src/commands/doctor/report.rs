//! The report of `pinniped doctor`: findings with their causes, root causes first.

use serde::Serialize;

use super::debug_state::{self, PodState};
use super::finding::{Check, Checked, Finding};
use crate::printer::printable_line;
use crate::printer::style::{Color, Mark, Text};

/// A finding with its cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    /// The check.
    check: Check,
    /// The result.
    result: CheckResult,
    /// The problem, or the subject of the check.
    message: String,
    /// The reason why the check was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The remedy of a problem or a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// The problem that explains this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    consequence_of: Option<String>,
}

/// The result of a check. The order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    Problem,
    Warning,
    Skipped,
    Ok,
}

/// All findings, in the order in which they are printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Whether there is no problem.
    healthy: bool,
    /// The number of problems that are no consequence of another one.
    problems: usize,
    /// The findings.
    findings: Vec<Entry>,
    /// The state of each pod, if the user requests it.
    #[serde(skip_serializing_if = "Option::is_none")]
    debug_state: Option<Vec<PodState>>,
}

/// The relation between checks: which failed checks explain the failure of another one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relations {
    /// Whether the kubeconfig leads to the impersonation proxy, which then needs a Concierge that
    /// works.
    pub(super) through_proxy: bool,
    /// Whether the pods of the Concierge that are not ready explain other problems: no pod is
    /// ready, or the API is not available. Otherwise the other pods do the work.
    pub(super) pods_explain: bool,
    /// The place at which the login failed, if it did.
    pub(super) login_failed: LoginFailed,
}

/// The place at which a login failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LoginFailed {
    /// At the host of the cluster, or at an unknown one.
    #[default]
    AtCluster,
    /// At the Concierge, which has another host than the cluster.
    AtConcierge,
    /// At the issuer, which has another host than the cluster.
    AtIssuer,
    /// On this machine, before any request.
    OnThisMachine,
}

impl Relations {
    /// Returns the checks that explain a failure of `check`, most specific first.
    fn causes(self, check: Check) -> &'static [Check] {
        use Check::{
            AnyStrategy, Api, Authenticator, Certificate, Clock, Connection, Endpoint, Installation, Issuer,
            Keyring, Kubeconfig, Login, Name, Plugin, Pods, ProxyEnvironment, Secret, Services, Strategies,
            Webhook, WhoAmI,
        };
        match check {
            Login if self.login_failed == LoginFailed::OnThisMachine => &[Plugin, Keyring],
            Login if self.login_failed == LoginFailed::AtIssuer => &[Plugin, Issuer, ProxyEnvironment, Clock],
            Login if self.login_failed == LoginFailed::AtConcierge => &[
                Plugin,
                ProxyEnvironment,
                Clock,
                Installation,
                Pods,
                Api,
                Authenticator,
                Webhook,
                AnyStrategy,
                Endpoint,
            ],
            Connection if self.through_proxy => &[Name, ProxyEnvironment, Pods, Services, Strategies],
            // The kubeconfig may lead to another address than that of the proxy.
            Connection => &[Name, ProxyEnvironment, Kubeconfig],
            Certificate if self.through_proxy => &[Clock, Kubeconfig, Secret, Strategies],
            Certificate => &[Clock],
            Api | Strategies => &[Pods],
            AnyStrategy => &[Pods, Strategies],
            Authenticator | Services => &[Pods],
            Endpoint => &[Pods, Services, Secret, Strategies],
            Login => &[
                Plugin,
                Issuer,
                Name,
                ProxyEnvironment,
                Connection,
                Clock,
                Certificate,
                Installation,
                Pods,
                Api,
                Authenticator,
                Webhook,
                AnyStrategy,
                Kubeconfig,
                Endpoint,
            ],
            WhoAmI => &[
                Name,
                ProxyEnvironment,
                Connection,
                Clock,
                Certificate,
                Installation,
                Pods,
                Api,
                Kubeconfig,
                Login,
            ],
            _ => &[],
        }
    }

    /// Returns the text of the root cause of a failed `check`, if another failed check explains it.
    fn root_cause(self, check: Check, problems: &[(Check, &str)]) -> Option<String> {
        let mut root = None;
        let mut here = check;
        // No check is a cause of itself, directly or through others (a test checks this), so this
        // ends; the limit makes it certain.
        for _ in 0..problems.len() {
            let causes = self.causes(here).iter().filter(|cause| self.pods_explain || **cause != Check::Pods);
            let found = causes.filter_map(|cause| problems.iter().find(|(failed, _)| failed == cause)).next();
            let Some((cause, text)) = found else { break };
            (here, root) = (*cause, Some((*text).to_owned()));
        }
        root
    }
}

impl Report {
    /// Sorts the findings: root causes, their consequences, warnings, skipped checks, and
    /// successful ones.
    pub(super) fn new(findings: &[Checked], relations: Relations) -> Self {
        let problems: Vec<(Check, &str)> = findings
            .iter()
            .filter_map(|(check, finding)| match finding {
                Finding::Problem { what, .. } => Some((*check, what.as_str())),
                Finding::Fine(_) | Finding::Warning { .. } | Finding::Unseen { .. } => None,
            })
            .collect();
        let mut entries: Vec<Entry> =
            findings.iter().map(|(check, finding)| entry(*check, finding, relations, &problems)).collect();
        entries.sort_by_key(|entry| (entry.result, entry.consequence_of.is_some()));
        let is_root = |entry: &&Entry| entry.result == CheckResult::Problem && entry.consequence_of.is_none();
        let problems = entries.iter().filter(is_root).count();
        Self { healthy: problems == 0, problems, findings: entries, debug_state: None }
    }

    /// Adds the states of the pods.
    #[must_use]
    pub(super) fn with_states(self, states: Option<Vec<PodState>>) -> Self {
        Self { debug_state: states, ..self }
    }

    /// Returns the number of problems that are no consequence of another one.
    pub(super) fn problems(&self) -> usize {
        self.problems
    }

    /// Returns the report as text, with marks on a terminal. Much of it is from servers and
    /// kubeconfigs, and must not start a new line.
    pub(super) fn text(&self, for_people: bool) -> Text {
        let mut text = Text::default();
        for entry in &self.findings {
            let message = printable_line(&entry.message);
            let indent = if for_people { "  " } else { "         " };
            match (entry.result, for_people) {
                (CheckResult::Ok, true) => text.mark(Mark::Fine).plain(" "),
                (CheckResult::Skipped, true) => text.mark(Mark::Warning).plain(" skipped: "),
                (CheckResult::Warning, true) => text.mark(Mark::Warning).plain(" warning: "),
                (CheckResult::Problem, true) => text.mark(Mark::Problem).plain(" "),
                (CheckResult::Ok, false) => text.plain("ok       "),
                (CheckResult::Skipped, false) => text.plain("skipped  "),
                (CheckResult::Warning, false) => text.plain("warning  "),
                (CheckResult::Problem, false) => text.plain("problem  "),
            };
            text.plain(message);
            if let Some(reason) = &entry.reason {
                text.plain(format!(": {}", printable_line(reason)));
            }
            text.plain("\n");
            if let Some(cause) = &entry.consequence_of {
                let cause = format!("{indent}(a consequence of: {})\n", printable_line(cause));
                text.colored(Color::Dim, &cause);
            }
            if let Some(remedy) = &entry.remedy {
                text.plain(indent);
                if for_people {
                    text.colored(Color::Cyan, "try:");
                } else {
                    text.plain("->");
                }
                text.plain(format!(" {}\n", printable_line(remedy)));
            }
        }
        debug_state::summarize(self.debug_state.as_deref().unwrap_or_default(), for_people, &mut text);
        text
    }
}

fn entry(check: Check, finding: &Finding, relations: Relations, problems: &[(Check, &str)]) -> Entry {
    let base = Entry {
        check,
        result: CheckResult::Ok,
        message: String::new(),
        reason: None,
        remedy: None,
        consequence_of: None,
    };
    match finding {
        Finding::Fine(what) => Entry { message: what.clone(), ..base },
        Finding::Unseen { what, why } => {
            Entry { result: CheckResult::Skipped, message: what.clone(), reason: Some(why.clone()), ..base }
        }
        Finding::Warning { what, remedy } => Entry {
            result: CheckResult::Warning,
            message: what.clone(),
            remedy: Some(remedy.clone()),
            ..base
        },
        Finding::Problem { what, remedy } => Entry {
            result: CheckResult::Problem,
            message: what.clone(),
            remedy: Some(remedy.clone()),
            consequence_of: relations.root_cause(check, problems),
            ..base
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::style::Style;

    fn plain(report: &Report) -> String {
        report.text(false).render(Style::default())
    }

    #[test]
    fn findings_cannot_contain_line_breaks_or_control_characters() {
        let findings = vec![
            (Check::Api, Finding::Fine("a\nb".into())),
            (Check::Pods, Finding::problem("c\x1b[2J", "d")),
            (Check::Services, Finding::unseen("e", "f")),
            (Check::Strategies, Finding::warning("g\th", "i")),
        ];
        let report = Report::new(&findings, Relations::default());
        assert_eq!(
            plain(&report),
            "problem  c\u{fffd}[2J\n         -> d\nwarning  g h\n         -> i\nskipped  e: f\nok       a b\n"
        );
        assert_eq!(
            report.text(true).render(Style { short: true, color: false }),
            "✗ c\u{fffd}[2J\n  try: d\n! warning: g h\n  try: i\n! skipped: e: f\n✓ a b\n"
        );
        assert_eq!(report.problems(), 1);
    }

    #[test]
    fn a_consequence_names_its_root_cause_and_is_not_counted() {
        use Check::{
            AnyStrategy, Api, Authenticator, Clock, Connection, Issuer, Keyring, Kubeconfig, Login, Name,
            OtherAuthenticators, Plugin, Pods, ProxyEnvironment, WhoAmI,
        };
        let direct = Relations { pods_explain: true, ..Relations::default() };
        let proxy = Relations { through_proxy: true, ..direct };
        let some_pods = Relations::default();
        let at = |login_failed| Relations { login_failed, ..direct };
        for (checks, relations, roots) in [
            (&[Login, Authenticator, Pods, Api][..], direct, &[Pods][..]),
            (&[WhoAmI, Login, Connection, Name], direct, &[Name]),
            (&[Login, OtherAuthenticators], direct, &[Login, OtherAuthenticators]),
            (&[WhoAmI, AnyStrategy, Login], direct, &[AnyStrategy]),
            (&[Connection, Pods], direct, &[Connection, Pods]),
            (&[Connection, Pods], proxy, &[Pods]),
            (&[WhoAmI, Connection, Kubeconfig], direct, &[Kubeconfig]),
            (&[WhoAmI], direct, &[WhoAmI]),
            // Another pod does the work.
            (&[WhoAmI, Pods], some_pods, &[WhoAmI, Pods]),
            (&[Login, Pods], some_pods, &[Login, Pods]),
            (&[Connection, Pods], Relations { pods_explain: false, ..proxy }, &[Connection, Pods]),
            // The name of the cluster does not explain what another host does.
            (&[Login, Connection, Name], at(LoginFailed::AtIssuer), &[Login, Name]),
            (&[Login, Issuer, Connection, Name], at(LoginFailed::AtIssuer), &[Issuer, Name]),
            (&[Login, Issuer], direct, &[Issuer]),
            (&[Login, Clock], at(LoginFailed::AtIssuer), &[Clock]),
            (&[Login, Connection], at(LoginFailed::AtConcierge), &[Login, Connection]),
            (&[Login, Api, Pods], at(LoginFailed::AtConcierge), &[Pods]),
            (
                &[Login, ProxyEnvironment, Clock],
                at(LoginFailed::OnThisMachine),
                &[Login, ProxyEnvironment, Clock],
            ),
            (&[Login, Keyring], at(LoginFailed::OnThisMachine), &[Keyring]),
            (&[Login, Plugin], at(LoginFailed::OnThisMachine), &[Plugin]),
        ] {
            let findings: Vec<Checked> =
                checks.iter().map(|check| (*check, Finding::problem(format!("{check:?}"), "r"))).collect();
            let report = Report::new(&findings, relations);
            let (found, rest) = report.findings.split_at(report.problems());
            assert_eq!(found.iter().map(|entry| entry.check).collect::<Vec<_>>(), roots, "{checks:?}");
            for entry in rest {
                let named = roots.iter().any(|root| entry.consequence_of == Some(format!("{root:?}")));
                assert!(named, "{checks:?}: {entry:?}");
            }
        }
    }

    #[test]
    fn a_warning_is_no_problem_and_no_cause_of_one() {
        let findings = vec![
            (Check::Pods, Finding::warning("unusual", "change it")),
            (Check::Api, Finding::problem("down", "start it")),
        ];
        let report = Report::new(&findings, Relations::default());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(report.problems(), 1);
        let results: Vec<_> = [0, 1].map(|index| json["findings"][index]["result"].clone()).into();
        assert_eq!(results, ["problem", "warning"]);
        assert_eq!(json["findings"][0]["consequenceOf"], serde_json::Value::Null);
        let report = Report::new(&findings[..1], Relations::default());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((report.problems(), &json["healthy"]), (0, &true.into()));
        assert_eq!(json["findings"][0]["remedy"], "change it");
    }

    #[test]
    fn no_check_explains_itself_through_others() {
        use LoginFailed::{AtCluster, AtConcierge, AtIssuer, OnThisMachine};
        let places = [AtCluster, AtConcierge, AtIssuer, OnThisMachine];
        let both = places.into_iter().flat_map(|place| [(place, false), (place, true)]);
        for (login_failed, through_proxy) in both {
            let relations = Relations { through_proxy, pods_explain: true, login_failed };
            let mut pending = vec![(Check::WhoAmI, vec![Check::WhoAmI])];
            while let Some((check, path)) = pending.pop() {
                for cause in relations.causes(check) {
                    assert!(!path.contains(cause), "{path:?} {cause:?}");
                    pending.push((*cause, [path.as_slice(), &[*cause]].concat()));
                }
            }
        }
    }

    #[test]
    fn a_document_has_the_same_content() {
        let findings = vec![
            (Check::Login, Finding::problem("refused", "log in")),
            (Check::WhoAmI, Finding::problem("unknown", "see above")),
        ];
        let report = Report::new(&findings, Relations::default());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["healthy"], &json["problems"]), (&false.into(), &1.into()));
        assert_eq!(json["findings"][1]["consequenceOf"], "refused");
        assert_eq!(json["findings"][1]["check"], "who-am-i");
    }
}
