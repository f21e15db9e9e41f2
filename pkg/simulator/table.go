package simulator

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Table writes the result for people.
func (r *Result) Table(to io.Writer) error {
	var b strings.Builder
	tables.Nodes(&b, r.nodes)
	r.writeContainers(&b)
	r.writeHugepages(&b)
	r.writeIgnoredAnnotations(&b)
	r.writeNotes(&b, "ANNOTATIONS WITHOUT EFFECT", func(c *Container) string { return strings.Join(c.WithoutEffect, "; ") })
	r.writeNotes(&b, "DEFAULTS", func(c *Container) string { return c.Defaults })
	writeReasons(&b, "REJECTED", r.Rejected())
	writeReasons(&b, "NOT PINNED", r.unpinned())
	r.writeAncestors(&b)
	fmt.Fprintf(&b, "NOT LOOKED AT: %s\n", r.notLookedAt)
	_, err := io.WriteString(to, b.String())
	return err
}

func (r *Result) writeContainers(b *strings.Builder) {
	exclusive := slices.ContainsFunc(r.Containers, func(c *Container) bool { return c.CpusetCpus != "" })
	cpus := func(text string) string {
		if !exclusive {
			return ""
		}
		return "\t" + text
	}
	var rows []string
	for _, c := range r.Containers {
		admitted := map[bool]string{true: "yes", false: "NO"}[c.Admitted]
		rows = append(rows, fmt.Sprintf("%s/%s\t%s\t%s\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", c.Namespace, c.Pod, c.name(), c.QOSClass, admitted,
			cpus(tables.OrDash(c.CpusetCpus)), tables.OrDash(c.CpusetMems), tables.Range(c.Memory.Request, c.requestError), tables.OrDash(c.Memory.RequestSource), tables.Value(c.Memory.Min),
			tables.Value(c.Memory.Low), tables.Value(c.Memory.High), tables.Value(c.Memory.Max)))
	}
	tables.Section(b, "CONTAINERS", tables.Columns("POD\tCONTAINER\tQOS\tADMITTED"+cpus("CPUS")+"\tNODES\tREQUEST\tFROM\tMIN\tLOW\tHIGH\tLIMIT", rows...))
}

func (c *Container) name() string {
	if c.kind == "" {
		return c.Container
	}
	return c.Container + " (" + c.kind + ")"
}

func writeReasons(b *strings.Builder, title string, containers []*Container) {
	var lines strings.Builder
	for _, c := range containers {
		reason, code := c.Reason, ""
		if c.unplaced != nil {
			reason, code = c.unplaced.Why(), " ("+c.ReasonCode+")"
		}
		fmt.Fprintf(&lines, "%s/%s %s%s:\n    %s\n", c.Namespace, c.Pod, c.Container, code, strings.ReplaceAll(reason, "\n", "\n    "))
	}
	tables.Section(b, title, lines.String())
}

func (r *Result) writeAncestors(b *strings.Builder) {
	var rows []string
	for _, a := range r.Ancestors {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s", a.Cgroup, tables.Value(a.MemoryMin), tables.Value(a.MemoryLow)))
	}
	tables.Section(b, "CGROUPS ABOVE THE PODS", tables.Columns("CGROUP\tMEMORY.MIN\tMEMORY.LOW", rows...))
}
