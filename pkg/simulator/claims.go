package simulator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Claims are the resource claims and claim templates of manifests, by namespace/name.
type Claims struct {
	Claims, Templates map[string]*resourceapi.ResourceClaimSpec
}

// Empty reports whether there are none.
func (c Claims) Empty() bool { return len(c.Claims)+len(c.Templates) == 0 }

// readClaim adds a claim or a claim template; false is another kind of object.
func (m *Manifests) readClaim(o object, kind string) (bool, error) {
	var claim resourceapi.ResourceClaim
	var template resourceapi.ResourceClaimTemplate
	read := map[string]any{"resource.k8s.io/v1 ResourceClaim": &claim, "resource.k8s.io/v1 ResourceClaimTemplate": &template}[kind]
	if read == nil {
		return false, nil
	}
	text, err := o.checked(reflect.TypeOf(read).Elem())
	if err != nil {
		return true, err
	}
	if err := strict(text, read); err != nil {
		return true, o.wrong("%v", err)
	}
	named := func(namespace, name string) string { return cmp.Or(namespace, corev1.NamespaceDefault) + "/" + name }
	if read == &template {
		m.Claims.Templates[named(template.Namespace, template.Name)] = &template.Spec.Spec
	} else {
		m.Claims.Claims[named(claim.Namespace, claim.Name)] = &claim.Spec
	}
	return true, nil
}

// claimKeeper is a plugin with a driver for claims: *Direct.
type claimKeeper interface {
	Claimable() []claims.Capacity
	PrepareClaim(ctx context.Context, claim claims.Claim) error
}

// scheduled are the claims of a simulated node: what the scheduler does for it.
type scheduled struct {
	specs    Claims
	driver   string
	prepared map[string]claims.Claim // by the name of the object
}

// devices are the CDI devices of a container, as the kubelet passes them to the runtime.
func (s *scheduled) devices(pod *corev1.Pod, container *corev1.Container) (devices []*api.CDIDevice) {
	for _, use := range container.Resources.Claims {
		for i := range pod.Spec.ResourceClaims {
			reference := &pod.Spec.ResourceClaims[i]
			if reference.Name != use.Name {
				continue
			}
			claim := s.prepared[claimName(pod, reference)]
			for part := range claim.Parts {
				if use.Request == "" || use.Request == claim.Parts[part].Request {
					ref := claims.Ref{UID: claim.UID, Part: part}
					devices = append(devices, &api.CDIDevice{Name: ref.CDI(s.driver)})
				}
			}
		}
	}
	return devices
}

// claimName is the namespace and name of a pod's claim; a template's has the pod's name in it.
func claimName(pod *corev1.Pod, reference *corev1.PodResourceClaim) string {
	if reference.ResourceClaimName != nil {
		return pod.Namespace + "/" + *reference.ResourceClaimName
	}
	return pod.Namespace + "/" + pod.Name + "-" + reference.Name
}

// prepare allocates a pod's claims and has the plugin prepare them. The error is why the pod stays Pending.
func (s *scheduled) prepare(ctx context.Context, pod *corev1.Pod, keeper claimKeeper) error {
	for i := range pod.Spec.ResourceClaims {
		reference := &pod.Spec.ResourceClaims[i]
		name := claimName(pod, reference)
		claim, allocated := s.prepared[name]
		if !allocated {
			spec, err := s.specOf(pod, reference)
			if err != nil {
				return fmt.Errorf("claim %s: %w", name, err)
			}
			parts, err := place(spec, keeper.Claimable())
			if err != nil {
				return fmt.Errorf("claim %s: %w", name, err)
			}
			namespace, short, _ := strings.Cut(name, "/")
			claim = claims.Claim{UID: idOf("claim/" + name)[:32], Namespace: namespace, Name: short, Parts: parts}
		}
		claim.Pods = append(slices.Clone(claim.Pods), string(pod.UID))
		if len(claim.Parts) > 0 { // of this driver
			if err := keeper.PrepareClaim(ctx, claim); err != nil {
				return err
			}
		}
		s.prepared[name] = claim
	}
	return nil
}

func (s *scheduled) specOf(pod *corev1.Pod, reference *corev1.PodResourceClaim) (*resourceapi.ResourceClaimSpec, error) {
	found, want := (*resourceapi.ResourceClaimSpec)(nil), ""
	switch {
	case reference.ResourceClaimName != nil:
		want = "ResourceClaim " + *reference.ResourceClaimName
		found = s.specs.Claims[pod.Namespace+"/"+*reference.ResourceClaimName]
	case reference.ResourceClaimTemplateName != nil:
		want = "ResourceClaimTemplate " + *reference.ResourceClaimTemplateName
		found = s.specs.Templates[pod.Namespace+"/"+*reference.ResourceClaimTemplateName]
	}
	if found == nil {
		return nil, fmt.Errorf("no manifest has %s in namespace %s", want, pod.Namespace)
	}
	return found, nil
}

