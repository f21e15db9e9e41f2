package nriplugin

import (
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// queue does the work of a connection's events one at a time, in the order in which the runtime sent them. One goroutine does all of it: a
// new goroutine would have to grow its stack again for each answer.
type queue struct {
	mu    sync.Mutex
	more  sync.Cond // work or ended has changed
	work  []func()
	ended bool
}

func newQueue() *queue {
	q := &queue{}
	q.more.L = &q.mu
	go q.loop()
	return q
}

// add queues work and does not wait for it. After end the work runs at once, in no order.
func (q *queue) add(work func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		go work()
		return
	}
	q.work = append(q.work, work)
	q.more.Signal()
}

// end ends the goroutine once the queued work is done.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.more.Signal()
}

func (q *queue) loop() {
	for work := q.next(); work != nil; work = q.next() {
		q.do(work)
	}
}

func (q *queue) do(work func()) {
	defer progress.Begin("an event of the runtime")()
	work()
}

// next waits for work; it returns nil at the end.
func (q *queue) next() (work func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.work) == 0 && !q.ended {
		q.more.Wait()
	}
	if len(q.work) > 0 {
		work, q.work[0] = q.work[0], nil // frees the work, which may hold all pods
		q.work = q.work[1:]
	}
	return work
}
