package checkpoint

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
)

// A kubeletText is a state file as a kubelet 1.36 wrote it, or as it was put before one.
type kubeletText struct {
	Name string
	Text string
	// Kubelet is the error with which a kubelet refused to start.
	Kubelet string
}

// readTexts reads testdata: kubelet.jsonl.gz has the files that kubelets wrote after every step of some 200 scenarios,
// damaged.jsonl what was put in their place before a restart.
func readTexts(t testing.TB, path string) []kubeletText {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var in io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(file); err != nil {
			t.Fatal(err)
		}
	}
	var texts []kubeletText
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var text kubeletText
		if err := json.Unmarshal(lines.Bytes(), &text); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if err := lines.Err(); err != nil || len(texts) == 0 {
		t.Fatalf("%s: %d texts: %v", path, len(texts), err)
	}
	return texts
}
