package apiserver

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

// TestTheChartsRightsAreWhatIsNeeded runs the plugin with the rights that the chart gives it, neither fewer nor more than
// it uses.
func TestTheChartsRightsAreWhatIsNeeded(t *testing.T) {
	t.Parallel()
	admin, audit := startKubernetes(t)
	client, err := kubernetes.NewForConfig(admin)
	must(t, err)
	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}, metav1.CreateOptions{})
	must(t, err)
	publishNetwork(t, client)
	config, granted := grant(t, client, admin)
	n := newNode(t, config, machine, `
requestSources: [apiserver]
nodeResourceTopology: true
events: true
evictRejectedAfter: 30s
dra: {enabled: true}
resourceSlices: true
onTermination: Rollback
`)
	n.objects = objectsOf(t, admin)
	n.withKubelet()

	if owners := n.isTrue().OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != "worker" {
		t.Errorf("the object's owners are %v, want the Node", owners)
	}
	must(t, n.place("database", createPod(t, client, "database", "3Gi"), 3<<30))
	n.isTrue()
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("40Gi"), corev1.ResourceCPU: resource.MustParse("1")}
	uid := create(t, client, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "large", UID: "a", Controller: new(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "image", Resources: corev1.ResourceRequirements{Limits: limits}}}}})
	if err := n.place("large", uid, 40<<30); err == nil {
		t.Error("40Gi were placed on 32Gi")
	}
	counted := func(count int32) func() bool {
		return func() bool {
			events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=large"})
			must(t, err)
			return len(events.Items) == 1 && events.Items[0].Count == count
		}
	}
	eventually(t, "an event of the rejection", counted(1))
	_ = n.create(uid, 40<<30)
	eventually(t, "the event counts the second rejection", counted(2))
	slice := published(t, client)
	slice.Spec.Devices = slice.Spec.Devices[:1]
	_, err = client.ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{})
	must(t, err)
	published(t, client)
	n.claim(client, "claim")
	n.withNetwork(createPod(t, client, "network", "1Gi"))
	eventually(t, "the pod that was refused for half a minute is evicted", func() bool {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "large", metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil
	})
	must(t, n.process.Process.Signal(syscall.SIGTERM))
	must(t, n.process.Wait())

	used := rightsUsed(t, audit, account)
	used["list pods"], used["list resourceslices"] = true, true // where the server cannot stream the list into the watch
	if difference := cmp.Diff(granted, slices.Sorted(maps.Keys(used))); difference != "" {
		t.Errorf("the rights that the chart gives (-) and that were used (+) differ:\n%s", difference)
	}
}

// account is the user whose token grant returns.
const account = "system:serviceaccount:kube-system:nri-memory-manager"

// rightsUsed are the rights that a user has used, as "verb resource", says the audit log. All must have been allowed.
func rightsUsed(t *testing.T, audit, user string) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	for event := range audited(t, audit, user) {
		what := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			what += "/" + event.ObjectRef.Subresource
		}
		if event.Annotations["authorization.k8s.io/decision"] != "allow" {
			t.Errorf("%s is forbidden", what)
		}
		used[what] = true
	}
	return used
}

// auditEvent is what tests need of audit.k8s.io/v1.
type auditEvent struct {
	User           struct{ Username string }
	Verb           string
	ObjectRef      struct{ Resource, Subresource string }
	ResponseStatus struct{ Code int }
	Annotations    map[string]string
}

// audited is what a user has asked for, says the audit log.
func audited(t *testing.T, audit, user string) iter.Seq[auditEvent] {
	t.Helper()
	text, err := os.ReadFile(audit)
	must(t, err)
	return func(yield func(auditEvent) bool) {
		for line := range bytes.Lines(text) {
			if !bytes.HasSuffix(line, []byte("\n")) { // it is being written
				return
			}
			var event auditEvent
			must(t, json.Unmarshal(line, &event))
			if event.User.Username == user && !yield(event) {
				return
			}
		}
	}
}

// kubeAPIServer is the path of a kube-apiserver: what KUBE_APISERVER says, or one that "make e2e" or "make fleet" has built.
func kubeAPIServer(t *testing.T) string {
	t.Helper()
	if program := os.Getenv("KUBE_APISERVER"); program != "" {
		return program
	}
	program := builtForGuests("kubernetes-*/kube-apiserver")
	if program == "" {
		needs.Missing(t, "KUBE_APISERVER names no kube-apiserver, and make e2e has built none")
	}
	return program
}

