package main

import (
	"archive/tar"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/conformance/cgroups"
)

// result is one run of the suites.
type result struct {
	run        string
	kernel     string // its release, as uname has it
	ended      time.Time
	cases      []testCase
	containers []cgroups.Container
}

// testCase is one case of a suite, as Ginkgo reported it.
type testCase struct {
	suite, name string
	status      string // passed, failed, skipped, ...
	message     string
	seconds     float64
	ended       time.Time // of the last attempt itself, before what cleans up after it; zero where it did not begin
	attempts    int
	namespace   string // of the last attempt
}

// report is the part of Ginkgo's JUnit report that is read.
type report struct {
	Cases []struct {
		Name    string  `xml:"name,attr"`
		Status  string  `xml:"status,attr"`
		Seconds float64 `xml:"time,attr"`
		Skipped *struct {
			Message string `xml:"message,attr"`
		} `xml:"skipped"`
		Failure *struct {
			Message string `xml:"message,attr"`
		} `xml:"failure"`
		Output string `xml:"system-err"`
	} `xml:"testsuite>testcase"`
}

// read reads what a guest has shipped.
func read(run, dir string) (*result, error) {
	in, err := os.Open(filepath.Join(dir, "logs.tar"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", run, err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", run, err)
	}
	r := &result{run: run, ended: info.ModTime()}
	for archive := tar.NewReader(in); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: read the guest's logs: %w", run, err)
		}
		switch name := header.Name; {
		case path.Ext(name) == ".xml" && !strings.Contains(name, "/"):
			if err := r.addReport(strings.TrimSuffix(name, ".xml"), archive); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", run, name, err)
			}
		case name == "dmesg.log":
			text, err := io.ReadAll(archive)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", run, name, err)
			}
			if release := ofKernel.FindSubmatch(text); release != nil {
				r.kernel = string(release[1])
			}
		case name == cgroups.File:
			for decoder := json.NewDecoder(archive); decoder.More(); {
				var c cgroups.Container
				if err := decoder.Decode(&c); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", run, name, err)
				}
				r.containers = append(r.containers, c)
			}
		}
	}
	if len(r.cases) == 0 {
		return nil, fmt.Errorf("%s: no report: the suites did not end", run)
	}
	slices.SortStableFunc(r.containers, func(a, b cgroups.Container) int { return a.Since.Compare(b.Since) })
	return r, nil
}

var (
	ofKernel    = regexp.MustCompile(`Linux version (\S+)`)
	ofNamespace = regexp.MustCompile(`Destroying namespace "([^"]+)"`)
	ofEnd       = regexp.MustCompile(`(?m)^< Exit \[It\].* @ (\d\d/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?)`)
)

func (r *result) addReport(suite string, in io.Reader) error {
	var parsed report
	err := xml.NewDecoder(in).Decode(&parsed)
	if err != nil {
		return err
	}
	for _, c := range parsed.Cases {
		name, isCase := strings.CutPrefix(c.Name, "[It] ")
		if !isCase || c.Skipped != nil && c.Skipped.Message == "skipped" { // setup, and what is not in focus
			continue
		}
		t := testCase{suite: suite, name: name, status: c.Status, seconds: c.Seconds}
		switch {
		case c.Failure != nil:
			t.message = c.Failure.Message
		case c.Skipped != nil:
			t.message = strings.TrimPrefix(c.Skipped.Message, "skipped - ")
		}
		if of := ofNamespace.FindAllStringSubmatch(c.Output, -1); of != nil {
			t.namespace = of[len(of)-1][1]
		}
		if ends := ofEnd.FindAllStringSubmatch(c.Output, -1); ends != nil {
			t.attempts = len(ends)
			if t.ended, err = time.Parse("01/02/06 15:04:05", ends[t.attempts-1][1]); err != nil { // the guests' clocks are in UTC
				return fmt.Errorf("the end of %s: %w", name, err)
			}
		}
		r.cases = append(r.cases, t)
	}
	return nil
}

// find returns the case with the same name, nil where there is none.
func (r *result) find(name string) *testCase {
	for i := range r.cases {
		if r.cases[i].name == name {
			return &r.cases[i]
		}
	}
	return nil
}

// generated is what the API server appends to a name that it generates, or a suite: a UUID.
var generated = regexp.MustCompile(`-?[bcdfghjklmnpqrstvwxz2456789]{5}$|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// late is how long after a change it may be recorded: the guest looks twice a second.
const late = 500 * time.Millisecond

// state is what was recorded of a container at the end of its case.
type state struct {
	files  cgroups.Files
	beside bool // containers of another case ran at the same time
}

// files are the recorded files of a case's containers by their names, in the order of their starts, as they were at the end of the
// case: what cleans up after it changes the kubelet's configuration while its pods still run.
func (r *result) files(t *testCase) map[string]state {
	byName, since := map[string]state{}, map[string]time.Time{}
	for _, c := range r.containers {
		if c.Namespace != t.namespace || !t.ended.IsZero() && c.At.After(t.ended.Add(late)) || c.Ended || r.brief(c) {
			continue
		}
		for i := 1; ; i++ {
			name := fmt.Sprintf("%s/%s #%d", generated.ReplaceAllString(c.Pod, ""), generated.ReplaceAllString(c.Name, ""), i)
			if began, taken := since[name]; !taken || began.Equal(c.Since) {
				byName[name], since[name] = state{c.Values, r.besides(t, c.Since)}, c.Since
				break
			}
		}
	}
	return byName
}

// brief says whether a container ended before the guest's second look: at the first one its runtime may not have written its files yet.
func (r *result) brief(c cgroups.Container) bool {
	return slices.ContainsFunc(r.containers, func(last cgroups.Container) bool {
		return last.Ended && last.Pod == c.Pod && last.Name == c.Name && last.Since.Equal(c.Since) && last.At.Sub(c.Since) < 2*late
	})
}

// lingering is how long the kubelet and the plugin may count a pod whose container has ended.
const lingering = 15 * time.Second

// besides says whether a container that does not belong to a case ran, or was counted, between a moment and the case's end.
func (r *result) besides(t *testCase, since time.Time) bool {
	return slices.ContainsFunc(r.containers, func(c cgroups.Container) bool {
		return c.Namespace != t.namespace && c.Ended && c.At.Add(lingering).After(since) && (t.ended.IsZero() || c.Since.Before(t.ended))
	})
}
