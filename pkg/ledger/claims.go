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

// ClaimNotPrepared is the reason when a container names a claim that it cannot use.
var ClaimNotPrepared = memorymanager.NewReason("ClaimNotPrepared")

// placedByClaims is the reason why the Memory Manager does not place a container that has claims.
const placedByClaims = "its resource claims say where its memory is"

// PrepareClaim allocates a claim on its nodes. A claim that is allocated already keeps its allocation. Err is set if the claim does not
// fit. Err is also set if a living container uses the claim and the claim has changed or is no longer reserved for its pod.
type PrepareClaim struct{ Claim claims.Claim }

func (e PrepareClaim) apply(l *Ledger) {
	prepared := l.state.Claims[e.Claim.UID]
	sameParts := prepared != nil && reflect.DeepEqual(prepared.Parts, e.Claim.Parts)
	if sameParts && slices.Equal(prepared.Pods, e.Claim.Pods) {
		return
	}
	if user := l.claimUser(e.Claim.UID); user != nil && !(sameParts && slices.Contains(e.Claim.Pods, user.UID)) {
		l.step.effects.Err = inUse(prepared, user)
		return
	}
	if !sameParts {
		if err := l.state.Claims.Fits(&e.Claim, l.claimSupply()); err != nil {
			l.step.effects.Err = fmt.Errorf("claim %s: %w", &e.Claim, err)
			return
		}
	}
	l.setClaim(e.Claim.UID, &e.Claim)
	if prepared == nil {
		l.note(Info, "claim prepared", claimFields(&e.Claim), nil)
	}
}

// UnprepareClaim releases a claim's allocation; an unknown claim has been released before. Err is set if a living container uses the claim.
type UnprepareClaim struct{ UID string }

func (e UnprepareClaim) apply(l *Ledger) {
	prepared := l.state.Claims[e.UID]
	if prepared == nil {
		return
	}
	if user := l.claimUser(e.UID); user != nil {
		l.step.effects.Err = inUse(prepared, user)
		return
	}
	l.setClaim(e.UID, nil)
	l.note(Info, "claim released", claimFields(prepared), nil)
}

// claimUser returns the pod whose living containers use a claim, or nil. A claim in use does not change: after a forced deletion the API
// server has forgotten the pod, but its containers run on for their grace period.
func (l *Ledger) claimUser(uid string) *pod {
	if claim := l.state.Claims[uid]; claim != nil {
		for part := range claim.Parts {
			if used := l.used[claims.Ref{UID: uid, Part: part}]; used.by != nil {
				return used.by
			}
		}
	}
	return nil
}

func inUse(claim *claims.Claim, by *pod) error {
	return fmt.Errorf("the resource claim %s is in use by pod %s/%s", claim, by.Namespace, by.Name)
}

func claimFields(c *claims.Claim) map[string]any {
	return map[string]any{"claim": c.String(), "uid": c.UID, "numaNodes": claims.Nodes(c.Parts).String()}
}

// setClaim replaces a claim; nil removes it.
func (l *Ledger) setClaim(uid string, claim *claims.Claim) {
	if claim == nil {
		delete(l.state.Claims, uid)
	} else {
		l.state.Claims[uid] = claim
	}
	if err := l.setNodeMap(l.state.Resolved); err != nil {
		l.note(Error, "memory cannot be set aside for claims", nil, err)
	}
	l.placeWaiting()
}

// placeWaiting places living containers again that wait for claims. It is not called when a container ends: its next run would find them in use.
func (l *Ledger) placeWaiting() {
	for _, p := range l.living {
		for _, c := range p.containers {
			if !c.alive() || c.HasClaims || len(c.Claims) == 0 {
				continue
			}
			if _, err := l.resolveClaims(c); err == nil || c.Phase != Creating { // in a dry run, its refusal has been counted
				l.change(p)
				_ = l.place(c) // a running container is never refused
			}
		}
	}
}

