package agent

import (
	"context"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// PrepareClaim allocates a claim. The error refuses it.
func (a *Agent) PrepareClaim(ctx context.Context, claim claims.Claim) error {
	return a.changeClaim(ctx, claim.UID, ledger.PrepareClaim{Claim: claim})
}

// UnprepareClaim releases a claim; one that is not known has been released. The error refuses one that a living container has.
func (a *Agent) UnprepareClaim(ctx context.Context, uid string) error {
	return a.changeClaim(ctx, uid, ledger.UnprepareClaim{UID: uid})
}

// changeClaim looks first whether the containers that have the claim are there: runtimes do not report every end.
func (a *Agent) changeClaim(ctx context.Context, uid string, change ledger.Event) error {
	a.mu.Lock()
	users := a.ledger.ClaimUsers(uid)
	a.mu.Unlock()
	if len(users) > 0 {
		a.finish(ctx, a.step(a.present(users)))
	}
	effects := a.step(change)
	a.finish(ctx, effects)
	return effects.Err
}

// OnUnreserved has the agent call a function before it creates a container with a claim that was not reserved for the
// container's pod when it was prepared: the kubelet prepares a claim that passes from one pod to another only once.
func (a *Agent) OnUnreserved(reread func(ctx context.Context, claim claims.Claim)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reread = reread
}

// rereadTimeout bounds the question about the claims of a new container.
const rereadTimeout = 500 * time.Millisecond

// rereadClaims has the claims of a new container read again where they are not known to be its pod's.
func (a *Agent) rereadClaims(ctx context.Context, pod ledger.Pod, container ledger.Container) {
	if len(container.Claims) == 0 {
		return
	}
	a.mu.Lock()
	reread, unreserved := a.reread, a.ledger.Unreserved(pod, container)
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, rereadTimeout)
	defer cancel()
	for _, claim := range unreserved {
		reread(ctx, claim)
	}
}
