package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
	kyaml "sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// object is an object of a manifest, and where it is.
type object struct {
	file string
	path string // within the document; empty unless it is an item of a list
	node *yaml.Node
	doc  *strictyaml.Document
	// version and kind are of an item of a list that does not say its own.
	version, kind string
	// template is where the pod template is; empty for a Pod.
	template string
}

func (o object) wrong(format string, args ...any) error {
	return &strictyaml.Error{File: o.file, Line: o.node.Line, Path: o.path, Message: fmt.Sprintf(format, args...)}
}

func (o object) errorf(path, format string, args ...any) error {
	return o.doc.Errorf(o.at(path), format, args...)
}

// at is where the manifest has a field of the pod.
func (o object) at(path string) string {
	if strings.HasPrefix(path, "spec") {
		path = strings.TrimPrefix(o.template+"."+path, ".")
	}
	return strings.TrimPrefix(o.path+"."+path, ".")
}

func (o object) place() string { return fmt.Sprintf("%s:%d", o.file, o.node.Line) }

var quantityType = reflect.TypeFor[resource.Quantity]()

// otherLeaves are what other types that read themselves may hold.
var otherLeaves = map[reflect.Type]string{
	reflect.TypeFor[intstr.IntOrString](): "a number or a text",
	reflect.TypeFor[metav1.Time]():        "a time such as 2026-01-02T15:04:05Z",
}

// checkLeaf finds quantities and others that cannot be read before the reader does, which does not say where they are and cuts
// large quantities.
func checkLeaf(of reflect.Type, n *yaml.Node) error {
	if want := otherLeaves[of]; want != "" {
		text, err := withoutComments(n)
		if err == nil && kyaml.Unmarshal(text, reflect.New(of).Interface()) != nil {
			err = fmt.Errorf("want %s, got %s", want, strictyaml.Describe(n))
		}
		return err
	}
	if of != quantityType || n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("%s is not a quantity; want for example 64Mi, 1.5Gi or 2", strictyaml.Describe(n))
	}
	text := n.Value[:min(len(n.Value), 80)]
	switch _, err := quantity.ParseRoundedUp(n.Value); {
	case err == nil:
		return nil
	case errors.Is(err, quantity.ErrNegative):
		return fmt.Errorf("%s is negative", text)
	case errors.Is(err, quantity.ErrTooLarge):
		return fmt.Errorf("%s is more than any machine has (2^63 - 1 at most)", text)
	case errors.Is(err, quantity.ErrFormat):
		return fmt.Errorf("%q is not a quantity; want for example 64Mi, 1.5Gi or 2", text)
	default:
		return err
	}
}

var uid = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// check refuses what the API server would refuse of the fields that matter here.
func (o object) check(pod *corev1.Pod) error {
	if problems := validation.IsDNS1123Subdomain(pod.Name); len(problems) > 0 {
		return o.errorf("metadata.name", "%q: %s", pod.Name, problems[0])
	}
	if problems := validation.IsDNS1123Label(pod.Namespace); len(problems) > 0 {
		return o.errorf("metadata.namespace", "%q: %s", pod.Namespace, problems[0])
	}
	if !uid.MatchString(string(pod.UID)) {
		return o.errorf("metadata.uid", "%q: want up to 64 letters, digits and dashes", pod.UID)
	}
	if len(pod.Spec.Containers) == 0 {
		return o.errorf("spec.containers", "is empty; want at least one container")
	}
	if err := o.checkList("spec.overhead", pod.Spec.Overhead); err != nil {
		return err
	}
	var claims []string
	for _, claim := range pod.Spec.ResourceClaims {
		claims = append(claims, claim.Name)
	}
	names := map[string]bool{}
	for _, part := range []struct {
		path       string
		containers []corev1.Container
	}{{"spec.initContainers", pod.Spec.InitContainers}, {"spec.containers", pod.Spec.Containers}} {
		for i, container := range part.containers {
			path := fmt.Sprintf("%s[%d]", part.path, i)
			if problems := validation.IsDNS1123Label(container.Name); len(problems) > 0 {
				return o.errorf(path+".name", "%q: %s", container.Name, problems[0])
			}
			if names[container.Name] {
				return o.errorf(path+".name", "%q is there twice", container.Name)
			}
			names[container.Name] = true
			for c, claim := range container.Resources.Claims {
				if !slices.Contains(claims, claim.Name) {
					return o.errorf(fmt.Sprintf("%s.resources.claims[%d].name", path, c), "%q is not a name in spec.resourceClaims%s", claim.Name, spelling.HintOr(claim.Name, claims))
				}
			}
			if err := o.checkResources(path+".resources", container.Resources); err != nil {
				return err
			}
		}
	}
	return o.checkPodLevel(pod)
}

