package main

import (
	"context"
	"encoding/json"
	"path"
	"strconv"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// requests are those of a pod's containers with their sources, as status shows them.
func (h *host) requests(p *testPod) map[string]string {
	h.t.Helper()
	var document status.Document
	must(h.t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	all := map[string]string{}
	for _, pod := range document.Pods {
		for _, c := range pod.Containers {
			if pod.UID == p.uid() {
				all[c.Name] = string(c.Source) + " " + strconv.FormatUint(c.Request>>20, 10) + "Mi"
			}
		}
	}
	return all
}

// beside creates and starts another container of a pod.
func (h *host) beside(p *testPod, name string) {
	h.t.Helper()
	id := "container-" + p.name + "-" + name
	_, err := h.runtime.CreateContainer(context.Background(), &api.Container{
		Id: id, PodSandboxId: p.sandbox(), Name: name,
		Linux: &api.LinuxContainer{
			Resources: p.resources(), OomScoreAdj: &api.OptionalInt{Value: p.adj}, CgroupsPath: "/" + path.Join(p.cgroup(), id),
		},
	})
	must(h.t, err)
	must(h.t, h.runtime.StartContainer(context.Background(), id))
}

// A request that was exact stays so while its source is away, until a source has a newer one.
func TestAnExactRequestStaysWhileItsSourceIsAway(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, operatorsConfig)
	kubelet := h.podAPI()
	web := burstable("web", 2*gi, 968) // as an estimate between 1049 and 1081 MiB
	const spec = `spec:
  initContainers: [{name: init, resources: {requests: {memory: 1700Mi}, limits: {memory: 2Gi}}}]
  containers: [{name: app, resources: {requests: {memory: 1050Mi}, limits: {memory: 2Gi}}},
    {name: second, resources: {requests: {memory: 1060Mi}, limits: {memory: 2Gi}}}, {name: third, resources: {limits: {memory: 2Gi}}}]`
	kubelet.put(web, spec)
	kubelet.start()
	plugin := h.start()
	said(plugin, "the kubelet's pod API answers")
	h.deploy(web)

	want := map[string]string{"app": "kubelet 1050Mi"}
	sum := strconv.Itoa((1050 + 1060 + 2048) << 20)
	holds := func(when string) {
		t.Helper()
		if difference := cmp.Diff(want, h.requests(web)); difference != "" {
			t.Errorf("requests %s are not as wanted (-):\n%s", when, difference)
		}
		if got := h.knob(web.cgroup(), "memory.low"); got != sum {
			t.Errorf("the pod's memory.low %s is %s, want %s", when, got, sum)
		}
	}
	holds("at first")
	before := h.picture()

	kubelet.stop()
	said(plugin, "lost the kubelet's pod API")
	h.runtime.Stop()
	must(t, h.runtime.Start())
	h.connected()
	holds("after a restart of the runtime")

	plugin.stop()
	updates := h.runtime.UpdatesFromPlugins()
	plugin = h.start()
	holds("after a restart of the plugin")
	if difference := cmp.Diff(before, h.picture()); difference != "" || h.runtime.UpdatesFromPlugins() != updates {
		t.Errorf("restarts beside a kubelet that is away changed:\n%s", difference)
	}
	h.beside(web, "second")
	want["second"] = "kubelet 1060Mi"
	holds("of a container that was created meanwhile")

	// A kubelet that has just started does not know its pods yet.
	kubelet.forget()
	kubelet.start()
	said(plugin, "the kubelet's pod API answers")
	h.beside(web, "third")
	want["third"] = "kubelet 2048Mi"
	holds("where the kubelet does not know the pod")

	kubelet.put(web, `spec: {containers: [{name: app, resources: {requests: {memory: 1500Mi}, limits: {memory: 2Gi}}}]}`)
	eventually(t, "the newer request", func() bool { return h.requests(web)["app"] == "kubelet 1500Mi" })
}
