//! Reads what the kernel reports about a process in `/proc/PID/status` (proc_pid_status(5)).

use anyhow::Context as _;

/// Returns the value of a field, with its unit, such as `12 kB` for `VmRSS`.
///
/// # Errors
/// Returns an error if the process or the field does not exist.
pub fn field(pid: u32, name: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("{path} has no {name}"))?.trim().to_owned())
}

/// Returns the resident memory in bytes.
///
/// # Errors
/// Returns an error if the process does not exist.
pub fn resident_memory(pid: u32) -> anyhow::Result<u64> {
    let text = field(pid, "VmRSS")?;
    let kibibytes = text.strip_suffix(" kB").and_then(|number| number.parse::<u64>().ok());
    Ok(kibibytes.with_context(|| format!("unknown resident memory {text}"))? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_status() {
        let pid = std::process::id();
        assert!(resident_memory(pid).unwrap() > 100_000);
        assert_eq!(field(pid, "Pid").unwrap(), pid.to_string());
        assert!(field(pid, "Pi").is_err());
    }
}
