package memoryqos

import "fmt"

// Kind is how long a container runs within its pod, and so how its request counts there. It is the same for memory and its
// placement.
type Kind int

const (
	// App is an ordinary container.
	App Kind = iota
	// Init is an init container that ends before the next one starts.
	Init
	// Sidecar is a restartable init container: it stays.
	Sidecar
	// Ephemeral is a debugging container: it adds nothing to its pod.
	Ephemeral
)

// String returns "app", "init", "sidecar" or "ephemeral".
func (k Kind) String() string {
	switch k {
	case Init:
		return "init"
	case Sidecar:
		return "sidecar"
	case Ephemeral:
		return "ephemeral"
	}
	return "app"
}

// MarshalText returns the kind's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a kind's name.
func (k *Kind) UnmarshalText(name []byte) error {
	for kind := App; kind <= Ephemeral; kind++ {
		if kind.String() == string(name) {
			*k = kind
			return nil
		}
	}
	return fmt.Errorf("kind %q: want app, init, sidecar or ephemeral", name)
}

// Peak is what a pod needs of one resource at one time, Kubernetes' aggregate over its containers: apps and sidecars together,
// or the peak while the init containers run one after the other beside the sidecars that started before them. Containers are
// added in the order of the pod's spec. The zero value is a pod without containers. Sums saturate.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
type Peak struct {
	apps, sidecars uint64
	init           uint64 // the largest sum beside an init container
}

// Add adds a container. Ephemeral ones have no resources of their own.
func (p *Peak) Add(kind Kind, bytes uint64) {
	switch kind {
	case App:
		p.apps = add(p.apps, bytes)
	case Sidecar:
		p.sidecars = add(p.sidecars, bytes)
	case Init:
		p.init = max(p.init, add(p.sidecars, bytes))
	}
}

// Bytes is the sum, or the peak where that is larger.
func (p Peak) Bytes() uint64 { return max(add(p.apps, p.sidecars), p.init) }
