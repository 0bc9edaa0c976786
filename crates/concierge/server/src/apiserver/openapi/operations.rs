//! The operations of this server, for both OpenAPI documents.

use pinniped_concierge_api::names::VERSION;
use pinniped_kube_types::suffix::GroupSuffix;

use crate::apiserver::catalog::Kind;

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) path: String,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) tag: String,
    pub(super) action: Action,
    /// The short name of the response's model.
    pub(super) response_model: String,
}

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A discovery document.
    Discover,
    /// The version, which is JSON only.
    Version,
    List(Kind),
    Create(Kind),
}

impl Action {
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Create(_) => "post",
            Self::Discover | Self::Version | Self::List(_) => "get",
        }
    }

    /// Returns the value of `x-kubernetes-action`, and the kind.
    pub(super) fn on_kind(self) -> Option<(&'static str, Kind)> {
        match self {
            Self::List(kind) => Some(("list", kind)),
            Self::Create(kind) => Some(("post", kind)),
            Self::Discover | Self::Version => None,
        }
    }
}

/// A query parameter.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) ty: &'static str,
    pub(super) description: &'static str,
}

/// The parameter of both operations of a resource.
pub(super) const PRETTY: Parameter = Parameter {
    name: "pretty",
    ty: "string",
    description: "If 'true', the response is indented for readability.",
};

/// The parameters of `create`.
pub(super) const CREATE: [Parameter; 3] = [
    Parameter { name: "dryRun", ty: "string", description: "Not supported by this resource." },
    Parameter {
        name: "fieldManager",
        ty: "string",
        description: "The name of the actor that makes the change.",
    },
    Parameter {
        name: "fieldValidation",
        ty: "string",
        description: "What to do with unknown and duplicate fields: 'Ignore', 'Warn' or 'Strict'.",
    },
];

/// The parameters of `list`. All are accepted, and none has an effect, because nothing is stored.
pub(super) const LIST: [Parameter; 11] = [
    Parameter {
        name: "allowWatchBookmarks",
        ty: "boolean",
        description: "Whether a watch may send bookmarks.",
    },
    Parameter { name: "continue", ty: "string", description: "Requests the next part of a long list." },
    Parameter { name: "fieldSelector", ty: "string", description: "Restricts the list by fields." },
    Parameter { name: "labelSelector", ty: "string", description: "Restricts the list by labels." },
    Parameter { name: "limit", ty: "integer", description: "The maximum number of items in a response." },
    Parameter { name: "resourceVersion", ty: "string", description: "The version of the response." },
    Parameter {
        name: "resourceVersionMatch",
        ty: "string",
        description: "The method by which the version is matched.",
    },
    Parameter {
        name: "sendInitialEvents",
        ty: "boolean",
        description: "Whether a watch begins with the existing objects.",
    },
    Parameter {
        name: "shardSelector",
        ty: "string",
        description: "Restricts the list to a part of the collection.",
    },
    Parameter { name: "timeoutSeconds", ty: "integer", description: "The time limit of the call." },
    Parameter { name: "watch", ty: "boolean", description: "Requests changes instead of a list." },
];

/// Returns the operations by the key of their v3 document.
pub(super) fn all(suffix: &GroupSuffix) -> Vec<(String, Vec<Operation>)> {
    let discover = |path: String, id: String, description: &str, tag: String, response: &str| Operation {
        path,
        id,
        description: description.to_owned(),
        tag,
        action: Action::Discover,
        response_model: response.to_owned(),
    };
    let mut documents = vec![(
        "apis".to_owned(),
        vec![discover(
            "/apis/".to_owned(),
            "getAPIVersions".to_owned(),
            "get available API versions",
            "apis".to_owned(),
            "meta.APIGroupList",
        )],
    )];
    for kind in Kind::ALL {
        let group = kind.group(suffix);
        let camel = camel_case(&group);
        let tag = lower_first(&camel);
        let version_tag = format!("{tag}_{VERSION}");
        let version = format!("{camel}{}", upper_first(VERSION));
        documents.push((
            format!("apis/{group}"),
            vec![discover(
                format!("/apis/{group}/"),
                format!("get{camel}APIGroup"),
                "get information of a group",
                tag,
                "meta.APIGroup",
            )],
        ));
        let collection = format!("/apis/{group}/{VERSION}/{}", kind.plural());
        let name = kind.as_str();
        documents.push((
            format!("apis/{group}/{VERSION}"),
            vec![
                discover(
                    format!("/apis/{group}/{VERSION}/"),
                    format!("get{version}APIResources"),
                    "get available resources",
                    version_tag.clone(),
                    "meta.APIResourceList",
                ),
                Operation {
                    path: collection.clone(),
                    id: format!("list{version}{name}"),
                    description: format!("list objects of kind {name}"),
                    tag: version_tag.clone(),
                    action: Action::List(kind),
                    response_model: format!("{}.{VERSION}.{name}List", kind.package()),
                },
                Operation {
                    path: collection,
                    id: format!("create{version}{name}"),
                    description: format!("create a {name}"),
                    tag: version_tag,
                    action: Action::Create(kind),
                    response_model: format!("{}.{VERSION}.{name}", kind.package()),
                },
            ],
        ));
    }
    documents.push((
        "version".to_owned(),
        vec![Operation {
            path: "/version/".to_owned(),
            id: "getCodeVersion".to_owned(),
            description: "get the version information for this server".to_owned(),
            tag: "version".to_owned(),
            action: Action::Version,
            response_model: "version.Info".to_owned(),
        }],
    ));
    documents
}

/// Converts `login.concierge.pinniped.dev` to `LoginConciergePinnipedDev`.
fn camel_case(group: &str) -> String {
    group.split(|c: char| !c.is_ascii_alphanumeric()).map(upper_first).collect()
}

fn upper_first(text: &str) -> String {
    match text.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    }
}

fn lower_first(text: &str) -> String {
    match text.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_lowercase() + rest,
        None => String::new(),
    }
}
