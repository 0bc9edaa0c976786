//! Host names besides those of the cluster's DNS, for programs that enter the node's network.

use std::net::IpAddr;

use anyhow::Context as _;

use crate::node::Node;

impl Node {
    /// Makes `name` resolve to `ip` for programs that enter from now on ([`Node::enter`]), but not
    /// in pods.
    ///
    /// # Errors
    /// Returns an error when the node's hosts file cannot be read or written.
    pub fn set_host(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        let file = self.layout().hosts();
        let before =
            std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        std::fs::write(&file, with(&before, name, ip))
            .with_context(|| format!("could not write {}", file.display()))
    }
}

/// Returns a hosts file in which `name` has only this address.
fn with(hosts: &str, name: &str, ip: IpAddr) -> String {
    let others = hosts.lines().filter(|line| !line.split_whitespace().skip(1).any(|word| word == name));
    let mut text: String = others.flat_map(|line| [line, "\n"]).collect();
    text.push_str(&format!("{ip} {name}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_address_that_was_set_last() {
        let first = with("127.0.0.1 localhost\n", "proxy.local", "10.96.0.7".parse().unwrap());
        assert_eq!(first, "127.0.0.1 localhost\n10.96.0.7 proxy.local\n");
        let second = with(&first, "proxy.local", "10.96.0.8".parse().unwrap());
        assert_eq!(second, "127.0.0.1 localhost\n10.96.0.8 proxy.local\n");
    }
}
