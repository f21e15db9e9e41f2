package nriplugin

import (
	"sync"
	"testing"
)

// Work that waits for other work does not keep it from being done, whatever the number of goroutines that may wait.
func TestWorkersDoAllWorkAtOnce(t *testing.T) {
	w := newWorkers()
	for range 3 {
		var together, done sync.WaitGroup
		const count = 3 * idleWorkers
		together.Add(count)
		done.Add(count)
		for range count {
			w.run(func() {
				together.Done()
				together.Wait()
				done.Done()
			})
		}
		done.Wait()
	}
	w.end()
	var late sync.WaitGroup
	late.Add(1)
	w.run(late.Done)
	late.Wait()
}
