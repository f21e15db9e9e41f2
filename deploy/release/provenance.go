package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"strings"

	predicate "github.com/in-toto/attestation/go/predicates/provenance/v1"
	statement "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// provenance is an in-toto statement with a SLSA predicate: from what, and how, the artefacts can be made again. It has no
// time and no signature, so that whoever builds the commit gets the same bytes; who built a release, and when, is what the
// release workflow attests.
func (o options) provenance(all []artefact) (artefact, error) {
	built, err := o.parts(o.platforms[0])
	if err != nil {
		return artefact{}, err
	}
	info, err := buildinfo.Read(bytes.NewReader(built.binary.content))
	if err != nil {
		return artefact{}, fmt.Errorf("read the Go version of the binary: %w", err)
	}
	platforms := make([]string, len(o.platforms))
	for i, platform := range o.platforms {
		platforms[i] = platform.String()
	}
	parameters, err := structpb.NewStruct(map[string]any{"version": o.version, "platforms": strings.Join(platforms, ",")})
	if err != nil {
		return artefact{}, err
	}
	how := &predicate.Provenance{
		BuildDefinition: &predicate.BuildDefinition{
			BuildType:          source + "/blob/main/RELEASE.md#provenance",
			ExternalParameters: parameters,
			ResolvedDependencies: []*statement.ResourceDescriptor{
				{Uri: "git+" + source, Digest: map[string]string{"gitCommit": o.commit}},
				{Uri: packageURL("stdlib", strings.TrimPrefix(info.GoVersion, "go"))},
			},
		},
		RunDetails: &predicate.RunDetails{Builder: &predicate.Builder{Id: source + "/blob/main/deploy/release"}},
	}
	if err := how.Validate(); err != nil {
		return artefact{}, err
	}
	made := &statement.Statement{Type: statement.StatementTypeUri, PredicateType: "https://slsa.dev/provenance/v1", Predicate: &structpb.Struct{}}
	text, err := protojson.Marshal(how)
	if err != nil {
		return artefact{}, err
	}
	if err := protojson.Unmarshal(text, made.Predicate); err != nil {
		return artefact{}, err
	}
	for _, a := range all {
		made.Subject = append(made.Subject, &statement.ResourceDescriptor{
			Name: a.name, Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(a.content))},
		})
	}
	if err := made.Validate(); err != nil {
		return artefact{}, err
	}
	if text, err = protojson.Marshal(made); err != nil {
		return artefact{}, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil { // protojson puts spaces at random
		return artefact{}, err
	}
	indented.WriteByte('\n')
	return artefact{"provenance.json", indented.Bytes()}, nil
}
