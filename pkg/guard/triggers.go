package guard

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoPressure means that the kernel has no pressure triggers for a cgroup: it was built without CONFIG_PSI or booted with psi=0, they are off in
// cgroup.pressure, or this process may not use them.
var ErrNoPressure = errors.New("the kernel gives no memory.pressure trigger for this cgroup")

// unprivilegedWindow divides the windows of a process without CAP_SYS_RESOURCE (kernel 6.5; psi_trigger_create in kernel/sched/psi.c).
const unprivilegedWindow = 2 * time.Second

// trigger sets the kernel's trigger on a cgroup, with a longer window if the kernel requires one.
func (g *Guard) trigger(cgroup string, stall time.Duration) (int32, error) {
	window := g.settings.Window
	id, err := g.triggers.Add(cgroup, stall, window)
	if errors.Is(err, unix.EINVAL) && window%unprivilegedWindow != 0 {
		id, err = g.triggers.Add(cgroup, stall, window-window%unprivilegedWindow+unprivilegedWindow)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoPressure
	}
	if err != nil {
		return 0, fmt.Errorf("%s/memory.pressure: %w", cgroup, err)
	}
	return id, nil
}
