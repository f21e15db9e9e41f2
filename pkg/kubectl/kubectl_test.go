package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

// server is an API server with nodes, pods and DaemonSets; forbidden are the verbs and resources that it refuses.
type server struct {
	nodes     []corev1.Node
	pods      []corev1.Pod
	sets      []appsv1.DaemonSet // nil is the daemon's, an empty list none
	forbidden string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/apps/v1/"), "/api/v1/"), "/")
	namespace := ""
	if parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	verb, resource := "list", parts[0]
	if len(parts) > 1 {
		verb = "get"
	}
	kind := schema.GroupResource{Resource: resource}
	if s.forbidden == verb+" "+resource {
		refusal := apierrors.NewForbidden(kind, "", fmt.Errorf("User %q cannot %s resource %q", "jane", verb, resource)).Status()
		refusal.Kind, refusal.APIVersion = "Status", "v1"
		answer(w, http.StatusForbidden, refusal)
		return
	}
	switch {
	case resource == "daemonsets":
		list := appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{Kind: "DaemonSetList", APIVersion: "apps/v1"}}
		sets := s.sets
		if sets == nil {
			sets = []appsv1.DaemonSet{daemonSet()}
		}
		for _, set := range sets {
			if namespace == "" || namespace == set.Namespace {
				list.Items = append(list.Items, set)
			}
		}
		answer(w, http.StatusOK, list)
	case resource == "nodes":
		answer(w, http.StatusOK, corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: s.nodes})
	case verb == "get":
		for _, pod := range s.pods {
			if pod.Namespace == namespace && pod.Name == parts[1] {
				pod.Kind, pod.APIVersion = "Pod", "v1"
				answer(w, http.StatusOK, pod)
				return
			}
		}
		answer(w, http.StatusNotFound, apierrors.NewNotFound(kind, parts[1]).Status())
	default:
		chosen, _ := labels.Parse(r.URL.Query().Get("labelSelector"))
		field, _ := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		for _, pod := range s.pods {
			if chosen.Matches(labels.Set(pod.Labels)) && field.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName}) &&
				(namespace == "" || namespace == pod.Namespace) {
				list.Items = append(list.Items, pod)
			}
		}
		answer(w, http.StatusOK, list)
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

