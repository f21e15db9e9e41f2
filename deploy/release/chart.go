package main

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

// imagesAnnotation lists the chart's images for Artifact Hub, which scans them.
const imagesAnnotation = "artifacthub.io/images"

// packedChart is the Helm chart in one file, as `helm package` names it. It installs the image of the same release, and
// has its version where that is a semantic one.
func (o options) packedChart() ([]artefact, error) {
	loaded, err := loader.LoadDir(filepath.Join(o.root, "deploy", "helm", "nri-memory-manager"))
	if err != nil {
		return nil, fmt.Errorf("load the chart: %w", err)
	}
	about := loaded.Metadata
	about.Annotations[imagesAnnotation] = strings.ReplaceAll(about.Annotations[imagesAnnotation], ":"+about.AppVersion+"\n", ":"+o.version+"\n")
	about.AppVersion = o.version
	if version, err := semver.StrictNewVersion(strings.TrimPrefix(o.version, "v")); err == nil {
		about.Version = version.String()
	}
	text, err := yaml.Marshal(about)
	if err != nil {
		return nil, err
	}
	files := make([]file, len(loaded.Raw))
	for i, raw := range loaded.Raw {
		files[i] = file{path.Join(about.Name, raw.Name), 0o644, raw.Data}
		if raw.Name == chartutil.ChartfileName {
			files[i].content = text
		}
	}
	content, err := o.packCompressed(files)
	return []artefact{{fmt.Sprintf("%s-%s.tgz", about.Name, about.Version), content}}, err
}
