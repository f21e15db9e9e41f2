package oom

import "time"

// Sample is one look at a container that came near its limit.
type Sample struct {
	At      time.Time `json:"time"`
	Current uint64    `json:"current"` // memory.current, bytes
	Held    Held      `json:"held"`
	// Nodes is what it holds on each of the NUMA nodes that it is kept to, in bytes.
	Nodes map[int]uint64 `json:"numaNodes,omitempty"`
	// Max and High count how often memory.max and memory.high were reached (memory.events).
	Max  uint64 `json:"max"`
	High uint64 `json:"high"`
	// Stalled is how long all its tasks waited for memory since its start (full of memory.pressure).
	Stalled time.Duration `json:"stalledNanoseconds"`
}

const (
	// mostSamples and sampleAge bound what is kept of a container.
	mostSamples = 60
	sampleAge   = time.Minute
	// sampleEvery is the least time between two samples of a pod's containers.
	sampleEvery = time.Second
)

// samples are those of the last minute, the oldest first.
type samples []Sample

func (s samples) add(one Sample) samples {
	s = append(s.since(one.At), one)
	return s[max(0, len(s)-mostSamples):]
}

// since leaves out what is older than a minute.
func (s samples) since(now time.Time) samples {
	for len(s) > 0 && now.Sub(s[0].At) > sampleAge {
		s = s[1:]
	}
	return s
}

// again is how long until a container is looked at again, of which this is the next sample: a quarter of the time in which it will have
// reached its limit if it grows on as it did, and period where it does not grow.
func (s samples) again(next Sample, limit uint64) time.Duration {
	if len(s) == 0 {
		return sampleAge / 12 // to see whether it grows
	}
	last := s[len(s)-1]
	grown := less(next.Held.unreclaimable(), last.Held.unreclaimable())
	if grown == 0 {
		return period
	}
	left := float64(less(limit, next.Held.unreclaimable())) / float64(grown) * float64(next.At.Sub(last.At)) / 4
	return time.Duration(min(max(left, float64(sampleEvery)), float64(period)))
}
