// Package devices finds the NUMA nodes of containers' devices. It asks the kubelet's PodResources API, which knows what device
// plugins say of their devices' topology, and looks up the device nodes in a container's spec in sysfs: those of device plugins
// without a topology, of resource claims, and of CDI devices. Slices know what the drivers of resource claims publish.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
package devices

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// The sources of a device's nodes, as they are shown.
const (
	SourceKubelet       = "kubelet"
	SourceSysfs         = "sysfs"
	SourceResourceSlice = "resourceslice"
)

// Node is a device node in a container's spec.
type Node struct {
	// Path is where the container has it.
	Path string
	// Block is set for a block device; others are character devices.
	Block        bool
	Major, Minor int64
}

// Container is a container as the runtime describes it.
type Container struct {
	// UID, Sandbox, Namespace and Pod are its pod's. A static pod that was removed has its UID again when its manifest is back.
	UID, Sandbox, Namespace, Pod, Name string
	// Nodes are its device nodes, CDI the names of its CDI devices.
	Nodes []Node
	CDI   []string
	// PCI is set where its environment names PCI devices. Whoever writes the pod may say so: the kubelet is asked, and believed.
	PCI bool
}

// Pod are the devices of a pod's containers, as far as they are known, by container name.
type Pod map[string][]topologymanager.Device

// Options are what a Finder is made of.
type Options struct {
	// Socket is the kubelet's PodResources socket; empty asks no kubelet.
	Socket string
	// Sysfs is the root of sysfs; empty looks nothing up.
	Sysfs string
	// Slices are nil where no ResourceSlices are read.
	Slices *Slices
	// Log is nil for logrus' standard logger. The kubelet's coming and going is logged, not each question.
	Log logrus.FieldLogger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Finder finds devices. It may be used by several goroutines.
type Finder struct {
	kubelet *kubelet
	sysfs   sysfs
	slices  *Slices // nil has none
}

// New returns a Finder. The kubelet's socket may appear later, or never.
func New(o Options) *Finder {
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Finder{kubelet: newKubelet(o), sysfs: sysfs{root: o.Sysfs}, slices: o.Slices}
}

// Close ends the connection to the kubelet.
func (f *Finder) Close() error { return f.kubelet.close() }

// Wants reports whether a container may have devices, so that Find asks for them. Of devices of resource claims its spec need not
// show anything: with ResourceSlices any container may. It waits for nobody.
func (f *Finder) Wants(c Container) bool {
	return len(c.Nodes) > 0 || len(c.CDI) > 0 || c.PCI || f.slices.any()
}

// Find returns the devices of a container, and of the others of its pod as far as the kubelet knows them. Nothing is asked for a
// container without devices. It ends with ctx: then what is known without waiting is left.
func (f *Finder) Find(ctx context.Context, c Container) Pod {
	if !f.Wants(c) {
		return nil
	}
	return f.complete(ctx, c, f.kubelet.pod(ctx, c))
}

// CPUs returns the exclusive CPUs of the containers of a pod by name, in the kernel's list format, as the kubelet has assigned them: its
// API does not have those of init containers. It ends with ctx, and is empty where the kubelet does not answer.
func (f *Finder) CPUs(ctx context.Context, c Container) map[string]string {
	return f.kubelet.pod(ctx, c).cpus
}

// complete adds to what the kubelet knows of a pod what it does not know.
func (f *Finder) complete(ctx context.Context, c Container, known known) Pod {
	pod := maps.Clone(known.devices)
	if pod == nil {
		pod = Pod{}
	}
	if !placed(pod[c.Name]) || len(known.claims[c.Name]) > 0 {
		pod[c.Name] = slices.Concat(pod[c.Name], f.sysfs.devices(c.Nodes))
	}
	for name, claims := range known.claims {
		if found := f.slices.devices(ctx, c.UID, claims); len(found) > 0 {
			pod[name] = slices.Concat(pod[name], found)
		}
	}
	return pod
}

// placed reports whether one of the devices is on a node.
func placed(devices []topologymanager.Device) bool {
	return slices.ContainsFunc(devices, func(d topologymanager.Device) bool { return !d.Nodes.Empty() })
}

// Lookup returns the devices that sysfs knows of a container's device nodes. It waits for nobody.
func (f *Finder) Lookup(c Container) []topologymanager.Device { return f.sysfs.devices(c.Nodes) }

// mostCached is more pods, and more claims, than a node has.
const mostCached = 1024
