package simulator

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Admission decides as the kubelet does before it starts a pod (pkg/kubelet/lifecycle/predicate.go), with its reasons: does the
// node have the pod's operating system, its resources and its labels, and, under the static policy, CPUs for it.
//
// It differs in two ways. A kubelet admits a pod that was bound to it although nobody offers its extended resource; the
// scheduler never binds such a pod, and here it is not admitted. And the kubelet asks the CPU manager first: the same pods are
// rejected, but what is plainly too much has the scheduler's reason here.
type Admission struct {
	labels            map[string]string // nil: not known
	allocatable, used amounts
	cpus              *cpuManager // nil without the static policy
	unchecked         int         // pods whose node selector or node affinity could not be looked at
}

// amounts are resources by name: thousandths of CPUs, bytes, or numbers.
type amounts map[corev1.ResourceName]int64

// operatingSystem is that of every machine here.
const operatingSystem = "linux"

// AdmissionError is why the kubelet does not admit a pod.
type AdmissionError struct {
	// Reason is the kubelet's, as in the pod's status, for example OutOfcpu.
	Reason  string
	Message string
}

func (r *AdmissionError) Error() string { return r.Reason + ": " + r.Message }

// NewAdmission returns the admission of a node without pods. The error is about the configuration or the machine file.
func NewAdmission(of machine.Description, resolved config.Resolved) (*Admission, error) {
	a := &Admission{labels: of.Labels, allocatable: amounts{}, used: amounts{}}
	for name, number := range of.Resources {
		a.allocatable[corev1.ResourceName(name)] = int64(min(number, 1<<62))
	}
	if of.MaxPods > 0 {
		a.allocatable[corev1.ResourcePods] = int64(of.MaxPods)
	}
	reserved, err := cpuReservation(of, resolved.Config)
	if err != nil {
		return nil, err
	}
	if cpus := of.CPUs().Size(); cpus > 0 {
		a.allocatable[corev1.ResourceCPU] = max(int64(cpus)*1000-reserved, 0)
	}
	// The settings have capacity less kubeReserved and systemReserved.
	memory := int64(resolved.QoS.NodeAllocatable - min(resolved.Eviction, resolved.QoS.NodeAllocatable))
	for _, node := range of.Nodes {
		for _, pool := range node.Hugepages {
			bytes := int64(pool.Count * pool.PageSize)
			a.allocatable[corev1.ResourceName(corev1.ResourceHugePagesPrefix+quantity.Format(pool.PageSize))] += bytes
			memory -= bytes
		}
	}
	for _, list := range []map[string]string{resolved.Config.KubeReserved, resolved.Config.SystemReserved} {
		for name, text := range list {
			if bytes, err := quantity.Parse(text); err == nil && strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
				a.allocatable[corev1.ResourceName(name)] = max(a.allocatable[corev1.ResourceName(name)]-int64(bytes), 0)
			}
		}
	}
	a.allocatable[corev1.ResourceMemory] = max(memory, 0)
	if of.CPUManagerPolicy == machine.CPUsStatic {
		a.cpus, err = newCPUManager(of, resolved.Config, reserved)
	}
	return a, err
}

// cpuReservation is what the kubelet keeps of the CPUs, in thousandths: reservedSystemCPUs, or else kubeReserved and
// systemReserved.
func cpuReservation(of machine.Description, c config.Config) (milli int64, err error) {
	if number := of.ReservedSystemCPUs.Size(); number > 0 {
		return int64(number) * 1000, nil
	}
	for key, list := range map[string]map[string]string{"kubeReserved": c.KubeReserved, "systemReserved": c.SystemReserved} {
		text, named := list[string(corev1.ResourceCPU)]
		if !named {
			continue
		}
		cpus, err := resource.ParseQuantity(text)
		if err != nil || cpus.Sign() < 0 {
			return 0, c.Errorf(key, "cpu %q is not a number of CPUs; want for example 2 or 500m", text)
		}
		milli += cpus.MilliValue()
	}
	return milli, nil
}

// Admit admits a pod, which then has its resources until Release. The error is an *AdmissionError.
func (a *Admission) Admit(pod *corev1.Pod) error {
	if a == nil {
		return nil
	}
	if err := checkOS(pod); err != nil {
		return err
	}
	asked := requests(pod)
	if err := a.checkResources(asked); err != nil {
		return err
	}
	if err := a.checkLabels(pod); err != nil {
		return err
	}
	if a.cpus != nil {
		if err := a.cpus.admit(pod); err != nil {
			return err
		}
	}
	for name, amount := range asked {
		a.used[name] += amount
	}
	return nil
}

// Release takes back what an admitted pod has.
func (a *Admission) Release(pod *corev1.Pod) {
	if a == nil {
		return
	}
	for name, amount := range requests(pod) {
		a.used[name] -= amount
	}
	if a.cpus != nil {
		a.cpus.release(pod)
	}
}

// cpusOf is the cpuset.cpus that the kubelet gives a container; "" without the static policy.
func (a *Admission) cpusOf(pod *corev1.Pod, container *corev1.Container) string {
	if a == nil || a.cpus == nil {
		return ""
	}
	return a.cpus.of(pod, container.Name).String()
}

// requests are what a pod asks for, as the scheduler and the kubelet count it.
func requests(pod *corev1.Pod) amounts {
	asked := amounts{corev1.ResourcePods: 1}
	for name, quantity := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		switch {
		case name == corev1.ResourceEphemeralStorage || quantity.Sign() <= 0:
		case quantity.CmpInt64(math.MaxInt64/1000) > 0: // more than there ever is, and a sum may be beyond 64 bits
			asked[name] = math.MaxInt64
		case name == corev1.ResourceCPU:
			asked[name] = quantity.MilliValue()
		default:
			asked[name] = quantity.Value()
		}
	}
	return asked
}

