
2.0
Generic API Server0.0B¥¥Ø
/apis/§°
apisget available API versions*getAPIVersions2application/json2application/yaml2#application/vnd.kubernetes.protobuf:application/json:application/yaml:#application/vnd.kubernetes.protobufJT
R
200K
I
OKC
A
?#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupListRhttps¸
&/apis/identity.concierge.pinniped.dev/—Œ
identityConciergePinnipedDevget information of a group*'getIdentityConciergePinnipedDevAPIGroup2application/json2application/yaml2#application/vnd.kubernetes.protobuf:application/json:application/yaml:#application/vnd.kubernetes.protobufJP
N
200G
E
OK?
=
;#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupRhttpsû
//apis/identity.concierge.pinniped.dev/v1alpha1/ÍÁ
%identityConciergePinnipedDev_v1alpha1get available resources*3getIdentityConciergePinnipedDevV1alpha1APIResources2application/json2application/yaml2#application/vnd.kubernetes.protobuf:application/json:application/yaml:#application/vnd.kubernetes.protobufJW
U
200N
L
OKF
D
B#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceListRhttps‹Q
=/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequestsöQ“=
%identityConciergePinnipedDev_v1alpha1"list objects of kind WhoAmIRequest*5listIdentityConciergePinnipedDevV1alpha1WhoAmIRequest2application/json2application/yaml2#application/vnd.kubernetes.protobuf2application/json;stream=watch20application/vnd.kubernetes.protobuf;stream=watch:*/*B´
®•¢query˜allowWatchBookmarks requests watch events with type "BOOKMARK". Servers that do not implement bookmarks may ignore this flag and bookmarks are sent at the server's discretion. Clients should not assume bookmarks are returned at any specific interval, nor may they assume the server will send any BOOKMARK event during a session. If this is not a watch, this field is ignored."allowWatchBookmarks2boolean†BÔ	
Ï	È	Ê	query«	The continue option should be set when retrieving more results from the server. Since this value is server defined, clients may only use the continue value from a previous query result with identical query parameters (except for the value of continue) and the server may reject a continue value it does not recognize. If the specified continue value is no longer valid whether due to expiration (generally five to fifteen minutes) or a configuration change on the server, the server will respond with a 410 ResourceExpired error together with a continue token. If the client needs a consistent list, it must restart their list without the continue field. Otherwise, the client may send another list request with the token received with the 410 error, the server will respond with a list starting from the next key, but from the latest snapshot, which is inconsistent from the previous list results - objects that are created, modified, or deleted after the first list request will be included in the response, as long as their keys are after the "next key".

This field is not supported when watch is true. Clients may start a watch from the last resourceVersion value returned by the server and not miss any modifications."continue2string†Bá
ÑÅquery\A selector to restrict the list of returned objects by their fields. Defaults to everything."fieldSelector2string†Bá
ÑÅquery\A selector to restrict the list of returned objects by their labels. Defaults to everything."labelSelector2string†B˙

˜
Ù
Ò
query‘
limit is a maximum number of responses to return for a list call. If more items exist, the server will set the `continue` field on the list metadata to a value that can be used with the same initial query to retrieve the next set of results. Setting a limit may return fewer than the requested amount of items (up to zero items) in the event all requested objects are filtered out and clients should only use the presence of the continue field to determine whether more results are available. Servers may choose not to support the limit argument and will return all of the available results. If limit is specified and the continue field is empty, clients may assume that no more results are available. This field is not supported if watch is true.

The server guarantees that the objects returned when using continue will be identical to issuing a single list call without a limit - that is, no objects created, modified, or deleted after the first request is issued will be included in any subsequent continued requests. This is sometimes referred to as a consistent snapshot, and ensures that a client that is using limit to receive smaller chunks of a very large result can ensure they see all possible objects. If objects are updated during a chunked list the version of the object that was present at the time the first list result was calculated is returned."limit2integer†B˚
¯ıÚqueryÃresourceVersion sets a constraint on what resource versions a request may be served from. See https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details.

Defaults to unset"resourceVersion2string†B⁄
◊‘—query¶resourceVersionMatch determines how resourceVersion is applied to list calls. It is highly recommended that resourceVersionMatch be set for list calls where resourceVersion is set See https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details.

Defaults to unset"resourceVersionMatch2string†Bñ
ìêçquery‰
`sendInitialEvents=true` may be set together with `watch=true`. In that case, the watch stream will begin with synthetic events to produce the current state of objects in the collection. Once all such events have been sent, a synthetic "Bookmark" event  will be sent. The bookmark will report the ResourceVersion (RV) corresponding to the set of objects, and be marked with `"k8s.io/initial-events-end": "true"` annotation. Afterwards, the watch stream will proceed as usual, sending watch events corresponding to changes (subsequent to the RV) to objects watched.

When `sendInitialEvents` option is set, we require `resourceVersionMatch` option to also be set. The semantic of the watch request is as following: - `resourceVersionMatch` = NotOlderThan
  is interpreted as "data at least as new as the provided `resourceVersion`"
  and the bookmark event is send when the state is synced
  to a `resourceVersion` at least as fresh as the one provided by the ListOptions.
  If `resourceVersion` is unset, this is interpreted as "consistent read" and the
  bookmark event is send when the state is synced at least to the moment
  when request started being processed.