// builtForGuests is the path of a program that "make e2e" or "make fleet" has built or fetched, empty where they have not.
func builtForGuests(pattern string) string {
	cache := os.Getenv("CACHE")
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "nri-memory-manager-e2e")
	}
	built, _ := filepath.Glob(filepath.Join(cache, pattern))
	newest, when := "", time.Time{} // of a cache that has earlier releases, too
	for _, file := range built {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(when) {
			newest, when = file, info.ModTime()
		}
	}
	return newest
}

// administrator starts an API server for those who need no audit log.
func administrator(t *testing.T) *rest.Config {
	t.Helper()
	admin, _ := startKubernetes(t)
	return admin
}

// startKubernetes returns an administrator and the path of the audit log.
func startKubernetes(t *testing.T) (admin *rest.Config, audit string) {
	t.Helper()
	server, admin, audit := newKubernetes(t)
	return ready(t, admin, server), audit
}

// newKubernetes is the command of an API server whose etcd runs.
func newKubernetes(t *testing.T, flags ...string) (server *exec.Cmd, admin *rest.Config, audit string) {
	t.Helper()
	program := kubeAPIServer(t)
	dir, address := t.TempDir(), freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	key, tokens, policy := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "policy.yaml")
	audit = filepath.Join(dir, "audit.log")
	private, err := keyutil.MarshalPrivateKeyToPEM(newKey(t)) // signs the ServiceAccounts' tokens
	must(t, err)
	must(t, os.WriteFile(key, private, 0o600))
	must(t, os.WriteFile(tokens, []byte(`test-token,admin,admin,"system:masters"`+"\njane-token,jane,jane\njohn-token,john,john\n"), 0o600))
	must(t, os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"), 0o600))
	admin = &rest.Config{Host: "https://" + address, BearerToken: "test-token", QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	return exec.Command(program, append(flags, "--etcd-servers", startEtcd(t), "--cert-dir", dir, "--bind-address", "127.0.0.1",
		"--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none", // 1.37 refuses to announce a loopback address
		"--secure-port", port, "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://test", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--token-auth-file", tokens, "--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount",
		"--audit-policy-file", policy, "--audit-log-path", audit)...), admin, audit
}

// rendered are the documents of the chart with everything switched on, by their kind.
func rendered(t *testing.T) iter.Seq2[string, []byte] {
	t.Helper()
	text, err := os.ReadFile("../chart/testdata/everything.yaml")
	must(t, err)
	return func(yield func(string, []byte) bool) {
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var kind metav1.TypeMeta
			must(t, yaml.Unmarshal([]byte(document), &kind))
			if !yield(kind.Kind, []byte(document)) {
				return
			}
		}
	}
}

// grant applies the chart's ServiceAccount and roles, as "helm install" does with events and NodeResourceTopologies. It
// returns a client with the ServiceAccount's token, and its rights as "verb resource".
func grant(t *testing.T, client kubernetes.Interface, admin *rest.Config) (config *rest.Config, rights []string) {
	t.Helper()
	var err error
	for kind, document := range rendered(t) {
		switch kind {
		case "ServiceAccount":
			var account corev1.ServiceAccount
			must(t, yaml.UnmarshalStrict(document, &account))
			_, err = client.CoreV1().ServiceAccounts(account.Namespace).Create(t.Context(), &account, metav1.CreateOptions{})
		case "ClusterRole":
			var role rbacv1.ClusterRole
			must(t, yaml.UnmarshalStrict(document, &role))
			for _, rule := range role.Rules {
				for _, verb := range rule.Verbs {
					rights = append(rights, verb+" "+rule.Resources[0])
				}
			}
			_, err = client.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{})
		case "ClusterRoleBinding":
			var binding rbacv1.ClusterRoleBinding
			must(t, yaml.UnmarshalStrict(document, &binding))
			_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &binding, metav1.CreateOptions{})
		}
		must(t, err)
	}
	token, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "nri-memory-manager",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config = rest.CopyConfig(admin)
	config.BearerToken = token.Status.Token
	slices.Sort(rights)
	return config, slices.Compact(rights)
}

// createPod creates a Guaranteed pod in the API and returns its UID.
func createPod(t *testing.T, client kubernetes.Interface, name, memory string) string {
	t.Helper()
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourceCPU: resource.MustParse("1")}
	return create(t, client, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "app", Image: "image", Resources: corev1.ResourceRequirements{Limits: limits}}}}})
}

// create creates a pod on the node and gives it a status, as the scheduler and the kubelet do.
func create(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) string {
	t.Helper()
	pod.Spec.NodeName = "worker"
	status := pod.Status
	pod, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	pod.Status = status
	pod, err = client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	return string(pod.UID)
}
