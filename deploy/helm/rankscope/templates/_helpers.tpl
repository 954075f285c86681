{{- define "rankscope.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "rankscope.collector" -}}
{{ include "rankscope.fullname" . }}-collector
{{- end }}

{{- define "rankscope.relay" -}}
{{ include "rankscope.fullname" . }}-relay
{{- end }}

{{- /* Labels by which a component is found: (list . "collector"). */ -}}
{{- define "rankscope.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: rankscope
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- end }}

{{- define "rankscope.labels" -}}
{{- $root := index . 0 -}}
{{ include "rankscope.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "rankscope.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "rankscope.scheme" -}}
{{ ternary "https" "http" (ne .Values.http.tlsSecret "") }}
{{- end }}

{{- /* The live page as browsers reach it. */ -}}
{{- define "rankscope.liveUrl" -}}
{{- if .Values.ingress.enabled -}}
{{ ternary "https" "http" (ne .Values.ingress.tlsSecret "") }}://{{ .Values.ingress.host }}
{{- else -}}
{{ include "rankscope.scheme" . }}://127.0.0.1:18491
{{- end -}}
{{- end }}

{{- /* A value of the collector's configuration. Helm reads numbers as floats: whole ones are written without a point. */ -}}
{{- define "rankscope.toml" -}}
{{- if kindIs "string" . -}}{{ toJson . }}
{{- else if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{- define "rankscope.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
# The volume and the keys are this group's to read.
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rankscope.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: ["ALL"]}
{{- end }}

{{- /* What Prometheus scrapes: every endpoint as in deploy/k8s/monitoring. */ -}}
{{- define "rankscope.endpoints" -}}
{{- $paths := list (dict "job" "rankscope" "path" "/metrics" "shard" "") -}}
{{- range $part := until (int .Values.monitor.shards) -}}
{{- $shard := printf "%d/%d" $part (int $.Values.monitor.shards) -}}
{{- $paths = append $paths (dict "job" "rankscope-ranks" "path" "/metrics/ranks" "shard" $shard) -}}
{{- end -}}
{{- range $paths }}
- port: http
  path: {{ .path }}
  interval: {{ $.Values.monitor.interval }}
  {{- if $.Values.http.tlsSecret }}
  scheme: https
  tlsConfig:
    ca: {secret: {name: {{ default $.Values.http.tlsSecret $.Values.monitor.caSecret }}, key: ca.crt}}
    serverName: {{ default (printf "%s.%s.svc" (include "rankscope.collector" $) $.Release.Namespace) $.Values.monitor.serverName }}
  {{- end }}
  {{- with $.Values.http.tokenSecret }}
  authorization:
    credentials: {name: {{ . }}, key: token}
  {{- end }}
  {{- if .shard }}
  params: {shard: [{{ .shard | quote }}]}
  {{- end }}
  relabelings:
    # The operator would name all jobs after the service, and their `up` would be one series.
    - {targetLabel: job, replacement: {{ .job }}}
    {{- with $.Values.monitor.cluster }}
    - {targetLabel: cluster, replacement: {{ . | quote }}}
    {{- end }}
    {{- if .shard }}
    - {sourceLabels: [__param_shard], targetLabel: shard}
    {{- end }}
  {{- if .shard }}
  metricRelabelings:
    - {regex: shard, action: labeldrop}
  {{- end }}
{{- end }}
{{- end }}