// placement is the search for the NUMA nodes of a claim.
type placement struct {
	spec  *resourceapi.ResourceClaimSpec
	free  map[int]memorymanager.Request // by NUMA node
	nodes []int                         // in the order of the devices
	parts []claims.Part
}

var errNoDevices = errors.New("cannot be allocated: no NUMA nodes have room for it")

// place allocates a claim as the scheduler does: the first devices that fit, in their order, and the first alternative for which
// there are some. Requests for devices of other drivers are taken as fulfilled.
func place(spec *resourceapi.ResourceClaimSpec, claimable []claims.Capacity) ([]claims.Part, error) {
	p := placement{spec: spec, free: map[int]memorymanager.Request{}}
	for _, c := range claimable {
		if !slices.Contains(p.nodes, c.Node) {
			p.nodes = append(p.nodes, c.Node)
		}
		p.free[c.Node] = p.free[c.Node].AtLeast(memorymanager.Amount{Type: c.Type, Bytes: c.Capacity - min(c.Capacity, c.Claimed)})
	}
	for _, constraint := range spec.Devices.Constraints {
		for _, attribute := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute, constraint.DistinctAttribute} {
			if attribute != nil && !strings.HasSuffix(string(*attribute), "/numaNode") {
				return nil, fmt.Errorf("spec.devices.constraints: simulate knows attributes */numaNode only, not %s", *attribute)
			}
		}
	}
	if !p.request(0) {
		return nil, errNoDevices
	}
	return p.parts, nil
}

// request allocates the requests of the claim from the one of an index on.
func (p *placement) request(index int) bool {
	if index == len(p.spec.Devices.Requests) {
		return true
	}
	request := &p.spec.Devices.Requests[index]
	type alternative struct {
		class    string
		capacity *resourceapi.CapacityRequirements
		count    int64
	}
	var alternatives []alternative
	if e := request.Exactly; e != nil {
		alternatives = append(alternatives, alternative{e.DeviceClassName, e.Capacity, e.Count})
	}
	for _, s := range request.FirstAvailable {
		alternatives = append(alternatives, alternative{s.DeviceClassName, s.Capacity, s.Count})
	}
	for _, a := range alternatives {
		amounts, ours := amountsOf(a.class, a.capacity)
		if !ours && p.request(index+1) || ours && p.device(index, amounts, max(a.count, 1), 0) {
			return true
		}
	}
	return false
}

// device allocates count devices of a request, from the one of an index on, and then the requests that follow.
func (p *placement) device(index int, amounts memorymanager.Request, count int64, from int) bool {
	if count == 0 {
		return p.request(index + 1)
	}
	for i := from; i < len(p.nodes); i++ {
		part := claims.Part{Request: p.spec.Devices.Requests[index].Name, Node: p.nodes[i], Amounts: amounts}
		if !p.admits(part) {
			continue
		}
		p.parts = append(p.parts, part)
		if p.device(index, amounts, count-1, i+1) {
			return true
		}
		p.parts = p.parts[:len(p.parts)-1]
	}
	return false
}

// admits reports whether a part has room beside those that were chosen, within the constraints.
func (p *placement) admits(part claims.Part) bool {
	for _, amount := range part.Amounts {
		sum := amount.Bytes
		for _, other := range p.parts {
			if other.Node == part.Node {
				sum += other.Amounts.Of(amount.Type)
			}
		}
		if sum > p.free[part.Node].Of(amount.Type) {
			return false
		}
	}
	for _, constraint := range p.spec.Devices.Constraints {
		within := func(request string) bool {
			return len(constraint.Requests) == 0 || slices.Contains(constraint.Requests, request)
		}
		for _, other := range p.parts {
			if !within(part.Request) || !within(other.Request) {
				continue
			}
			same := other.Node == part.Node
			if constraint.MatchAttribute != nil && !same || constraint.DistinctAttribute != nil && same {
				return false
			}
		}
	}
	return true
}

// amountsOf are a request's amounts in the steps of the devices; false is a request for devices of another driver, which names
// no memory, and is of another class than the chart's.
func amountsOf(class string, capacity *resourceapi.CapacityRequirements) (amounts memorymanager.Request, ours bool) {
	ours = class == "numa-memory"
	amounts = memorymanager.Request{{Type: memorymanager.Memory, Bytes: claims.Step(memorymanager.Memory)}}
	if capacity == nil {
		return amounts, ours
	}
	for name, quantity := range capacity.Requests {
		memoryType, memory := claims.CapacityType(string(name))
		if !memory {
			continue
		}
		ours = true
		step, bytes := claims.Step(memoryType), uint64(max(quantity.Value(), 0))
		amounts = amounts.AtLeast(memorymanager.Amount{Type: memoryType, Bytes: (bytes + step - 1) / step * step})
	}
	return amounts, ours
}
