package podinfo

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
)

// TestPresenceIsLoggedWhenItChanges follows a source through attempts: "" is one that succeeds, others fail with that error.
func TestPresenceIsLoggedWhenItChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		attempts []string
		logged   []string
		problem  string
	}{
		"no attempt":      {},
		"up":              {[]string{"", ""}, []string{"info: it answers"}, ""},
		"absent":          {[]string{"no socket", "no socket", "refused"}, []string{"info: it does not answer, maybe off: no socket"}, "refused"},
		"absent, then up": {[]string{"no socket", "", ""}, []string{"info: it does not answer, maybe off: no socket", "info: it answers"}, ""},
		"lost":            {[]string{"", "ended", "no socket"}, []string{"info: it answers", "info: lost it: ended"}, "no socket"},
		"lost twice": {[]string{"", "ended", "no socket", "", "ended"},
			[]string{"info: it answers", "info: lost it: ended", "info: it answers", "info: lost it: ended"}, "ended"},
		"off":                 {[]string{"turned off", "turned off", "turned off"}, []string{"info: it is turned off, maybe off: turned off"}, "turned off"},
		"off, also restarted": {[]string{"turned off", "no socket", "turned off"}, []string{"info: it is turned off, maybe off: turned off"}, "turned off"},
		"absent, then off": {[]string{"no socket", "turned off"},
			[]string{"info: it does not answer, maybe off: no socket", "info: it is turned off, maybe off: turned off"}, "turned off"},
		"turned off while up": {[]string{"", "turned off"}, []string{"info: it answers", "info: it is turned off, maybe off: turned off"}, "turned off"},
		"off, then up, then off": {[]string{"turned off", "", "turned off"},
			[]string{"info: it is turned off, maybe off: turned off", "info: it answers", "info: it is turned off, maybe off: turned off"}, "turned off"},
	} {
		t.Run(name, func(t *testing.T) {
			var logged lines
			log := logrus.New()
			log.SetLevel(logrus.DebugLevel)
			log.SetOutput(&strings.Builder{})
			log.AddHook(&logged)
			p := presence{name: "it", hint: ", maybe off"}
			for _, attempt := range tt.attempts {
				if attempt == "" {
					p.succeeded(log)
				} else if attempt == errOff.Error() {
					p.failed(log, errOff)
				} else {
					p.failed(log, errors.New(attempt))
				}
			}
			if difference := cmp.Diff(tt.logged, []string(logged)); difference != "" {
				t.Errorf("the log is not as wanted (-):\n%s", difference)
			}
			if p.problem() != tt.problem || p.up() != (tt.problem == "" && len(tt.attempts) > 0) {
				t.Errorf("up %t with problem %q, want problem %q", p.up(), p.problem(), tt.problem)
			}
		})
	}
}

// lines are log entries as "level: message: error".
type lines []string

func (l *lines) Levels() []logrus.Level { return logrus.AllLevels }

func (l *lines) Fire(entry *logrus.Entry) error {
	line := entry.Level.String() + ": " + entry.Message
	if err, ok := entry.Data[logrus.ErrorKey].(error); ok {
		line += ": " + err.Error()
	}
	*l = append(*l, line)
	return nil
}
