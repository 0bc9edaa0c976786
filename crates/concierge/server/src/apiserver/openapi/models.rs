//! The models of all objects that this server sends or accepts: one table, from which both OpenAPI
//! documents and the validation of request bodies are derived.
//!
//! Structure, formats and markers are those of the published Kubernetes and Pinniped APIs;
//! descriptions are ours.

use Type::{Count, Flag, List, Map, Object, Pointer, Text};

/// The model of one object.
#[derive(Debug)]
pub(in crate::apiserver) struct Model {
    /// Short name: package (with its version, if any) and type.
    pub(in crate::apiserver) name: &'static str,
    pub(in crate::apiserver) form: Form,
    pub(in crate::apiserver) description: &'static str,
    pub(in crate::apiserver) fields: &'static [Field],
}

/// The special property of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum Form {
    Plain,
    /// A kind of this server, or a list of one.
    Kind,
    /// A kind of version v1 without a group.
    Meta,
    /// Merged as a whole.
    Atomic,
    /// A time, serialized as a string instead of an object.
    Time,
}

/// One member of a model.
#[derive(Debug)]
pub(in crate::apiserver) struct Field {
    pub(in crate::apiserver) name: &'static str,
    pub(in crate::apiserver) required: bool,
    pub(in crate::apiserver) ty: Type,
    pub(in crate::apiserver) description: &'static str,
}

