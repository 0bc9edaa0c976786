//! A snapshot of what a node could leave behind, taken before `up` and compared after `down`.

use std::collections::BTreeSet;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::process::Identity;
use crate::record::Record;
use crate::{cgroups, prerequisites, process};

/// The parts of the machine that a node changes if its namespaces leak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    links: BTreeSet<String>,
    iptables: BTreeSet<String>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<String>,
}

impl Snapshot {
    /// Takes a snapshot of the machine.
    pub(crate) fn take() -> Self {
        Self {
            links: links(),
            iptables: iptables(),
            mounts: mounts(),
            cgroups: cgroups::all().into_iter().collect(),
        }
    }

    /// Takes a snapshot after all processes of the node have exited: cgroups that still contain
    /// processes are not the node's.
    pub(crate) fn take_after() -> Self {
        let mut now = Self::take();
        now.cgroups.retain(|path| !cgroups::inhabited(path));
        now
    }

    /// Returns what exists in `now` and did not exist before, except for objects of other nodes and
    /// of the machine's own service manager, which change at any time.
    pub(crate) fn left(&self, now: &Self, layout: &Layout) -> Vec<String> {
        let own = layout.cgroup();
        let foreign = |path: &str| {
            let of_nodes =
                path.split('/').skip_while(|part| *part != cgroups::PARENT).collect::<Vec<_>>().join("/");
            let of_own = of_nodes == own || of_nodes.starts_with(&format!("{own}/"));
            let managed = path
                .split('/')
                .any(|part| [".scope", ".service", ".slice", ".mount"].iter().any(|end| part.ends_with(end)));
            (!of_nodes.is_empty() && !of_own) || managed
        };
        let mut left = Vec::new();
        let mut add =
            |what: &str, before: &BTreeSet<String>, now: &BTreeSet<String>, skip: &dyn Fn(&str) -> bool| {
                left.extend(
                    now.difference(before).filter(|item| !skip(item)).map(|item| format!("{what} {item}")),
                );
            };
        let never = |_: &str| false;
        add("link", &self.links, &now.links, &never);
        add("iptables rule", &self.iptables, &now.iptables, &never);
        add("mount", &self.mounts, &now.mounts, &never);
        add("cgroup", &self.cgroups, &now.cgroups, &foreign);
        left
    }
}

/// Returns the processes of the node that are still running.
pub(crate) fn processes(layout: &Layout, record: Option<&Record>) -> Vec<u32> {
    let cgroup = layout.cgroup();
    let of_node = |pid: u32| {
        // A zombie only waits for its parent, which may be this process.
        let alive = Identity::of(pid).is_some_and(Identity::alive);
        let ours = process::in_cgroup(pid, &cgroup)
            || record.is_some_and(|record| process::in_network(pid, &record.marker));
        ours && alive
    };
    process::all().into_iter().filter(|pid| of_node(*pid)).collect()
}

fn links() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns the rules of both address families without counters and timestamps.
fn iptables() -> BTreeSet<String> {
    ["iptables-save", "ip6tables-save"]
        .into_iter()
        .flat_map(|program| {
            let output = Command::new(program).env("PATH", prerequisites::PATH).output();
            let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
            rules(program.trim_end_matches("-save"), &text)
        })
        .collect()
}

fn rules(program: &str, text: &str) -> Vec<String> {
    let mut table = "";
    let mut rules = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if line.starts_with(':') {
            // A chain: its policy is kept, its counters are removed. An empty table of built-in
            // chains contains no rule.
            let chain = line.split(" [").next().unwrap_or(line);
            if !chain.ends_with(" ACCEPT") {
                rules.push(format!("{program} {table} {chain}"));
            }
        } else if line.starts_with("-A") {
            rules.push(format!("{program} {table} {line}"));
        }
    }
    rules
}

fn mounts() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(items: &[&str]) -> BTreeSet<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn rules_are_compared_without_their_counters() {
        let text = "# Generated\n*nat\n:PREROUTING ACCEPT [5:300]\n:KUBE-SERVICES - [0:0]\n\
                    -A PREROUTING -j KUBE-SERVICES\nCOMMIT\n";
        assert_eq!(
            rules("iptables", text),
            ["iptables nat :KUBE-SERVICES -", "iptables nat -A PREROUTING -j KUBE-SERVICES"]
        );
    }

    #[test]
    fn remaining_objects_of_the_node_are_listed_and_those_of_others_are_not() {
        let layout = Layout::new("one", Some(std::path::Path::new("/x"))).unwrap();
        let before = Snapshot { links: set(&["lo"]), cgroups: set(&["cpu/old"]), ..Snapshot::default() };
        let now = Snapshot {
            links: set(&["lo", "cni0"]),
            mounts: set(&["/x/one/scratch"]),
            cgroups: set(&[
                "cpu/old",
                "cpu/kubepods",
                "cpu/pinniped-node",
                "cpu/pinniped-node/one/node",
                "cpu/pinniped-node/two",
                "user.slice/session-1.scope",
            ]),
            iptables: BTreeSet::new(),
        };
        assert_eq!(
            before.left(&now, &layout),
            ["link cni0", "mount /x/one/scratch", "cgroup cpu/kubepods", "cgroup cpu/pinniped-node/one/node"]
        );
        assert!(now.left(&now, &layout).is_empty());
        assert!(now.left(&before, &layout).is_empty());
    }
}
