package cases

import (
	"strings"
	"testing"
)

// TestRejectionsSayWhyAndLeakNothing asks for more than one node has under the
// two strict policies: the create's error holds our text, nothing stays allocated,
// and the same container fits when there is room.
func TestRejectionsSayWhyAndLeakNothing(t *testing.T) {
	k := criOf(t)
	for _, policy := range []string{"single-numa-node", "restricted"} {
		t.Run(policy, func(t *testing.T) {
			p := startPlugin(t, "topologyManagerPolicy: "+policy)
			// The largest node holds one such pod, not two; no other node holds one.
			sizes := p.sizes()
			largest, next := sizes[len(sizes)-1], sizes[len(sizes)-2]
			size := (next/MiB + (largest-next)/MiB/2) * MiB
			fills := guaranteed("fills", size, MiB)
			run(t, k, fills)
			refused := guaranteed("refused", size, MiB)
			if err := k.Prepare(t.Context(), refused); err != nil {
				t.Fatal(err)
			}
			err := k.RunContainer(t.Context(), refused, "app")
			if err == nil {
				t.Fatalf("a second container of %d bytes was admitted", size)
			}
			for _, part := range []string{"app", "refused", policy, "needed", "node 0", "node 1", "free"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the create's error lacks %q: %v", part, err)
				}
			}
			p.onlyAllocated(fills)
			if err := k.Remove(t.Context(), fills); err != nil {
				t.Fatal(err)
			}
			p.waitFree()
			if err := k.RunContainer(t.Context(), refused, "app"); err != nil {
				t.Fatalf("with room it is refused again: %v", err)
			}
			p.onlyAllocated(refused)
			if err := k.Remove(t.Context(), refused); err != nil {
				t.Fatal(err)
			}
			p.waitFree()
			p.stop()
		})
	}
}
