package cases

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// TestStaticPodIsExact has the kubelet run a pod of its manifests folder. The API server knows a mirror of it with another
// UID; its request is exact from the kubelet's pod API and from the API server.
func TestStaticPodIsExact(t *testing.T) {
	k := kubeletOf(t)
	for _, source := range []string{"kubelet", "apiserver"} {
		t.Run(source, func(t *testing.T) {
			p := startPlugin(t, "requestSources: ["+source+"]", "--kubeconfig="+setup.AdminConf, "--node-name="+setup.NodeName)
			pod := &kubelet.Pod{Name: "static-" + source, Containers: []kubelet.Container{{Name: "app", Request: 40 * MiB, Limit: 80 * MiB}}}
			runStatic(t, k, pod)
			dir := dirOf(t, k, pod, "app")
			holdsValue(t, dir, "memory.low", 40*MiB)
			holdsValue(t, dir, "memory.high", 76*MiB)
			holdsValue(t, k.Dir(pod), "memory.low", 40*MiB)
			holdsValue(t, k.QoS(pod), "memory.low", 40*MiB)
			if out, code := p.ask("status"); code != 0 || strings.Contains(out, "estimate") {
				t.Errorf("status: exit status %d:\n%s", code, out)
			}
			p.stop()
		})
	}
}

// runStatic puts a pod's manifest into the kubelet's folder for the time of the test, and waits until its container runs.
func runStatic(t *testing.T, k *kubelet.Kubelet, pod *kubelet.Pod) {
	t.Helper()
	if err := k.Expect(pod); err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(pod.Object())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(kubelet.StaticPods, pod.Name+".yaml")
	if err := os.WriteFile(name, manifest, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(name) })
	eventually(t, pod.Name+" runs", func() string {
		mirror, err := k.Client.CoreV1().Pods(kubelet.Namespace).Get(t.Context(), pod.Name+"-"+setup.NodeName, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, s := range mirror.Status.ContainerStatuses {
			if _, id, found := strings.Cut(s.ContainerID, "://"); found && s.State.Running != nil {
				pod.UID, pod.IDs[s.Name] = mirror.Annotations["kubernetes.io/config.hash"], id
				return ""
			}
		}
		return "its mirror's containers: " + string(mirror.Status.Phase)
	})
}
