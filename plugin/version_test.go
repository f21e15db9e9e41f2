package main

import (
	"encoding/json"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	want := versions{Version: "unknown", Go: runtime.Version()} // of a binary that no release has built
	var got versions
	code, out, errOut := run(t, "", "version", "-o", "json")
	must(t, json.Unmarshal([]byte(out), &got))
	if got.NRI == "" || got.NRI == "unknown" {
		t.Errorf("NRI %q, want its module's version", got.NRI)
	}
	want.NRI = got.NRI
	if diff := cmp.Diff(want, got); code != exitOK || errOut != "" || diff != "" {
		t.Errorf("exit %d, %s (-want +got):\n%s", code, errOut, diff)
	}
	for format, want := range map[string]string{
		"text": "nri-memory-manager unknown (NRI " + got.NRI + ", " + got.Go + ")\n",
		"yaml": "goVersion: " + got.Go + "\nnriVersion: " + got.NRI + "\nversion: unknown\n",
	} {
		if code, out, _ := run(t, "", "version", "-o", format); code != exitOK || out != want {
			t.Errorf("%s: exit %d, %q, want %q", format, code, out, want)
		}
	}
	if code, out, _ := run(t, "", "--version"); code != exitOK || out != "nri-memory-manager version unknown\n" {
		t.Errorf("--version: exit %d, %q", code, out)
	}
	refused(t, "", `--output "xml": want one of text, json, yaml`, "version", "-o", "xml")
}