// checkResources checks each quantity, and requests against limits.
func (o object) checkResources(path string, resources corev1.ResourceRequirements) error {
	if err := o.checkList(path+".limits", resources.Limits); err != nil {
		return err
	}
	if err := o.checkList(path+".requests", resources.Requests); err != nil {
		return err
	}
	hugepages := false
	for name, request := range resources.Requests {
		at := path + ".requests." + string(name)
		limit, limited := resources.Limits[name]
		isHugepages := strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		hugepages = hugepages || isHugepages
		switch {
		case (isHugepages || extended(name)) && !limited:
			return o.errorf(at, "%s must equal its limit (none): %s", request.String(), notOvercommitted)
		case (isHugepages || extended(name)) && request.Cmp(limit) != 0:
			return o.errorf(at, "%s must equal its limit (%s): %s", request.String(), limit.String(), notOvercommitted)
		case limited && request.Cmp(limit) > 0:
			return o.errorf(at, "%s is more than the limit of %s", request.String(), limit.String())
		}
	}
	_, cpu := resources.Requests[corev1.ResourceCPU]
	_, memory := resources.Requests[corev1.ResourceMemory]
	if hugepages && !cpu && !memory {
		return o.errorf(path, "huge pages need a cpu or memory request beside them")
	}
	return nil
}

// resourceNames are what containers and pods can ask for.
var resourceNames = []string{"cpu", "memory", "ephemeral-storage", "hugepages-<size>", "DOMAIN/NAME"}

const notOvercommitted = "huge pages and extended resources cannot be overcommitted"

// extended reports whether a resource is an extended one, such as a device plugin's: its domain is not Kubernetes'.
func extended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// checkList checks names of resources, and quantities of bytes and of extended resources: they are whole, and huge pages are whole pages.
func (o object) checkList(path string, list corev1.ResourceList) error {
	for name, quantity := range list {
		at := path + "." + string(name)
		text := cmp.Or(o.doc.Text(o.at(at)), quantity.String())
		pages, isHugepages := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if (isHugepages || name == corev1.ResourceMemory) && !whole(quantity) {
			return o.errorf(at, "%s is not a whole number of bytes", text)
		}
		if !isHugepages && !strings.Contains(string(name), "/") && !slices.Contains(resourceNames, string(name)) {
			return o.errorf(at, "%q is not a resource of Kubernetes%s", name, spelling.HintOr(string(name), resourceNames))
		}
		if err := checkName(name); err != nil {
			return o.errorf(at, "%v", err)
		}
		if extended(name) && !whole(quantity) {
			return o.errorf(at, "%s is not a whole number", text)
		}
		if isHugepages {
			size, err := resource.ParseQuantity(pages)
			if err != nil || size.Sign() <= 0 {
				return o.errorf(at, "%q is not a page size; want for example hugepages-2Mi", pages)
			}
			if quantity.Value()%size.Value() != 0 {
				return o.errorf(at, "%s is not a multiple of the page size", text)
			}
		}
	}
	return nil
}

// checkName refuses what the API server refuses of a resource's name (IsExtendedResourceName): an extended resource's is also a good name with
// the prefix that a ResourceQuota puts before it.
func checkName(name corev1.ResourceName) error {
	own, isQuota := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	switch problems := validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix + own); {
	case !extended(name):
		return nil
	case isQuota:
		return fmt.Errorf("%q is how a ResourceQuota names %q; want that", name, own)
	case len(problems) > 0:
		return fmt.Errorf("%q is not a DOMAIN/NAME such as nvidia.com/gpu: %s", name, problems[0])
	}
	return nil
}

func whole(quantity resource.Quantity) bool {
	return resource.NewQuantity(quantity.Value(), quantity.Format).Cmp(quantity) == 0
}

// checkPodLevel checks spec.resources (pod-level resources) against the containers'.
func (o object) checkPodLevel(pod *corev1.Pod) error {
	level := pod.Spec.Resources
	if level == nil {
		return nil
	}
	// Before the requests, which may follow from the containers' limits.
	for name, limit := range level.Limits {
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if own, ok := container.Resources.Limits[name]; ok && own.Cmp(limit) > 0 {
				return o.errorf("spec.resources.limits."+string(name), "%s is less than the limit %s of container %q", limit.String(), own.String(), container.Name)
			}
		}
	}
	if err := o.checkResources("spec.resources", *level); err != nil {
		return err
	}
	sums := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	for name, request := range level.Requests {
		if sum := sums[name]; sum.Cmp(request) > 0 {
			return o.errorf("spec.resources.requests."+string(name), "%s is less than the %s of the containers together", request.String(), sum.String())
		}
	}
	return nil
}
