package status

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// short says of a container that was resized that it is allocated less than it asks for.
func (c *Container) short() string {
	if len(c.Short) == 0 {
		return ""
	}
	return fmt.Sprintf("%s that a resize asks for has no room on %s; until it has, the container may use %s",
		c.Short, c.AllocatedOn().Named(), c.Nodes.Named())
}

// remoteCPUs says where a container's exclusive CPUs are as seen from its memory: "2 of its 4 CPUs are on node 1, its memory
// on node 0: half of the CPUs are remote". It is empty for a container without exclusive CPUs or without an allocation.
func remoteCPUs(byNode map[int]int, memory nodeset.Set) string {
	var nodes, remote nodeset.Set
	all, far := 0, 0
	for id, n := range byNode {
		nodes = nodes.Union(nodeset.Of(id))
		if all += n; !memory.Has(id) {
			remote, far = remote.Union(nodeset.Of(id)), far+n
		}
	}
	switch {
	case all == 0 || memory.Empty():
		return ""
	case far == 0:
		return fmt.Sprintf("its CPUs (%d) are on %s, its memory on %s: none of the CPUs is remote", all, nodes.Named(), memory.Named())
	}
	verb := "are"
	if far == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of its %d CPUs %s on %s, its memory on %s: %s of the CPUs are remote", far, all, verb, remote.Named(), memory.Named(), share(far, all))
}

// share is a part for people.
func share(part, all int) string {
	switch {
	case part == all:
		return "all"
	case 2*part == all:
		return "half"
	}
	return fmt.Sprintf("%d %%", (200*part+all)/(2*all))
}
