package kubectl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// program is the daemon's, and its container's name.
const program = "nri-memory-manager"

// daemon is where a node's daemon runs.
type daemon struct {
	node, namespace, pod, container string
	program                         string
	args                            []string // of the daemon itself
}

// silence is why a node gives no answer: it has no daemon, or one that does not answer.
type silence struct {
	state state
	node  string
	why   string
}

func (s silence) Error() string {
	if s.state == noDaemon {
		return "no daemon runs on node " + s.node + ": " + s.why
	}
	return "the daemon on node " + s.node + " does not answer: " + s.why
}

// installation are the DaemonSets whose pods are the daemons, all in one namespace; none where nothing is installed.
type installation struct {
	place
	sets []appsv1.DaemonSet
}

// among finds the installation among DaemonSets: those whose pods have the labels, and a container of the daemon's name. Several
// namespaces are refused: a user who may create DaemonSets somewhere could answer for the real one.
func (p place) among(sets []appsv1.DaemonSet) (installation, error) {
	wanted, err := labels.Parse(p.selector)
	if err != nil {
		return installation{}, fmt.Errorf("--daemon-selector %q: want labels such as %s: %w", p.selector, defaultSelector, err)
	}
	found := installation{place: p}
	namespaces := map[string]bool{}
	for _, set := range sets {
		if template := set.Spec.Template; wanted.Matches(labels.Set(template.Labels)) && containerOf(template.Spec) != nil {
			found.sets = append(found.sets, set)
			namespaces[set.Namespace] = true
		}
	}
	if len(namespaces) > 1 {
		return installation{}, fmt.Errorf("DaemonSets in several namespaces have pods with the labels %s (%s): name the right one with --daemon-namespace",
			p.selector, strings.Join(slices.Sorted(maps.Keys(namespaces)), ", "))
	}
	return found, nil
}

// owns reports whether a pod is one of a DaemonSet of the installation. Labels alone say nothing: others may have them.
func (i installation) owns(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && containerOf(pod.Spec) != nil && slices.ContainsFunc(i.sets, func(set appsv1.DaemonSet) bool {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		return err == nil && selector.Matches(labels.Set(pod.Labels)) && pod.Namespace == set.Namespace &&
			owner.APIVersion == appsv1.SchemeGroupVersion.String() && owner.Kind == "DaemonSet" &&
			owner.Name == set.Name && owner.UID == set.UID
	})
}

// choose returns the daemon among the pods on a node: a ready one before one that only runs. While a DaemonSet is updated there
// is an old pod that ends and a new one.
func (i installation) choose(node string, pods []corev1.Pod) (*daemon, error) {
	if len(i.sets) == 0 {
		where := "in the cluster"
		if i.namespace != "" {
			where = "in namespace " + i.namespace
		}
		why := fmt.Sprintf("there is no DaemonSet %s whose pods have the labels %s and a container %s", where, i.selector, program)
		return nil, silence{noDaemon, node, why}
	}
	var chosen *corev1.Pod
	var other, why string
	for p := range pods {
		pod := &pods[p]
		switch {
		case !i.owns(pod):
			other = fmt.Sprintf("; pod %s/%s has the labels %s, and is not asked: it is none of the DaemonSet's, or has no container %s",
				pod.Namespace, pod.Name, i.selector, program)
		case pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil:
			why = fmt.Sprintf("its pod %s/%s %s", pod.Namespace, pod.Name, condition(pod))
		case chosen == nil || ready(pod):
			chosen = pod
		}
	}
	if chosen != nil {
		return daemonIn(node, chosen), nil
	}
	if why == "" {
		why = "there is no pod of DaemonSet " + i.names() + "; see its node selector and tolerations" + other
	}
	return nil, silence{noDaemon, node, why}
}

// names are those of the DaemonSets.
func (i installation) names() string {
	var names []string
	for _, set := range i.sets {
		names = append(names, set.Namespace+"/"+set.Name)
	}
	return strings.Join(names, " or ")
}

// containerOf is the daemon's container; nil where there is none. Others may have been injected.
func containerOf(spec corev1.PodSpec) *corev1.Container {
	if i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == program }); i >= 0 {
		return &spec.Containers[i]
	}
	return nil
}

// daemonIn is the daemon in a pod that has its container.
func daemonIn(node string, pod *corev1.Pod) *daemon {
	container := containerOf(pod.Spec)
	d := &daemon{node: node, namespace: pod.Namespace, pod: pod.Name, container: container.Name, program: program, args: container.Args}
	if len(container.Command) > 0 {
		d.program, d.args = container.Command[0], slices.Concat(container.Command[1:], container.Args)
	}
	return d
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// condition says why a pod does not run.
func condition(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "is being deleted"
	}
	text := "is " + string(pod.Status.Phase)
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return text + " (" + strings.TrimSuffix(w.Reason+": "+w.Message, ": ") + ")"
		}
	}
	return text
}

// repeated are the daemon's own flags that each command has, too: they must say the same for both to use the same files.
var repeated = map[string][]string{
	"status":  {"state-dir"},
	"explain": {"state-dir"},
	"oom":     {"state-dir"},
	"verify":  {"state-dir", "cgroups", "plain-cgroups", "machine"},
}

func (d *daemon) commandLine(command string, args ...string) []string {
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	for _, name := range []string{"state-dir", "cgroups", "machine"} {
		flags.String(name, "", "")
	}
	flags.Bool("plain-cgroups", false, "")
	_ = flags.Parse(d.args) // the daemon runs with them; what cannot be read here has its default
	line := []string{d.program, command}
	for _, name := range repeated[command] {
		if flag := flags.Lookup(name); flag.Changed {
			line = append(line, "--"+name+"="+flag.Value.String())
		}
	}
	return append(line, args...)
}
