package claims

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Prepared are the allocated claims, by UID.
type Prepared map[string]*Claim

// ErrTooMany refuses a container that names more parts of claims than allowed.
var ErrTooMany = fmt.Errorf("it names more than %d devices of resource claims, by its CDI devices or by variables %s…: want at most %[1]d",
	MaxRefs, variablePrefix)

// List returns the claims, sorted by UID.
func (p Prepared) List() []Claim {
	list := make([]Claim, 0, len(p))
	for _, uid := range slices.Sorted(maps.Keys(p)) {
		list = append(list, *p[uid])
	}
	return list
}

// UIDs returns the claims that a container names, each once.
func UIDs(refs []Ref) (uids []string) {
	for _, ref := range refs {
		if !slices.Contains(uids, ref.UID) {
			uids = append(uids, ref.UID)
		}
	}
	return uids
}

// Unreserved returns the claims that a container names and that are not reserved for its pod.
func (p Prepared) Unreserved(refs []Ref, podUID string) (all []Claim) {
	for _, uid := range UIDs(refs) {
		if claim := p[uid]; claim != nil && !slices.Contains(claim.Pods, podUID) {
			all = append(all, *claim)
		}
	}
	return all
}

// CheckReserved returns an error if a claim is not prepared, or not reserved for a pod.
func (p Prepared) CheckReserved(uid, podUID string) error {
	switch claim := p[uid]; {
	case claim == nil:
		return fmt.Errorf("its resource claim %s is not prepared on this node", uid)
	case !slices.Contains(claim.Pods, podUID):
		return fmt.Errorf("the resource claim %s is not reserved for its pod", claim)
	}
	return nil
}

// Parts returns the parts that a container names. Their claims must be prepared.
func (p Prepared) Parts(refs []Ref) ([]Part, error) {
	parts := make([]Part, 0, len(refs))
	for _, ref := range refs {
		claim := p[ref.UID]
		if ref.Part >= len(claim.Parts) {
			return nil, fmt.Errorf("the resource claim %s has no device %d", claim, ref.Part)
		}
		parts = append(parts, claim.Parts[ref.Part])
	}
	return parts, nil
}

// Names returns the claims that a container names, each once, as namespace/name; by UID if a claim is not prepared.
func (p Prepared) Names(refs []Ref) (names []string) {
	for _, uid := range UIDs(refs) {
		if claim := p[uid]; claim != nil {
			uid = claim.String()
		}
		names = append(names, uid)
	}
	return names
}

// NodeType is one type of memory on one NUMA node.
type NodeType struct {
	Node int
	Type memorymanager.MemoryType
}

// Compare orders by node, then by type.
func (a NodeType) Compare(b NodeType) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Type, b.Type))
}

// Sums are bytes by node and type.
type Sums map[NodeType]uint64

func (s Sums) add(parts []Part) {
	for _, part := range parts {
		for _, amount := range part.Amounts {
			s[NodeType{part.Node, amount.Type}] += amount.Bytes
		}
	}
}

// Claimed returns what all claims except one have; "" excludes none.
func (p Prepared) Claimed(except string) Sums {
	sums := Sums{}
	for uid, claim := range p {
		if uid != except {
			sums.add(claim.Parts)
		}
	}
	return sums
}

// Fits returns an error if a claim needs more than other claims and pods leave. The share is no limit here, because the scheduler has seen
// the share of an earlier moment.
func (p Prepared) Fits(claim *Claim, from Supply) error {
	if claim.UID == "" || len(claim.Parts) == 0 {
		return errors.New("has no UID or no NUMA node")
	}
	used := p.Claimed(claim.UID)
	for _, part := range claim.Parts {
		for _, amount := range part.Amounts {
			at := NodeType{part.Node, amount.Type}
			available, there := from.available(at)
			if !there {
				return fmt.Errorf("NUMA node %d has no %s for claims", at.Node, at.Type)
			}
			left := available - min(available, used[at])
			if amount.Bytes > left {
				sizes := quantity.Apart(amount.Bytes, left)
				return fmt.Errorf("takes %s of %s on NUMA node %d, where claims have %s left", sizes[0], at.Type, at.Node, sizes[1])
			}
			used[at] += amount.Bytes
		}
	}
	return nil
}

// Reserved returns what pods without claims may not use: the share, or what claims have if that is more, up to what the nodes have.
func (p Prepared) Reserved(claimable []Claimable, nodes []memorymanager.NodeCapacity) []Claimable {
	if len(claimable) == 0 {
		return nil
	}
	claimed := p.Claimed("")
	reserved := make([]Claimable, 0, len(claimable))
	for _, node := range claimable {
		for at, bytes := range claimed {
			if at.Node == node.Node {
				bytes = min(bytes, allocatable(nodes, at))
				node.Amounts = node.Amounts.AtLeast(memorymanager.Amount{Type: at.Type, Bytes: bytes})
			}
		}
		reserved = append(reserved, node)
	}
	return reserved
}

// Capacities returns what claims may have and have, sorted by node and type. Claims may have more than the node has for them (Capacity):
// memory was unplugged, or the configuration no longer has the node for claims.
func (p Prepared) Capacities(from Supply) (all []Capacity) {
	claimed, shares := p.Claimed(""), Sums{}
	for at := range claimed {
		shares[at] = 0
	}
	for _, node := range from.Claimable {
		for _, amount := range node.Amounts {
			shares[NodeType{node.Node, amount.Type}] = amount.Bytes
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(shares), NodeType.Compare) {
		available, _ := from.available(at)
		capacity := min(max(shares[at], claimed[at]), available)
		all = append(all, Capacity{Node: at.Node, Type: at.Type, Claimed: claimed[at], Capacity: capacity - capacity%Step(at.Type)})
	}
	return all
}
