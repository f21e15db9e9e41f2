package dra

import (
	"context"
	"fmt"
	"sync"
)

// turns has one change of a claim under way at a time. A caller waits until its context ends and no longer: the API server or the disk
// may hold up its change, or the one before, for long.
type turns struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by UID; closed at the end of the turn
}

// do makes a change of a claim when it is its turn. A change that has begun is not given up when ctx ends: the next one waits for it.
func (t *turns) do(ctx context.Context, uid string, change func() error) error {
	end, err := t.take(ctx, uid)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := change()
		end()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the change of claim %s is still under way: %w", uid, ctx.Err())
	}
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
