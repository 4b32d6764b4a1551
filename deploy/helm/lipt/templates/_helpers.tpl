{{/* What all objects' names begin with: the release's name, and the chart's where that lacks it. */}}
{{- define "lipt.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which pods are found: (dict "root" $ "component" NAME), or without a component. */}}
{{- define "lipt.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* The same, and whose they are. */}}
{{- define "lipt.labels" -}}
{{ include "lipt.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The image of a pod with so many GPUs: (dict "root" $ "gpus" N). */}}
{{- define "lipt.image" -}}
{{- $image := .root.Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ if .gpus }}{{ $image.gpuSuffix }}{{ end }}
{{- end -}}

{{- define "lipt.coordinatorSecret" -}}
{{ .Values.tls.coordinatorSecret | default (printf "%s-coordinator-tls" (include "lipt.fullname" .)) }}
{{- end -}}

{{- define "lipt.workerSecret" -}}
{{ .Values.tls.workerSecret | default (printf "%s-worker-tls" (include "lipt.fullname" .)) }}
{{- end -}}

{{/* What all pods share: (dict "root" $ "of" VALUES), VALUES being coordinator's or workers'. */}}
{{- define "lipt.pod" -}}
serviceAccountName: {{ include "lipt.fullname" .root }}
automountServiceAccountToken: false
# Their variables (LIPT_COORDINATOR_PORT=tcp://...) would look like settings of ours.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  # Else every file of the state would be touched at every start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- $tolerations := .of.tolerations }}
{{- if .of.gpus }}
{{- $gpu := dict "key" .root.Values.workers.gpuResource "operator" "Exists" "effect" "NoSchedule" }}
{{- $tolerations = append $tolerations $gpu }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What no container may. */}}
{{- define "lipt.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Resources with GPUs: (dict "root" $ "of" VALUES). */}}
{{- define "lipt.resources" -}}
{{- $resources := deepCopy .of.resources -}}
{{- if .of.gpus -}}
{{- $limits := merge (dict .root.Values.workers.gpuResource (toString .of.gpus)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Where a container with certificates finds them. */}}
{{- define "lipt.tlsEnvironment" -}}
- name: LIPT_TLS_CERT
  value: /etc/lipt/certs/tls.crt
- name: LIPT_TLS_KEY
  value: /etc/lipt/certs/tls.key
- name: LIPT_TLS_CA
  value: /etc/lipt/certs/ca.crt
{{- end -}}
