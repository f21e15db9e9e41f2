package ledger

// StartContainer is a container that is about to run.
type StartContainer struct {
	Pod       Pod
	Container Container
	// Found is what its files hold; it is needed for a container that the ledger does not Know.
	Found *Files
	Header
}

// apply brings a container that was created by values that have changed since to the new ones, and one whose creation was
// answered too late: runtimes without NRI's failure policy go on without the answer.
func (e StartContainer) apply(l *Ledger) {
	if c := l.containers[e.Container.ID]; c != nil && c.Phase == Running {
		return
	}
	c := l.changeContainer(e.Container.ID)
	if c == nil {
		if c = l.missed(e.Pod, e.Container, e.Found); c == nil {
			return
		}
	}
	c.Phase, c.Seq = Running, max(c.Seq, l.step.seq)
	l.look(c)
}

// missed takes in a container that runs without our answer, if it is one of ours.
func (l *Ledger) missed(received Pod, started Container, found *Files) *container {
	p, err := l.podOf(received)
	if err != nil || !p.managed || p.check(started) != nil || l.overtaken(p.named(started.Name), started.ID) != nil {
		return nil
	}
	c := l.takeIn(p, started, found)
	c.Phase = Created
	l.note(Warn, "a container starts that was created without an answer of ours", l.fields(c), nil)
	return c
}

// EndContainer is a container that has ended. Its allocation stays for its next start as long as the pod lives. An ID that
// is not known belongs to a container that has ended before.
type EndContainer struct {
	ID string
	Header
}

func (e EndContainer) apply(l *Ledger) {
	l.state.EndedContainers.add(e.ID, e.Seq)
	if c := l.changeContainer(e.ID); c != nil {
		l.end(c)
		l.forget(c)
	}
}
