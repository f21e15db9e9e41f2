package devices

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/lru"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/breaker"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// DefaultKubeletSocket is where a kubelet with the root directory /var/lib/kubelet serves its PodResources API.
const DefaultKubeletSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// firstPause is how long an API is left alone after a question that it has not answered; more of them make it longer.
const firstPause = time.Second

// kubelet is the kubelet's PodResources API. It knows the devices of a pod from the pod's admission on, which is before the
// runtime is asked to create the first container.
type kubelet struct {
	socket  string
	log     logrus.FieldLogger
	breaker *breaker.Breaker
	pods    *lru.Cache // of known, by sandboxOfPod: as long as that stands, a pod's devices and CPUs do not change

	mu   sync.Mutex
	conn *grpc.ClientConn
}

type sandboxOfPod struct{ uid, sandbox string }

// known are the devices and exclusive CPUs that the kubelet knows of a pod.
type known struct {
	devices Pod
	cpus    map[string]string
	// claims are the containers' resource claims: the API has no topology of their devices.
	claims map[string][]claim
}

const (
	// connectTimeout is longer than any question: what ends a question on a busy node is its own deadline.
	connectTimeout = 5 * time.Second
	// mostDevices bounds what is read of a container's devices.
	mostDevices = 1024
	// mostCPUs is what Linux has at most (CONFIG_NR_CPUS of x86).
	mostCPUs = 8192
)

func newKubelet(o Options) *kubelet {
	return &kubelet{socket: o.Socket, log: o.Log, breaker: breaker.New(1, firstPause, o.Now), pods: lru.New(mostCached)}
}

// pod asks for a pod's devices, once. What is not known is empty.
func (k *kubelet) pod(ctx context.Context, c Container) known {
	if k.socket == "" {
		return known{}
	}
	of := sandboxOfPod{c.UID, c.Sandbox}
	if answer, ok := k.pods.Get(of); ok {
		return answer.(known)
	}
	if !k.breaker.Allow() {
		return known{}
	}
	answer, err := k.ask(ctx, c)
	k.ended(err)
	if err != nil || answer == nil {
		return known{}
	}
	result := read(answer)
	k.pods.Add(of, result)
	return result
}

func (k *kubelet) ended(err error) {
	switch news := k.breaker.Ended(err); {
	case !news:
	case err != nil:
		k.log.WithError(err).Info("the kubelet's PodResources API does not answer: devices are looked up in sysfs")
	default:
		k.log.Info("the kubelet's PodResources API answers")
	}
}

// ask returns the kubelet's answer; nil where it does not know the pod. A kubelet with Get turned off (KubeletPodResourcesGet) is
// asked for all pods.
func (k *kubelet) ask(ctx context.Context, c Container) (*podresources.PodResources, error) {
	client, err := k.client()
	if err != nil {
		return nil, err
	}
	got, err := client.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: c.Namespace, PodName: c.Pod})
	switch code := status.Code(err); {
	case err == nil:
		return got.GetPodResources(), nil
	case code == codes.NotFound:
		return nil, nil
	case code != codes.Unknown && code != codes.Unimplemented:
		return nil, fmt.Errorf("ask the kubelet at %s for the devices of pod %s/%s: %w", k.socket, c.Namespace, c.Pod, err)
	}
	list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet at %s for the devices of all pods: %w", k.socket, err)
	}
	for _, pod := range list.GetPodResources() {
		if pod.GetNamespace() == c.Namespace && pod.GetName() == c.Pod {
			return pod, nil
		}
	}
	return nil, nil
}

// client connects at the first question.
func (k *kubelet) client() (podresources.PodResourcesListerClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		if _, err := os.Stat(k.socket); err != nil {
			return nil, err
		}
		conn, err := grpc.NewClient("unix:"+k.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: 5 * time.Second},
				MinConnectTimeout: connectTimeout, // without it, BaseDelay
			}))
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", k.socket, err)
		}
		k.conn = conn
	}
	return podresources.NewPodResourcesListerClient(k.conn), nil
}

func (k *kubelet) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	conn := k.conn
	k.conn = nil
	return conn.Close()
}

// read takes devices and CPUs from an answer. The kubelet has an entry for each device and each of its nodes, in no order.
func read(answer *podresources.PodResources) known {
	result := known{devices: Pod{}, cpus: map[string]string{}, claims: map[string][]claim{}}
	for _, container := range answer.GetContainers() {
		if ids := container.GetCpuIds(); len(ids) > 0 && len(ids) <= mostCPUs {
			var cpus []int
			for _, id := range ids {
				cpus = append(cpus, int(id))
			}
			result.cpus[container.GetName()] = cpuset.New(cpus...).String()
		}
		type device struct{ resource, id string }
		nodes := map[device]nodeset.Set{}
		for _, entry := range container.GetDevices() {
			for _, id := range entry.GetDeviceIds() {
				d := device{entry.GetResourceName(), id}
				if _, there := nodes[d]; there || len(nodes) < mostDevices {
					nodes[d] |= nodesOf(entry.GetTopology())
				}
			}
		}
		var devices []topologymanager.Device
		for _, d := range slices.SortedFunc(maps.Keys(nodes), func(a, b device) int { return strings.Compare(a.id, b.id) }) {
			devices = append(devices, topologymanager.NewDevice(d.resource, d.id, SourceKubelet, nodes[d]))
		}
		if len(devices) > 0 {
			result.devices[container.GetName()] = topologymanager.Join(devices)
		}
		if claims := container.GetDynamicResources(); len(claims) > 0 {
			result.claims[container.GetName()] = readClaims(claims)
		}
	}
	return result
}

func readClaims(from []*podresources.DynamicResource) (claims []claim) {
	for _, resource := range from[:min(len(from), mostClaims)] {
		read := claim{namespace: resource.GetClaimNamespace(), name: resource.GetClaimName()}
		for _, device := range resource.GetClaimResources() {
			if len(read.devices) < mostDevices {
				read.devices = append(read.devices, claimedDevice{device.GetDriverName(), device.GetPoolName(), device.GetDeviceName()})
			}
		}
		claims = append(claims, read)
	}
	return claims
}

func nodesOf(topology *podresources.TopologyInfo) (nodes nodeset.Set) {
	for _, node := range topology.GetNodes() {
		if id := node.GetID(); id >= 0 && id < nodeset.Max {
			nodes |= nodeset.Of(int(id))
		}
	}
	return nodes
}
