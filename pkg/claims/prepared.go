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

// Prepared are the claims that have an allocation, by UID.
type Prepared map[string]*Claim

// ErrTooMany is of a container that names more parts of claims than it may.
var ErrTooMany = fmt.Errorf("it names more than %d devices of resource claims, by its CDI devices or by variables %s…: want at most %[1]d",
	MostRefs, variablePrefix)

// List are the claims in the order of their UIDs.
func (p Prepared) List() []Claim {
	list := make([]Claim, 0, len(p))
	for _, uid := range slices.Sorted(maps.Keys(p)) {
		list = append(list, *p[uid])
	}
	return list
}

// UIDs are the claims that a container names, each once.
func UIDs(refs []Ref) (uids []string) {
	for _, ref := range refs {
		if !slices.Contains(uids, ref.UID) {
			uids = append(uids, ref.UID)
		}
	}
	return uids
}

// Unreserved are the claims that a container names and that are not reserved for its pod.
func (p Prepared) Unreserved(refs []Ref, podUID string) (all []Claim) {
	for _, uid := range UIDs(refs) {
		if claim := p[uid]; claim != nil && !slices.Contains(claim.Pods, podUID) {
			all = append(all, *claim)
		}
	}
	return all
}

// For says why a claim is not a pod's; nil where it is.
func (p Prepared) For(uid, podUID string) error {
	switch claim := p[uid]; {
	case claim == nil:
		return fmt.Errorf("its resource claim %s is not prepared on this node", uid)
	case !slices.Contains(claim.Pods, podUID):
		return fmt.Errorf("the resource claim %s is not reserved for its pod", claim)
	}
	return nil
}

// Parts are those that a container names of claims that are its pod's.
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

// Names are the claims that a container names, each once, by namespace and name; by UID where a claim is not prepared.
func (p Prepared) Names(refs []Ref) (names []string) {
	for _, uid := range UIDs(refs) {
		if claim := p[uid]; claim != nil {
			uid = claim.String()
		}
		names = append(names, uid)
	}
	return names
}

// Kind is one type of memory on one NUMA node.
type Kind struct {
	Node int
	Type memorymanager.MemoryType
}

// Sums are bytes by node and type.
type Sums map[Kind]uint64

func (s Sums) add(parts []Part) {
	for _, part := range parts {
		for _, amount := range part.Amounts {
			s[Kind{part.Node, amount.Type}] += amount.Bytes
		}
	}
}

// Claimed is what all claims but one have; "" leaves out none.
func (p Prepared) Claimed(but string) Sums {
	sums := Sums{}
	for uid, claim := range p {
		if uid != but {
			sums.add(claim.Parts)
		}
	}
	return sums
}

// Fits compares a claim with what is neither another claim's nor a pod's. The scheduler has seen the share of an earlier moment, so
// that the share itself does not bound it.
func (p Prepared) Fits(claim *Claim, from Supply) error {
	if claim.UID == "" || len(claim.Parts) == 0 {
		return errors.New("has no UID or no NUMA node")
	}
	used := p.Claimed(claim.UID)
	for _, part := range claim.Parts {
		for _, amount := range part.Amounts {
			at := Kind{part.Node, amount.Type}
			whole, there := from.most(at)
			if !there {
				return fmt.Errorf("NUMA node %d has no %s for claims", at.Node, at.Type)
			}
			left := whole - min(whole, used[at])
			if amount.Bytes > left {
				sizes := quantity.Apart(amount.Bytes, left)
				return fmt.Errorf("takes %s of %s on NUMA node %d, where claims have %s left", sizes[0], at.Type, at.Node, sizes[1])
			}
			used[at] += amount.Bytes
		}
	}
	return nil
}

// SetAside is what is kept from pods without claims: the share, and what claims have where that is more, as far as the nodes have it.
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

// Excesses are where claims have more than the Capacity of their NUMA node, after memory was plugged out, sorted by node and type.
func (p Prepared) Excesses(nodes []memorymanager.NodeCapacity) (all []Capacity) {
	for at, claimed := range p.Claimed("") {
		if has := allocatable(nodes, at); claimed > has {
			all = append(all, Capacity{at.Node, at.Type, has, claimed})
		}
	}
	slices.SortFunc(all, func(a, b Capacity) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Type, b.Type)) })
	return all
}

// Capacities are sorted by node and type.
func (p Prepared) Capacities(from Supply) (all []Capacity) {
	claimed := p.Claimed("")
	for _, node := range from.Claimable {
		for _, amount := range node.Amounts {
			at := Kind{node.Node, amount.Type}
			most, _ := from.most(at)
			capacity := min(max(amount.Bytes, claimed[at]), most)
			all = append(all, Capacity{Node: at.Node, Type: at.Type, Claimed: claimed[at], Capacity: capacity - capacity%Step(at.Type)})
		}
	}
	return all
}
