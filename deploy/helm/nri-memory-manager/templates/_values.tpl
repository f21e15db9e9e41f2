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
