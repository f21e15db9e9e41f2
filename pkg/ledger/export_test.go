package ledger

// Release frees a container's allocation, which no event does while its pod lives.
func (l *Ledger) Release(pod, container string) {
	if l.manager != nil {
		l.manager.Release(pod, container)
	}
}