// cluster returns the server's, in which commands of daemons are run by a function.
func (s *server) cluster(t *testing.T, run func(context.Context, *daemon, []string) (output, error)) *cluster {
	t.Helper()
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	client, err := coreclient.NewForConfig(&rest.Config{Host: listener.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	sets, err := appsclient.NewForConfig(&rest.Config{Host: listener.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{client: client, sets: sets, daemons: place{selector: defaultSelector}, timeout: time.Minute, run: run}
}

func nodeNamed(name string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// pod is a user's pod in the namespace shop.
func pod(name, node string, phase corev1.PodPhase, conditions ...corev1.PodCondition) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
		Spec: corev1.PodSpec{NodeName: node, SchedulerName: "default-scheduler"}, Status: corev1.PodStatus{Phase: phase, Conditions: conditions}}
}

// daemonSet is the daemon's.
func daemonSet(changes ...func(*appsv1.DaemonSet)) appsv1.DaemonSet {
	labels := map[string]string{"app.kubernetes.io/name": "nri-memory-manager"}
	set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "nri-memory-manager", Namespace: "kube-system", UID: "uid"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nri-memory-manager"}}}}}}
	for _, change := range changes {
		change(&set)
	}
	return set
}

// daemonPod is the daemon's pod on a node.
func daemonPod(node string, changes ...func(*corev1.Pod)) corev1.Pod {
	controller := true
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "daemon-" + node, Namespace: "kube-system",
		Labels:          map[string]string{"app.kubernetes.io/name": "nri-memory-manager"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "nri-memory-manager", UID: "uid", Controller: &controller}}},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "injected"}, {Name: "nri-memory-manager", Args: []string{"run", "--idx=92"}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func said(code int, text, errOut string) func(context.Context, *daemon, []string) (output, error) {
	return func(context.Context, *daemon, []string) (output, error) {
		return output{[]byte(text), []byte(errOut), code}, nil
	}
}

func TestAskingAboutOnePod(t *testing.T) {
	unschedulable := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"}
	web := pod("web", "worker-1", corev1.PodRunning)
	starting := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}}}
	}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp, p.Name = &metav1.Time{Time: time.Now()}, "old" }
	elsewhere := func(p *corev1.Pod) { p.Namespace = "evil" }
	noDaemonSet := func(p *corev1.Pod) { p.OwnerReferences = nil }
	evil := func(s *appsv1.DaemonSet) { s.Namespace = "evil" }
	group := func(s *appsv1.DaemonSet) { s.Name, s.UID = "nri-memory-manager-large", "large" }
	ofGroup := func(p *corev1.Pod) {
		p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "nri-memory-manager-large", "large"
	}
	otherLabels := func(s *appsv1.DaemonSet) {
		s.Namespace, s.Spec.Template.Labels = "evil", map[string]string{"app": "web"}
	}
	otherContainer := func(s *appsv1.DaemonSet) { s.Namespace, s.Spec.Template.Spec.Containers[0].Name = "evil", "web" }
	const none = "no daemon runs on node worker-1: there is no pod of DaemonSet kube-system/nri-memory-manager; see its node selector and tolerations"
	explained := said(0, "the answer", "")
	for name, test := range map[string]struct {
		pods      []corev1.Pod
		sets      []appsv1.DaemonSet
		forbidden string
		daemons   place
		run       func(context.Context, *daemon, []string) (output, error)
		want      string // of the error; "" wants the answer
	}{
		"running":               {pods: []corev1.Pod{web, daemonPod("worker-1"), daemonPod("worker-2")}, run: explained},
		"update of the daemons": {pods: []corev1.Pod{web, daemonPod("worker-1"), daemonPod("worker-1", ending)}, run: explained},
		"pod with the labels":   {pods: []corev1.Pod{web, daemonPod("worker-1"), daemonPod("worker-1", noDaemonSet)}, run: explained},
		"pod with the labels in another namespace": {pods: []corev1.Pod{web, daemonPod("worker-1"), daemonPod("worker-1", elsewhere)}, run: explained},
		"two DaemonSets": {pods: []corev1.Pod{web, daemonPod("worker-1", ofGroup), daemonPod("worker-2")}, run: explained,
			sets: []appsv1.DaemonSet{daemonSet(), daemonSet(group)}},
		"other DaemonSets": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: explained,
			sets: []appsv1.DaemonSet{daemonSet(otherLabels), daemonSet(otherContainer), daemonSet()}},
		"no pod": {want: "there is no pod web in namespace shop"},
		"not scheduled": {pods: []corev1.Pod{pod("web", "", corev1.PodPending, unschedulable)},
			want: "pod shop/web is not scheduled to a node yet: PodScheduled is False, Unschedulable, 0/3 nodes are available"},
		"not looked at": {pods: []corev1.Pod{pod("web", "", corev1.PodPending)},
			want: "pod shop/web is not scheduled to a node yet: no scheduler has looked at it (no condition PodScheduled); spec.schedulerName is default-scheduler"},
		"ended": {pods: []corev1.Pod{pod("web", "worker-1", corev1.PodSucceeded)},
			want: "pod shop/web has ended (Succeeded): the daemons know the pods that live"},
		"no daemon": {pods: []corev1.Pod{web, daemonPod("worker-2")},
			want: none},
		"no daemon of two DaemonSets": {pods: []corev1.Pod{web}, sets: []appsv1.DaemonSet{daemonSet(), daemonSet(group)},
			want: "no daemon runs on node worker-1: there is no pod of DaemonSet kube-system/nri-memory-manager or kube-system/nri-memory-manager-large; see its node selector and tolerations"},
		"no daemon in the namespace": {pods: []corev1.Pod{web, daemonPod("worker-1")}, daemons: place{"other", "a=b"},
			want: "no daemon runs on node worker-1: there is no DaemonSet in namespace other whose pods have the labels a=b and a container nri-memory-manager"},
		"not installed": {pods: []corev1.Pod{web, daemonPod("worker-1")}, sets: []appsv1.DaemonSet{},
			want: "no daemon runs on node worker-1: there is no DaemonSet in the cluster whose pods have the labels app.kubernetes.io/name=nri-memory-manager and a container nri-memory-manager"},
		"wrong labels": {pods: []corev1.Pod{web}, daemons: place{"", "a=b=c"},
			want: `--daemon-selector "a=b=c": want labels such as app.kubernetes.io/name=nri-memory-manager: found '=', expected: ',' or 'end of string'`},
		"daemon starts": {pods: []corev1.Pod{web, daemonPod("worker-1", starting)},
			want: "no daemon runs on node worker-1: its pod kube-system/daemon-worker-1 is Pending (ErrImagePull: no such image)"},
		"daemon ends": {pods: []corev1.Pod{web, daemonPod("worker-1", ending)}, want: "no daemon runs on node worker-1: its pod kube-system/old is being deleted"},
		"two namespaces": {pods: []corev1.Pod{web, daemonPod("worker-1")}, sets: []appsv1.DaemonSet{daemonSet(), daemonSet(evil)},
			want: "DaemonSets in several namespaces have pods with the labels app.kubernetes.io/name=nri-memory-manager (evil, kube-system): name the right one with --daemon-namespace"},
		"may not get": {pods: []corev1.Pod{web}, forbidden: "get pods",
			want: `you may not get pods in namespace shop: pods is forbidden: User "jane" cannot get resource "pods"`},
		"may not list": {pods: []corev1.Pod{web}, forbidden: "list pods",
			want: `you may not list pods in namespace kube-system: pods is forbidden: User "jane" cannot list resource "pods"`},
		"may not list DaemonSets": {pods: []corev1.Pod{web}, forbidden: "list daemonsets",
			want: `you may not list daemonsets in the whole cluster: daemonsets is forbidden: User "jane" cannot list resource "daemonsets"; with --daemon-namespace, the right to list them in that namespace is enough`},
		"may not exec": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: func(context.Context, *daemon, []string) (output, error) {
			return output{}, errors.New(`unable to upgrade connection: pods "daemon-worker-1" is forbidden: User "jane" cannot create resource "pods/exec"`)
		}, want: `you may not create pods/exec in namespace kube-system: unable to upgrade connection: pods "daemon-worker-1" is forbidden: User "jane" cannot create resource "pods/exec"`},
		"too old": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: said(2, "", "nri-memory-manager: unknown command \"explain\" for \"nri-memory-manager\"\n"),
			want: `the daemon on node worker-1 (pod kube-system/daemon-worker-1) is too old for this: its command explain says: unknown command "explain" for "nri-memory-manager"`},
		"not known there": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: said(1, "", "nri-memory-manager: no pod \"shop/web\" on this node\n"),
			want: `node worker-1: no pod "shop/web" on this node`},
		"daemon hangs": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: said(1, "", "nri-memory-manager: no daemon answers on /var/lib/admin.sock\n"),
			want: "the daemon on node worker-1 does not answer: no daemon answers on /var/lib/admin.sock"},
		"kubelet is away": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: func(context.Context, *daemon, []string) (output, error) {
			return output{}, errors.New("dial tcp 10.0.0.7:10250: connection refused")
		}, want: "the daemon on node worker-1 does not answer: dial tcp 10.0.0.7:10250: connection refused"},
		"no words": {pods: []corev1.Pod{web, daemonPod("worker-1")}, run: said(137, "", ""), want: "node worker-1: explain ended with exit code 137"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{pods: test.pods, sets: test.sets, forbidden: test.forbidden}
			c := s.cluster(t, test.run)
			if test.daemons.selector != "" {
				c.daemons = test.daemons
			}
			var text bytes.Buffer
			err := c.showPod(t.Context(), &text, "shop", "web", "explain", "shop/web")
			if test.want == "" {
				if err != nil || text.String() != "the answer" {
					t.Errorf("%q, %v", text.String(), err)
				}
				return
			}
			if err == nil || err.Error() != test.want || text.Len() > 0 {
				t.Errorf("error %v\nwant  %s", err, test.want)
			}
		})
	}
}

