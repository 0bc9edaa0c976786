//! The user's cache of built programs: one folder per module, version and set of flags.
//!
//! Programs are added to a folder completely and never change, so missing ones can be added to a
//! folder that is in use.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::FlockOperation;

use super::module::Module;
use super::{Tool, build};

/// Returns the folder of the user's cache for this module, which contains at least these tools:
/// missing ones are built. `what` is their name in messages.
pub(super) fn cached(module: &Module, what: &str, tools: &[Tool], offline: bool) -> anyhow::Result<PathBuf> {
    if let Some(dir) = built(module, tools)? {
        return Ok(dir);
    }
    let cache = dir()?.join(module.cache);
    let key = module.key()?;
    let dir = cache.join(&key);
    let missing =
        || -> Vec<Tool> { tools.iter().filter(|tool| !dir.join(tool.name).is_file()).copied().collect() };
    let remedy = || {
        format!(
            "could not use the cache folder {}; name a writable one in XDG_CACHE_HOME{}",
            cache.display(),
            module.other_way
        )
    };
    std::fs::create_dir_all(&cache).with_context(remedy)?;
    let lock = std::fs::File::create(cache.join(format!("{key}.lock"))).with_context(remedy)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("another build of the {what} is running, waiting for it ...");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .context("could not wait for the other build")?;
    }
    let missing = missing();
    if missing.is_empty() {
        return Ok(dir);
    }
    remove_leftovers(&cache, &key);
    let unfinished = cache.join(format!("{key}.unfinished-{}", std::process::id()));
    std::fs::create_dir(&unfinished).with_context(remedy)?;
    let start = Instant::now();
    let built = build::build(module, what, &missing, &unfinished, offline);
    let finished = built.and_then(|()| take(&unfinished, &dir, &missing));
    // The result of an interrupted build is useless; Go's own cache has the compiled packages.
    let _ = std::fs::remove_dir_all(&unfinished);
    finished?;
    for tool in &missing {
        let bytes = std::fs::metadata(dir.join(tool.name)).map_or(0, |m| m.len());
        eprintln!("  {:<24} {:>4} MB", tool.name, bytes / 1_000_000);
    }
    eprintln!("{what} built in {}", elapsed(start.elapsed()));
    Ok(dir)
}

/// Returns the folder of the user's cache for this module, if it contains all these tools.
pub(super) fn built(module: &Module, tools: &[Tool]) -> anyhow::Result<Option<PathBuf>> {
    let dir = dir()?.join(module.cache).join(module.key()?);
    Ok(tools.iter().all(|tool| dir.join(tool.name).is_file()).then_some(dir))
}

/// Returns the folder of the user's cache with this name and key. If it does not exist, `fetch`
/// creates it: the function gets a working folder, and returns the folder below it to keep.
pub(super) fn fetched(
    name: &str,
    key: &str,
    fetch: impl FnOnce(&Path) -> anyhow::Result<PathBuf>,
) -> anyhow::Result<PathBuf> {
    let base = dir()?.join(name);
    let dir = base.join(key);
    if dir.is_dir() {
        return Ok(dir);
    }
    std::fs::create_dir_all(&base).with_context(|| format!("could not create {}", base.display()))?;
    let lock = std::fs::File::create(base.join(format!("{key}.lock"))).context("could not lock the cache")?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).context("could not wait for another fetch")?;
    if dir.is_dir() {
        return Ok(dir);
    }
    remove_leftovers(&base, key);
    let work = base.join(format!("{key}.unfinished-{}", std::process::id()));
    std::fs::create_dir(&work).with_context(|| format!("could not create {}", work.display()))?;
    let kept = fetch(&work).and_then(|fresh| {
        std::fs::rename(&fresh, &dir).with_context(|| format!("could not create {}", dir.display()))
    });
    let _ = std::fs::remove_dir_all(&work);
    kept?;
    Ok(dir)
}

/// Writes a file atomically. Concurrent processes write the same content.
pub(super) fn write_whole(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut fresh = file.as_os_str().to_owned();
    fresh.push(format!(".unfinished-{}", std::process::id()));
    std::fs::write(&fresh, text)
        .and_then(|()| std::fs::rename(&fresh, file))
        .with_context(|| format!("could not write {}", file.display()))
}

/// Returns a short hash of bytes (FNV-1a, because no security depends on it).
pub(super) fn hash<'b>(parts: impl IntoIterator<Item = &'b [u8]>) -> u64 {
    let bytes = parts.into_iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Moves a new folder as a whole, and the missing programs one by one into a folder that may be in
/// use.
fn take(unfinished: &Path, dir: &Path, tools: &[Tool]) -> anyhow::Result<()> {
    if !dir.exists() {
        return std::fs::rename(unfinished, dir)
            .with_context(|| format!("could not create {}", dir.display()));
    }
    for tool in tools {
        std::fs::rename(unfinished.join(tool.name), dir.join(tool.name))
            .with_context(|| format!("could not put {} into {}", tool.name, dir.display()))?;
    }
    Ok(())
}

/// Returns `$XDG_CACHE_HOME/pinniped-rs`, or the folder below `~/.cache`.
pub(super) fn dir() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home =
        || std::env::var_os("HOME").filter(|v| !v.is_empty()).map(|home| PathBuf::from(home).join(".cache"));
    let base = base.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set: name a cache folder")?;
    Ok(base.join("pinniped-rs"))
}

/// Removes the remains of killed builds; this process holds the lock, so no other build is running.
fn remove_leftovers(cache: &Path, key: &str) {
    let prefix = format!("{key}.unfinished-");
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Formats a duration, such as `1m05s`.
pub(super) fn elapsed(duration: Duration) -> String {
    format!("{}m{:02}s", duration.as_secs() / 60, duration.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_times_have_minutes_and_seconds() {
        assert_eq!(elapsed(Duration::from_secs(65)), "1m05s");
    }

    #[test]
    fn missing_programs_are_added_to_a_folder() {
        let base = std::env::temp_dir().join(format!("pinniped-xtask-cache-{}", std::process::id()));
        let (dir, fresh) = (base.join("dir"), base.join("fresh"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::create_dir_all(&fresh).unwrap();
        std::fs::write(dir.join("etcd"), "old").unwrap();
        std::fs::write(fresh.join("kubelet"), "new").unwrap();
        let kubelet = Tool { name: "kubelet", package: "", version_args: &[], version: None };
        take(&fresh, &dir, &[kubelet]).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!((read("etcd"), read("kubelet")), ("old".to_owned(), "new".to_owned()));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
