package checkpoint

import (
	"fmt"
	"io"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Listing is a state file for programs: `state show -o json`. Sizes are in bytes.
type Listing struct {
	File       string              `json:"file"`
	Policy     string              `json:"policy"`
	Format     Format              `json:"format"`
	Checksum   uint32              `json:"checksum"`
	Verified   bool                `json:"verified"`
	Nodes      []NodeListing       `json:"nodes"`
	Containers []AllocationListing `json:"containers"`
	// Pods are those with pod-level resources; their containers' blocks are parts of their own.
	Pods []AllocationListing `json:"pods,omitempty"`
}

// NodeListing is one NUMA node.
type NodeListing struct {
	Node        int             `json:"node"`
	Group       []int           `json:"group"`
	Assignments int             `json:"assignments"`
	Memory      []MemoryListing `json:"memory"`
}

// MemoryListing is the memory of one type on one node.
type MemoryListing struct {
	Type           string `json:"type"`
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// AllocationListing has the blocks of a container, or of a pod as a whole.
type AllocationListing struct {
	Pod       string         `json:"pod"`
	Container string         `json:"container,omitempty"`
	Blocks    []BlockListing `json:"blocks"`
}

// BlockListing is a container's memory of one type. PerNode is present only if the nodes do not show it.
type BlockListing struct {
	Type    string         `json:"type"`
	Size    uint64         `json:"size"`
	Nodes   []int          `json:"nodes"`
	PerNode map[int]uint64 `json:"perNode,omitempty"`
}

// NewListing returns the listing of a file that was read from path.
func NewListing(path string, file File) Listing {
	out := Listing{
		File: path, Policy: file.Policy, Format: file.Format, Checksum: file.Checksum, Verified: file.Verified,
		Nodes: []NodeListing{}, Containers: []AllocationListing{},
	}
	for _, node := range file.State.Nodes {
		listed := NodeListing{Node: node.ID, Group: node.Cells.IDs(), Assignments: node.Assignments, Memory: []MemoryListing{}}
		for _, t := range node.Memory {
			listed.Memory = append(listed.Memory, MemoryListing{string(t.Type), t.Total, t.SystemReserved, t.Allocatable, t.Reserved, t.Free})
		}
		out.Nodes = append(out.Nodes, listed)
	}
	for _, entry := range file.State.Entries {
		out.Containers = append(out.Containers, AllocationListing{Pod: entry.Pod, Container: entry.Container, Blocks: listBlocks(entry.Blocks)})
	}
	for _, entry := range file.State.Pods {
		out.Pods = append(out.Pods, AllocationListing{Pod: entry.Pod, Blocks: listBlocks(entry.Blocks)})
	}
	return out
}

func listBlocks(blocks []memorymanager.Block) []BlockListing {
	listed := make([]BlockListing, len(blocks))
	for i, block := range blocks {
		listed[i] = BlockListing{Type: string(block.Type), Size: block.Size, Nodes: block.Nodes.IDs(), PerNode: amountsOf(block)}
	}
	return listed
}

// WriteTable writes a listing for people.
func (l Listing) WriteTable(out io.Writer) error {
	vouched := "checksum right"
	if !l.Verified {
		vouched = "not verified by a checksum"
	}
	fmt.Fprintf(out, "%s: policy %s, layout %s, %s, %d containers\n\n", l.File, l.Policy, l.Format, vouched, len(l.Containers))
	table := tables.New(out)
	fmt.Fprintln(table, "NODE\tGROUP\tASSIGNMENTS\tTYPE\tTOTAL\tRESERVED\tALLOCATABLE\tALLOCATED\tFREE")
	for _, node := range l.Nodes {
		for _, t := range node.Memory {
			fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", node.Node, nodeset.Of(node.Group...), node.Assignments, t.Type,
				quantity.Short(t.Total), quantity.Short(t.SystemReserved), quantity.Short(t.Allocatable), quantity.Short(t.Reserved), quantity.Short(t.Free))
		}
	}
	if len(l.Containers) > 0 {
		fmt.Fprintln(table, "\nPOD\tCONTAINER\tTYPE\tSIZE\tNODES")
	}
	row := func(pod, container string, blocks []BlockListing) {
		for _, block := range blocks {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", printable(pod), printable(container), printable(block.Type), quantity.Short(block.Size), nodeset.Of(block.Nodes...))
		}
	}
	for _, pod := range l.Pods {
		row(pod.Pod, "(the pod as a whole)", pod.Blocks)
	}
	for _, c := range l.Containers {
		row(c.Pod, c.Container, c.Blocks)
	}
	return table.Flush()
}

// WriteFindings writes each finding on a line, and what to do on the next one.
func WriteFindings(out io.Writer, findings []Finding) error {
	var text strings.Builder
	for _, finding := range findings {
		fmt.Fprintf(&text, "%s: %s\n    to do: %s\n", printable(finding.Where), printable(finding.What), finding.Do)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// printable keeps control characters of a hostile file off a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
