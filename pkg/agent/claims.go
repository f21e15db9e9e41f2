package agent

import (
	"context"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// PrepareClaim allocates a claim. The error refuses it.
func (a *Agent) PrepareClaim(ctx context.Context, claim claims.Claim) error {
	return a.changeClaim(ctx, ledger.PrepareClaim{Claim: claim})
}

// UnprepareClaim releases a claim; one that is not known has been released. The error refuses one that a living container has.
func (a *Agent) UnprepareClaim(ctx context.Context, uid string) error {
	return a.changeClaim(ctx, ledger.UnprepareClaim{UID: uid})
}

func (a *Agent) changeClaim(ctx context.Context, change ledger.Event) error {
	effects := a.decide(context.WithoutCancel(ctx), change, nil)
	a.finish(ctx, effects.Effects)
	return effects.Err
}

// OnUnreserved has the agent call a function before it creates a container with a claim that was not reserved for the
// container's pod when it was prepared: the kubelet prepares a claim that passes from one pod to another only once.
func (a *Agent) OnUnreserved(reread func(ctx context.Context, claim claims.Claim)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rereadClaim = reread
}

// rereadTimeout bounds the question about the claims of a new container.
const rereadTimeout = 500 * time.Millisecond

// rereadClaims has claims read again, and prepared as they are now.
func (a *Agent) rereadClaims(ctx context.Context, unreserved []claims.Claim) {
	if len(unreserved) == 0 {
		return
	}
	a.mu.Lock()
	reread := a.rereadClaim
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, rereadTimeout)
	defer cancel()
	for _, claim := range unreserved {
		reread(ctx, claim)
	}
}
