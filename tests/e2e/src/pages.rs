//! Pages of `docs/` whose commands are executed by tests.

use anyhow::Context as _;
use pinniped_test_support::tools;

/// Returns the blocks of a page, given by its path, that are marked as `sh`. Blocks with other
/// marks (`console`, `yaml`) are not executed.
///
/// # Errors
/// Returns an error when the page cannot be read.
pub fn shell_blocks(page: &str) -> anyhow::Result<Vec<String>> {
    Ok(blocks(&text(page)?))
}

/// Returns the same blocks of one section of a page, without those of its subsections.
///
/// # Errors
/// Returns an error when the page cannot be read, or when the section has no such block.
pub fn section_blocks(page: &str, heading: &str) -> anyhow::Result<Vec<String>> {
    let text = text(page)?;
    let found = section(&text, heading).map(|section| blocks(&section)).unwrap_or_default();
    anyhow::ensure!(!found.is_empty(), "{page} has no commands in a section {heading:?}");
    Ok(found)
}

fn text(page: &str) -> anyhow::Result<String> {
    let path = tools::repository().join(page);
    std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
}

/// Returns the text between a heading and the next one.
fn section(page: &str, heading: &str) -> Option<String> {
    let mut fenced = false;
    let mut found = None;
    for line in page.lines() {
        // A comment in a block of commands also starts with this character.
        if line.starts_with('#') && !fenced {
            if found.is_some() {
                break;
            }
            found = (line.trim_start_matches('#').trim() == heading).then(String::new);
        } else if let Some(text) = &mut found {
            text.push_str(line);
            text.push('\n');
        }
        fenced ^= line.trim_start().starts_with("```");
    }
    found
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

    #[test]
    fn a_section_ends_at_the_next_heading_outside_a_block() {
        let page = "# p\n```sh\na\n```\n## One\n```sh\n# b\nc\n```\n### Two\n```sh\nd\n```\n## One more\n";
        let of = |heading: &str| section(page, heading).map(|section| blocks(&section));
        assert_eq!(of("p"), Some(vec!["a".to_owned()]));
        assert_eq!(of("One"), Some(vec!["# b\nc".to_owned()]));
        assert_eq!(of("Two"), Some(vec!["d".to_owned()]));
        assert_eq!(of("One more"), Some(Vec::new()));
        assert_eq!(of("Three"), None);
    }
}
