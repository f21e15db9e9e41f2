package chart

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// Artifact Hub leaves out, silently, annotations that it cannot read.
func TestAnnotationsForArtifactHub(t *testing.T) {
	loaded, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	annotations := loaded.Metadata.Annotations
	read := func(name string, into any) {
		t.Helper()
		if err := yaml.UnmarshalStrict([]byte(annotations["artifacthub.io/"+name]), into); err != nil {
			t.Errorf("artifacthub.io/%s: %v", name, err)
		}
	}
	var changes []struct{ Kind, Description string }
	read("changes", &changes)
	var security bool
	for _, change := range changes {
		if !slices.Contains([]string{"added", "changed", "deprecated", "removed", "fixed", "security"}, change.Kind) || change.Description == "" {
			t.Errorf("change %+v", change)
		}
		security = security || change.Kind == "security"
	}
	if got := annotations["artifacthub.io/containsSecurityUpdates"] == "true"; got != security {
		t.Errorf("containsSecurityUpdates is %t, but a change of the kind security is there: %t", got, security)
	}
	var images []struct {
		Name, Image string
		Platforms   []string
	}
	read("images", &images)
	if len(images) != 1 || !strings.HasSuffix(images[0].Image, ":"+loaded.Metadata.AppVersion) {
		t.Errorf("images %+v, want that of %s", images, loaded.Metadata.AppVersion)
	} else if rendered, err := render(t, `{}`); err != nil || !strings.Contains(rendered, `image: "`+images[0].Image+`"`) {
		t.Errorf("the chart does not run %s (%v)", images[0].Image, err)
	}
	for _, name := range []string{"links", "screenshots"} {
		var links []struct{ Name, Title, URL string }
		read(name, &links)
		for _, link := range links {
			if to, err := url.Parse(link.URL); err != nil || to.Scheme != "https" || link.Name+link.Title == "" {
				t.Errorf("%s: %+v (%v)", name, link, err)
			}
		}
	}
}
