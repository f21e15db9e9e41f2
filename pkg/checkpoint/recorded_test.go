package checkpoint

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recordedTexts are all state files that kubelets wrote while the vectors were recorded, by scenario and step.
func recordedTexts(t testing.TB) (texts []kubeletText) {
	t.Helper()
	files, err := filepath.Glob("../../testdata/vectors/set-*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatal("no vectors", err)
	}
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		unzip, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(unzip)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var scenario struct {
				ID               string
				InitialStateFile string
				Steps            []struct {
					Op     string
					Result struct{ StateFile string }
				}
			}
			if err := json.Unmarshal(lines.Bytes(), &scenario); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			add := func(text string) {
				if text != "" {
					texts = append(texts, kubeletText{Name: scenario.ID, Text: text})
				}
			}
			add(scenario.InitialStateFile)
			for _, step := range scenario.Steps {
				if step.Op != "restart" { // after one it may be what a person wrote
					add(step.Result.StateFile)
				}
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return texts
}

// TestRecordedStateFilesEncodeToTheSameText reads each file and writes it again in its layout. A kubelet writes the blocks of
// a container in any order, and the checksum depends on it: such a file comes out sorted, and must say the same.
func TestRecordedStateFilesEncodeToTheSameText(t *testing.T) {
	same := map[Format]int{}
	sorted := 0
	for _, recorded := range recordedTexts(t) {
		file, mismatch, err := decode([]byte(recorded.Text))
		if mismatch != nil || err != nil {
			t.Errorf("%s: %v, %v", recorded.Name, mismatch, err)
			continue
		}
		again := string(appendFile(nil, file.State, file.Format, file.Policy))
		if again == recorded.Text {
			same[file.Format]++
			continue
		}
		sorted++
		if !hasSeveralBlocks(file.State) {
			t.Errorf("%s: %s", recorded.Name, cmp.Diff(recorded.Text, again))
			continue
		}
		if read, err := Decode([]byte(again)); err != nil || cmp.Diff(file.State, read.State) != "" || read.Format != file.Format {
			t.Errorf("%s: %v %s", recorded.Name, err, cmp.Diff(file.State, read.State))
		}
	}
	t.Logf("to the byte: %v; with sorted blocks: %d", same, sorted)
	if same[V1] < 1000 || same[V2] < 100 || same[V3] < 100 {
		t.Errorf("the vectors have texts of all layouts, found to the byte: %v", same)
	}
}
