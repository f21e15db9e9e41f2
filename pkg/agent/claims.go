package agent

import (
	"context"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// PrepareClaim allocates a claim, or returns why it is refused.
func (a *Agent) PrepareClaim(ctx context.Context, claim claims.Claim) error {
	return a.changeClaim(ctx, ledger.PrepareClaim{Claim: claim})
}

// UnprepareClaim releases a claim. It is refused while a living container uses the claim; an unknown claim is no error.
func (a *Agent) UnprepareClaim(ctx context.Context, uid string) error {
	return a.changeClaim(ctx, ledger.UnprepareClaim{UID: uid})
}

func (a *Agent) changeClaim(ctx context.Context, change ledger.Event) error {
	effects := a.gatherAndStep(context.WithoutCancel(ctx), change, nil)
	a.finish(ctx, effects.Effects)
	return effects.Err
}

// OnUnreserved sets a function that the agent calls before it creates a container with a claim that was not reserved for the container's pod
// when it was prepared, and periodically while one runs without it: if a claim passes from one pod to another, the kubelet does not prepare
// it again.
func (a *Agent) OnUnreserved(reread func(ctx context.Context, claim claims.Claim)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rereadClaim = reread
}

// rereadTimeout bounds reading the claims of a new container, or of all that run without theirs, again.
const rereadTimeout = 500 * time.Millisecond

// rereadClaims reads claims again and prepares them as they are now.
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
