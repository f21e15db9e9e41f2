package simulator

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
)

// checkQuantities finds quantities that cannot be read before the typed reader does, which does not say where they are.
func checkQuantities(content any, path string) error {
	switch value := content.(type) {
	case map[string]any:
		for _, key := range sortedKeys(value) {
			at := strings.TrimPrefix(path+"."+key, ".")
			list, isMap := value[key].(map[string]any)
			if isMap && (key == "requests" || key == "limits" || key == "overhead") {
				for _, name := range sortedKeys(list) {
					if err := checkQuantity(list[name]); err != nil {
						return fmt.Errorf("%s.%s: %w", at, name, err)
					}
				}
				continue
			}
			if err := checkQuantities(value[key], at); err != nil {
				return err
			}
		}
	case []any:
		for i, element := range value {
			if err := checkQuantities(element, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func sortedKeys(content map[string]any) []string {
	keys := make([]string, 0, len(content))
	for key := range content {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func checkQuantity(value any) error {
	text := fmt.Sprint(value)
	if number, ok := value.(float64); ok && number == math.Trunc(number) && math.Abs(number) < 1<<63 {
		text = fmt.Sprintf("%.0f", number)
	}
	if _, err := resource.ParseQuantity(text); err != nil {
		return fmt.Errorf("%q is not a quantity; want for example 64Mi, 1.5Gi or 2", text)
	}
	return nil
}

var uid = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// check refuses what the API server would refuse of the fields that matter here.
func check(pod *corev1.Pod) error {
	if problems := validation.IsDNS1123Subdomain(pod.Name); len(problems) > 0 {
		return fmt.Errorf("metadata.name %q: %s", pod.Name, problems[0])
	}
	if problems := validation.IsDNS1123Label(pod.Namespace); len(problems) > 0 {
		return fmt.Errorf("metadata.namespace %q: %s", pod.Namespace, problems[0])
	}
	if !uid.MatchString(string(pod.UID)) {
		return fmt.Errorf("metadata.uid %q: want up to 64 letters, digits and dashes", pod.UID)
	}
	if len(pod.Spec.Containers) == 0 {
		return errors.New("spec.containers is empty; want at least one container")
	}
	if err := checkList("spec.overhead", pod.Spec.Overhead); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, part := range []struct {
		path       string
		containers []corev1.Container
	}{{"spec.initContainers", pod.Spec.InitContainers}, {"spec.containers", pod.Spec.Containers}} {
		for i, container := range part.containers {
			if problems := validation.IsDNS1123Label(container.Name); len(problems) > 0 {
				return fmt.Errorf("%s[%d].name %q: %s", part.path, i, container.Name, problems[0])
			}
			if names[container.Name] {
				return fmt.Errorf("%s[%d].name %q is there twice", part.path, i, container.Name)
			}
			names[container.Name] = true
			if err := checkResources(container.Resources); err != nil {
				return fmt.Errorf("container %q: %w", container.Name, err)
			}
		}
	}
	return checkPodLevel(pod)
}

// checkResources checks each quantity, and requests against limits.
func checkResources(resources corev1.ResourceRequirements) error {
	if err := checkList("resources.limits", resources.Limits); err != nil {
		return err
	}
	if err := checkList("resources.requests", resources.Requests); err != nil {
		return err
	}
	hugepages := false
	for name, request := range resources.Requests {
		limit, limited := resources.Limits[name]
		isHugepages := strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		hugepages = hugepages || isHugepages
		switch {
		case isHugepages && (!limited || request.Cmp(limit) != 0):
			return fmt.Errorf("resources.requests.%s: %s must equal its limit (%s): huge pages cannot be overcommitted", name, request.String(), limit.String())
		case limited && request.Cmp(limit) > 0:
			return fmt.Errorf("resources.requests.%s: %s is more than the limit of %s", name, request.String(), limit.String())
		}
	}
	_, cpu := resources.Requests[corev1.ResourceCPU]
	_, memory := resources.Requests[corev1.ResourceMemory]
	if hugepages && !cpu && !memory {
		return errors.New("resources: huge pages need a cpu or memory request beside them")
	}
	return nil
}

var maxBytes = resource.NewQuantity(math.MaxInt64, resource.BinarySI)

func checkList(path string, list corev1.ResourceList) error {
	for name, quantity := range list {
		at := fmt.Sprintf("%s.%s: %s", path, name, quantity.String())
		pages, isHugepages := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		bytes := isHugepages || name == corev1.ResourceMemory
		switch {
		case quantity.Sign() < 0:
			return fmt.Errorf("%s is negative", at)
		case quantity.Cmp(*maxBytes) >= 0:
			return fmt.Errorf("%s is more than any machine has (2^63 - 1 at most)", at)
		case bytes && !whole(quantity):
			return fmt.Errorf("%s is not a whole number of bytes", at)
		}
		if isHugepages {
			size, err := resource.ParseQuantity(pages)
			if err != nil || size.Sign() <= 0 {
				return fmt.Errorf("%s: %q is not a page size; want for example hugepages-2Mi", at, pages)
			}
			if quantity.Value()%size.Value() != 0 {
				return fmt.Errorf("%s is not a multiple of the page size", at)
			}
		}
	}
	return nil
}

func whole(quantity resource.Quantity) bool {
	return resource.NewQuantity(quantity.Value(), quantity.Format).Cmp(quantity) == 0
}

// checkPodLevel checks spec.resources (pod-level resources) against the containers'.
func checkPodLevel(pod *corev1.Pod) error {
	level := pod.Spec.Resources
	if level == nil {
		return nil
	}
	// Before the requests, which may follow from the containers' limits.
	for name, limit := range level.Limits {
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if own, ok := container.Resources.Limits[name]; ok && own.Cmp(limit) > 0 {
				return fmt.Errorf("spec.resources.limits.%s: %s is less than the limit %s of container %q", name, limit.String(), own.String(), container.Name)
			}
		}
	}
	if err := checkResources(*level); err != nil {
		return fmt.Errorf("spec.%w", err)
	}
	sums := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	for name, request := range level.Requests {
		if sum := sums[name]; sum.Cmp(request) > 0 {
			return fmt.Errorf("spec.resources.requests.%s: %s is less than the %s of the containers together", name, request.String(), sum.String())
		}
	}
	return nil
}
