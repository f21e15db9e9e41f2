package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/vm"
)

// result is what became of a variant, over all of its boots.
type result struct {
	variant vm.Variant
	tests   []string          // to run, in order
	left    int               // run in other variants
	state   map[string]string // test → PASS, SKIP or FAIL
	failed  map[string]int    // test → times failed
	deaths  int               // guests that ended without a status
	boots   int
	took    time.Duration
	guests  []vm.Guest               // one for each boot
	times   map[string]time.Duration // of each test, by the guest's clock
	problem string                   // what kept the variant from running
}

// A test fails when it fails twice; an emulated machine
// that dies (QEMU's software emulation does that now and then) is booted again.
const (
	mostFailures = 2
	mostDeaths   = 2
	mostBoots    = 4
)

func newResult(v vm.Variant, tests []string) *result {
	r := &result{variant: v, state: map[string]string{}, failed: map[string]int{}, times: map[string]time.Duration{}}
	for _, name := range tests {
		if v.Runs(name, full()) {
			r.tests = append(r.tests, name)
		}
	}
	r.left = len(tests) - len(r.tests)
	return r
}

// full reports whether the long form of cases is asked for, on every variant that can run them.
func full() bool { return os.Getenv("FULL") != "" }

// open are the tests that still have to run: not passed, not failed for good.
func (r *result) open() []string {
	var open []string
	for _, name := range r.tests {
		if r.state[name] != "PASS" && r.state[name] != "SKIP" && r.failed[name] < mostFailures {
			open = append(open, name)
		}
	}
	return open
}

func (r *result) run(ctx context.Context, parts *vm.Parts) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	for len(r.open()) > 0 && r.boots < mostBoots && r.deaths <= mostDeaths && ctx.Err() == nil {
		r.boots++
		dir := filepath.Join(parts.Run, fmt.Sprintf("%s-%d", r.variant.Name, r.boots))
		if r.boots > 1 {
			r.logf("BOOT %d in a fresh guest, for: %s", r.boots, strings.Join(r.open(), " "))
		}
		guest, err := r.boot(ctx, parts, dir)
		if err != nil {
			r.problem = err.Error()
			r.logf("%v", err)
			return
		}
		r.take(guest)
		if os.Getenv("KEEP") == "" && !full() && guest.Exit == 0 {
			_ = os.RemoveAll(dir)
		}
	}
	if ctx.Err() != nil && len(r.open()) > 0 {
		r.problem = "stopped: " + ctx.Err().Error()
	}
}

func (r *result) logf(format string, args ...any) {
	logf("%s: %s", r.variant.Name, fmt.Sprintf(format, args...))
}

func (r *result) boot(ctx context.Context, parts *vm.Parts, dir string) (vm.Guest, error) {
	v := r.variant
	runtime := "/usr/bin/runc"
	if v.Runtime == setup.CRIO && parts.OCIRuntime != "" {
		runtime = "/usr/bin/" + filepath.Base(parts.OCIRuntime)
	}
	plan := setup.Plan{
		Variant: v.Name, Driver: v.Driver, Runtime: v.Runtime, Kernel: v.Kernel, OlderKubelet: v.OlderKubelet, Nodes: v.Nodes, OCIRuntime: runtime,
		Run: "^(" + strings.Join(r.open(), "|") + ")$", Watchdog: watchdog(), Full: full(),
	}
	r.logf("booting: %s, %d tests", v.Summary, len(r.open()))
	stop := make(chan struct{})
	defer close(stop)
	go r.follow(filepath.Join(dir, "tests.log"), stop)
	return parts.Boot(ctx, v, plan, dir)
}

// watchdog is how long one guest may take; wide, because a slow machine is no error.
func watchdog() time.Duration {
	if full() {
		return 2 * time.Hour
	}
	return 40 * time.Minute
}