func checkOS(pod *corev1.Pod) error {
	if name, named := pod.Labels[corev1.LabelOSStable]; named && name != operatingSystem {
		return &AdmissionError{"PodOSSelectorNodeLabelDoesNotMatch", fmt.Sprintf(
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label (the pod's is %s, the node's %s)", name, operatingSystem)}
	}
	if os := pod.Spec.OS; os != nil && os.Name != operatingSystem {
		return &AdmissionError{"PodOSNotSupported", fmt.Sprintf(
			"Failed to admit pod as the OS field doesn't match node OS (spec.os.name is %s, the node has %s)", os.Name, operatingSystem)}
	}
	return nil
}

// checkResources names the first resource that is short, in the scheduler's order: pods, CPU, memory, then the others.
func (a *Admission) checkResources(asked amounts) error {
	first := []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory}
	rank := func(name corev1.ResourceName) int {
		if i := slices.Index(first, name); i >= 0 {
			return i
		}
		return len(first)
	}
	names := slices.SortedFunc(maps.Keys(asked), func(x, y corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x, y))
	})
	for _, name := range names {
		has, known := a.allocatable[name]
		if !known && (name == corev1.ResourcePods || name == corev1.ResourceCPU) {
			continue // the machine says nothing of them
		}
		if asked[name] > has-a.used[name] {
			return &AdmissionError{"OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d (%s)",
				name, asked[name], a.used[name], has, a.shortage(name, asked[name]))}
		}
	}
	return nil
}

// shortage says in people's units what there is of a resource.
func (a *Admission) shortage(name corev1.ResourceName, asked int64) string {
	has, known := a.allocatable[name]
	pages := strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	shown := func(amount int64) string {
		switch {
		case name == corev1.ResourceCPU:
			return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
		case pages || name == corev1.ResourceMemory:
			return quantity.Short(uint64(amount))
		}
		return strconv.FormatInt(amount, 10)
	}
	switch {
	case !known && pages:
		return shown(asked) + " needed, the machine has no pages of this size"
	case !known:
		return shown(asked) + " needed, the machine has none; a machine file names them under resources"
	}
	return fmt.Sprintf("%s needed, %s of %s allocatable free", shown(asked), shown(max(has-a.used[name], 0)), shown(has))
}

// checkLabels matches the pod's node selector and required node affinity with the node's labels.
func (a *Admission) checkLabels(pod *corev1.Pod) error {
	node := &corev1.Node{}
	node.Labels = map[string]string{corev1.LabelOSStable: operatingSystem, "beta.kubernetes.io/os": operatingSystem}
	maps.Copy(node.Labels, a.labels)
	// A pod that is bound to a node may select it by its name.
	node.Name = cmp.Or(a.labels[corev1.LabelHostname], pod.Spec.NodeName)
	known := pod
	if a.labels == nil {
		known = &corev1.Pod{}
		known.Spec.NodeSelector = maps.Clone(pod.Spec.NodeSelector)
		maps.DeleteFunc(known.Spec.NodeSelector, func(key, _ string) bool { return node.Labels[key] == "" })
		if len(known.Spec.NodeSelector) < len(pod.Spec.NodeSelector) || requiredAffinity(pod) != nil {
			a.unchecked++
		}
	}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(known).Match(node)
	switch {
	case err != nil:
		return &AdmissionError{"NodeAffinity", fmt.Sprintf("Predicate NodeAffinity failed: %v", err)}
	case !matches:
		return &AdmissionError{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector" + mismatch(known, node)}
	}
	return nil
}

// requiredAffinity is the node affinity that a pod requires; nil where it requires none.
func requiredAffinity(pod *corev1.Pod) *corev1.NodeSelector {
	if affinity := pod.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		return affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// mismatch names the labels of a node selector that the node does not have; empty where the affinity is the reason.
func mismatch(pod *corev1.Pod, node *corev1.Node) string {
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		has, labelled := node.Labels[key]
		switch want := pod.Spec.NodeSelector[key]; {
		case !labelled:
			wrong = append(wrong, fmt.Sprintf("%s is to be %q, the node has no such label", key, want))
		case has != want:
			wrong = append(wrong, fmt.Sprintf("%s is to be %q, the node's is %q", key, want, has))
		}
	}
	if len(wrong) == 0 {
		return ""
	}
	return " (" + strings.Join(wrong, "; ") + ")"
}

// notLookedAt is one line about what a node may have besides, and reject a pod for.
func (a *Admission) notLookedAt() string {
	if a == nil {
		return "whether the kubelet admits the pods"
	}
	var parts []string
	add := func(missing bool, text string) {
		if missing {
			parts = append(parts, text)
		}
	}
	_, cpus := a.allocatable[corev1.ResourceCPU]
	_, pods := a.allocatable[corev1.ResourcePods]
	add(a.labels == nil, "node labels but kubernetes.io/os (the machine has none)")
	add(!cpus, "CPUs (the machine has none)")
	add(!pods, "maxPods")
	add(a.cpus == nil, "exclusive CPUs (--cpu-manager-policy)")
	return strings.Join(append(parts, "taints", "host ports", "volumes", "ephemeral storage", "devices", "priority", "LimitRanges"), ", ")
}

// Unchecked is a line about pods whose node selector or node affinity could not be looked at; none where there are none.
func (a *Admission) Unchecked() []string {
	if a.unchecked == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the machine has no labels: node selector and node affinity of %d pods were not looked at", a.unchecked)}
}
