package config

import (
	"fmt"
	"regexp"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Duration is 0, or half a minute to 9,999 hours: what is shorter than a kubelet's pause of 10 to 15 seconds between two tries says nothing.
type Duration time.Duration

// DurationPattern is what a Duration is written as, "5m" or Kubernetes' "1h30m0s". The chart's schema has it, too.
const DurationPattern = `^(-?0s?|([3-9][0-9]|[1-9][0-9]{2,4})s|[1-9][0-9]{0,3}m([0-9]{1,2}s)?|[1-9][0-9]{0,3}h([0-9]{1,2}m)?([0-9]{1,2}s)?)$`

// DurationWanted says so in an error.
const DurationWanted = "0, or a duration from 30s to 9999h such as 5m"

var durationPattern = regexp.MustCompile(DurationPattern)

// MarshalText writes it as Kubernetes writes durations.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what DurationPattern admits.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || !durationPattern.Match(text) {
		return fmt.Errorf("want %s, got %s", DurationWanted, strictyaml.Quote(string(text)))
	}
	*d = Duration(parsed)
	return nil
}
