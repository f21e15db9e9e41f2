package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Claim is a resource claim (Dynamic Resource Allocation). The scheduler has chosen the NUMA nodes, and its memory is allocated
// there from Prepare to Unprepare, whatever containers use it. It never changes; a new one takes its place.
type Claim struct {
	UID, Namespace, Name string
	// Pods are the UIDs of the pods that it is reserved for.
	Pods []string
	// Parts are its devices, in the order of its status.
	Parts []ClaimPart
}

// ClaimPart is what a claim has of one device, which is a NUMA node.
type ClaimPart struct {
	// Request is the name of the request in the claim.
	Request string
	Node    int
	Amounts memorymanager.Request
}

// String is namespace/name.
func (c *Claim) String() string { return c.Namespace + "/" + c.Name }

// ClaimNotPrepared is the reason of a container that names a claim that it cannot have.
var ClaimNotPrepared = memorymanager.NewReason("ClaimNotPrepared")

// hasClaims is why the Memory Manager does not place a container with claims.
const hasClaims = "its resource claims say where its memory is"

// PrepareClaim allocates a claim on its nodes. A claim that has its allocation keeps it. Err refuses one that does not fit.
type PrepareClaim struct{ Claim Claim }

func (e PrepareClaim) apply(l *Ledger) {
	known := l.state.Claims[e.Claim.UID]
	if known != nil && reflect.DeepEqual(known.Parts, e.Claim.Parts) {
		if slices.Equal(known.Pods, e.Claim.Pods) {
			return
		}
	} else if err := l.claimFits(&e.Claim); err != nil {
		l.step.effects.Err = fmt.Errorf("claim %s: %w", &e.Claim, err)
		return
	}
	l.setClaim(e.Claim.UID, &e.Claim)
	if known == nil {
		l.note(Info, "claim prepared", e.Claim.fields(), nil)
	}
}

// UnprepareClaim releases a claim's allocation. A claim that is not known has been released before.
type UnprepareClaim struct{ UID string }

func (e UnprepareClaim) apply(l *Ledger) {
	if known := l.state.Claims[e.UID]; known != nil {
		l.setClaim(e.UID, nil)
		l.note(Info, "claim released", known.fields(), nil)
	}
}

func (c *Claim) fields() map[string]any {
	return map[string]any{"claim": c.String(), "uid": c.UID, "numaNodes": nodesOfParts(c.Parts).String()}
}

// setClaim replaces a claim, nil ends it. Its containers are brought to it.
func (l *Ledger) setClaim(uid string, claim *Claim) {
	if claim == nil {
		delete(l.state.Claims, uid)
	} else {
		l.state.Claims[uid] = claim
	}
	l.step.effects.ClaimsChanged = true
	if err := l.takeNodes(l.resolved); err != nil {
		l.note(Error, "memory cannot be set aside for claims", nil, err)
	}
	for _, p := range l.living {
		for _, c := range p.containers {
			if c.alive() && c.uses(uid) {
				l.hasChanged(p)
				if claim != nil {
					_ = l.allocateByClaims(c) // refuses nothing that runs
				}
			}
		}
	}
}

// Claims are all claims that have an allocation, in the order of their UIDs.
func (l *Ledger) Claims() []Claim {
	claims := make([]Claim, 0, len(l.state.Claims))
	for _, uid := range slices.Sorted(maps.Keys(l.state.Claims)) {
		claims = append(claims, *l.state.Claims[uid])
	}
	return claims
}

// Claim returns a claim that has an allocation; nil is none.
func (l *Ledger) Claim(uid string) *Claim { return l.state.Claims[uid] }

// key is one type of memory on one node.
type key struct {
	node       int
	memoryType memorymanager.MemoryType
}

// claimed is what claims have, but for one of them.
func (l *Ledger) claimed(but string) map[key]uint64 {
	sums := map[key]uint64{}
	for uid, claim := range l.state.Claims {
		if uid == but {
			continue
		}
		for _, part := range claim.Parts {
			for _, amount := range part.Amounts {
				sums[key{part.Node, amount.Type}] += amount.Bytes
			}
		}
	}
	return sums
}

// claimFits compares a claim with what is neither another claim's nor a pod's. The scheduler has seen the share of an earlier
// moment, so that the share itself does not bound it.
func (l *Ledger) claimFits(claim *Claim) error {
	if claim.UID == "" || len(claim.Parts) == 0 {
		return errors.New("has no UID or no NUMA node")
	}
	used := l.claimed(claim.UID)
	for _, part := range claim.Parts {
		for _, amount := range part.Amounts {
			at := key{part.Node, amount.Type}
			whole, there := l.claimableOf(at)
			if !there {
				return fmt.Errorf("NUMA node %d has no %s for claims", at.node, at.memoryType)
			}
			left := whole - min(whole, used[at])
			if amount.Bytes > left {
				sizes := quantity.Apart(amount.Bytes, left)
				return fmt.Errorf("takes %s of %s on NUMA node %d, where claims have %s left", sizes[0], at.memoryType, at.node, sizes[1])
			}
			used[at] += amount.Bytes
		}
	}
	return nil
}

