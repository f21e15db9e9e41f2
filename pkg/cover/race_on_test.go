//go:build race

package cover

// machines is how many random machines a property is tried on: the race detector makes each ten times slower.
const machines = 10_000
