package agent

// rejectionsKept is how many refused or unpinned containers a View shows.
const rejectionsKept = 64

// reject notes a container that could not be placed as asked. The lock is held.
func (a *Agent) reject(c *container, reason, text string, refused bool) {
	dryRun := a.resolved.Config.DryRun
	a.counters.rejected(reason, refused && !dryRun)
	rejection := RejectionView{
		At: a.now(), Namespace: c.pod.Namespace, Pod: c.pod.Name, UID: c.pod.UID, Container: c.name,
		Reason: reason, Text: text, Refused: refused && !dryRun,
	}
	keep := min(len(a.rejections), rejectionsKept-1)
	a.rejections = append([]RejectionView{rejection}, a.rejections[:keep]...) // a new slice: views share the old one
	a.changed()
}
