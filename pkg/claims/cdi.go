package claims

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// specification is the part of a CDI specification that claims need.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
type specification struct {
	Version     string            `json:"cdiVersion"`
	Kind        string            `json:"kind"`
	Annotations map[string]string `json:"annotations"`
	Devices     []device          `json:"devices"`
}

type device struct {
	Name  string `json:"name"`
	Edits struct {
		Env []string `json:"env"`
	} `json:"containerEdits"`
}

// version is the first CDI version with annotations.
const version = "0.6.0"

// claimAnnotation is the annotation that holds the whole claim.
const claimAnnotation = "memory.noderesource.dev/claim"

// Specification returns the CDI specification that tells the runtime a claim's devices. It also stores the claim's allocation for a
// restart.
func Specification(claim Claim, driver string) ([]byte, error) {
	whole, err := json.Marshal(claim)
	if err != nil {
		return nil, err
	}
	spec := specification{Version: version, Kind: driver + "/" + Class, Annotations: map[string]string{claimAnnotation: string(whole)}}
	for i, part := range claim.Parts {
		ref := Ref{UID: claim.UID, Part: i}
		texts := make([]string, len(part.Amounts))
		for j, amount := range part.Amounts {
			texts[j] = string(amount.Type) + "=" + quantity.Format(amount.Bytes)
		}
		d := device{Name: ref.device()}
		d.Edits.Env = []string{ref.variable() + "=" + Device(part.Node) + ":" + strings.Join(texts, ",")}
		spec.Devices = append(spec.Devices, d)
	}
	return json.Marshal(spec)
}

// ReadSpecification returns the claim that is stored in a specification.
func ReadSpecification(data []byte, uid string) (claim Claim, err error) {
	var spec specification
	if err := json.Unmarshal(data, &spec); err != nil {
		return claim, err
	}
	text, there := spec.Annotations[claimAnnotation]
	if !there {
		return claim, fmt.Errorf("annotations has no %s", claimAnnotation)
	}
	if err := json.Unmarshal([]byte(text), &claim); err != nil {
		return claim, fmt.Errorf("annotations[%s]: %w", claimAnnotation, err)
	}
	wrong := slices.IndexFunc(claim.Parts, func(p Part) bool { return p.Node < 0 || p.Node >= nodeset.Max })
	switch {
	case claim.UID != uid:
		err = fmt.Errorf("UID is %q, want the file's %q", claim.UID, uid)
	case len(claim.Parts) == 0:
		err = fmt.Errorf("%s is missing", "Parts")
	case wrong >= 0:
		err = fmt.Errorf("Parts[%d].Node is %d, want 0 to %d", wrong, claim.Parts[wrong].Node, nodeset.Max-1)
	default:
		return claim, nil
	}
	return claim, fmt.Errorf("annotations[%s].%w", claimAnnotation, err)
}
