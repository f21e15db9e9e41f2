package nriplugin

import (
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// queue does the work of a connection's events one after the other, in the order in which the runtime has sent them. One goroutine does
// it all: it has grown a stack for it, which a new one would grow again before each answer.
type queue struct {
	mu   sync.Mutex
	more sync.Cond // work or over has changed
	work []func()
	over bool
}

func newQueue() *queue {
	q := &queue{}
	q.more.L = &q.mu
	go q.loop()
	return q
}

// add has work done after all that was added before, and does not wait for it. What is added after the end has no order.
func (q *queue) add(work func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		go work()
		return
	}
	q.work = append(q.work, work)
	q.more.Signal()
}

// end ends the goroutine once the work that was added before is done.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
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

// next waits for work; nil is the end.
func (q *queue) next() (work func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.work) == 0 && !q.over {
		q.more.Wait()
	}
	if len(q.work) > 0 {
		work, q.work[0] = q.work[0], nil // it may hold all pods
		q.work = q.work[1:]
	}
	return work
}
