//! The tables of fields in `docs/reference/crds.md`, which `cargo xtask manifests` renders from the
//! definitions in `deploy/crds`.
//!
//! The text between the tables is written by hand. A comment before each table names the kind and
//! the part of its schema, and another comment ends the table. A field that upstream's definitions
//! do not have, and a value that they refuse, has the mark `**+**`.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

/// The page with the tables.
pub(crate) const PAGE: &str = "docs/reference/crds.md";
/// Upstream's definitions, whose files have the same names as those of the project.
const UPSTREAM: &str = "testdata/upstream/crds";

const BEGIN: &str = "<!-- Rendered from deploy/crds by `cargo xtask manifests`: ";
const END: &str = "<!-- End of the rendered table -->";
/// The mark of an addition.
const ADDED: &str = "**+** ";

/// Returns the page below `root` with the tables of these definitions, which are pairs of a path
/// and a text.
pub(crate) fn page(root: &Path, definitions: &[(&str, String)]) -> anyhow::Result<String> {
    let page = root.join(PAGE);
    let page =
        std::fs::read_to_string(&page).with_context(|| format!("could not read {}", page.display()))?;
    let mut kinds = Vec::new();
    for (file, text) in definitions {
        let name = Path::new(file).file_name().context("a definition has no name")?;
        let upstream = root.join(UPSTREAM).join(name);
        let upstream = std::fs::read_to_string(&upstream)
            .with_context(|| format!("could not read {}", upstream.display()))?;
        kinds.push(Kind { ours: parsed(text)?, theirs: parsed(&upstream)? });
    }
    let text = with_tables(&page, &kinds)?;
    for kind in &kinds {
        for part in ["spec", "status"] {
            let comment = format!("{BEGIN}{} {part} -->", kind.name()?);
            anyhow::ensure!(text.contains(&comment), "{PAGE} has no line {comment}");
        }
    }
    Ok(text)
}

/// The definition of a kind by this project and by upstream.
struct Kind {
    ours: Value,
    theirs: Value,
}

fn parsed(definition: &str) -> anyhow::Result<Value> {
    serde_saphyr::from_str(definition).context("a definition is not YAML")
}

impl Kind {
    fn name(&self) -> anyhow::Result<&str> {
        self.ours["spec"]["names"]["kind"].as_str().context("a definition has no kind")
    }

    /// Returns the table of the fields of `part`.
    fn table(&self, part: &str) -> anyhow::Result<String> {
        let schema = |definition: &'_ Value| {
            let versions = definition["spec"]["versions"].as_array();
            let version = versions.and_then(|versions| versions.first()).cloned().unwrap_or_default();
            version["schema"]["openAPIV3Schema"]["properties"][part].clone()
        };
        let ours = schema(&self.ours);
        anyhow::ensure!(ours.is_object(), "{} has no {part}", self.name()?);
        let mut text = format!("| Field of `{part}` | Values | Description |\n|---|---|---|\n");
        Table { text: &mut text, is_input: part == "spec" }.add("", &ours, &schema(&self.theirs))?;
        Ok(text)
    }
}

/// Replaces the tables of the page.
fn with_tables(page: &str, kinds: &[Kind]) -> anyhow::Result<String> {
    let mut text = String::with_capacity(page.len());
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").context("a comment in the page has no end")?;
        let (kind, part) = name.split_once(' ').with_context(|| format!("{name:?} has no part"))?;
        let found = kinds.iter().find(|known| known.name().is_ok_and(|known| known == kind));
        let table = found.with_context(|| format!("there is no kind {kind}"))?.table(part)?;
        let (_, after) = after.split_once(END).with_context(|| format!("the table of {name} has no end"))?;
        text.push_str(&format!("{before}{BEGIN}{name} -->\n\n{table}\n{END}"));
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// A table of fields.
struct Table<'a> {
    text: &'a mut String,
    /// Whether administrators write the fields, so that it matters which ones are required.
    is_input: bool,
}

impl Table<'_> {
    /// Appends a row for each field of an object, and for the fields below it. `theirs` is
    /// upstream's schema of the object, or null.
    fn add(&mut self, prefix: &str, ours: &Value, theirs: &Value) -> anyhow::Result<()> {
        let required = ours["required"].as_array();
        for (name, field) in ours["properties"].as_object().into_iter().flatten() {
            let known = &theirs["properties"][name];
            let is_list = field["type"] == "array";
            let path = format!("{prefix}{name}{}", if is_list { "[]" } else { "" });
            let mark = if known.is_null() { ADDED } else { "" };
            let mut values = values(field, known);
            let is_required = required.is_some_and(|names| names.iter().any(|required| required == name));
            if self.is_input && is_required && field.get("default").is_none() {
                values.push_str(", required");
            }
            let description =
                field["description"].as_str().with_context(|| format!("{path} has no description"))?;
            self.text.push_str(&format!("| {mark}`{path}` | {values} | {} |\n", formatted(description)));
            // The standard fields of a condition are on the page about conditions.
            if name == "conditions" {
                continue;
            }
            let (field, known) = if is_list { (&field["items"], &known["items"]) } else { (field, known) };
            self.add(&format!("{path}."), field, known)?;
        }
        Ok(())
    }
}

