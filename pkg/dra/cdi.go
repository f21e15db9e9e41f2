package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// cdi is the folder of the runtimes' CDI specifications, of which each claim has one.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
type cdi struct{ dir, driver string }

// cdiVersion is the first with annotations.
const cdiVersion = "0.6.0"

// specification is the part of a CDI specification that claims need.
type specification struct {
	Version     string            `json:"cdiVersion"`
	Kind        string            `json:"kind"`
	Annotations map[string]string `json:"annotations"`
	Devices     []cdiDevice       `json:"devices"`
}

type cdiDevice struct {
	Name  string `json:"name"`
	Edits edits  `json:"containerEdits"`
}

type edits struct {
	Env []string `json:"env"`
}

// The annotations by which a claim is found again whose record was lost.
const (
	annotationNamespace = "memory.noderesource.dev/claim-namespace"
	annotationName      = "memory.noderesource.dev/claim-name"
)

func (c cdi) kind() string { return c.driver + "/" + claims.Class }

// id is the full name of the device for one part of a claim.
func (c cdi) id(ref claims.Ref) string { return c.kind() + "=" + ref.Device() }

func (c cdi) prefix() string { return c.driver + "-" + claims.Class + "_" }

func (c cdi) path(uid string) string { return filepath.Join(c.dir, c.prefix()+uid+".json") }

// write has the runtime know a claim's devices.
func (c cdi) write(claim claims.Claim) error {
	spec := specification{Version: cdiVersion, Kind: c.kind(), Annotations: map[string]string{
		annotationNamespace: claim.Namespace, annotationName: claim.Name,
	}}
	for i, part := range claim.Parts {
		ref := claims.Ref{UID: claim.UID, Part: i}
		texts := make([]string, len(part.Amounts))
		for j, amount := range part.Amounts {
			texts[j] = string(amount.Type) + "=" + quantity.Format(amount.Bytes)
		}
		value := fmt.Sprintf("%s%d:%s", devicePrefix, part.Node, strings.Join(texts, ","))
		spec.Devices = append(spec.Devices, cdiDevice{Name: ref.Device(), Edits: edits{Env: []string{ref.Variable() + "=" + value}}})
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encoding the CDI specification: %w", err)
	}
	if there, err := os.ReadFile(c.path(claim.UID)); err == nil && string(there) == string(text) {
		return nil
	}
	if err := durable.WriteFile(c.path(claim.UID), text, 0o644); err != nil {
		return fmt.Errorf("writing the CDI specification: %w", err)
	}
	return nil
}

// remove has the runtime forget a claim's devices.
func (c cdi) remove(uid string) error {
	if err := os.Remove(c.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the CDI specification: %w", err)
	}
	return nil
}

// claims are those that have a specification, without their parts. One that cannot be read has no name.
func (c cdi) claims() ([]claims.Claim, error) {
	paths, err := filepath.Glob(filepath.Join(c.dir, c.prefix()+"*.json"))
	if err != nil {
		return nil, err
	}
	var named []claims.Claim
	for _, path := range paths {
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), c.prefix()), ".json")
		if !claims.ValidUID(uid) {
			continue
		}
		var spec specification
		if data, err := durable.ReadFile(path); err == nil {
			_ = json.Unmarshal(data, &spec) // what cannot be read is written again
		}
		named = append(named, claims.Claim{UID: uid, Namespace: spec.Annotations[annotationNamespace], Name: spec.Annotations[annotationName]})
	}
	return named, nil
}
