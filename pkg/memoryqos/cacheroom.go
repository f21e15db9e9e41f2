package memoryqos

// leastCacheRoom, in bytes, is the smallest room that is of use: the kernel charges a CPU's pages in batches of 64.
const leastCacheRoom = 1 << 20

// MostCacheRoom is the largest share of a limit that can be left to page cache.
const MostCacheRoom = 0.5

// ValidCacheRoom reports whether a share of a limit can be left to page cache: 0 to 0.5.
func ValidCacheRoom(share float64) bool { return share >= 0 && share <= MostCacheRoom }

// belowLimit is a memory.high below a container's limit, in bytes, and the share of the limit between them; 0 where there is to be none.
//
// At memory.max an allocation needs pages at once, and the kernel kills where all that it finds is page cache that the disk has not
// taken yet. At memory.high the allocating thread is throttled until then (Documentation/admin-guide/cgroup-v2.rst, "memory.high"). That
// does not help a heap, for which the stall guard raises the value. A pod's own choice of memory.high, or of none, takes precedence.
func (s Settings) belowLimit(c Container, o Overrides) (bytes uint64, share float64) {
	share = s.CacheRoom
	if o.CacheRoom != nil {
		share = *o.CacheRoom
	}
	if !(share > 0) || !ValidCacheRoom(share) || c.Limit == 0 || o.High != nil || o.NoHigh {
		return 0, 0
	}
	bytes = s.floorPage(float64(c.Limit) * (1 - share))
	if bytes == 0 || c.Limit-bytes < leastCacheRoom {
		return 0, 0
	}
	return bytes, share
}

// IsCacheRoom reports whether a container's memory.high is the room for page cache below its limit.
func (s Settings) IsCacheRoom(c Container, o Overrides) bool { return s.throttling(c, o).room > 0 }
