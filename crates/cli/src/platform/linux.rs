//! Linux: other processes, from `/proc` (proc(5)).

use std::fs;

/// Returns the command line of a process.
pub(crate) fn command_line(process: u32) -> Option<Vec<String>> {
    let line = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    Some(line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// Returns a text that no later process with the same ID has.
pub(crate) fn process_identity(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(format!("{process} {}", start_time(&stat)?))
}

/// Returns the start time of a process from the content of `/proc/ID/stat` (proc_pid_stat(5)).
fn start_time(stat: &str) -> Option<&str> {
    // The name of the program is in parentheses, and may contain any of them, and spaces.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_read_after_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 108 0 0 0 0 0 0 0 20 0 1 0 4711 2658304 233";
        assert_eq!(start_time(stat), Some("4711"));
        assert_eq!(start_time("7 (a"), None);
    }

    #[test]
    fn the_command_line_of_this_process_is_known() {
        let words = command_line(std::process::id()).unwrap();
        assert_eq!(words.first().map(String::as_str), std::env::args().next().as_deref());
    }
}