// Claims returns all allocated claims, sorted by UID.
func (l *Ledger) Claims() []claims.Claim { return l.state.Claims.List() }

// claimSupply returns what claims can be allocated from under the current configuration.
func (l *Ledger) claimSupply() claims.Supply {
	resolved := l.state.Resolved
	nodes := resolved.Nodes
	if len(resolved.ClaimNodes) > 0 {
		nodes = slices.Concat(nodes, claims.WithReserved(resolved.ClaimNodes, l.limitsWithoutClaims()))
	}
	return claims.Supply{Nodes: nodes, Claimable: resolved.Claimable, Pods: l.manager}
}

// limitsWithoutClaims returns the limits of memory and huge pages of containers that name no claims, on each of their NUMA nodes. The kubelet
// can put a container on a node that only claims may use, and it can be there since before the node was one of these.
func (l *Ledger) limitsWithoutClaims() (limits []claims.Claimable) {
	for _, p := range l.living {
		for _, c := range p.containers {
			if !c.alive() || c.byClaims() { // without its claim, if the record of that was lost: it is prepared again
				continue
			}
			for id := range c.Nodes.All() {
				limits = append(limits, claims.Claimable{Node: id, Amounts: request(c).AtLeast(memorymanager.Amount{Type: memorymanager.Memory, Bytes: c.Limit})})
			}
		}
	}
	return limits
}

// noteLostClaims logs where claims have more than a node has for them.
func (l *Ledger) noteLostClaims() {
	supply := l.claimSupply()
	for _, c := range l.state.Claims.Capacities(supply) {
		if c.Claimed <= c.Capacity {
			continue
		}
		text, sizes := "resource claims have more allocated on a node than it has for them", quantity.LogApart(c.Claimed, c.Capacity)
		if l.allNodes.Has(c.Node) && !slices.ContainsFunc(supply.Nodes, func(n memorymanager.NodeCapacity) bool { return n.ID == c.Node }) {
			text = "the configuration no longer has this NUMA node for resource claims: the claims prepared before keep its memory until their pods end"
		}
		var names []string
		for _, claim := range l.Claims() {
			if claims.Nodes(claim.Parts).Has(c.Node) {
				names = append(names, claim.String())
			}
		}
		l.note(Warn, text, map[string]any{"node": c.Node, "type": c.Type, "claimed": sizes[0], "has": sizes[1], "claims": strings.Join(names, ", ")}, nil)
	}
}

// byClaims reports whether claims decide where a container's memory is, and not the Memory Manager.
func (c *container) byClaims() bool { return len(c.Claims) > 0 || c.TooManyClaims }

// namesClaim reports whether a container names a part of a claim.
func (c *container) namesClaim(claim string) bool {
	return slices.ContainsFunc(c.Claims, func(r claims.Ref) bool { return r.UID == claim })
}

// claimGrant is what a container gets from the resource claims that it names. The claims do not change while it has them.
type claimGrant struct {
	names   []string // of all claims that it names, as NAMESPACE/NAME
	nodes   nodeset.Set
	amounts memorymanager.Request
	blocks  []memorymanager.Block
}

// use counts the living containers of a pod that use a part of a claim.
type use struct {
	by         *pod
	containers int
}

// grantClaims records what a container gets from its claims. If granted, their parts are marked as in use.
func (l *Ledger) grantClaims(c *container, has claimGrant, granted bool) {
	if c.grant, c.HasClaims = has, granted; !granted {
		return
	}
	for _, ref := range c.Claims {
		l.used[ref] = use{c.pod, l.used[ref].containers + 1}
	}
}

