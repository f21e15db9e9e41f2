package nodetopology

import (
	"bytes"
	"encoding/json"
	"testing"

	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	kresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"
)

// What our types read and write is what those of the API do.
func TestTheTypesAreThoseOfTheAPI(t *testing.T) {
	if groupVersion != topology.SchemeGroupVersion {
		t.Errorf("the API has %s, we %s", topology.SchemeGroupVersion, groupVersion)
	}
	fill := randfill.NewWithSeed(1).NilChance(0).NumElements(2, 2).Funcs(func(q *kresource.Quantity, c randfill.Continue) {
		*q = *kresource.NewQuantity(c.Int63(), kresource.DecimalSI)
	}, func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawString(`{}`) })
	var theirs topology.NodeResourceTopology
	fill.Fill(&theirs)
	want, err := json.Marshal(&theirs)
	must(t, err)
	var ours NodeResourceTopology
	must(t, json.Unmarshal(want, &ours))
	if got, err := json.Marshal(ours.DeepCopyObject()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got  %s (%v)\nwant %s", got, err, want)
	}
}
