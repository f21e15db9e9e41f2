package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// claimsFile holds the claims that are prepared, beside the state file, whose layout is the kubelet's.
const claimsFile = "claims.json"

func claimsPath(dir string) string { return filepath.Join(dir, claimsFile) }

// storedClaims is the content of the file.
type storedClaims struct {
	Version int           `json:"version"`
	Claims  []storedClaim `json:"claims"`
}

type storedClaim struct {
	UID       string         `json:"uid"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Pods      []string       `json:"pods"`
	Devices   []storedDevice `json:"devices"`
}

type storedDevice struct {
	Request string                              `json:"request"`
	Node    int                                 `json:"numaNode"`
	Amounts map[memorymanager.MemoryType]uint64 `json:"amounts"`
}

const claimsVersion = 1

// encodeClaims is the file's content for the present claims.
func (a *Agent) encodeClaims([]byte) ([]byte, error) {
	a.mu.Lock()
	claims := a.ledger.Claims()
	a.mu.Unlock()
	stored := storedClaims{Version: claimsVersion, Claims: make([]storedClaim, len(claims))}
	for i, claim := range claims {
		stored.Claims[i] = storedClaim{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name, Pods: claim.Pods}
		for _, part := range claim.Parts {
			device := storedDevice{Request: part.Request, Node: part.Node, Amounts: map[memorymanager.MemoryType]uint64{}}
			for _, amount := range part.Amounts {
				device.Amounts[amount.Type] = amount.Bytes
			}
			stored.Claims[i].Devices = append(stored.Claims[i].Devices, device)
		}
	}
	return json.Marshal(stored)
}

func decodeClaims(data []byte) ([]claims.Claim, error) {
	var stored storedClaims
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, err
	}
	if stored.Version != claimsVersion {
		return nil, fmt.Errorf("version is %d, want %d", stored.Version, claimsVersion)
	}
	var prepared []claims.Claim
	for i, from := range stored.Claims {
		claim := claims.Claim{UID: from.UID, Namespace: from.Namespace, Name: from.Name, Pods: from.Pods}
		if !claims.ValidUID(from.UID) || slices.ContainsFunc(prepared, func(c claims.Claim) bool { return c.UID == from.UID }) {
			return nil, fmt.Errorf("claims[%d].uid is %q, want the UID of another claim", i, from.UID)
		}
		for j, device := range from.Devices {
			if device.Node < 0 || device.Node >= nodeset.Max {
				return nil, fmt.Errorf("claims[%d].devices[%d].numaNode is %d, want 0 to %d", i, j, device.Node, nodeset.Max-1)
			}
			part := claims.Part{Request: device.Request, Node: device.Node}
			for memoryType, bytes := range device.Amounts {
				part.Amounts = part.Amounts.AtLeast(memorymanager.Amount{Type: memoryType, Bytes: bytes})
			}
			claim.Parts = append(claim.Parts, part)
		}
		prepared = append(prepared, claim)
	}
	return prepared, nil
}

// loadClaims reads the file; a bad one is set aside, and the driver finds the claims again by their CDI devices.
func loadClaims(path string, log logrus.FieldLogger) (claims []claims.Claim) {
	err := durable.Load(path, func(data []byte) (err error) {
		claims, err = decodeClaims(data)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.WithError(err).Warn("the prepared resource claims cannot be read: they are looked up again")
	}
	return claims
}

// PrepareClaim allocates a claim. It is on disk when PrepareClaim returns nil.
func (a *Agent) PrepareClaim(ctx context.Context, claim claims.Claim) error {
	return a.changeClaims(ctx, ledger.PrepareClaim{Claim: claim})
}

// UnprepareClaim releases a claim; one that is not known has been released. That is on disk when UnprepareClaim returns nil.
func (a *Agent) UnprepareClaim(ctx context.Context, uid string) error {
	return a.changeClaims(ctx, ledger.UnprepareClaim{UID: uid})
}

func (a *Agent) changeClaims(ctx context.Context, event ledger.Event) error {
	effects := a.step(event)
	a.logNotes(effects.Notes)
	if effects.Err != nil {
		return effects.Err
	}
	a.note(effects)
	a.protect(ctx)
	if err := a.claims.Flush().Wait(ctx); err != nil { // also for what an earlier try has left
		return fmt.Errorf("writing the prepared claims: %w", err)
	}
	return nil
}

// Claims are the prepared claims.
func (a *Agent) Claims() []claims.Claim {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Claims()
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
	var unreserved []claims.Claim
	a.mu.Lock()
	reread := a.reread
	for _, ref := range container.Claims {
		known := slices.ContainsFunc(unreserved, func(c claims.Claim) bool { return c.UID == ref.UID })
		if claim := a.ledger.Claim(ref.UID); claim != nil && !known && !slices.Contains(claim.Pods, pod.UID) {
			unreserved = append(unreserved, *claim)
		}
	}
	a.mu.Unlock()
	if reread == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rereadTimeout)
	defer cancel()
	for _, claim := range unreserved {
		reread(ctx, claim)
	}
}
