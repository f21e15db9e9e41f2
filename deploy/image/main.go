// Image builds the container image of nri-memory-manager for several platforms, without a container engine: a static
// binary and the licences of all that is linked into it, on nothing. The same sources give the same bytes.
//
//	go -C deploy run ./image -version v0.1.0 -out ../bin/image.tar
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	binaryPath = "nri-memory-manager"
)

type options struct {
	root      string // of the main module
	version   string
	created   time.Time
	platforms []v1.Platform
}

func main() {
	root := flag.String("root", "..", "folder of the main module")
	version := flag.String("version", "unknown", "version to build")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "platforms, comma-separated")
	out := flag.String("out", "image.tar", "OCI image archive to write")
	created := flag.Int64("created", 0, "creation time, seconds since 1970: the time of the commit makes builds repeatable")
	flag.Parse()
	if err := run(*root, *version, *platforms, *out, time.Unix(*created, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(root, version, platforms, out string, created time.Time) error {
	o := options{root: root, version: version, created: created}
	for text := range strings.SplitSeq(platforms, ",") {
		platform, err := v1.ParsePlatform(text)
		if err != nil {
			return fmt.Errorf("platform %q: %w", text, err)
		}
		o.platforms = append(o.platforms, *platform)
	}
	index, err := o.index()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	tag := repository + ":" + version
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return fmt.Errorf("write the image layout: %w", err)
	}
	// containerd names what it imports by these.
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          tag,
		"org.opencontainers.image.ref.name": version,
	})); err != nil {
		return fmt.Errorf("write the image layout: %w", err)
	}
	if err := archive(folder, out, created); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s in %s\n", tag, digest, out)
	return nil
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
	binary, err := o.build(platform)
	if err != nil {
		return nil, err
	}
	licenses, err := o.licenses(platform)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for _, files := range [][]file{licenses, {{binaryPath, 0o755, binary}}} { // what changes often is last
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

type file struct {
	path    string
	mode    int64
	content []byte
}

// layer is a tar of the files and the folders above them, with nothing in it that differs from build to build.
func (o options) layer(files []file) (v1.Layer, error) {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	folders := map[string]bool{".": true}
	add := func(header tar.Header, content []byte) error {
		header.ModTime, header.Format = o.created, tar.FormatPAX
		if err := writer.WriteHeader(&header); err != nil {
			return err
		}
		_, err := writer.Write(content)
		return err
	}
	for _, f := range files {
		for _, folder := range above(f.path) {
			if folders[folder] {
				continue
			}
			folders[folder] = true
			if err := add(tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755}, nil); err != nil {
				return nil, err
			}
		}
		if err := add(tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content))}, f.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	content := buffer.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
}

// above lists the folders over a path, outermost first.
func above(path string) []string {
	var folders []string
	for folder := filepath.Dir(path); folder != "."; folder = filepath.Dir(folder) {
		folders = append([]string{folder}, folders...)
	}
	return folders
}

// archive packs the image layout into one tar.
func archive(folder, out string, created time.Time) error {
	target, err := os.Create(out)
	if err != nil {
		return err
	}
	defer target.Close()
	writer := tar.NewWriter(target)
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		header := tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(content)), ModTime: created}
		if err := writer.WriteHeader(&header); err != nil {
			return err
		}
		_, err = writer.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return target.Close()
}
