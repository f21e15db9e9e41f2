package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// documents are the pages that people read, relative to this folder. docs/cli has a test of its own.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	must(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains([]string{".git", "bin", "e2e"}, entry.Name()) || strings.HasPrefix(entry.Name(), ".cache")):
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			text, err := os.ReadFile(path)
			pages[filepath.Clean(path)] = string(text)
			return err
		}
		return nil
	}))
	if len(pages) < 20 {
		t.Fatalf("only %d pages found", len(pages))
	}
	return pages
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	// notInAnchors is what GitHub leaves out of the anchor of a heading.
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		all[strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")] = true
	}
	return all
}

// Links inside the repository lead to files and headings that are there.
func TestLinksOfTheDocumentsResolve(t *testing.T) {
	t.Parallel()
	pages, found := documents(t), 0
	for name, text := range pages {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			found++
			path, anchor, hasAnchor := strings.Cut(match[1], "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads to nothing", name, match[1])
			} else if hasAnchor && !anchors(pages[target])[anchor] {
				t.Errorf("%s: %s has no heading for the link %s", name, target, match[1])
			}
		}
	}
	if found < 100 {
		t.Errorf("%d links found", found)
	}
}

// A command of this binary in a line of code or in backticks, and a text in backticks that begins with one's name.
var (
	commandLine = regexp.MustCompile("(?m)(?:^ {4}(?:\\$ )?|`|-- |\\| )(?:\\./|bin/|/)?nri-memory-manager +([^`\n]+)")
	commandName = regexp.MustCompile("`((?:run|status|explain|verify|simulate|state|config|rollback|replay) [^`\n]*)`")
	afterwards  = regexp.MustCompile(` +(#|\||>|&&) .*`)
)

