//! The provenance of artifacts as an in-toto statement with the predicate of SLSA 1.0.
//!
//! The statement alone proves nothing: its signature does, which the release workflow adds.

use serde_json::{Value, json};

use crate::revision::{REPOSITORY, Revision};

/// The page that describes how the artifacts are built.
const BUILD_TYPE: &str = "blob/main/RELEASING.md";
/// Variables of GitHub's runners: the server, the workflow, and the number of the run.
const GITHUB: [&str; 4] = ["GITHUB_SERVER_URL", "GITHUB_WORKFLOW_REF", "GITHUB_REPOSITORY", "GITHUB_RUN_ID"];

/// An artifact and its SHA-256 in hexadecimal.
pub(crate) type Subject = (String, String);

/// A command of `cargo xtask`.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The arguments that affect the artifacts.
    pub(crate) arguments: Vec<String>,
}

/// Returns the statement about artifacts of one command.
pub(crate) fn statement(command: &Command, subjects: &[Subject], revision: &Revision) -> Value {
    let variables = GITHUB.map(|name| std::env::var(name).ok());
    let [Some(server), Some(workflow), Some(repository), Some(run)] = variables else {
        return of_builder(command, subjects, revision, &json!({"builder": {"id": local()}}));
    };
    let details = json!({
        "builder": {"id": format!("{server}/{workflow}")},
        "metadata": {"invocationId": format!("{server}/{repository}/actions/runs/{run}")},
    });
    of_builder(command, subjects, revision, &details)
}

/// The identity of a machine that is not one of GitHub's runners.
fn local() -> String {
    format!("{REPOSITORY}/{BUILD_TYPE}#local")
}

fn of_builder(command: &Command, subjects: &[Subject], revision: &Revision, details: &Value) -> Value {
    let subject = |(name, sha256): &Subject| json!({"name": name, "digest": {"sha256": sha256}});
    let mut source = json!({
        "uri": format!("git+{REPOSITORY}"),
        "digest": {"gitCommit": revision.commit},
    });
    if revision.is_changed {
        source["annotations"] = json!({"treeState": "dirty"});
    }
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects.iter().map(subject).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{REPOSITORY}/{BUILD_TYPE}"),
                "externalParameters": {"command": command.name, "arguments": command.arguments},
                "resolvedDependencies": [source],
            },
            "runDetails": details,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_the_artifacts_and_the_commit() {
        let mut revision = Revision { commit: "abc".to_owned(), epoch: 0, is_changed: false };
        let command = Command { name: "cargo xtask dist", arguments: vec!["--dev".to_owned()] };
        let subjects = [("a.tar.gz".to_owned(), "00ff".to_owned())];
        let found = of_builder(&command, &subjects, &revision, &json!({"builder": {"id": "b"}}));
        assert_eq!(found["subject"], json!([{"name": "a.tar.gz", "digest": {"sha256": "00ff"}}]));
        let definition = &found["predicate"]["buildDefinition"];
        assert_eq!(definition["resolvedDependencies"][0]["digest"]["gitCommit"], "abc");
        assert_eq!(definition["externalParameters"]["command"], "cargo xtask dist");
        assert_eq!(definition["externalParameters"]["arguments"], json!(["--dev"]));
        assert_eq!(definition["resolvedDependencies"][0].get("annotations"), None);
        assert_eq!(found["predicate"]["runDetails"]["builder"]["id"], "b");
        revision.is_changed = true;
        let found = of_builder(&command, &subjects, &revision, &json!({}));
        let source = &found["predicate"]["buildDefinition"]["resolvedDependencies"][0];
        assert_eq!(source["annotations"], json!({"treeState": "dirty"}));
    }
}
