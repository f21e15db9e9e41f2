package cgroup

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Pod is a living pod as the levels above the containers see it.
type Pod struct {
	Path PodPath
	// Values are its own cgroup's, from memoryqos.Settings.Pod.
	Values memoryqos.Values
}

// Target is what one cgroup above the containers should hold. A value that is not set is put back to the kernel's default
// if this protector wrote it before, and is otherwise left alone.
type Target struct {
	Cgroup string
	Level  string // "kubepods", "burstable", "besteffort" or "pod"
	Driver Driver
	Values memoryqos.Values
}

// Targets derives all levels from the living pods: their own and the sums above them. It is pure.
func Targets(pods []Pod) []Target { return nil }

// Overwrite names a file that somebody else wrote.
type Overwrite struct{ Level, File string }

// Units sets memory properties of systemd units at run time.
type Units interface {
	// SetMemory sets the given properties of a unit; Max and 0 as the kernel means them.
	SetMemory(ctx context.Context, unit string, values map[Knob]uint64) error
}

// NewUnits gives Units over systemd's private D-Bus socket, usually /run/systemd/private. It connects at first use and
// again after an error.
func NewUnits(socket string) *SystemdUnits { return &SystemdUnits{} }

// SystemdUnits are Units over systemd's D-Bus socket.
type SystemdUnits struct{}

// SetMemory implements Units.
func (u *SystemdUnits) SetMemory(ctx context.Context, unit string, values map[Knob]uint64) error {
	return errNotYet
}

// Close ends the connection.
func (u *SystemdUnits) Close() error { return nil }

// ProtectorOptions are what a Protector works with.
type ProtectorOptions struct {
	Tree    *Tree
	Units   Units    // nil: files only
	Journal *Journal // nil: none is kept
	Watcher *Watcher // nil: repairs happen at Reconcile only
	Log     logrus.FieldLogger
	// PageSize is the kernel's rounding; 0 is the system's.
	PageSize int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Protector owns the values of kubepods, the QoS levels and the pods. It is safe for concurrent use.
type Protector struct{}

// NewProtector makes a Protector that wants nothing yet.
func NewProtector(o ProtectorOptions) *Protector { return &Protector{} }

// Apply makes the targets the wanted state, as a whole: a cgroup that was among the last ones and is not among these is
// put back to the kernel's default. Writes lower bottom-up, then raise top-down, so that at no moment a parent promises
// less than its children. A cgroup that is gone is no error. It does all that it can and returns all errors joined.
func (p *Protector) Apply(ctx context.Context, targets []Target) error { return errNotYet }

// Reconcile reads what the cgroups hold (all when none are named), compares with what is wanted and repairs. It tells
// when it wants to be called again because it held a repair back; 0 is never.
func (p *Protector) Reconcile(ctx context.Context, cgroups ...string) (time.Duration, error) {
	return 0, errNotYet
}

// Run reconciles every period and whenever the watcher tells of a write, until ctx ends.
func (p *Protector) Run(ctx context.Context, period time.Duration) {}

// Overwrites counts the foreign writes found so far.
func (p *Protector) Overwrites() map[Overwrite]uint64 { return nil }

// ContainerKnobs are values to be written to a running container's own cgroup.
type ContainerKnobs struct {
	Cgroup string // from PodPath.Container
	Driver Driver
	// Values: nil leaves a file alone; Max for High and 0 for Min and Low take it back.
	Values memoryqos.Values
	// Mems is cpuset.mems; empty leaves it alone.
	Mems string
}

// SetContainer writes to a running container, to crun's inner cgroup too, for runtimes that cannot be asked to.
func (p *Protector) SetContainer(ctx context.Context, c ContainerKnobs) error { return errNotYet }
