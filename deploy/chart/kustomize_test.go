package chart

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
	"strings"
)

func build(t *testing.T, folder string) string {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("../kustomize", folder))
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOverlaysBuildAsBefore(t *testing.T) {
	for _, overlay := range []string{"default", "kubelet", "openshift"} {
		t.Run(overlay, func(t *testing.T) {
			got := build(t, filepath.Join("overlays", overlay))
			compareGolden(t, filepath.Join("testdata", "kustomize-"+overlay+".yaml"), got)
			decodeStrictly(t, got)
		})
	}
}

// TestBothWaysRunTheSamePod keeps the kustomize base and the chart from drifting apart.
func TestBothWaysRunTheSamePod(t *testing.T) {
	rendered, err := render(t, `{}`)
	if err != nil {
		t.Fatal(err)
	}
	fromChart, fromBase := daemonSet(t, rendered), daemonSet(t, build(t, "base"))
	if difference := cmp.Diff(fromChart.Spec.Template.Spec, fromBase.Spec.Template.Spec); difference != "" {
		t.Errorf("the pod of the chart (-) and of the kustomize base (+) differ:\n%s", difference)
	}
}

func daemonSet(t *testing.T, manifests string) appsv1.DaemonSet {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if !strings.Contains(document, "\nkind: DaemonSet\n") {
			continue
		}
		var set appsv1.DaemonSet
		if err := yaml.UnmarshalStrict([]byte(document), &set); err != nil {
			t.Fatal(err)
		}
		for i, volume := range set.Spec.Template.Spec.Volumes {
			if volume.ConfigMap != nil { // kustomize adds a hash to its name
				set.Spec.Template.Spec.Volumes[i].ConfigMap.Name = ""
			}
		}
		return set
	}
	t.Fatal("no DaemonSet was rendered")
	return appsv1.DaemonSet{}
}
