package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
	"sigs.k8s.io/yaml"
)

var kubectlPlugin = built("./plugin/kubectl")

// daemons is the namespace of the daemons' pods, where role.yaml has it.
const daemons = "nri-memory-manager"

// TestTheKubectlPluginAsksTheDaemons asks two daemons in processes through a whole API server, as a user with the rights of
// deploy/kubectl/role.yaml. The nodes' kubelets are the streaming server of their own projects: what is executed in a
// daemon's pod runs here.
func TestTheKubectlPluginAsksTheDaemons(t *testing.T) {
	t.Parallel()
	admin, audit := startKubernetes(t)
	client, err := kubernetes.NewForConfig(admin)
	must(t, err)
	_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: daemons}}, metav1.CreateOptions{})
	must(t, err)
	grantToUsers(t, client)
	set := createDaemonSet(t, client)
	port := serveExec(t, plugin(t))
	nodes := map[string]*node{}
	for _, name := range []string{"worker-1", "worker-2"} {
		nodes[name] = newNodeNamed(t, name, admin, machine, "requestSources: [oomscore]")
		createNode(t, client, name, port)
		createDaemonPod(t, client, set, name, nodes[name])
	}
	createNode(t, client, "worker-3", port) // without a daemon
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer hangs.Close()
	createNode(t, client, "worker-4", hangs.Addr().(*net.TCPAddr).Port)
	createDaemonPod(t, client, set, "worker-4", nodes["worker-1"])
	impostor := set.DeepCopy()
	impostor.UID = "made-up"
	createNode(t, client, "worker-5", port)
	createDaemonPod(t, client, impostor, "worker-5", nodes["worker-1"])

	uid := createUsersPod(t, client, "database", "worker-1", "3Gi")
	must(t, nodes["worker-1"].place("database", uid, 3<<30))
	must(t, nodes["worker-1"].runtime.StartContainer(t.Context(), "container-"+uid))
	if err := nodes["worker-2"].place("large", createUsersPod(t, client, "large", "worker-2", "40Gi"), 40<<30); err == nil {
		t.Error("40Gi were placed on 32Gi")
	}
	createUsersPod(t, client, "waiting", "", "3Gi")
	createUsersPod(t, client, "elsewhere", "worker-3", "3Gi")
	createUsersPod(t, client, "deceived", "worker-5", "3Gi")

	jane := userOf(t, admin, "jane")
	jane.asks(0, "explain", "database").is(nodes["worker-1"].says("explain", "default/database"))
	jane.asks(0, "oom", "database").is(nodes["worker-1"].says("oom", "default/database"))
	jane.asks(0, "explain", "database", "-c", "app", "-o", "json").is(nodes["worker-1"].says("explain", "default/database/app", "-o", "json"))
	jane.asks(0, "explain", "large").has("default/large app (Guaranteed)", "placed now, it would be rejected")
	jane.asks(0, "status", "--node", "worker-1", "-o", "wide").is(nodes["worker-1"].says("status", "-o", "wide"))
	jane.asks(0, "verify", "database").is(nodes["worker-1"].says("verify", "default/database", "--cgroups", nodes["worker-1"].path("cgroups"),
		"--plain-cgroups", "--machine", nodes["worker-1"].path("machine.yaml"))).has("1 running container looked at: nothing is wrong")
	table := jane.asks(0, "status", "--all-nodes", "--node-timeout", "5s").text
	var states []string
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		states = append(states, words[0]+" "+strings.Join(words[5:min(len(words), 7)], " "))
	}
	if difference := cmp.Diff([]string{"NODE STATE", "worker-2 1 rejected", "worker-3 no daemon:", "worker-5 no daemon:", "worker-4 not answering:", "worker-1 ok"}, states); difference != "" {
		t.Errorf("%s\n%s", difference, table)
	}
	jane.asks(1, "verify", "--node-timeout", "5s").has("NODE worker-4\nthe daemon on node worker-4 does not answer: no answer in 5s (--node-timeout)",
		"NODE worker-3\nno daemon runs on node worker-3", "NODE worker-1\n")

	jane.asks(1, "explain", "nobody").has("there is no pod nobody in namespace default")
	jane.asks(1, "explain", "waiting").has("pod default/waiting is not scheduled to a node yet: no scheduler has looked at it")
	jane.asks(1, "explain", "elsewhere").has("no daemon runs on node worker-3: there is no pod of DaemonSet " + daemons + "/" + set.Name + "; see its node selector and tolerations\n")
	jane.asks(1, "explain", "deceived").has("pod " + daemons + "/nri-memory-manager-worker-5 has the labels app.kubernetes.io/name=nri-memory-manager, and is not asked")
	jane.asks(1, "explain", "database", "-c", "other").has(`node worker-1: pod "default/database" has no container "other"`)
	jane.asks(2, "verify", "--node", "worker-1", "database").has("--node is for all pods of a node")

	used := rightsUsed(t, audit, "jane")
	used["create pods/exec"] = true // this server asks for it in addition, see john; others know SPDY alone
	if difference := cmp.Diff(rightsOf(readRoles(t)), slices.Sorted(maps.Keys(used))); difference != "" {
		t.Errorf("the rights in role.yaml (-) and those that were used (+) differ:\n%s", difference)
	}
	john := userOf(t, admin, "john") // lacks "create pods/exec"
	john.asks(1, "explain", "database").has("you may not create pods/exec in namespace "+daemons+": ", `cannot create resource "pods/exec"`)
	john.asks(1, "status").has("you may not list nodes in the whole cluster: ", `cannot list resource "nodes"`)
	jane.daemonsEverywhere().asks(1, "explain", "database").has("you may not list daemonsets in the whole cluster: ", "with --daemon-namespace, the right to list them in that namespace is enough")
}

