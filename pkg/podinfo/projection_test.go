package podinfo

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"
)

// Whatever a pod holds, the same is taken from what is kept of it as from the whole.
func TestProjectionKeepsAllThatIsRead(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	fill := randfill.NewWithSeed(7).NilChance(0.3).NumElements(1, 3).MaxDepth(12).Funcs(
		func(list *corev1.ResourceList, c randfill.Continue) {
			*list = corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{"cpu", "memory", "hugepages-2Mi"} {
				if c.Bool() {
					(*list)[name] = *resource.NewQuantity(random.Int64N(1<<40), resource.BinarySI)
				}
			}
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(random.Int64N(1<<40), resource.BinarySI)
		},
		func(name *corev1.ResourceName, c randfill.Continue) {
			*name = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}[random.IntN(2)]
		},
		func(meta *map[string]string, c randfill.Continue) {
			*meta = map[string]string{c.String(0): c.String(0)}
			if c.Bool() {
				(*meta)[configMirror] = "hash"
			}
			if c.Bool() {
				(*meta)[configSource] = "file"
			}
		},
		func(policy *corev1.ContainerRestartPolicy, c randfill.Continue) {
			*policy = corev1.ContainerRestartPolicyAlways
		},
		func(condition *corev1.PodCondition, c randfill.Continue) {
			condition.Type, condition.Status = corev1.PodResizePending, corev1.ConditionStatus([]string{"True", "False"}[random.IntN(2)])
		},
	)
	for range 300 {
		var pod corev1.Pod
		fill.Fill(&pod)
		for i := range pod.Status.ContainerStatuses {
			if i < len(pod.Spec.Containers) {
				pod.Status.ContainerStatuses[i].Name = pod.Spec.Containers[i].Name
			}
		}
		for i := range pod.Status.NodeAllocatableResourceClaimStatuses {
			if len(pod.Spec.Containers) > 0 {
				pod.Status.NodeAllocatableResourceClaimStatuses[i].Containers = []string{pod.Spec.Containers[0].Name}
			}
		}
		if random.IntN(2) == 0 {
			pod.Status.QOSClass = ""
		}
		data, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		var whole corev1.Pod // strings that are no UTF-8 and empty maps do not survive encoding
		if err := whole.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		got, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(FromPod(&whole), got); diff != "" {
			t.Fatalf("-whole +kept:\n%s", diff)
		}
	}
}

func TestProjectionMakesPodsSmall(t *testing.T) {
	whole := encoded(fullPod(1))
	small, err := podFields.of(whole)
	if err != nil {
		t.Fatal(err)
	}
	if len(small)*5 > len(whole) {
		t.Errorf("%d of %d bytes are kept", len(small), len(whole))
	}
}

func TestProjectionRefusesWhatIsNoMessage(t *testing.T) {
	for name, tt := range map[string]struct {
		data []byte
		err  string
	}{
		"a tag that is cut":             {[]byte{0x80}, "unexpected EOF"},
		"a value that is cut":           {[]byte{0x0a, 5, 1}, "unexpected EOF"},
		"a field inside that is cut":    {[]byte{0x0a, 1, 0x80}, "field 1: "},
		"a tag that is no field number": {[]byte{0}, "invalid field number"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := podFields.of(tt.data); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %s", err, tt.err)
			}
			if _, err := decode(tt.data); err == nil || !strings.HasPrefix(err.Error(), "decode v1.Pod of ") {
				t.Errorf("got %v", err)
			}
			if got := kindOf(tt.data); got != "" {
				t.Errorf("got kind %q", got)
			}
		})
	}
}

// given records what it was given to decode.
type given struct {
	runtime.Serializer
	data []byte
}

func (g *given) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	g.data = data
	return nil, nil, nil
}

func TestProjectedSerializerLeavesAloneWhatIsNoPod(t *testing.T) {
	status := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Status"}, Raw: []byte{1, 2, 3}}
	raw, err := status.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"another kind": "k8s\x00" + string(raw), "JSON": `{"kind":"Pod"}`, "nothing": "", "a cut message": "k8s\x00\x0a\x05",
	} {
		t.Run(name, func(t *testing.T) {
			var inner given
			if _, _, err := (projectedSerializer{&inner}).Decode([]byte(data), nil, nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(data, string(inner.data)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// FuzzProjection: what is a pod to Kubernetes is the same pod to us.
func FuzzProjection(f *testing.F) {
	f.Add(encoded(fullPod(1)))
	f.Add([]byte{0x12, 2, 0x12, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decode(data)
		var whole corev1.Pod
		if whole.Unmarshal(data) != nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(FromPod(&whole), got); diff != "" {
			t.Errorf("-whole +kept:\n%s", diff)
		}
	})
}
