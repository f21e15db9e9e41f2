package simulator

import (
	"context"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

// decider is an agent and its own session, and gives every container the same adjustment.
type decider struct {
	decisions
	nriplugin.Session
	adjustment ledger.Adjustment
	update     func(context.Context, []ledger.Update) error
}

func (d *decider) Connected(_ ledger.Runtime, update func(context.Context, []ledger.Update) error) *decider {
	d.update = update
	return d
}

func (d *decider) Synchronize(context.Context, []ledger.Pod, []ledger.Container) ([]ledger.Update, error) {
	return nil, nil
}

func (d *decider) RunPodSandbox(context.Context, ledger.Pod) error { return nil }

func (d *decider) CreateContainer(context.Context, ledger.Pod, ledger.Container) (ledger.Adjustment, error) {
	return d.adjustment, nil
}

// What an agent changes later, without being asked, ends where its answers do: in the container's resources and its cgroup.
func TestDirectAppliesUnaskedUpdates(t *testing.T) {
	tree, err := cgroups.NewTree(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	decides := &decider{adjustment: ledger.Adjustment{CpusetMems: "0", Unified: map[string]string{"memory.low": "4096"}}}
	runtime, err := Connect(t.Context(), decides, tree)
	if err != nil {
		t.Fatal(err)
	}
	pod := podOf(t, "{containers: [{name: app, resources: {limits: {memory: 1Gi}}}]}")
	var k kubelet
	asked := k.container(pod, &pod.Spec.Containers[0])
	if err := runtime.RunPodSandbox(t.Context(), k.sandbox(pod)); err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.CreateContainer(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	check := func(mems, low, high string) {
		t.Helper()
		resources := runtime.Containers()[0].Linux.Resources
		want := map[string]string{"memory.oom.group": "1", "memory.low": low}
		if high != "max" {
			want["memory.high"] = high
		}
		if diff := cmp.Diff(want, resources.Unified); diff != "" || resources.Cpu.Mems != mems {
			t.Errorf("cpuset.mems %q, want %q; unified: %s", resources.Cpu.Mems, mems, diff)
		}
		for file, want := range map[string]string{"cpuset.mems": mems, "memory.low": low, "memory.high": high, "memory.max": "1073741824"} {
			if got, err := tree.Read(cgroups.Path(asked.Linux.CgroupsPath), file); err != nil || got != want {
				t.Errorf("%s: got %q, %v; want %q", file, got, err, want)
			}
		}
	}
	check("0", "4096", "max")
	updates := []ledger.Update{
		{ContainerID: "gone", Adjustment: ledger.Adjustment{CpusetMems: "2"}},
		{ContainerID: asked.Id, Adjustment: ledger.Adjustment{CpusetMems: "0-1", Unified: map[string]string{"memory.high": "8192"}}},
	}
	if err := decides.update(t.Context(), updates); err == nil || err.Error() != `no container "gone"` {
		t.Errorf("the error is %v", err)
	}
	check("0-1", "4096", "8192")
	if asked.Linux.Resources.Cpu.Mems != "" || asked.State != api.ContainerState_CONTAINER_UNKNOWN {
		t.Errorf("the kubelet's own container was changed: %v", asked)
	}
}

func TestUnexpectedRejections(t *testing.T) {
	result := &Result{Containers: []*Container{
		{Pod: "web", Container: "app", Admitted: true}, {Pod: "db", Container: "app"}, {Pod: "cache", Container: "app"},
	}}
	rejected, admitted := result.Unexpected([]string{"cache/app", "web/app"})
	if diff := cmp.Diff([][]string{{"db/app"}, {"web/app"}}, [][]string{rejected, admitted}); diff != "" {
		t.Error(diff)
	}
}