/// Returns the values that a field accepts.
fn values(field: &Value, known: &Value) -> String {
    let default = field.get("default");
    if let Some(values) = field["enum"].as_array() {
        let values = values.iter().filter_map(Value::as_str).map(|value| {
            let theirs = known["enum"].as_array();
            let is_new = theirs.is_some_and(|theirs| !theirs.iter().any(|theirs| theirs == value));
            let is_default = default.is_some_and(|default| default == value);
            let (mark, end) = (if is_new { ADDED } else { "" }, if is_default { " (default)" } else { "" });
            format!("{mark}`{value}`{end}")
        });
        return values.collect::<Vec<_>>().join(", ");
    }
    match field["type"].as_str() {
        Some("object") if field.get("additionalProperties").is_some() => "map of texts".to_owned(),
        Some("array") if field["items"].get("properties").is_some() => "list of objects".to_owned(),
        Some("array") => match field["maxItems"].as_u64() {
            Some(most) => format!("list of at most {most} texts"),
            None => "list of texts".to_owned(),
        },
        Some("integer") => match (field["minimum"].as_i64(), field["maximum"].as_i64()) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("{least} or more"),
            _ => "number".to_owned(),
        },
        Some("string") if field["format"] == "date-time" => "time".to_owned(),
        Some("string") if field["pattern"] == "^https://" => "`https` URL".to_owned(),
        Some("string") if field.get("pattern").is_some() => "URL".to_owned(),
        Some("string") => match (field["minLength"].as_u64(), field["maxLength"].as_u64()) {
            (Some(least), Some(most)) => format!("{least} to {most} characters"),
            (Some(_), None) => "text, not empty".to_owned(),
            _ => "text".to_owned(),
        },
        Some(other) => other.to_owned(),
        None => String::new(),
    }
}

/// Returns a description as Markdown: words in quotation marks as code, and addresses as links.
fn formatted(description: &str) -> String {
    let mut text = String::with_capacity(description.len());
    for (index, part) in description.replace('|', "\\|").split('"').enumerate() {
        let is_quoted = index % 2 == 1;
        text.push_str(&if is_quoted { format!("`{part}`") } else { part.to_owned() });
    }
    let link = |word: &str| match word.strip_suffix('.') {
        _ if !word.starts_with("https://") => word.to_owned(),
        Some(address) => format!("<{address}>."),
        None => format!("<{word}>"),
    };
    text.split(' ').map(link).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind() -> Kind {
        let definition = |spec: Value| {
            json!({"spec": {"names": {"kind": "Tuna"}, "versions": [
                {"schema": {"openAPIV3Schema": {"properties": {"spec": spec}}}}
            ]}})
        };
        let ours = json!({"required": ["size", "where"], "properties": {
            "fins": {"type": "array", "description": "The fins.", "items": {"properties": {
                "length": {"type": "integer", "minimum": 1, "description": "In cm."}
            }}},
            "size": {"enum": ["small", "large"], "default": "small", "description": "Is \"small\" | not."},
            "where": {"type": "string", "pattern": "^https://", "description": "See https://a.example/b."}
        }});
        let theirs = json!({"properties": {"size": {"enum": ["small"]}, "where": {"type": "string"}}});
        Kind { ours: definition(ours), theirs: definition(theirs) }
    }

    #[test]
    fn the_table_has_every_field_with_its_values_and_marks_additions() {
        let wanted = "| Field of `spec` | Values | Description |\n|---|---|---|\n\
                      | **+** `fins[]` | list of objects | The fins. |\n\
                      | **+** `fins[].length` | 1 or more | In cm. |\n\
                      | `size` | `small` (default), **+** `large` | Is `small` \\| not. |\n\
                      | `where` | `https` URL, required | See <https://a.example/b>. |\n";
        assert_eq!(kind().table("spec").unwrap(), wanted);
        assert!(kind().table("status").is_err());
    }

    #[test]
    fn a_table_is_replaced_between_its_comments() {
        let page = format!("A\n\n{BEGIN}Tuna spec -->\nold\n{END}\n\nB\n");
        let wanted = format!("A\n\n{BEGIN}Tuna spec -->\n\n{}\n{END}\n\nB\n", kind().table("spec").unwrap());
        let once = with_tables(&page, &[kind()]).unwrap();
        assert_eq!(once, wanted);
        assert_eq!(with_tables(&once, &[kind()]).unwrap(), wanted);
        for bad in [format!("{BEGIN}Tuna spec -->\n"), format!("{BEGIN}Salmon spec -->\n{END}\n")] {
            assert!(with_tables(&bad, &[kind()]).is_err(), "{bad}");
        }
    }
}
