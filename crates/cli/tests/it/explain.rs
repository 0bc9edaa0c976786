//! `explain`, and the table of explanations compared with the sources of the Concierge.

use std::collections::BTreeSet;
use std::path::Path;

use pinniped_cli::explanations::{self, Kind};
use pinniped_concierge_api::config::{StrategyReason, StrategyType};

use crate::support::Home;

#[test]
fn a_topic_is_explained_and_an_unknown_one_is_an_error_with_a_suggestion() {
    let home = Home::new();
    let run = home.run(&["explain", "couldnotfetchkey"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert!(run.stdout.starts_with("CouldNotFetchKey (reason of a strategy)\n\n"), "{run:?}");
    let error =
        "Error: could not complete Concierge credential exchange: login failed: authentication failed";
    let run = home.run(&["explain", error]);
    assert!(run.code == 0 && run.stdout.starts_with("authentication-failed ("), "{run:?}");
    // The words of a text may be separate arguments.
    let run = home.run(&["explain", "certificate", "delegation", "not", "permitted"]);
    assert!(run.code == 0 && run.stdout.starts_with("certificate-delegation ("), "{run:?}");

    let run = home.run(&["explain", "ServingCertificatValid"]);
    let error = "there is no topic \"ServingCertificatValid\"; did you mean ServingCertificateValid";
    assert!(run.code == 1 && run.last_error().unwrap().starts_with(error), "{run:?}");
    home.run(&["explain", "qqqq"])
        .fails_with("there is no topic \"qqqq\"; `pinniped explain` lists the topics");
    let run = home.run(&["explain"]);
    for row in explanations::all() {
        assert!(run.stdout.contains(&format!("\n  {}\n", row.topic)), "{}", row.topic);
    }
}

/// Returns the messages in the tables of a page: the first code span of each row whose first column
/// is `Message`.
fn messages(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for table in page.split("\n\n").filter(|part| part.starts_with("| Message |")) {
        for row in table.lines().skip(2) {
            let cell = row.split(" | ").next().unwrap();
            found.push(cell.split('`').nth(1).unwrap_or_else(|| panic!("{row}")).replace("...", "some text"));
        }
    }
    found
}

#[test]
fn every_message_of_the_page_about_troubleshooting_is_explained() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/howto/troubleshooting.md");
    let messages = messages(&std::fs::read_to_string(page).unwrap());
    assert!(messages.len() > 60, "{messages:?}");
    let missing: Vec<&String> =
        messages.iter().filter(|message| explanations::find(message).is_none()).collect();
    assert_eq!(missing, [""; 0], "explain them in crates/cli/src/explanations");
}

/// Texts in the same files that are neither types nor reasons of conditions.
const OTHERS: [&str; 15] = [
    "CREATE",
    "Cluster",
    "ConfigMap",
    "False",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "MutatingWebhookConfiguration",
    "Secret",
    "True",
    "UPDATE",
    "Unknown",
    "Validate",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ValidatingWebhookConfiguration",
];

/// Returns the literals of one word in upper camel case that are in the files about conditions.
fn words_in_sources(folder: &Path, words: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "tests" {
            words_in_sources(&path, words);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            if !text.contains("DesiredCondition") && !text.contains("fn reason(") {
                continue;
            }
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                let literals = line.split('"').skip(1).step_by(2);
                let is_word = |text: &&str| {
                    text.starts_with(|c: char| c.is_ascii_uppercase())
                        && text.chars().all(|c| c.is_ascii_alphanumeric())
                };
                words.extend(literals.filter(is_word).map(str::to_owned));
            }
        }
    }
}

#[test]
fn every_type_and_reason_of_the_concierge_is_explained_and_no_other() {
    let topics = |kinds: &[Kind]| -> BTreeSet<String> {
        let rows = explanations::all().filter(|row| kinds.contains(&row.kind));
        rows.map(|row| row.topic.to_owned()).collect()
    };
    let types: BTreeSet<String> = StrategyType::KNOWN.iter().map(ToString::to_string).collect();
    assert_eq!(topics(&[Kind::Strategy]), types);
    let reasons: BTreeSet<String> = StrategyReason::KNOWN.iter().map(ToString::to_string).collect();
    assert_eq!(topics(&[Kind::StrategyReason]), reasons);

    let mut found = BTreeSet::new();
    for folder in ["concierge/domain/src", "concierge/controllers/src", "kubernetes/types/src"] {
        words_in_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder), &mut found);
    }
    let conditions = topics(&[Kind::Condition, Kind::ConditionReason]);
    let explained: BTreeSet<String> = explanations::all().map(|row| row.topic.to_owned()).collect();
    let missing: Vec<&String> =
        found.iter().filter(|word| !explained.contains(*word) && !OTHERS.contains(&word.as_str())).collect();
    assert_eq!(missing, [""; 0], "explain them in crates/cli/src/explanations/status.rs");
    let outdated: Vec<&String> = conditions.iter().filter(|topic| !found.contains(*topic)).collect();
    assert_eq!(outdated, [""; 0], "no code writes them any more");
}