// The pod of a Job that the kernel killed has failed: that is the one whose kill is asked about.
func TestAKillOutlivesItsPod(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
		s := &server{pods: []corev1.Pod{pod("web", "worker-1", phase), daemonPod("worker-1")}}
		var text bytes.Buffer
		err := s.cluster(t, said(0, "the kernel killed one process", "")).showPod(t.Context(), &text, "shop", "web", "oom", "shop/web")
		if err != nil || text.String() != "the kernel killed one process" {
			t.Errorf("%s: %q, %v", phase, text.String(), err)
		}
	}
}

// What a user asks for is what the daemon's own command is asked for.
func TestArgumentsArePassedOn(t *testing.T) {
	s := &server{nodes: []corev1.Node{nodeNamed("worker-1")}, pods: []corev1.Pod{pod("web", "worker-1", corev1.PodRunning), daemonPod("worker-1")}}
	var mu sync.Mutex
	var commands []string
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/exec") {
			s.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		commands = append(commands, strings.Join(r.URL.Query()["command"], " "))
		w.WriteHeader(http.StatusInternalServerError) // it does not come to an answer
	}))
	t.Cleanup(listener.Close)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: '" + listener.URL + "'}}]\ncontexts: [{name: a, context: {cluster: a}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"status web -n shop":                                "nri-memory-manager status shop/web --output=table",
		"status web -n shop --problems -o wide":             "nri-memory-manager status shop/web --output=wide --problems",
		"status --node worker-1":                            "nri-memory-manager status --output=table",
		"status --node worker-1 -n shop --problems -o json": "nri-memory-manager status --output=json --problems --namespace=shop",
		"status --problems":                                 "nri-memory-manager status --output=json",
		"explain web -n shop -c app":                        "nri-memory-manager explain shop/web/app --output=text",
		"verify web -n shop":                                "nri-memory-manager verify shop/web",
		"verify --node worker-1":                            "nri-memory-manager verify",
	} {
		mu.Lock()
		commands = nil
		mu.Unlock()
		var out, errOut bytes.Buffer
		Execute(t.Context(), "v1", append([]string{"--kubeconfig", kubeconfig}, strings.Fields(command)...), &out, &errOut)
		if mu.Lock(); !slices.Contains(commands, want) {
			t.Errorf("%s runs %q, want %q; %s", command, commands, want, errOut.String())
		}
		mu.Unlock()
	}
}

