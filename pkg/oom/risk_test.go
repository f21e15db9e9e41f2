package oom

import (
	"fmt"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestWhoIsAtRisk(t *testing.T) {
	bytes := func(n uint64) *uint64 { return &n }
	writes := Held{Processes: 40 * mib, PageCache: 22 * mib, Unwritten: 5 * mib, Kernel: mib}
	for name, test := range map[string]struct {
		limit, raised uint64
		high          *uint64
		held          Held
		want          bool
	}{
		"writes files at its limit":    {limit: 64 * mib, held: writes, want: true},
		"reads files at its limit":     {limit: 64 * mib, held: Held{Processes: 40 * mib, PageCache: 23 * mib, Unwritten: 3 * mib}},
		"a heap":                       {limit: 64 * mib, held: Held{Processes: 63 * mib}},
		"writes files below its limit": {limit: 80 * mib, held: writes},
		"without a limit":              {held: writes},
		"memory.high has it wait":      {limit: 64 * mib, high: bytes(58 * mib), held: writes},
		"memory.high above its limit":  {limit: 64 * mib, high: bytes(64 * mib), held: writes, want: true},
		"memory.high was raised":       {limit: 64 * mib, high: bytes(58 * mib), raised: 60 * mib, held: writes},
		"memory.high was taken away":   {limit: 64 * mib, high: bytes(58 * mib), raised: 1 << 63, held: writes, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := Sample{Current: test.held.Processes + test.held.PageCache + test.held.Kernel, Held: test.held}
			c := &ledger.ContainerView{Limit: test.limit, Raised: test.raised, Values: memoryqos.Values{High: test.high}}
			if got := s.atRisk(c); got != test.want {
				t.Errorf("at risk: %v, want %v", got, test.want)
			}
		})
	}
}

// hits has a cgroup count that its limit, or one below it, was about to be passed.
func (h *host) hits(dir string, n int) {
	h.Helper()
	h.write(dir, "memory.events", fmt.Sprintf("low 0\nhigh 0\nmax %d\noom 0\noom_kill 0", n))
}

func TestRisksAreSeen(t *testing.T) {
	writes := Held{Processes: 40 * mib, PageCache: 22 * mib, Unwritten: 20 * mib}
	for name, test := range map[string]struct {
		happens func(h *host)
		want    string
	}{
		"its own limit": {func(h *host) {
			h.held(appDir, "67108864", writes)
			h.hits(appDir, 1)
			h.hits(podDir, 1)
		}, "app"},
		"the pod's limit": {func(h *host) {
			h.held(appDir, "67108864", writes)
			h.hits(podDir, 1)
		}, "app"},
		"the limit of a container that reads, beside one that writes below its own": {func(h *host) {
			h.held(appDir, "67108864", Held{PageCache: 63 * mib})
			h.hits(appDir, 1)
			h.hits(podDir, 1)
			h.held(besideID, "67108864", Held{PageCache: 30 * mib, Unwritten: 30 * mib})
		}, ""},
		"no limit": {func(h *host) {
			h.held(appDir, "67108864", writes)
			h.write(podDir, "memory.events", "low 0\nhigh 1\nmax 0\noom 0\noom_kill 0")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			r := h.recorder()
			h.sync(r, noon)
			test.happens(h)
			h.look(r, noon.Add(time.Second))
			got := ""
			for dir := range r.Risks() {
				for _, c := range h.view.Containers() {
					if c.Cgroup == dir {
						got += c.Name
					}
				}
			}
			if got != test.want {
				t.Errorf("at risk: %q, want %q", got, test.want)
			}
		})
	}
}

// A risk is of what happens now: what was counted before the daemon began says nothing, and one that is not seen again is forgotten.
func TestARiskLasts(t *testing.T) {
	h := newHost(t)
	h.held(appDir, "67108864", Held{PageCache: 63 * mib, Unwritten: 20 * mib})
	h.hits(appDir, 7)
	h.hits(podDir, 7)
	r := h.recorder()
	h.sync(r, noon)
	if got := r.Risks(); len(got) > 0 {
		t.Errorf("of before: %+v", got)
	}
	for i, at := range []time.Duration{time.Minute, 2 * time.Minute} {
		h.hits(podDir, 8+i)
		h.look(r, noon.Add(at))
	}
	want := Risk{Seen: noon.Add(2 * time.Minute), Unwritten: 20 * mib}
	r.forgetRisks(noon.Add(12 * time.Minute))
	if got := r.Risks(); len(got) != 1 || *got[appDir] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.forgetRisks(noon.Add(12*time.Minute + time.Second))
	if got := r.Risks(); len(got) > 0 {
		t.Errorf("after ten minutes: %+v", got)
	}
	if kept := r.pods[podDir].containers[appDir].samples; len(kept) != 2 {
		t.Errorf("%d samples for a verdict, want those of the last minute", len(kept))
	}
}

func TestWhereItIsKnownToKill(t *testing.T) {
	for name, test := range map[string]struct {
		release string
		mounted []string
		want    bool
	}{
		"6.12 with XFS":                 {"6.12.117+deb13-cloud-amd64", []string{"stats", "vdb"}, true},
		"6.12 with the module of XFS":   {"6.12.117+deb13-cloud-amd64", []string{"stats", "debug"}, false},
		"6.12 without XFS":              {"6.12.117+deb13-cloud-amd64", nil, false},
		"another kernel with XFS":       {"6.1.0-41-cloud-amd64", []string{"stats", "vdb"}, false},
		"a kernel whose name is longer": {"6.120.1", []string{"stats", "vdb"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("proc", "sys/kernel/osrelease", test.release)
			for _, name := range test.mounted {
				h.write("sys/fs/xfs/"+name, "log", "")
			}
			r := h.recorder()
			if r.known() {
				t.Error("known without sysfs")
			}
			r.options.Sys = h.root + "/sys"
			if got := r.known(); got != test.want {
				t.Errorf("known: %v, want %v", got, test.want)
			}
		})
	}
}
