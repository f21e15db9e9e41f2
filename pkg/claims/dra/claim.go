package dra

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// readClaim reads what the scheduler has allocated for a claim from a driver's pool. The error names the field.
func readClaim(from *resourceapi.ResourceClaim, driver, pool string) (claims.Claim, error) {
	claim := claims.Claim{UID: string(from.UID), Namespace: from.Namespace, Name: from.Name}
	if !claims.ValidUID(claim.UID) {
		return claim, fmt.Errorf("metadata.uid is %q, want a UID", claim.UID)
	}
	if from.Status.Allocation == nil {
		return claim, fmt.Errorf("status.allocation is missing: the claim is not allocated")
	}
	for _, consumer := range from.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			claim.Pods = append(claim.Pods, string(consumer.UID))
		}
	}
	for i := range from.Status.Allocation.Devices.Results {
		result := &from.Status.Allocation.Devices.Results[i]
		if result.Driver != driver {
			continue
		}
		part, err := readPart(result, pool)
		if err != nil {
			return claim, fmt.Errorf("status.allocation.devices.results[%d].%w", i, err)
		}
		claim.Parts = append(claim.Parts, part)
	}
	if len(claim.Parts) == 0 {
		return claim, fmt.Errorf("status.allocation.devices.results has no device of driver %s", driver)
	}
	return claim, nil
}

func readPart(result *resourceapi.DeviceRequestAllocationResult, pool string) (claims.Part, error) {
	request, _, _ := strings.Cut(result.Request, "/") // REQUEST/SUBREQUEST where one of several was chosen
	node, ours := claims.DeviceNode(result.Device)
	part := claims.Part{Request: request, Node: node}
	switch {
	case result.Pool != pool:
		return part, fmt.Errorf("pool is %q, want this node's %q", result.Pool, pool)
	case !ours:
		return part, fmt.Errorf("device is %q, want %s to %s", result.Device, claims.Device(0), claims.Device(nodeset.Max-1))
	case result.AdminAccess != nil && *result.AdminAccess:
		return part, fmt.Errorf("adminAccess is true: memory has no administrative access")
	case len(result.ConsumedCapacity) == 0:
		return part, fmt.Errorf("consumedCapacity is missing: the feature gate DRAConsumableCapacity of kube-apiserver and kube-scheduler must be on")
	}
	for name, quantity := range result.ConsumedCapacity {
		memoryType, known := claims.CapacityType(string(name))
		value, exact := quantity.AsInt64()
		switch {
		case !known:
			return part, fmt.Errorf("consumedCapacity has %q, want memory or hugepages<size>", name)
		case !exact || value < 0:
			return part, fmt.Errorf("consumedCapacity.%s is %s, want 0 to 2^63-1 whole bytes", name, quantity.String())
		case value > 0:
			part.Amounts = part.Amounts.AtLeast(memorymanager.Amount{Type: memoryType, Bytes: uint64(value)})
		}
	}
	return part, nil
}
