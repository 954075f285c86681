{{- define "rankscope.configuration" -}}
# Every key, its default and its range: configs/collector.toml.
listen = "tcp://0.0.0.0:18490"
http_listen = "0.0.0.0:18491"
health_listen = "0.0.0.0:18493"
store = "/var/lib/rankscope/incidents.db"
key_file = "/etc/rankscope/keys/collector.key"
allowed_keys = "/etc/rankscope/keys/allowed"
{{- if .Values.http.tokenSecret }}
http_token_file = "/etc/rankscope/http/token"
{{- end }}
{{- if .Values.http.controlTokenSecret }}
http_control_token_file = "/etc/rankscope/http/control-token"
{{- end }}
{{- if .Values.http.tlsSecret }}
http_certificate_file = "/etc/rankscope/http/tls.crt"
http_key_file = "/etc/rankscope/http/tls.key"
{{- end }}
{{- range $name, $value := .Values.config }}
{{ $name }} = {{ include "rankscope.toml" $value }}
{{- end }}
{{- end }}
