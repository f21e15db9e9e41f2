// Package browser runs a real Chromium on a page, for tests.
package browser

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// timeout bounds one run of the browser; only a broken one takes as long.
const timeout = 3 * time.Minute

// Run opens a page, without a window, and returns what the browser prints: with the flag --dump-dom the page as its scripts
// have made it. The test is skipped where no Chromium is installed.
func Run(t testing.TB, url string, flags ...string) string {
	t.Helper()
	home, err := os.MkdirTemp("", "chromium") // the browser may still be writing to it when it has ended
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium(t), append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
		"--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync", "--virtual-time-budget=5000", "--user-data-dir=" + home}, append(flags, url)...)...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, errOut.String())
	}
	return out.String()
}

func chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium is installed: the page was not looked at (apt-get install chromium)")
	return ""
}
