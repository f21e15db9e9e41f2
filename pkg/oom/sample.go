package oom

import "time"

// Sample is one look at a container that came near its limit.
type Sample struct {
	At      time.Time `json:"time"`
	Current uint64    `json:"current"` // memory.current, bytes
	Held    Held      `json:"held"`
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
