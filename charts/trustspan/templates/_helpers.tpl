{{- define "trustspan.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The prefix of all names: the name of the release, if that contains the name of the chart. */}}
{{- define "trustspan.fullname" -}}
{{- $name := include "trustspan.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "trustspan.commonSelectorLabels" -}}
app.kubernetes.io/name: {{ include "trustspan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trustspan.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "trustspan.commonSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: trustspan
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Takes a list: the root, and the component. */}}
{{- define "trustspan.selectorLabels" -}}
{{ include "trustspan.commonSelectorLabels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Takes a list: the root, and the values of the image. */}}
{{- define "trustspan.image" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* The namespaces whose objects are never sent to the webhooks, in JSON. */}}
{{- define "trustspan.excludedNamespaces" -}}
{{- append .Values.webhook.excludedNamespaces .Release.Namespace | uniq | toJson }}
{{- end }}

{{- /* Severity of the policy kept-by-agent, quoted: the last one among the flags of `trustspan serve`. */}}
{{- define "trustspan.keptByAgentSeverity" -}}
{{- $flags := regexFindAll "--severity[= ]kept-by-agent=[a-z]+" (join " " .Values.webhook.extraArgs) -1 }}
{{- ternary "Deny" "Warn" (or (empty $flags) (hasSuffix "=deny" (last $flags))) | quote }}
{{- end }}

{{- define "trustspan.tlsSecretName" -}}
{{- .Values.servingCertificate.secretName | default (printf "%s-webhook-tls" (include "trustspan.fullname" .)) }}
{{- end }}

{{- define "trustspan.webhookAnnotations" -}}
{{- $annotations := deepCopy .Values.webhook.configurationAnnotations }}
{{- if eq .Values.servingCertificate.mode "certManager" }}
{{- $certificate := printf "%s/%s-webhook" .Release.Namespace (include "trustspan.fullname" .) }}
{{- $annotations = set $annotations "cert-manager.io/inject-ca-from" $certificate }}
{{- end }}
{{- with $annotations }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* Fields of a pod that its scheduling depends on. Takes a list: the root, the values of the workload, and the component. */}}
{{- define "trustspan.scheduling" -}}
{{- $root := index . 0 }}
{{- $values := index . 1 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName | default $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if kindIs "slice" $values.topologySpreadConstraints }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "trustspan.selectorLabels" (list $root (index . 2)) | nindent 8 }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "tolerations" }}
{{- with index $values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Labels and annotations of a pod. Takes the same list. */}}
{{- define "trustspan.podMetadata" -}}
{{- $values := index . 1 -}}
labels:
  {{- include "trustspan.selectorLabels" (list (index . 0) (index . 2)) | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What the Pod Security Standard `restricted` requires of a pod, and of a container. */}}
{{- define "trustspan.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "trustspan.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
