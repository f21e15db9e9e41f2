package oom

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Is reports whether a text names the pod (pods.Ref.Is).
func (v Verdict) Is(pod string) bool {
	return pods.Ref{UID: v.UID, Namespace: v.Namespace, Name: v.Pod}.Is(pod)
}

// where names what ran out.
func (v Verdict) where() string {
	limit := ""
	if v.Limit > 0 {
		limit = " of " + quantity.Short(v.Limit)
	}
	switch v.Level {
	case Container:
		return "its own limit" + limit
	case Pod:
		return "the pod's limit" + limit
	case Parent:
		return "the limit" + limit + " of the cgroup " + v.Cgroup
	case NUMANode:
		return v.Nodes.Named() + ", all that it may use"
	case Node:
		return "the node's memory"
	}
	return "not known: " + v.Unknown
}

// filled names what most of it was.
func (v Verdict) filled() string {
	if v.Held == nil {
		return "not known: " + v.Unknown
	}
	h := v.Held
	parts := []string{
		"processes " + quantity.Short(h.Processes),
		fmt.Sprintf("page cache %s (%s not on the disk yet)", quantity.Short(h.PageCache), quantity.Short(h.Unwritten)),
		"files in memory " + quantity.Short(h.Tmpfs),
		"kernel " + quantity.Short(h.Kernel),
	}
	i := slices.Index([]Cause{Processes, PageCache, Tmpfs, KernelMemory}, v.Cause)
	if i > 0 { // the largest part first
		parts[0], parts[i] = parts[i], parts[0]
	}
	return strings.Join(parts, ", ")
}

// by names the culprit; of another namespace's only to the administrator.
func (v Verdict) by(administrator bool) string {
	c := v.Culprit
	switch {
	case c == nil:
		return "not known"
	case v.Itself:
		return "itself"
	case v.leftInMemory():
		return "files in memory that ended containers of this pod left, " + quantity.Short(c.Used)
	case c.Outside:
		return fmt.Sprintf("processes outside of pods, with %s of which %s are reserved", quantity.Short(c.Used), quantity.Short(min(c.Used, c.Share)))
	case c.Namespace != v.Namespace && !administrator:
		return "a pod of another namespace"
	}
	name := "container " + c.Container + " of this pod"
	if c.Pod != v.Pod || c.Namespace != v.Namespace || c.Container == "" {
		name = strings.TrimSuffix("pod "+c.Namespace+"/"+c.Pod+", container "+c.Container, ", container ")
	}
	text := fmt.Sprintf("%s, with %s where it may count on %s", name, quantity.Short(c.Used), quantity.Short(c.Share))
	if c.Order != "" {
		text += " (" + c.Order + ")"
	}
	return text
}

// leftInMemory reports whether the pod's limit was filled most by files in memory of containers that have ended.
func (v Verdict) leftInMemory() bool {
	return v.Level == Pod && v.Culprit != nil && v.Culprit.Container == ""
}

// change is what would keep it from happening again.
func (v Verdict) change() string {
	switch v.Level {
	case Container:
		return v.changeOfContainer()
	case Pod:
		if v.Culprit != nil && v.Culprit.atLimit() {
			return v.changeOfContainer()
		}
		if v.leftInMemory() {
			return "bound what the pod's containers write to memory (sizeLimit of its emptyDir with the medium Memory), or raise the pod's limit"
		}
		return "raise the pod's limit, or give the container that uses most a limit of its own"
	case Parent:
		return "give pods that use more than their requests a limit or a larger request, or keep less from pods (kubeReserved, systemReserved)"
	case NUMANode:
		return "let the container use more NUMA nodes (annotation numa: none), or keep others off these (unpinnedMemoryPolicy: PreferAvailable, reservedMemory)"
	case Node:
		if v.Culprit != nil && v.Culprit.Outside {
			return "reserve more for the node's own processes (systemReserved, kubeReserved)"
		}
		return "give pods that use more than their requests a limit or a larger request, or raise evictionHard memory.available"
	}
	return "keep the daemon running: of the next one more is known"
}

