package podinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// every is a pod with all that a Pod can say.
func every() *pods.Pod {
	return &pods.Pod{
		Ref: pods.Ref{UID: "uid", Namespace: "ns", Name: "every"}, Class: memoryqos.Burstable, Overhead: mi,
		PodRequest: new(uint64(64 * mi)), PodLimit: new(uint64(128 * mi)), Static: true, Mirror: true,
		Containers: []pods.Container{
			{Name: "init", Kind: memoryqos.Init, Request: 10 * mi, Limit: 20 * mi},
			{Name: "sidecar", Kind: memoryqos.Sidecar},
			{Name: "app", Hugepages: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 2 * mi}}},
			{Name: "debug", Kind: memoryqos.Ephemeral},
		},
	}
}

// restarted is a resolver on a file of an earlier one, over sources that are not there.
func restarted(t *testing.T, file string) *following {
	t.Helper()
	return followFile(t, 0, file, newTestKubelet(newFakeKubelet(t)))
}

func TestWhatWasKnownOutlivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.json")
	server := newFakeKubelet(t)
	first, second, gone := testPod(t, "first", "64Mi"), testPod(t, "second", "65Mi"), testPod(t, "gone", "66Mi")
	for _, pod := range []*corev1.Pod{first, second, gone, testPod(t, "other", "67Mi")} {
		server.put(pod)
	}
	server.start(t)
	kubelet := newTestKubelet(server)
	r := followFile(t, long, file, kubelet)
	eventually(t, "the kubelet", kubelet.Connected)
	for _, pod := range []*corev1.Pod{first, second, gone} {
		resolved(t, r, refOf(pod))
	}
	r.Forget(refOf(gone))
	r.stop()

	r = restarted(t, file)
	for pod, want := range map[*corev1.Pod]string{first: "kubelet 64Mi", second: "kubelet 65Mi", gone: "nothing", testPod(t, "other", "1"): "nothing"} {
		if answer, _ := r.Known(refOf(pod)); shown(answer) != want {
			t.Errorf("pod %s is known as %s, want %s", pod.Name, shown(answer), want)
		}
	}
	if got := resolved(t, r, refOf(first)); got != "kubelet 64Mi" {
		t.Errorf("the first pod resolves to %s", got)
	}
	r.Retain([]pods.Ref{refOf(first)})
	if answer, ok := r.Known(refOf(second)); ok {
		t.Errorf("a pod that has ended is known as %s", shown(answer))
	}
	r.stop()

	// A newer word counts, and is kept in its turn.
	server.with(func() {
		server.pods = map[types.UID]*corev1.Pod{first.UID: testPod(t, "first", "70Mi"), second.UID: second}
	})
	r = followFile(t, long, file, newTestKubelet(server))
	if got := resolved(t, r, refOf(first)); got != "kubelet 64Mi" && got != "kubelet 70Mi" {
		t.Errorf("the first pod resolves to %s", got)
	}
	eventually(t, "the newer request", func() bool { answer, _ := r.Known(refOf(first)); return shown(answer) == "kubelet 70Mi" })
	eventually(t, "the newer request in the file", func() bool {
		kept, err := readKept(file)
		return err == nil && len(kept) == 1 && shown(kept[refOf(first)]) == "kubelet 70Mi"
	})
}

func TestKeptPodsAreWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.json")
	r := New(Options{File: file, Log: quiet()})
	pod := every()
	r.kept = map[pods.Ref]pods.Answer{pod.Ref: {Pod: pod, Source: memoryqos.SourceAPIServer}}
	r.save()
	if err := r.file.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; want mode 0600", info, err)
	}
	kept, err := readKept(file)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(map[pods.Ref]pods.Answer{pod.Ref: {Pod: pod, Source: memoryqos.SourceAPIServer}}, kept); difference != "" {
		t.Error(difference)
	}
}

func TestKeptPodsThatCannotBeRead(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"cut off":           {`[{"source":"kubelet","pod":{`, "unexpected end of JSON input"},
		"another layout":    {`{"version":2}`, "cannot unmarshal object"},
		"a negative amount": {`[{"pod":{"containers":[{"request":-1}]}}]`, "cannot unmarshal number -1"},
		"an unknown kind":   {`[{"pod":{"containers":[{"kind":"main"}]}}]`, `kind "main": want app, init, sidecar or ephemeral`},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "requests.json")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var logged lines
			log := logrus.New()
			log.SetOutput(&strings.Builder{})
			log.AddHook(&logged)
			r := New(Options{File: file, Log: log})
			if len(r.kept) > 0 || len(logged) != 1 || !strings.HasPrefix(logged[0], "warning: what was known of the pods cannot be read") ||
				!strings.Contains(logged[0], file) || !strings.Contains(logged[0], tt.want) {
				t.Errorf("kept %v, logged %q, want %q", r.kept, logged, tt.want)
			}
		})
	}
	for name, text := range map[string]string{"no pods": "[]", "nothing": "null", "no pod": `[{"source":"kubelet"}]`, "a new key": `[{"by":"x","pod":{"uid":"u","age":1}}]`} {
		file := filepath.Join(t.TempDir(), "requests.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readKept(file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
