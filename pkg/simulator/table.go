package simulator

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Table writes the result for people.
func (r *Result) Table(to io.Writer) error {
	var b strings.Builder
	tables.Nodes(&b, r.nodes)
	r.writeContainers(&b)
	r.writeHugepages(&b)
	r.writeIgnoredAnnotations(&b)
	r.writeNotes(&b, "ANNOTATIONS WITHOUT EFFECT\n", func(c *Container) string { return strings.Join(c.WithoutEffect, "; ") })
	r.writeNotes(&b, "DEFAULTS\n", func(c *Container) string { return c.Defaults })
	writeReasons(&b, "REJECTED", r.Rejected())
	writeReasons(&b, "NOT PINNED", r.unpinned())
	r.writeAncestors(&b)
	fmt.Fprintf(&b, "NOT LOOKED AT: %s\n", r.notLookedAt)
	_, err := io.WriteString(to, b.String())
	return err
}

func (r *Result) writeContainers(b *strings.Builder) {
	fmt.Fprintln(b, "CONTAINERS")
	w := tables.New(b)
	exclusive := slices.ContainsFunc(r.Containers, func(c *Container) bool { return c.CpusetCpus != "" })
	cpus := func(text string) string {
		if !exclusive {
			return ""
		}
		return "\t" + text
	}
	fmt.Fprintf(w, "POD\tCONTAINER\tQOS\tADMITTED%s\tNODES\tREQUEST\tFROM\tMIN\tLOW\tHIGH\tLIMIT\n", cpus("CPUS"))
	for _, c := range r.Containers {
		admitted, request := "yes", quantity.Short(c.Memory.Request)
		if !c.Admitted {
			admitted, request = "NO", "-"
		}
		if c.requestError > 0 {
			request += "–" + quantity.Short(c.Memory.Request+c.requestError)
		}
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Namespace, c.Pod, c.name(), c.QOSClass, admitted, cpus(tables.OrDash(c.CpusetCpus)),
			tables.OrDash(c.CpusetMems), request, tables.OrDash(c.Memory.RequestSource), tables.Value(c.Memory.Min), tables.Value(c.Memory.Low),
			tables.Value(c.Memory.High), tables.Value(c.Memory.Max))
	}
	w.Flush()
	fmt.Fprintln(b)
}

func (c *Container) name() string {
	if c.kind == "" {
		return c.Container
	}
	return c.Container + " (" + c.kind + ")"
}

func writeReasons(b *strings.Builder, title string, containers []*Container) {
	if len(containers) == 0 {
		return
	}
	fmt.Fprintln(b, title)
	for _, c := range containers {
		reason, code := c.Reason, ""
		if c.unplaced != nil {
			reason, code = c.unplaced.Why(), " ("+c.ReasonCode+")"
		}
		fmt.Fprintf(b, "%s/%s %s%s:\n    %s\n", c.Namespace, c.Pod, c.Container, code, strings.ReplaceAll(reason, "\n", "\n    "))
	}
	fmt.Fprintln(b)
}

func (r *Result) writeAncestors(b *strings.Builder) {
	if len(r.Ancestors) == 0 {
		return
	}
	fmt.Fprintln(b, "CGROUPS ABOVE THE PODS")
	w := tables.New(b)
	fmt.Fprintln(w, "CGROUP\tMEMORY.MIN\tMEMORY.LOW")
	for _, a := range r.Ancestors {
		fmt.Fprintf(w, "%s\t%s\t%s\n", a.Cgroup, tables.Value(a.MemoryMin), tables.Value(a.MemoryLow))
	}
	w.Flush()
	fmt.Fprintln(b)
}
