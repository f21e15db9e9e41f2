// Package kubelet runs the real kubelet in a guest, a node of the control plane
// on the host, and asks the API server for pods on it as a user does. What it
// shows of them is read from the runtime and the kernel.
package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	// PodAPISocket is where the kubelet serves its pod API (KEP-4188, feature gate PodsAPI).
	PodAPISocket = "/var/lib/kubelet/pods-api/pods-api.sock"
	// StaticPods is the folder of the manifests of static pods.
	StaticPods = "/etc/kubernetes/manifests"

	// ConfigFile is its configuration.
	ConfigFile = setup.KubeletFiles + "kubelet.yaml"

	// pollPeriod is between two looks at the API server: asking costs an emulated CPU some milliseconds.
	pollPeriod = 300 * time.Millisecond
)

// Config are keys of a KubeletConfiguration over those that every guest has (see baseline).
type Config map[string]any

// Kubelet is the kubelet of this guest.
type Kubelet struct {
	*Node
	// Client speaks to the API server as the administrator.
	Client kubernetes.Interface
	// Memory, if set, is the memory_manager_state that Configure starts it with.
	Memory []byte
	// Housekeeping is cAdvisor's interval from the next Start on; 0 is a minute.
	Housekeeping time.Duration

	http   *http.Client // as the administrator
	config Config       // of the running process, over the baseline
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	pods   map[string]*Pod
}

// New connects to the runtime and the API server. Configure starts the kubelet.
func New(ctx context.Context, plan setup.Plan) (*Kubelet, error) {
	node, err := NewNode(ctx, plan)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", setup.AdminConf)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", setup.AdminConf, err)
	}
	config.QPS, config.Burst = 200, 400
	config.ContentType = runtime.ContentTypeProtobuf // JSON costs an emulated CPU several times as much
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	direct, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet: %w", err)
	}
	return &Kubelet{Node: node, Client: client, http: direct, pods: map[string]*Pod{}}, nil
}