// resolveClaims returns what a container gets from the claims that it names, or why it cannot have them. Once granted, the result stays the
// same until the container ends.
func (l *Ledger) resolveClaims(c *container) (claimGrant, error) {
	if c.HasClaims {
		return c.grant, nil
	}
	has := claimGrant{names: l.state.Claims.Names(c.Claims)}
	if c.TooManyClaims {
		return has, claims.ErrTooMany
	}
	for _, uid := range claims.UIDs(c.Claims) {
		if user := l.claimUser(uid); user != nil && user != c.pod {
			return has, fmt.Errorf("%w: containers of one pod can share a claim, pods cannot", inUse(l.state.Claims[uid], user))
		}
		if err := l.state.Claims.CheckReserved(uid, c.pod.UID); err != nil {
			return has, err
		}
	}
	parts, err := l.state.Claims.Parts(c.Claims)
	if err == nil {
		has.nodes, has.amounts, has.blocks = claims.Nodes(parts), claims.Sum(parts), claims.Blocks(parts)
	}
	return has, err
}

// releaseClaims reverts grantClaims.
func (l *Ledger) releaseClaims(c *container) {
	if c.HasClaims {
		for _, ref := range c.Claims {
			if left := l.used[ref].containers - 1; left > 0 {
				l.used[ref] = use{c.pod, left}
			} else {
				delete(l.used, ref)
			}
		}
	}
	c.HasClaims, c.grant = false, claimGrant{}
}

// decideByClaims puts a container on the nodes of its claims. An error refuses the container.
func (l *Ledger) decideByClaims(c *container) (assignment, error) {
	has, err := l.resolveClaims(c)
	decided := assignment{Placement: l.unpin(c, "pinned by the kubelet"), granted: err == nil}
	if !c.HasClaims {
		decided.claims = &has
	}
	switch as := &decided.Placement; {
	case err == nil && (!as.ByKubelet || as.Nodes == has.nodes): // a lost journal makes nodes of ours look like the kubelet's
		as.Nodes, as.ByKubelet, as.Pinning = has.nodes, false, "pinned by resource claim "+strings.Join(has.names, " and ")
	case as.ByKubelet:
	case c.Phase != Creating: // a running container keeps its nodes
		as.Nodes, _ = nodeset.Parse(c.FoundMems)
		as.Pinning = "not pinned: " + err.Error()
	default:
		as.Pinning = "not pinned: " + err.Error()
		as.Unplaced = l.reject(c, cause{reason: ClaimNotPrepared, text: err.Error()}, true)
		return decided, err
	}
	return decided, nil
}

// ownAmounts returns what a container's claims allocate for it alone. It returns nil if another living container of the pod shares one of
// the claims, because nothing says how to divide it. It stops at the first shared part, so that all containers together look at each part
// once.
func (l *Ledger) ownAmounts(c *container) memorymanager.Request {
	if !c.HasClaims {
		return nil
	}
	for _, ref := range c.Claims {
		if l.used[ref].containers > 1 {
			return nil
		}
	}
	return c.grant.amounts
}

// mappedMemory returns the memory of a container's own claims that counts as its pod's request beside the requests of the containers
// (KEP-5517).
func (l *Ledger) mappedMemory(c *container) (bytes uint64) {
	own := l.ownAmounts(c).Of(memorymanager.Memory)
	if own == 0 || c.pod.Info == nil {
		return 0
	}
	for _, name := range c.grant.names {
		bytes += c.pod.Info.Mapped[strings.TrimPrefix(name, c.pod.Namespace+"/")]
	}
	return min(bytes, own) // devices of other drivers may be in the same claim
}

// claimedEstimate returns the memory request that follows from a container's claims; false if it has no memory claimed for itself. Without
// mapped memory the request of its spec stands for the same memory.
func (l *Ledger) claimedEstimate(c *container) (pods.Estimate, bool) {
	bytes := l.ownAmounts(c).Of(memorymanager.Memory)
	if l.mappedMemory(c) > 0 {
		spec, _ := c.pod.Info.Container(c.Name)
		bytes += spec.Request
	}
	if bytes > 0 && c.Limit > 0 {
		bytes = min(bytes, c.Limit)
	}
	return pods.Estimate{Request: bytes, Source: memoryqos.SourceClaim}, bytes > 0
}
