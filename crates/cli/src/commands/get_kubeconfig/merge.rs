//! `get kubeconfig --merge`: merges the result into an existing kubeconfig, for one context of the
//! source or for all of them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pinniped_error::chain;
use serde_json::json;

use super::options::{MergeOptions, Options};
use super::{GetKubeconfigError, Source, generate};
use crate::bounded_file;
use crate::environment::Environment;
use crate::kubeconfig;
use crate::kubeconfig::generated::Entries;
use crate::kubeconfig::merge::{MergeError, MergeSettings, check_document, current_context_of, merge};
use crate::kubeconfig::replace::{self, ReplaceError, replace_with_backup};
use crate::login::session::login_command;
use crate::printer::Printer;

/// The limit for each of several contexts, if the flag does not set it: a cluster that does not
/// respond must not delay the others for long.
const CONTEXT_LIMIT: Duration = Duration::from_secs(60);

/// The result was not merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeCommandError {
    /// The path of the file is not known.
    #[error(
        "could not find the kubeconfig to merge into: neither KUBECONFIG nor HOME is set, set one of them or use --output"
    )]
    NoTarget,
    /// The file cannot be merged into.
    #[error("could not merge into {path}")]
    Merge {
        /// The file.
        path: String,
        /// The reason.
        #[source]
        source: MergeError,
    },
    /// The file cannot be changed.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// Some contexts are missing.
    #[error("{failed} of {total} contexts failed")]
    Contexts {
        /// The number of contexts that failed.
        failed: usize,
        /// The number of contexts of the kubeconfig.
        total: usize,
    },
}

/// Merges the result of each source context.
pub(super) fn run(
    options: Options,
    settings: &MergeOptions,
    environment: &Environment,
    printer: Printer,
) -> Result<(), GetKubeconfigError> {
    let target = match options.output.as_str() {
        "" => kubeconfig::file_to_change(environment).ok_or(MergeCommandError::NoTarget)?,
        path => path.to_owned(),
    };
    // A file that cannot be merged into is refused before a request or a login.
    if let Some(text) = replace::read_if_replaceable(Path::new(&target)).map_err(MergeCommandError::from)? {
        check_document(&text).map_err(|source| MergeCommandError::Merge { path: target.clone(), source })?;
    }
    let found = match settings.all_contexts {
        true => all_contexts(&options, settings, environment, printer)?,
        false => {
            let limit = options.timeout.to_std();
            let source = Source::load(&options, environment)?;
            let entries = generate(options, source, limit, environment, printer)?;
            let entries = match settings.context.as_str() {
                "" => entries,
                name => entries.named(name),
            };
            Found { entries: vec![entries], failed: 0, total: 1 }
        }
    };
    write(&found, &target, settings, environment, printer)
}

/// The entries of each source context.
struct Found {
    entries: Vec<Entries>,
    failed: usize,
    total: usize,
}

fn all_contexts(
    options: &Options,
    settings: &MergeOptions,
    environment: &Environment,
    printer: Printer,
) -> Result<Found, GetKubeconfigError> {
    let source = Source::load(options, environment)?;
    let config = &source.config;
    let limit = settings.limit.map_or(CONTEXT_LIMIT, |limit| limit.to_std());
    let mut found = Found { entries: Vec::new(), failed: 0, total: config.contexts.len() };
    for context in &config.contexts {
        let name = ("context", json!(context.name));
        let skip = |reason: &str| printer.info("skipped context", &[name.clone(), ("reason", json!(reason))]);
        let user = context.context.as_ref().and_then(|context| context.user.as_ref());
        let entry = config.auth_infos.iter().find(|entry| Some(&entry.name) == user);
        let exec = entry.and_then(|entry| entry.auth_info.as_ref()?.exec.as_ref());
        if exec.is_some_and(|exec| login_command(exec.args.as_deref().unwrap_or_default()).is_some()) {
            skip("its user logs in with this program already");
            continue;
        }
        printer.info("reading context", std::slice::from_ref(&name));
        let of_context = Options { kubeconfig_context: context.name.clone(), ..options.clone() };
        match generate(of_context, source.clone(), limit, environment, printer) {
            // A login is that of one cluster, and contexts of several clusters may have one user.
            Ok(entries) => {
                found.entries.push(Entries { user_name: entries.context_name.clone(), ..entries });
            }
            Err(GetKubeconfigError::Discovery(error)) if error.has_no_concierge() => {
                skip("its cluster has no Concierge");
            }
            Err(error) => {
                found.failed += 1;
                printer.warn("context failed", &[name, ("error", json!(chain(&error).to_string()))]);
            }
        }
    }
    Ok(found)
}

/// Merges the entries into the file in one step.
fn write(
    found: &Found,
    target: &str,
    settings: &MergeOptions,
    environment: &Environment,
    printer: Printer,
) -> Result<(), GetKubeconfigError> {
    let path = ("kubeconfig", json!(target));
    let others_have_current = others_have_current_context(target, environment);
    let mut merged_names = Vec::new();
    let mut current = None;
    let mut comments_lost = false;
    let mut refused = None;
    let mut failed = found.failed;
    let backup = replace_with_backup(Path::new(target), |before| {
        let has_current = others_have_current || !current_context_of(before).is_empty();
        let mut text = before.to_owned();
        for entries in &found.entries {
            let name = &entries.context_name;
            let set_current = settings.set_current_context || (!has_current && current.is_none());
            let how = MergeSettings { overwrite: settings.overwrite, set_current };
            match merge(&text, entries, how) {
                Ok(merged) => {
                    merged_names.push(name.clone());
                    if set_current {
                        current = Some(name.clone());
                    }
                    comments_lost |= merged.comments_lost;
                    text = merged.text.unwrap_or(text);
                }
                Err(error) => {
                    failed += 1;
                    if settings.all_contexts {
                        let pairs = [("context", json!(name)), ("error", json!(chain(&error).to_string()))];
                        printer.warn("context failed", &pairs);
                    } else {
                        refused = Some(error);
                    }
                }
            }
        }
        Ok((text != before).then_some(text))
    })
    .map_err(MergeCommandError::from)?;
    if let Some(source) = refused {
        return Err(MergeCommandError::Merge { path: target.to_owned(), source }.into());
    }
    for name in &merged_names {
        printer.info("merged context", &[("name", json!(name)), path.clone()]);
    }
    if let Some(name) = current {
        printer.info("current context", &[("name", json!(name)), path.clone()]);
    }
    if let Some(backup) = &backup {
        printer.info("saved the previous kubeconfig", &[("path", json!(backup))]);
    }
    if comments_lost {
        printer.warn("comments of the kubeconfig could not be preserved", std::slice::from_ref(&path));
    }
    match failed {
        0 => Ok(()),
        failed => Err(MergeCommandError::Contexts { failed, total: found.total }.into()),
    }
}

/// Returns whether another file of the list that contains `target` has a current context.
fn others_have_current_context(target: &str, environment: &Environment) -> bool {
    let target = file_of(target);
    let files = kubeconfig::paths(environment);
    let (same, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| file_of(file) == target);
    let mut texts = others.iter().filter_map(|file| bounded_file::read_to_string(Path::new(file)).ok());
    !same.is_empty() && texts.any(|text| !current_context_of(&text).is_empty())
}

/// Returns the same path for all paths that lead to a file, which may not exist yet.
fn file_of(path: &str) -> PathBuf {
    let path = Path::new(path);
    let in_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(path.file_name().unwrap_or_default()))
    };
    path.canonicalize().or_else(|_: io::Error| in_folder()).unwrap_or_else(|_: io::Error| path.to_owned())
}
