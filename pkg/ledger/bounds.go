package ledger

import "fmt"

// The runtime's data about a pod is kept as long as the pod lives, so its size is bounded.
const (
	// maxNameLength is the longest name that the API server admits, in bytes. UIDs and the runtime's ids are shorter.
	maxNameLength = 253
	// maxContainers is more than any useful pod has, including ended containers that keep their allocation.
	maxContainers = 4096
)

// checkNames refuses a name that is longer than Kubernetes allows.
func checkNames(what string, names ...[2]string) error {
	for _, n := range names {
		if len(n[1]) > maxNameLength {
			return fmt.Errorf("%s: its %s %.20q… has %d bytes, want at most %d", what, n[0], n[1], len(n[1]), maxNameLength)
		}
	}
	return nil
}

// check refuses a pod whose names Kubernetes would not allow.
func (p Pod) check() error {
	return checkNames("a pod", [2]string{"id", p.ID}, [2]string{"UID", p.UID}, [2]string{"namespace", p.Namespace}, [2]string{"name", p.Name})
}

// check refuses a container if its names are too long, or if the pod has too many containers and this is a new one.
func (p *pod) check(c Container) error {
	if err := checkNames("a container", [2]string{"id", c.ID}, [2]string{"name", c.Name}); err != nil {
		return err
	}
	if len(p.containers) >= maxContainers && p.container(c.Name) == nil {
		return fmt.Errorf("its pod has %d containers, want at most %d", len(p.containers)+1, maxContainers)
	}
	return nil
}
