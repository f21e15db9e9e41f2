package dra

import (
	"context"
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
)

// change makes one change of a claim at a time. It waits until ctx ends and no longer, for the API server or the disk may hold up a
// change. One that has begun is not given up then: the next one waits for it.
func (d *Driver) change(ctx context.Context, uid string, f func() error) error {
	if !claims.ValidUID(uid) {
		return fmt.Errorf("%q is not a UID", uid)
	}
	over := make(chan struct{})
	for {
		before, changing := d.changes.LoadOrStore(uid, over)
		if !changing {
			break
		}
		select {
		case <-before.(chan struct{}):
		case <-ctx.Done():
			return fmt.Errorf("another change of claim %s is under way: %w", uid, ctx.Err())
		}
	}
	done := make(chan error, 1)
	go func() {
		err := f()
		d.changes.Delete(uid)
		close(over)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the change of claim %s is still under way: %w", uid, ctx.Err())
	}
}
