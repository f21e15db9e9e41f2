package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// TestWhatTheWatchCosts prints what docs/fleet.md says of requestSource apiserver: the bytes between the plugin and the API
// server, TLS and HTTP/2 included, and the plugin's memory on a full node. Pods are as large as a Deployment's with probes,
// volumes and status. KUBE_APISERVER=/path go -C deploy test ./apiserver -run Watch -v
func TestWhatTheWatchCosts(t *testing.T) {
	program := os.Getenv("KUBE_APISERVER")
	if program == "" {
		t.Skip("KUBE_APISERVER does not name a kube-apiserver")
	}
	admin, _ := startKubernetes(t, program)
	client, err := kubernetes.NewForConfig(admin)
	must(t, err)
	text, err := os.ReadFile("testdata/pod.yaml")
	must(t, err)
	const pods = 110
	uids := map[string]string{}
	for i := range pods {
		var pod corev1.Pod
		must(t, yaml.UnmarshalStrict(text, &pod))
		pod.Name = fmt.Sprintf("web-7d4b9c6f8d-%05d", i)
		uids[pod.Name] = create(t, client, &pod)
	}
	wire := &wire{to: strings.TrimPrefix(admin.Host, "https://")}
	config := rest.CopyConfig(admin)
	config.Host = "https://" + wire.listen(t)
	n := newNode(t, config, machine, "requestSources: [apiserver, oomscore]")
	// Debian's etcd 3.4 tells a watch of no progress, so the API server streams a list only after one more write.
	eventually(t, "the first list", func() bool {
		_, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "elsewhere-"},
			Spec: corev1.PodSpec{NodeName: "elsewhere", Containers: []corev1.Container{{Name: "app", Image: "image"}}}}, metav1.CreateOptions{})
		must(t, err)
		return wire.bytes.Load() > pods*1000
	})
	for name, uid := range uids {
		must(t, n.place(name, uid, 128<<20))
	}
	eventually(t, "every request is the API server's", func() bool { return n.fromAPIServer() == pods })
	list := wire.bytes.Load()
	t.Logf("the first list of %d pods: %d bytes, %d a pod", pods, list, list/pods)
	for i := range 100 {
		patch := fmt.Sprintf(`{"status":{"containerStatuses":[{"name":"app","restartCount":%d}]}}`, i+1)
		_, err := client.CoreV1().Pods("default").Patch(t.Context(), "web-7d4b9c6f8d-00000", "application/strategic-merge-patch+json",
			[]byte(patch), metav1.PatchOptions{}, "status")
		must(t, err)
	}
	var changes int64
	eventually(t, "the changes have come", func() bool { // nothing more within a while
		before := changes
		time.Sleep(time.Second)
		changes = wire.bytes.Load() - list
		return changes == before && changes > 0
	})
	t.Logf("a change of a pod: %d bytes", changes/100)
	memory, err := exec.Command("grep", "-E", "VmRSS|RssAnon", fmt.Sprintf("/proc/%d/status", n.process.Process.Pid)).Output()
	must(t, err)
	t.Logf("the plugin's memory with %d pods:\n%s", pods, memory)
}

// fromAPIServer counts the containers whose memory request the API server has told.
func (n *node) fromAPIServer() (count int) {
	n.t.Helper()
	out, err := exec.Command(plugin(n.t), "status", "--state-dir", n.path("state"), "-o", "json").Output()
	must(n.t, err)
	var document status.Document
	must(n.t, json.Unmarshal(out, &document))
	for _, pod := range document.Pods {
		for _, container := range pod.Containers {
			if container.RequestSource == "apiserver" {
				count++
			}
		}
	}
	return count
}

// wire passes connections on and counts their bytes, both ways.
type wire struct {
	to    string
	bytes atomic.Int64
}

func (w *wire) listen(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", w.to)
			if err != nil {
				from.Close()
				continue
			}
			go w.pass(from, to)
			go w.pass(to, from)
		}
	}()
	return listener.Addr().String()
}

func (w *wire) pass(from, to net.Conn) {
	defer to.Close()
	_, _ = io.Copy(io.MultiWriter(to, w), from)
}

func (w *wire) Write(data []byte) (int, error) {
	w.bytes.Add(int64(len(data)))
	return len(data), nil
}
