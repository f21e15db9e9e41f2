package memorymanager_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestReleaseRest has containers admitted as app containers, one on each node of 10Gi, and then tells their roles.
func TestReleaseRest(t *testing.T) {
	const huge = memorymanager.MemoryType("hugepages-2Mi")
	of := func(name string, kind memoryqos.Kind, amounts ...uint64) memorymanager.Container {
		c := memorymanager.Container{Pod: "p", Name: name, Kind: kind}
		if len(amounts) > 1 {
			c.Request = append(c.Request, memorymanager.Amount{Type: huge, Bytes: amounts[1] * gi})
		}
		c.Request = append(c.Request, memorymanager.Amount{Type: memorymanager.Memory, Bytes: amounts[0] * gi})
		return c
	}
	const app, init, sidecar = memoryqos.App, memoryqos.Init, memoryqos.Sidecar
	for name, test := range map[string]struct {
		containers []memorymanager.Container
		want       string // their allocations afterwards, and what is reserved on the nodes
		freed      bool
	}{
		"app containers":               {[]memorymanager.Container{of("a", app, 6), of("b", app, 6)}, "a 6, b 6: [6 6 0]", false},
		"as large as the app":          {[]memorymanager.Container{of("a", init, 6), of("b", app, 6)}, "b 6: [0 6 0]", true},
		"smaller than the app":         {[]memorymanager.Container{of("a", init, 5), of("b", app, 6)}, "b 6: [0 6 0]", true},
		"larger than the app":          {[]memorymanager.Container{of("a", init, 8), of("b", app, 6)}, "a 2, b 6: [2 6 0]", true},
		"without an app":               {[]memorymanager.Container{of("a", init, 8)}, "a 8: [8 0 0]", false},
		"beside a sidecar":             {[]memorymanager.Container{of("s", sidecar, 6), of("a", init, 6), of("b", app, 6)}, "s 6, b 6: [6 0 6]", true},
		"beside a sidecar, no app yet": {[]memorymanager.Container{of("s", sidecar, 6), of("a", init, 6)}, "s 6, a 6: [6 6 0]", false},
		"two, one after the other":     {[]memorymanager.Container{of("a", init, 6), of("i", init, 7), of("b", app, 6)}, "i 1, b 6: [0 1 6]", true},
		"huge pages of its own":        {[]memorymanager.Container{of("a", init, 6, 2), of("b", app, 6)}, "a 2 of hugepages-2Mi, b 6: [0 6 0]", true},
		"huge pages of both":           {[]memorymanager.Container{of("a", init, 6, 2), of("b", app, 6, 3)}, "b 3 of hugepages-2Mi, b 6: [0 6 0]", true},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := plain(3)
			for i := range nodes {
				nodes[i].Total += 4 * gi
				nodes[i].Pools = []memorymanager.Pool{{PageSize: 2 << 20, Count: 2048}}
			}
			m := manager(t, nodes, topologymanager.SingleNUMANode)
			roles := map[string]memoryqos.Kind{}
			for _, c := range test.containers {
				roles[c.Name] = c.Kind
				c.Kind = app
				mustAdmit(t, m, c)
			}
			m.SetRoles("p", func(name string) memoryqos.Kind { return roles[name] })
			if freed := m.ReleaseRest("p", test.containers); freed != test.freed {
				t.Errorf("freed is %v", freed)
			}
			var left []string
			for _, c := range test.containers {
				for _, b := range m.Blocks("p", c.Name) {
					text := fmt.Sprintf("%s %d", c.Name, b.Size/gi)
					if b.Type != memorymanager.Memory {
						text += " of " + string(b.Type)
					}
					left = append(left, text)
				}
			}
			reserved := reservedBytes(m)
			for i := range reserved {
				reserved[i] /= gi
			}
			if got := fmt.Sprint(strings.Join(left, ", "), ": ", reserved); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if m.ReleaseRest("p", test.containers) {
				t.Error("there is more to free")
			}
		})
	}
}
