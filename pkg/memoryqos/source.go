package memoryqos

// Source says where a memory request was learned.
type Source string

// The sources, the most trusted first. Kubelet and APIServer know the pod; the others are read from the runtime's event.
const (
	// SourceClaim is a resource claim of the container's own (Dynamic Resource Allocation). Exact.
	SourceClaim Source = "claim"
	// SourceKubelet is the kubelet's pod API (KEP-4188). Exact.
	SourceKubelet Source = "kubelet"
	// SourceAPIServer is the API server's pod. Exact.
	SourceAPIServer Source = "apiserver"
	// SourceLimit is the limit of a container of a Guaranteed pod, which equals its request. Exact, but for a pod that is
	// Guaranteed by pod-level resources, whose containers need not ask for what limits them.
	SourceLimit Source = "limit"
	// SourceUnified is memory.min or memory.low that the kubelet asks the runtime to set (its own Memory QoS). Exact.
	SourceUnified Source = "unified"
	// SourceAnnotation is the noderesource.dev/resources annotation. Exact if it is true; it must agree with oom_score_adj.
	SourceAnnotation Source = "annotation"
	// SourceSwap inverts memory.swap.max, which the kubelet's LimitedSwap makes proportional to the request.
	SourceSwap Source = "swap"
	// SourceOOMScore inverts oom_score_adj, which holds the request in thousandths of the node's memory.
	SourceOOMScore Source = "oomscore"
	// SourceNone means that nothing is known, and the request counts as 0; or that it is 0, because the pod is BestEffort.
	SourceNone Source = "none"
)