- `resourceVersionMatch` set to any other value or unset
  Invalid error is returned.

Defaults to true if `resourceVersion=""` or `resourceVersion="0"` (for backward compatibility reasons) and to false otherwise."sendInitialEvents2boolean†Bµ
≤Ø¨queryàshardSelector restricts the list of returned objects using a CEL-based shard selector expression. The format uses the shardRange() function combined with || (logical OR) to specify one or more hash ranges:

  shardRange(object.metadata.uid, '0x0', '0x8000000000000000')
  shardRange(object.metadata.uid, '0x0', '0x8000000000000000') || shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')

Field paths use CEL-style object-rooted syntax (e.g. "object.metadata.uid"), NOT the fieldSelector format ("metadata.uid"). Currently supported paths:
  - object.metadata.uid
  - object.metadata.namespace

hexStart and hexEnd are single-quoted CEL string literals with a '0x' prefix, defining the inclusive lower and exclusive upper bounds over the 64-bit FNV-1a hash space. The full range is [0x0, 0x10000000000000000), where the exclusive upper bound equals 2^64.

Examples:
  2-shard split:
    shard 0: shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')
    shard 1: shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')
  4-shard split:
    shard 0: shardRange(object.metadata.uid, '0x0000000000000000', '0x4000000000000000')
    shard 1: shardRange(object.metadata.uid, '0x4000000000000000', '0x8000000000000000')
    shard 2: shardRange(object.metadata.uid, '0x8000000000000000', '0xc000000000000000')
    shard 3: shardRange(object.metadata.uid, '0xc000000000000000', '0x10000000000000000')

