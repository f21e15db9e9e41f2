package world

const readsLittle Promise = "the daemon reads a bounded number of files a second"

// readsLittle counts what the daemon has read in the five seconds since it was called last, whatever the kernel tells it meanwhile.
func (n *simulation) readsLittle() {
	const always, each = 5 * 500, 5 * 50 // files in so long, and of each container
	l := n.current()
	if l == nil {
		return
	}
	containers, reads := 0, l.port.Reads()
	for _, p := range n.kubelet.Pods() {
		containers += len(p.Containers)
	}
	if read := less(reads, n.reads); read > always+uint64(containers)*each {
		n.broken(readsLittle, "%d in five seconds, with %d containers", read, containers)
	}
	n.reads = reads
}
