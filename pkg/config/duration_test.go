package config

import (
	"fmt"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "-0": 0, "-0s": 0, "30s": 30 * time.Second, "5m": 5 * time.Minute, "5m0s": 5 * time.Minute, "90m": 90 * time.Minute, "1h30m0s": 90 * time.Minute,
		"24h": 24 * time.Hour, "100s": 100 * time.Second, "9999h": 9999 * time.Hour,
	} {
		config, err := Files(nil).Parse("c.yaml", []byte("evictRejectedAfter: "+text))
		if err != nil || time.Duration(config.EvictRejectedAfter) != want {
			t.Errorf("%s: %s, %v, want %s", text, time.Duration(config.EvictRejectedAfter), err, want)
		}
		written, err := config.EvictRejectedAfter.MarshalText()
		var again Duration
		if err != nil || again.UnmarshalText(written) != nil || again != config.EvictRejectedAfter {
			t.Errorf("%s is written as %s (%v), which is %s", text, written, err, time.Duration(again))
		}
	}
	for _, text := range []string{"29s", "5", "5min", "-5m", "0.5h", "1d", "5m 30s", "10000h", "never", "500ms", "1h90"} {
		_, err := Files(nil).Parse("c.yaml", []byte("evictRejectedAfter: "+text))
		want := fmt.Sprintf("c.yaml:1: evictRejectedAfter: want 0, or a duration from 30s to 9999h such as 5m, got %q", text)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
