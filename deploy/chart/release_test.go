package chart

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	aSection = regexp.MustCompile(`(?m)^## (.*)$`)
	aRelease = regexp.MustCompile(`^(v[0-9]+\.[0-9]+\.[0-9]+)( - (unreleased|[0-9]{4}-[0-9]{2}-[0-9]{2}))?$`)
	aVersion = regexp.MustCompile(`v[0-9]+\.[0-9]+\.[0-9]+`)
	aFlag    = regexp.MustCompile(`(?m)^ +- (--?[a-z-]+)`)
)

// contents is the text of a file of the repository.
func contents(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEverythingNamesOneRelease keeps the tree from pinning another release's image, which does not know the tree's flags. The release
// is that of the changelog's first section: a change that begins the next one moves all the others with it.
func TestEverythingNamesOneRelease(t *testing.T) {
	var releases []string
	for _, section := range aSection.FindAllStringSubmatch(contents(t, "CHANGELOG.md"), -1) {
		release := aRelease.FindStringSubmatch(section[1])
		if release == nil {
			t.Fatalf("CHANGELOG.md: section %q, want \"vX.Y.Z - unreleased\", or a date in place of that", section[1])
		}
		releases = append(releases, release[1])
		if release[3] == "unreleased" && len(releases) > 1 {
			t.Errorf("CHANGELOG.md: section %q is not the first", section[1])
		}
	}
	want, earlier := releases[0], releases[1:]
	about := load(t).Metadata
	named := map[string][]string{
		"the chart's version":           {"v" + about.Version},
		"the chart's appVersion":        {about.AppVersion},
		"the images of Artifact Hub":    aVersion.FindAllString(about.Annotations["artifacthub.io/images"], -1),
		"the kustomize base":            aVersion.FindAllString(contents(t, "deploy/kustomize/base/kustomization.yaml"), -1),
		"the DaemonSet of kustomize":    aVersion.FindAllString(contents(t, "deploy/kustomize/base/daemonset.yaml"), -1),
		"the image of docs/start.md":    aVersion.FindAllString(contents(t, "docs/start.md"), -1),
		"the output in docs/kubectl.md": aVersion.FindAllString(contents(t, "docs/kubectl.md"), -1),
	}
	for what, versions := range named {
		if len(versions) == 0 || slices.ContainsFunc(versions, func(v string) bool { return v != want }) {
			t.Errorf("%s: %q, want %s, the first section of CHANGELOG.md", what, versions, want)
		}
	}
	pictures, err := filepath.Glob("../../docs/page/*.png")
	if err != nil || len(pictures) == 0 {
		t.Fatalf("no pictures: %v", err)
	}
	chunk := "tEXtSoftware\x00nri-memory-manager " + want
	label := append(binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-len("tEXt"))), chunk...)
	for _, picture := range pictures {
		text, err := os.ReadFile(picture)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, label) {
			t.Errorf("%s is not of %s: make pictures", picture, want)
		}
	}
	for _, release := range earlier {
		if _, there := released(t)[release]; !there {
			t.Errorf("testdata/values has no values.yaml of %s", release)
		}
	}
}

// TestEachFlagIsRendered has each flag that the DaemonSet may have in the golden files, with which the tests of the binary start it.
func TestEachFlagIsRendered(t *testing.T) {
	var rendered strings.Builder
	for name := range valueSets {
		rendered.WriteString(contents(t, filepath.Join("deploy/chart/testdata", name+".yaml")))
	}
	flags := aFlag.FindAllStringSubmatch(contents(t, "deploy/helm/nri-memory-manager/templates/daemonset.yaml"), -1)
	for _, flag := range flags {
		if !regexp.MustCompile(`(?m)^ +- ` + flag[1] + `(=|$)`).MatchString(rendered.String()) {
			t.Errorf("no set of values renders %s", flag[1])
		}
	}
	if len(flags) < 10 {
		t.Errorf("%d flags were found in the DaemonSet", len(flags))
	}
}
