// Command e2e boots virtual machines with NUMA nodes, pure cgroup v2 and real
// container runtimes, runs the plugin's tests in each and prints one summary.
//
// It is what `make e2e` calls. Variables: VARIANT (names, comma-separated),
// RUN and SKIP (regular expressions of test names), KEEP=1 (leave the guests' folders, as FULL=1 does),
// TIMEOUT (bound of the whole run, default 75m, 4h with FULL=1), JOBS (guests at once, default 2),
// FULL=1 (the long form of cases, on all variants that can run them), ACCEL (QEMU's accelerator; default KVM where it works, else tcg with one thread),
// CACHE (the folder of downloads and builds, default nri-memory-manager-e2e in the user's cache folder),
// CRIO, CONMON and OCI_RUNTIME (paths that add the CRI-O variant).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/vm"
)

func main() {
	ok, err := e2e()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func logf(format string, args ...any) {
	fmt.Printf("%s e2e: %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func e2e() (bool, error) {
	limit := 75 * time.Minute
	if full() {
		limit = 4 * time.Hour
	}
	if text := os.Getenv("TIMEOUT"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			return false, fmt.Errorf("TIMEOUT: %w", err)
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, limit)
	defer cancel()

	home, err := os.Getwd()
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(filepath.Join(home, "tools", "go.mod")); err != nil {
		return false, errors.New("run it in plugin/e2e, as `make e2e` does")
	}
	project := filepath.Join(home, "..", "..")
	chosen, left, err := choose(vm.Variants())
	if err != nil {
		return false, err
	}
	cache, err := vm.CacheFolder()
	if err != nil {
		return false, err
	}
	folder, err := runFolder(filepath.Join(home, ".cache", "run"))
	if err != nil {
		return false, err
	}
	o := vm.Options{
		Home: home, Project: project, Cache: cache, Run: folder,
		CRIO: os.Getenv("CRIO"), Conmon: os.Getenv("CONMON"), OCIRuntime: os.Getenv("OCI_RUNTIME"), Log: logf,
	}
	began := time.Now()
	parts, err := vm.Prepare(ctx, o, chosen)
	if err != nil {
		return false, err
	}
	prepared := time.Since(began)
	if err := parts.BuildOwn(ctx); err != nil {
		return false, err
	}
	logf("prepared in %s, built in %s", seconds(prepared), seconds(time.Since(began)-prepared))
	tests, err := list(ctx, parts.Cases())
	if err != nil {
		return false, err
	}
	var results []*result
	var guests sync.WaitGroup
	free := make(chan struct{}, vm.Jobs())
	for _, v := range chosen { // in this order: the longest first
		r := newResult(v, tests)
		results = append(results, r)
		free <- struct{}{}
		guests.Go(func() {
			r.run(ctx, parts)
			<-free
		})
	}
	guests.Wait()
	ok := summary(results, left, time.Since(began))
	_ = os.RemoveAll(filepath.Dir(parts.Cases()))
	return ok, nil
}

// keptFor is how long consoles and logs stay in the cache; longer than any run takes.
const keptFor = 6 * time.Hour

// runFolder makes a folder for this run, so that two at once do not disturb
// each other, and removes old ones.
func runFolder(dir string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, folder := range old {
		if info, err := os.Stat(folder); err == nil && time.Since(info.ModTime()) > keptFor {
			_ = os.RemoveAll(folder)
		}
	}
	folder := filepath.Join(dir, fmt.Sprintf("%s-%d", time.Now().Format("20060102-150405"), os.Getpid()))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make the run's folder: %w", err)
	}
	return folder, nil
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d.Round(time.Second).Seconds())) + " s" }

// choose picks the variants that VARIANT names, all if it is empty. What
// cannot run here is returned with the reason.
func choose(all []vm.Variant) (chosen []vm.Variant, left []string, err error) {
	var names []string
	if text := os.Getenv("VARIANT"); text != "" {
		names = strings.Split(text, ",")
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(v vm.Variant) bool { return v.Name == name }) {
			var known []string
			for _, v := range all {
				known = append(known, v.Name)
			}
			return nil, nil, fmt.Errorf("VARIANT: no variant %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	for _, v := range all {
		switch {
		case len(names) > 0 && !slices.Contains(names, v.Name):
		case v.Runtime == setup.CRIO && os.Getenv("CRIO") == "":
			left = append(left, v.Name+": SKIPPED, no CRI-O was given (CRIO=/path/to/crio with conmon beside it or in CONMON; OCI_RUNTIME=/path/to/crun)")
		case v.Empty(full()):
			left = append(left, v.Name+": all of its cases need FULL=1")
		default:
			chosen = append(chosen, v)
		}
	}
	return chosen, left, nil
}

// list asks the test binary for its tests and applies RUN and SKIP.
func list(ctx context.Context, cases string) ([]string, error) {
	out, err := vm.Output(ctx, cases, "-test.list", ".")
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(strings.Fields(out), func(name string) bool { return !strings.HasPrefix(name, "Test") })
	if err := vm.CheckChoices(all); err != nil {
		return nil, err
	}
	want, err := regexp.Compile(strings.SplitN(os.Getenv("RUN"), "/", 2)[0])
	if err != nil {
		return nil, fmt.Errorf("RUN: %w", err)
	}
	skip, err := regexp.Compile(os.Getenv("SKIP"))
	if err != nil {
		return nil, fmt.Errorf("SKIP: %w", err)
	}
	var tests []string
	for _, name := range all {
		if want.MatchString(name) && (os.Getenv("SKIP") == "" || !skip.MatchString(name)) {
			tests = append(tests, name)
		}
	}
	if len(tests) == 0 {
		return nil, errors.New("RUN and SKIP leave no test")
	}
	return tests, nil
}
