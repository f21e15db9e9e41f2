package checkpoint

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// The state file's JSON, appended as encoding/json would write the kubelet's types.

func appendNodeJSON(b []byte, node memorymanager.NodeState) []byte {
	b = append(b, '"')
	b = strconv.AppendInt(b, int64(node.ID), 10)
	b = append(b, `":{"numberOfAssignments":`...)
	b = strconv.AppendInt(b, int64(node.Assignments), 10)
	b = append(b, `,"memoryMap":{`...)
	for i, table := range node.Memory {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, string(table.Type))
		b = appendField(b, `:{"total":`, table.Total)
		b = appendField(b, `,"systemReserved":`, table.SystemReserved)
		b = appendField(b, `,"allocatable":`, table.Allocatable)
		b = appendField(b, `,"reserved":`, table.Reserved)
		b = appendField(b, `,"free":`, table.Free)
		b = append(b, '}')
	}
	b = append(b, `},"cells":[`...)
	b = appendSet(b, node.Cells, ',')
	return append(b, `]}`...)
}

func appendPodJSON(b []byte, pod string, entries []memorymanager.Entry, amounts bool) []byte {
	b = append(appendString(b, pod), `:{`...)
	for i, entry := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendEntryJSON(b, entry, amounts)
	}
	return append(b, '}')
}

func appendPodEntryJSON(b []byte, pod string, blocks []memorymanager.Block, amounts bool) []byte {
	b = append(appendString(b, pod), `:{"memoryBlocks":`...)
	return append(appendBlocksJSON(b, blocks, amounts), '}')
}

func appendEntryJSON(b []byte, entry memorymanager.Entry, amounts bool) []byte {
	b = append(appendString(b, validUTF8(entry.Container)), ':')
	return appendBlocksJSON(b, entry.Blocks, amounts)
}

func appendBlocksJSON(b []byte, blocks []memorymanager.Block, amounts bool) []byte {
	b = append(b, '[')
	for i, block := range blocks {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"numaAffinity":[`...)
		b = appendSet(b, block.Nodes, ',')
		b = append(b, `],"type":`...)
		b = appendString(b, string(block.Type))
		b = appendField(b, `,"size":`, block.Size)
		if amounts && block.PerNode != nil {
			b = append(b, `,"perNode":{`...)
			for j, amount := range block.PerNode {
				if j > 0 {
					b = append(b, ',')
				}
				b = append(b, '"')
				b = strconv.AppendInt(b, int64(amount.Node), 10)
				b = appendField(b, `":`, amount.Bytes)
			}
			b = append(b, '}')
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendField(b []byte, name string, value uint64) []byte {
	return strconv.AppendUint(append(b, name...), value, 10)
}

func appendSet(b []byte, nodes nodeset.Set, separator byte) []byte {
	first := true
	for id := range nodes.All() {
		if !first {
			b = append(b, separator)
		}
		first = false
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return b
}

// appendString quotes a name. The names of Kubernetes are plain; what is not is left to encoding/json.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || strings.IndexByte(`"\<>&`, c) >= 0 {
			quoted, err := json.Marshal(s)
			if err != nil { // not for a string
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
