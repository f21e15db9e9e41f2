package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// contents are the files of a folder with what is in them.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = string(data)
	}
	return all
}

// A second agent with the state folder of one that runs is not made, and leaves every file in it as it is. Once the first has ended, it
// continues from what the first has decided.
func TestOneFolderHasOneAgent(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	n.sync(nil, nil)
	db := n.pod("db", memoryqos.Guaranteed)
	container := n.launch(db, ofPod(db, "app", 4*gi))
	if err := n.journal.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	tree, err := cgroupfs.Open(n.root, cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	log := logrus.New()
	log.SetOutput(n.log)
	second := Options{Config: n.config, Machine: n.machine, StateDir: n.state, Tree: tree, Log: log}
	// What the second would set aside as damaged, had it read it.
	for _, file := range []string{raisesFile, checkpoint.FileName, protect.JournalFile} {
		n.writeState(file, "{")
	}
	before := contents(t, n.state)
	want := fmt.Sprintf("%s: another nri-memory-manager is running with this state folder: process %d", n.state, os.Getpid())
	for _, profile := range []config.Profile{config.ProfileFull, config.ProfileObserve} { // which writes no cgroup, and its decisions to the same files
		second.Config.Profile = profile
		if _, err := New(second); !errors.Is(err, checkpoint.ErrInUse) || err.Error() != want {
			t.Fatalf("a second agent: %v, want %s", err, want)
		}
	}
	if after := contents(t, n.state); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the state folder has %v, before the second agent it had %v", after, before)
	}

	web := n.pod("web", memoryqos.Guaranteed) // the first decides on, and writes the state file again
	n.launch(web, ofPod(web, "app", 2*gi))
	n.stop()
	n.start()
	n.sync([]Pod{db}, []Container{container})
	n.want("nodes of the container that the first agent has placed", n.containerView(db, "app").Nodes.String(), "0")
	if !strings.Contains(n.log.String(), "state file restored") {
		t.Errorf("nothing was restored:\n%s", n.log)
	}
}

// writeState replaces a file of the state folder.
func (n *node) writeState(file, text string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.state, file), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

// Without a state folder nothing is kept on a disk, nobody is told of a failure, and what is allocated is known all the same.
func TestWithoutAStateFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	n := newNode(t, "topologyManagerPolicy: single-numa-node", func(n *node) { n.state = "" })
	n.sync(nil, nil)
	db := n.pod("db", memoryqos.Guaranteed)
	n.launch(db, ofPod(db, "app", 4*gi))
	if state, err := n.State(); err != nil || !strings.Contains(string(state), `"app":[{"numaAffinity":[0]`) {
		t.Errorf("the state is %s, %v", state, err)
	}
	n.stop()
	if left, log := contents(t, "."), n.log.String(); len(left) > 0 || strings.Contains(log, "level=error") || strings.Contains(log, "level=warn") {
		t.Errorf("it leaves %v and says\n%s", left, log)
	}
}
