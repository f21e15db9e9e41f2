package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// unknown is what SPDX calls a value that nobody has looked for.
const unknown = "NOASSERTION"

// sboms are SPDX documents, one for each platform: the modules that Go's linker has noted in the binary.
func (o options) sboms() ([]artefact, error) {
	var all []artefact
	for _, platform := range o.platforms {
		built, err := o.parts(platform)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		name := o.platformName(platform)
		document, err := o.sbom(name, built.binary.content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		var text bytes.Buffer
		if err := json.Write(document, &text, json.Indent("  ")); err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		all = append(all, artefact{name + ".spdx.json", text.Bytes()})
	}
	return all, nil
}

func (o options) sbom(name string, binary []byte) (*spdx.Document, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read the modules of the binary: %w", err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(binary))
	ours := module(info.Main.Path, o.version)
	ours.PackageFileName = binaryPath
	ours.PackageDownloadLocation = "git+" + source
	ours.PackageLicenseConcluded, ours.PackageLicenseDeclared = "Apache-2.0", "Apache-2.0"
	ours.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
	ours.PrimaryPackagePurpose = "APPLICATION"
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: source + "/sbom/" + name + "-" + sum, // unique to what it describes
		CreationInfo: &spdx.CreationInfo{
			Created:  o.created.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "nri-memory-manager-release"}},
		},
		Packages:      []*spdx.Package{ours},
		Relationships: []*spdx.Relationship{relation("DOCUMENT", common.TypeRelationshipDescribe, ours.PackageSPDXIdentifier)},
	}
	for _, linked := range linkedModules(info) {
		document.Packages = append(document.Packages, linked)
		document.Relationships = append(document.Relationships,
			relation(ours.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, linked.PackageSPDXIdentifier))
	}
	return document, nil
}

// linkedModules are the modules in a binary besides its own; Go's standard library is the first.
func linkedModules(info *debug.BuildInfo) []*spdx.Package {
	all := []*spdx.Package{module("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, linked := range info.Deps {
		if linked.Replace != nil {
			linked = linked.Replace
		}
		made := module(linked.Path, linked.Version)
		if linked.Sum != "" {
			made.PackageSourceInfo = "go.sum: " + linked.Sum
		}
		all = append(all, made)
	}
	return all
}

// noID matches what an identifier of SPDX must not contain.
var noID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// module is a Go module as SPDX describes it.
func module(path, version string) *spdx.Package {
	return &spdx.Package{
		PackageName: path, PackageVersion: version,
		PackageSPDXIdentifier:   common.ElementID("Package-" + noID.ReplaceAllString(path, "-")),
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: packageURL(path, version),
		}},
	}
}

// packageURL names a Go module as vulnerability databases do.
func packageURL(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

func relation(from common.ElementID, kind string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.MakeDocElementID("", string(from)), Relationship: kind, RefB: common.MakeDocElementID("", string(to))}
}
