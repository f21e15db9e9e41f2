// Package browser runs a real Chromium on a page, for tests and pictures.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

// timeout bounds one run of the browser; only a broken one takes as long.
const timeout = 3 * time.Minute

// ErrMissing means that no Chromium is installed.
var ErrMissing = errors.New("no Chromium is installed: apt-get install chromium")

// Run is Open in a test, which is skipped where no Chromium is installed.
func Run(t testing.TB, url string, flags ...string) string {
	t.Helper()
	out, err := Open(t.Context(), url, flags...)
	if errors.Is(err, ErrMissing) {
		needs.Missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Open opens a page, without a window, and returns what the browser prints: with the flag --dump-dom the page as its scripts
// have made it.
func Open(ctx context.Context, url string, flags ...string) (string, error) {
	chromium, err := find()
	if err != nil {
		return "", err
	}
	home, err := os.MkdirTemp("", "chromium")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home) // as far as possible: the browser may still be writing to it when it has ended
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium, append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
		"--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync", "--virtual-time-budget=5000", "--user-data-dir=" + home}, append(flags, url)...)...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, errOut.String())
	}
	return out.String(), nil
}

func find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrMissing
}