var (
	verdict = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+) \(([^)]*)\)`)
	started = regexp.MustCompile(`(?m)^=== RUN   (Test[^/\s]+)$`)
)

// follow prints verdicts as they come.
func (r *result) follow(file string, stop <-chan struct{}) {
	printed := 0
	show := func() {
		text, _ := os.ReadFile(file)
		lines := verdict.FindAllString(string(text), -1)
		for ; printed < len(lines); printed++ {
			r.logf("%s", lines[printed])
		}
	}
	for {
		select {
		case <-stop:
			show()
			return
		case <-time.After(time.Second):
			show()
		}
	}
}

// take reads a guest's outcome.
func (r *result) take(g vm.Guest) {
	r.guests = append(r.guests, g)
	text := strings.ReplaceAll(g.Tests(), "\r", "")
	seen := map[string]bool{}
	for _, m := range verdict.FindAllStringSubmatch(text, -1) {
		name := m[2]
		seen[name] = true
		r.state[name] = m[1]
		r.times[name], _ = time.ParseDuration(m[3])
		if m[1] == "FAIL" {
			r.failed[name]++
		}
	}
	hung := ""
	for _, m := range started.FindAllStringSubmatch(text, -1) {
		if !seen[m[1]] {
			hung = m[1]
		}
	}
	if g.Died() {
		r.deaths++
		r.logf("THE GUEST DIED after %s: %s; it is booted once more", seconds(g.Time), g.Why)
	} else {
		r.logf("guest ended with status %d after %s, %s of them computing", g.Exit, seconds(g.Time), seconds(g.CPU))
		if hung != "" { // a panic, or the watchdog's end
			r.state[hung] = "FAIL"
			r.failed[hung]++
			r.logf("%s did not come to an end", hung)
		} else if g.Exit > 1 {
			r.deaths++ // it never came to the tests
		}
	}
	if g.Exit != 0 {
		g.Show(os.Stdout, r.variant.Name)
	}
}

// good reports whether every test passed or was left out, whatever it took.
func (r *result) good() bool {
	for _, name := range r.tests {
		if r.state[name] != "PASS" && r.state[name] != "SKIP" {
			return false
		}
	}
	return r.problem == ""
}

func summary(results []*result, left []string, took time.Duration) bool {
	ok := true
	fmt.Printf("\n%-24s %6s %6s %7s %8s %6s %7s\n", "variant", "passed", "failed", "skipped", "repeated", "boots", "time")
	for _, r := range results {
		count := map[string]int{}
		repeated := 0
		for _, name := range r.tests {
			state := r.state[name]
			if state == "" {
				state = "FAIL"
			}
			count[state]++
			if state == "PASS" && r.failed[name] > 0 {
				repeated++
			}
		}
		fmt.Printf("%-24s %6d %6d %7d %8d %6d %7s\n", r.variant.Name, count["PASS"], count["FAIL"], count["SKIP"]+r.left, repeated, r.boots, seconds(r.took))
		ok = ok && r.good()
	}
	fmt.Printf("\n%-24s %7s %7s %7s %7s %10s   %s\n", "where the time went", "packing", "boot", "tests", "rest", "computing", "longest tests")
	for _, r := range results {
		fmt.Println(r.account())
	}
	for _, r := range results {
		r.remarks()
	}
	for _, line := range left {
		fmt.Println("  " + line)
	}
	verdict := "all variants passed"
	if !ok {
		verdict = "FAILED"
	}
	fmt.Printf("e2e: %s in %s\n", verdict, seconds(took))
	return ok
}

// account is the line of a table that says where a variant's time went. What is neither boot nor tests is the time in which a guest
// ends, its logs are shipped and QEMU starts.
func (r *result) account() string {
	var packed, boot, guests, cpu, tests time.Duration
	for _, g := range r.guests {
		packed, boot, guests, cpu = packed+g.Packed, boot+g.Booted, guests+g.Time, cpu+g.CPU
	}
	names := slices.Collect(maps.Keys(r.times))
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(r.times[b], r.times[a]) })
	var longest []string
	for i, name := range names {
		tests += r.times[name]
		if i < 3 {
			longest = append(longest, fmt.Sprintf("%s %s", name, seconds(r.times[name])))
		}
	}
	return fmt.Sprintf("%-24s %7s %7s %7s %7s %10s   %s", r.variant.Name, seconds(packed), seconds(boot), seconds(tests),
		seconds(guests-boot-tests), seconds(cpu), strings.Join(longest, ", "))
}

// remarks prints what the numbers do not say.
func (r *result) remarks() {
	if r.problem != "" {
		fmt.Printf("  %s: %s\n", r.variant.Name, r.problem)
	}
	if r.deaths > 0 {
		fmt.Printf("  %s: %d guest(s) died and were booted again\n", r.variant.Name, r.deaths)
	}
	for _, name := range r.tests {
		switch {
		case r.state[name] == "PASS" && r.failed[name] > 0:
			fmt.Printf("  %s: %s FAILED ONCE, PASSED ON REPEAT in a fresh guest\n", r.variant.Name, name)
		case r.state[name] == "":
			fmt.Printf("  %s: %s did not run\n", r.variant.Name, name)
		case r.state[name] == "FAIL":
			fmt.Printf("  %s: %s failed %d time(s)\n", r.variant.Name, name, r.failed[name])
		}
	}
	for _, name := range r.tests {
		if r.state[name] == "SKIP" {
			fmt.Printf("  %s: %s skipped itself\n", r.variant.Name, name)
		}
	}
}
