package kubectl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// program is the daemon's, and its container's name.
const program = "nri-memory-manager"

// daemon is where a node's daemon runs.
type daemon struct {
	node, namespace, pod, container string
	program                         string
	args                            []string // of the daemon itself
}

// absent says why there is no daemon to ask on a node.
type absent struct{ node, why string }

func (a absent) Error() string { return "no daemon runs on node " + a.node + ": " + a.why }

// unambiguous refuses daemons in several namespaces: whoever may create pods somewhere could answer for the real one.
func (p place) unambiguous(pods []corev1.Pod) error {
	namespaces := map[string]bool{}
	for i := range pods {
		if ofDaemonSet(&pods[i]) {
			namespaces[pods[i].Namespace] = true
		}
	}
	if len(namespaces) > 1 {
		return fmt.Errorf("DaemonSets in several namespaces have pods with the labels %s (%s): name the right one with --daemon-namespace",
			p.selector, strings.Join(slices.Sorted(maps.Keys(namespaces)), ", "))
	}
	return nil
}

// choose returns the daemon among the pods on a node: a ready one before one that only runs. While a DaemonSet is updated there
// is an old pod that ends and a new one.
func (p place) choose(node string, pods []corev1.Pod) (*daemon, error) {
	why := "there is no pod of a DaemonSet with the labels " + p.selector
	if p.namespace != "" {
		why += " in namespace " + p.namespace
	}
	why += "; see the node selector and the tolerations of the DaemonSet"
	var chosen *corev1.Pod
	for i := range pods {
		pod := &pods[i]
		switch {
		case !ofDaemonSet(pod):
		case pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil:
			why = fmt.Sprintf("its pod %s/%s %s", pod.Namespace, pod.Name, condition(pod))
		case chosen == nil || ready(pod):
			chosen = pod
		}
	}
	if chosen == nil {
		return nil, absent{node, why}
	}
	return daemonIn(node, chosen), nil
}

func daemonIn(node string, pod *corev1.Pod) *daemon {
	container := &pod.Spec.Containers[0]
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == program {
			container = &pod.Spec.Containers[i] // others may have been injected
		}
	}
	d := &daemon{node: node, namespace: pod.Namespace, pod: pod.Name, container: container.Name, program: program, args: container.Args}
	if len(container.Command) > 0 {
		d.program, d.args = container.Command[0], slices.Concat(container.Command[1:], container.Args)
	}
	return d
}

func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet" && len(pod.Spec.Containers) > 0
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
	"verify":  {"state-dir", "cgroups", "plain-cgroups", "machine"},
}

// commandLine is a command line for the daemon's container.
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
