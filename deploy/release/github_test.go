package main

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// workflow is what the tests read of a workflow; actionlint, which `make lint` runs, checks the rest.
type workflow struct {
	Jobs map[string]struct {
		Steps []struct {
			Uses, Run string
			With      map[string]string
		}
	}
}

const github = "../../.github"

func readWorkflow(t *testing.T, file string) (w workflow) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &w); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return w
}

// checkWorkflow wants the release workflow to attest and publish all files of a release, and none that it does not have.
func checkWorkflow(t *testing.T, release map[string][]byte) {
	t.Helper()
	for _, step := range readWorkflow(t, github+"/workflows/release.yaml").Jobs["publish"].Steps {
		if strings.HasPrefix(step.Uses, "actions/attest@") {
			for _, input := range []string{"subject-path", "sbom-path", "subject-checksums"} {
				name := strings.NewReplacer("bin/", "", "${{ github.ref_name }}", version, "arm64", runtime.GOARCH, "amd64", runtime.GOARCH).Replace(step.With[input])
				if _, built := release[name]; name != "" && !built {
					t.Errorf("the workflow attests %s, which is no file of a release", name)
				}
			}
		}
		_, published, found := strings.Cut(step.Run, `--notes-file "$RUNNER_TEMP/notes.md" \`)
		if !found {
			continue
		}
		patterns := strings.Fields(strings.ReplaceAll(published, "./", ""))
		for name := range release {
			if !slices.ContainsFunc(patterns, func(p string) bool { is, _ := path.Match(p, name); return is }) {
				t.Errorf("the workflow does not publish %s, only %s", name, patterns)
			}
		}
		return
	}
	t.Error("the workflow publishes nothing")
}

// TestActionsArePinned keeps a tag that somebody moves from changing what builds a release.
func TestActionsArePinned(t *testing.T) {
	pinned := regexp.MustCompile(`^([a-z-]+/[a-z-]+@[0-9a-f]{40}|\./.*)$`)
	files, err := filepath.Glob(github + "/workflows/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("workflows %v: %v", files, err)
	}
	for _, file := range files {
		for name, job := range readWorkflow(t, file).Jobs {
			for _, step := range job.Steps {
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s: job %s uses %s, want a commit", file, name, step.Uses)
				}
			}
		}
	}
}

// TestIssueForms reads the forms as GitHub does: it shows none of a form that has an unknown key or an element without a label.
func TestIssueForms(t *testing.T) {
	forms, err := filepath.Glob(github + "/ISSUE_TEMPLATE/*.yaml")
	if err != nil || len(forms) < 2 {
		t.Fatalf("forms %v: %v", forms, err)
	}
	for _, file := range forms {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var form struct {
			Name, Description string
			Labels            []string
			Body              []struct {
				Type, ID    string
				Attributes  struct{ Label, Description, Placeholder, Render, Value string }
				Validations struct{ Required bool }
			}
		}
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err := decoder.Decode(&form); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if form.Name == "" || form.Description == "" || len(form.Body) == 0 {
			t.Errorf("%s: name %q, description %q, %d elements", file, form.Name, form.Description, len(form.Body))
		}
		for i, element := range form.Body {
			if (element.Type == "markdown") != (element.Attributes.Value != "") || (element.Type == "markdown") == (element.Attributes.Label != "") {
				t.Errorf("%s: element %d of type %q has value %q and label %q", file, i, element.Type, element.Attributes.Value, element.Attributes.Label)
			}
		}
	}
}
