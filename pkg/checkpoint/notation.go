package checkpoint

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// notation is what stands between the values of a state, which reflection (encoding/json, fmt, dump.ForHash) would take several times as
// long to write: a create waits for it.
type notation struct {
	separator                         byte
	name                              func(b []byte, s string) []byte
	policy, nodes, entries, ownBlocks string
	node, table, block                []string // before, between and after the values
	pod, entry, podEntry              [2]string
	amounts                           bool // by node, which the kubelet's types do not have
}

// inFile is the JSON that encoding/json writes for a document.
var inFile = notation{
	',', appendQuoted, `{"policyName":`, `,"machineState":{`, `},"entries":{`, `},"podEntries":{`,
	[]string{`:{"numberOfAssignments":`, `,"memoryMap":{`, `},"cells":[`, `]}`},
	[]string{`:{"total":`, `,"systemReserved":`, `,"allocatable":`, `,"reserved":`, `,"free":`, `}`},
	[]string{`{"numaAffinity":[`, `],"type":`, `,"size":`, `}`},
	[2]string{`:{`, `}`}, [2]string{`:[`, `]`}, [2]string{`:{"memoryBlocks":[`, `]}`},
	true,
}

// inHash is the text that the kubelet hashes for the checksum of layouts V1 and V2: its types as Go syntax, as dump.ForHash prints them,
// with the checksum 0.
var inHash = notation{
	' ', func(b []byte, s string) []byte { return append(b, validUTF8(s)...) },
	"(*state.MemoryManagerCheckpoint){PolicyName:(string)", " MachineState:(state.NUMANodeMap)map[",
	"] Entries:(state.ContainerMemoryAssignments)map[", "] PodEntries:(state.PodMemoryAssignments)map[",
	[]string{":<*>{NumberOfAssignments:(int)", " MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[", "] Cells:([]int)[", "]}"},
	[]string{":<*>{TotalMemSize:(uint64)", " SystemReserved:(uint64)", " Allocatable:(uint64)", " Reserved:(uint64)", " Free:(uint64)", "}"},
	[]string{"{NUMAAffinity:([]int)[", "] Type:(v1.ResourceName)", " Size:(uint64)", "}"},
	[2]string{":map[", "]"}, [2]string{":[", "]"}, [2]string{":{MemoryBlocks:([]state.Block)[", "]}"},
	false,
}

const textEnd = " Checksum:(checksum.Checksum)0}"

// appendFileState appends the file up to its checksums.
func appendFileState(b []byte, s memorymanager.State, policy string) []byte {
	nodes := slices.SortedFunc(slices.Values(s.Nodes), func(x, y memorymanager.NodeState) int { // "10" before "2", as encoding/json has keys
		return cmp.Compare(strconv.Itoa(x.ID), strconv.Itoa(y.ID))
	})
	b = inFile.appendNodes(b, nodes, policy)
	if len(s.Entries) > 0 {
		b = inFile.appendEntries(b, s.Entries)
	}
	if len(s.Pods) > 0 {
		b = inFile.appendOwnBlocks(b, s.Pods)
	}
	return append(b, '}')
}

// appendAmountsSum appends the checksum of the blocks' amounts, if there are any.
func appendAmountsSum(b []byte, s memorymanager.State) []byte {
	if sum := amountsSum(s); sum > 0 {
		b = appendField(b, `,"perNodeChecksum":`, sum)
	}
	return b
}

// appendHashText appends the text that the kubelet hashes.
func appendHashText(b []byte, s memorymanager.State, format Format, policy string) []byte {
	b = inHash.appendEntries(inHash.appendNodes(b, s.Nodes, policy), s.Entries)
	if format == V2 {
		b = inHash.appendOwnBlocks(b, s.Pods)
	}
	return append(b, "]"+textEnd...)
}

func (n notation) appendNodes(b []byte, nodes []memorymanager.NodeState, policy string) []byte {
	b = append(n.name(append(b, n.policy...), policy), n.nodes...)
	return appendList(b, n.separator, nodes, func(b []byte, node memorymanager.NodeState) []byte {
		b = appendField(n.name(b, strconv.Itoa(node.ID)), n.node[0], uint64(node.Assignments))
		b = appendList(append(b, n.node[1]...), n.separator, node.Memory, n.appendTable)
		b = appendList(append(b, n.node[2]...), n.separator, node.Cells.IDs(), appendInt)
		return append(b, n.node[3]...)
	})
}

func (n notation) appendTable(b []byte, t memorymanager.TypeTable) []byte {
	b = n.name(b, string(t.Type))
	for i, bytes := range []uint64{t.Total, t.SystemReserved, t.Allocatable, t.Reserved, t.Free} {
		b = appendField(b, n.table[i], bytes)
	}
	return append(b, n.table[5]...)
}

func (n notation) appendEntries(b []byte, entries []memorymanager.Entry) []byte {
	entry := func(b []byte, entry memorymanager.Entry) []byte {
		return n.appendBlocks(b, entry.Container, n.entry, entry.Blocks)
	}
	return appendList(append(b, n.entries...), n.separator, byPod(entries, nil), func(b []byte, pod memorymanager.PodAllocations) []byte {
		b = append(n.name(b, pod.Pod), n.pod[0]...)
		return append(appendList(b, n.separator, pod.Entries, entry), n.pod[1]...)
	})
}

func (n notation) appendOwnBlocks(b []byte, pods []memorymanager.PodEntry) []byte {
	return appendList(append(b, n.ownBlocks...), n.separator, pods, func(b []byte, pod memorymanager.PodEntry) []byte {
		return n.appendBlocks(b, pod.Pod, n.podEntry, pod.Blocks)
	})
}

func (n notation) appendBlocks(b []byte, name string, around [2]string, blocks []memorymanager.Block) []byte {
	b = append(n.name(b, name), around[0]...)
	return append(appendList(b, n.separator, blocks, n.appendBlock), around[1]...)
}

func (n notation) appendBlock(b []byte, block memorymanager.Block) []byte {
	b = appendList(append(b, n.block[0]...), n.separator, block.Nodes.IDs(), appendInt)
	b = appendField(n.name(append(b, n.block[1]...), string(block.Type)), n.block[2], block.Size)
	if block.PerNode != nil && n.amounts {
		b = append(appendList(append(b, `,"perNode":{`...), ',', block.PerNode, appendAmount), '}')
	}
	return append(b, n.block[3]...)
}

func appendAmount(b []byte, amount memorymanager.NodeAmount) []byte {
	return appendField(append(b, '"'), strconv.Itoa(amount.Node)+`":`, amount.Bytes)
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

func appendField[T uint32 | uint64](b []byte, before string, value T) []byte {
	return strconv.AppendUint(append(b, before...), uint64(value), 10)
}

func appendInt(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }

// appendQuoted quotes a name; Kubernetes has no names that need escapes.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(validUTF8(s)) // which cannot fail
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