// The commands that the documents tell people to run are ones of this binary, with flags and arguments that it takes.
func TestDocumentsNameRealCommands(t *testing.T) {
	t.Parallel()
	const form = "../.github/ISSUE_TEMPLATE/bug.yaml"
	pages, found := documents(t), 0
	asks, err := os.ReadFile(form)
	must(t, err)
	pages[form] = string(asks)
	for name, text := range pages {
		for _, match := range commandLine.FindAllStringSubmatch(text, -1) {
			found++
			words := strings.Fields(afterwards.ReplaceAllString(match[1], ""))
			command, rest, err := newRootCommand().Find(words)
			if err != nil || command.Name() == "nri-memory-manager" {
				t.Errorf("%s: %q is no command: %v", name, match[1], err)
				continue
			}
			if err := command.ParseFlags(rest); err != nil {
				t.Errorf("%s: %q: %v", name, match[1], err)
			} else if err := command.ValidateArgs(command.Flags().Args()); err != nil {
				t.Errorf("%s: %q: %v", name, match[1], err)
			}
			if command.Name() == "simulate" && !command.Flags().Changed("machine") {
				t.Errorf("%s: %q has no machine", name, match[1])
			}
		}
		for _, match := range commandName.FindAllStringSubmatch(text, -1) {
			command, rest, err := newRootCommand().Find(strings.Fields(match[1]))
			for _, word := range rest {
				flag, _, _ := strings.Cut(word, "=")
				if long, is := strings.CutPrefix(flag, "--"); is && command.Flag(long) == nil {
					t.Errorf("%s: %q has no flag %s: %v", name, match[1], flag, err)
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("%d commands found", found)
	}
}

// The benchmarks of packages that the documents tell people to run measure something.
func TestDocumentsMeasureSomething(t *testing.T) {
	t.Parallel()
	command, found := regexp.MustCompile(`(?m)^    go test (\./pkg/\S+) -run '\^\$' -bench '?([^' ]+)`), 0
	for name, text := range documents(t) {
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			found++
			test := exec.Command("go", slices.Concat([]string{"test", "-vet=off"}, makeFlags,
				[]string{match[1], "-run", "^$", "-bench", match[2], "-benchtime", "1x"})...)
			test.Dir, test.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
			if output, err := test.CombinedOutput(); err != nil || !bytes.Contains(output, []byte("ns/op")) {
				t.Errorf("%s: %s: %v\n%s", name, match[0], err, output)
			}
		}
	}
	if found < 2 {
		t.Errorf("%d benchmarks found", found)
	}
}

// The targets of make that the documents name are there.
func TestDocumentsNameRealTargets(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	must(t, err)
	target := regexp.MustCompile("(?m)(?:^ {4}|^|`)make ([a-z0-9][a-z0-9 -]*)")
	found := 0
	for name, text := range documents(t) {
		blocks := strings.Join(codeBlocks(text), "\n") + strings.Join(regexp.MustCompile("`make [^`\n]+`").FindAllString(text, -1), "\n")
		for _, match := range target.FindAllStringSubmatch(blocks, -1) {
			for _, word := range strings.Fields(match[1]) {
				found++
				if !strings.Contains("\n"+string(makefile), "\n"+word+":") {
					t.Errorf("%s: make %s: there is no target %s", name, match[1], word)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d targets found", found)
	}
}

// codeBlocks are the texts of a page that are indented by four, or fenced.
func codeBlocks(page string) []string {
	var blocks []string
	for _, fenced := range fence.FindAllString(page, -1) {
		blocks = append(blocks, strings.Join(strings.Split(fenced, "\n")[1:], "\n"))
	}
	var block []string
	for _, line := range append(strings.Split(page, "\n"), "end") {
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case indented || line == "" && block != nil:
			block = append(block, code)
		case block != nil:
			blocks, block = append(blocks, strings.Join(block, "\n")), nil
		}
	}
	return blocks
}

// What the documents show as YAML is accepted: manifests and annotations by simulate, machines and configurations of the
// chart by config check.
func TestDocumentsShowGoodYAML(t *testing.T) {
	t.Parallel()
	const containers = "\nspec:\n  resources: {limits: {cpu: 1, memory: 1Gi}}\n  containers: [{name: app}, {name: sidecar}, {name: cache}]\n"
	found := map[string]int{}
	for name, text := range documents(t) {
		if filepath.Base(name) == "CHANGELOG.md" {
			continue
		}
		for _, block := range codeBlocks(text) {
			block = strings.TrimSuffix(strings.TrimRight(block, "\n"), "```")
			var keys map[string]any
			if yaml.Unmarshal([]byte(block), &keys) != nil {
				continue
			}
			manifest, machine := pod("{}"), taskPageMachine
			switch {
			case keys["kind"] != nil:
				found["manifest"]++
				manifest = block
			case keys["metadata"] != nil:
				found["annotations"]++
				manifest = "apiVersion: v1\nkind: Pod\n" + strings.Replace(strings.TrimRight(block, "\n"), "metadata:", "metadata:\n  name: web", 1) + containers
			case keys["nodes"] != nil:
				found["machine"]++
				machine = file(t, "machine.yaml", block)
			case keys["config"] != nil:
				found["chart"]++
				for _, config := range configurations(keys) {
					written, err := yaml.Marshal(config)
					must(t, err)
					if code, out, errOut := run(t, "", "config", "check", "--machine", machine, file(t, "config.yaml", string(written))); code != exitOK {
						t.Errorf("%s: exit %d: %s%s\n%s", name, code, out, errOut, written)
					}
				}
				continue
			default:
				continue
			}
			code, out, errOut := run(t, manifest, "simulate", "--machine", machine, "-")
			if code != exitOK || errOut != "" || strings.Contains(out, "IGNORED ANNOTATIONS") {
				t.Errorf("%s: exit %d: %s\n%s\n%s", name, code, errOut, out, block)
			}
		}
	}
	if found["annotations"] < 2 || found["machine"] < 1 || found["chart"] < 1 {
		t.Errorf("found %v", found)
	}
}

// configurations are those of a release's values.
func configurations(values map[string]any) []any {
	all := []any{values["config"]}
	groups, _ := values["nodeGroups"].([]any)
	for _, group := range groups {
		if group, ok := group.(map[string]any); ok {
			all = append(all, group["config"])
		}
	}
	return all
}

// What the documents show of simulate is what it prints, and each example is shown.
func TestDocumentsShowWhatSimulatePrints(t *testing.T) {
	t.Parallel()
	shown := ""
	for name, text := range documents(t) {
		var page []string
		lines := strings.Split(text, "\n")
		for i := 0; i < len(lines); i++ {
			page = append(page, lines[i])
			words, is := strings.CutPrefix(lines[i], "    $ nri-memory-manager simulate ")
			if !is {
				continue
			}
			shown += words + "\n"
			page = append(page, simulatedIn(t, "..", strings.Fields(words))...)
			for i+1 < len(lines) && (strings.HasPrefix(lines[i+1], "    ") || lines[i+1] == "") {
				i++
			}
			page = append(page, "")
		}
		want := strings.Join(page, "\n")
		if os.Getenv("UPDATE_GOLDEN") != "" && want != text {
			must(t, os.WriteFile(name, []byte(want), 0o644))
			continue
		}
		if diff := cmp.Diff(text, want); diff != "" {
			t.Errorf("%s (-) is not what simulate prints (+); UPDATE_GOLDEN=1 rewrites it:\n%s", name, diff)
		}
	}
	examples, err := filepath.Glob("../deploy/examples/*.yaml")
	must(t, err)
	for _, example := range examples {
		if !strings.Contains(shown, "deploy/examples/"+filepath.Base(example)) {
			t.Errorf("no document shows what becomes of %s", example)
		}
	}
	if len(examples) < 3 {
		t.Errorf("%d examples", len(examples))
	}
}

// simulatedIn are the lines that simulate prints in a folder, as a block of code.
func simulatedIn(t *testing.T, dir string, words []string) (lines []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"simulate"}, words...)...)
	var errOut bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("simulate %q: %v: %s", words, err, &errOut)
	}
	for line := range strings.Lines(strings.TrimRight(string(out), "\n")) {
		lines = append(lines, strings.TrimRight("    "+line, " \n"))
	}
	return lines
}