This is an alpha field and requires enabling the ShardedListAndWatch feature gate."shardSelector2string†Bû
õòïquerypTimeout for the list/watch call. This limits the duration of the call, regardless of any activity or inactivity."timeoutSeconds2integer†B±
Æ´®queryãWatch for changes to the described resources and return them as a stream of add, update, and remove notifications. Specify resourceVersion."watch2boolean†Jb
`
200Y
W
OKQ
O
M#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestListRhttpsj
x-kubernetes-actionlist
jr
x-kubernetes-group-version-kindOMgroup: identity.concierge.pinniped.dev
kind: WhoAmIRequest
version: v1alpha1
"É
%identityConciergePinnipedDev_v1alpha1create a WhoAmIRequest*7createIdentityConciergePinnipedDevV1alpha1WhoAmIRequest2application/json2application/yaml2#application/vnd.kubernetes.protobuf:*/*B_
]
[bodybody *K
I#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestBû
õòïquery¯When present, indicates that modifications should not be persisted. An invalid or unrecognized dryRun directive will result in an error response and no further processing of the request. Valid values are: - All: all dry run stages will be processed"dryRun2string†Bñ
ìêçqueryÍfieldManager is a name associated with the actor or entity that is making these changes. The value must be less than or 128 characters long, and only contain printable characters, as defined by https://golang.org/pkg/unicode/#IsPrint."fieldManager2string†B‹
Ÿ÷”query≠fieldValidation instructs the server on how to handle objects in the request (POST/PUT/PATCH) containing unknown or duplicate fields. Valid values are: - Ignore: This will ignore any unknown fields that are silently dropped from the object, and will ignore all but the last duplicate field that the decoder encounters. This is the default behavior prior to v1.23. - Warn: This will send a warning via the standard warning response header for each unknown field that is dropped from the object, and for each duplicate field that is encountered. The request will still succeed if there are no other errors, and will only persist the last of any duplicate fields. This is the default in v1.23+ - Strict: This will fail the request with a BadRequest error if any unknown fields would be dropped from the object, or if any duplicate fields are present. The error returned from the server will contain all unknown and duplicate fields encountered."fieldValidation2string†J•
\
200U
S
OKM
K
I#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequest
a
201Z
X
CreatedM
K
I#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequest
b
202[
Y
AcceptedM
K
I#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestRhttpsj
x-kubernetes-actionpost
jr
x-kubernetes-group-version-kindOMgroup: identity.concierge.pinniped.dev
kind: WhoAmIRequest
version: v1alpha1
Jº
π∂≥queryñIf 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."pretty2string†Û
#/apis/login.concierge.pinniped.dev/À»
loginConciergePinnipedDevget information of a group*$getLoginConciergePinnipedDevAPIGroup2application/json2application/yaml2#application/vnd.kubernetes.protobuf:application/json:application/yaml:#application/vnd.kubernetes.protobufJP
N
200G
E
OK?
=
;#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupRhttpsï
,/apis/login.concierge.pinniped.dev/v1alpha1/‰·
"loginConciergePinnipedDev_v1alpha1get available resources*0getLoginConciergePinnipedDevV1alpha1APIResources2application/json2application/yaml2#application/vnd.kubernetes.protobuf:application/json:application/yaml:#application/vnd.kubernetes.protobufJW
U
200N
L
OKF
D
B#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceListRhttps§R
C/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests‹QÍ=
"loginConciergePinnipedDev_v1alpha1+list objects of kind TokenCredentialRequest*;listLoginConciergePinnipedDevV1alpha1TokenCredentialRequest2application/json2application/yaml2#application/vnd.kubernetes.protobuf2application/json;stream=watch20application/vnd.kubernetes.protobuf;stream=watch:*/*B´
®•¢query˜allowWatchBookmarks requests watch events with type "BOOKMARK". Servers that do not implement bookmarks may ignore this flag and bookmarks are sent at the server's discretion. Clients should not assume bookmarks are returned at any specific interval, nor may they assume the server will send any BOOKMARK event during a session. If this is not a watch, this field is ignored."allowWatchBookmarks2boolean†BÔ	
Ï	È	Ê	query«	The continue option should be set when retrieving more results from the server. Since this value is server defined, clients may only use the continue value from a previous query result with identical query parameters (except for the value of continue) and the server may reject a continue value it does not recognize. If the specified continue value is no longer valid whether due to expiration (generally five to fifteen minutes) or a configuration change on the server, the server will respond with a 410 ResourceExpired error together with a continue token. If the client needs a consistent list, it must restart their list without the continue field. Otherwise, the client may send another list request with the token received with the 410 error, the server will respond with a list starting from the next key, but from the latest snapshot, which is inconsistent from the previous list results - objects that are created, modified, or deleted after the first list request will be included in the response, as long as their keys are after the "next key".

This field is not supported when watch is true. Clients may start a watch from the last resourceVersion value returned by the server and not miss any modifications."continue2string†Bá
ÑÅquery\A selector to restrict the list of returned objects by their fields. Defaults to everything."fieldSelector2string†Bá
ÑÅquery\A selector to restrict the list of returned objects by their labels. Defaults to everything."labelSelector2string†B˙

˜
Ù
Ò
query‘
limit is a maximum number of responses to return for a list call. If more items exist, the server will set the `continue` field on the list metadata to a value that can be used with the same initial query to retrieve the next set of results. Setting a limit may return fewer than the requested amount of items (up to zero items) in the event all requested objects are filtered out and clients should only use the presence of the continue field to determine whether more results are available. Servers may choose not to support the limit argument and will return all of the available results. If limit is specified and the continue field is empty, clients may assume that no more results are available. This field is not supported if watch is true.

The server guarantees that the objects returned when using continue will be identical to issuing a single list call without a limit - that is, no objects created, modified, or deleted after the first request is issued will be included in any subsequent continued requests. This is sometimes referred to as a consistent snapshot, and ensures that a client that is using limit to receive smaller chunks of a very large result can ensure they see all possible objects. If objects are updated during a chunked list the version of the object that was present at the time the first list result was calculated is returned."limit2integer†B˚
¯ıÚqueryÃresourceVersion sets a constraint on what resource versions a request may be served from. See https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details.

Defaults to unset"resourceVersion2string†B⁄
◊‘—query¶resourceVersionMatch determines how resourceVersion is applied to list calls. It is highly recommended that resourceVersionMatch be set for list calls where resourceVersion is set See https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details.

Defaults to unset"resourceVersionMatch2string†Bñ
ìêçquery‰
`sendInitialEvents=true` may be set together with `watch=true`. In that case, the watch stream will begin with synthetic events to produce the current state of objects in the collection. Once all such events have been sent, a synthetic "Bookmark" event  will be sent. The bookmark will report the ResourceVersion (RV) corresponding to the set of objects, and be marked with `"k8s.io/initial-events-end": "true"` annotation. Afterwards, the watch stream will proceed as usual, sending watch events corresponding to changes (subsequent to the RV) to objects watched.

When `sendInitialEvents` option is set, we require `resourceVersionMatch` option to also be set. The semantic of the watch request is as following: - `resourceVersionMatch` = NotOlderThan
  is interpreted as "data at least as new as the provided `resourceVersion`"
  and the bookmark event is send when the state is synced
  to a `resourceVersion` at least as fresh as the one provided by the ListOptions.
  If `resourceVersion` is unset, this is interpreted as "consistent read" and the
  bookmark event is send when the state is synced at least to the moment
  when request started being processed.
- `resourceVersionMatch` set to any other value or unset
  Invalid error is returned.

Defaults to true if `resourceVersion=""` or `resourceVersion="0"` (for backward compatibility reasons) and to false otherwise."sendInitialEvents2boolean†Bµ
≤Ø¨queryàshardSelector restricts the list of returned objects using a CEL-based shard selector expression. The format uses the shardRange() function combined with || (logical OR) to specify one or more hash ranges:

  shardRange(object.metadata.uid, '0x0', '0x8000000000000000')
  shardRange(object.metadata.uid, '0x0', '0x8000000000000000') || shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')

Field paths use CEL-style object-rooted syntax (e.g. "object.metadata.uid"), NOT the fieldSelector format ("metadata.uid"). Currently supported paths:
  - object.metadata.uid
  - object.metadata.namespace

hexStart and hexEnd are single-quoted CEL string literals with a '0x' prefix, defining the inclusive lower and exclusive upper bounds over the 64-bit FNV-1a hash space. The full range is [0x0, 0x10000000000000000), where the exclusive upper bound equals 2^64.

Examples:
  2-shard split:
    shard 0: shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')
    shard 1: shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')
  4-shard split:
    shard 0: shardRange(object.metadata.uid, '0x0000000000000000', '0x4000000000000000')
    shard 1: shardRange(object.metadata.uid, '0x4000000000000000', '0x8000000000000000')
    shard 2: shardRange(object.metadata.uid, '0x8000000000000000', '0xc000000000000000')
    shard 3: shardRange(object.metadata.uid, '0xc000000000000000', '0x10000000000000000')

This is an alpha field and requires enabling the ShardedListAndWatch feature gate."shardSelector2string†Bû
õòïquerypTimeout for the list/watch call. This limits the duration of the call, regardless of any activity or inactivity."timeoutSeconds2integer†B±
Æ´®queryãWatch for changes to the described resources and return them as a stream of add, update, and remove notifications. Specify resourceVersion."watch2boolean†Jh
f
200_
]
OKW
U
S#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestListRhttpsj
x-kubernetes-actionlist
jx
x-kubernetes-group-version-kindUSgroup: login.concierge.pinniped.dev
kind: TokenCredentialRequest
version: v1alpha1
"≠
"loginConciergePinnipedDev_v1alpha1create a TokenCredentialRequest*=createLoginConciergePinnipedDevV1alpha1TokenCredentialRequest2application/json2application/yaml2#application/vnd.kubernetes.protobuf:*/*Be
c
abodybody *Q
O#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestBû
õòïquery¯When present, indicates that modifications should not be persisted. An invalid or unrecognized dryRun directive will result in an error response and no further processing of the request. Valid values are: - All: all dry run stages will be processed"dryRun2string†Bñ
ìêçqueryÍfieldManager is a name associated with the actor or entity that is making these changes. The value must be less than or 128 characters long, and only contain printable characters, as defined by https://golang.org/pkg/unicode/#IsPrint."fieldManager2string†B‹
Ÿ÷”query≠fieldValidation instructs the server on how to handle objects in the request (POST/PUT/PATCH) containing unknown or duplicate fields. Valid values are: - Ignore: This will ignore any unknown fields that are silently dropped from the object, and will ignore all but the last duplicate field that the decoder encounters. This is the default behavior prior to v1.23. - Warn: This will send a warning via the standard warning response header for each unknown field that is dropped from the object, and for each duplicate field that is encountered. The request will still succeed if there are no other errors, and will only persist the last of any duplicate fields. This is the default in v1.23+ - Strict: This will fail the request with a BadRequest error if any unknown fields would be dropped from the object, or if any duplicate fields are present. The error returned from the server will contain all unknown and duplicate fields encountered."fieldValidation2string†J∑
b
200[
Y
OKS
Q
O#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequest
g
201`
^
CreatedS
Q
O#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequest
h
202a
_
AcceptedS
Q
O#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestRhttpsj
x-kubernetes-actionpost
jx
x-kubernetes-group-version-kindUSgroup: login.concierge.pinniped.dev
kind: TokenCredentialRequest
version: v1alpha1
Jº
π∂≥queryñIf 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."pretty2string†À
	/version/Ω∫
