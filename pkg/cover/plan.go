package cover

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

// Order says in which order memory is moved away from a node that owes more than it has; the lower go first.
type Order int

// The orders of memory.
const (
	// Stays is memory that is never moved.
	Stays Order = iota
	BestEffortFirst
	BurstableNext
)

// Move is a cgroup's anonymous memory that would cover a deficit on another node.
type Move struct {
	Path     string
	From, To int
	Bytes    uint64
}

// Plan returns the moves that cover the deficits, the largest deficit first: of BestEffort memory, then of Burstable, each from the
// cgroup that has most of it on the node, so that few are disturbed. File pages are not moved: those that could be are
// cover already. A node receives no more than it has free and owes to nobody, so that no move makes or enlarges a
// deficit, and no later plan moves the memory back. The same nodes and cgroups give the same plan.
func Plan(nodes []Node, cgroups []Cgroup) []Move {
	p := plan{nodes: slices.Clone(nodes)}
	for i := range cgroups {
		if c := &cgroups[i]; c.Order != Stays && len(c.Allocated) == 0 {
			p.movable = append(p.movable, c)
		}
	}
	for _, debtor := range debtors(nodes) {
		p.clear(&p.nodes[debtor])
	}
	return p.moves
}

// debtors are the places of the nodes in debt, the largest deficit first.
func debtors(nodes []Node) (all []int) {
	for i, n := range nodes {
		if n.inDebt() {
			all = append(all, i)
		}
	}
	slices.SortStableFunc(all, func(x, y int) int { return cmp.Compare(nodes[y].Deficit(), nodes[x].Deficit()) })
	return all
}

// plan is a plan in the making.
type plan struct {
	nodes   []Node // as they would be
	movable []*Cgroup
	moves   []Move
}

// clear moves memory off a node until it has what it owes, or nothing more can be moved.
func (p *plan) clear(debtor *Node) {
	order := slices.Clone(p.movable)
	slices.SortFunc(order, func(a, b *Cgroup) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(b.pages(debtor.ID).Anon, a.pages(debtor.ID).Anon), cmp.Compare(a.Path, b.Path))
	})
	for _, c := range order {
		for left := c.pages(debtor.ID).Anon; left >= leastMove && debtor.Deficit() > 0; {
			to := p.roomiest()
			bytes := min(left, debtor.Deficit(), to.room())
			if to.room() < leastMove {
				return
			}
			p.moves = append(p.moves, Move{Path: c.Path, From: debtor.ID, To: to.ID, Bytes: bytes})
			left -= bytes
			debtor.Free += bytes
			to.Free -= bytes
		}
	}
}

// room is what a node can receive.
func (n Node) room() uint64 { return min(n.Free, n.Slack()) }

// roomiest is the node that can receive most, the lowest among equals. A node in debt can receive nothing.
func (p *plan) roomiest() *Node {
	best := &p.nodes[0]
	for i := range p.nodes {
		if p.nodes[i].room() > best.room() {
			best = &p.nodes[i]
		}
	}
	return best
}
