package protect

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// breaker keeps a systemd that does not answer from holding up every create: after a failure it is left alone for a while,
// and files are all there is.
type breaker struct {
	units Units
	now   func() time.Time
	log   logrus.FieldLogger

	mu     sync.Mutex
	until  time.Time // left alone until then
	silent bool      // the absence has been logged
}

// pause is how long a failing systemd is left alone: a daemon-reload of a busy node takes seconds.
const pause = 10 * time.Second

// set sets a unit's properties. That there is no systemd or no such unit is no error: the files are written in any case.
// Unless it is sure, systemd may hold other values and write them again at any time.
func (b *breaker) set(ctx context.Context, unit string, values map[cgroup.Knob]uint64) (sure bool, err error) {
	if b.open() {
		return false, nil
	}
	err = b.units.SetMemory(ctx, unit, values)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		b.silent = false
		return true, nil
	case errors.Is(err, ErrNoUnit):
		return true, nil
	}
	b.until = b.now().Add(pause)
	if errors.Is(err, ErrNoSystemd) {
		if !b.silent {
			b.silent = true
			b.log.WithError(err).Warn("memory protection is written to files only: systemd takes it back at its next reload")
		}
		return true, nil
	}
	return false, err
}

// open tells whether systemd is left alone.
func (b *breaker) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now().Before(b.until)
}
