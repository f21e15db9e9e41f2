package oom

import (
	"math/rand/v2"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Whatever was read: a verdict names a limit only where one was hit, says why what it does not know is unknown, blames one of those who
// shared what ran out, and always has something that helps.
func TestEveryKillHasAVerdict(t *testing.T) {
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 1))
		bytes := func() uint64 { return []uint64{0, 1, r.Uint64N(1 << 40), cgroup.Max}[r.IntN(4)] }
		held := func() Held { return Held{bytes() >> 3, bytes() >> 3, bytes() >> 3, bytes() >> 3, bytes() >> 3} }
		yes := func() bool { return r.IntN(3) == 0 }
		k := Kill{Away: yes(), Kills: 1, Whole: yes(), Peak: bytes(), Reserve: bytes(), Nodes: nodeset.Set(r.Uint64N(4)), Victim: User{Namespace: "a", victim: true}}
		for i := range r.IntN(5) {
			k.Chain = append(k.Chain, Reading{Level: []Level{Container, Pod, Parent, Parent}[i], Hit: yes(), Below: yes(), Gone: yes(), Limit: bytes(), Held: held()})
		}
		for range r.IntN(3) {
			k.Users = append(k.Users, User{Namespace: "b", Pod: "other", Used: bytes(), Share: bytes(), Outside: yes(), victim: yes()})
			k.Memory = append(k.Memory, NodeAtKill{ID: r.IntN(2), Free: bytes() >> 2})
		}
		if yes() {
			k.Before = &Sample{Current: bytes(), Held: held()}
		}
		v := Judge(k)
		level, at := k.Hit()
		switch {
		case v.Level != level, (v.Limit > 0 || v.Cgroup != "") && at < 0, at >= 0 && !k.Chain[at].Hit && !k.Chain[at].Below:
			t.Errorf("seed %d: %+v of %+v", seed, v, k)
		case (v.Held == nil) != (v.Unknown != ""), v.Held == nil && v.Cause != UnknownCause:
			t.Errorf("seed %d: what it was used for is %+v, and unknown because %q", seed, v.Held, v.Unknown)
		case v.Culprit != nil && level == UnknownLevel, v.Change == "", v.PodText() == "" || v.Text() == "":
			t.Errorf("seed %d: %+v", seed, v)
		}
	}
}
