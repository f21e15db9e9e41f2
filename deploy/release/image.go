package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	source     = "https://github.com/nri-memory-manager/nri-memory-manager"
	repository = "ghcr.io/nri-memory-manager/nri-memory-manager"
)

// imageArchive is the container image for all platforms as an OCI archive: a static binary and the licences of all that
// is linked into it, on nothing.
func (o options) imageArchive() ([]artefact, error) {
	index, err := o.index()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return nil, fmt.Errorf("write the image layout: %w", err)
	}
	// containerd names what it imports by these.
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          repository + ":" + o.version,
		"org.opencontainers.image.ref.name": o.version,
	})); err != nil {
		return nil, fmt.Errorf("write the image layout: %w", err)
	}
	var files []file
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		files = append(files, file{filepath.ToSlash(name), 0o644, content})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the image layout: %w", err)
	}
	content, err := o.pack(files)
	return []artefact{{"image.tar", content}}, err
}

func (o options) index() (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range o.platforms {
		image, err := o.image(platform)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	return index, nil
}

func (o options) image(platform v1.Platform) (v1.Image, error) {
	built, err := o.parts(platform)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for _, files := range [][]file{built.licenses, {built.binary}} { // what changes often is last
		layer, err := o.layer(files)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Variant = platform.Architecture, platform.OS, platform.Variant
	config.Created = v1.Time{Time: o.created}
	config.Config.Entrypoint = []string{"/" + binaryPath}
	config.Config.Cmd = []string{"run"}
	config.Config.Env = []string{"PATH=/"} // for `kubectl exec … nri-memory-manager status`
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":       "nri-memory-manager",
		"org.opencontainers.image.description": "Kubernetes' Memory Manager and Memory QoS as an NRI plugin",
		"org.opencontainers.image.source":      source,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     o.version,
		"org.opencontainers.image.created":     o.created.Format(time.RFC3339),
	}
	return mutate.ConfigFile(image, config)
}

// layer is a tar of files.
func (o options) layer(files []file) (v1.Layer, error) {
	content, err := o.pack(files)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
}
