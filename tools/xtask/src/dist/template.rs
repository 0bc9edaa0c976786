//! Files that name the archives of all platforms with their checksums.
//!
//! | placeholder | value |
//! |---|---|
//! | `{{version}}` | the version with a leading v, as in the tag |
//! | `{{number}}` | the version without it |
//! | `{{sha256 PLATFORM}}` | the checksum of the archive for this platform |

use std::collections::BTreeMap;

use anyhow::Context as _;

/// A file that is made from a template.
pub(super) struct File {
    /// Its name in the release.
    pub(super) name: &'static str,
    /// The text of its template.
    pub(super) template: &'static str,
}

/// All files that are made from templates.
pub(super) const FILES: [File; 2] = [
    File { name: "pinniped.yaml", template: include_str!("../../../../deploy/krew/pinniped.yaml") },
    File { name: "pinniped.rb", template: include_str!("../../../../deploy/homebrew/pinniped.rb.in") },
];

/// Fills a template, or returns the platforms that it names and that are not in `sums`.
pub(super) fn fill(
    template: &str,
    version: &str,
    sums: &BTreeMap<&str, String>,
) -> anyhow::Result<Result<String, Vec<String>>> {
    let (mut text, mut missing) = (String::new(), Vec::new());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").context("a placeholder of a template has no end")?;
        text.push_str(before);
        match name.split_once(' ') {
            None if name == "version" => text.push_str(&format!("v{version}")),
            None if name == "number" => text.push_str(version),
            Some(("sha256", platform)) => match sums.get(platform) {
                Some(sum) => text.push_str(sum),
                None => missing.push(platform.to_owned()),
            },
            _ => anyhow::bail!("a template has the unknown placeholder {name:?}"),
        }
        rest = after;
    }
    text.push_str(rest);
    Ok(if missing.is_empty() { Ok(text) } else { Err(missing) })
}

#[cfg(test)]
mod tests {
    use super::super::platform::PLATFORMS;
    use super::*;

    #[test]
    fn placeholders_are_replaced_and_missing_platforms_are_named() {
        let sums = BTreeMap::from([("linux-amd64", "00ff".to_owned())]);
        let filled = fill("{{version}} {{number}} {{sha256 linux-amd64}}.", "1.2.3", &sums).unwrap();
        assert_eq!(filled.unwrap(), "v1.2.3 1.2.3 00ff.");
        let missing = fill("{{sha256 a}}{{sha256 linux-amd64}}{{sha256 b}}", "1.2.3", &sums).unwrap();
        assert_eq!(missing.unwrap_err(), ["a", "b"]);
        for wrong in ["{{version", "{{versions}}", "{{md5 linux-amd64}}"] {
            assert!(fill(wrong, "1.2.3", &sums).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_templates_name_archives_of_known_platforms() {
        let sums = PLATFORMS.iter().map(|platform| (platform.name, format!("sum-of-{}", platform.name)));
        let sums: BTreeMap<&str, String> = sums.collect();
        for file in FILES {
            let text = fill(file.template, "1.2.3", &sums).unwrap().unwrap();
            for platform in PLATFORMS.iter().filter(|platform| text.contains(&sums[platform.name])) {
                let archive = format!("pinniped-v1.2.3-{}{}", platform.name, platform.extension());
                assert!(text.contains(&format!("/v1.2.3/{archive}")), "{}: {archive}", file.name);
            }
            assert!(text.contains(&sums["darwin-arm64"]), "{}", file.name);
        }
    }
}
