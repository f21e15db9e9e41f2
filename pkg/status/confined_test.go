package status

import (
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// A confined container has a cpuset.mems and no NUMA nodes of its own.
func TestStatusOfAConfinedContainer(t *testing.T) {
	c := known{}.container("uid", &ledger.ContainerView{State: ledger.Running, Confined: nodeset.Of(0, 1)})
	if c.CpusetMems != "0-1" || !c.Nodes.Empty() {
		t.Errorf("cpuset.mems %q and nodes %s, want 0-1 and none", c.CpusetMems, c.Nodes)
	}
}