version+get the version information for this server*getCodeVersion2application/json:application/jsonJG
E
200>
<
OK6
4
2#/definitions/io.k8s.apimachinery.pkg.version.InfoRhttpsJñˇ
·
@dev.pinniped.apis.concierge.identity.v1alpha1.KubernetesUserInfoú"êKubernetesUserInfo represents the current authenticated user, exactly as Kubernetes understands it. Copied from the Kubernetes token review API.öuser≤
object Û
h
	audiences["?Audiences are audience identifiers chosen by the authenticator.≤
array∫
≤
string
Ü
user~
D#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.UserInfo"6User is the UserInfo associated with the current user.
É
6dev.pinniped.apis.concierge.identity.v1alpha1.UserInfo»"ZUserInfo holds the information about the user needed to implement the user.Info interface.öusername≤
object “
n
extrae"9Any additional information provided by the authenticator.™
≤
array∫
≤
string≤
object
Q
groupsG"+The names of groups this user is a part of.≤
array∫
≤
string
Æ
uid¶"òA unique value that identifies this user across time. If this user is deleted and another user by the same name is added, they will have different UIDs.≤
string
\
usernameP"CThe name that uniquely identifies this user among all active users.≤
string
ò	
;dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestÿ"LWhoAmIRequest submits a request to echo back the current authenticated user.≤
object Ä
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
K
metadata?
=#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta
W
specO
M#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestSpec
[
statusQ
O#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestStatus˙x
x-kubernetes-group-version-kindUS- group: identity.concierge.pinniped.dev
  kind: WhoAmIRequest
  version: v1alpha1

‚
?dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestListû"5WhoAmIRequestList is a list of WhoAmIRequest objects.öitems≤
object —
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
Ü
items}"!Items is a list of WhoAmIRequest.≤
array∫M
K
I#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequest
π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
I
metadata=
;#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta˙|
x-kubernetes-group-version-kindYW- group: identity.concierge.pinniped.dev
  kind: WhoAmIRequestList
  version: v1alpha1

y
?dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestSpec6")Spec is always empty for a WhoAmIRequest.≤
object
‹
Adev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequestStatusñ"?Status is set by the server in the response to a WhoAmIRequest.ökubernetesUserInfo≤
object ±
Æ
kubernetesUserInfoó
N#/definitions/dev.pinniped.apis.concierge.identity.v1alpha1.KubernetesUserInfo"EThe current authenticated user, exactly as Kubernetes understands it.
‰
<dev.pinniped.apis.concierge.login.v1alpha1.ClusterCredential£"”ClusterCredential is the cluster-specific credential returned on a successful credential request. It contains either a valid bearer token or a valid TLS certificate and corresponding private key for the cluster.≤
object æ
l
clientCertificateDataS"FPEM-encoded client TLS certificates (including intermediates, if any).≤
string
P
clientKeyData?"2PEM-encoded private key for the above certificate.≤
string
ù
expirationTimestampÖ
7#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"JExpirationTimestamp indicates a time when the provided credentials expire.
\
tokenS"FToken is a bearer token used by the client for request authentication.≤
string
ÿ	
Adev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestí	"tTokenCredentialRequest submits an IDP-specific credential to Pinniped in exchange for a cluster-specific credential.≤
object å
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
K
metadata?
=#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta
]
specU
S#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestSpec
a
statusW
U#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestStatus˙~
x-kubernetes-group-version-kind[Y- group: login.concierge.pinniped.dev
  kind: TokenCredentialRequest
  version: v1alpha1

ë	
Edev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestList«"GTokenCredentialRequestList is a list of TokenCredentialRequest objects.öitems≤
object ·
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
ñ
itemså"*Items is a list of TokenCredentialRequest.≤
array∫S
Q
O#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequest
π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
I
metadata=
;#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta˙Ç
x-kubernetes-group-version-kind_]- group: login.concierge.pinniped.dev
  kind: TokenCredentialRequestList
  version: v1alpha1

