package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/kubectl"
)

// commands are all commands that can be run, cobra's own aside.
func commands(root *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{root}
	for _, child := range root.Commands() {
		if child.Name() != "completion" && child.Name() != "help" {
			all = append(all, commands(child)...)
		}
	}
	return all
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	t.Parallel()
	for _, command := range append(commands(newRootCommand()), commands(kubectl.NewCommand(version))...) {
		if command.Short == "" || command.Long == "" || command.Example == "" {
			t.Errorf("%s: short %q, long %t, examples %t", command.CommandPath(), command.Short, command.Long != "", command.Example != "")
		}
		for line := range strings.Lines(command.Example) {
			if line != "\n" && !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: the example %q is not indented by two", command.CommandPath(), line)
			}
		}
	}
}

func TestHelpAndCompletionOfTheBinary(t *testing.T) {
	t.Parallel()
	code, out, _ := run(t, "", "verify", "--help")
	if code != 0 || !strings.Contains(out, "Examples:\n  nri-memory-manager verify\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, errOut := run(t, "", "completion", shell); code != 0 || !strings.Contains(out, "nri-memory-manager") {
			t.Errorf("%s: exit code %d: %s", shell, code, errOut)
		}
	}
	for _, test := range []struct{ words, want string }{
		{"stat", "status\t"}, {"status -o ", "wide"}, {"verify -o ", "yaml"}, {"explain -o ", "text"}, {"status --state", "--state-dir"},
		{"simulate -o ", "table\njson\nyaml\n:4\n"}, {"simulate --pod-info ", "kubelet\nnone\n:4\n"}, {"simulate --cgroup-driver ", "cgroupfs\nsystemd\n:4\n"},
		{"version -o ", "text\njson\nyaml\n:4\n"}, {"status --state-dir /nowhere ", ":4\n"}, // no daemon has any pods
		{"state show -o ", "table\njson\n:4\n"},
	} {
		if _, out, _ := run(t, "", append([]string{"__complete"}, strings.Split(test.words, " ")...)...); !strings.Contains(out, test.want) {
			t.Errorf("completion of %q: want %q in\n%s", test.words, test.want, out)
		}
	}
}

// The reference in docs/cli is made from the commands.
func TestReferenceIsCurrent(t *testing.T) {
	const folder = "../docs/cli"
	made := t.TempDir()
	for _, variable := range []string{"NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX"} {
		t.Setenv(variable, "") // defaults of flags
	}
	root := newRootCommand()
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	must(t, doc.GenMarkdownTree(root, made))
	ofKubectl := kubectl.NewCommand(version)
	ofKubectl.DisableAutoGenTag = true
	must(t, doc.GenMarkdownTree(ofKubectl, made))
	files := map[string]string{}
	for _, dir := range []string{folder, made} {
		entries, err := os.ReadDir(dir)
		if err != nil && dir == made {
			t.Fatal(err)
		}
		for _, entry := range entries {
			files[entry.Name()] = dir
		}
	}
	for name := range files {
		want, err := os.ReadFile(filepath.Join(made, name))
		gone := err != nil
		want = append(bytes.TrimRight(want, "\n"), '\n')
		file := filepath.Join(folder, name)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if gone {
				must(t, os.Remove(file))
				continue
			}
			must(t, os.MkdirAll(folder, 0o755))
			must(t, os.WriteFile(file, want, 0o644))
		}
		got, _ := os.ReadFile(file)
		switch {
		case gone:
			t.Errorf("%s is of no command; UPDATE_GOLDEN=1 removes it", file)
		case !slices.Equal(got, want):
			t.Errorf("%s (-) is not what the commands say (+); UPDATE_GOLDEN=1 rewrites it:\n%s", file, cmp.Diff(string(got), string(want)))
		}
	}
}

// TestKubernetesVersionsNamesRealTests: in the tables of docs/kubernetes-versions.md that have a column for tests, each row names some
// that there are, as package.TestName.
func TestKubernetesVersionsNamesRealTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/kubernetes-versions.md")
	must(t, err)
	name := regexp.MustCompile("`([a-z]+)\\.(Test\\w+)`")
	tested, rows := false, 0
	for line := range strings.Lines(string(page)) {
		switch {
		case !strings.HasPrefix(line, "|"):
			tested = false
			continue
		case strings.HasSuffix(line, "| tests |\n"):
			tested = true
			continue
		case !tested, strings.HasPrefix(line, "| ---"):
			continue
		}
		rows++
		named := name.FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("no test in %s", line)
		}
		for _, test := range named {
			if !hasTest(t, test[1], test[2]) {
				t.Errorf("there is no test %s.%s, which is named in %s", test[1], test[2], line)
			}
		}
	}
	if rows == 0 {
		t.Error("no rows")
	}
}

// hasTest reports whether a package has a test function of this name.
func hasTest(t *testing.T, pkg, function string) bool {
	t.Helper()
	folder := map[string]string{"plugin": ".", "monitoring": "../deploy/monitoring"}[pkg]
	if folder == "" {
		folder = filepath.Join("../pkg", pkg)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	must(t, err)
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		must(t, err)
		return bytes.Contains(text, []byte("\nfunc "+function+"(t *testing.T) {"))
	})
}
