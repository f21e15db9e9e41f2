{{/*
What belongs to one DaemonSet is rendered from a unit: Chart, Release, Values and the node Group, which is empty for the nodes
of no group. The root itself is the unit without a group.
*/}}

{{- define "nri-memory-manager.app" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "nri-memory-manager.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{- define "nri-memory-manager.name" -}}
{{- $name := .Release.Name -}}
{{- $app := include "nri-memory-manager.app" . -}}
{{- if not (contains $app $name) }}{{ $name = printf "%s-%s" $name $app }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "nri-memory-manager.unit" -}}
{{- $name := include "nri-memory-manager.name" . -}}
{{- with .Group }}{{ $name = printf "%s-%s" ($name | trunc 42 | trimSuffix "-") .name }}{{ end -}}
{{- $name -}}
{{- end }}

{{- define "nri-memory-manager.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "nri-memory-manager.name" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "nri-memory-manager.selector" -}}
app.kubernetes.io/name: {{ include "nri-memory-manager.app" . | toYaml }}
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- with .Group }}
app.kubernetes.io/component: {{ toYaml .name }}
{{- end }}
{{- end }}

{{/* Labels of an object: what selectors need wins over .Labels of this object, and these over commonLabels. */}}
{{- define "nri-memory-manager.labels" -}}
{{- $own := dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) -}}
{{- $selector := fromYaml (include "nri-memory-manager.selector" .) -}}
{{- toYaml (mergeOverwrite $own .Values.commonLabels (.Labels | default dict) $selector) -}}
{{- end }}

{{- define "nri-memory-manager.metadata" -}}
name: {{ include "nri-memory-manager.name" . }}
namespace: {{ include "nri-memory-manager.namespace" . }}
labels:
  {{- include "nri-memory-manager.labels" . | nindent 2 }}
{{- end }}

{{/* The pods' secrets for registries, with those of global: objects, or names alone. */}}
{{- define "nri-memory-manager.imagePullSecrets" -}}
{{- with concat .Values.imagePullSecrets (dig "imagePullSecrets" list (.Values.global | default dict) | default list) -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name") }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The reference of an image: registry, which global's replaces, repository, tag and digest, which counts instead of the tag. */}}
{{- define "nri-memory-manager.image" -}}
{{- with (.global | default dict).imageRegistry | default .registry }}{{ . }}/{{ end }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end -}}
{{- end }}

{{/* The plugin's configuration: the node group's over config, in which kubeletConfig is the file's path in the pod. */}}
{{- define "nri-memory-manager.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.kubeletConfig }}{{ $_ := set $config "kubeletConfig" "/host/kubelet-config.yaml" }}{{ end }}
{{- with .Group }}{{ $config = mergeOverwrite $config (deepCopy (.config | default dict)) }}{{ end }}
{{- toYaml $config }}
{{- end }}

{{/* The part of the configuration whose change restarts a daemon: with reloadConfig, what it takes at its start only. */}}
{{- define "nri-memory-manager.restarts" -}}
{{- $config := include "nri-memory-manager.config" . -}}
{{- if not .Values.reloadConfig }}{{ $config }}{{ else -}}
{{- $c := fromYaml $config -}}
{{- $sources := $c.requestSources | default (list "all") -}}
{{- range without $sources "all" "kubelet" "apiserver" }}{{ $sources = without $sources . }}{{ end -}}
{{- $uses := fromYaml (include "nri-memory-manager.uses" .) -}}
{{- list $sources $uses.slices $uses.events $uses.evictions $uses.topology $uses.claims ($c.failurePolicy | default "Ignore") | toJson }}
{{- end }}
{{- end }}

{{/*
What a unit uses, by its configuration and its nodes: no sources means all that are there. A daemon with evictions has a client for them
from its start on, and evicts where something is refused; a dry run releases claims, and publishes none.
*/}}
{{- define "nri-memory-manager.uses" -}}
{{- $config := fromYaml (include "nri-memory-manager.config" .) -}}
{{- $sources := $config.requestSources | default (list "kubelet" "apiserver") -}}
{{- $profile := $config.profile | default "Full" -}}
{{- $static := eq ($config.memoryManagerPolicy | default (eq $profile "QoS" | ternary "None" "Static")) "Static" -}}
{{- $dryRun := eq $profile "Observe" -}}
{{- $evictions := not (regexMatch "^-?0?s?$" ($config.evictRejectedAfter | default "" | toString)) -}}
{{- $claims := dig "dra" "enabled" false $config -}}
static: {{ $static }}
kubelet: {{ has "kubelet" $sources }}
pods: {{ has "apiserver" $sources }}
events: {{ $config.events | default false }}
evictions: {{ $evictions }}
evicts: {{ and $evictions $static (not $dryRun) }}
claims: {{ $claims }}
limits: {{ and $claims (not (dig "dra" "publishNodeAllocatable" false $config)) }}
slices: {{ $config.resourceSlices | default false }}
topology: {{ and $config.nodeResourceTopology (not $dryRun) | default false }}
rollback: {{ eq ($config.onTermination | default "Keep") "Rollback" }}
systemd: {{ and .Values.systemdSocket (eq (.Group.cgroupDriver | default .Values.cgroupDriver) "systemd") }}
{{- end }}

{{/* The same of all units together. */}}
{{- define "nri-memory-manager.allUses" -}}
{{- $all := dict -}}
{{- range $group := append .Values.nodeGroups dict -}}
{{- $unit := dict "Chart" $.Chart "Release" $.Release "Values" $.Values "Group" $group -}}
{{- range $what, $used := fromYaml (include "nri-memory-manager.uses" $unit) }}{{ $_ := set $all $what (or $used (get $all $what)) }}{{ end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end }}

{{/* The affinity of a unit: affinity, without the nodes of the groups in .Before, which come first. */}}
{{- define "nri-memory-manager.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $terms := dig "nodeSelectorTerms" (list dict) ($node.requiredDuringSchedulingIgnoredDuringExecution | default dict) -}}
{{- range $group := .Before -}}
{{- $without := list -}}
{{- range $term := $terms -}}
{{- range $key, $value := $group.nodeSelector -}}
{{- $expressions := append ($term.matchExpressions | default list) (dict "key" $key "operator" "NotIn" "values" (list $value)) -}}
{{- $without = append $without (merge (dict "matchExpressions" $expressions) $term) -}}
{{- end -}}
{{- end -}}
{{- $terms = $without -}}
{{- end -}}
{{- if .Before -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* The pod of helm test: other labels than the daemon's, whose Services, monitors and policies must not select it. */}}
{{- define "nri-memory-manager.testSelector" -}}
app.kubernetes.io/name: {{ include "nri-memory-manager.app" . | trunc 58 | trimSuffix "-" }}-test
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
{{- end }}

{{- define "nri-memory-manager.testLabels" -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) (fromYaml (include "nri-memory-manager.testSelector" .))) -}}
{{- end }}