func (v Verdict) changeOfContainer() string {
	switch v.Cause {
	case PageCache:
		if 2*v.Held.Unwritten >= v.Held.PageCache {
			return RoomForCache
		}
		return "protect less of its limit (annotation reservation: low, or a larger guaranteedHeadroom), so that its page cache can be reclaimed"
	case Tmpfs:
		return "bound what it writes to memory (sizeLimit of its emptyDir with the medium Memory, /dev/shm) below its limit, or raise its limit"
	case KernelMemory:
		return "raise its limit, or have it use fewer files, sockets and processes: kernel memory counts"
	}
	return "raise its limit, or have its processes use less (heap size, caches)"
}

// when is the time of a kill, or between which times it was.
func (v Verdict) when() string {
	text := v.Time.Format(time.DateTime)
	switch {
	case !v.After.IsZero():
		return fmt.Sprintf("between %s and %s", v.After.Format(time.DateTime), text)
	case v.Level == UnknownLevel || v.Unknown == nobodyWatched:
		return "before " + text
	}
	return text
}

// what was killed.
func (v Verdict) what() string {
	switch {
	case v.Whole:
		return "the whole container"
	case v.Kills == 1:
		return "one process"
	}
	return fmt.Sprint(v.Kills, " processes")
}

// PodText is the verdict in a line for those who see this pod's namespace alone.
func (v Verdict) PodText() string { return v.line(false) }

// Text is the verdict in a line for the administrator.
func (v Verdict) Text() string { return v.line(true) }

func (v Verdict) line(administrator bool) string {
	name := ""
	if v.Container != "" {
		name = "container " + v.Container + ": "
	}
	text := fmt.Sprintf("%sthe kernel killed %s for want of memory; what ran out: %s; used for: %s", name, v.what(), v.where(), v.filled())
	if !v.Itself && v.Culprit != nil {
		text += "; most beyond its share has " + v.by(administrator)
	}
	if v.Order != "" {
		text += "; chosen by its " + v.Order
	}
	if len(v.Unread) > 0 {
		text += "; container " + strings.Join(v.Unread, ", ") + " could not be read"
	}
	return text + "; what helps: " + v.Change
}

// Write writes verdicts for people, the newest first.
func Write(to io.Writer, verdicts []Verdict) error {
	if len(verdicts) == 0 {
		_, err := fmt.Fprintln(to, "No OOM kill is known.")
		return err
	}
	for i, v := range verdicts {
		if i > 0 {
			fmt.Fprintln(to)
		}
		fmt.Fprintf(to, "%s/%s, container %s: the kernel killed %s %s\n", v.Namespace, v.Pod, cmp.Or(v.Container, "not known"), v.what(), v.when())
		w := tables.New(to)
		fmt.Fprintf(w, "  what ran out:\t%s\n", v.where())
		fmt.Fprintf(w, "  used for:\t%s\n", v.filled())
		fmt.Fprintf(w, "  most used by:\t%s\n", v.by(true))
		if v.Order != "" {
			fmt.Fprintf(w, "  chosen by:\tits %s\n", v.Order)
		}
		if len(v.Unread) > 0 {
			fmt.Fprintf(w, "  not read:\tcontainer %s\n", strings.Join(v.Unread, ", "))
		}
		for _, m := range v.Memory {
			fmt.Fprintf(w, "  NUMA node %d:\t%s free, %s allocated%s\n", m.ID, quantity.Short(m.Free), quantity.Short(m.Allocated), v.grew(m.ID))
		}
		if n := len(v.Samples); n > 1 {
			first, last := v.Samples[0], v.Samples[n-1]
			fmt.Fprintf(w, "  before:\tfrom %s to %s within %s, %s of it waiting for memory\n", quantity.Short(first.Current), quantity.Short(last.Current),
				last.At.Sub(first.At).Round(time.Second), (last.Stalled - min(first.Stalled, last.Stalled)).Round(100*time.Millisecond))
		}
		fmt.Fprintf(w, "  what helps:\t%s\n", v.Change)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// grew is how a container that is kept to a NUMA node came to what it held there.
func (v Verdict) grew(node int) string {
	if len(v.Samples) < 2 || !v.Nodes.Has(node) {
		return ""
	}
	first, last := v.Samples[0], v.Samples[len(v.Samples)-1]
	if last.Nodes == nil {
		return ""
	}
	return fmt.Sprintf("; this container's from %s to %s", quantity.Short(first.Nodes[node]), quantity.Short(last.Nodes[node]))
}
