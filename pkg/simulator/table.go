package simulator

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Table writes the result for people.
func (r *Result) Table(to io.Writer) error {
	var b strings.Builder
	r.writeNodes(&b)
	r.writeContainers(&b)
	r.writeRejections(&b)
	r.writeAncestors(&b)
	_, err := io.WriteString(to, b.String())
	return err
}

const barWidth = 40

// bar draws a node's memory: reserved for the system and huge page pools, allocated, free.
func bar(table memorymanager.Table) string {
	share := func(bytes uint64) int {
		if table.Total == 0 {
			return 0
		}
		return int(float64(bytes) / float64(table.Total) * barWidth)
	}
	allocated := share(table.Reserved)
	if allocated == 0 && table.Reserved > 0 {
		allocated = 1
	}
	free := min(share(table.Free), barWidth-allocated)
	return strings.Repeat("▒", barWidth-allocated-free) + strings.Repeat("█", allocated) + strings.Repeat("░", free)
}

func (r *Result) writeNodes(b *strings.Builder) {
	if len(r.nodes) == 0 {
		return
	}
	fmt.Fprintln(b, "NUMA NODES   (▒ reserved or in huge page pools, █ allocated, ░ free)")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tGROUP\tTYPE\tTOTAL\tRESERVED\tALLOCATED\tFREE\t")
	for _, node := range r.nodes {
		for i, memory := range node.Memory {
			id, group := fmt.Sprint(node.ID), node.Cells.String()
			if i > 0 {
				id, group = "", ""
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", id, group, memory.Type, size(memory.Total),
				size(memory.SystemReserved), size(memory.Reserved), size(memory.Free), bar(memory.Table))
		}
	}
	w.Flush()
	fmt.Fprintln(b)
}

func (r *Result) writeContainers(b *strings.Builder) {
	fmt.Fprintln(b, "CONTAINERS")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POD\tCONTAINER\tQOS\tADMITTED\tNODES\tREQUEST\tMIN\tLOW\tHIGH\tMAX\tREQUEST FROM")
	for _, c := range r.Containers {
		admitted, request := "yes", size(c.Memory.Request)
		if !c.Admitted {
			admitted, request = "NO", "-"
		}
		if c.requestError > 0 {
			request += " +" + size(c.requestError)
		}
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Namespace, c.Pod, c.name(), c.QOSClass, admitted,
			orDash(c.CpusetMems), request, optional(c.Memory.Min), optional(c.Memory.Low), optional(c.Memory.High),
			optional(c.Memory.Max), orDash(c.Memory.RequestSource))
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

func (r *Result) writeRejections(b *strings.Builder) {
	rejected := r.Rejected()
	if len(rejected) == 0 {
		return
	}
	fmt.Fprintln(b, "NOT CREATED")
	for _, c := range rejected {
		fmt.Fprintf(b, "%s/%s %s:\n    %s\n", c.Namespace, c.Pod, c.Container, strings.ReplaceAll(c.Reason, "\n", "\n    "))
	}
	fmt.Fprintln(b)
}

func (r *Result) writeAncestors(b *strings.Builder) {
	fmt.Fprintln(b, "CGROUPS ABOVE THE CONTAINERS")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CGROUP\tMEMORY.MIN\tMEMORY.LOW")
	for _, a := range r.Ancestors {
		fmt.Fprintf(w, "%s\t%s\t%s\n", a.Cgroup, optional(a.MemoryMin), optional(a.MemoryLow))
	}
	w.Flush()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func optional(bytes *uint64) string {
	if bytes == nil {
		return "-"
	}
	return size(*bytes)
}

// size is exact for whole units and has two digits after the point for others.
func size(bytes uint64) string {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	unit, rest := 0, float64(bytes)
	for rest >= 1024 && unit < len(units)-1 {
		rest, unit = rest/1024, unit+1
	}
	text := strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", rest), "0"), ".")
	return text + units[unit]
}