// user runs the kubectl plugin with a kubeconfig.
type user struct {
	t     *testing.T
	flags []string
}

func userOf(t *testing.T, admin *rest.Config, name string) user {
	t.Helper()
	config := rest.CopyConfig(admin)
	config.BearerToken = name + "-token"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, path, config)
	return user{t, []string{"--kubeconfig", path, "--daemon-namespace", daemons}}
}

func (u user) daemonsEverywhere() user { return user{u.t, u.flags[:2]} }

// said is what a command has printed, errors included.
type said struct {
	t    *testing.T
	text string
}

// asks runs the plugin and wants an exit code.
func (u user) asks(code int, args ...string) said {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), bound)
	defer cancel()
	var text bytes.Buffer
	command := exec.CommandContext(ctx, kubectlPlugin(u.t), slices.Concat(args, u.flags)...)
	command.Stdout, command.Stderr = &text, &text
	if err := command.Run(); command.ProcessState.ExitCode() != code {
		u.t.Errorf("%s: %v, want exit code %d\n%s", strings.Join(args, " "), err, code, text.String())
	}
	return said{u.t, text.String()}
}

func (s said) is(want string) said {
	s.t.Helper()
	if difference := cmp.Diff(want, s.text); difference != "" {
		s.t.Errorf("the daemon's own command (-) and the kubectl plugin (+) differ:\n%s", difference)
	}
	return s
}

func (s said) has(wanted ...string) said {
	s.t.Helper()
	for _, want := range wanted {
		if !strings.Contains(s.text, want) {
			s.t.Errorf("want %q in\n%s", want, s.text)
		}
	}
	return s
}

// says is what a command prints on the node itself.
func (n *node) says(args ...string) string {
	n.t.Helper()
	out, err := exec.Command(plugin(n.t), append(args, "--state-dir", n.path("state"))...).Output()
	must(n.t, err)
	return string(out)
}

// serveExec is the part of kubelets that runs commands in containers; it returns its port.
func serveExec(t *testing.T, program string) int {
	t.Helper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/") // /exec/NAMESPACE/POD/CONTAINER
		streams, err := remotecommand.NewOptions(r)
		if err != nil || len(parts) != 5 || parts[1] != "exec" || parts[4] != "nri-memory-manager" {
			http.Error(w, r.URL.Path, http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, container(program), parts[3], "", parts[4], r.URL.Query()["command"], streams,
			time.Hour, time.Minute, remotecommand.SupportedStreamingProtocols)
	}))
	t.Cleanup(kubelet.Close)
	_, port, err := net.SplitHostPort(kubelet.Listener.Addr().String())
	must(t, err)
	number, err := strconv.Atoi(port)
	must(t, err)
	return number
}

// container is a container whose only program is the daemon's.
type container string

func (c container) ExecInContainer(ctx context.Context, _, _, _ string, command []string, _ io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if command[0] != "nri-memory-manager" {
		return errors.New(command[0] + ": no such file or directory")
	}
	process := exec.CommandContext(ctx, string(c), command[1:]...)
	process.Stdout, process.Stderr = out, errOut
	err := process.Run()
	if exited := (&exec.ExitError{}); errors.As(err, &exited) {
		return utilexec.CodeExitError{Err: err, Code: exited.ExitCode()}
	}
	return err
}

