{{/*
Names every key of values.yaml that the values do not have, as after an upgrade with --reuse-values: each template begins with
it, so that none meets a nil pointer. files/keys.txt is generated from values.yaml.
*/}}
{{- define "nri-memory-manager.checkValues" -}}
{{- $missing := list -}}
{{- range $path := .Files.Lines "files/keys.txt" -}}
{{- $value := $.Values -}}
{{- $name := "" -}}
{{- range $key := splitList "." $path -}}
{{- if kindIs "map" $value -}}
{{- $name = printf "%s.%s" $name $key | trimPrefix "." -}}
{{- $value = index $value $key -}}
{{- end -}}
{{- end -}}
{{- if kindIs "invalid" $value }}{{ $missing = append $missing $name }}{{ end -}}
{{- end -}}
{{- with uniq $missing -}}
{{- $why := "an upgrade that reuses the values of an older chart needs --reset-then-reuse-values in place of --reuse-values" -}}
{{- fail (printf "values without %s: %s; where null removed a key, set it to false, \"\", [] or {} instead" (join ", " .) $why) -}}
{{- end -}}
{{- end }}

{{/*
Refuses what the daemon would refuse of a unit's whole configuration; values.schema.json checks each key. What a file of the kubelet
sets besides, and what a percentage of the machine's memory is, is not known here.
*/}}
{{- define "nri-memory-manager.checkConfig" -}}
{{- $c := fromYaml (include "nri-memory-manager.config" .) -}}
{{- $at := "config" -}}
{{- with .Group }}{{ $at = printf "nodeGroups, group %s: config" .name }}{{ end -}}
{{- with $c.kubeletConfig -}}
{{- $mounted := and $.Values.kubeletConfig (eq (toString .) "/host/kubelet-config.yaml") -}}
{{- range $.Values.extraVolumeMounts -}}
{{- if and .mountPath (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%v/" $c.kubeletConfig)) }}{{ $mounted = true }}{{ end -}}
{{- end -}}
{{- $how := "set the value kubeletConfig to the file's path on the node, or mount it with extraVolumes and extraVolumeMounts" -}}
{{- if not $mounted }}{{ fail (printf "%s.kubeletConfig: %v is not mounted in the pod: %s" $at . $how) }}{{ end -}}
{{- end -}}
{{- $seconds := int $.Values.terminationGracePeriodSeconds -}}
{{- if and (eq ($c.onTermination | default "Keep") "Rollback") (lt $seconds 30) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is too short: %s.onTermination: Rollback needs 30" $seconds $at) -}}
{{- end -}}
{{- $static := (fromYaml (include "nri-memory-manager.uses" .)).static -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if and $c.resourceSlices (semverCompare "< 1.34.0-0" $version) }}{{ fail (printf "%s.resourceSlices: needs Kubernetes 1.34, and this is %s (of helm template: --kube-version)" $at $version) }}{{ end -}}
{{- range $i, $rule := $c.annotationRules -}}
{{- $factor := get ($rule.defaults | default dict) "throttling-factor" -}}
{{- if and (ne (toString $factor) "") (lt (float64 $factor) (float64 ($rule.minimumThrottlingFactor | default 0))) -}}
{{- fail (printf "%s.annotationRules[%d].defaults.throttling-factor: %v is less than the rule's minimumThrottlingFactor, %v" $at $i $factor $rule.minimumThrottlingFactor) -}}
{{- end -}}
{{- end -}}
{{- if dig "enabled" false ($c.dra | default dict) -}}
{{- if semverCompare "< 1.36.0-0" $version }}{{ fail (printf "%s.dra.enabled: needs Kubernetes 1.36, and this is %s (of helm template: --kube-version)" $at $version) }}{{ end -}}
{{- if and (get $c.dra "publishNodeAllocatable") (semverCompare "< 1.37.0-0" $version) }}{{ fail (printf "%s.dra.publishNodeAllocatable: needs Kubernetes 1.37, and this is %s" $at $version) }}{{ end -}}
{{- if not $static }}{{ fail (printf "%s.dra.enabled: needs memoryManagerPolicy: Static" $at) }}{{ end -}}
{{- end -}}
{{- $names := list -}}
{{- range splitList "," (get ($c.topologyManagerPolicyOptions | default dict) "numa-score-weights") -}}
{{- $name := trim (splitList "=" . | first) -}}
{{- if and $name (has $name $names) }}{{ fail (printf "%s.topologyManagerPolicyOptions.numa-score-weights: %q is there twice" $at $name) }}{{ end -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- $limits := list -}}
{{- if kindIs "string" $c.reservedMemory -}}
{{- range splitList ";" $c.reservedMemory | compact -}}
{{- $node := splitList ":" . | first -}}
{{- range splitList "," (splitList ":" . | last) }}{{ $limits = append $limits (prepend (splitList "=" .) $node) }}{{ end -}}
{{- end -}}
{{- else -}}
{{- range $entry := $c.reservedMemory }}{{ range $type, $bytes := $entry.limits }}{{ $limits = append $limits (list ($entry.numaNode | default 0) $type $bytes) }}{{ end }}{{ end -}}
{{- end -}}
{{- $reserved := dict -}}
{{- range $limits -}}
{{- $type := index . 1 -}}
{{- $key := printf "%d %s" (index . 0 | int64) $type -}}
{{- if hasKey $reserved $key }}{{ fail (printf "%s.reservedMemory: %s is reserved twice for NUMA node %d" $at $type (index . 0 | int64)) }}{{ end -}}
{{- $_ := set $reserved $key true -}}
{{- $_ := set $reserved $type (addf (get $reserved $type | default 0) (include "nri-memory-manager.bytes" (index . 2))) -}}
{{- end -}}
{{- $kube := $c.kubeReserved | default dict -}}
{{- $system := $c.systemReserved | default dict -}}
{{- $eviction := "100Mi" -}}
{{- if hasKey $c "evictionHard" }}{{ $eviction = get ($c.evictionHard | default dict) "memory.available" | default "0" | toString }}{{ end -}}
{{- $unknown := and (hasSuffix "%" $eviction) (not (has (trimSuffix "%" $eviction | trimPrefix "+" | float64) (list 0.0 100.0))) -}}
{{- $threshold := $eviction -}}
{{- if hasSuffix "%" $eviction }}{{ $eviction = "0" }}{{ end -}}
{{- if and $static (not $c.kubeletConfig) -}}
{{- range $type := concat (list "memory") (keys $kube $system) | uniq | sortAlpha -}}
{{- $memory := eq $type "memory" -}}
{{- if or $memory (hasPrefix "hugepages-" $type) -}}
{{- $parts := list (get $kube $type | default "0") (get $system $type | default "0") ($memory | ternary $eviction "0") -}}
{{- $sum := 0.0 -}}
{{- range $parts }}{{ $sum = addf $sum (include "nri-memory-manager.bytes" .) }}{{ end -}}
{{- $got := get $reserved $type | default 0.0 -}}
{{- if and $memory (eq $got 0.0) (or $limits (and (eq $sum 0.0) (not $unknown))) -}}
{{- fail (printf "%s.reservedMemory: no memory is reserved: memoryManagerPolicy Static needs some on a NUMA node, or kubeReserved, systemReserved or evictionHard" $at) -}}
{{- end -}}
{{- $compared := or (not $memory) (hasKey $c "evictionHard") (ne $sum (include "nri-memory-manager.bytes" $eviction | float64)) -}}
{{- $least := and $memory $unknown -}}
{{- if and $limits $compared (ternary (lt $got $sum) (ne $got $sum) $least) -}}
{{- $is := ternary "are more than" "=" $least -}}
{{- $of := printf "kubeReserved %v + systemReserved %v + evictionHard %s %s %d bytes" (index $parts 0) (index $parts 1) (ternary $threshold "0" $memory) $is (int64 $sum) -}}
{{- fail (printf "%s.reservedMemory: the NUMA nodes' %s adds up to %d bytes, but %s: make them equal" $at $type (int64 $got) $of) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses an extra volume, mount, container or variable beside the chart's own and the others, and a request above its limit, as the API server would. */}}
{{- define "nri-memory-manager.checkExtra" -}}
{{- $daemon := first .pod.containers -}}
{{- $all := dict "extraVolumes" .pod.volumes "extraVolumeMounts" $daemon.volumeMounts "extraContainers" (concat (.pod.initContainers | default list) .pod.containers) "extraEnv" $daemon.env -}}
{{- range $value, $key := dict "extraVolumes" "name" "extraVolumeMounts" "mountPath" "extraContainers" "name" "extraEnv" "name" -}}
{{- $taken := list -}}
{{- range get $all $value -}}
{{- $it := get . $key | toString | trimSuffix "/" -}}
{{- if has $it $taken }}{{ fail (printf "%s: the %s %q is taken, by the chart's own or by another of these" $value $key $it) }}{{ end -}}
{{- $taken = append $taken $it -}}
{{- end -}}
{{- end -}}
{{- range $name, $limit := .Values.resources.limits -}}
{{- $request := get ($.Values.resources.requests | default dict) $name | default 0 -}}
{{- if gt (include "nri-memory-manager.bytes" $request | float64) (include "nri-memory-manager.bytes" $limit | float64) -}}
{{- fail (printf "resources.requests.%s: %v is above resources.limits.%s, %v" $name $request $name $limit) -}}
{{- end -}}
{{- end -}}
{{- $extra := list -}}
{{- range .Values.extraVolumes }}{{ $extra = append $extra .name }}{{ end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has .name $extra) }}{{ fail (printf "extraVolumeMounts: no entry of extraVolumes has the name %q; the chart's own volumes are mounted already" .name) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The bytes of a quantity that the schema admits. */}}
{{- define "nri-memory-manager.bytes" -}}
{{- $text := toString . | trimPrefix "+" -}}
{{- $number := regexFind "^[0-9.]+([eE][-+]?[0-9]+)?" $text -}}
{{- $power := dict "" 0 "k" 1 "K" 1 "M" 2 "G" 3 "T" 4 "P" 5 "E" 6 -}}
{{- $unit := trimPrefix $number $text -}}
{{- $bytes := divf $number (get (dict "m" 1e3 "u" 1e6 "n" 1e9) $unit | default 1) -}}
{{- range until (get $power (trimSuffix "i" $unit) | default 0) }}{{ $bytes = mulf $bytes (hasSuffix "i" $unit | ternary 1024 1000) }}{{ end -}}
{{- $bytes -}}
{{- end }}
