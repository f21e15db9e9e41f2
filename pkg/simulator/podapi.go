package simulator

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// podAPI is what a kubelet's pod API says of pods that do not change, by UID.
type podAPI map[string]*pods.Pod

// PodAPI returns a kubelet's pod API, without its socket, over pods from ReadFiles.
func PodAPI(of []*corev1.Pod) podinfo.Provider {
	api := podAPI{}
	for _, pod := range of {
		api[string(pod.UID)] = podinfo.FromPod(pod)
	}
	return api
}

func (a podAPI) Source() memoryqos.Source { return memoryqos.SourceKubelet }

func (a podAPI) Run(ctx context.Context, changed func(*pods.Pod)) {
	for _, pod := range a {
		changed(pod)
	}
	<-ctx.Done()
}

func (a podAPI) Known(ref pods.Ref) (*pods.Pod, bool) {
	pod, known := a[ref.UID]
	return pod, known
}

func (a podAPI) Ask(_ context.Context, ref pods.Ref) (*pods.Pod, error) {
	if pod, known := a[ref.UID]; known {
		return pod, nil
	}
	return nil, podinfo.ErrNotFound
}

func (a podAPI) Connected() bool { return true }
func (a podAPI) Problem() string { return "" }
