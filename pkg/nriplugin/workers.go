package nriplugin

// idleWorkers is how many goroutines wait for the next event at most.
const idleWorkers = 4

// workers runs the work of events. A goroutine that has done some waits for more: it has grown a stack for it, which a new one
// would grow again, in several copies, before each answer.
type workers struct {
	next chan func()   // received by those that wait
	idle chan struct{} // has room for those that may wait
	over chan struct{} // closed by end
}

func newWorkers() workers {
	return workers{next: make(chan func()), idle: make(chan struct{}, idleWorkers), over: make(chan struct{})}
}

// run has work done by a goroutine that waits, or else by a new one, and does not wait for its end.
func (w workers) run(work func()) {
	select {
	case w.next <- work:
	default:
		go w.loop(work)
	}
}

// loop does work, and what comes next until enough others wait for it.
func (w workers) loop(work func()) {
	for {
		work()
		select {
		case w.idle <- struct{}{}:
		default:
			return
		}
		select {
		case work = <-w.next:
			<-w.idle
		case <-w.over:
			return
		}
	}
}

// end ends the goroutines that wait. Work that comes later is done all the same.
func (w workers) end() { close(w.over) }
