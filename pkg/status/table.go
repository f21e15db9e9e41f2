package status

import (
	"fmt"
	"io"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Table writes the document for people; wide adds cgroups, kernel counters and how containers got their nodes.
func (d *Document) Table(to io.Writer, wide bool) error {
	var b strings.Builder
	d.writeHead(&b)
	tables.Nodes(&b, d.NodeStates())
	d.writeAvailable(&b)
	d.writeClaims(&b)
	switch {
	case d.Problems && d.healthy():
		b.WriteString("no problems\n")
	case !d.Problems && len(d.Pods) == 0:
		b.WriteString("no pods\n")
	}
	d.writeContainers(&b, wide)
	d.writeLines(&b, "PENDING RESIZES", (*Container).short)
	d.writeLines(&b, "MEMORY ON OTHER NODES", (*Container).elsewhere)
	d.writeReclaim(&b)
	d.writeAncestors(&b)
	d.writeProblems(&b)
	d.writeRejections(&b)
	_, err := io.WriteString(to, b.String())
	return err
}

func (d *Document) writeHead(b *strings.Builder) {
	fmt.Fprintf(b, "nri-memory-manager %s, %s\n", d.Version, d.Runtime)
	factor := "off"
	if f := d.Policy.ThrottlingFactor; f != nil {
		factor = fmt.Sprint(*f)
	}
	fmt.Fprintf(b, "memory manager %s, topology manager %s (%s), throttling factor %s, %s", d.Policy.MemoryManager,
		d.Policy.TopologyManager, d.Policy.Scope, factor, d.Policy.MemoryReservation)
	d.writeMemoryPolicy(b)
	if d.Policy.DryRun {
		fmt.Fprint(b, ", DRY RUN: nothing is changed")
	}
	fmt.Fprintln(b)
	for _, c := range d.Conditions {
		if !c.OK {
			fmt.Fprintf(b, "NOT READY: %s: %s\n", c.Name, c.Message)
		}
	}
	for _, s := range d.RequestSources {
		if s.Problem != "" {
			fmt.Fprintf(b, "request source %s does not answer (%s): %s\n", s.Source, s.Problem, d.RequestsFrom())
		}
	}
	for _, s := range d.DeviceSources {
		if s.Problem != "" {
			fmt.Fprintf(b, "device source %s cannot be read (%s): NUMA nodes of devices come from the kubelet and sysfs\n", s.Source, s.Problem)
		}
	}
	fmt.Fprintln(b)
}

func (d *Document) writeContainers(b *strings.Builder, wide bool) {
	names := "POD\tCONTAINER\tQOS\tNODES\tREQUEST\tFROM\tMIN\tLOW\tHIGH\tLIMIT\tUSED\tTHROTTLED"
	if wide {
		names += "\tSTALLED\tON NODES\tPLACED\tCGROUP"
	}
	var rows []string
	for pod, c := range d.Containers() {
		row := fmt.Sprintf("%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", pod.Namespace, pod.Name, c.name(), pod.Class,
			tables.OrDash(c.CpusetMems), tables.Range(c.Request, c.Error), tables.OrDash(string(c.Source)), tables.Value(c.Min), tables.Value(c.Low),
			c.high(), limit(c.Limit), c.used(), c.throttled())
		if wide {
			row += fmt.Sprintf("\t%s\t%s\t%s\t%s", c.stalled(), c.onNodes(), tables.OrDash(c.Pinning), tables.OrDash(c.Cgroup))
		}
		rows = append(rows, row)
	}
	tables.Section(b, "CONTAINERS", tables.Columns(names, rows...))
}

// writeLines writes a line for each container for which line returns one.
func (d *Document) writeLines(b *strings.Builder, title string, line func(*Container) string) {
	var lines strings.Builder
	for pod, c := range d.Containers() {
		if text := line(c); text != "" {
			fmt.Fprintf(&lines, "%s/%s %s: %s\n", pod.Namespace, pod.Name, c.Name, text)
		}
	}
	tables.Section(b, title, lines.String())
}

// writeReclaim says how far the kubelet is from evicting pods, and whose page cache was reclaimed lately.
func (d *Document) writeReclaim(b *strings.Builder) {
	r := d.Reclaim
	switch {
	case r == nil || r.Signal == nil && r.Unknown == "":
		return
	case r.Unknown != "":
		fmt.Fprintf(b, "RECLAIM BEFORE EVICTION\nno page cache is reclaimed: %s\n\n", r.Unknown)
		return
	}
	fmt.Fprintf(b, "RECLAIM BEFORE EVICTION\n%s is %s; page cache is reclaimed below %s, the kubelet evicts below %s\n",
		r.Name, quantity.Short(r.Available), quantity.Short(r.Below), quantity.Short(r.Threshold))
	for _, f := range r.Containers {
		fmt.Fprintf(b, "%s/%s %s: %s in %d calls, %s of it read again\n", f.Namespace, f.Pod, f.Name, quantity.Short(f.Bytes), f.Calls,
			quantity.Short(f.Refaulted))
	}
	fmt.Fprintln(b)
}

// short describes a pending resize; "" without one.
func (c *Container) short() string {
	if len(c.PendingResize) == 0 {
		return ""
	}
	return fmt.Sprintf("%s that a resize asks for has no room on %s; until it has, the container may use %s",
		c.PendingResize, c.AllocatedOn().Named(), c.Nodes.Named())
}

func (c *Container) name() string {
	switch {
	case c.State == Rejected:
		return c.Name + " (rejected)"
	case c.State == Stopped:
		return c.Name + " (ended)"
	case len(c.PendingResize) > 0:
		return c.Name + " (pending resize)"
	case c.Unplaced != "":
		return c.Name + " (unpinned)"
	case c.Migration.Blocked():
		return c.Name + " (not moved)"
	case c.Kind != memoryqos.App:
		return c.Name + " (" + c.Kind.String() + ")"
	}
	return c.Name
}

// high shows a raised value behind the computed one.
func (c *Container) high() string {
	if c.Raised == 0 || c.High == nil {
		return tables.Value(c.High)
	}
	return strings.Join(cgroup.Apart(*c.High, c.Raised), "→")
}

func limit(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return quantity.Short(bytes)
}

func (c *Container) used() string {
	if c.Usage == nil {
		return "-"
	}
	return quantity.Short(c.Usage.Current)
}

func (c *Container) throttled() string {
	switch {
	case c.Stopped:
		return "STOPPED"
	case c.Usage == nil || c.Usage.HighEvents == 0:
		return "-"
	}
	return fmt.Sprintf("%d×", c.Usage.HighEvents)
}

func (c *Container) stalled() string {
	if c.Usage == nil || c.Usage.FullStall == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fs", c.Usage.FullStall)
}

// onNodes shows on which NUMA nodes the pages are.
func (c *Container) onNodes() string {
	if c.Usage == nil {
		return "-"
	}
	var parts []string
	for id := range nodeset.Max {
		if bytes := c.Usage.PerNode[id]; bytes > 0 {
			parts = append(parts, fmt.Sprintf("%d:%s", id, quantity.Short(bytes)))
		}
	}
	return tables.OrDash(strings.Join(parts, " "))
}

func (d *Document) writeAncestors(b *strings.Builder) {
	var rows []string
	for _, a := range d.Ancestors {
		state := "the same"
		if a.overwritten() {
			state = fmt.Sprintf("%s, %s: overwritten or not yet written", real(a.Min, a.RealMin), real(a.Low, a.RealLow))
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s", a.Cgroup, tables.Value(a.Min), tables.Value(a.Low), state))
	}
	tables.Section(b, "CGROUPS ABOVE THE PODS", tables.Columns("CGROUP\tMEMORY.MIN\tMEMORY.LOW\tIN THE FILES", rows...))
}

// overwritten reports whether the files hold other values than desired.
func (a *Ancestor) overwritten() bool { return differs(a.Min, a.RealMin) || differs(a.Low, a.RealLow) }

// real shows the value of a file, with enough digits to tell it from the desired one.
func real(wanted, real *uint64) string {
	if !differs(wanted, real) {
		return tables.Value(real)
	}
	return cgroup.Apart(*real, *wanted)[0]
}

func differs(wanted, real *uint64) bool { return wanted != nil && real != nil && *wanted != *real }

func (d *Document) writeProblems(b *strings.Builder) {
	var lines strings.Builder
	for _, pod := range d.Pods {
		for _, problem := range pod.Problems {
			fmt.Fprintf(&lines, "%s/%s: %s\n", pod.Namespace, pod.Name, problem)
		}
	}
	tables.Section(b, "IGNORED ANNOTATIONS", lines.String())
}

// NodeStates are the nodes as tables.Nodes draws them.
func (d *Document) NodeStates() (states []memorymanager.NodeState) {
	for _, n := range d.Nodes {
		states = append(states, n.NodeState)
	}
	return states
}