•
Edev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestSpec€"TSpecification of a TokenCredentialRequest, expected on requests to the Pinniped API.öauthenticator≤
object Ê
ô
authenticatorá
:#/definitions/io.k8s.api.core.v1.TypedLocalObjectReference"IReference to an authenticator which can validate this credential request.
H
token?"2Bearer token supplied with the credential request.≤
string
∞
Gdev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequestStatus‰"NStatus of a TokenCredentialRequest, returned on responses to the Pinniped API.≤
object Ö
ü

credentialê
J#/definitions/dev.pinniped.apis.concierge.login.v1alpha1.ClusterCredential"BA Credential will be returned for a successful credential request.
a
messageV"IAn error message will be returned for an unsuccessful credential request.≤
string
ÿ
,io.k8s.api.core.v1.TypedLocalObjectReferenceß"~TypedLocalObjectReference contains enough information to let you locate the typed referenced object inside the same namespace.ökindöname≤
object Â
⁄
apiGroupÕ"øAPIGroup is the group for the resource being referenced. If APIGroup is not specified, the specified Kind must be in the core API group. For any other third-party types, APIGroup is required.≤
string
B
kind:"-Kind is the type of resource being referenced≤
string
B
name:"-Name is the name of resource being referenced≤
string˙"
x-kubernetes-map-type	atomic

‘
-io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup¢"YAPIGroup contains the name, the supported versions, and the preferred version of a group.önameöversions≤
object ”
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
3
name+"name is the name of the group.≤
string
«
preferredVersion≤
K#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.GroupVersionForDiscovery"cpreferredVersion is the version preferred by the API server, which probably is the storage version.
é
serverAddressByClientCIDRsÔ"Èa map of client CIDR to server address that is serving this group. This is to help clients reach servers in the most network-efficient way possible. Clients can use the appropriate server address as per the CIDR that they match. In case of multiple matches, clients should use the longest matching CIDR. The server returns only those CIDRs that it thinks that the client can match. For example: the master will return an internal IP CIDR only, if the client reaches the server using an internal IP. Server looks at X-Forwarded-For header or X-Real-Ip header or request.RemoteAddr (in that order) to get the client IP.≤
array∫P
N
L#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ServerAddressByClientCIDR˙#
x-kubernetes-list-type	atomic

√
versions∂"2versions are the versions supported in this group.≤
array∫O
M
K#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.GroupVersionForDiscovery˙#
x-kubernetes-list-type	atomic
˙P
x-kubernetes-group-version-kind-+- group: ""
  kind: APIGroup
  version: v1

ï
1io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupListﬂ"RAPIGroupList is a list of APIGroup, to allow clients to discover the API at /apis.ögroups≤
object ú
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
ú
groupsë"groups is a list of APIGroup.≤
array∫?
=
;#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup˙#
x-kubernetes-list-type	atomic

π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string˙T
x-kubernetes-group-version-kind1/- group: ""
  kind: APIGroupList
  version: v1