func TestOnlyNodesWithProblems(t *testing.T) {
	rows := []row{{Node: "a", State: fine}, {Node: "b", State: problems}, {Node: "c", State: noDaemon}, {Node: "d", State: notAnswering}}
	var left []string
	for _, r := range withProblems(rows) {
		left = append(left, r.Node)
	}
	if want := []string{"b", "c", "d"}; !slices.Equal(left, want) {
		t.Errorf("%q, want %q", left, want)
	}
}

// A daemon's verify without a daemon ends as one with findings does, but has no report.
func TestVerifyWithoutAnAnswerIsNoReport(t *testing.T) {
	s := &server{pods: []corev1.Pod{daemonPod("worker-1")}}
	for _, code := range []int{1, 2} { // 2 is that of older daemons
		c := s.cluster(t, said(code, "", "nri-memory-manager: no daemon answers on /var/lib/admin.sock\n"))
		var text bytes.Buffer
		err := c.show(t.Context(), &text, "worker-1", "verify")
		if want := "the daemon on node worker-1 does not answer: no daemon answers on /var/lib/admin.sock"; err == nil || err.Error() != want || text.Len() > 0 {
			t.Errorf("exit code %d: error %v with output %q\nwant %s", code, err, text.String(), want)
		}
	}
}

func TestCommandLines(t *testing.T) {
	for _, test := range []struct{ args, command, want string }{
		{"run --idx=92 --state-dir=/var/lib/x -v", "explain", "nri-memory-manager explain --state-dir=/var/lib/x shop/web"},
		{"run --state-dir /var/lib/x --cgroups /c --plain-cgroups --machine=/m", "verify", "nri-memory-manager verify --state-dir=/var/lib/x --cgroups=/c --plain-cgroups=true --machine=/m shop/web"},
		{"run --state-dir /var/lib/x --cgroups /c", "oom", "nri-memory-manager oom --state-dir=/var/lib/x shop/web"},
		{"run --state-dir /var/lib/x --cgroups /c", "status", "nri-memory-manager status --state-dir=/var/lib/x shop/web"},
		{"--state-dir", "status", "nri-memory-manager status shop/web"},
		{"", "status", "nri-memory-manager status shop/web"},
	} {
		pod := daemonPod("worker-1")
		pod.Spec.Containers[1].Args = strings.Fields(test.args)
		d := daemonIn("worker-1", &pod)
		if got := strings.Join(d.commandLine(test.command, "shop/web"), " "); got != test.want || d.container != "nri-memory-manager" {
			t.Errorf("args %q, container %s:\n%s\nwant\n%s", test.args, d.container, got, test.want)
		}
	}
	pod := daemonPod("worker-1")
	pod.Spec.Containers[1].Command = []string{"/bin/nri-memory-manager", "run"}
	if got := daemonIn("worker-1", &pod).commandLine("status")[0]; got != "/bin/nri-memory-manager" {
		t.Errorf("program %s", got)
	}
}

