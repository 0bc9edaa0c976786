{{/* The reference of the image: REPOSITORY:TAG[@DIGEST]. */}}
{{- define "pinniped.image" -}}
{{- with .Values.image -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{/* The labels that identify an object for tools. They are part of no selector. */}}
{{- define "pinniped.recommendedLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: pinniped
{{- end }}

{{/*
Labels and annotations of an object. Arguments: root, component; labels, moreLabels, annotations,
moreAnnotations (optional); pod (true for the template of a pod, which has no label that changes
with the chart).
*/}}
{{- define "pinniped.metadata" -}}
{{- $labels := dict -}}
{{- if not .root.Values.plain -}}
{{- $labels = include "pinniped.recommendedLabels" . | fromYaml -}}
{{- if not .pod -}}
{{- $_ := set $labels "app.kubernetes.io/version" (toString .root.Chart.AppVersion) -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_")) -}}
{{- end -}}
{{- end -}}
{{- /* The labels of selectors come last, so that no value can replace them. */ -}}
{{- $labels = mergeOverwrite $labels .root.Values.commonLabels (default dict .moreLabels) (default dict .labels) -}}
{{- $annotations := mergeOverwrite (dict) .root.Values.commonAnnotations (default dict .moreAnnotations) (default dict .annotations) -}}
{{- with $labels -}}
labels:
  {{- toYaml . | nindent 2 }}
{{ end -}}
{{- with $annotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{/* The same for an object of the Concierge. Arguments: root; annotations (optional). */}}
{{- define "pinniped.concierge.metadata" -}}
{{- include "pinniped.metadata" (dict
      "root" .root "component" "concierge" "labels" (dict "app" .root.Values.name)
      "moreLabels" .root.Values.concierge.labels "moreAnnotations" .root.Values.concierge.annotations
      "annotations" .annotations) | trim -}}
{{- end }}

{{/* The same for an object of the gateway. */}}
{{- define "pinniped.gateway.metadata" -}}
{{- include "pinniped.metadata" (dict
      "root" .root "component" "gateway" "labels" (dict "app" "pinniped-gateway")
      "moreLabels" .root.Values.gateway.labels "moreAnnotations" .root.Values.gateway.annotations
      "annotations" .annotations) | trim -}}
{{- end }}

{{/* All names of the configuration, as YAML: those of the values, or those derived from `name`. */}}
{{- define "pinniped.names" -}}
{{- $name := .Values.name -}}
{{- $names := dict
      "servingCertificateSecret" (printf "%s-api-tls-serving-certificate" $name)
      "credentialIssuer" (printf "%s-config" $name)
      "apiService" (printf "%s-api" $name)
      "impersonationLoadBalancerService" (printf "%s-impersonation-proxy-load-balancer" $name)
      "impersonationClusterIPService" (printf "%s-impersonation-proxy-cluster-ip" $name)
      "impersonationTLSCertificateSecret" (printf "%s-impersonation-proxy-tls-serving-certificate" $name)
      "impersonationCACertificateSecret" (printf "%s-impersonation-proxy-ca-certificate" $name)
      "impersonationSignerSecret" (printf "%s-impersonation-proxy-signer-ca-certificate" $name)
      "agentServiceAccount" (printf "%s-kube-cert-agent" $name)
      "impersonationProxyServiceAccount" (printf "%s-impersonation-proxy" $name)
      "impersonationProxyLegacySecret" (printf "%s-impersonation-proxy" $name) -}}
{{- range $key, $value := .Values.config.names }}{{ if $value }}{{ $_ := set $names $key $value }}{{ end }}{{ end -}}
{{- toYaml $names -}}
{{- end }}

{{/* The account for the strategy ServiceAccountToken. */}}
{{- define "pinniped.tokensAccount" -}}
{{- $names := include "pinniped.names" . | fromYaml -}}
{{- $derived := printf "%s-service-account-tokens" ($names.impersonationProxyServiceAccount | trimSuffix "-impersonation-proxy") -}}
{{- $names.serviceAccountTokensServiceAccount | default $derived -}}
{{- end }}

{{/* An API group of the Concierge. Arguments: root, group. */}}
{{- define "pinniped.group" -}}
{{ .group }}.concierge.{{ .root.Values.config.apiGroupSuffix }}
{{- end }}

{{/* The subjects of a binding for the Concierge's account. */}}
{{- define "pinniped.concierge.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ .Values.name }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{/* Whether a component's namespace is an object of the release. Arguments: root, namespace. */}}
{{- define "pinniped.createsNamespace" -}}
{{- if kindIs "bool" .namespace.create -}}
{{ if .namespace.create }}true{{ end }}
{{- else -}}
{{ if ne .namespace.name .root.Release.Namespace }}true{{ end }}
{{- end -}}
{{- end }}

{{/* The fields of a pod's spec that decide where and how it runs. Argument: a component's values. */}}
{{- define "pinniped.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
The affinity of a component's pods, which by default prefer different nodes. Arguments: affinity,
label, value (the label of the pods).
*/}}
{{- define "pinniped.affinity" -}}
affinity:
{{- if kindIs "invalid" .affinity }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 50
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{ .label }}: {{ .value }}
{{- else }}
  {{- toYaml .affinity | nindent 2 }}
{{- end }}
{{- end }}

{{/* The security context of every container. */}}
{{- define "pinniped.securityContext" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* The limits of a PodDisruptionBudget. Argument: its values. */}}
{{- define "pinniped.disruptions" -}}
{{- if not (kindIs "invalid" .minAvailable) -}}
minAvailable: {{ .minAvailable }}
{{- else -}}
maxUnavailable: {{ .maxUnavailable }}
{{- end }}
{{- end }}

{{/*
A definition of files/crds, with the labels and annotations of this release and the API group suffix
of the Concierge. Arguments: root, text.
*/}}
{{- define "pinniped.definition" -}}
{{- $root := .root -}}
{{- $found := regexFind "(?m)^metadata:\n(  .*\n)+" .text -}}
{{- $metadata := (fromYaml $found).metadata -}}
{{- $labels := default dict $metadata.labels -}}
{{- if hasKey $labels "app" }}{{ $_ := set $labels "app" $root.Values.name }}{{ end -}}
{{- $annotations := default dict $metadata.annotations -}}
{{- if and $root.Values.crds.keep (not $root.Values.plain) -}}
{{- $_ := set $annotations "helm.sh/resource-policy" "keep" -}}
{{- end -}}
{{- $written := include "pinniped.metadata" (dict "root" $root "component" "definitions" "labels" $labels "annotations" $annotations) | trim -}}
{{- $new := printf "metadata:\n  name: %s\n" $metadata.name -}}
{{- with $written }}{{ $new = printf "%s%s\n" $new (indent 2 .) }}{{ end -}}
{{- .text | replace $found $new | replace "concierge.pinniped.dev" (printf "concierge.%s" $root.Values.config.apiGroupSuffix) | trim -}}
{{- end }}
