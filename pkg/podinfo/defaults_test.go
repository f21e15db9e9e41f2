package podinfo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetDefaults(t *testing.T) {
	for name, tt := range map[string]struct{ spec, want string }{
		"requests follow limits, those that are there stay": {
			"{initContainers: [{name: i, resources: {limits: {cpu: 1}}}], containers: [{name: a, resources: {requests: {memory: 0}, limits: {memory: 1Gi, cpu: 2}}}]}",
			"{initContainers: [{name: i, resources: {requests: {cpu: 1}, limits: {cpu: 1}}}], containers: [{name: a, resources: {requests: {memory: 0, cpu: 2}, limits: {memory: 1Gi, cpu: 2}}}]}",
		},
		"a pod with a limit asks for what its containers ask for, and for its limit where they ask for nothing": {
			"{resources: {limits: {cpu: 2, memory: 4Gi}}, containers: [{name: a, resources: {requests: {memory: 1Gi}}}, {name: b}]}",
			"{resources: {requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 2, memory: 4Gi}}, containers: [{name: a, resources: {requests: {memory: 1Gi}}}, {name: b}]}",
		},
		"a pod with requests only asks for what its containers ask for, too": {
			"{resources: {requests: {memory: 4Gi}}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}",
			"{resources: {requests: {memory: 4Gi, cpu: 1}}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}",
		},
		"limits that all containers have are the pod's": {
			"{resources: {requests: {memory: 1Gi}}, containers: [{name: a, resources: {limits: {memory: 2Gi, cpu: 1}}}, {name: b, resources: {limits: {memory: 1Gi}}}]}",
			"{resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 3Gi}}, containers: [{name: a, resources: {requests: {memory: 2Gi, cpu: 1}, limits: {memory: 2Gi, cpu: 1}}}, " +
				"{name: b, resources: {requests: {memory: 1Gi}, limits: {memory: 1Gi}}}]}",
		},
		"the pod's limit is no less than its request": {
			"{resources: {requests: {memory: 4Gi}}, containers: [{name: a, resources: {limits: {memory: 2Gi}}}]}",
			"{resources: {requests: {memory: 4Gi}, limits: {memory: 4Gi}}, containers: [{name: a, resources: {requests: {memory: 2Gi}, limits: {memory: 2Gi}}}]}",
		},
		"a pod with resources has the huge pages of its containers": {
			"{resources: {limits: {memory: 4Gi}}, containers: [{name: a, resources: {requests: {hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi}}}]}",
			"{resources: {requests: {memory: 4Gi, hugepages-2Mi: 4Mi}, limits: {memory: 4Gi, hugepages-2Mi: 4Mi}}, containers: [{name: a, resources: {requests: {hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi}}}]}",
		},
		"resources of a pod that name nothing are none": {
			"{resources: {}, containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}",
			"{resources: {}, containers: [{name: a, resources: {requests: {memory: 1Gi}, limits: {memory: 1Gi}}}]}",
		},
		"limits that not all containers have leave the pod's limit unset": {
			"{resources: {requests: {memory: 4Gi}}, initContainers: [{name: i}], containers: [{name: a, resources: {limits: {memory: 2Gi}}}]}",
			"{resources: {requests: {memory: 4Gi}}, initContainers: [{name: i}], containers: [{name: a, resources: {requests: {memory: 2Gi}, limits: {memory: 2Gi}}}]}",
		},
		"a limit of the pod stays": {
			"{resources: {limits: {memory: 4Gi}}, containers: [{name: a, resources: {limits: {memory: 2Gi}}}]}",
			"{resources: {requests: {memory: 2Gi}, limits: {memory: 4Gi}}, containers: [{name: a, resources: {requests: {memory: 2Gi}, limits: {memory: 2Gi}}}]}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := manifest(t, "spec: "+tt.spec)
			SetDefaults(pod)
			if diff := cmp.Diff(manifest(t, "spec: "+tt.want), pod); diff != "" {
				t.Error(diff)
			}
		})
	}
}