Í
0io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceµ"JAPIResource specifies the name of a resource and whether it is namespaced.önameösingularNameö
namespacedökindöverbs≤
object ®
§

categoriesï"Scategories is a list of the grouped resources this resource belongs to (e.g. 'all')≤
array∫
≤
string˙#
x-kubernetes-list-type	atomic

«
groupΩ"Øgroup is the preferred group of the resource.  Empty implies the group of the containing resource list. For subresources, this may have a different value, for example: Scale".≤
string
d
kind\"Okind is the kind for the resource (e.g. 'Foo' is the kind for a resource 'foo')≤
string
=
name5"(name is the plural name of the resource.≤
string
T

namespacedF"8namespaced indicates if a resource is namespaced or not.≤	
boolean
è

shortNamesÄ">shortNames is a list of suggested short names of the resource.≤
array∫
≤
string˙#
x-kubernetes-list-type	atomic

û
singularNameç"ˇsingularName is the singular name of the resource.  This allows clients to handle plural and singular opaquely. The singularName is more correct for reporting status on a single item and both singular and plural are allowed from the kubectl CLI interface.≤
string
Ã
storageVersionHashµ"ßThe hash value of the storage version, the version this resource is converted to when written to the data store. Value must be treated as opaque by clients. Only equality comparison on the value is valid. This is an alpha feature and may change or be removed in the future. The field is populated by the apiserver only if the StorageVersionHash feature gate is enabled. This field will remain optional even if it graduates.≤
string
´
verbs°"Ñverbs is a list of supported kube verbs (this includes get, list, watch, create, update, patch, delete, deletecollection, and proxy)≤
array∫
≤
string
â
version˝"Ôversion is the preferred version of the resource.  Empty implies the version of the containing resource list For subresources, this may have a different value, for example: v1 (while inside a v1beta1 version of the core resource's group)".≤
string
î

4io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList€	"¶APIResourceList is a list of APIResource, it is used to expose the name of the resources supported in a specific group and version, and if the resource is namespaced.ögroupVersionö	resources≤
object Æ
æ

apiVersionØ"°APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources≤
string
_
groupVersionO"BgroupVersion is the group and version this APIResourceList is for.≤
string
π
kind∞"¢Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
Õ
	resourcesø"Hresources contains the name of the resources and if they are namespaced.≤
array∫B
@
>#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.APIResource˙#
x-kubernetes-list-type	atomic
˙W
x-kubernetes-group-version-kind42- group: ""
  kind: APIResourceList
  version: v1

î
-io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1‚"‘FieldsV1 stores a set of fields in a data structure like a Trie, in JSON format.

Each key is either a '.' representing the field itself, and will always map to an empty set, or a string representing a sub-field or item. The string will follow one of these four formats: 'f:<name>', where <name> is the name of a field in a struct, or key in a map 'v:<value>', where <value> is the exact json formatted value of a list item 'i:<index>', where <index> is position of a item in a list 'k:<keys>', where <keys> is a map of  a list item's key fields to their unique values If a key maps to an empty Fields value, the field that key represents is part of the set.

The exact format is defined in sigs.k8s.io/structured-merge-diff≤
object
Ë
=io.k8s.apimachinery.pkg.apis.meta.v1.GroupVersionForDiscovery¶"wGroupVersion contains the "group/version" and "version" string of a version. It is made a struct to keep extensibility.ögroupVersionöversion≤
object Ö
i
groupVersionY"LgroupVersion specifies the API group and version in the form "group/version"≤
string
ó
versionã"~version specifies the version in the form of "version". This is to save the clients the trouble of splitting the GroupVersion.≤
string
¥
-io.k8s.apimachinery.pkg.apis.meta.v1.ListMetaÇ"£ListMeta describes metadata that synthetic resources must have, including lists and various status objects. A resource may have only one of {ObjectMeta, ListMeta}.≤
object Õ
‰
continue◊"…continue may be set if the user set a limit on the number of items returned, and indicates that the server has more data available. The value is opaque and may be used to issue another request to the endpoint that served this list to retrieve the next set of available objects. Continuing a consistent list may not be possible if the server configuration has changed or more than a few minutes have passed. The resourceVersion field returned when using this continue value will be identical to the value in the first response, unless you have received this token from an error message.≤
string
ﬂ
remainingItemCount»int64"≤remainingItemCount is the number of subsequent items in the list which are not included in this list response. If the list request contained label or field selectors, then the number of remaining items is unknown and the field will be left unset and omitted during serialization. If the list is complete (either because it is not chunking or because this is the last chunk), then there are no more remaining items and this field will be left unset and omitted during serialization. Servers older than v1.15 do not set this field. The intended use of the remainingItemCount is *estimating* the size of a collection. Clients should not rely on the remainingItemCount to be set or to be exact.≤	
integer
•
resourceVersionë"ÉString that identifies the server's internal version of this object that can be used by clients to determine when objects have changed. Value must be treated as opaque by clients and passed unmodified back to the server. Populated by the system. Read-only. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#concurrency-control-and-consistency≤
string
t
selfLinkh"[Deprecated: selfLink is a legacy read-only field that is no longer populated by the system.≤
string
„
	shardInfo’
