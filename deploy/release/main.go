// Release builds what a release consists of, without a container engine: the same sources give the same bytes.
//
//	go -C deploy run ./release -version v0.1.0 -out ../bin image     # image.tar
//	go -C deploy run ./release -version v0.1.0 -out ../bin           # all: image, tarballs, SBOMs, chart, kubectl plugin, SHA256SUMS
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

type options struct {
	root      string // of the main module
	version   string
	created   time.Time
	commit    string           // of the sources; empty if they differ from every commit
	platforms []v1.Platform    // of the nodes
	clients   []v1.Platform    // of kubectl
	built     map[string]parts // by platform
}

// artefact is a file of the release.
type artefact struct {
	name    string
	content []byte
}

// kind is a kind of artefact that can be asked for.
type kind struct {
	name string
	make func(options) ([]artefact, error)
}

var kinds = []kind{
	{"image", options.imageArchive},
	{"tarballs", options.tarballs},
	{"sboms", options.sboms},
	{"chart", options.packedChart},
	{"kubectl", options.kubectlPlugin},
}

func main() {
	root := flag.String("root", "..", "folder of the main module")
	version := flag.String("version", "unknown", "version to build")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "platforms, comma-separated")
	clients := flag.String("kubectl-platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64", "platforms of the kubectl plugin")
	out := flag.String("out", ".", "folder to write to")
	created := flag.Int64("created", 0, "creation time, seconds since 1970: the time of the commit makes builds repeatable")
	commit := flag.String("commit", "", "commit of the sources, for provenance.json; none in a changed working tree, which then has no provenance")
	flag.Parse()
	o := options{root: *root, version: *version, commit: *commit, created: time.Unix(*created, 0).UTC(), built: map[string]parts{}}
	if err := o.run(*platforms, *clients, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// fullCommit matches the name of a commit.
var fullCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// run builds the wanted kinds, all if none is named; then with their provenance and sums.
func (o options) run(platforms, clients, out string, wanted []string) (err error) {
	if o.platforms, err = parsePlatforms(platforms); err != nil {
		return err
	}
	if o.clients, err = parsePlatforms(clients); err != nil {
		return err
	}
	if o.commit != "" && !fullCommit.MatchString(o.commit) {
		return fmt.Errorf("commit %q: want its 40 hexadecimal digits", o.commit)
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
			return fmt.Errorf("%q: want image, tarballs, sboms, chart or kubectl; nothing for all", name)
		}
	}
	var all []artefact
	for _, kind := range kinds {
		if len(wanted) > 0 && !slices.Contains(wanted, kind.name) {
			continue
		}
		made, err := kind.make(o)
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		all = append(all, made...)
	}
	if len(wanted) == 0 {
		if o.commit != "" {
			made, err := o.provenance(all)
			if err != nil {
				return fmt.Errorf("provenance: %w", err)
			}
			all = append(all, made)
		}
		all = append(all, sums(all))
	}
	for _, a := range all {
		path := filepath.Join(out, a.name)
		if err := os.WriteFile(path, a.content, 0o644); err != nil {
			return err
		}
		fmt.Printf("%x  %s\n", sha256.Sum256(a.content), path)
	}
	return nil
}

func parsePlatforms(list string) (all []v1.Platform, err error) {
	for text := range strings.SplitSeq(list, ",") {
		platform, err := v1.ParsePlatform(text)
		if err != nil {
			return nil, fmt.Errorf("platform %q: %w", text, err)
		}
		all = append(all, *platform)
	}
	return all, nil
}

// sums is what sha256sum --check reads.
func sums(all []artefact) artefact {
	var text strings.Builder
	for _, a := range all {
		fmt.Fprintf(&text, "%x  %s\n", sha256.Sum256(a.content), a.name)
	}
	return artefact{"SHA256SUMS", []byte(text.String())}
}
