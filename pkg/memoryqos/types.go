package memoryqos

// QOSClass is a pod's quality of service class
// (https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/).
type QOSClass string

// The three QoS classes of Kubernetes.
const (
	Guaranteed QOSClass = "Guaranteed"
	Burstable  QOSClass = "Burstable"
	BestEffort QOSClass = "BestEffort"
)

// ReservationPolicy chooses the protection file that carries a request (the kubelet's memoryReservationPolicy).
type ReservationPolicy string

const (
	// None protects nothing: throttling only.
	None ReservationPolicy = "None"
	// TieredReservation puts a Guaranteed request in memory.min and a Burstable one in memory.low.
	TieredReservation ReservationPolicy = "TieredReservation"
	// HardReservation puts every request in memory.min.
	HardReservation ReservationPolicy = "HardReservation"
)

// Settings are the node's rules.
type Settings struct {
	// Off leaves memory.min, memory.low and memory.high to the kubelet, whatever the other rules and a pod say.
	Off bool
	// Factor is memoryThrottlingFactor, in (0, 1]. Nil, or a number outside, means no memory.high.
	Factor *float64
	// MinimumFactor is the smallest throttling factor that a pod may choose for itself; 0 bounds nothing.
	MinimumFactor float64
	// Reservation chooses the protection file; empty is None.
	Reservation ReservationPolicy
	// GuaranteedHeadroom is the share of a limit, in [0, 1), that memory.min never covers, so that page cache below
	// the limit remains reclaimable. It bounds every container's memory.min: a Burstable one's, where its request is to be in
	// that file and is nearer to its limit, as well as a Guaranteed one's. 0 gives the kubelet's values.
	GuaranteedHeadroom float64
	// CacheRoom is the share of its limit, in [0, 0.5], by which a container's memory.high lies below memory.max where the formula gives
	// none or a larger one; 0 leaves that to pods.
	CacheRoom float64
	// NodeAllocatable stands in for the limit of a container that has none: capacity - kube-reserved - system-reserved.
	NodeAllocatable uint64
	// PageSize is the system's page size; 0 counts as 4096.
	PageSize uint64
}

// Container is what the rules need to know of one container.
type Container struct {
	Class QOSClass // of its pod
	// Request is 0 when there is none. Limit is memory.max: the limit of the container's spec with what its resource claims add to
	// it, or the pod's limit where it has none; 0 when there is none either.
	Request, Limit uint64
	// OwnLimit is the limit of the container's spec, 0 when it has none. Nil where the spec is not known: then Limit counts as the
	// container's own.
	OwnLimit *uint64
	// RequestError is by how much the true request can be larger, where Request is an estimate; 0 is exact.
	RequestError uint64
}

// Reservation is a pod's own choice of protection file; empty leaves the choice to the node's policy.
type Reservation string

// The choices that a pod has.
const (
	ReserveNone Reservation = "none"
	ReserveLow  Reservation = "low"
	ReserveMin  Reservation = "min"
)

// Overrides are a pod's own wishes, from its annotations. The zero value wishes nothing. Whatever is wished, protection
// never exceeds the request and memory.high never the limit.
type Overrides struct {
	// Factor replaces the node's throttling factor (also one that is unset), bounded below by MinimumFactor.
	Factor *float64
	// Own is set for the container of the daemon itself, which cannot raise its own memory.high and so must have none.
	Own bool
	// NoHigh is "memory-high: off".
	NoHigh bool
	// High is "memory-high: <quantity>". It is bounded by what MinimumFactor gives and by the limit, and is rounded
	// down to a page.
	High *uint64
	// CacheRoom replaces the node's; 0 is none.
	CacheRoom *float64
	// Reservation replaces the policy's choice of protection file.
	Reservation Reservation
	// OOMGroup is 1 for "oom-group: container" and 0 for "oom-group: process".
	OOMGroup *uint64
}

// Values are what the memory.min, memory.low and memory.high files of one cgroup should hold; nil is not set, that is
// 0, 0 and max wherever something had been set before. OOMGroup is a container's memory.oom.group; nil leaves it to the kubelet.
type Values struct {
	Min  *uint64 `json:"memoryMin,omitempty"`
	Low  *uint64 `json:"memoryLow,omitempty"`
	High *uint64 `json:"memoryHigh,omitempty"`

	OOMGroup *uint64 `json:"memoryOOMGroup,omitempty"`
}

// Promised is what a cgroup with these values may count on, in bytes: a request, or memory.min or memory.low where that is more.
func (v Values) Promised(request uint64) uint64 { return max(request, value(v.Min), value(v.Low)) }

// PodContainer is a container as a part of its pod's sums.
type PodContainer struct {
	Kind           Kind
	Request, Limit uint64
	// Claimed is what resource claims add to the limit, where there is one.
	Claimed uint64
	// Overrides are the wishes for this container; they count while Values is nil.
	Overrides Overrides
	// Mapped is the part of a living container's values that the pod's Claimed has, too.
	Mapped uint64
	// Values are what a living container really has, from Settings.Container. Nil stands for a container of the spec that
	// does not live: it counts with what it would get.
	Values *Values
}

// Pod is what the rules need to know of a pod.
type Pod struct {
	Class QOSClass
	// Containers are in the order of the pod's spec: init containers and sidecars first. They are all of the spec, whether
	// they live or not, where the spec is known, and else those that live.
	Containers []PodContainer
	// Overhead is the runtime class's.
	Overhead uint64
	// Claimed is what resource claims add to the containers' requests. It does not count where PodRequest is set.
	Claimed uint64
	// PodRequest and PodLimit are pod-level resources (spec.resources); nil when not set.
	PodRequest, PodLimit *uint64
	// CgroupLimit is the memory limit of the pod's cgroup without overhead; 0 when there is none or it is not known. It counts
	// where PodRequest is not known: containers without a limit of their own have their pod's, and are taken for Guaranteed
	// ones that ask for it.
	CgroupLimit uint64
	// Overrides are the wishes for the whole pod; its reservation decides about its overhead and its pod-level request.
	Overrides Overrides
}

// PodValues are what one pod adds to the parent cgroups.
type PodValues struct {
	Class QOSClass
	// System is set for a pod in the system partition (KEP-5894), which has QoS levels of its own.
	System bool
	Values Values
}

// Levels are the values of the parents of the pods.
type Levels struct {
	Kubepods, Burstable Values
	// System is the system partition below kubepods, SystemBurstable the Burstable level in it.
	System, SystemBurstable Values
}

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
