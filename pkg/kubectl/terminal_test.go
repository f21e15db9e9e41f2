package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

// hostile has what terminals obey, and what hides or turns round what is beside it.
const hostile = "a\x1b[2J\x1b]0;title\x07\r\b\x7f\u009b31m\x9b\u202e\u200b\U000e0041\ttab\nnext │ ü █\n"

const shown = `a\u001b[2J\u001b]0;title\u0007\u000d\u0008\u007f\u009b31m` + "\uFFFD" + `\u202e\u200b\udb40\udc41` + "\ttab\nnext │ ü █\n"

func TestWhatADaemonSaysCannotSteerTheTerminal(t *testing.T) {
	s := &server{nodes: []corev1.Node{nodeNamed("worker-1")}, pods: []corev1.Pod{pod("web", "worker-1", corev1.PodRunning), daemonPod("worker-1")}}
	for name, say := range map[string]func(c *cluster, to *bytes.Buffer) error{
		"explain": func(c *cluster, to *bytes.Buffer) error {
			return c.showPod(t.Context(), to, "shop", "web", "explain", "shop/web")
		},
		"status": func(c *cluster, to *bytes.Buffer) error { return c.show(t.Context(), to, "worker-1", "status") },
		"verify": func(c *cluster, to *bytes.Buffer) error {
			return c.showPod(t.Context(), to, "shop", "web", "verify", "shop/web")
		},
	} {
		var text bytes.Buffer
		if err := say(s.cluster(t, said(0, hostile, "")), &text); err != nil || text.String() != shown {
			t.Errorf("%s: %q, %v, want %q", name, text.String(), err, shown)
		}
		text.Reset()
		err := say(s.cluster(t, said(2, "", "nri-memory-manager: "+hostile)), &text)
		if want := "node worker-1: " + strings.TrimSpace(shown); err == nil || err.Error() != want || text.Len() > 0 {
			t.Errorf("%s fails with %q, want %q", name, err, want)
		}
	}
	var text bytes.Buffer
	if err := s.cluster(t, said(0, hostile, "")).verifyAll(t.Context(), &text); err != nil || text.String() != "NODE worker-1\n"+shown {
		t.Errorf("verify of all nodes: %q, %v", text.String(), err)
	}
}

// A JSON document is the same after it.
func TestJSONOfADaemonKeepsItsValues(t *testing.T) {
	want := map[string]string{"name": "a\x1b\x7f\u009b\u202e\U000e0041\ttab\nnext │ ü █"}
	document, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{pods: []corev1.Pod{pod("web", "worker-1", corev1.PodRunning), daemonPod("worker-1")}}
	var text bytes.Buffer
	if err := s.cluster(t, said(0, string(document), "")).showPod(t.Context(), &text, "shop", "web", "explain", "shop/web", "--output=json"); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(text.Bytes(), &got); err != nil || got["name"] != want["name"] || strings.ContainsAny(text.String(), "\x1b\x7f\u009b\u202e") {
		t.Errorf("%q (%v), want the values of %q", text.String(), err, document)
	}
}

// What is decoded from a node's JSON comes into one line of the table, which other nodes' lines stand beside.
func TestANodeHasOneLineOfTheTable(t *testing.T) {
	s := &server{nodes: []corev1.Node{nodeNamed("worker-1"), nodeNamed("worker-2"), nodeNamed("worker-3")},
		pods: []corev1.Pod{daemonPod("worker-1"), daemonPod("worker-2"), daemonPod("worker-3", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "\x1b[1A\nworker-9"}}}}
		})}}
	c := s.cluster(t, func(_ context.Context, d *daemon, _ []string) (output, error) {
		if d.node == "worker-2" {
			return output{}, errors.New("dial \x1b[1A\tworker-9\nworker-9")
		}
		version, _ := json.Marshal("v1\x1b[1A\tok\nworker-9")
		return output{text: []byte(`{"version":` + string(version) + `}`)}, nil
	})
	rows, err := c.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := writeRows(&table, rows); err != nil {
		t.Fatal(err)
	}
	if text := table.String(); strings.Count(text, "\n") != 4 || strings.Contains(text, "\x1b") || !strings.Contains(text, `v1\u001b[1A ok worker-9`) {
		t.Errorf("%q", text)
	}
}

func TestAnErrorCannotSteerTheTerminal(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	code := Execute(t.Context(), "v1", []string{"explain", "web", "--kubeconfig", kubeconfig, "--context", "\x1b[2J"}, &out, &errOut)
	if text := errOut.String(); code != commandline.ExitBadInput || out.Len() > 0 || strings.Contains(text, "\x1b") || !strings.Contains(text, `\u001b[2J`) {
		t.Errorf("exit code %d, %q and %q", code, out.String(), text)
	}
}
