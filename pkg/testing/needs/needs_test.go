package needs

import (
	"fmt"
	"runtime"
	"testing"
)

// TestMissing has a program that is missing skip a test, and fail it in CI.
func TestMissing(t *testing.T) {
	for setting, want := range map[string]string{"": "skipped", "fail": "failed"} {
		t.Setenv("MISSING", setting)
		asked := &outcome{TB: t}
		done := make(chan struct{})
		go func() { // Fatal and Skip end it
			defer close(done)
			Program(asked, "no-such-program", "no-such-package")
		}()
		<-done
		if asked.said != want+": no-such-program is not installed: apt-get install no-such-package" {
			t.Errorf("MISSING=%s: %q", setting, asked.said)
		}
	}
	if Program(t, "go", "golang") == "" {
		t.Error("go has no path")
	}
}

// outcome is a test that keeps what it was told.
type outcome struct {
	testing.TB
	said string
}

func (o *outcome) Helper() {}

func (o *outcome) Skip(args ...any) { o.end("skipped", args) }

func (o *outcome) Fatal(args ...any) { o.end("failed", args) }

func (o *outcome) end(how string, args []any) {
	o.said = how + ": " + fmt.Sprint(args...)
	runtime.Goexit()
}
