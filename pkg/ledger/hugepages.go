package ledger

import "time"

// RequestTimeout is how long the creation of a container may wait for what is asked about it.
func (l *Ledger) RequestTimeout() time.Duration {
	return time.Duration(l.state.Resolved.Config.RequestTimeout)
}

// PagesToVerify are the sizes, in bytes, of the huge pages that a container asks for and that the kernel must have free before it
// is created; nil where nothing is verified.
func (l *Ledger) PagesToVerify(c Container) (sizes []uint64) {
	if l.manager == nil || !l.state.Resolved.Config.VerifyHugepages {
		return nil
	}
	for _, pages := range c.Resources.Hugepages {
		if size, ok := pageSize(pages.PageSize); ok && pages.Limit > 0 {
			sizes = append(sizes, size)
		}
	}
	return sizes
}
