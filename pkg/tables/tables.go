// Package tables writes what simulate, status and state show people: the node map with its bars, and values as text.
package tables

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

const barWidth = 40

// New returns a writer that aligns tab-separated columns; Flush writes them.
func New(to io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(to, 0, 0, 2, ' ', 0) }

// Nodes writes the node map: a row and a bar per NUMA node and type of memory.
func Nodes(to io.Writer, nodes []memorymanager.NodeState) {
	if len(nodes) == 0 {
		return
	}
	fmt.Fprintln(to, "NUMA NODES   (▒ reserved or in huge page pools, █ allocated, ░ free)")
	w := New(to)
	fmt.Fprintln(w, "NODE\tGROUP\tTYPE\tTOTAL\tRESERVED\tALLOCATED\tFREE\t")
	for _, node := range nodes {
		id, group := fmt.Sprint(node.ID), node.Cells.String()
		for _, memory := range node.Memory {
			if memory.Total == 0 { // a pool that is listed but empty
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", id, group, memory.Type, quantity.Short(memory.Total),
				quantity.Short(memory.SystemReserved), quantity.Short(memory.Reserved), quantity.Short(memory.Free), bar(memory.Table))
			id, group = "", ""
		}
	}
	w.Flush()
	fmt.Fprintln(to)
}

// bar draws a node's memory: reserved for the system and huge page pools, allocated, free.
func bar(table memorymanager.Table) string {
	share := func(bytes uint64) int {
		if table.Total == 0 {
			return 0
		}
		return min(int(float64(bytes)/float64(table.Total)*barWidth), barWidth)
	}
	allocated := share(table.Reserved)
	if allocated == 0 && table.Reserved > 0 {
		allocated = 1
	}
	free := min(share(table.Free), barWidth-allocated)
	return strings.Repeat("▒", barWidth-allocated-free) + strings.Repeat("█", allocated) + strings.Repeat("░", free)
}

// Value is a value that may not be set, as text: "-" when it is not.
func Value(bytes *uint64) string {
	if bytes == nil {
		return "-"
	}
	return quantity.Short(*bytes)
}

// OrDash is the text, or "-" for an empty one.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
