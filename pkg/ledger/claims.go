package ledger

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// ClaimNotPrepared is the reason of a container that names a claim that it cannot have.
var ClaimNotPrepared = memorymanager.NewReason("ClaimNotPrepared")

// hasClaims is why the Memory Manager does not place a container with claims.
const hasClaims = "its resource claims say where its memory is"

// PrepareClaim allocates a claim on its nodes. A claim that has its allocation keeps it. Err refuses one that does not fit.
type PrepareClaim struct{ Claim claims.Claim }

func (e PrepareClaim) apply(l *Ledger) {
	known := l.state.Claims[e.Claim.UID]
	if known != nil && reflect.DeepEqual(known.Parts, e.Claim.Parts) {
		if slices.Equal(known.Pods, e.Claim.Pods) {
			return
		}
	} else if err := l.state.Claims.Fits(&e.Claim, l.roomForClaims()); err != nil {
		l.step.effects.Err = fmt.Errorf("claim %s: %w", &e.Claim, err)
		return
	}
	l.setClaim(e.Claim.UID, &e.Claim)
	if known == nil {
		l.note(Info, "claim prepared", claimFields(&e.Claim), nil)
	}
}

// UnprepareClaim releases a claim's allocation. A claim that is not known has been released before.
type UnprepareClaim struct{ UID string }

func (e UnprepareClaim) apply(l *Ledger) {
	if known := l.state.Claims[e.UID]; known != nil {
		l.setClaim(e.UID, nil)
		l.note(Info, "claim released", claimFields(known), nil)
	}
}

func claimFields(c *claims.Claim) map[string]any {
	return map[string]any{"claim": c.String(), "uid": c.UID, "numaNodes": claims.Nodes(c.Parts).String()}
}

// setClaim replaces a claim, nil ends it. Its containers are brought to it.
func (l *Ledger) setClaim(uid string, claim *claims.Claim) {
	if claim == nil {
		delete(l.state.Claims, uid)
	} else {
		l.state.Claims[uid] = claim
	}
	l.generation++ // a view shows them
	if err := l.takeNodes(l.state.Resolved); err != nil {
		l.note(Error, "memory cannot be set aside for claims", nil, err)
	}
	for _, p := range l.living {
		for _, c := range p.containers {
			if c.alive() && c.uses(uid) {
				l.hasChanged(p)
				if claim != nil {
					_ = l.placeByClaims(c) // refuses nothing that runs
				}
			}
		}
	}
}

// Claims are all claims that have an allocation, in the order of their UIDs.
func (l *Ledger) Claims() []claims.Claim { return l.state.Claims.List() }

// roomForClaims is what claims may have under the configuration in force.
func (l *Ledger) roomForClaims() claims.Room {
	return claims.Room{Nodes: l.state.Resolved.Nodes, Claimable: l.state.Resolved.Claimable, Pods: l.manager}
}

// noteLostClaims says where claims have more than their node, after memory was plugged out.
func (l *Ledger) noteLostClaims() {
	for _, over := range l.state.Claims.Excesses(l.state.Resolved.Nodes) {
		sizes := quantity.LogApart(over.Claimed, over.Capacity)
		l.note(Warn, "resource claims have more allocated on a node than it has",
			map[string]any{"node": over.Node, "type": over.Type, "claimed": sizes[0], "has": sizes[1]}, nil)
	}
}

// byClaims reports whether claims, and not the Memory Manager, say where a container's memory is.
func (c *container) byClaims() bool { return len(c.Claims) > 0 || c.TooManyClaims }

// uses reports whether a container names a part of a claim.
func (c *container) uses(claim string) bool {
	return slices.ContainsFunc(c.Claims, func(r claims.Ref) bool { return r.UID == claim })
}

// partsOf are the parts of claims that a container names. The error says why it cannot have them.
func (l *Ledger) partsOf(c *container) ([]claims.Part, error) {
	if c.TooManyClaims {
		return nil, claims.ErrTooMany
	}
	var parts []claims.Part
	for _, ref := range c.Claims {
		part, err := l.state.Claims.Part(ref, c.pod.UID)
		if err != nil {
			return nil, err
		}
		if other := l.otherUser(c.pod, ref.UID); other != nil {
			return nil, l.state.Claims.InUse(ref, other.Namespace, other.Name)
		}
		parts = append(parts, part)
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
			if slices.ContainsFunc(other.users[claims.Ref{UID: claim, Part: part}], func(c *container) bool { return !c.Nodes.Empty() }) {
				return other
			}
		}
	}
	return nil
}

// placeByClaims gives a container the nodes of its claims. The error refuses it.
func (l *Ledger) placeByClaims(c *container) error {
	if l.unpin(c, "pinned by the kubelet") {
		return nil
	}
	parts, err := l.partsOf(c)
	if err == nil {
		c.Nodes, c.Pinning = claims.Nodes(parts), "pinned by resource claim "+strings.Join(l.state.Claims.Names(c.Claims), " and ")
		return nil
	}
	c.Pinning = "not pinned: " + err.Error()
	if c.Phase != Creating { // what runs keeps the nodes that it has
		c.Nodes, _ = nodeset.Parse(c.FoundMems)
		return nil
	}
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
	return claims.Sum(parts)
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

// joinClaims counts a container among those that use its claims.
func (c *container) joinClaims() {
	for _, ref := range c.Claims {
		if c.pod.users == nil {
			c.pod.users = map[claims.Ref][]*container{}
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

// claimsOf are the names of a container's claims, and what they allocate for it alone.
func (l *Ledger) claimsOf(c *container) (names []string, amounts memorymanager.Request, blocks []memorymanager.Block) {
	names = l.state.Claims.Names(c.Claims)
	parts, err := l.partsOf(c)
	if err != nil || c.ByKubelet {
		return names, nil, nil
	}
	return names, l.amountsOf(c), claims.Blocks(parts)
}