// claimableOf is what claims may have at most: what is allocatable and no pod has.
func (l *Ledger) claimableOf(at key) (uint64, bool) {
	if l.manager == nil {
		return 0, false
	}
	_, allocated, there := l.manager.Capacity(at.node, at.memoryType)
	has := allocatable(l.resolved, at)
	return has - min(has, allocated), there
}

// setAside is what a configuration keeps from pods without claims: what claims may have, and what they have where that is more, as
// far as the nodes have it.
func (l *Ledger) setAside(resolved config.Resolved) []config.Claimable {
	if len(resolved.Claimable) == 0 {
		return nil
	}
	claimed := l.claimed("")
	aside := make([]config.Claimable, 0, len(resolved.Claimable))
	for _, node := range resolved.Claimable {
		for at, bytes := range claimed {
			if at.node == node.Node {
				bytes = min(bytes, allocatable(resolved, at))
				node.Amounts = node.Amounts.AtLeast(memorymanager.Amount{Type: at.memoryType, Bytes: bytes})
			}
		}
		aside = append(aside, node)
	}
	return aside
}

// allocatable is what a node has under a configuration for claims and pods together.
func allocatable(resolved config.Resolved, at key) uint64 {
	for _, node := range resolved.Nodes {
		if node.ID == at.node {
			return node.Allocatable(at.memoryType)
		}
	}
	return 0
}

// noteLostClaims says where claims have more than their node, after memory was plugged out.
func (l *Ledger) noteLostClaims() {
	claimed := l.claimed("")
	for _, at := range slices.SortedFunc(maps.Keys(claimed), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.memoryType, b.memoryType))
	}) {
		if has := allocatable(l.resolved, at); claimed[at] > has {
			sizes := quantity.LogApart(claimed[at], has)
			l.note(Warn, "resource claims have more allocated on a node than it has",
				map[string]any{"node": at.node, "type": at.memoryType, "claimed": sizes[0], "has": sizes[1]}, nil)
		}
	}
}

// byClaims reports whether claims, and not the Memory Manager, say where a container's memory is.
func (c *container) byClaims() bool { return len(c.Claims) > 0 || c.TooManyClaims }

// uses reports whether a container names a part of a claim.
func (c *container) uses(claim string) bool {
	return slices.ContainsFunc(c.Claims, func(r ClaimRef) bool { return r.UID == claim })
}

// partsOf are the parts of claims that a container names. The error says why it cannot have them.
func (l *Ledger) partsOf(c *container) ([]ClaimPart, error) {
	if c.TooManyClaims {
		return nil, fmt.Errorf("it names more than %d devices of resource claims, by its CDI devices or by variables %s…: want at most %[1]d",
			MostClaimRefs, claimVariable)
	}
	var parts []ClaimPart
	for _, ref := range c.Claims {
		claim := l.state.Claims[ref.UID]
		switch {
		case claim == nil:
			return nil, fmt.Errorf("its resource claim %s is not prepared on this node", ref.UID)
		case !slices.Contains(claim.Pods, c.pod.UID):
			return nil, fmt.Errorf("the resource claim %s is not reserved for its pod", claim)
		case ref.Part >= len(claim.Parts):
			return nil, fmt.Errorf("the resource claim %s has no device %d", claim, ref.Part)
		}
		if other := l.otherUser(c.pod, ref.UID); other != nil {
			return nil, fmt.Errorf("the resource claim %s is in use by pod %s/%s: containers of one pod can share a claim, pods cannot", claim, other.Namespace, other.Name)
		}
		parts = append(parts, claim.Parts[ref.Part])
	}
	return parts, nil
}

// otherUser is another pod with a container that uses a claim; nil is none.
func (l *Ledger) otherUser(p *pod, claim string) *pod {
	known := l.state.Claims[claim]
	for _, uid := range known.Pods {
		other := l.pods[uid]
		if other == nil || other == p || len(other.users) == 0 {
			continue
		}
		for part := range known.Parts {
			if slices.ContainsFunc(other.users[ClaimRef{claim, part}], func(c *container) bool { return !c.Nodes.Empty() }) {
				return other
			}
		}
	}
	return nil
}

// allocateByClaims gives a container the nodes of its claims. The error refuses it.
func (l *Ledger) allocateByClaims(c *container) error {
	l.release(c)
	c.Placement = Placement{Nodes: c.Nodes, Pinning: "pinned by the kubelet"}
	if l.respect(c) {
		return nil
	}
	parts, err := l.partsOf(c)
	if err == nil {
		names, _, _ := l.claimsOf(c)
		c.Nodes, c.Pinning = nodesOfParts(parts), "pinned by resource claim "+strings.Join(names, " and ")
		return nil
	}
	c.Pinning = "not pinned: " + err.Error()
	if c.Phase != Creating { // what runs keeps the nodes that it has
		c.Nodes, _ = nodeset.Parse(c.FoundMems)
		return nil
	}
	c.Nodes = 0
	rejection := l.reject(c, ClaimNotPrepared, err, true)
	c.Unplaced = &rejection
	return err
}