<#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ShardInfo"îshardInfo is set when the list is a filtered subset of the full collection, as selected by a shard selector on the request. It echoes back the selector so clients can verify which shard they received and merge sharded responses. Clients should not cache sharded list responses as a full representation of the collection.

This is an alpha field and requires enabling the ShardedListAndWatch feature gate.
ë
7io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry’"sManagedFieldsEntry is a workflow-id, a FieldSet and the group version of the resource that the fieldset applies to.≤
object —
ñ

apiVersioná"˘APIVersion defines the version of this resource that this field set applies to. The format is "group/version" just like the top-level APIVersion field. It is necessary to track the version of a field set because it cannot be automatically converted.≤
string
†

fieldsTypeë"ÉFieldsType is the discriminator for the different fields format and version. There is currently only one possible value: "FieldsV1"≤
string
ù
fieldsV1ê
;#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"QFieldsV1 holds the first JSON version format as described in the "FieldsV1" type.
W
managerL"?Manager is an identifier of the workflow managing these fields.≤
string
≤
	operation§"ñOperation is the type of operation which lead to this ManagedFieldsEntry being created. The only valid values for this field are 'Apply' and 'Update'.≤
string
Û
subresource„"’Subresource is the name of the subresource used to update that object, or empty string if the object was updated through the main resource. The value of this field is used to distinguish between managers, even if they share the same name. For example, a status update will be distinct from a regular update using the same manager name. Note that the APIVersion field is not related to the Subresource field and it always corresponds to the version of the main resource.≤
string
Ó
timeÂ
7#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"©Time is the timestamp of when the ManagedFields entry was added. The timestamp will also be updated if a field is added, the manager changes any of the owned fields value or removes a field. The timestamp does not update when a field is removed from the entry because another manager took it over.
ª>
/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMetaá>"lObjectMeta is metadata that all persisted resources must have, which includes all objects users must create.≤
object ä=
›
annotationsÕ"ØAnnotations is an unstructured key value map stored with a resource that may be set by external tools to store and retrieve arbitrary metadata. They are not queryable and should be preserved when modifying objects. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations™
≤
string≤
object
Ó
creationTimestampÿ
7#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"úCreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.

Populated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata

deletionGracePeriodSeconds—int64"ªNumber of seconds allowed for this object to gracefully terminate before it will be removed from the system. Only set when deletionTimestamp is also set. May only be shortened. Read-only.≤	
integer
§
deletionTimestampé
7#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"“
DeletionTimestamp is RFC 3339 date and time at which this resource will be deleted. This field is set by the server when a graceful deletion is requested by the user, and is not directly settable by a client. The resource is expected to be deleted (no longer visible from resource lists, and not reachable by name) after the time in this field, once the finalizers list is empty. As long as the finalizers list contains items, deletion is blocked. Once the deletionTimestamp is set, this value may not be unset or be set further into the future, although it may be shortened or the resource may be deleted prior to this time. For example, a user may request that a pod is deleted in 30 seconds. The Kubelet will react by sending a graceful termination signal to the containers in the pod. After that 30 seconds, the Kubelet will send a hard termination signal (SIGKILL) to the container and after cleanup, remove the pod from the API. In the presence of network partitions, this object may still exist after this timestamp, until an administrator or automated process can determine the resource is fully terminated. If not set, graceful deletion of the object has not been requested.

Populated by the system when a graceful deletion is requested. Read-only. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata
Å

finalizersÚ"àMust be empty before the object is deleted from the registry. Each entry is an identifier for the responsible component that will remove the entry from the list. If the deletionTimestamp of the object is non-nil, entries in this list can only be removed. Finalizers may be processed and removed in any order.  Order is NOT enforced because it introduces significant risk of stuck finalizers. finalizers is a shared field, any actor with permission can reorder it. If the finalizer list is processed in order, then this can lead to a situation in which the component responsible for the first finalizer in the list is waiting for a signal (field value, external system, or other) produced by a component responsible for a finalizer later in the list, resulting in a deadlock. Without enforced ordering finalizers are free to order amongst themselves and are not vulnerable to ordering changes in the list.≤
array∫
≤
string˙ 
x-kubernetes-list-typeset
˙'
x-kubernetes-patch-strategymerge

∆
generateNameµ"ßGenerateName is an optional prefix, used by the server, to generate a unique name ONLY IF the Name field has not been provided. If this field is used, the name returned to the client will be different than the name passed. This value will also be combined with a unique suffix. The provided value has the same validation rules as the Name field, and may be truncated by the length of the suffix required to make the value unique on the server.

If this field is specified and the generated name exists, the server will return a 409.

Applied only if Name is not specified. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#idempotency≤
string
í

