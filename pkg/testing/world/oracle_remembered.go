package world

import "time"

const (
	dated      Promise = "a verdict says when the kernel killed"
	remembered Promise = "the last kill of each pod is remembered"
)

// dates looks for verdicts on kills of another time than they say. A verdict without "after" is on one that was noticed as it happened.
func (n *simulation) dates() {
	const late = time.Minute
	for v := range n.said {
		from := v.Time.Add(-late)
		if !v.After.IsZero() {
			from = v.After.Add(-late)
		}
		until := v.Time
		if n.trouble.calm(dated, v.Time).After(v.Time.Add(-late)) {
			if v.After.IsZero() {
				continue
			}
			until = until.Add(late) // it says when the round began in which each file was read slowly
		}
		// A container that was created without the plugin's knowledge may have been killed while one that it knows ended.
		found, anyOfPod := false, v.ID == "" || n.trouble.calm(connected, v.Time).After(v.Time.Add(-late))
		for _, kill := range n.kernel.Kills() {
			found = found || kill.Victim.UID == v.UID && (anyOfPod || kill.Victim.ID == v.ID) && !kill.At.After(until) && !kill.At.Before(from)
		}
		if !found {
			n.broken(dated, "%s/%s: nothing was killed between %s and %s", v.UID, v.Container, from.Sub(n.began).Round(time.Second), v.Time.Sub(n.began).Round(time.Second))
		}
	}
}

// remembered looks in the file of verdicts for the last kill of each pod, however often others were killed since.
func (n *simulation) remembered() {
	last := map[string]Kill{}
	for _, kill := range n.kernel.Kills() {
		last[kill.Victim.UID] = kill
	}
	file := n.verdictFile()
	for uid, kill := range last {
		if uid == "" || n.trouble.calm(remembered, kill.At.Add(time.Minute)).After(kill.At) || kill.At.Sub(n.began) < time.Minute || kill.mayBeUnsaid() {
			continue
		}
		found := false
		for _, v := range file {
			found = found || v.UID == uid && v.Time.After(kill.At.Add(-time.Second)) // one is on all that is lost within a second
		}
		if !found && len(last) <= 100 {
			n.broken(remembered, "%s/%s was killed last at %s, and none of %d verdicts is on it", kill.Victim.Pod, kill.Victim.Container, kill.At.Sub(n.began), len(file))
		}
	}
}
