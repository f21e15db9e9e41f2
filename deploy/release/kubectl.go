package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"
)

const (
	kubectlPath = "kubectl-memory_manager"
	// krewManifest is what "kubectl krew install --manifest" reads.
	krewManifest = "memory-manager.yaml"
)

// krewPlatform is a platform in krew's manifest (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/).
type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// kubectlPlugin is the kubectl plugin for all that kubectl runs on, and its manifest for krew.
func (o options) kubectlPlugin() ([]artefact, error) {
	var all []artefact
	var platforms []krewPlatform
	for _, platform := range o.clients {
		archive, binary, err := o.kubectlArchive(platform)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		p := krewPlatform{URI: source + "/releases/download/" + o.version + "/" + archive.name,
			SHA256: fmt.Sprintf("%x", sha256.Sum256(archive.content)), Bin: binary}
		p.Selector.MatchLabels = map[string]string{"os": platform.OS, "arch": platform.Architecture}
		all, platforms = append(all, archive), append(platforms, p)
	}
	manifest, err := o.krew(platforms)
	return append(all, manifest), err
}

// kubectlArchive is the plugin for one platform, with the name of the binary in it.
func (o options) kubectlArchive(platform v1.Platform) (artefact, string, error) {
	name := kubectlPath
	if platform.OS == "windows" {
		name += ".exe"
	}
	binary, err := o.build(platform, "./plugin/kubectl")
	if err != nil {
		return artefact{}, "", err
	}
	licenses, err := o.licenses(platform, "./plugin/kubectl")
	if err != nil {
		return artefact{}, "", err
	}
	license, err := os.ReadFile(filepath.Join(o.root, "LICENSE"))
	if err != nil {
		return artefact{}, "", err
	}
	content, err := o.packCompressed(append([]file{{name, 0o755, binary}, {"LICENSE", 0o644, license}}, licenses...))
	return artefact{fmt.Sprintf("%s-%s-%s-%s.tar.gz", kubectlPath, o.version, platform.OS, platform.Architecture), content}, name, err
}

// krew is the manifest of this release.
func (o options) krew(platforms []krewPlatform) (artefact, error) {
	path := filepath.Join(o.root, "deploy", "krew", krewManifest)
	text, err := os.ReadFile(path)
	if err != nil {
		return artefact{}, err
	}
	var manifest struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       map[string]any    `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(text, &manifest); err != nil {
		return artefact{}, fmt.Errorf("%s: %w", path, err)
	}
	manifest.Spec["version"], manifest.Spec["platforms"] = o.version, platforms
	text, err = yaml.Marshal(manifest)
	return artefact{krewManifest, text}, err
}
