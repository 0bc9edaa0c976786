//! Pages of `docs/` whose commands are executed by tests.

use anyhow::Context as _;
use pinniped_test_support::tools;

/// Returns the blocks of a page, given by its path, that are marked as `sh`. Blocks with other
/// marks (`console`, `yaml`) are not executed.
///
/// # Errors
/// Returns an error when the page cannot be read.
pub fn shell_blocks(page: &str) -> anyhow::Result<Vec<String>> {
    let path = tools::repository().join(page);
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    Ok(blocks(&text))
}

fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sh" {
            let indent = line.len() - line.trim_start().len();
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            // Blocks of a list are indented as a whole.
            let block: Vec<&str> = block.map(|line| line.get(indent..).unwrap_or_default()).collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_page_are_those_for_a_shell() {
        let page = "text\n```sh\na\nb\n```\n```console\n$ c\n```\n1. x\n\n   ```sh\n   d\n     e\n\n   ```\n";
        assert_eq!(blocks(page), ["a\nb", "d\n  e\n"]);
    }
}
