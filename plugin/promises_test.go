package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	promise   = regexp.MustCompile(`(?i)\b(never|always|every|waits|nothing|as long as)\b`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	linkText  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	textBlock = regexp.MustCompile(`(?m)\n\s*\n|\s\|\s|^\||\|$|^#+ |^\s*(?:[-*]|\d+\.) `)
	// sentenceEnd leaves "e.g. this" in one sentence.
	sentenceEnd = regexp.MustCompile(`([.!?][)"*]*\s+)[^a-z\s]`)
	testName    = regexp.MustCompile("^(Test|Fuzz|Benchmark)[A-Z]")
	// Sentences that promise nothing of ours say whose they are.
	noPromises = []string{"advice", "definition", "kernel", "kubelet", "Kubernetes", "others", "process", "runtime"}
)

// promises are the sentences of a page with a word that has no exception: whole, without line breaks and targets of links. Code and
// what stands in backticks is left out: values of keys are called Always and Never.
func promises(page string) []string {
	var prose []string
	for line := range strings.Lines(fence.ReplaceAllString(page, "")) {
		if !strings.HasPrefix(line, "    ") {
			prose = append(prose, line)
		}
	}
	text := linkText.ReplaceAllString(strings.Join(prose, ""), "$1")
	var found []string
	for _, block := range textBlock.Split(text, -1) {
		for block != "" {
			sentence := block
			if end := sentenceEnd.FindStringSubmatchIndex(block); end != nil {
				sentence = block[:end[3]]
			}
			block = block[len(sentence):]
			if promise.MatchString(codeSpan.ReplaceAllString(sentence, "")) {
				found = append(found, strings.Join(strings.Fields(strings.ReplaceAll(sentence, "**", "")), " "))
			}
		}
	}
	return found
}

func TestPromisesOfAPage(t *testing.T) {
	t.Parallel()
	const page = "# Nothing is lost\n\nIt waits for [every disk](never.md), e.g. a slow\none. Other text. **Always:** `Never`.\n\n" +
		"    it never is code\n\n| key | nothing |\n| --- | --- |\n| `Always` | never. Not here |\n- as\n  long as it takes\n- everything\n"
	want := []string{"Nothing is lost", "It waits for every disk, e.g. a slow one.", "Always: `Never`.", "nothing", "never."}
	if diff := cmp.Diff(want, promises(page)); diff != "" {
		t.Error(diff)
	}
}

// Each sentence of the documents that knows no exception has a proof: testdata/promises.txt lists them, with the tests that show them.
func TestPromisesHaveProofs(t *testing.T) {
	t.Parallel()
	const list = "../testdata/promises.txt"
	text, err := os.ReadFile(list)
	must(t, err)
	listed, page, sentence := map[string][]string{}, "", ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch words := strings.TrimLeft(line, " "); {
		case words == "" || words[0] == '#':
		case line == words:
			page = words
		case strings.HasPrefix(line, "  "+words[:1]):
			sentence = page + "\n  " + words
			if _, twice := listed[sentence]; twice {
				t.Errorf("%s: twice: %s", list, sentence)
			}
			listed[sentence] = nil
		default:
			listed[sentence] = append(listed[sentence], words)
		}
	}
	pages, inDocuments := documents(t), map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(pages)) {
		name, missing := strings.TrimPrefix(path, "../"), ""
		if !strings.HasPrefix(name, "docs/") && name != "README.md" && name != "SECURITY.md" {
			continue
		}
		for _, sentence := range promises(pages[path]) {
			if _, is := listed[name+"\n  "+sentence]; !is && !inDocuments[name+"\n  "+sentence] {
				missing += "\n  " + sentence + "\n    PROOF"
			}
			inDocuments[name+"\n  "+sentence] = true
		}
		if missing != "" {
			t.Errorf("add to %s, with the tests that prove it:\n%s%s", list, name, missing)
		}
	}
	tests, oracles := testFunctions(t), oraclesOfTheSimulation(t)
	for _, sentence := range slices.Sorted(maps.Keys(listed)) {
		if !inDocuments[sentence] {
			t.Errorf("remove from %s, it is in no document:\n%s", list, sentence)
		}
		if len(listed[sentence]) == 0 {
			t.Errorf("%s: no proof:\n%s", list, sentence)
		}
		for _, proof := range listed[sentence] {
			word, why, _ := strings.Cut(proof, ": ")
			name, subtest, _ := strings.Cut(proof, "/")
			literals, is := tests[name]
			switch {
			case slices.Contains(noPromises, word) && why != "":
			case word == "oracle" && slices.Contains(oracles, why):
			case !is:
				t.Errorf("%s: there is no test %s:\n%s", list, proof, sentence)
			case subtest != "" && !slices.Contains(literals, subtest):
				t.Errorf("%s: %s has no %q:\n%s", list, name, subtest, sentence)
			}
		}
	}
}

// oraclesOfTheSimulation are the promises that TestNode judges.
func oraclesOfTheSimulation(t *testing.T) (all []string) {
	t.Helper()
	paths, err := filepath.Glob("../pkg/testing/world/oracle*.go")
	must(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		must(t, err)
		for _, promise := range regexp.MustCompile(`Promise += "(.*)"`).FindAllSubmatch(text, -1) {
			all = append(all, string(promise[1]))
		}
	}
	return all
}

// testFunctions are the tests, fuzz targets and benchmarks of the repository by folder.Name, with the texts in quotes of their files:
// subtests are named by these.
func testFunctions(t *testing.T) map[string][]string {
	t.Helper()
	all, files := map[string][]string{}, token.NewFileSet()
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go", "../pkg/*/*_test.go", "../deploy/*/*_test.go"} {
		paths, err := filepath.Glob(pattern)
		must(t, err)
		for _, path := range paths {
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			must(t, err)
			folder, err := filepath.Abs(filepath.Dir(path))
			must(t, err)
			var literals []string
			ast.Inspect(file, func(node ast.Node) bool {
				if text, is := node.(*ast.BasicLit); is && text.Kind == token.STRING {
					literal, err := strconv.Unquote(text.Value)
					must(t, err)
					literals = append(literals, literal)
				}
				return true
			})
			for _, declared := range file.Decls {
				if function, is := declared.(*ast.FuncDecl); is && function.Recv == nil && testName.MatchString(function.Name.Name) {
					all[filepath.Base(folder)+"."+function.Name.Name] = literals
				}
			}
		}
	}
	return all
}
