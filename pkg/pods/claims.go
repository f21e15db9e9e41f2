package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// ResourcesAnnotation is the pod annotation in which the resource annotator of containers/nri-plugins, an admission
// webhook, repeats the resources of a pod's containers for the plugins on its node.
const ResourcesAnnotation = "noderesource.dev/resources"

// What is read of one resources annotation.
const (
	mostClaimBytes = 64 << 10
	mostClaims     = 500
)

// mostUnconfirmed is the share of the node's memory, in thousandths, that the containers of one pod may claim in all beyond
// what their oom_score_adj confirms. Each may by less than one.
const mostUnconfirmed = 10

// Claims are the memory requests that a resources annotation claims for a pod's containers. Whoever creates the pod can write
// it, so that FromEvent believes of it only what the event confirms. Claims are bounded and never change: they are read once
// for each pod sandbox. The zero value claims nothing.
type Claims struct {
	// Init and App are bytes by the names of init containers and of containers.
	Init, App map[string]uint64
}

// annotated are the resources of a container as the annotation has them.
type annotated struct {
	Requests map[string]json.RawMessage `json:"requests"`
	Limits   map[string]json.RawMessage `json:"limits"`
}

// ReadClaims reads the resources annotation among a pod's annotations: JSON of the form
// {"initContainers": {"<name>": <v1.ResourceRequirements>}, "containers": {…}}. With an error nothing is claimed.
func (n Node) ReadClaims(annotations map[string]string) (Claims, error) {
	value, ok := annotations[ResourcesAnnotation]
	if !ok {
		return Claims{}, nil
	}
	claims, err := parseClaims(value)
	if err == nil {
		err = n.admit(claims)
	}
	if err != nil {
		return Claims{}, fmt.Errorf("annotation %s: %w", ResourcesAnnotation, err)
	}
	return claims, nil
}

func parseClaims(value string) (claims Claims, err error) {
	if len(value) > mostClaimBytes {
		return Claims{}, fmt.Errorf("%s: want at most %s", quantity.Short(uint64(len(value))), quantity.Short(mostClaimBytes))
	}
	var listed struct {
		InitContainers map[string]annotated `json:"initContainers"`
		Containers     map[string]annotated `json:"containers"`
	}
	if err := json.Unmarshal([]byte(value), &listed); err != nil {
		return Claims{}, fmt.Errorf("want JSON with the resources of initContainers and containers by name: %w", err)
	}
	if number := len(listed.InitContainers) + len(listed.Containers); number > mostClaims {
		return Claims{}, fmt.Errorf("%d containers: want at most %d", number, mostClaims)
	}
	if claims.Init, err = requests("initContainers", listed.InitContainers); err != nil {
		return Claims{}, err
	}
	if claims.App, err = requests("containers", listed.Containers); err != nil {
		return Claims{}, err
	}
	return claims, nil
}

// requests are the containers' memory requests; a limit alone is a request too, as the API server makes it one.
func requests(list string, containers map[string]annotated) (map[string]uint64, error) {
	all := make(map[string]uint64, len(containers))
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		r := containers[name]
		request, requested, err := memoryOf(r.Requests)
		if err != nil {
			return nil, fmt.Errorf("%s[%q].requests.memory: %w", list, name, err)
		}
		limit, _, err := memoryOf(r.Limits)
		if err != nil {
			return nil, fmt.Errorf("%s[%q].limits.memory: %w", list, name, err)
		}
		if !requested {
			request = limit
		}
		all[strings.Clone(name)] = request // without the clone, a name would keep the whole annotation
	}
	return all, nil
}

// memoryOf reads the memory of a resource list. Kubernetes admits quantities as texts and as numbers.
func memoryOf(resources map[string]json.RawMessage) (bytes uint64, listed bool, err error) {
	value, listed := resources[string(memorymanager.Memory)]
	if !listed || string(value) == "null" {
		return 0, listed, nil
	}
	text := string(value)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(value, &text); err != nil {
			return 0, true, err
		}
	}
	bytes, err = quantity.ParseRoundedUp(text)
	if errors.Is(err, quantity.ErrNegative) {
		err = fmt.Errorf("%s: want 0 or more", text)
	}
	return bytes, true, err
}

// admit checks what the claims of a pod may gain in all, if its containers' oom_score_adj confirm every one of them.
func (n Node) admit(claims Claims) error {
	var unconfirmed uint64
	for _, list := range []map[string]uint64{claims.Init, claims.App} {
		for _, claim := range list {
			unconfirmed += n.unconfirmed(claim)
		}
	}
	if most := n.thousandths(mostUnconfirmed); unconfirmed > most {
		return fmt.Errorf("requests of %d containers exceed by %s what oom_score_adj can confirm: want at most %s, 1 %% of the node's memory",
			len(claims.Init)+len(claims.App), quantity.Short(unconfirmed), quantity.Short(most))
	}
	return nil
}

// unconfirmed is by how much a claim exceeds the smallest request of the same oom_score_adj. It is 0 for a claim that no score
// confirms.
func (n Node) unconfirmed(claim uint64) uint64 {
	if n.MemTotal == 0 || claim > n.MemTotal {
		return 0
	}
	high, low := bits.Mul64(claim, 1000)
	thousandths, _ := bits.Div64(high, low, n.MemTotal)
	if clamped(1000 - int64(thousandths)) {
		return 0
	}
	return claim - n.thousandths(thousandths)
}

// confirmed is the claim for the event's container if the event confirms it: it must agree with oom_score_adj and, where the
// kubelet has set it, with memory.swap.max. A clamped score confirms no more than its lower end. An init container may claim
// less, because the score of a sidecar is that of its pod's smallest app container if that is lower.
func (e Event) confirmed(scored, swapped bracket, bySwap bool) (uint64, bool) {
	if clamped(*e.OOMScoreAdj) {
		scored.High = scored.Low
	}
	request, ok := e.Claims.App[e.Container]
	if !ok {
		scored.Low = 0
		if request, ok = e.Claims.Init[e.Container]; !ok {
			return 0, false
		}
	}
	return request, scored.holds(request) && (!bySwap || swapped.holds(request))
}