// What is read of the daemon's documents is in them.
func TestRowsAreMadeOfTheDaemonsDocuments(t *testing.T) {
	file := func(path string) []byte {
		text, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	s := &server{nodes: []corev1.Node{nodeNamed("worker-1")}, pods: []corev1.Pod{daemonPod("worker-1")}}
	c := s.cluster(t, func(_ context.Context, _ *daemon, command []string) (output, error) {
		if slices.Contains(command, "verify") {
			return output{text: file("verify/testdata/report.json"), code: 1}, nil
		}
		return output{text: file("status/testdata/busy.json")}, nil
	})
	rows, err := c.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []row{{Node: "worker-1", State: problems, Version: "v0.1.0", Rejected: 2, Unpinned: 1, Errors: 1, Running: 6, Free: 73014444032, Allocatable: 201863462912}}
	if difference := cmp.Diff(want, rows); difference != "" {
		t.Error(difference)
	}
}

func TestTheTableStartsWithWhatIsWrong(t *testing.T) {
	nothing := `{"version":"v1","nodes":[{"memory":[{"type":"memory","allocatable":2147483648,"free":1073741824}]}],"pods":[{"containers":[{"state":"running"}]}]}`
	answers := map[string][2]string{ // status and verify
		"a-fine":     {nothing, `{"findings":[{"severity":"note"}]}`},
		"b-fine":     {nothing, `{"findings":[]}`},
		"c-warned":   {nothing, `{"findings":[{"severity":"warning"},{"severity":"warning"}]}`},
		"d-broken":   {nothing, `{"findings":[{"severity":"warning"},{"severity":"error"}]}`},
		"e-unpinned": {`{"version":"v1","pods":[{"containers":[{"state":"running","unplaced":"no room"},{"state":"stopped"}]}],"rejections":[{"namespace":"a","pod":"b","container":"c"}]}`, `{"findings":[{"severity":"warning"}]}`},
		"f-rejected": {`{"version":"v1","rejections":[{"namespace":"a","pod":"b","container":"c","refused":true,"reason":"x"},{"namespace":"a","pod":"b","container":"c","refused":true,"reason":"y"},{"namespace":"a","pod":"b","container":"d","refused":true}]}`, `{}`},
		"i-other":    {"Usage:", "{}"},
	}
	s := &server{}
	for _, name := range []string{"a-fine", "b-fine", "c-warned", "d-broken", "e-unpinned", "f-rejected", "g-hangs", "h-without", "i-other"} {
		s.nodes = append(s.nodes, nodeNamed(name))
		if name != "h-without" {
			s.pods = append(s.pods, daemonPod(name))
		}
	}
	c := s.cluster(t, func(ctx context.Context, d *daemon, command []string) (output, error) {
		answer, ok := answers[d.node]
		switch {
		case !ok:
			<-ctx.Done()
			return output{}, ctx.Err()
		case command[1] == "verify":
			return output{text: []byte(answer[1])}, nil
		}
		return output{text: []byte(answer[0])}, nil
	})
	c.timeout = 100 * time.Millisecond
	rows, err := c.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := writeRows(&text, rows); err != nil {
		t.Fatal(err)
	}
	const want = `NODE        CONTAINERS  FREE  ALLOCATABLE  VERSION  STATE
f-rejected  0           0     0            v1       2 rejected
e-unpinned  1           0     0            v1       1 unpinned, 1 warning
d-broken    1           1Gi   2Gi          v1       1 error, 1 warning
c-warned    1           1Gi   2Gi          v1       2 warnings
h-without   -           -     -            -        no daemon: there is no pod of DaemonSet kube-system/nri-memory-manager; see its node selector and tolerations
g-hangs     -           -     -            -        not answering: no answer in 100ms (--node-timeout)
i-other     -           -     -            -        not answering: the daemon on node i-other (pod kube-system/daemon-i-other) has another format of status: invalid character 'U' looking for beginning of value
a-fine      1           1Gi   2Gi          v1       ok
b-fine      1           1Gi   2Gi          v1       ok
`
	if difference := cmp.Diff(want, text.String()); difference != "" {
		t.Error(difference)
	}
	s.forbidden = "list nodes"
	if _, err := c.survey(t.Context()); err == nil || err.Error() != `you may not list nodes in the whole cluster: nodes is forbidden: User "jane" cannot list resource "nodes"` {
		t.Errorf("error %v", err)
	}
}

// As many daemons are asked at once as the bound says, and never more.
func TestDaemonsAreAskedInParallelWithinABound(t *testing.T) {
	s := &server{}
	for i := range 3 * parallel {
		name := fmt.Sprintf("worker-%02d", i)
		s.nodes, s.pods = append(s.nodes, nodeNamed(name)), append(s.pods, daemonPod(name))
	}
	var mu sync.Mutex
	asked, most := 0, 0
	full := make(chan struct{})
	c := s.cluster(t, func(ctx context.Context, _ *daemon, _ []string) (output, error) {
		mu.Lock()
		asked++
		if most = max(most, asked); most == parallel {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		mu.Unlock()
		select {
		case <-full:
		case <-ctx.Done():
		}
		mu.Lock()
		defer mu.Unlock()
		asked--
		return output{text: []byte("{}")}, ctx.Err()
	})
	rows, err := c.survey(t.Context())
	if err != nil || len(rows) != 3*parallel || most != parallel {
		t.Errorf("%d rows, at most %d at once, %v", len(rows), most, err)
	}
}

func TestVerifyOfAllNodesStartsWithWhatIsWrong(t *testing.T) {
	s := &server{}
	for _, name := range []string{"a-fine", "b-broken", "c-without"} {
		s.nodes = append(s.nodes, nodeNamed(name))
	}
	s.pods = []corev1.Pod{daemonPod("a-fine"), daemonPod("b-broken")}
	c := s.cluster(t, func(_ context.Context, d *daemon, _ []string) (output, error) {
		if d.node == "b-broken" {
			return output{text: []byte("ERROR\n"), code: 1}, nil
		}
		return output{text: []byte("nothing is wrong\n")}, nil
	})
	var text strings.Builder
	if err := c.verifyAll(t.Context(), &text); !errors.Is(err, commandline.ErrFindings) {
		t.Errorf("error %v", err)
	}
	const want = "NODE c-without\nno daemon runs on node c-without: there is no pod of DaemonSet kube-system/nri-memory-manager; " +
		"see its node selector and tolerations\n\nNODE b-broken\nERROR\n\nNODE a-fine\nnothing is wrong\n"
	if difference := cmp.Diff(want, text.String()); difference != "" {
		t.Error(difference)
	}
}

func TestVersion(t *testing.T) {
	for _, argument := range []string{"version", "--version", "-v"} {
		var out, errOut bytes.Buffer
		if code := Execute(t.Context(), "v1", []string{argument}, &out, &errOut); code != commandline.ExitOK || out.String() != "kubectl memory-manager version v1\n" {
			t.Errorf("%s: exit code %d, %s%s", argument, code, out.String(), errOut.String())
		}
	}
}

func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var out, errOut bytes.Buffer
	code := Execute(t.Context(), "v1", []string{"status", "--all-nodes"}, &out, &errOut)
	if want := "kubectl memory-manager: no kubeconfig: want one in --kubeconfig, $KUBECONFIG or ~/.kube/config\n"; code != commandline.ExitBadInput || errOut.String() != want {
		t.Errorf("exit code %d, %s", code, errOut.String())
	}
}

func TestWrongInput(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	const one = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: a, context: {cluster: a}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"explain":                          `[NAMESPACE/]POD is missing, as in "kubectl memory-manager explain database"`,
		"oom":                              "want a pod or --node: verdicts are kept on the nodes",
		"oom web --node a":                 "want a pod or --node: verdicts are kept on the nodes",
		"explain shop/web/app":             `"shop/web/app": want [NAMESPACE/]POD`,
		"explain shop/web -n api":          `"shop/web": want [NAMESPACE/]POD in the namespace api`,
		"explain web -o table":             `--output "table": want one of text, json, yaml`,
		"explain web --context b":          "context was not found for specified context: b",
		"explain web --kubeconfig nowhere": "kubeconfig: stat nowhere: no such file or directory",
		"status --node a --all-nodes":      "--node and --all-nodes: want one of them",
		"status web --node a":              "--node and --all-nodes are for all pods of a node: a pod's own node is found",
		"status web --all-nodes":           "--node and --all-nodes are for all pods of a node: a pod's own node is found",
		"status web api":                   "accepts [[NAMESPACE/]POD], received 2 arguments",
		"statsu":                           `unknown command "statsu" for "kubectl memory-manager", did you mean "status"?`,
		"status --problem":                 `unknown flag: --problem, did you mean "--problems"?`,
		"status --node-timeout 0s":         "--node-timeout 0s: want more than 0",
		"verify web --node a":              "--node is for all pods of a node: a pod's own node is found",
	} {
		var out, errOut bytes.Buffer
		code := Execute(t.Context(), "v1", append([]string{"--kubeconfig", kubeconfig}, strings.Fields(command)...), &out, &errOut)
		if code != commandline.ExitBadInput || out.Len() > 0 || !strings.HasPrefix(errOut.String(), "kubectl memory-manager: ") || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: exit code %d, %s%s\nwant %s", command, code, out.String(), errOut.String(), want)
		}
	}
}
