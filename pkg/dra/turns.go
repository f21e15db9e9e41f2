package dra

import (
	"context"
	"fmt"
	"sync"
)

// turns has one change of a claim under way at a time. A caller that waits for its turn stops waiting when its context ends: the API
// server or the disk may hold up the turn before for long.
type turns struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by UID; closed at the end of the turn
}

// take waits for a claim's turn. end ends it.
func (t *turns) take(ctx context.Context, uid string) (end func(), err error) {
	for {
		t.mu.Lock()
		before, taken := t.taken[uid]
		if !taken {
			turn := make(chan struct{})
			if t.taken == nil {
				t.taken = map[string]chan struct{}{}
			}
			t.taken[uid] = turn
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.taken, uid)
				close(turn)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, fmt.Errorf("another change of claim %s is under way: %w", uid, ctx.Err())
		}
	}
}
