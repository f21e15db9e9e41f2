package simulator

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// The cases that a real scheduler of Kubernetes 1.36.3 was measured with: two devices of 128Gi, of which some is taken.
func TestClaimsArePlacedAsTheSchedulerDoes(t *testing.T) {
	const gi = uint64(1) << 30
	for name, test := range map[string]struct {
		requests, constraints string
		taken                 [2]uint64
		want                  string // NUMA node and Gi of each part, or the error
	}{
		"the first that fits":                    {"exactly 50", "", [2]uint64{}, "0:50"},
		"the next":                               {"exactly 50", "", [2]uint64{100, 0}, "1:50"},
		"nowhere":                                {"exactly 50", "", [2]uint64{100, 100}, "cannot be allocated: no NUMA nodes have room for it"},
		"a count has different devices":          {"exactly 100x2", "", [2]uint64{}, "0:100 1:100"},
		"two requests of a claim share one":      {"exactly 50, exactly 50", "", [2]uint64{}, "0:50 0:50"},
		"unless they are distinct":               {"exactly 50, exactly 50", "distinct memory.noderesource.dev/numaNode", [2]uint64{}, "0:50 1:50"},
		"one if it fits":                         {"first 100 50x2", "distinct memory.noderesource.dev/numaNode", [2]uint64{}, "0:100"},
		"else half on each":                      {"first 200 100x2", "distinct memory.noderesource.dev/numaNode", [2]uint64{}, "0:100 1:100"},
		"on the same node":                       {"exactly 50, exactly 60", "match resource.kubernetes.io/numaNode", [2]uint64{20, 0}, "1:50 1:60"},
		"the earlier request makes room":         {"exactly 50, exactly 100", "match resource.kubernetes.io/numaNode", [2]uint64{}, "cannot be allocated: no NUMA nodes have room for it"},
		"of another driver":                      {"other 2, exactly 50", "match dra.cpu/numaNode", [2]uint64{}, "0:50"},
		"an attribute that is not known":         {"exactly 50", "match gpu.example.com/pcieRoot", [2]uint64{}, "spec.devices.constraints: simulate knows attributes */numaNode only, not gpu.example.com/pcieRoot"},
		"without an amount it is charged a step": {"exactly 0", "", [2]uint64{}, "0:0"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &resourceapi.ResourceClaimSpec{}
			for i, text := range strings.Split(test.requests, ", ") {
				kind, amounts, _ := strings.Cut(text, " ")
				request := resourceapi.DeviceRequest{Name: fmt.Sprint("r", i)}
				for amount := range strings.FieldsSeq(amounts) {
					var size, count int64
					if n, _ := fmt.Sscanf(amount, "%dx%d", &size, &count); n < 2 {
						count = 1
					}
					capacity := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(size<<30, resource.BinarySI)}}
					switch kind {
					case "exactly":
						request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: "numa-memory", Count: count, Capacity: capacity}
					case "other":
						request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: "cpu", Count: count}
					default:
						request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{DeviceClassName: "numa-memory", Count: count, Capacity: capacity})
					}
				}
				spec.Devices.Requests = append(spec.Devices.Requests, request)
			}
			if kind, attribute, given := strings.Cut(test.constraints, " "); given {
				name := resourceapi.FullyQualifiedName(attribute)
				constraint := resourceapi.DeviceConstraint{MatchAttribute: &name}
				if kind == "distinct" {
					constraint = resourceapi.DeviceConstraint{DistinctAttribute: &name}
				}
				spec.Devices.Constraints = append(spec.Devices.Constraints, constraint)
			}
			parts, err := place(spec, []claims.Capacity{
				{Node: 0, Type: memorymanager.Memory, Capacity: 128 * gi, Claimed: test.taken[0] * gi},
				{Node: 1, Type: memorymanager.Memory, Capacity: 128 * gi, Claimed: test.taken[1] * gi},
			})
			var got []string
			for _, part := range parts {
				got = append(got, fmt.Sprintf("%d:%d", part.Node, part.Amounts.Of(memorymanager.Memory)/gi))
			}
			if err != nil {
				got = []string{err.Error()}
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("got %s, want %s", text, test.want)
			}
		})
	}
}