/// The type of a member.
#[derive(Debug)]
pub(in crate::apiserver) enum Type {
    Text,
    Flag,
    Count,
    /// A required object, by the short name of its model.
    Object(&'static str),
    /// An optional object, by the short name of its model.
    Pointer(&'static str),
    List(&'static Type, ListKind),
    Map(&'static Type),
}

/// The merge strategy of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum ListKind {
    Plain,
    Atomic,
    Finalizers,
    Owners,
}

const API_VERSION: &str = "Group and version of this form of the object.";
const KIND: &str = "The kind of the object.";

const fn required(name: &'static str, ty: Type, description: &'static str) -> Field {
    Field { name, required: true, ty, description }
}

const fn optional(name: &'static str, ty: Type, description: &'static str) -> Field {
    Field { name, required: false, ty, description }
}

/// Returns the model with a short name.
pub(in crate::apiserver) fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}

impl Model {
    /// Returns the name in OpenAPI documents.
    pub(in crate::apiserver) fn full_name(&self) -> String {
        full_name(self.name)
    }
}

/// Returns the name of a model in OpenAPI documents.
pub(in crate::apiserver) fn full_name(short: &str) -> String {
    let (package, rest) = short.split_once('.').unwrap_or(("", short));
    match package {
        "meta" => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{rest}"),
        "core" => format!("io.k8s.api.core.v1.{rest}"),
        "version" => format!("io.k8s.apimachinery.pkg.version.{rest}"),
        _ => format!("dev.pinniped.apis.concierge.{short}"),
    }
}

/// All models.
#[rustfmt::skip]
pub(in crate::apiserver) const MODELS: &[Model] = &[
    Model { name: "login.v1alpha1.TokenCredentialRequest", form: Form::Kind, description: "Exchanges a token for a credential of this cluster.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        optional("kind", Text, KIND),
        optional("metadata", Object("meta.ObjectMeta"), "Standard metadata of the object."),
        optional("spec", Object("login.v1alpha1.TokenCredentialRequestSpec"), "The token and the authenticator that validates it."),
        optional("status", Object("login.v1alpha1.TokenCredentialRequestStatus"), "The credential, or the reason for its absence."),
    ] },
    Model { name: "login.v1alpha1.TokenCredentialRequestList", form: Form::Kind, description: "The collection of requests. Nothing is stored, so it is always empty.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        required("items", List(&Object("login.v1alpha1.TokenCredentialRequest"), ListKind::Plain), "The requests."),
        optional("kind", Text, KIND),
        optional("metadata", Object("meta.ListMeta"), "Standard metadata of the list."),
    ] },
    Model { name: "login.v1alpha1.TokenCredentialRequestSpec", form: Form::Plain, description: "The parameters of a login.", fields: &[
        optional("acceptCredentialTypes", List(&Text, ListKind::Plain), "The types of credential that the client can use, in order of preference: ClientCertificate, ServiceAccountToken. The default is ClientCertificate."),
        required("authenticator", Object("core.TypedLocalObjectReference"), "The authenticator object that validates the token."),
        optional("token", Text, "The bearer token of the user."),
    ] },
    Model { name: "login.v1alpha1.TokenCredentialRequestStatus", form: Form::Plain, description: "The result of a login.", fields: &[
        optional("credential", Pointer("login.v1alpha1.ClusterCredential"), "The credential; absent when the login failed."),
        optional("impersonate", Pointer("login.v1alpha1.ImpersonatedUser"), "The user that every request with the credential must impersonate; present if and only if the credential is a token."),
        optional("message", Text, "The message for the user when the login failed."),
    ] },
    Model { name: "login.v1alpha1.ClusterCredential", form: Form::Plain, description: "A credential that the cluster accepts.", fields: &[
        optional("clientCertificateData", Text, "Client certificate, PEM."),
        optional("clientKeyData", Text, "Private key of the client certificate, PEM."),
        optional("expirationTimestamp", Pointer("meta.Time"), "The time at which the credential expires."),
        optional("token", Text, "A bearer token for the cluster."),
    ] },
    Model { name: "login.v1alpha1.ImpersonatedUser", form: Form::Plain, description: "The user that the holder of a token impersonates: the user who logged in.", fields: &[
        optional("extra", Map(&List(&Text, ListKind::Plain)), "Further facts about the user."),
        optional("groups", List(&Text, ListKind::Plain), "The user's groups, sorted and each once."),
        optional("uid", Text, "The user's UID, if it has one."),
        required("username", Text, "The user's name."),
    ] },
    Model { name: "identity.v1alpha1.WhoAmIRequest", form: Form::Kind, description: "Requests the identity of the caller.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        optional("kind", Text, KIND),
        optional("metadata", Object("meta.ObjectMeta"), "Standard metadata of the object."),
        optional("spec", Object("identity.v1alpha1.WhoAmIRequestSpec"), "Empty: the request has no parameters."),
        optional("status", Object("identity.v1alpha1.WhoAmIRequestStatus"), "The caller."),
    ] },
    Model { name: "identity.v1alpha1.WhoAmIRequestList", form: Form::Kind, description: "The collection of requests. Nothing is stored, so it is always empty.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        required("items", List(&Object("identity.v1alpha1.WhoAmIRequest"), ListKind::Plain), "The requests."),
        optional("kind", Text, KIND),
        optional("metadata", Object("meta.ListMeta"), "Standard metadata of the list."),
    ] },
    Model { name: "identity.v1alpha1.WhoAmIRequestSpec", form: Form::Plain, description: "Empty: the request has no parameters.", fields: &[
    ] },
    Model { name: "identity.v1alpha1.WhoAmIRequestStatus", form: Form::Plain, description: "The identity of the caller.", fields: &[
        required("kubernetesUserInfo", Object("identity.v1alpha1.KubernetesUserInfo"), "The caller as Kubernetes sees it."),
    ] },
    Model { name: "identity.v1alpha1.KubernetesUserInfo", form: Form::Plain, description: "A caller as Kubernetes sees it.", fields: &[
        optional("audiences", List(&Text, ListKind::Plain), "Audiences for which the caller was authenticated."),
        required("user", Object("identity.v1alpha1.UserInfo"), "The caller."),
    ] },
    Model { name: "identity.v1alpha1.UserInfo", form: Form::Plain, description: "The identity of a user.", fields: &[
        optional("extra", Map(&List(&Text, ListKind::Plain)), "Additional information about the user from the authenticator."),
        optional("groups", List(&Text, ListKind::Plain), "Groups of which the user is a member."),
        optional("uid", Text, "Distinguishes users that have the same name at different times."),
        required("username", Text, "The name, which is unique among all active users."),
    ] },
    Model { name: "core.TypedLocalObjectReference", form: Form::Atomic, description: "Names an object of a known group and kind.", fields: &[
        optional("apiGroup", Text, "API group of the object; absent means the core group."),
        required("kind", Text, "Kind of the object."),
        required("name", Text, "Name of the object."),
    ] },
    Model { name: "meta.APIGroup", form: Form::Meta, description: "The name of an API group and the versions it is served in.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        optional("kind", Text, KIND),
        required("name", Text, "The name of the group."),
        optional("preferredVersion", Object("meta.GroupVersionForDiscovery"), "The version that the server prefers."),
        optional("serverAddressByClientCIDRs", List(&Object("meta.ServerAddressByClientCIDR"), ListKind::Atomic), "Addresses of the server by the network of the client."),
        required("versions", List(&Object("meta.GroupVersionForDiscovery"), ListKind::Atomic), "The versions of the group."),
    ] },
    Model { name: "meta.APIGroupList", form: Form::Meta, description: "All API groups of a server.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        required("groups", List(&Object("meta.APIGroup"), ListKind::Atomic), "The groups."),
        optional("kind", Text, KIND),
    ] },
    Model { name: "meta.APIResource", form: Form::Plain, description: "The name of a resource and the operations on it.", fields: &[
        optional("categories", List(&Text, ListKind::Atomic), "Groups of resources to which it belongs, such as `all`."),
        optional("group", Text, "The resource's own group when it is not that of the list."),
        required("kind", Text, "Kind of the resource's objects."),
        required("name", Text, "The plural name of the resource."),
        required("namespaced", Flag, "Whether its objects live in namespaces."),
        optional("shortNames", List(&Text, ListKind::Atomic), "Short names of the resource."),
        required("singularName", Text, "The singular name of the resource."),
        optional("storageVersionHash", Text, "A hash that changes with the storage version of the objects."),
        required("verbs", List(&Text, ListKind::Plain), "The verbs that the resource supports."),
        optional("version", Text, "The resource's own version when it is not that of the list."),
    ] },
    Model { name: "meta.APIResourceList", form: Form::Meta, description: "The resources of one version of a group.", fields: &[
        optional("apiVersion", Text, API_VERSION),
        required("groupVersion", Text, "The group and version."),
        optional("kind", Text, KIND),
        required("resources", List(&Object("meta.APIResource"), ListKind::Atomic), "The resources."),
    ] },
    Model { name: "meta.FieldsV1", form: Form::Plain, description: "The set of fields that a manager of an object owns, in a special format.", fields: &[
    ] },
    Model { name: "meta.GroupVersionForDiscovery", form: Form::Plain, description: "A group and version, combined and separate.", fields: &[
        required("groupVersion", Text, "Group and version, joined by a slash."),
        required("version", Text, "The version alone."),
    ] },
    Model { name: "meta.ListMeta", form: Form::Plain, description: "Metadata of lists.", fields: &[
        optional("continue", Text, "The token to request the next part of a long list with."),
        optional("remainingItemCount", Count, "The number of items in the following parts, if known."),
        optional("resourceVersion", Text, "The version of the collection, to be compared for equality only."),
        optional("selfLink", Text, "Not used any more."),
        optional("shardInfo", Pointer("meta.ShardInfo"), "The part of the collection that the list contains, if a part was requested."),
    ] },
    Model { name: "meta.ManagedFieldsEntry", form: Form::Plain, description: "The fields of an object that one manager owns.", fields: &[
        optional("apiVersion", Text, "The version of the resource to which the set of fields applies."),
        optional("fieldsType", Text, "Form of the set of fields: `FieldsV1`."),
        optional("fieldsV1", Pointer("meta.FieldsV1"), "The set of fields."),
        optional("manager", Text, "The name of the manager."),
        optional("operation", Text, "`Apply` or `Update`."),
        optional("subresource", Text, "The subresource through which the fields were written; empty for the object itself."),
        optional("time", Pointer("meta.Time"), "When the set was last changed."),
    ] },
    Model { name: "meta.ObjectMeta", form: Form::Plain, description: "Metadata that every object has.", fields: &[
        optional("annotations", Map(&Text), "Values for tools, not to be selected by."),
        optional("creationTimestamp", Pointer("meta.Time"), "When the object was created."),
        optional("deletionGracePeriodSeconds", Count, "The number of seconds for graceful termination after the object is deleted."),
        optional("deletionTimestamp", Pointer("meta.Time"), "The time at which the object will be deleted."),
        optional("finalizers", List(&Text, ListKind::Finalizers), "The components that must agree before the object is removed."),
        optional("generateName", Text, "A prefix from which the server generates a name."),
        optional("generation", Count, "A sequence number of the desired state."),
        optional("labels", Map(&Text), "Values by which objects are selected."),
        optional("managedFields", List(&Object("meta.ManagedFieldsEntry"), ListKind::Atomic), "Which manager owns which fields."),
        optional("name", Text, "The name, which is unique in the namespace."),
        optional("namespace", Text, "The namespace; empty for cluster-scoped objects."),
        optional("ownerReferences", List(&Object("meta.OwnerReference"), ListKind::Owners), "The objects on which this one depends; it is deleted when all of them are deleted."),
        optional("resourceVersion", Text, "The version of the object, to be compared for equality only."),
        optional("selfLink", Text, "Not used any more."),
        optional("uid", Text, "Distinguishes objects that have the same name at different times."),
    ] },
    Model { name: "meta.OwnerReference", form: Form::Atomic, description: "Names an object that owns another.", fields: &[
        required("apiVersion", Text, "Group and version of the owner."),
        optional("blockOwnerDeletion", Flag, "Whether the owner must wait for this object when it is deleted in the foreground."),
        optional("controller", Flag, "Whether the owner is the controller of the object."),
        required("kind", Text, "Kind of the owner."),
        required("name", Text, "Name of the owner."),
        required("uid", Text, "UID of the owner."),
    ] },
    Model { name: "meta.ServerAddressByClientCIDR", form: Form::Plain, description: "The address of a server for some of its clients.", fields: &[
        required("clientCIDR", Text, "The clients, by network."),
        required("serverAddress", Text, "The address: host name, IP address, each perhaps with a port."),
    ] },
    Model { name: "meta.ShardInfo", form: Form::Plain, description: "Which part of a collection a list is.", fields: &[
        required("selector", Text, "The selector of the request."),
    ] },
    Model { name: "meta.Time", form: Form::Time, description: "A point in time, RFC 3339.", fields: &[
    ] },
    Model { name: "version.Info", form: Form::Plain, description: "The version of the server.", fields: &[
        required("buildDate", Text, "The build date."),
        required("compiler", Text, "The compiler."),
        optional("emulationMajor", Text, "Major version that it behaves like."),
        optional("emulationMinor", Text, "Minor version that it behaves like."),
        required("gitCommit", Text, "The commit it was built from."),
        required("gitTreeState", Text, "Whether the tree had changes: `clean` or `dirty`."),
        required("gitVersion", Text, "The version's full name."),
        required("goVersion", Text, "The version of the language."),
        required("major", Text, "Major version."),
        optional("minCompatibilityMajor", Text, "Oldest major version it is compatible with."),
        optional("minCompatibilityMinor", Text, "Oldest minor version it is compatible with."),
        required("minor", Text, "Minor version."),
        required("platform", Text, "Operating system and processor."),
    ] },
];
