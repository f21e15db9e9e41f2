package agent

import (
	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// fields name a pod in the log.
func (p *pod) fields() logrus.Fields {
	return logrus.Fields{"pod": p.Name, "namespace": p.Namespace, "uid": p.UID, "qosClass": p.class()}
}

// facts are what the log says of a decision about a container. They are taken under the lock and written outside of it.
type facts struct {
	pod, namespace, uid string
	class               memoryqos.QOSClass
	container, id       string
	nodes               nodeset.Set
	pinning             string
	short               memorymanager.Request
	request             podinfo.Estimate
	values              memoryqos.Values
}

func (c *container) facts() facts {
	return facts{
		pod: c.pod.Name, namespace: c.pod.Namespace, uid: c.pod.UID, class: c.pod.class(), container: c.name, id: c.id,
		nodes: c.nodes, pinning: c.pinning, short: c.short, request: c.request, values: c.effective(),
	}
}

// fields are the stable fields of a decision in the log.
func (f facts) fields() logrus.Fields {
	fields := make(logrus.Fields, 16)
	fields["pod"], fields["namespace"], fields["uid"], fields["qosClass"] = f.pod, f.namespace, f.uid, f.class
	fields["container"], fields["containerID"] = f.container, f.id
	fields["numaNodes"], fields["pinning"] = f.nodes.String(), f.pinning
	fields["memoryRequest"], fields["requestSource"] = f.request.Request, f.request.Source
	if f.request.Error > 0 {
		fields["requestError"] = f.request.Error
	}
	if len(f.short) > 0 {
		fields["short"] = f.short.String()
	}
	put := func(name string, value *uint64) {
		if value != nil {
			fields[name] = number(*value)
		}
	}
	put("memoryMin", f.values.Min)
	put("memoryLow", f.values.Low)
	put("memoryHigh", f.values.High)
	return fields
}

// fields name a container in the log.
func (c *container) fields() logrus.Fields { return c.facts().fields() }