generationÉint64"nA sequence number representing a specific generation of the desired state. Populated by the system. Read-only.≤	
integer
ü
labelsî"ˆMap of string keys and values that can be used to organize and categorize (scope and select) objects. May match selectors of replication controllers and services. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels™
≤
string≤
object
©
managedFieldsó"òManagedFields maps workflow-id and version to the set of fields that are managed by that workflow. This is mostly for internal housekeeping, and users typically shouldn't need to set or understand this field. A workflow can be the user's name, a controller's name, or the name of a specific apply path like "ci-cd". The set of fields is always in the version that the workflow used when modifying the object.≤
array∫I
G
E#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry˙#
x-kubernetes-list-type	atomic

å
nameÉ"ıName must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names≤
string
ø
	namespace±"£Namespace defines the space within which each name must be unique. An empty namespace is equivalent to the "default" namespace, but "default" is the canonical representation. Not all objects are required to be scoped to a namespace - the value of this field for those objects will be empty.

Must be a DNS_LABEL. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces≤
string
ƒ
ownerReferences∞"ºList of objects depended by this object. If ALL objects in the list have been deleted, this object will be garbage collected. If this object is managed by a controller, then an entry in this list will point to this controller, with the controller field set to true. There cannot be more than one managing controller.≤
array∫E
C
A#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference˙&
x-kubernetes-list-map-keys- uid
˙ 
x-kubernetes-list-typemap
˙&
x-kubernetes-patch-merge-keyuid
˙'
x-kubernetes-patch-strategymerge

ë
resourceVersion˝"ÔAn opaque value that represents the internal version of this object that can be used by clients to determine when objects have changed. May be used for optimistic concurrency, change detection, and the watch operation on a resource or set of resources. Clients must treat these values as opaque and passed unmodified back to the server. They may only be valid for a particular resource or set of resources.

Populated by the system. Read-only. Value must be treated as opaque by clients and . More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#concurrency-control-and-consistency≤
string
t
selfLinkh"[Deprecated: selfLink is a legacy read-only field that is no longer populated by the system.≤
string
 
uid¬"¥UID is the unique in time and space value for this object. It is typically generated by the server on successful creation of a resource and is not allowed to change on PUT operations.

Populated by the system. Read-only. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#uids≤
string
ó
3io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReferenceﬂ
"«OwnerReference contains enough information to let you identify an owning object. An owning object must be in the same namespace as the dependent, or be cluster-scoped, so there is no namespace field.ö
apiVersionökindönameöuid≤
object ¿
7

apiVersion)"API version of the referent.≤
string
â
blockOwnerDeletionÚ"„If true, AND if the owner has the "foregroundDeletion" finalizer, then the owner cannot be deleted from the key-value store until this reference is removed. See https://kubernetes.io/docs/concepts/architecture/garbage-collection/#foreground-deletion for how the garbage collector interacts with this field and enforces the foreground deletion. Defaults to false. To set this field, a user needs "delete" permission of the owner, otherwise 422 (Unprocessable Entity) will be returned.≤	
boolean
V

controllerH":If true, this reference points to the managing controller.≤	
boolean
ó
kindé"ÄKind of the referent. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds≤
string
É
name{"nName of the referent. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names≤
string
Ä
uidy"lUID of the referent. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#uids≤
string˙"
x-kubernetes-map-type	atomic

•
>io.k8s.apimachinery.pkg.apis.meta.v1.ServerAddressByClientCIDR‚"çServerAddressByClientCIDR helps the client to determine the server address that they should use, depending on the clientCIDR that they match.ö
clientCIDRöserverAddress≤
object ¶
Ä

clientCIDRr"eThe CIDR with which clients can match their IP to figure out the server address that they should use.≤
string
†
serverAddressé"ÄAddress of this server, suitable for a client that matches the above CIDR. This can be a hostname, hostname:port, IP or IP:port.≤
string
ß
.io.k8s.apimachinery.pkg.apis.meta.v1.ShardInfoÙ"úShardInfo describes the shard selector that was applied to produce a list response. Its presence on a list response indicates the list is a filtered subset.öselector≤
object ª
∏
selector´"ùselector is the shard selector string from the request, echoed back so clients can verify which shard they received and merge responses from multiple shards.≤
string
Ú
)io.k8s.apimachinery.pkg.apis.meta.v1.Timeƒ	date-time"´Time is a wrapper around time.Time which supports correct marshaling to YAML and JSON.  Wrappers are provided for many of the factory methods that the time package offers.≤
string
‰
$io.k8s.apimachinery.pkg.version.Infoª"TInfo contains versioning information. how we'll want to distribute that information.ömajoröminorö
gitVersionö	gitCommitögitTreeStateö	buildDateö	goVersionöcompileröplatform≤
object 

	buildDate≤
string

compiler≤
string
[
emulationMajorI"<EmulationMajor is the major version of the emulation version≤
string
[
emulationMinorI"<EmulationMinor is the minor version of the emulation version≤
string

	gitCommit≤
string

gitTreeState≤
string


gitVersion≤
string

	goVersion≤
string
F
major="0Major is the major version of the binary version≤
string
u
minCompatibilityMajor\"OMinCompatibilityMajor is the major version of the minimum compatibility version≤
string
u
minCompatibilityMinor\"OMinCompatibilityMinor is the minor version of the minimum compatibility version≤
string
F
minor="0Minor is the minor version of the binary version≤
string

platform≤
string