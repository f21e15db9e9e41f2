package main

import (
	"os"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// newest is the content of the state file that the commands read.
func (h *host) newest() checkpoint.File {
	h.t.Helper()
	file, err := checkpoint.ReadFile(h.path("state/" + checkpoint.FileName))
	must(h.t, err)
	return file
}

// otherNodes is a state of one container on node 0 as it is with the container on node 1 of two that are alike.
func otherNodes(t *testing.T, file checkpoint.File) string {
	t.Helper()
	s := file.State
	s.Nodes[0], s.Nodes[1] = s.Nodes[1], s.Nodes[0]
	for i := range s.Nodes {
		s.Nodes[i].ID, s.Nodes[i].Cells = i, 1<<i
	}
	s.Entries[0].Blocks[0].Nodes = 2
	text, _, findings := checkpoint.Export(checkpoint.File{Policy: file.Policy, State: s}, "")
	if len(findings) > 0 {
		t.Fatalf("a kubelet would not write this: %v", findings)
	}
	return string(text)
}

// Export prints what the daemon has allocated, also while its disk does not take it.
func TestExportBesideARunningDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	db, late := guaranteed("db", 4*gi), guaranteed("late", gi)
	db.files = map[string]string{"cpuset.mems.effective": "0-1"}
	late.files = db.files
	h.deploy(db)
	h.settled([]string{"uid-db/app 0 4294967296"})
	exported := func() string {
		want, _, findings := checkpoint.Export(h.newest(), "")
		got := h.ask(0, "state", "export")
		if len(findings) > 0 || got != string(want) {
			t.Errorf("state export:\ngot  %s\nwant %s\n%v", got, want, findings)
		}
		return got
	}
	exported()
	blocked := h.path("state/" + checkpoint.FileName + ".tmp")
	eventually(t, "no write is under way", func() bool { return os.Mkdir(blocked, 0o700) == nil })
	h.deploy(late)
	if got := h.ask(0, "state", "export"); !strings.Contains(got, "uid-late") || strings.Contains(strings.Join(h.entries(), " "), "uid-late") {
		t.Errorf("the daemon exports %s\nits file has %s", got, h.entries())
	}
	must(t, os.Remove(blocked))
	eventually(t, "the file is written", func() bool { return strings.Contains(strings.Join(h.entries(), " "), "uid-late") })
	live := exported()
	h.ask(0, "rollback")
	h.deploy(guaranteed("unpinned", gi))
	if got := exported(); got != live {
		t.Errorf("after a rollback:\ngot  %s\nwant %s", got, live)
	}
	plugin.stop()
	exported()
}

// A daemon that runs has taken in what runs where it is: a file that says the same is no more, and another one is refused.
func TestImportBesideARunningDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.start()
	h.deploy(guaranteed("db", 4*gi))
	h.settled([]string{"uid-db/app 0 4294967296"})
	same, other := h.path("same"), h.path("other")
	must(t, os.WriteFile(same, []byte(h.ask(0, "state", "export")), 0o600))
	must(t, os.WriteFile(other, []byte(otherNodes(t, h.newest())), 0o600))
	wantAll(t, h.ask(0, "state", "import", same), "Nothing to import: the running plugin has 1 containers of "+same+" as they are there")
	wantAll(t, h.ask(1, "state", "import", "--force", other),
		"container app of pod uid-db: 4Gi memory on node 0 here, 4Gi memory on node 1 in the file\n", "nothing is imported from "+other+": the running plugin has these containers otherwise; ")
	h.settled([]string{"uid-db/app 0 4294967296"})

	empty := newHost(t, cri.Options{}, testConfig)
	empty.start()
	wantAll(t, empty.ask(1, "state", "import", other), "container app of pod uid-db: no allocation here: it does not run, or is not pinned\n",
		"the running plugin has none of its containers; is it this node's?")
	places := newHost(t, cri.Options{}, testConfig+"memoryManagerPolicy: None\n")
	places.start()
	if out := places.ask(2, "state", "import", other); strings.Count(out, "stop it first") != 1 {
		t.Error(out)
	}
}

// The first start imports the kubelet's state file, and no later one does. One that cannot be imported stops nothing.
func TestTheFirstStartImportsTheKubeletsState(t *testing.T) {
	t.Parallel()
	kubelet := newHost(t, cri.Options{}, testConfig)
	kubelet.start()
	kubelet.deploy(guaranteed("db", 4*gi))
	kubelet.settled([]string{"uid-db/app 0 4294967296"})
	good := otherNodes(t, kubelet.newest())
	for name, test := range map[string]struct{ config, text, log, node string }{
		"static":  {"", good, "the kubelet's state file is imported", "1"},
		"observe": {"profile: Observe\n", good, "the kubelet's state file is imported", "1"},
		"none":    {"", `{"policyName":"None","machineState":{},"checksum":4236770233}`, `policyName is \"None\": there is nothing to take over, want \"Static\"`, "0"},
		"damaged": {"", good[:100], "cut short?", "0"},
		"no file": {"", "", "kubelet_state: no such file or directory", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, cri.Options{}, testConfig+test.config)
			db := guaranteed("db", 4*gi)
			h.deploy(db)
			if test.text != "" {
				h.write("kubelet_state", test.text)
			}
			plugin := h.start("--import-kubelet-state", h.path("kubelet_state"))
			said(plugin, test.log)
			on := func() bool { return strings.Contains(h.ask(0, "explain", "db"), "4Gi of memory on node "+test.node) }
			eventually(t, "the container is where the file has it", on)
			plugin.stop()
			h.write("config.yaml", testConfig)
			h.write("kubelet_state", "no state")
			again := h.start("--import-kubelet-state", h.path("kubelet_state"))
			eventually(t, "it is there after another start", on)
			if strings.Contains(again.log.String(), "kubelet_state") {
				t.Error("the kubelet's file is read again")
			}
			eventually(t, "its pages are there", func() bool { return h.knob(db.cgroup()+"/"+db.id(), "cpuset.mems") == test.node })
		})
	}
}

// A start after the state file was set aside is not the first.
func TestNoLaterStartImportsTheKubeletsState(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	db := guaranteed("db", 4*gi)
	plugin := h.start()
	h.deploy(db)
	h.settled([]string{"uid-db/app 0 4294967296"})
	h.write("kubelet_state", otherNodes(t, h.newest()))
	plugin.kill()
	h.write("state/memory_manager_state", "{torn")
	h.runtime.Stop()
	before := h.launch("--import-kubelet-state", h.path("kubelet_state"))
	said(before, "is set aside")
	before.kill()
	must(t, h.runtime.Start())
	h.launch("--import-kubelet-state", h.path("kubelet_state"))
	h.settled([]string{"uid-db/app 0 4294967296"})
}
