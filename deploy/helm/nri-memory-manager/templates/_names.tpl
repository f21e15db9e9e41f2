{{- define "nri-memory-manager.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "nri-memory-manager.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nri-memory-manager.labels" -}}
{{ include "nri-memory-manager.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The plugin's configuration: what the values say, below what the chart has to set for its mounts. */}}
{{- define "nri-memory-manager.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $fromEvents := list "unified" "annotation" "swap" "oomscore" -}}
{{- if not (hasKey $config "requestSources") -}}
{{- if eq .Values.requestSource "none" }}{{ $_ := set $config "requestSources" $fromEvents }}
{{- else }}{{ $_ := set $config "requestSources" (prepend $fromEvents .Values.requestSource) }}
{{- end }}
{{- end }}
{{- if .Values.kubeletConfig }}{{ $_ := set $config "kubeletConfig" "/host/kubelet-config.yaml" }}{{ end }}
{{- if .Values.events }}{{ $_ := set $config "events" (dict "enabled" true) }}{{ end }}
{{- if .Values.nodeResourceTopology }}{{ $_ := set $config "nodeResourceTopology" (dict "enabled" true) }}{{ end }}
{{- if .Values.rollbackOnDelete }}{{ $_ := set $config "onTermination" "Rollback" }}{{ end }}
{{- toYaml $config }}
{{- end }}

{{- define "nri-memory-manager.usesAPI" -}}
{{- if or (eq .Values.requestSource "apiserver") .Values.events .Values.nodeResourceTopology }}true{{ end }}
{{- end }}
