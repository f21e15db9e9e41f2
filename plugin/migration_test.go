package main

import (
	"encoding/json"
	"fmt"
	"path"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// adopted is a container that runs with 8Gi on node 1 before the plugin is there, which then allocates it node 0.
func adopted(t *testing.T, config string) (h *host, db *testPod) {
	h = newHost(t, cri.Options{}, testConfig+config)
	h.timings("check=1s")
	db = guaranteed("db", 10*gi)
	h.deploy(db)
	h.uses(db, 8*gi)
	return h, db
}

// uses has a container use memory on node 1.
func (h *host) uses(p *testPod, bytes int64) {
	h.t.Helper()
	must(h.t, h.tree.Write(path.Join(p.cgroup(), p.id()), "memory.numa_stat", fmt.Sprintf("anon N0=4096 N1=%d\nfile N0=0 N1=0", bytes)))
}

func (h *host) audit(code int) string {
	h.t.Helper()
	h.write("kubelet.yaml", "memoryManagerPolicy: None\nfeatureGates: {MemoryQoS: false}\n")
	return h.ask(code, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"), "--kubelet-config", h.path("kubelet.yaml"))
}

const blockedSeries = "nri_memory_manager_blocked_migrations "

// By default neither the plugin nor the runtime writes cpuset.mems of a container that has more than 256Mi on other nodes. The
// container is allocated all the same, and moves once it has less there.
func TestALargeContainerIsNotMovedWhileItRuns(t *testing.T) {
	t.Parallel()
	h, db := adopted(t, "")
	plugin := h.start()
	cgroup := path.Join(db.cgroup(), db.id())
	const why = "its cpuset.mems is not written: that would move 8Gi from node 1 to node 0, more than maxMigrationBytes (256Mi)"
	eventually(t, "the write is blocked", func() bool {
		var document status.Document
		must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
		return len(document.Pods) == 1 && document.Pods[0].Containers[0].Migration.Blocked()
	})
	wantAll(t, h.ask(0, "status"), "app (not moved)", "MEMORY ON OTHER NODES\ndefault/db app: "+why)
	wantAll(t, h.ask(0, "explain", "db"), why, "10Gi of memory on node 0")
	wantAll(t, h.audit(1), "WARNING  default/db/app: "+why, "[not-moved]", "1 running container looked at: 0 errors, 1 warning")
	wantAll(t, plugin.get("/metrics"), blockedSeries+"1\n")
	must(t, h.resize(db, 11*gi))
	if mems := h.knob(cgroup, "cpuset.mems"); mems != "" {
		t.Errorf("cpuset.mems is %q, want none as before", mems)
	}
	if mems := h.mems(db); mems != "" {
		t.Errorf("the runtime's record has cpuset.mems %q, want none", mems)
	}

	h.uses(db, gi/8)
	eventually(t, "the container is on its node", func() bool { return h.knob(cgroup, "cpuset.mems") == "0" })
	wantAll(t, h.ask(0, "explain", "db"), "which moved 128Mi from node 1 to node 0")
	wantAll(t, h.audit(1), "NOTE     default/db/app: its cpuset.mems was written at", "[moved]")
	wantAll(t, plugin.get("/metrics"), blockedSeries+"0\n")
	must(t, h.resize(db, 12*gi))
	if mems := h.mems(db); mems != "0" {
		t.Errorf("the runtime's record has cpuset.mems %q, want 0", mems)
	}
}

func TestALargeContainerIsMovedWhereThatIsWanted(t *testing.T) {
	t.Parallel()
	h, db := adopted(t, "maxMigrationBytes: 1Pi\n")
	h.start()
	eventually(t, "the container is on its node", func() bool { return h.knob(path.Join(db.cgroup(), db.id()), "cpuset.mems") == "0" })
	eventually(t, "explain says so", func() bool {
		var documents []status.Explanation
		must(t, json.Unmarshal([]byte(h.ask(0, "explain", "db", "-o", "json")), &documents))
		m := documents[0].Migration
		return m != nil && m.State == status.Moved && m.Bytes == 8*gi
	})
}

func TestADryRunSaysWhatWouldMove(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ config, want string }{
		"within the bound": {"maxMigrationBytes: 8Gi\n", "a write of its cpuset.mems would move 8Gi from node 1 to node 0"},
		"beyond it":        {"maxMigrationBytes: 0\n", "a write of its cpuset.mems would move 8Gi from node 1 to node 0, more than maxMigrationBytes (0)"},
	} {
		t.Run(name, func(t *testing.T) {
			h, db := adopted(t, "profile: Observe\n"+test.config)
			h.start()
			wantAll(t, h.ask(0, "explain", "db"), "\n  dry run (profile: Observe): nothing is written\n", "  "+test.want+"\n")
			wantAll(t, h.ask(0, "status"), "default/db app: "+test.want+"\n")
			wantAll(t, h.audit(1), "NOTE     default/db/app: "+test.want+"\n", "[would-move]")
			if mems := h.knob(path.Join(db.cgroup(), db.id()), "cpuset.mems"); mems != "" {
				t.Errorf("cpuset.mems is %q after a dry run", mems)
			}
		})
	}
}

// What a container has in memory before it runs is no reason: the plugin was away when it was created.
func TestANewContainerIsOnItsNodesUnderNever(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig+"maxMigrationBytes: 0\n")
	db := guaranteed("db", 10*gi)
	must(t, h.runPod(db))
	must(t, h.create(db))
	h.uses(db, 1<<20)
	h.start()
	must(t, h.startContainer(db))
	if mems := h.knob(path.Join(db.cgroup(), db.id()), "cpuset.mems"); mems != "0" {
		t.Errorf("cpuset.mems is %q, want its node", mems)
	}
}
