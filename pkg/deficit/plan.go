package deficit

import (
	"cmp"
	"slices"
)

const (
	// leastDeficit, in bytes, is not worth a move: samples of different moments differ by as much.
	leastDeficit = 16 << 20
	// leastMove, in bytes, keeps a plan from being made of crumbs.
	leastMove = 1 << 20
)

// Order says in which order memory is moved away from a node that is overcommitted; the lower go first.
type Order int

// The orders of memory.
const (
	// Stays is memory that is never moved.
	Stays Order = iota
	BestEffortFirst
	BurstableNext
)

// Move is a cgroup's anonymous memory that would relieve a deficit on another node.
type Move struct {
	Path     string
	From, To int
	Bytes    uint64
}

// Plan returns the moves that relieve the deficits, the largest deficit first, of the cgroups in the order of Steps. File pages are not
// moved: those that could be are available already. A node receives no more than its slack that is free, so that no move makes or
// enlarges a deficit, and no later plan moves the memory back. The same nodes and cgroups give the same plan.
func Plan(nodes []Node, cgroups []Cgroup) (moves []Move) {
	nodes = slices.Clone(nodes) // as they would be
	for _, i := range overcommittedNodes(nodes) {
		node := &nodes[i]
		for _, c := range candidates(node, cgroups) {
			for left := c.pages(node.ID).Anon; left >= leastMove && node.Deficit() > 0; {
				to := roomiest(nodes)
				bytes := min(left, node.Deficit(), to.room())
				if to.room() < leastMove {
					break
				}
				moves = append(moves, Move{Path: c.Path, From: node.ID, To: to.ID, Bytes: bytes})
				left -= bytes
				node.Free += bytes
				to.Free -= bytes
			}
		}
	}
	return moves
}

// overcommittedNodes are the places of the overcommitted nodes, the largest deficit first.
func overcommittedNodes(nodes []Node) (all []int) {
	for i, n := range nodes {
		if n.overcommitted() {
			all = append(all, i)
		}
	}
	slices.SortStableFunc(all, func(x, y int) int { return cmp.Compare(nodes[y].Deficit(), nodes[x].Deficit()) })
	return all
}

// room is what a node can receive.
func (n Node) room() uint64 { return min(n.Free, n.Slack()) }

// roomiest is the node that can receive most, the lowest among equals. An overcommitted node can receive nothing.
func roomiest(nodes []Node) *Node {
	best := &nodes[0]
	for i := range nodes {
		if nodes[i].room() > best.room() {
			best = &nodes[i]
		}
	}
	return best
}
