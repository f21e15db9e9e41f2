package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Decision is what the log says about a container.
type Decision struct {
	Pod, Namespace, UID string
	Class               memoryqos.QOSClass
	Container, ID       string
	Nodes               nodeset.Set
	Pinning             string
	// Affinity is the Topology Manager's result; nil if it was not asked, or the container was rejected.
	Affinity      *topologymanager.Hint `json:"-"`
	MemoryPolicy  MemoryPolicy
	OOMScore      *OOMScore `json:",omitempty"`
	PendingResize memorymanager.Request
	Request       pods.Estimate
	Values        memoryqos.Values
}

func (c *container) decision(now *derivedRun) *Decision {
	return &Decision{
		Pod: c.pod.Name, Namespace: c.pod.Namespace, UID: c.pod.UID, Class: c.pod.class(), Container: c.Name, ID: c.ID,
		Nodes: c.Nodes, Pinning: c.Pinning, MemoryPolicy: c.Policy.MemoryPolicy, OOMScore: c.OOMScore, PendingResize: c.PendingResize, Request: now.request, Values: now.values,
	}
}

// Fields returns the decision as log fields, whose names are stable. Sizes are exact in the JSON form.
func (d *Decision) Fields() map[string]any {
	fields := make(map[string]any, 16)
	fields["pod"], fields["namespace"], fields["uid"], fields["qosClass"] = d.Pod, d.Namespace, d.UID, d.Class
	fields["container"], fields["containerID"] = d.Container, d.ID
	fields["numaNodes"], fields["pinning"] = d.Nodes.String(), d.Pinning
	fields["memoryRequest"], fields["requestSource"] = quantity.Log(d.Request.Request), d.Request.Source
	if d.Affinity != nil {
		fields["preferred"] = d.Affinity.Preferred
	}
	if d.MemoryPolicy != (MemoryPolicy{}) {
		fields["memoryPolicy"] = d.MemoryPolicy.String()
	}
	if d.OOMScore != nil {
		fields["oomScoreAdj"], fields["oomScoreSource"] = d.OOMScore.Value, d.OOMScore.From
	}
	if d.Request.Error > 0 {
		fields["requestError"] = quantity.Log(d.Request.Error)
	}
	if len(d.PendingResize) > 0 {
		fields["pendingResize"] = quantity.Logged{Text: d.PendingResize.String(), Exact: d.PendingResize}
	}
	put := func(name string, value *uint64) {
		if value != nil {
			fields[name] = cgroup.Log(*value)
		}
	}
	put("memoryMin", d.Values.Min)
	put("memoryLow", d.Values.Low)
	put("memoryHigh", d.Values.High)
	put("memoryOOMGroup", d.Values.OOMGroup)
	return fields
}

// fields returns the log fields of a container.
func (l *Ledger) fields(c *container) map[string]any {
	now := l.deriveRun(c)
	return c.decision(&now).Fields()
}

// fields returns the log fields of a pod.
func (p *pod) fields() map[string]any {
	return map[string]any{"pod": p.Name, "namespace": p.Namespace, "uid": p.UID, "qosClass": p.class()}
}

func withField(fields map[string]any, name string, value any) map[string]any {
	fields[name] = value
	return fields
}
