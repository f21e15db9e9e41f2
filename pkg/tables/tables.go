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

// Columns aligns tab-separated rows below the names of their columns; "" without rows.
func Columns(names string, rows ...string) string {
	if len(rows) == 0 {
		return ""
	}
	var text strings.Builder
	w := New(&text)
	fmt.Fprintf(w, "%s\n%s\n", names, strings.Join(rows, "\n"))
	w.Flush()
	return text.String()
}

// Section writes a title, a text, and an empty line; nothing without a text.
func Section(to io.Writer, title, text string) {
	if text != "" {
		fmt.Fprintf(to, "%s\n%s\n", title, text)
	}
}

// Nodes writes the node map: a row and a bar per NUMA node and type of memory.
func Nodes(to io.Writer, nodes []memorymanager.NodeState) {
	var rows []string
	for _, node := range nodes {
		id, group := fmt.Sprint(node.ID), node.Cells.String()
		for _, memory := range node.Memory {
			if memory.Total == 0 { // a pool that is listed but empty
				continue
			}
			rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", id, group, memory.Type, quantity.Short(memory.Total),
				quantity.Short(memory.SystemReserved), quantity.Short(memory.Reserved), quantity.Short(memory.Free), bar(memory.Table)))
			id, group = "", ""
		}
	}
	Section(to, "NUMA NODES   (▒ reserved or in huge page pools, █ allocated, ░ free)",
		Columns("NODE\tGROUP\tTYPE\tTOTAL\tRESERVED\tALLOCATED\tFREE\t", rows...))
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

// Range is a number of bytes that may truly be larger by an error: what counts, and what it can be.
func Range(bytes, more uint64) string {
	if more == 0 {
		return quantity.Short(bytes)
	}
	return quantity.Short(bytes) + "–" + quantity.Short(bytes+more)
}

// OrDash is the text, or "-" for an empty one.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