// CONTRIBUTING.md says where things are: it names each folder with Go files, and none that is not there. The folders below
// countedByParent have a common line.
func TestContributingDocumentsEachPackage(t *testing.T) {
	t.Parallel()
	countedByParent := []string{"pkg/testing/", "pkg/checkpoint/internal/", "plugin/e2e/"}
	page, err := os.ReadFile("../CONTRIBUTING.md")
	must(t, err)
	_, where, _ := strings.Cut(string(page), "\n## Where things are\n")
	where, _, _ = strings.Cut(where, "\n## ")
	named := map[string]bool{}
	for _, match := range regexp.MustCompile("`((?:pkg|plugin|deploy)(?:/[^`\\s]*)?)`").FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(filepath.Join("..", match[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s, which is not there", match[1])
		}
		named[match[1]] = strings.Contains(where, match[0])
	}
	for _, top := range []string{"pkg", "plugin", "deploy"} {
		must(t, filepath.WalkDir("../"+top, func(path string, entry fs.DirEntry, err error) error {
			folder := strings.TrimPrefix(path, "../")
			switch {
			case err != nil:
				return err
			case !entry.IsDir():
				return nil
			case strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata":
				return filepath.SkipDir
			case slices.ContainsFunc(countedByParent, func(parent string) bool { return strings.HasPrefix(folder, parent) }):
				return nil
			}
			if files, _ := filepath.Glob(filepath.Join(path, "*.go")); len(files) > 0 && !named[folder] {
				t.Errorf("CONTRIBUTING.md does not say what is in %s", folder)
			}
			return nil
		}))
	}
}

// The error at the top of docs/configuration.md is the real one.
func TestTheConfigurationPageShowsTheRealError(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/configuration.md")
	must(t, err)
	config := file(t, "config.yaml", "\n\nmemoryThrotlingFactor: 0.8\n")
	code, _, errOut := run(t, "", "config", "check", config)
	if want := strings.ReplaceAll(errOut, config, "config.yaml"); code != exitBadInput || !strings.Contains(string(text), "    "+want) {
		t.Errorf("exit %d, and %q is not in the page", code, want)
	}
}