// createNode creates a node whose kubelet serves on a port of this machine.
func createNode(t *testing.T, client kubernetes.Interface, name string, port int) {
	t.Helper()
	object, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	object.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
}

// createDaemonSet creates the chart's DaemonSet; nothing here makes pods of it.
func createDaemonSet(t *testing.T, client kubernetes.Interface) *appsv1.DaemonSet {
	t.Helper()
	rendered, err := os.ReadFile("../chart/testdata/default.yaml")
	must(t, err)
	var set appsv1.DaemonSet
	for document := range strings.SplitSeq(string(rendered), "\n---\n") {
		var kind metav1.TypeMeta
		must(t, yaml.Unmarshal([]byte(document), &kind))
		if kind.Kind == "DaemonSet" {
			must(t, yaml.UnmarshalStrict([]byte(document), &set))
		}
	}
	set.Namespace = daemons
	created, err := client.AppsV1().DaemonSets(daemons).Create(t.Context(), &set, metav1.CreateOptions{})
	must(t, err)
	return created
}

// createDaemonPod creates the DaemonSet's pod on a node, with the paths of a process here.
func createDaemonPod(t *testing.T, client kubernetes.Interface, set *appsv1.DaemonSet, name string, n *node) {
	t.Helper()
	controller := true
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Name = "nri-memory-manager-" + name
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, UID: set.UID, Controller: &controller}}
	pod.Spec.NodeName, pod.Spec.PriorityClassName = name, ""
	daemon := &pod.Spec.Containers[0]
	daemon.Args = append(slices.DeleteFunc(daemon.Args, func(arg string) bool { return strings.HasPrefix(arg, "--state-dir=") }),
		"--state-dir="+n.path("state"), "--cgroups="+n.path("cgroups"), "--plain-cgroups", "--machine="+n.path("machine.yaml"))
	createRunning(t, client, daemons, pod)
}

// createUsersPod creates a Guaranteed pod on a node, or on none, and returns its UID.
func createUsersPod(t *testing.T, client kubernetes.Interface, name, node, memory string) string {
	t.Helper()
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourceCPU: resource.MustParse("1")}
	return createRunning(t, client, "default", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node,
		Containers: []corev1.Container{{Name: "app", Image: "image", Resources: corev1.ResourceRequirements{Limits: limits}}}}})
}

func createRunning(t *testing.T, client kubernetes.Interface, namespace string, pod *corev1.Pod) string {
	t.Helper()
	pod, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	if pod.Spec.NodeName == "" {
		return string(pod.UID)
	}
	pod.Status.Phase = corev1.PodRunning
	_, err = client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	return string(pod.UID)
}

// readRoles reads the roles of the plugin's users.
func readRoles(t *testing.T) (everywhere rbacv1.ClusterRole, atDaemons rbacv1.Role) {
	t.Helper()
	text, err := os.ReadFile("../kubectl/role.yaml")
	must(t, err)
	documents := strings.Split(string(text), "\n---\n")
	must(t, yaml.UnmarshalStrict([]byte(documents[0]), &everywhere))
	must(t, yaml.UnmarshalStrict([]byte(documents[1]), &atDaemons))
	return everywhere, atDaemons
}

func rightsOf(everywhere rbacv1.ClusterRole, atDaemons rbacv1.Role) (rights []string) {
	for _, rule := range slices.Concat(everywhere.Rules, atDaemons.Rules) {
		for _, verb := range rule.Verbs {
			rights = append(rights, verb+" "+rule.Resources[0])
		}
	}
	slices.Sort(rights)
	return rights
}

// grantToUsers gives jane the rights of role.yaml, and john all of them but "list nodes" and "create pods/exec".
func grantToUsers(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	everywhere, atDaemons := readRoles(t)
	rbac := client.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &everywhere, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.Roles(atDaemons.Namespace).Create(t.Context(), &atDaemons, metav1.CreateOptions{})
	must(t, err)
	bind := func(user, role string) {
		t.Helper()
		_, err := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}}, metav1.CreateOptions{})
		must(t, err)
	}
	bind("jane", everywhere.Name)
	_, err = rbac.RoleBindings(atDaemons.Namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "jane"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: atDaemons.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "jane"}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "john"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "pods/exec"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"list"}}}}, metav1.CreateOptions{})
	must(t, err)
	bind("john", "john")
}
