package agent

import (
	"github.com/sirupsen/logrus"
)

// fields name a pod in the log.
func (p *pod) fields() logrus.Fields {
	return logrus.Fields{"pod": p.Name, "namespace": p.Namespace, "uid": p.UID, "qosClass": p.class()}
}

// fields are the stable fields of a decision in the log.
func (c *container) fields() logrus.Fields {
	fields := c.pod.fields()
	fields["container"] = c.name
	fields["containerID"] = c.id
	fields["numaNodes"] = c.nodes.String()
	fields["pinning"] = c.pinning
	fields["memoryRequest"] = c.request.Request
	fields["requestSource"] = c.request.Source
	if c.request.Error > 0 {
		fields["requestError"] = c.request.Error
	}
	for name, value := range map[string]*uint64{
		"memoryMin": c.wanted.Min, "memoryLow": c.wanted.Low, "memoryHigh": c.high(),
	} {
		if value != nil {
			fields[name] = *value
		}
	}
	return fields
}

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
