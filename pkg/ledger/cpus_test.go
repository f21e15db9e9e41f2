package ledger

import (
	"fmt"
	"testing"
	"time"
)

// A resize says by the CPU shares alone whether a container's CPUs are its own.
func TestCPUsThatAnUpdateMakesExclusive(t *testing.T) {
	l, now := newLedger(t, ""), time.Unix(1, 0)
	create := claimed(claimPod("web", ""), "main", claimGi)
	create.Container.Resources.CPUs, create.Container.Resources.CPUShares = "8-11", of(uint64(512))
	l.Step(now, create)
	for _, step := range []struct {
		to   Resources
		want string
	}{
		{Resources{}, " map[]"}, {Resources{CPUShares: of(uint64(4096))}, "1 map[1:4]"},
		{Resources{CPUShares: of(uint64(0))}, "1 map[1:4]"}, {Resources{CPUs: "0-3"}, "0 map[0:4]"}, {Resources{CPUs: "0-7"}, " map[]"},
	} {
		l.Step(now, UpdateContainer{Pod: create.Pod, Container: create.Container, To: step.to})
		c := l.View().Pods[0].Containers[0]
		if got := fmt.Sprint(l.living[0].containers[0].CPUNodes, " ", c.CPUs); got != step.want {
			t.Errorf("after %+v: exclusive CPUs %s, want %s", step.to, got, step.want)
		}
	}
}
