package world

import "time"

const makersFirst Promise = "page cache is taken of who makes it before the others"

// makersFirst looks for a container that lost page cache in a minute in which another one of the class BestEffort gave nothing, although it had
// twice as much all the time and read nothing of it again.
func (n *simulation) makersFirst() {
	const span, every, much = time.Minute, 5 * time.Second, 64 * mi // every is how often this is called
	now := time.Now()
	if n.trouble.calm(makersFirst, now).After(now) {
		n.caches = nil
		return
	}
	cached, look := n.kernel.Cached(), map[string]Cache{}
	for _, p := range n.kubelet.Pods() {
		for _, c := range p.Containers {
			if p.Class == "BestEffort" {
				look[c.Cgroup] = cached[c.Cgroup]
			}
		}
	}
	if n.caches = append(n.caches, look); len(n.caches) <= int(span/every) {
		return
	}
	n.caches = n.caches[1:]
	for maker, has := range look {
		least, _, idle := n.inMinute(maker)
		if !idle {
			continue
		}
		for other := range look {
			if _, most, _ := n.inMinute(other); most < least/2 && look[other].Gave-n.caches[0][other].Gave >= much {
				n.broken(makersFirst, "%s gave nothing of %dMi in a minute, and %s gave of %dMi", maker, has.Active/mi, other, most/mi)
			}
		}
	}
}

// inMinute is how little and how much active page cache a container had, and whether it gave nothing and read nothing again.
func (n *simulation) inMinute(cgroup string) (least, most uint64, idle bool) {
	first := n.caches[0][cgroup]
	least, idle = first.Active, true
	for _, look := range n.caches {
		has := look[cgroup]
		least, most = min(least, has.Active), max(most, has.Active)
		idle = idle && has.Gave == first.Gave && has.Again == first.Again
	}
	return least, most, idle
}
