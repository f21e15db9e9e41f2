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

// PrepareClaim allocates a claim on its nodes. A claim that has its allocation keeps it. Err refuses one that does not fit, or that a
// living container of a pod has for which it is not reserved any more.
type PrepareClaim struct{ Claim claims.Claim }

func (e PrepareClaim) apply(l *Ledger) {
	known := l.state.Claims[e.Claim.UID]
	same := known != nil && reflect.DeepEqual(known.Parts, e.Claim.Parts)
	if same && slices.Equal(known.Pods, e.Claim.Pods) {
		return
	}
	if user := l.claimUser(e.Claim.UID); user != nil && !(same && slices.Contains(e.Claim.Pods, user.UID)) {
		l.step.effects.Err = inUse(known, user)
		return
	}
	if !same {
		if err := l.state.Claims.Fits(&e.Claim, l.claimSupply()); err != nil {
			l.step.effects.Err = fmt.Errorf("claim %s: %w", &e.Claim, err)
			return
		}
	}
	l.setClaim(e.Claim.UID, &e.Claim)
	if known == nil {
		l.note(Info, "claim prepared", claimFields(&e.Claim), nil)
	}
}

// UnprepareClaim releases a claim's allocation. A claim that is not known has been released before. Err refuses one that a living
// container has.
type UnprepareClaim struct{ UID string }

func (e UnprepareClaim) apply(l *Ledger) {
	known := l.state.Claims[e.UID]
	if known == nil {
		return
	}
	if user := l.claimUser(e.UID); user != nil {
		l.step.effects.Err = inUse(known, user)
		return
	}
	l.setClaim(e.UID, nil)
	l.note(Info, "claim released", claimFields(known), nil)
}

// claimUser is the pod of the living containers that have a claim; nil is none. The claim stays as it is until they have ended: after a
// forced deletion the API server has forgotten a pod whose containers run for their grace period.
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

// setClaim replaces a claim, nil ends it. Containers that have lacked it are brought to it.
func (l *Ledger) setClaim(uid string, claim *claims.Claim) {
	if claim == nil {
		delete(l.state.Claims, uid)
	} else {
		l.state.Claims[uid] = claim
	}
	if err := l.takeNodes(l.state.Resolved); err != nil {
		l.note(Error, "memory cannot be set aside for claims", nil, err)
	}
	for _, p := range l.living {
		for _, c := range p.containers {
			if c.alive() && !c.HasClaims && c.names(uid) {
				l.change(p)
				_ = l.place(c) // refuses nothing that runs
			}
		}
	}
}

// Claims are all claims that have an allocation, in the order of their UIDs.
func (l *Ledger) Claims() []claims.Claim { return l.state.Claims.List() }

// claimSupply is what claims may have under the configuration in force.
func (l *Ledger) claimSupply() claims.Supply {
	return claims.Supply{Nodes: l.state.Resolved.Nodes, Claimable: l.state.Resolved.Claimable, Pods: l.manager}
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

// names reports whether a container names a part of a claim.
func (c *container) names(claim string) bool {
	return slices.ContainsFunc(c.Claims, func(r claims.Ref) bool { return r.UID == claim })
}

// judged is what a container has of what it names of resource claims. It follows from claims that do not change while it has them.
type judged struct {
	names   []string // of all that it names, as NAMESPACE/NAME
	nodes   nodeset.Set
	amounts memorymanager.Request
	blocks  []memorymanager.Block
}

// use is how many living containers of a pod have a part of a claim.
type use struct {
	by         *pod
	containers int
}

// takeClaims gives a container what was judged that it has of its claims, if they are granted.
func (l *Ledger) takeClaims(c *container, has judged, granted bool) {
	if c.judged, c.HasClaims = has, granted; !granted {
		return
	}
	for _, ref := range c.Claims {
		l.used[ref] = use{c.pod, l.used[ref].containers + 1}
	}
}

// judgeClaims is what a container has of the claims that it names, or would have. The error says why it cannot have it. Each claim is judged
// once for a container: what it has stays until it ends.
func (l *Ledger) judgeClaims(c *container) (judged, error) {
	if c.HasClaims {
		return c.judged, nil
	}
	has := judged{names: l.state.Claims.Names(c.Claims)}
	if c.TooManyClaims {
		return has, claims.ErrTooMany
	}
	for _, uid := range claims.UIDs(c.Claims) {
		if user := l.claimUser(uid); user != nil && user != c.pod {
			return has, fmt.Errorf("%w: containers of one pod can share a claim, pods cannot", inUse(l.state.Claims[uid], user))
		}
		if err := l.state.Claims.For(uid, c.pod.UID); err != nil {
			return has, err
		}
	}
	parts, err := l.state.Claims.Parts(c.Claims)
	if err == nil {
		has.nodes, has.amounts, has.blocks = claims.Nodes(parts), claims.Sum(parts), claims.Blocks(parts)
	}
	return has, err
}

// returnClaims gives back what takeClaims took.
func (l *Ledger) returnClaims(c *container) {
	if c.HasClaims {
		for _, ref := range c.Claims {
			if left := l.used[ref].containers - 1; left > 0 {
				l.used[ref] = use{c.pod, left}
			} else {
				delete(l.used, ref)
			}
		}
	}
	c.HasClaims, c.judged = false, judged{}
}

// decideByClaims gives a container the nodes of its claims. The error refuses it.
func (l *Ledger) decideByClaims(c *container) (assignment, error) {
	has, err := l.judgeClaims(c)
	decided := assignment{Placement: l.unpin(c, "pinned by the kubelet"), granted: err == nil}
	if !c.HasClaims {
		decided.claims = &has
	}
	switch as := &decided.Placement; {
	case as.ByKubelet:
	case err == nil:
		as.Nodes, as.Pinning = has.nodes, "pinned by resource claim "+strings.Join(has.names, " and ")
	case c.Phase != Creating: // what runs keeps the nodes that it has
		as.Nodes, _ = nodeset.Parse(c.FoundMems)
		as.Pinning = "not pinned: " + err.Error()
	default:
		as.Pinning = "not pinned: " + err.Error()
		as.Unplaced = l.reject(c, cause{reason: ClaimNotPrepared, text: err.Error()}, true)
		return decided, err
	}
	return decided, nil
}

// ownAmounts are what a container's claims allocate for it alone: nil where it shares one with another living container of its pod,
// because nothing says how much of it is whose. It returns at the first part that is shared. The others are one container's each, so that
// all containers together look at each part once.
func (l *Ledger) ownAmounts(c *container) memorymanager.Request {
	if !c.HasClaims {
		return nil
	}
	for _, ref := range c.Claims {
		if l.used[ref].containers > 1 {
			return nil
		}
	}
	return c.judged.amounts
}

// claimedEstimate is the memory request of a container whose claims say it; false is one without.
func (l *Ledger) claimedEstimate(c *container) (pods.Estimate, bool) {
	bytes := l.ownAmounts(c).Of(memorymanager.Memory)
	if bytes > 0 && c.Limit > 0 {
		bytes = min(bytes, c.Limit)
	}
	return pods.Estimate{Request: bytes, Source: memoryqos.SourceClaim}, bytes > 0
}