// amountsOf is what a container's claims allocate for it alone: nil where it shares one with another living container of its
// pod, because nothing says how much of it is whose.
func (l *Ledger) amountsOf(c *container) memorymanager.Request {
	parts, err := l.partsOf(c)
	if err != nil || len(parts) == 0 {
		return nil
	}
	for _, ref := range c.Claims {
		if users := c.pod.users[ref]; len(users) > 1 || len(users) == 1 && users[0] != c {
			return nil
		}
	}
	var sums memorymanager.Request
	for _, part := range parts {
		for _, amount := range part.Amounts {
			sums = sums.AtLeast(memorymanager.Amount{Type: amount.Type, Bytes: sums.Of(amount.Type) + amount.Bytes})
		}
	}
	return sums
}

// claimedEstimate is the memory request of a container whose claims say it; false is one without.
func (l *Ledger) claimedEstimate(c *container) (pods.Estimate, bool) {
	if len(c.Claims) == 0 {
		return pods.Estimate{}, false
	}
	bytes := l.amountsOf(c).Of(memorymanager.Memory)
	if bytes > 0 && c.Limit > 0 {
		bytes = min(bytes, c.Limit)
	}
	return pods.Estimate{Request: bytes, Source: memoryqos.SourceClaim}, bytes > 0
}

// AboveClaim says how a container's memory limit is more than what its claims allocate for it; 0 is no limit.
func AboveClaim(limit, claimed uint64) string {
	if limit == 0 {
		return fmt.Sprintf("it has no memory limit, and its resource claims have %s", quantity.Short(claimed))
	}
	sizes := quantity.Apart(limit, claimed)
	return fmt.Sprintf("its memory limit of %s is above the %s that its resource claims have", sizes[0], sizes[1])
}

// joinClaims counts a container among those that use its claims.
func (c *container) joinClaims() {
	for _, ref := range c.Claims {
		if c.pod.users == nil {
			c.pod.users = map[ClaimRef][]*container{}
		}
		c.pod.users[ref] = append(c.pod.users[ref], c)
	}
}

// leaveClaims ends what joinClaims began.
func (c *container) leaveClaims() {
	for _, ref := range c.Claims {
		users := slices.DeleteFunc(c.pod.users[ref], func(user *container) bool { return user == c })
		if c.pod.users[ref] = users; len(users) == 0 {
			delete(c.pod.users, ref)
		}
	}
}

// claimBlocks are a container's claims as blocks, one for each node and type.
func claimBlocks(parts []ClaimPart) (blocks []memorymanager.Block) {
	for _, part := range parts {
		nodes := nodeset.Of(part.Node)
		for _, amount := range part.Amounts {
			i := slices.IndexFunc(blocks, func(b memorymanager.Block) bool { return b.Nodes == nodes && b.Type == amount.Type })
			if i < 0 {
				i, blocks = len(blocks), append(blocks, memorymanager.Block{Nodes: nodes, Type: amount.Type})
			}
			blocks[i].Size += amount.Bytes
		}
	}
	slices.SortFunc(blocks, func(a, b memorymanager.Block) int {
		return cmp.Or(strings.Compare(string(a.Type), string(b.Type)), cmp.Compare(a.Nodes, b.Nodes))
	})
	return onOneNode(blocks)
}

func nodesOfParts(parts []ClaimPart) (nodes nodeset.Set) {
	for _, part := range parts {
		nodes = nodes.Union(nodeset.Of(part.Node))
	}
	return nodes
}

// ClaimableView is what claims may have, and have, of one type of memory on a NUMA node.
type ClaimableView struct {
	Node int
	Type memorymanager.MemoryType
	// Capacity is the share, less what pods have of it from before there was one, and at least what claims have as far as the node
	// still has it; Claimed is what prepared claims have.
	Capacity, Claimed uint64
}

// claimableViews are sorted by node and type.
func (l *Ledger) claimableViews() (views []ClaimableView) {
	claimed := l.claimed("")
	for _, node := range l.resolved.Claimable {
		for _, amount := range node.Amounts {
			at := key{node.Node, amount.Type}
			most, _ := l.claimableOf(at)
			capacity := min(max(amount.Bytes, claimed[at]), most)
			views = append(views, ClaimableView{
				Node: at.node, Type: at.memoryType, Claimed: claimed[at], Capacity: capacity - capacity%config.ClaimStep(at.memoryType),
			})
		}
	}
	return views
}

// claimsOf are the names of a container's claims, and what they allocate for it alone.
func (l *Ledger) claimsOf(c *container) (names []string, amounts memorymanager.Request, blocks []memorymanager.Block) {
	for _, ref := range c.Claims {
		name := ref.UID
		if claim := l.state.Claims[ref.UID]; claim != nil {
			name = claim.String()
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	parts, err := l.partsOf(c)
	if err != nil || c.ByKubelet {
		return names, nil, nil
	}
	return names, l.amountsOf(c), claimBlocks(parts)
}
