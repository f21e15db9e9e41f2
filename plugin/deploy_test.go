package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// TestManifestsStartThisBinary holds every rendered manifest against the flags and the configuration that this binary
// takes.
func TestManifestsStartThisBinary(t *testing.T) {
	// The kubelet's socket on the node, where the manifest mounts it: as Kubernetes 1.36 names it.
	kubeletSockets := map[string]string{
		"kubelet.yaml":           "/var/lib/kubelet/pods-api/pods-api.sock",
		"kustomize-kubelet.yaml": "/var/lib/kubelet/pods-api/pods-api.sock",
		"kubelet-root.yaml":      "/data/kubelet/pods-api/pods.sock",
	}
	if want := kubeletSockets["kubelet.yaml"]; defaultKubeletPods != want {
		t.Errorf("outside of a pod the default is %s, want %s", defaultKubeletPods, want)
	}
	files, err := filepath.Glob("../deploy/chart/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rendered manifests: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			configurations, containers := 0, 0
			for document := range strings.SplitSeq(string(text), "\n---\n") {
				switch {
				case strings.Contains(document, "\nkind: ConfigMap\n"):
					configurations++
					checkConfigMap(t, file, document)
				case strings.Contains(document, "\nkind: DaemonSet\n"):
					containers++
					checkDaemonSet(t, document, kubeletSockets[filepath.Base(file)])
				}
			}
			if configurations != 1 || containers != 1 {
				t.Errorf("%d ConfigMaps and %d DaemonSets, want one of each", configurations, containers)
			}
		})
	}
}

func checkConfigMap(t *testing.T, file, document string) {
	t.Helper()
	var object corev1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Fatal(err)
	}
	// A KubeletConfiguration to take over is on the node, not here.
	text := strings.ReplaceAll(object.Data["config.yaml"], "kubeletConfig: /host/kubelet-config.yaml", "")
	if _, err := config.Parse(file, []byte(text)); err != nil {
		t.Error(err)
	}
}

func checkDaemonSet(t *testing.T, document, kubeletSocket string) {
	t.Helper()
	var object appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Fatal(err)
	}
	args := object.Spec.Template.Spec.Containers[0].Args
	command, rest, err := newRootCommand().Find(args)
	if err != nil || command.Name() != "run" {
		t.Fatalf("arguments %q start %q: %v", args, command.Name(), err)
	}
	if err := command.ParseFlags(rest); err != nil {
		t.Errorf("arguments %q: %v", args, err)
	}
	flag := command.Flag("kubelet-pods-socket")
	if socket := onNode(object.Spec.Template.Spec, flag.Value.String()); socket != kubeletSocket {
		t.Errorf("--kubelet-pods-socket=%s is %q on the node, want %q", flag.Value, socket, kubeletSocket)
	}
}

// onNode is the path on the node that the first container of a pod sees as another; "" when it is in no host path.
func onNode(pod corev1.PodSpec, path string) string {
	for _, mount := range pod.Containers[0].VolumeMounts {
		rest, inside := strings.CutPrefix(path, mount.MountPath+"/")
		for _, volume := range pod.Volumes {
			if inside && volume.Name == mount.Name && volume.HostPath != nil {
				return filepath.Join(volume.HostPath.Path, rest)
			}
		}
	}
	return ""
}
