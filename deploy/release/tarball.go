package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// besides are the files that a node without Kubernetes' tools gets beside the binary: name in the archive → source.
var besides = []struct{ name, source string }{
	{"INSTALL.md", "deploy/systemd/INSTALL.md"},
	{"LICENSE", "LICENSE"},
	{"config.yaml", "deploy/config.yaml"},
	{"containerd-1.7.toml", "deploy/runtime/containerd-1.7.toml"},
	{"containerd.toml", "deploy/runtime/containerd.toml"},
	{"crio.conf", "deploy/runtime/crio.conf"},
	{"nri-memory-manager.service", "deploy/systemd/nri-memory-manager.service"},
}

// tarballs are archives with all that a node needs, one for each platform.
func (o options) tarballs() ([]artefact, error) {
	var all []artefact
	for _, platform := range o.platforms {
		built, err := o.parts(platform)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		files := append([]file{built.binary}, built.licenses...)
		for _, b := range besides {
			content, err := os.ReadFile(filepath.Join(o.root, b.source))
			if err != nil {
				return nil, err
			}
			files = append(files, file{b.name, 0o644, content})
		}
		folder := o.platformName(platform)
		for i := range files {
			files[i].path = path.Join(folder, files[i].path)
		}
		content, err := o.packCompressed(files)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		all = append(all, artefact{folder + ".tar.gz", content})
	}
	return all, nil
}

// platformName is what the files of a platform are called, without their endings.
func (o options) platformName(platform v1.Platform) string {
	return fmt.Sprintf("%s-%s-%s-%s", binaryPath, o.version, platform.OS, platform.Architecture)
}