// Metrics are those that cAdvisor has of containers.
func (k *Kubelet) Metrics(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics/cadvisor", k.Plan.KubeletPort), nil)
	if err != nil {
		return "", err
	}
	response, err := k.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("ask the kubelet for metrics: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// baseline is what every guest's kubelet needs because it is a guest.
func (k *Kubelet) baseline() Config {
	return Config{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true}, "x509": map[string]any{"clientCAFile": setup.CA},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"tlsCertFile":   setup.Certificate, "tlsPrivateKeyFile": setup.Key,
		"port": k.Plan.KubeletPort, "readOnlyPort": 0,
		"cgroupDriver": string(k.Plan.Driver), "containerRuntimeEndpoint": "unix://" + k.Plan.Socket(),
		"failSwapOn": false, "localStorageCapacityIsolation": false, "makeIPTablesUtilChains": false, // the guest has no disk and no iptables
		"cpuCFSQuota": false, "runtimeRequestTimeout": "10m", // an emulated CPU is slow enough
		"evictionHard": map[string]any{"memory.available": "20Mi"}, "imageGCHighThresholdPercent": 100,
		"enforceNodeAllocatable": []string{"pods"}, "nodeStatusUpdateFrequency": "5s", "staticPodPath": StaticPods,
		"featureGates": map[string]any{"PodsAPI": true},
	}
}

// Configure sees to it that a kubelet runs with this configuration over the baseline, feature gates added to its own.
// One that runs with another is stopped, and its checkpoints of CPUs and memory are removed as an administrator must.
func (k *Kubelet) Configure(ctx context.Context, config Config) error {
	if k.Running() && reflect.DeepEqual(config, k.config) {
		return nil
	}
	k.Kill(syscall.SIGTERM)
	for _, file := range []string{"cpu_manager_state", "memory_manager_state"} {
		if err := os.Remove(filepath.Join("/var/lib/kubelet", file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("configure the kubelet: %w", err)
		}
	}
	if k.Memory != nil {
		if err := os.WriteFile("/var/lib/kubelet/memory_manager_state", k.Memory, 0o600); err != nil {
			return fmt.Errorf("configure the kubelet: %w", err)
		}
	}
	all := k.baseline()
	gates := maps.Clone(all["featureGates"].(map[string]any))
	maps.Copy(all, config)
	if own, ok := config["featureGates"].(map[string]any); ok {
		maps.Copy(gates, own)
	}
	all["featureGates"] = gates
	text, err := yaml.Marshal(all)
	if err != nil {
		return fmt.Errorf("configure the kubelet: %w", err)
	}
	if err := os.WriteFile(ConfigFile, text, 0o644); err != nil {
		return fmt.Errorf("configure the kubelet: %w", err)
	}
	k.config = maps.Clone(config)
	return k.Start(ctx)
}

// Running reports whether the process runs.
func (k *Kubelet) Running() bool {
	if k.cmd == nil {
		return false
	}
	select {
	case <-k.done:
		return false
	default:
		return true
	}
}

// Start starts the kubelet with its last configuration and waits until its node is ready.
func (k *Kubelet) Start(ctx context.Context) error {
	if err := os.MkdirAll(StaticPods, 0o755); err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(setup.Logs, "kubelet.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	defer log.Close()
	// A heartbeat has its second. The last one of a kubelet before, which knew another configuration, must not pass for one of this.
	began := time.Now().Truncate(time.Second).Add(time.Second)
	time.Sleep(time.Until(began))
	k.cmd = exec.Command(setup.Kubelet, "--config="+ConfigFile, "--kubeconfig="+setup.KubeletConf, "--cert-dir=/var/lib/kubelet/pki",
		"--hostname-override="+setup.NodeName, "--cloud-provider=external", "--v=2",
		fmt.Sprint("--housekeeping-interval=", cmp.Or(k.Housekeeping, time.Minute))) // most cases need none of cAdvisor's statistics
	k.cmd.Stdout, k.cmd.Stderr = log, log
	if err := k.cmd.Start(); err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	k.done = make(chan struct{})
	go func() {
		_ = k.cmd.Wait()
		close(k.done)
	}()
	return k.waitNode(ctx, began)
}

// waitNode waits until the node is ready by the word of the kubelet that was started then, and plays the cloud's part.
func (k *Kubelet) waitNode(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, RequestLimit)
	defer cancel()
	for {
		node, err := k.Client.CoreV1().Nodes().Get(ctx, setup.NodeName, metav1.GetOptions{})
		if err == nil && ready(node, began) {
			return k.initialize(ctx, node)
		}
		select {
		case <-k.done:
			return fmt.Errorf("the kubelet ended: %v; see kubelet.log", k.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("the node does not get ready: %w (%v)", ctx.Err(), err)
		case <-time.After(pollPeriod):
		}
	}
}

func ready(node *corev1.Node, since time.Time) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since)
		}
	}
	return false
}

// initialize does what a cloud controller does for a new node: its address is the host's loopback, where QEMU forwards
// the kubelet's port, so that the API server reaches it; and the taint of a node without an address goes.
func (k *Kubelet) initialize(ctx context.Context, node *corev1.Node) error {
	const taint = "node.cloudprovider.kubernetes.io/uninitialized"
	others := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == taint })
	if len(others) == len(node.Spec.Taints) {
		return nil
	}
	const status = `{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"},{"type":"Hostname","address":"` + setup.NodeName + `"}]}}`
	if _, err := k.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("give the node its address: %w", err)
	}
	spec, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": others}})
	if err != nil {
		return fmt.Errorf("remove taint %s: %w", taint, err)
	}
	if _, err := k.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, spec, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("remove taint %s: %w", taint, err)
	}
	return nil
}

// Kill sends the kubelet a signal that ends it and waits for its end; without a process it does nothing.
func (k *Kubelet) Kill(signal syscall.Signal) {
	if !k.Running() {
		return
	}
	_ = k.cmd.Process.Signal(signal)
	select {
	case <-k.done:
	case <-time.After(10 * time.Second):
		_ = k.cmd.Process.Kill()
		<-k.done
	}
}
