package cases

import (
	"fmt"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestNodeRunsPods shows that the guest itself is sound: without the plugin,
// pods of every class run where a kubelet would put them.
func TestNodeRunsPods(t *testing.T) {
	k := criOf(t)
	version, err := k.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s on %v", version, k.Plan.Nodes)
	for _, p := range []*kubelet.Pod{
		{Name: "guaranteed", Containers: []kubelet.Container{{Name: "app", Request: 64 * MiB, Limit: 64 * MiB, Args: []string{fmt.Sprint("touch=", 20*MiB)}}}},
		{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB, Args: []string{fmt.Sprint("touch=", 20*MiB)}}}},
		{Name: "besteffort", Containers: []kubelet.Container{{Name: "app", Args: []string{fmt.Sprint("touch=", 20*MiB)}}}},
	} {
		run(t, k, p)
		said(t, k, p, "app", fmt.Sprint("done touch=", 20*MiB))
		dir, err := k.ContainerDir(p, "app")
		if err != nil {
			t.Fatal(err)
		}
		t.Log(kubelet.Leaves(dir))
		if err := k.Remove(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}
