// Package progress says whether what serves containers moves. Work that waits for a disk, an API server, the kubelet or systemd, without
// a deadline of its own, is none of it: what hangs there is a condition of readiness, and a restart helps nobody.
package progress

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bound is how long a piece of work may take: an event of the runtime, which has two seconds, is over by then on a busy node, too.
const Bound = 5 * time.Second

var all board

// board has the work that is under way.
type board struct {
	mu   sync.Mutex
	work map[*work]bool
}

type work struct {
	name  string
	began time.Time
}

// Begin notes that work begins, and returns what notes its end:
//
//	defer progress.Begin("the stall guard")()
func Begin(name string) (end func()) { return all.begin(name, time.Now()) }

// Check returns an error that names the work that has been under way for longer than Bound.
func Check() error { return all.check(time.Now()) }

func (b *board) begin(name string, now time.Time) (end func()) {
	w := &work{name, now}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.work == nil {
		b.work = map[*work]bool{}
	}
	b.work[w] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.work, w)
	}
}

func (b *board) check(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var standing []string
	for w := range b.work {
		if took := now.Sub(w.began); took > Bound {
			standing = append(standing, fmt.Sprintf("%s has not moved for %s", w.name, took.Round(time.Second)))
		}
	}
	if len(standing) == 0 {
		return nil
	}
	slices.Sort(standing)
	return errors.New(strings.Join(standing, "; "))
}
