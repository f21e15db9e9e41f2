package checkpoint

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// The functions below append the JSON that encoding/json would write for the kubelet's types. Its reflection takes several times as long.

// appendState appends everything before the checksum.
func appendState(b []byte, s memorymanager.State, policy string) []byte {
	b = appendString(append(b, `{"policyName":`...), policy)
	nodes := slices.SortedFunc(slices.Values(s.Nodes), func(x, y memorymanager.NodeState) int { // "10" before "2"
		return cmp.Compare(strconv.Itoa(x.ID), strconv.Itoa(y.ID))
	})
	b = append(appendList(append(b, `,"machineState":{`...), ',', nodes, appendNodeJSON), '}')
	if len(s.Entries) > 0 {
		b = append(appendList(append(b, `,"entries":{`...), ',', byPod(s.Entries, nil), appendPodJSON), '}')
	}
	if len(s.Pods) > 0 {
		b = append(appendList(append(b, `,"podEntries":{`...), ',', s.Pods, appendPodEntryJSON), '}')
	}
	return b
}

func appendNodeJSON(b []byte, node memorymanager.NodeState) []byte {
	b = strconv.AppendInt(append(b, '"'), int64(node.ID), 10)
	b = appendField(b, `":{"numberOfAssignments":`, uint64(node.Assignments))
	b = appendList(append(b, `,"memoryMap":{`...), ',', node.Memory, appendTableJSON)
	b = appendList(append(b, `},"cells":[`...), ',', node.Cells.IDs(), appendInt)
	return append(b, `]}`...)
}

func appendTableJSON(b []byte, table memorymanager.TypeTable) []byte {
	b = appendString(b, string(table.Type))
	b = appendField(b, `:{"total":`, table.Total)
	b = appendField(b, `,"systemReserved":`, table.SystemReserved)
	b = appendField(b, `,"allocatable":`, table.Allocatable)
	b = appendField(b, `,"reserved":`, table.Reserved)
	b = appendField(b, `,"free":`, table.Free)
	return append(b, '}')
}

func appendPodJSON(b []byte, pod memorymanager.PodAllocations) []byte {
	b = append(appendString(b, pod.Pod), `:{`...)
	return append(appendList(b, ',', pod.Entries, appendEntryJSON), '}')
}

func appendEntryJSON(b []byte, entry memorymanager.Entry) []byte {
	b = append(appendString(b, entry.Container), `:[`...)
	return append(appendList(b, ',', entry.Blocks, appendBlockJSON), ']')
}

func appendPodEntryJSON(b []byte, entry memorymanager.PodEntry) []byte {
	b = append(appendString(b, entry.Pod), `:{"memoryBlocks":[`...)
	return append(appendList(b, ',', entry.Blocks, appendBlockJSON), `]}`...)
}

func appendBlockJSON(b []byte, block memorymanager.Block) []byte {
	b = appendList(append(b, `{"numaAffinity":[`...), ',', block.Nodes.IDs(), appendInt)
	b = appendString(append(b, `],"type":`...), string(block.Type))
	b = appendField(b, `,"size":`, block.Size)
	if block.PerNode != nil {
		b = append(appendList(append(b, `,"perNode":{`...), ',', block.PerNode, appendAmountJSON), '}')
	}
	return append(b, '}')
}

func appendAmountJSON(b []byte, amount memorymanager.NodeAmount) []byte {
	return appendField(strconv.AppendInt(append(b, '"'), int64(amount.Node), 10), `":`, amount.Bytes)
}

func appendList[T any](b []byte, separator byte, all []T, one func([]byte, T) []byte) []byte {
	for i, each := range all {
		if i > 0 {
			b = append(b, separator)
		}
		b = one(b, each)
	}
	return b
}

func appendField(b []byte, name string, value uint64) []byte {
	return strconv.AppendUint(append(b, name...), value, 10)
}

func appendInt(b []byte, value int) []byte { return strconv.AppendInt(b, int64(value), 10) }

// appendString quotes a name. Kubernetes names need no escaping; encoding/json handles others.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || strings.IndexByte(`"\<>&`, c) >= 0 {
			quoted, err := json.Marshal(validUTF8(s))
			if err != nil { // not for a string
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// validUTF8 replaces what JSON cannot hold, so that the checksum matches what a reader sees.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
