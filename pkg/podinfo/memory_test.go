package podinfo

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// fullPod is a pod as it is found in a cluster, of about 20 KiB in protobuf: three containers with environment, probes and
// mounts, a status, and who has managed which of its fields.
func fullPod(i int) *corev1.Pod {
	ref := fullRef(i)
	name := ref.Name
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: ref.Namespace, UID: types.UID(ref.UID),
			Labels: map[string]string{}, Annotations: map[string]string{},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, PodIP: "10.0.0.1"},
	}
	for j := range 10 {
		pod.Labels[fmt.Sprintf("app.kubernetes.io/label-%d", j)] = name
		pod.Annotations[fmt.Sprintf("example.com/annotation-%d", j)] = strings.Repeat("a", 100)
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Manager: "controller",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"` + strings.Repeat("f:x", 150) + `":{}}}}`)})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("volume-%d", j), VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}})
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "Ready", Status: "True", Message: name})
	}
	for c := range 3 {
		container := corev1.Container{
			Name: fmt.Sprintf("container-%d", c), Image: "registry.example.com/team/checkout-frontend:v1.2.3",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"memory": *resource.NewQuantity(int64(64*mi+i), resource.BinarySI), "cpu": resource.MustParse("100m")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("1Gi")},
			},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz"}}},
		}
		for j := range 30 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: strings.Repeat("v", 60)})
			container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "volume", MountPath: fmt.Sprint("/mnt/", j)})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: container.Name,
			Image: container.Image, ImageID: strings.Repeat("f", 64), AllocatedResources: container.Resources.Requests})
	}
	return pod
}

func fullRef(i int) pods.Ref {
	return pods.Ref{UID: fmt.Sprintf("3b1f8a34-5c6d-4e7f-8a9b-%012d", i), Namespace: fmt.Sprintf("team-%03d", i%50),
		Name: fmt.Sprintf("checkout-frontend-7c9f8d6b5-%05d", i)}
}

const measured = 1000

// TestThousandPodsFromBothSourcesStaySmall starts a second process of this test that only follows both sources, and reads
// how much memory it has after their first lists and after 5,000 updates of pods.
func TestThousandPodsFromBothSourcesStaySmall(t *testing.T) {
	kubeletServer, podServer := newFakeKubelet(t), newPodServer(t)
	for i := range measured {
		pod := fullPod(i)
		kubeletServer.put(pod)
		podServer.Put(pod)
	}
	podServer.With(func() { podServer.History = nil })
	kubeletServer.start(t)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMeasuredProcess$", "-test.v")
	child.Env = append(os.Environ(), "PODINFO_KUBELET="+kubeletServer.socket, "PODINFO_APISERVER="+podServer.URL)
	child.Stderr = os.Stderr
	commands, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	next := func() string {
		for lines.Scan() {
			if line, ok := strings.CutPrefix(lines.Text(), "measured: "); ok {
				return line
			}
		}
		t.Fatalf("the process ended early: %v", lines.Err())
		return ""
	}
	t.Logf("after the first lists: %s", next())
	for i := range 5 * measured {
		pod := fullPod(i % measured)
		pod.Spec.Containers[0].Resources.Requests["memory"] = *resource.NewQuantity(int64(gi+i), resource.BinarySI)
		pod.Status.ContainerStatuses = nil
		kubeletServer.put(pod)
		podServer.Put(pod)
		podServer.With(func() { podServer.History = nil })
	}
	fmt.Fprintln(commands, gi+5*measured-1)
	end := next()
	t.Logf("after %d updates: %s", 5*measured, end)
	if err := commands.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
	rss, err := strconv.Atoi(regexp.MustCompile(`VmRSS (\d+)`).FindStringSubmatch(end)[1])
	if err != nil {
		t.Fatal(err)
	}
	if !raceEnabled && rss > 40*1024 {
		t.Errorf("the process has %d KiB, want at most 40 MiB", rss)
	}
}

// TestMeasuredProcess is the second process of the test above.
func TestMeasuredProcess(t *testing.T) {
	socket, url := os.Getenv("PODINFO_KUBELET"), os.Getenv("PODINFO_APISERVER")
	if socket == "" {
		t.Skip("only started by TestThousandPodsFromBothSourcesStaySmall")
	}
	kubelet := NewKubelet(socket)
	api := newTestAPIServer(t, &podServer{Server: &httptest.Server{URL: url}})
	r := follow(t, defaultTimeout, kubelet, api)
	r.changed = nil
	eventually(t, "both sources", func() bool {
		return kubelet.Connected() && api.Connected() && kubelet.Len() == measured && api.Len() == measured
	})
	refs := make([]pods.Ref, measured)
	for i := range refs {
		refs[i] = fullRef(i)
		if _, ok := r.Resolve(t.Context(), refs[i]); !ok {
			t.Fatalf("no answer for %s", refs[i])
		}
	}
	fmt.Println("measured:", footprint(t))
	var last uint64
	if _, err := fmt.Scan(&last); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last update", func() bool {
		return requestOf(kubelet, refs[measured-1]) == last && requestOf(api, refs[measured-1]) == last
	})
	fmt.Println("measured:", footprint(t))
	fmt.Scan(&last) // until the end of the input
}

// footprint is this process's memory in KiB as the kernel counts it, and its live heap.
func footprint(t testing.TB) string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for line := range strings.Lines(string(status)) {
		if field := strings.Fields(line); strings.HasPrefix(line, "VmRSS:") || strings.HasPrefix(line, "VmHWM:") || strings.HasPrefix(line, "RssAnon:") {
			fmt.Fprintf(&all, "%s %s KiB, ", strings.TrimSuffix(field[0], ":"), field[1])
		}
	}
	fmt.Fprintf(&all, "live heap %d KiB", liveHeap()/1024)
	return all.String()
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkHeapPerThousandPods reports the live heap that 1,000 pods with 3 containers take in one source.
func BenchmarkHeapPerThousandPods(b *testing.B) {
	data := make([][]byte, measured)
	for i := range data {
		data[i] = encoded(fullPod(i))
	}
	before := liveHeap()
	var pods *table
	b.ResetTimer()
	for range b.N {
		pods = newTable()
		for i := range data {
			pod, err := decode(data[i])
			if err != nil {
				b.Fatal(err)
			}
			pods.put(pod)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(liveHeap()-before)/1024, "KiB-heap/1000pods")
	b.ReportMetric(float64(len(data[0])), "B-wire/pod")
	runtime.KeepAlive(pods)
	runtime.KeepAlive(data)
}

// BenchmarkResolveKnownPod is what a create pays for a pod that a source has told of.
func BenchmarkResolveKnownPod(b *testing.B) {
	kubelet := NewKubelet("")
	pod := FromPod(fullPod(1))
	kubelet.pods.put(pod)
	r := New(Options{Providers: []Provider{kubelet}})
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := r.Resolve(ctx, pod.Ref); !ok {
			b.Fatal("no answer")
		}
	}
}
