package main

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

// TestManifestsStartThisBinary holds every rendered manifest against the flags and the configuration that this binary
// takes.
func TestManifestsStartThisBinary(t *testing.T) {
	t.Parallel()
	// The kubelet's socket on the node, where the manifest mounts it: as Kubernetes 1.36 names it.
	const socket = "/var/lib/kubelet/pods-api/pods-api.sock"
	kubeletSockets := map[string]string{
		"kubelet.yaml nri-memory-manager":           socket,
		"kustomize-kubelet.yaml nri-memory-manager": socket,
		"kubelet-root.yaml nri-memory-manager":      "/data/kubelet/pods-api/pods.sock",
		"sources.yaml nri-memory-manager":           socket,
		"node-groups.yaml nri-memory-manager-large": socket,
	}
	if defaultKubeletPods != socket {
		t.Errorf("outside of a pod the default is %s, want %s", defaultKubeletPods, socket)
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
			configurations, read := map[string]bool{}, map[string]bool{}
			for document := range strings.SplitSeq(string(text), "\n---\n") {
				switch {
				case strings.Contains("\n"+document, "\nkind: ConfigMap\n"):
					configurations[checkConfigMap(t, document)] = true
				case strings.Contains("\n"+document, "\nkind: DaemonSet\n"):
					var set appsv1.DaemonSet
					must(t, yaml.UnmarshalStrict([]byte(document), &set))
					checkDaemonSet(t, set, kubeletSockets[filepath.Base(file)+" "+set.Name])
					read[configMapOf(set)] = true
				}
			}
			if len(read) == 0 || !maps.Equal(configurations, read) {
				t.Errorf("the ConfigMaps %v are there, and the DaemonSets read %v", configurations, read)
			}
		})
	}
}

// checkConfigMap has the binary check the configuration in a ConfigMap, whose name it returns.
func checkConfigMap(t *testing.T, document string) string {
	t.Helper()
	var object corev1.ConfigMap
	must(t, yaml.UnmarshalStrict([]byte(document), &object))
	// A KubeletConfiguration to take over and a kubeconfig are on the node, not here.
	kubelet := filepath.Join(t.TempDir(), "kubelet.yaml")
	must(t, os.WriteFile(kubelet, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o644))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: 'https://localhost'}}]}"), 0o644))
	here := strings.NewReplacer("/host/kubelet-config.yaml", kubelet, "/etc/api/config", kubeconfig)
	file := filepath.Join(t.TempDir(), object.Name+".yaml")
	must(t, os.WriteFile(file, []byte(here.Replace(object.Data["config.yaml"])), 0o644))
	if code, _, errOut := run(t, "", "config", "check", file, "--machine", "../testdata/machines/demo.yaml"); code != 0 {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	return object.Name
}

// configMapOf is the name of the ConfigMap that a DaemonSet reads.
func configMapOf(set appsv1.DaemonSet) string {
	for _, volume := range set.Spec.Template.Spec.Volumes {
		if volume.ConfigMap != nil {
			return volume.ConfigMap.Name
		}
	}
	return ""
}

func checkDaemonSet(t *testing.T, object appsv1.DaemonSet, kubeletSocket string) {
	t.Helper()
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

// TestHelmTestAsksTheDaemon runs what the pod of helm test runs against a daemon.
func TestHelmTestAsksTheDaemon(t *testing.T) {
	t.Parallel()
	needs.Program(t, "wget", "wget")
	rendered, err := os.ReadFile("../deploy/chart/testdata/default.yaml")
	must(t, err)
	var pod corev1.Pod
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		if strings.Contains("\n"+document, "\nkind: Pod\n") {
			must(t, yaml.UnmarshalStrict([]byte(document), &pod))
		}
	}
	if len(pod.Spec.Containers) != 1 {
		t.Fatal("no pod of helm test was rendered")
	}
	plugin := newHost(t, cri.Options{}, testConfig).start()
	command := slices.Clone(pod.Spec.Containers[0].Command)
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "nri-memory-manager-test:8891", plugin.address())
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `nri_memory_manager_condition{condition="connected"} 1`) {
		t.Errorf("%v: %s", err, out)
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
