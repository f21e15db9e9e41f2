package checkpoint

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func TestImport(t *testing.T) {
	good := File{Policy: PolicyStatic, State: aState(t)}
	empty := File{Policy: PolicyStatic}
	tests := map[string]struct {
		there  string // the state file that is there already
		file   File
		force  bool
		want   string // the error
		keptAs string // what is kept aside
	}{
		"nothing there":         {"", good, false, "", ""},
		"an empty one there":    {string(Encode(PolicyStatic, empty.State)), good, false, "", ""},
		"one with containers":   {goodText, good, false, "DIR/memory_manager_state has 1 containers, not replaced without --force", ""},
		"the same, forced":      {goodText, good, true, "", goodText},
		"a bad one there":       {"bad", good, false, "not replaced without --force: state file DIR/memory_manager_state: is not JSON from byte 1 on (cut short?): invalid character 'b' looking for beginning of value", ""},
		"a bad one, forced":     {"bad", good, true, "", "bad"},
		"of policy None":        {"", File{Policy: "None"}, true, `policyName is "None": there is nothing to take over, want "Static"`, ""},
		"empty over containers": {goodText, empty, true, "", goodText},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store := openStore(t, dir)
			if test.there != "" {
				if err := os.WriteFile(store.Path(), []byte(test.there), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			kept, err := Import(store, test.file, test.force)
			if test.want != "" {
				if err == nil || strings.ReplaceAll(err.Error(), dir, "DIR") != test.want {
					t.Fatalf("got  %v\nwant %s", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if file, err := store.Load(); err != nil || !cmp.Equal(file.State, test.file.State) {
				t.Errorf("%v: %+v", err, file.State)
			}
			text, err := os.ReadFile(kept)
			if test.keptAs != "" && (err != nil || string(text) != test.keptAs || !strings.HasPrefix(kept, store.Path()+".replaced-")) || test.keptAs == "" && kept != "" {
				t.Errorf("kept %q: %q: %v", kept, text, err)
			}
		})
	}
}

func TestImportDoesNotWriteUnderARunningPlugin(t *testing.T) {
	dir := t.TempDir()
	if err := openStore(t, dir).Lock(); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(openStore(t, dir), File{Policy: PolicyStatic}, true); !errors.Is(err, ErrInUse) || !strings.HasSuffix(err.Error(), ": stop it first") {
		t.Error(err)
	}
}

func TestExportHasNothingOfOurs(t *testing.T) {
	s := twoNodes()
	text, _, findings := Export(File{Policy: PolicyStatic, State: s}, "")
	kubeletAccepts(t, text)
	if len(findings) > 0 || strings.Contains(string(text), "perNode") || s.Entries[0].Blocks[0].PerNode == nil {
		t.Errorf("%v %s", findings, text)
	}
	if text, _, findings := Export(File{Policy: PolicyStatic, State: overfull()}, "1.37"); len(findings) == 0 || strings.Contains(string(text), "perNode") {
		t.Errorf("a state that a kubelet refuses: %v %s", findings, text)
	}
}

func TestExportForAVersion(t *testing.T) {
	blocks := []memorymanager.Block{{Nodes: 1, Type: "memory", Size: 30}}
	s := memorymanager.State{
		Nodes: []memorymanager.NodeState{{ID: 0, Assignments: 1, Cells: 1, Memory: []memorymanager.TypeTable{
			{Type: "memory", Table: memorymanager.Table{Total: 100, Allocatable: 100, Reserved: 30, Free: 70}}}}},
		Entries: []memorymanager.Entry{{Pod: "p", Container: "a", Blocks: blocks}, {Pod: "p", Container: "b", Blocks: blocks}},
		Pods:    []memorymanager.PodEntry{{Pod: "p", Blocks: blocks}},
	}
	const gate = "1 pods have an allocation of their own: a kubelet without the feature gate PodLevelResourceManagers refuses this file"
	for target, want := range map[string]struct {
		format  Format
		warning string
		finding string
	}{
		"":     {finding: "kubelet: versions differ in how they keep allocations of pods, and the state has 1: name the version"},
		"1.35": {finding: "kubelet 1.35: reads no allocations of pods, and the state has 1"},
		"1.36": {format: V2, warning: gate},
		"1.37": {format: V3, warning: gate},
	} {
		text, warning, findings := Export(File{Policy: PolicyStatic, State: s}, target)
		if want.finding == "" {
			file, err := Decode(text)
			if err != nil || file.Format != want.format || !file.Verified || cmp.Diff(s, file.State) != "" {
				t.Errorf("for %q: %s, %v %s", target, file.Format, err, cmp.Diff(s, file.State))
			}
		} else if len(findings) != 1 || findings[0].Where+": "+findings[0].What != want.finding {
			t.Errorf("for %q: %v", target, findings)
		}
		if warning != want.warning {
			t.Errorf("for %q: warning %q", target, warning)
		}
		s := s
		s.Pods = nil
		s.Entries = s.Entries[:1]
		text, warning, findings = Export(File{Policy: PolicyStatic, State: s}, target)
		if file, err := Decode(text); err != nil || file.Format != V1 || warning != "" || findings != nil {
			t.Errorf("for %q without pods: %s, %q, %v, %v", target, file.Format, warning, findings, err)
		}
	}
}

func TestVerifyListsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	both := strings.NewReplacer(`"size":2147483648`, `"size":1`, `"checksum":0`, `"checksum":7`).Replace(goodText)
	for text, want := range map[string][]string{
		goodText:     nil,
		both:         {path + ": checksum is 7, but the content has 130510034: the file was changed or damaged after it was written", "nodes 0: memory: reserved is 2Gi, but the containers' blocks are 1"},
		goodText[:9]: {path + ": is not JSON from byte 9 on (cut short?): unexpected end of JSON input"},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, findings, err := Verify(path)
		if err != nil {
			t.Error(err)
		}
		checkFindings(t, findings, want)
	}
	if _, _, err := Verify(path + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestTableKeepsControlCharactersOffTheTerminal(t *testing.T) {
	s := overfull()
	s.Entries[0].Pod = "\x1b[31m\u009b"
	s.Entries[0].Blocks[0].Size = 5
	s.Nodes[0].Memory[0].Total = 1 << 63
	var out bytes.Buffer
	listing := NewListing("file", File{Policy: PolicyStatic, State: s})
	if err := listing.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\u009b") || !strings.Contains(text, "?[31m?") || !strings.Contains(text, "8Ei") || !strings.Contains(text, "not verified by a checksum") {
		t.Errorf("%q", text)
	}
	if listing.Containers[0].Blocks[0].PerNode[0] != 110 {
		t.Errorf("%+v", listing.Containers)
	}
	out.Reset()
	if err := WriteFindings(&out, []Finding{{"a\nb", "c", "d"}}); err != nil || out.String() != "a?b: c\n    to do: d\n" {
		t.Errorf("%q: %v", out.String(), err)
	}
}
