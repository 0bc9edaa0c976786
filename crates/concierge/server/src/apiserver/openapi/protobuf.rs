//! OpenAPI v2 as protobuf: `openapi.v2.Document` of github.com/google/gnostic-models, which kubectl
//! and client-go request.
//!
//! The messages are described by tables ([`Shape`]) with the fields that our document has, and the
//! document is converted from JSON with them. The schema has a message for each choice and for each
//! entry of an object, so the tables are deeper than the JSON document. As in proto3, empty texts
//! and `false` are not written.

use pinniped_go_compat::yaml as goyaml;
use pinniped_kube_types::protobuf::Message;
use serde_json::Value;

/// The structure of a message.
pub(super) enum Shape {
    /// An object with known members. Members whose names begin with `x-` are entries of the field
    /// `extensions`.
    Record { fields: &'static [Field], extensions: u32 },
    /// An object with arbitrary members: a repeated field of entries with a name and a value.
    Entries(u32, &'static Shape),
    /// A message with one field, which has the value itself.
    Only(u32, Content),
    /// A message with one of two fields: the first for a parameter in the body, the second for
    /// other parameters.
    BodyOr([(u32, &'static Shape); 2]),
}

/// A field of a message.
pub(super) struct Field {
    /// The member of the JSON object.
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) content: Content,
}

/// The type of a field.
#[derive(Clone, Copy)]
pub(super) enum Content {
    Text,
    Texts,
    Flag,
    One(&'static Shape),
    Many(&'static Shape),
}

use Content::{Flag, Many, One, Text, Texts};
use Shape::{BodyOr, Entries, Only, Record};

const fn field(name: &'static str, number: u32, content: Content) -> Field {
    Field { name, number, content }
}

/// The fields of a value with a name.
const NAME: u32 = 1;
const VALUE: u32 = 2;

/// The field of `Any` that contains YAML.
const YAML: u32 = 2;

/// `Document`.
pub(super) static DOCUMENT: Shape = Record {
    fields: &[
        field("swagger", 1, Text),
        field("info", 2, One(&INFO)),
        field("paths", 8, One(&Entries(2, &PATH_ITEM))),
        field("definitions", 9, One(&Entries(1, &SCHEMA))),
    ],
    extensions: 16,
};

static INFO: Shape = Record { fields: &[field("title", 1, Text), field("version", 2, Text)], extensions: 7 };

static PATH_ITEM: Shape = Record {
    fields: &[
        field("get", 2, One(&OPERATION)),
        field("post", 4, One(&OPERATION)),
        field("parameters", 9, Many(&PARAMETERS_ITEM)),
    ],
    extensions: 10,
};

static OPERATION: Shape = Record {
    fields: &[
        field("tags", 1, Texts),
        field("description", 3, Text),
        field("operationId", 5, Text),
        field("produces", 6, Texts),
        field("consumes", 7, Texts),
        field("parameters", 8, Many(&PARAMETERS_ITEM)),
        field("responses", 9, One(&Entries(1, &RESPONSE_VALUE))),
        field("schemes", 10, Texts),
    ],
    extensions: 13,
};

/// The first choice is a parameter, the other one is a reference to a shared one.
static PARAMETERS_ITEM: Shape = Only(1, One(&PARAMETER));

static PARAMETER: Shape = BodyOr([(1, &BODY_PARAMETER), (2, &NON_BODY_PARAMETER)]);

static BODY_PARAMETER: Shape = Record {
    fields: &[
        field("description", 1, Text),
        field("name", 2, Text),
        field("in", 3, Text),
        field("required", 4, Flag),
        field("schema", 5, One(&SCHEMA)),
    ],
    extensions: 6,
};

/// All other parameters of this server are in the query.
static NON_BODY_PARAMETER: Shape = Only(3, One(&QUERY_PARAMETER));

static QUERY_PARAMETER: Shape = Record {
    fields: &[
        field("required", 1, Flag),
        field("in", 2, Text),
        field("description", 3, Text),
        field("name", 4, Text),
        field("type", 6, Text),
        field("uniqueItems", 20, Flag),
    ],
    extensions: 23,
};

static RESPONSE_VALUE: Shape = Only(1, One(&RESPONSE));

static RESPONSE: Shape = Record {
    fields: &[field("description", 1, Text), field("schema", 2, One(&Only(1, One(&SCHEMA))))],
    extensions: 5,
};

static SCHEMA: Shape = Record {
    fields: &[
        field("$ref", 1, Text),
        field("format", 2, Text),
        field("description", 4, Text),
        field("required", 19, Texts),
        field("additionalProperties", 21, One(&Only(1, One(&SCHEMA)))),
        field("type", 22, One(&Only(1, Text))),
        field("items", 23, One(&Only(1, One(&SCHEMA)))),
        field("properties", 25, One(&Entries(1, &SCHEMA))),
    ],
    extensions: 31,
};

/// Encodes a document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    message(&DOCUMENT, document).into_bytes()
}

fn message(shape: &Shape, value: &Value) -> Message {
    let mut out = Message::default();
    let members = || value.as_object().into_iter().flatten();
    match shape {
        Record { fields, extensions } => {
            for field in *fields {
                if let Some(value) = value.get(field.name) {
                    write(&mut out, field.number, field.content, value);
                }
            }
            for (name, value) in members().filter(|(name, _)| name.starts_with("x-")) {
                let mut any = Message::default();
                any.string(YAML, &goyaml::to_string(value));
                out.message(*extensions, &entry(name, &any));
            }
        }
        Entries(number, shape) => {
            for (name, value) in members() {
                out.message(*number, &entry(name, &message(shape, value)));
            }
        }
        Only(number, content) => write(&mut out, *number, *content, value),
        BodyOr([body, other]) => {
            let (number, shape) = if value["in"] == "body" { body } else { other };
            out.message(*number, &message(shape, value));
        }
    }
    out
}

fn entry(name: &str, value: &Message) -> Message {
    let mut entry = Message::default();
    entry.string(NAME, name).message(VALUE, value);
    entry
}

fn write(out: &mut Message, number: u32, content: Content, value: &Value) {
    let items = || value.as_array().into_iter().flatten();
    match content {
        Text => {
            if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
                out.string(number, text);
            }
        }
        Texts => {
            for text in items().filter_map(Value::as_str) {
                out.string(number, text);
            }
        }
        Flag => {
            if value == true {
                out.number(number, 1);
            }
        }
        One(shape) => _ = out.message(number, &message(shape, value)),
        Many(shape) => {
            for item in items() {
                out.message(number, &message(shape, item));
            }
        }
    }
}
